package accounttest

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
)

// claims are the claims of a JWT that clients read, without verifying it.
type claims struct {
	Issuer    string `json:"iss"`
	Subject   string `json:"sub"`
	IssuedAt  int64  `json:"iat"`
	Expiry    int64  `json:"exp"`
	ID        string `json:"jti"`
	OwnerID   string `json:"owner_id"`
	Owner     string `json:"owner"`
	ProjectID string `json:"project_id"`
	Project   string `json:"project"`
}

func (e *env) claims(secret string) (c claims) {
	e.t.Helper()
	parts := strings.Split(secret, ".")
	if len(parts) != 3 {
		e.t.Fatalf("the secret has %d parts, want 3", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	e.ok(err)
	e.ok(json.Unmarshal(payload, &c))
	return c
}

// refused fails the test unless the secret is refused.
func (e *env) refused(secret string) {
	e.t.Helper()
	c := e.as(secret)
	_, err := c.WhoAmI(c.ctx)
	e.code(err, cay.Unauthenticated)
}

func testJWT(t *testing.T, e *env) {
	admin := e.admin("")
	made := e.token(admin, account.CreateTokenParams{Name: "js", JWT: true})
	if made.ProjectID != account.DefaultProject || made.ExpiresAt == nil || made.ExpiresAt.Sub(e.Now()) < 9*365*24*time.Hour || len(made.Secret) > 2048 {
		t.Fatalf("made %+v", made)
	}
	if c := e.claims(made.Secret); c.OwnerID != account.DefaultTeam || c.Owner != "default" || c.ProjectID != account.DefaultProject || c.Project != "default" ||
		c.ID != made.ID || c.Issuer == "" || c.Subject == "" || c.IssuedAt != e.Now().Unix() || c.Expiry != made.ExpiresAt.Unix() {
		t.Fatalf("claims %+v of %+v", c, made)
	}
	c := e.as(made.Secret)
	id, err := c.WhoAmI(c.ctx)
	e.ok(err)
	if id.Token.ID != made.ID || id.Token.Secret != "" || id.Team.ID != account.DefaultTeam || id.Project == nil || id.Project.ID != account.DefaultProject {
		t.Fatalf("speaks for %+v", id)
	}
	_, err = c.CreateToken(c.ctx, account.CreateTokenParams{})
	e.code(err, cay.PermissionDenied)
	_, err = c.CreateTeam(c.ctx, account.CreateTeamParams{Name: "x"})
	e.code(err, cay.PermissionDenied)

	red, team := e.tenant("red")
	web, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	soon := e.Now().Add(time.Hour)
	bound := e.token(team, account.CreateTokenParams{ProjectID: web.ID, JWT: true, ExpiresAt: &soon})
	if c := e.claims(bound.Secret); c.OwnerID != red.ID || c.ProjectID != web.ID || c.Project != "web" || c.Expiry != soon.Unix() {
		t.Fatalf("claims %+v of %+v", c, bound)
	}
	_, err = team.CreateToken(team.ctx, account.CreateTokenParams{JWT: true})
	e.code(err, cay.Invalid) // no default project
	_, other := e.tenant("blue")
	_, err = other.CreateToken(other.ctx, account.CreateTokenParams{JWT: true, ProjectID: web.ID})
	e.code(err, cay.NotFound)
	_, err = admin.CreateToken(admin.ctx, account.CreateTokenParams{JWT: true, Admin: true})
	e.code(err, cay.Invalid)
}

func testJWTEnds(t *testing.T, e *env) {
	_, team := e.tenant("red")
	project, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	soon := e.Now().Add(time.Hour)
	revoked := e.token(team, account.CreateTokenParams{ProjectID: project.ID, JWT: true})
	expiring := e.token(team, account.CreateTokenParams{ProjectID: project.ID, JWT: true, ExpiresAt: &soon})
	orphan := e.token(team, account.CreateTokenParams{ProjectID: project.ID, JWT: true})
	for _, made := range []*account.Token{revoked, expiring, orphan} {
		c := e.as(made.Secret)
		_, err := c.WhoAmI(c.ctx) // now it is cached
		e.ok(err)
	}
	e.ok(team.DeleteToken(team.ctx, revoked.ID))
	e.refused(revoked.Secret)
	e.Advance(time.Hour)
	e.refused(expiring.Secret)
	e.ok(team.DeleteProject(team.ctx, project.ID))
	e.refused(orphan.Secret)
}

func testJWTForged(t *testing.T, e *env) {
	made := e.token(e.admin(""), account.CreateTokenParams{JWT: true})
	parts := strings.Split(made.Secret, ".")
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	e.ok(err)
	red, _ := e.tenant("red")
	other := strings.ReplaceAll(string(payload), account.DefaultTeam, red.ID)
	last := len(made.Secret) - 1
	c := e.as(made.Secret)
	_, err = c.WhoAmI(c.ctx) // now it is cached
	e.ok(err)
	for name, secret := range map[string]string{
		"Unsigned":      part(`{"alg":"none"}`) + "." + parts[1] + ".",
		"NoneSigned":    part(`{"alg":"none"}`) + "." + parts[1] + "." + parts[2],
		"OtherTeam":     parts[0] + "." + part(other) + "." + parts[2],
		"NoSignature":   parts[0] + "." + parts[1] + ".",
		"LastByte":      made.Secret[:last] + string(made.Secret[last]+1),
		"Padded":        made.Secret + "==",
		"TokenIDAlone":  made.ID,
		"HeaderTwice":   parts[0] + "." + made.Secret,
		"TooLong":       parts[0] + "." + strings.Repeat("A", 4000) + "." + parts[2],
		"PrefixedToken": "cay_" + made.Secret,
	} {
		svc, ctx := e.As(secret, "")
		_, err := svc.WhoAmI(ctx)
		if cay.CodeOf(err) != cay.Unauthenticated {
			t.Errorf("%s: %v (%s), want unauthenticated", name, err, cay.CodeOf(err))
		}
	}
}

func testJWTOfToken(t *testing.T, e *env) {
	red, team := e.tenant("red")
	web, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	app, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "app"})
	e.ok(err)
	_, other := e.tenant("blue")

	token := e.token(team, account.CreateTokenParams{})
	c := e.as(token.Secret)
	jwt, err := c.CreateJWT(c.ctx, web.ID)
	e.ok(err)
	if claims := e.claims(jwt.Secret); claims.OwnerID != red.ID || claims.ProjectID != web.ID || claims.ID != token.ID || claims.Expiry != jwt.ExpiresAt.Unix() ||
		jwt.ProjectID != web.ID || jwt.ExpiresAt.Sub(e.Now()) > 12*time.Hour || jwt.ExpiresAt.Sub(e.Now()) < 11*time.Hour {
		t.Fatalf("claims %+v of %+v", claims, jwt)
	}
	j := e.as(jwt.Secret)
	id, err := j.WhoAmI(j.ctx)
	e.ok(err)
	if id.Token.ID != token.ID || id.Project == nil || id.Project.ID != web.ID {
		t.Fatalf("speaks for %+v", id)
	}
	// The JWT is valid for its project alone, although its token is for all
	// projects.
	_, err = j.GetProject(j.ctx, app.ID)
	e.code(err, cay.NotFound)
	_, err = j.CreateJWT(j.ctx, app.ID)
	e.code(err, cay.NotFound)
	_, err = j.CreateProject(j.ctx, account.CreateProjectParams{Name: "x"})
	e.code(err, cay.PermissionDenied)
	e.code(j.DeleteToken(j.ctx, token.ID), cay.PermissionDenied)
	again, err := j.CreateJWT(j.ctx, web.ID)
	e.ok(err)

	_, err = other.CreateJWT(other.ctx, web.ID)
	e.code(err, cay.NotFound)
	_, err = c.CreateJWT(c.ctx, "")
	e.code(err, cay.NotFound)
	admin := e.admin("")
	_, err = admin.CreateJWT(admin.ctx, account.DefaultProject)
	e.code(err, cay.PermissionDenied)
	bound := e.as(e.token(team, account.CreateTokenParams{ProjectID: web.ID}).Secret)
	_, err = bound.CreateJWT(bound.ctx, app.ID)
	e.code(err, cay.NotFound)

	soon := e.Now().Add(time.Hour)
	short := e.as(e.token(team, account.CreateTokenParams{ExpiresAt: &soon}).Secret)
	jwtShort, err := short.CreateJWT(short.ctx, app.ID)
	e.ok(err)
	if jwtShort.ExpiresAt.After(soon) {
		t.Fatalf("a JWT is good until %v, its token until %v", jwtShort.ExpiresAt, soon)
	}
	s := e.as(jwtShort.Secret)
	_, err = s.WhoAmI(s.ctx)
	e.ok(err)
	e.ok(team.DeleteProject(team.ctx, app.ID))
	e.refused(jwtShort.Secret)
	_, err = j.WhoAmI(j.ctx)
	e.ok(err)
	e.ok(team.DeleteToken(team.ctx, token.ID))
	e.refused(jwt.Secret)
	e.refused(again.Secret)
}
