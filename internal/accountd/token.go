package accountd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"regexp"
	"slices"
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

var (
	opaques = regexp.MustCompile(secretPrefix + `[A-Za-z0-9_-]{43}`)
	jwts    = regexp.MustCompile(`eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`)
)

// HasSecret reports whether text contains a text in the form of a token's secret,
// so that secrets can be kept out of places where they do not belong.
func HasSecret(text string) bool {
	return strings.Contains(text, secretPrefix) && opaques.MatchString(text) ||
		strings.Contains(text, "eyJ") && slices.ContainsFunc(jwts.FindAllString(text, -1), likeJWT)
}

// isOpaque reports whether s has the form of a secret that is not a JWT.
func isOpaque(s string) bool {
	return len(s) == secretLength && strings.HasPrefix(s, secretPrefix)
}

// hash is the SHA-256 of a secret; the secret itself is not stored.
type hash [sha256.Size]byte

func newSecret() (secret string, h hash) {
	b := make([]byte, 32)
	rand.Read(b) // never fails: see its documentation
	secret = secretPrefix + base64.RawURLEncoding.EncodeToString(b)
	return secret, sha256.Sum256([]byte(secret))
}

// kind distinguishes the admin token of the file from tokens that callers created.
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
	if params.JWT && params.Admin {
		return nil, cay.Errorf(cay.Invalid, "an admin token cannot be a JWT: a JWT is of one project")
	}
	if _, err := e.team(ctx, p.TeamID); err != nil {
		return nil, err
	}
	if params.JWT && params.ProjectID == "" {
		if p.TeamID != account.DefaultTeam {
			return nil, cay.Errorf(cay.Invalid, "project_id is empty; a JWT is of one project, and team %q has no default one", p.TeamID).
				WithHint("name the project; cay project list shows them")
		}
		params.ProjectID = account.DefaultProject
	}
	if params.ProjectID != "" {
		if _, err := e.project(ctx, p.TeamID, params.ProjectID); err != nil {
			return nil, err
		}
	}
	rights, err := checkRights(params)
	if err != nil {
		return nil, err
	}
	now := e.now()
	expires, err := e.expiry(ctx, p, params.ExpiresAt, now)
	if err != nil {
		return nil, err
	}
	if params.JWT && expires == nil {
		at := now.Add(jwtTTL).UTC().Truncate(time.Millisecond)
		expires = &at
	}

	secret, h := newSecret()
	t := account.Token{
		ID:        newID("tok_"),
		Name:      params.Name,
		TeamID:    p.TeamID,
		ProjectID: params.ProjectID,
		Admin:     params.Admin,
		Rights:    rights,
		CreatedAt: e.timestamp(),
		ExpiresAt: expires,
	}
	k := kindUser
	if t.Admin {
		k = kindAdmin
	}
	if params.JWT {
		if secret, err = e.signJWT(ctx, t.ID, t.TeamID, t.ProjectID, *expires); err != nil {
			return nil, err
		}
		h = sha256.Sum256([]byte(secret))
	}
	if err := e.store.insertToken(ctx, t, k, h); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "token created", "id", t.ID, "team", t.TeamID, "project", t.ProjectID, "admin", t.Admin, "by", p.TokenID)
	t.Secret = secret
	return &t, nil
}

// checkRights returns the rights of a new token, without duplicates.
func checkRights(params account.CreateTokenParams) ([]account.Right, error) {
	if len(params.Rights) == 0 {
		return nil, nil
	}
	if params.ProjectID == "" {
		of := "the whole team"
		if params.Admin {
			of = "all teams"
		}
		return nil, cay.Errorf(cay.Invalid, "rights are for tokens of a project; this one is of %s and has them all", of).
			WithHint("leave the rights out, or name a project")
	}
	for _, r := range params.Rights {
		if r != account.ImagesWrite {
			return nil, cay.Errorf(cay.Invalid, "right %.60q is unknown", r).WithHint("there is %s", account.ImagesWrite)
		}
	}
	return []account.Right{account.ImagesWrite}, nil
}

// principalOf returns the principal that a token acts for.
func principalOf(t *account.Token) api.Principal {
	return api.Principal{
		TokenID: t.ID, TeamID: t.TeamID, ProjectID: t.ProjectID, Admin: t.Admin,
		// A JWT of a token of the team is for one project, but has the token's rights.
		Images: t.ProjectID == "" || slices.Contains(t.Rights, account.ImagesWrite),
	}
}

// expiry returns when a new token of p expires: as requested, but no later than
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
	p, err := api.RequirePrincipal(ctx)
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
	p, err := api.RequirePrincipal(ctx)
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
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return err
	}
	if _, err := e.token(ctx, p, id); err != nil {
		return err
	}
	if _, err := teamOnly(ctx, "revoke tokens"); err != nil {
		return err
	}
	if err := e.store.deleteToken(ctx, id); err != nil {
		return err
	}
	e.cache.drop(id)
	e.holds.end(id, nil)
	e.log.InfoContext(ctx, "token revoked", "id", id, "by", p.TokenID)
	return nil
}

// Authenticate returns the principal of a secret. Errors: unauthenticated, with
// the same message whether the secret is malformed, unknown, expired or revoked.
func (e *Engine) Authenticate(ctx context.Context, secret string) (api.Principal, error) {
	now := e.now()
	entry, err := e.secretEntry(ctx, secret, now)
	if err != nil {
		return api.Principal{}, err
	}
	e.uses.note(entry, now)
	return entry.principal, nil
}

// secretEntry returns the token of a secret. Errors: unauthenticated if the secret
// is not valid.
func (e *Engine) secretEntry(ctx context.Context, secret string, now time.Time) (*cached, error) {
	h := hash(sha256.Sum256([]byte(secret)))
	entry, generation := e.cache.get(h, now)
	if entry == nil {
		var err error
		switch {
		case isOpaque(secret):
			entry, err = e.lookUp(ctx, h)
		case isJWT(secret):
			entry, err = e.lookUpJWT(ctx, secret, now)
		}
		if err != nil {
			return nil, err
		}
		if entry == nil {
			return nil, errBadToken()
		}
		e.cache.put(h, entry, generation, now)
	}
	if entry.expires != nil && !entry.expires.After(now) {
		return nil, errBadToken()
	}
	return entry, nil
}

// lookUp returns the token with the hash of its secret, nil if there is none.
func (e *Engine) lookUp(ctx context.Context, h hash) (*cached, error) {
	t, err := e.store.findToken(ctx, h)
	if t == nil || err != nil {
		return nil, err
	}
	return &cached{
		principal: principalOf(t),
		expires:   t.ExpiresAt,
	}, nil
}

func errBadToken() error {
	return cay.Errorf(cay.Unauthenticated, "the token is not valid").
		WithHint("it is unknown, expired or revoked; make one with \"cay token create\"")
}
