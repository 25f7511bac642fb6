package accountd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/oidc"
)

const (
	// jwtAudience distinguishes JWTs for this API from all other JWTs that our
	// keys sign: no URL can equal it.
	jwtAudience = "cay:api"

	jwtTTL      = 10 * 365 * 24 * time.Hour // of a token that does not say when it expires
	jwtShortTTL = 12 * time.Hour            // for the JWT of a token that is not a JWT
)

// jwtClaims are the claims of a token. Another product has defined their names,
// because that product's clients read the claims.
type jwtClaims struct {
	oidc.Claims
	OwnerID   string `json:"owner_id"` // the team
	Owner     string `json:"owner"`    // its name, for people
	ProjectID string `json:"project_id"`
	Project   string `json:"project"`
}

// isJWT reports whether s has the form of one of our JWTs for this API.
func isJWT(s string) bool {
	var c jwtClaims
	return oidc.Unverified(s, &c) && c.Audience == jwtAudience
}

// likeJWT reports whether s may be the beginning of a token's JWT.
func likeJWT(s string) bool {
	_, rest, _ := strings.Cut(s, ".")
	part, _, _ := strings.Cut(rest, ".")
	payload, err := base64.RawURLEncoding.DecodeString(part)
	var c jwtClaims
	return err == nil && json.Unmarshal(payload, &c) == nil && c.Audience == jwtAudience
}

// signJWT returns the secret of a token as a JWT for a project.
func (e *Engine) signJWT(ctx context.Context, tokenID, teamID, projectID string, expires time.Time) (string, error) {
	team, err := e.team(ctx, teamID)
	if err != nil {
		return "", err
	}
	project, err := e.project(ctx, teamID, projectID)
	if err != nil {
		return "", err
	}
	secret, err := e.Sign(ctx, jwtClaims{
		Claims: oidc.Claims{
			Issuer: e.Issuer(), Subject: "team:" + team.ID + ":project:" + project.ID, Audience: jwtAudience,
			IssuedAt: e.now().Unix(), Expiry: expires.Unix(), ID: tokenID,
		},
		OwnerID: team.ID, Owner: team.Name, ProjectID: project.ID, Project: project.Name,
	})
	if err != nil {
		return "", err
	}
	if len(secret) > oidc.MaxLength {
		return "", fmt.Errorf("the JWT has %d bytes, more than are taken", len(secret))
	}
	return secret, nil
}

func (e *Engine) CreateJWT(ctx context.Context, projectID string) (*account.JWT, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if p.Admin {
		return nil, cay.Errorf(cay.PermissionDenied, "an admin token has no form for one project").
			WithHint("make a token for the project: cay token create --jwt --project %s", projectID)
	}
	if _, err := e.GetProject(ctx, projectID); err != nil {
		return nil, err
	}
	token, err := e.token(ctx, p, p.TokenID)
	if err != nil {
		return nil, err
	}
	expires := e.now().Add(jwtShortTTL)
	if token.ExpiresAt != nil && token.ExpiresAt.Before(expires) {
		expires = *token.ExpiresAt
	}
	expires = expires.UTC().Truncate(time.Second)
	secret, err := e.signJWT(ctx, p.TokenID, p.TeamID, projectID, expires)
	if err != nil {
		return nil, err
	}
	return &account.JWT{Secret: secret, ProjectID: projectID, ExpiresAt: expires}, nil
}

// lookUpJWT returns the token of a JWT, nil if the JWT is not valid. A JWT of a
// token for a whole team is valid for one project of the team.
func (e *Engine) lookUpJWT(ctx context.Context, secret string, now time.Time) (*cached, error) {
	ring, err := e.keys.get(ctx, e, false)
	if ring == nil || err != nil {
		return nil, err
	}
	var c jwtClaims
	if ring.Verify(secret, jwtAudience, now, &c) != nil {
		return nil, nil
	}
	t, err := e.store.getToken(ctx, c.ID)
	switch {
	case cay.CodeOf(err) == cay.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	case t.Admin, t.TeamID != c.OwnerID, t.ProjectID != "" && t.ProjectID != c.ProjectID:
		return nil, nil
	}
	if err := e.CheckProject(ctx, t.TeamID, c.ProjectID); cay.CodeOf(err) == cay.NotFound {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	expires := time.Unix(c.Expiry, 0)
	if t.ExpiresAt != nil && t.ExpiresAt.Before(expires) {
		expires = *t.ExpiresAt
	}
	p := principalOf(t)
	p.ProjectID = c.ProjectID
	return &cached{principal: p, expires: &expires}, nil
}

// keys are the installation's signing keys, read on first use.
type keys struct {
	mu   sync.Mutex
	ring *oidc.Ring
}

// get returns the keys. If there are no keys, get creates one if create is set,
// or returns nil.
func (k *keys) get(ctx context.Context, e *Engine, create bool) (*oidc.Ring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ring != nil {
		return k.ring, nil
	}
	usable, err := k.read(ctx, e)
	if err != nil {
		return nil, err
	}
	if len(usable) == 0 {
		if !create {
			return nil, nil
		}
		key, err := k.create(ctx, e)
		if err != nil {
			return nil, err
		}
		usable = append(usable, key)
	}
	k.ring = oidc.NewRing(usable[0], usable[1:]...)
	return k.ring, nil
}

// read returns the stored keys, newest first. A key that cannot be opened was
// sealed with a secret key that is lost: JWTs of that key are refused from now
// on.
func (k *keys) read(ctx context.Context, e *Engine) ([]*oidc.Key, error) {
	rows, err := e.store.signingKeys(ctx)
	if err != nil {
		return nil, err
	}
	var usable []*oidc.Key
	for _, r := range rows {
		der, err := e.cfg.Secrets.Open(r.sealed, keyOwner(r.id))
		if err != nil {
			e.log.WarnContext(ctx, "a signing key cannot be read; what it has signed is refused", "id", r.id, "error", err)
			continue
		}
		key, err := oidc.ParseKey(der)
		if err != nil {
			return nil, err
		}
		usable = append(usable, key)
	}
	return usable, nil
}

func (k *keys) create(ctx context.Context, e *Engine) (*oidc.Key, error) {
	key, err := oidc.NewKey()
	if err != nil {
		return nil, err
	}
	der, err := key.Marshal()
	if err != nil {
		return nil, err
	}
	row := signingKey{key.ID(), e.cfg.Secrets.Seal(der, keyOwner(key.ID()))}
	if err := e.store.insertSigningKey(ctx, row, e.now()); err != nil {
		return nil, err
	}
	e.log.InfoContext(ctx, "signing key made", "id", key.ID())
	return key, nil
}

// keyOwner returns the owner for sealing a key.
func keyOwner(id string) string { return "signing key " + id }

// Sign makes a JWT of claims with the installation's key. See package oidc.
func (e *Engine) Sign(ctx context.Context, claims any) (string, error) {
	ring, err := e.keys.get(ctx, e, true)
	if err != nil {
		return "", err
	}
	return ring.Sign(claims)
}

// Issuer is the URL of this installation for other services, which find its keys
// below that URL.
func (e *Engine) Issuer() string {
	if e.cfg.PublicURL != "" {
		return e.cfg.PublicURL
	}
	return e.cfg.ListenURL()
}
