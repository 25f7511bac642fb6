package accountd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
)

const (
	secretPrefix = "cay_"
	secretLength = len(secretPrefix) + 43
)

// IsSecret reports whether s has the form of a token's secret, so that it can be
// kept from where no secret belongs.
func IsSecret(s string) bool {
	return len(s) == secretLength && strings.HasPrefix(s, secretPrefix)
}

// hash is the SHA-256 of a secret, the only form of it that is kept.
type hash [sha256.Size]byte

func newSecret() (secret string, h hash) {
	b := make([]byte, 32)
	rand.Read(b) // never fails: see its documentation
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(b)
	return secret, sha256.Sum256([]byte(secret))
}

// kind tells the admin token of the file from those that were asked for.
type kind string

const (
	kindUser  kind = "user"
	kindAdmin kind = "admin"
	kindFile  kind = "file"
)

func (e *Engine) CreateToken(ctx context.Context, params account.CreateTokenParams) (*account.Token, error) {
	p, err := teamOnly(ctx, "create tokens")
	if err != nil {
		return nil, err
	}
	if err := validateTokenName(params.Name); err != nil {
		return nil, err
	}
	if params.Admin && !p.Admin {
		return nil, cay.Errorf(cay.PermissionDenied, "only an admin token may create admin tokens")
	}
	if params.Admin && params.ProjectID != "" {
		return nil, cay.Errorf(cay.Invalid, "an admin token cannot be bound to project %q", params.ProjectID)
	}
	if _, err := e.team(ctx, p.TeamID); err != nil {
		return nil, err
	}
	if params.ProjectID != "" {
		if _, err := e.project(ctx, p.TeamID, params.ProjectID); err != nil {
			return nil, err
		}
	}
	now := e.now()
	expires, err := e.expiry(ctx, p, params.ExpiresAt, now)
	if err != nil {
		return nil, err
	}

	secret, h := newSecret()
	t := account.Token{
		ID:        newID("tok_"),
		Name:      params.Name,
		TeamID:    p.TeamID,
		ProjectID: params.ProjectID,
		Admin:     params.Admin,
		CreatedAt: e.timestamp(),
		ExpiresAt: expires,
	}
	k := kindUser
	if t.Admin {
		k = kindAdmin
	}
	if err := e.store.insertToken(ctx, t, k, h); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "token created", "id", t.ID, "team", t.TeamID, "project", t.ProjectID, "admin", t.Admin, "by", p.TokenID)
	t.Secret = secret
	return &t, nil
}

// expiry returns when a token made by p expires: as asked, but no later than
// p's own token, so that a leaked token cannot outlive its expiry.
func (e *Engine) expiry(ctx context.Context, p api.Principal, asked *time.Time, now time.Time) (*time.Time, error) {
	if asked != nil && !asked.After(now) {
		return nil, cay.Errorf(cay.Invalid, "expires_at %s is not in the future", asked.UTC().Format(time.RFC3339))
	}
	own, err := e.token(ctx, p, p.TokenID)
	if err != nil {
		return nil, err
	}
	switch {
	case own.ExpiresAt == nil:
	case asked == nil:
		asked = own.ExpiresAt
	case asked.After(*own.ExpiresAt):
		return nil, cay.Errorf(cay.Invalid, "expires_at %s is later than that of the token making it, %s",
			asked.UTC().Format(time.RFC3339), own.ExpiresAt.UTC().Format(time.RFC3339))
	}
	if asked == nil {
		return nil, nil
	}
	t := asked.UTC().Truncate(time.Millisecond)
	return &t, nil
}

func (e *Engine) GetToken(ctx context.Context, id string) (*account.Token, error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	return e.token(ctx, p, id)
}

// token returns a token if p may see it.
func (e *Engine) token(ctx context.Context, p api.Principal, id string) (*account.Token, error) {
	t, err := e.store.getToken(ctx, id)
	if err != nil {
		return nil, err
	}
	switch {
	case p.Admin, t.ID == p.TokenID:
		return t, nil
	case t.Admin, t.TeamID != p.TeamID, p.ProjectID != "":
		return nil, notFound("token", id)
	}
	return t, nil
}

func (e *Engine) ListTokens(ctx context.Context, params account.ListParams) (*account.Page[account.Token], error) {
	p, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	l, err := parseList(params)
	if err != nil {
		return nil, err
	}
	l.team, l.admin = p.TeamID, p.Admin
	if p.ProjectID != "" {
		l.id = p.TokenID
	}
	tokens, err := e.store.listTokens(ctx, l)
	if err != nil {
		return nil, err
	}
	return page(l, tokens, func(t account.Token) (account.Token, time.Time, string) { return t, t.CreatedAt, t.ID }), nil
}

func (e *Engine) DeleteToken(ctx context.Context, id string) error {
	p, err := principal(ctx)
	if err != nil {
		return err
	}
	if _, err := e.token(ctx, p, id); err != nil {
		return err
	}
	if _, err := teamOnly(ctx, "revoke tokens"); err != nil {
		return err
	}
	h, err := e.store.deleteToken(ctx, id)
	if err != nil {
		return err
	}
	e.cache.drop(h)
	e.log.InfoContext(ctx, "token revoked", "id", id, "by", p.TokenID)
	return nil
}

// Authenticate returns whom a secret speaks for. Errors: unauthenticated, in
// the same words whether it is malformed, unknown, expired or revoked.
func (e *Engine) Authenticate(ctx context.Context, secret string) (api.Principal, error) {
	if !IsSecret(secret) {
		return api.Principal{}, errBadToken()
	}
	h := hash(sha256.Sum256([]byte(secret)))
	now := e.now()
	entry, generation := e.cache.get(h, now)
	if entry == nil {
		t, err := e.store.findToken(ctx, h)
		if err != nil {
			return api.Principal{}, err
		}
		if t == nil {
			return api.Principal{}, errBadToken()
		}
		entry = &cached{
			principal: api.Principal{TokenID: t.ID, TeamID: t.TeamID, ProjectID: t.ProjectID, Admin: t.Admin},
			expires:   t.ExpiresAt,
		}
		e.cache.put(h, entry, generation, now)
	}
	if entry.expires != nil && !entry.expires.After(now) {
		return api.Principal{}, errBadToken()
	}
	e.uses.note(entry, now)
	return entry.principal, nil
}

func errBadToken() error {
	return cay.Errorf(cay.Unauthenticated, "the token is not valid").
		WithHint("it is unknown, expired or revoked; make one with \"cay token create\"")
}
