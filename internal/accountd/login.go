package accountd

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"
	"unicode"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/oidc"
)

const (
	loginTTL       = 10 * time.Minute    // for a person to approve it
	loginGrace     = 5 * time.Minute     // in which a device is told that it is too late
	loginInterval  = 5 * time.Second     // between polls
	loginTolerance = time.Second         // that polls may be early by
	accessTTL      = 30 * 24 * time.Hour // of a token
	refreshTTL     = 90 * 24 * time.Hour // of a refresh token that is not used
	replayGrace    = 30 * time.Second    // in which a refresh token used twice is a race, not a theft

	maxDeviceLogins     = 1000 // that have begun and not ended
	maxDeviceLoginsFrom = 50   // logins from one address

	maxClientText = 200 // bytes of what a client says of itself

	deviceCodePrefix = "cayd_"
	refreshPrefix    = "cayr_"
)

// userCodeLetters form no words, and cannot be confused with each other. Eight
// letters have 34 bits: enough for ten minutes with few guesses.
const (
	userCodeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	userCodeLength  = 8
)

// loginRequest describes a device that asks for a login. All fields but the
// address are the device's own.
type loginRequest struct {
	clientID, scope, agent, address string
}

// begunLogin is the answer to the device.
type begunLogin struct {
	deviceCode, userCode string
	expiresIn, interval  time.Duration
}

// grant is the result of a login, and of its renewal.
type grant struct {
	secret, refresh, scope string
	expiresIn              time.Duration
}

// oauthError is an error in the form of RFC 6749 and 8628.
type oauthError struct{ code, description string }

func (e *oauthError) Error() string { return e.code + ": " + e.description }

// beginLogin records a device's request for a token. Errors: invalid,
// quota_exceeded.
func (e *Engine) beginLogin(ctx context.Context, r loginRequest) (*begunLogin, error) {
	for _, s := range []string{r.clientID, r.scope} {
		if len(s) > maxClientText || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, &oauthError{"invalid_request", "client_id and scope are at most 200 printable characters"}
		}
	}
	if r.clientID == "" {
		return nil, &oauthError{"invalid_request", "client_id is missing"}
	}
	r.agent = printable(r.agent, maxClientText)
	device, user := newCode(deviceCodePrefix), newUserCode()
	now := e.timestamp()
	l := deviceLogin{loginRequest: r, state: loginPending, createdAt: now, expiresAt: now.Add(loginTTL)}
	if err := e.store.insertDeviceLogin(ctx, l, sha256.Sum256([]byte(device)), e.userHash(user)); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "device login begun", "client", r.clientID, "agent", r.agent, "address", r.address)
	return &begunLogin{device, user[:4] + "-" + user[4:], loginTTL, loginInterval}, nil
}

// pollLogin returns the token of a login that was approved, once. Errors:
// *oauthError, among them authorization_pending.
func (e *Engine) pollLogin(ctx context.Context, clientID, deviceCode string) (*grant, error) {
	device := hash(sha256.Sum256([]byte(deviceCode)))
	l, err := e.store.getDeviceLogin(ctx, device)
	if err != nil {
		return nil, err
	}
	now := e.timestamp()
	switch {
	case l == nil || l.clientID != clientID:
		return nil, &oauthError{"invalid_grant", "the device code is not valid, or was used before"}
	case !now.Before(l.expiresAt):
		return nil, &oauthError{"expired_token", "the login was not approved in time"}
	case l.state == loginDenied:
		return nil, &oauthError{"access_denied", "the login was denied"}
	case l.state == loginApproved:
		return e.completeLogin(ctx, device, l, now)
	case now.Sub(l.polledAt) < loginInterval-loginTolerance:
		return nil, &oauthError{"slow_down", "wait 5 seconds between polls"}
	}
	if err := e.store.polled(ctx, device, now); err != nil {
		return nil, err
	}
	return nil, &oauthError{"authorization_pending", "the login was not approved yet"}
}

func (e *Engine) completeLogin(ctx context.Context, device hash, l *deviceLogin, now time.Time) (*grant, error) {
	name := "login of " + l.clientID
	if l.agent != "" {
		name = "login of " + l.agent
	}
	expires := earlier(now.Add(accessTTL), l.deadline)
	if !expires.After(now) {
		return nil, &oauthError{"access_denied", "the token that approved the login has expired"}
	}
	secret, h := newSecret()
	refresh := newCode(refreshPrefix)
	t := account.Token{
		ID: newID("tok_"), Name: printable(name, 128), TeamID: l.teamID, ProjectID: l.projectID, CreatedAt: now, ExpiresAt: &expires,
	}
	ok, err := e.store.completeLogin(ctx, device, t, h, login{
		clientID: l.clientID, scope: l.scope, deadline: l.deadline, expiresAt: earlier(now.Add(refreshTTL), l.deadline),
	}, sha256.Sum256([]byte(refresh)))
	switch {
	case cay.CodeOf(err) == cay.QuotaExceeded:
		return nil, &oauthError{"access_denied", err.Error()}
	case err != nil:
		return nil, err
	case !ok:
		return nil, &oauthError{"invalid_grant", "the device code is not valid, or was used before"}
	}
	e.log.InfoContext(ctx, "device login completed", "id", t.ID, "team", t.TeamID, "project", t.ProjectID, "client", l.clientID, "address", l.address)
	return &grant{secret, refresh, l.scope, expires.Sub(now)}, nil
}

// renewLogin replaces a login's token and its refresh token. If a replaced
// refresh token is used again, either the first or the second use was by a thief:
// the login ends.
func (e *Engine) renewLogin(ctx context.Context, clientID, refresh string) (*grant, error) {
	bad := &oauthError{"invalid_grant", "the refresh token is not valid: it is unknown, expired, used before or revoked"}
	old := hash(sha256.Sum256([]byte(refresh)))
	now := e.timestamp()
	l, err := e.store.loginBy(ctx, old)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, e.checkReplay(ctx, old, now, bad)
	}
	if l.clientID != clientID || !now.Before(l.expiresAt) {
		return nil, bad
	}
	secret, h := newSecret()
	next := newCode(refreshPrefix)
	expires := earlier(now.Add(accessTTL), l.deadline)
	l.expiresAt = earlier(now.Add(refreshTTL), l.deadline)
	ok, err := e.store.renewLogin(ctx, *l, old, sha256.Sum256([]byte(next)), h, expires, now)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, bad // somebody else was faster
	}
	e.cache.drop(l.tokenID)
	e.log.InfoContext(ctx, "login renewed", "id", l.tokenID)
	return &grant{secret, next, l.scope, expires.Sub(now)}, nil
}

func (e *Engine) checkReplay(ctx context.Context, old hash, now time.Time, bad error) error {
	l, err := e.store.loginBefore(ctx, old)
	if err != nil {
		return err
	}
	if l == nil || l.rotatedAt != nil && now.Sub(*l.rotatedAt) < replayGrace {
		return bad
	}
	if err := e.endLogin(ctx, l.tokenID); err != nil {
		return err
	}
	e.log.WarnContext(ctx, "login ended: a refresh token was used twice", "id", l.tokenID, "client", l.clientID)
	return bad
}

// revokeLogin ends the login that a token, or refresh token, belongs to. An
// unknown token is no error; a token of another kind is.
func (e *Engine) revokeLogin(ctx context.Context, clientID, secret string) error {
	h := hash(sha256.Sum256([]byte(secret)))
	l, err := e.store.loginBy(ctx, h)
	if err != nil {
		return err
	}
	if l == nil && isJWT(secret) {
		return &oauthError{"unsupported_token_type", "a JWT ends with the token it is of; revoke that"}
	}
	if l == nil && isOpaque(secret) { // expired ones too: their refresh tokens may not be
		t, err := e.store.findToken(ctx, h)
		if t == nil || err != nil {
			return err
		}
		if l, err = e.store.loginOf(ctx, t.ID); err != nil {
			return err
		}
		if l == nil {
			return &oauthError{"unsupported_token_type", "the token was not made by a login; revoke it with cay token revoke"}
		}
	}
	if l == nil {
		return nil
	}
	if l.clientID != clientID {
		return &oauthError{"invalid_grant", "the token is another client's"}
	}
	if err := e.endLogin(ctx, l.tokenID); err != nil {
		return err
	}
	e.log.InfoContext(ctx, "login ended by its client", "id", l.tokenID)
	return nil
}

func (e *Engine) endLogin(ctx context.Context, tokenID string) error {
	if err := e.store.deleteToken(ctx, tokenID); err != nil && cay.CodeOf(err) != cay.NotFound {
		return err
	}
	e.cache.drop(tokenID)
	e.holds.end(tokenID, nil)
	return nil
}

// introspection describes a token to a client that has the token.
type introspection struct {
	Active    bool   `json:"active"`
	ClientID  string `json:"client_id,omitempty"`
	SessionID string `json:"session_id,omitempty"`
	Subject   string `json:"sub,omitempty"`
	Scope     string `json:"scope,omitempty"`
	TokenType string `json:"token_type,omitempty"`
	IssuedAt  int64  `json:"iat,omitempty"`
	Expiry    int64  `json:"exp,omitempty"`
}

// notFromLogin is the client of tokens that were not made by a login.
const notFromLogin = "cay"

// introspect reports whether a secret is valid, and its owner. Having the secret
// suffices to ask: the answer has no more than WhoAmI.
func (e *Engine) introspect(ctx context.Context, secret string) (*introspection, error) {
	if strings.HasPrefix(secret, refreshPrefix) {
		l, err := e.store.loginBy(ctx, sha256.Sum256([]byte(secret)))
		if l == nil || err != nil || !e.now().Before(l.expiresAt) {
			return &introspection{}, err
		}
		return &introspection{
			Active: true, ClientID: l.clientID, SessionID: l.tokenID, Subject: l.tokenID, Scope: l.scope, Expiry: l.expiresAt.Unix(),
		}, nil
	}
	p, err := e.Authenticate(ctx, secret)
	if cay.CodeOf(err) == cay.Unauthenticated {
		return &introspection{}, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := e.store.getToken(ctx, p.TokenID)
	if cay.CodeOf(err) == cay.NotFound { // revoked just now
		return &introspection{}, nil
	}
	if err != nil {
		return nil, err
	}
	in := &introspection{
		Active: true, ClientID: notFromLogin, SessionID: t.ID, Subject: t.ID, TokenType: "Bearer", IssuedAt: t.CreatedAt.Unix(),
	}
	if t.ExpiresAt != nil {
		in.Expiry = t.ExpiresAt.Unix()
	}
	var c jwtClaims
	if oidc.Unverified(secret, &c) { // it is verified
		in.IssuedAt, in.Expiry = c.IssuedAt, c.Expiry
	}
	l, err := e.store.loginOf(ctx, t.ID)
	if err != nil {
		return nil, err
	}
	if l != nil {
		in.ClientID, in.Scope = l.clientID, l.scope
	}
	return in, nil
}

func (e *Engine) ApproveDeviceLogin(ctx context.Context, userCode string, params account.ApproveParams) (*account.DeviceLogin, error) {
	p, err := teamOnly(ctx, "approve logins")
	if err != nil {
		return nil, err
	}
	code, err := e.guess(p.TeamID, userCode)
	if err != nil {
		return nil, err
	}
	if _, err := e.team(ctx, p.TeamID); err != nil {
		return nil, err
	}
	if params.ProjectID != "" {
		if _, err := e.project(ctx, p.TeamID, params.ProjectID); err != nil {
			return nil, err
		}
	}
	deadline, err := e.expiry(ctx, p, nil, e.now())
	if err != nil {
		return nil, err
	}
	l, err := e.store.approveLogin(ctx, e.userHash(code), p.TeamID, params.ProjectID, deadline, e.now())
	if err != nil {
		return nil, err
	}
	return e.decided(ctx, p.TeamID, p.TokenID, userCode, l)
}

func (e *Engine) DenyDeviceLogin(ctx context.Context, userCode string) (*account.DeviceLogin, error) {
	p, err := teamOnly(ctx, "deny logins")
	if err != nil {
		return nil, err
	}
	code, err := e.guess(p.TeamID, userCode)
	if err != nil {
		return nil, err
	}
	l, err := e.store.denyLogin(ctx, e.userHash(code), p.TeamID, e.now())
	if err != nil {
		return nil, err
	}
	return e.decided(ctx, p.TeamID, p.TokenID, userCode, l)
}

// guess returns the user code that a person typed, in canonical form, unless the
// team has guessed wrong too often.
func (e *Engine) guess(teamID, userCode string) (string, error) {
	if wait := e.wrongCodes.wait(teamID, e.now()); wait > 0 {
		err := cay.Errorf(cay.QuotaExceeded, "too many codes were wrong").WithHint("wait %d minutes", int(wait/time.Minute)+1)
		err.RetryAfter = wait
		return "", err
	}
	code := strings.Map(func(r rune) rune {
		if r == '-' || unicode.IsSpace(r) {
			return -1
		}
		return unicode.ToUpper(r)
	}, userCode)
	if len(code) != userCodeLength || strings.Trim(code, userCodeLetters) != "" {
		return "", cay.Errorf(cay.Invalid, "%.40q is not a code that a login shows: those are like BCDF-GHJK", userCode)
	}
	return code, nil
}

// decided returns the answer with the login, which is nil if nothing was decided.
func (e *Engine) decided(ctx context.Context, teamID, tokenID, userCode string, l *deviceLogin) (*account.DeviceLogin, error) {
	if l == nil {
		e.wrongCodes.wrong(teamID, e.now())
		return nil, cay.Errorf(cay.NotFound, "no login with the code %.40q waits to be approved", userCode).
			WithHint("codes are good for 10 minutes")
	}
	e.log.InfoContext(ctx, "device login "+string(l.state), "team", teamID, "project", l.projectID, "client", l.clientID, "address", l.address, "by", tokenID)
	return &account.DeviceLogin{
		Status: account.LoginStatus(l.state), ClientID: l.clientID, Agent: l.agent, Address: l.address,
		TeamID: l.teamID, ProjectID: l.projectID, CreatedAt: l.createdAt, ExpiresAt: l.expiresAt,
	}, nil
}

// userHash returns the stored form of a user code, which is too short for a plain
// hash.
func (e *Engine) userHash(code string) (h hash) {
	mac := hmac.New(sha256.New, e.cfg.Secrets.Key("device logins"))
	mac.Write([]byte(code))
	mac.Sum(h[:0])
	return h
}

func newUserCode() string {
	code := make([]byte, 0, userCodeLength)
	for b := make([]byte, 1); len(code) < userCodeLength; {
		rand.Read(b) // never fails
		if n := int(b[0]); n < 256-256%len(userCodeLetters) {
			code = append(code, userCodeLetters[n%len(userCodeLetters)])
		}
	}
	return string(code)
}

func newCode(prefix string) string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(b)
}

// earlier returns the earlier of two times; a nil one never comes.
func earlier(t time.Time, or *time.Time) time.Time {
	if or != nil && or.Before(t) {
		return *or
	}
	return t
}

// printable returns at most size bytes of the printable part of a text.
func printable(s string, size int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, s)
	if len(s) > size {
		s = strings.ToValidUTF8(s[:size], "")
	}
	return s
}
