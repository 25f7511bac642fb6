package accountd

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

const (
	linkTTL       = 10 * time.Minute
	sessionTTL    = 7 * 24 * time.Hour
	sessionIdle   = 12 * time.Hour
	sessionNoted  = 5 * time.Minute // how exact the last use of a session is
	maxSessions   = 32              // of a token; the one that was used least recently makes room
	maxLoginLinks = 32              // of a token that wait to be used
)

const (
	linkPrefix    = "cay_link_"
	sessionPrefix = "cay_ses_"
	keyPrefix     = "cay_key_"
)

var _ api.SessionAuthenticator = (*Engine)(nil)

// browserSession is the row of a login in a browser. The session acts for its token,
// and is deleted with the token.
type browserSession struct {
	token     account.Token
	usedAt    time.Time
	expiresAt time.Time
}

// ends returns when the session expires, unless it is used before.
func (s browserSession) ends() time.Time {
	return earlier(earlier(s.expiresAt, s.token.ExpiresAt), timeOf(s.usedAt.Add(sessionIdle)))
}

func timeOf(t time.Time) *time.Time { return &t }

// sessionHash returns the key of a session's row: a hash over both halves, so that
// one half alone is useless.
func sessionHash(s api.Session) hash {
	return sha256.Sum256([]byte("browser session\x00" + s.ID + "\x00" + s.Key))
}

// CreateLoginLink implements Service.
func (e *Engine) CreateLoginLink(ctx context.Context) (*account.LoginLink, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	code, now := newCode(linkPrefix), e.timestamp()
	link := &account.LoginLink{Code: code, ExpiresAt: now.Add(linkTTL)}
	if err := e.store.insertLoginLink(ctx, sha256.Sum256([]byte(code)), p.TokenID, now, link.ExpiresAt); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "login link created", "by", p.TokenID)
	return link, nil
}

// LogIn begins a session in a browser at an address: with the code of a login link,
// which can be used once, or else with the secret of a token, which may not be a
// JWT. Errors: unauthenticated; quota_exceeded after too many wrong secrets from the
// address.
func (e *Engine) LogIn(ctx context.Context, code, secret, address string) (api.Session, time.Time, error) {
	now := e.timestamp()
	if wait := e.wrongTokens.wait(address, now); wait > 0 {
		err := cay.Errorf(cay.QuotaExceeded, "too many tokens or codes were wrong").WithHint("wait %d minutes", int(wait/time.Minute)+1)
		err.RetryAfter = wait
		return api.Session{}, time.Time{}, err
	}
	t, err := e.loginToken(ctx, code, secret, now)
	if err != nil {
		if cay.CodeOf(err) == cay.Unauthenticated {
			e.wrongTokens.wrong(address, now)
		}
		return api.Session{}, time.Time{}, err
	}
	s := api.Session{ID: newCode(sessionPrefix), Key: newCode(keyPrefix)}
	expires := earlier(now.Add(sessionTTL), t.ExpiresAt)
	displaced, err := e.store.insertSession(ctx, sessionHash(s), t.ID, now, expires)
	if err != nil {
		return api.Session{}, time.Time{}, err
	}
	if len(displaced) > 0 {
		e.cache.drop(t.ID)
		for _, h := range displaced {
			e.holds.end(t.ID, &h)
		}
	}
	e.log.InfoContext(ctx, "browser logged in", "token", t.ID, "address", address)
	return s, expires, nil
}

// loginToken returns the token of a login's code or secret.
func (e *Engine) loginToken(ctx context.Context, code, secret string, now time.Time) (*account.Token, error) {
	var t *account.Token
	var err error
	switch {
	case code != "":
		t, err = e.store.useLoginLink(ctx, sha256.Sum256([]byte(code)), now)
		if err == nil && t == nil {
			return nil, cay.Errorf(cay.Unauthenticated, "the login link is not valid any more").
				WithHint("a link is good once, and for 10 minutes; \"cay ui\" makes another")
		}
	case isOpaque(secret):
		t, err = e.store.findToken(ctx, sha256.Sum256([]byte(secret)))
	case isJWT(secret):
		return nil, cay.Errorf(cay.Unauthenticated, "a JWT cannot be logged in with").WithHint("use a token that begins with cay_")
	}
	if err != nil {
		return nil, err
	}
	if t == nil || t.ExpiresAt != nil && !t.ExpiresAt.After(now) {
		return nil, errBadToken()
	}
	return t, nil
}

// AuthenticateSession implements api.SessionAuthenticator.
func (e *Engine) AuthenticateSession(ctx context.Context, s api.Session) (api.Principal, error) {
	now := e.now()
	entry, err := e.sessionEntry(ctx, s, now)
	if err != nil {
		return api.Principal{}, err
	}
	e.uses.note(entry, now)
	return entry.principal, nil
}

// sessionEntry returns the token of a session, and records that the session was
// used. Errors: unauthenticated if the session is unknown, or over.
func (e *Engine) sessionEntry(ctx context.Context, s api.Session, now time.Time) (*cached, error) {
	h := sessionHash(s)
	entry, generation := e.cache.get(h, now)
	if entry == nil {
		found, err := e.store.findSession(ctx, h)
		if err != nil {
			return nil, err
		}
		if found == nil || !now.Before(found.ends()) {
			return nil, errNoSession()
		}
		if now.Sub(found.usedAt) >= sessionNoted {
			if err := e.store.noteSession(ctx, h, now); err != nil {
				return nil, err
			}
			found.usedAt = now
		}
		t := found.token
		entry = &cached{
			principal: principalOf(&t),
			expires:   timeOf(found.ends()),
		}
		e.cache.put(h, entry, generation, now)
	}
	if !entry.expires.After(now) {
		return nil, errNoSession()
	}
	return entry, nil
}

// LogOut ends a session. A session that is over, or unknown, is no error.
func (e *Engine) LogOut(ctx context.Context, s api.Session) error {
	h := sessionHash(s)
	id, err := e.store.deleteSession(ctx, h)
	if err != nil || id == "" {
		return err
	}
	e.cache.drop(id)
	e.holds.end(id, &h)
	e.log.InfoContext(ctx, "browser logged out", "token", id)
	return nil
}

func errNoSession() error {
	return cay.Errorf(cay.Unauthenticated, "the login has ended").WithHint("log in again; \"cay ui\" makes a link")
}
