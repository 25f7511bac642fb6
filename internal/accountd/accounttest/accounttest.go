// Package accounttest is the behaviour every accountd.Service has. It runs on
// the engine and on the client over HTTP.
package accounttest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
)

// Env is a fresh installation under test.
type Env struct {
	// AdminSecret is the secret in its admin token file.
	AdminSecret string
	// DefaultQuota is the initial quota of teams.
	DefaultQuota account.Quota
	// SetInUse makes one project, and so its team, count as in use; "" none.
	SetInUse func(projectID string)
	// Now is its clock, Advance moves it.
	Now     func() time.Time
	Advance func(d time.Duration)
	// Login begins the login of a device, and returns the code it shows.
	Login func() (userCode string, poll Poll)
	// As returns the service for the caller with a secret, and the context to call it
	// with. team is the team that an admin token acts for; empty means its own.
	As func(secret, team string) (accountd.Service, context.Context)
}

// Poll polls for a device's token. It returns the secret, or the OAuth error.
type Poll func() (secret, oauthError string)

// Run runs the suite. open is called for every test and frees its resources by
// t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) *Env) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, e *env)
	}{
		{"Defaults", testDefaults},
		{"BadInput", testBadInput},
		{"Tokens", testTokens},
		{"TokenRights", testTokenRights},
		{"TokenExpiry", testTokenExpiry},
		{"TokenRevoked", testTokenRevoked},
		{"BadSecrets", testBadSecrets},
		{"TeamLifecycle", testTeamLifecycle},
		{"ProjectLifecycle", testProjectLifecycle},
		{"Quota", testQuota},
		{"Tenancy", testTenancy},
		{"ProjectToken", testProjectToken},
		{"AdminTokensAreHidden", testAdminTokensAreHidden},
		{"Paging", testPaging},
		{"JWT", testJWT},
		{"JWTEnds", testJWTEnds},
		{"JWTForged", testJWTForged},
		{"JWTOfToken", testJWTOfToken},
		{"LoginApproved", testLoginApproved},
		{"LoginDenied", testLoginDenied},
		{"LoginTenancy", testLoginTenancy},
		{"LoginGuesses", testLoginGuesses},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			e := &env{t: t, Env: open(t)}
			tc.run(t, e)
		})
	}
}

type env struct {
	*Env
	t *testing.T
}

// caller is a service with the context of a caller.
type caller struct {
	accountd.Service
	ctx context.Context
}

func (e *env) as(secret string) caller {
	svc, ctx := e.As(secret, "")
	return caller{svc, ctx}
}

func (e *env) admin(team string) caller {
	svc, ctx := e.As(e.AdminSecret, team)
	return caller{svc, ctx}
}

// tenant makes a team and returns it with a caller that has one of its tokens.
func (e *env) tenant(name string) (*account.Team, caller) {
	e.t.Helper()
	admin := e.admin("")
	team, err := admin.CreateTeam(admin.ctx, account.CreateTeamParams{Name: name})
	e.ok(err)
	return team, e.as(e.token(e.admin(team.ID), account.CreateTokenParams{Name: name}).Secret)
}

func (e *env) token(by caller, p account.CreateTokenParams) *account.Token {
	e.t.Helper()
	token, err := by.CreateToken(by.ctx, p)
	e.ok(err)
	return token
}

func (e *env) ok(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("unexpected error: %v (%s)", err, cay.CodeOf(err))
	}
}

func (e *env) code(err error, want cay.Code) {
	e.t.Helper()
	if got := cay.CodeOf(err); got != want {
		e.t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}

func testDefaults(t *testing.T, e *env) {
	c := e.admin("")
	id, err := c.WhoAmI(c.ctx)
	e.ok(err)
	if id.Team.ID != account.DefaultTeam || id.Team.Quota != e.DefaultQuota || !id.Token.Admin || id.Project != nil || id.Token.Secret != "" {
		t.Fatalf("the admin token speaks for %+v", id)
	}
	p, err := c.GetProject(c.ctx, account.DefaultProject)
	e.ok(err)
	if p.TeamID != account.DefaultTeam || p.Name != "default" || p.CreatedAt.IsZero() {
		t.Fatalf("default project is %+v", p)
	}
	e.code(c.DeleteTeam(c.ctx, account.DefaultTeam), cay.Conflict)
	e.code(c.DeleteProject(c.ctx, account.DefaultProject), cay.Conflict)
}

func testBadInput(t *testing.T, e *env) {
	c := e.admin("")
	past := e.Now().Add(-time.Second)
	for _, tc := range []struct {
		name string
		call func() error
		says string
	}{
		{"TeamNameEmpty", func() error { _, err := c.CreateTeam(c.ctx, account.CreateTeamParams{}); return err }, "0 characters"},
		{"TeamNameChars", func() error { _, err := c.CreateTeam(c.ctx, account.CreateTeamParams{Name: "a b"}); return err }, `"a b"`},
		{"ProjectNameLong", func() error {
			_, err := c.CreateProject(c.ctx, account.CreateProjectParams{Name: strings.Repeat("x", 65)})
			return err
		}, "65 characters"},
		{"ProjectNameNUL", func() error {
			_, err := c.CreateProject(c.ctx, account.CreateProjectParams{Name: "a\x00"})
			return err
		}, `\x00`},
		{"TokenNameLong", func() error {
			_, err := c.CreateToken(c.ctx, account.CreateTokenParams{Name: strings.Repeat("é", 129)})
			return err
		}, "129 characters"},
		{"TokenNameControl", func() error {
			_, err := c.CreateToken(c.ctx, account.CreateTokenParams{Name: "a\x1b[2J"})
			return err
		}, `\x1b`},
		{"TokenExpired", func() error { _, err := c.CreateToken(c.ctx, account.CreateTokenParams{ExpiresAt: &past}); return err }, past.UTC().Format(time.RFC3339)},
		{"TokenAdminOfProject", func() error {
			_, err := c.CreateToken(c.ctx, account.CreateTokenParams{Admin: true, ProjectID: account.DefaultProject})
			return err
		}, account.DefaultProject},
		{"QuotaNegative", func() error {
			_, err := c.SetQuota(c.ctx, account.DefaultTeam, account.Quota{VCPUs: -1})
			return err
		}, "vcpus is -1"},
		{"LimitHigh", func() error { _, err := c.ListTokens(c.ctx, account.ListParams{Limit: 201}); return err }, "201"},
		{"LimitNegative", func() error { _, err := c.ListTeams(c.ctx, account.ListParams{Limit: -1}); return err }, "-1"},
		{"Cursor", func() error { _, err := c.ListProjects(c.ctx, account.ListParams{Cursor: "!"}); return err }, `"!"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.call()
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v (%s), want invalid that says %s", err, cay.CodeOf(err), tc.says)
			}
		})
	}
}

func testTokens(t *testing.T, e *env) {
	c := e.admin("")
	expires := e.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	made := e.token(c, account.CreateTokenParams{Name: "ci ✓", ExpiresAt: &expires})
	if len(made.Secret) != 47 || !strings.HasPrefix(made.Secret, "cay_") || len(made.ID) != 24 || !strings.HasPrefix(made.ID, "tok_") {
		t.Fatalf("made %+v", made)
	}
	got, err := c.GetToken(c.ctx, made.ID)
	e.ok(err)
	if got.Secret != "" || got.Name != "ci ✓" || got.Admin || got.TeamID != account.DefaultTeam ||
		!got.CreatedAt.Equal(made.CreatedAt) || got.ExpiresAt == nil || !got.ExpiresAt.Equal(expires) || got.LastUsedAt != nil {
		t.Fatalf("got %+v for %+v", got, made)
	}
	page, err := c.ListTokens(c.ctx, account.ListParams{})
	e.ok(err)
	for _, tok := range page.Items {
		if tok.Secret != "" {
			t.Fatalf("the list shows the secret of %s", tok.ID)
		}
	}
	id, err := e.as(made.Secret).WhoAmI(e.as(made.Secret).ctx)
	e.ok(err)
	if id.Token.ID != made.ID {
		t.Fatalf("token %s speaks as %s", made.ID, id.Token.ID)
	}
	_, err = c.CreateToken(c.ctx, account.CreateTokenParams{ProjectID: "prj_none"})
	e.code(err, cay.NotFound)
	for _, id := range []string{"tok_none", "", ".", "..", "a/b", "%2e%2e", "\x00"} {
		_, err = c.GetToken(c.ctx, id)
		e.code(err, cay.NotFound)
	}
	e.code(c.DeleteToken(c.ctx, "tok_none"), cay.NotFound)
}

// A token of a project has the rights it was made with. Other tokens have all rights,
// and list none.
func testTokenRights(t *testing.T, e *env) {
	c := e.admin("")
	for _, bad := range []account.CreateTokenParams{
		{ProjectID: account.DefaultProject, Rights: []account.Right{"images:read"}},
		{Rights: []account.Right{account.ImagesWrite}},
		{Admin: true, Rights: []account.Right{account.ImagesWrite}},
	} {
		_, err := c.CreateToken(c.ctx, bad)
		e.code(err, cay.Invalid)
	}
	right := []account.Right{account.ImagesWrite}
	for _, tc := range []struct {
		params account.CreateTokenParams
		want   []account.Right
	}{
		{account.CreateTokenParams{}, nil},
		{account.CreateTokenParams{ProjectID: account.DefaultProject}, nil},
		{account.CreateTokenParams{ProjectID: account.DefaultProject, Rights: append(right, right...)}, right},
		{account.CreateTokenParams{JWT: true, Rights: nil}, nil},
	} {
		made := e.token(c, tc.params)
		got, err := c.GetToken(c.ctx, made.ID)
		e.ok(err)
		if !slices.Equal(made.Rights, tc.want) || !slices.Equal(got.Rights, tc.want) {
			t.Fatalf("%+v made a token with the rights %q, which are %q then", tc.params, made.Rights, got.Rights)
		}
	}
}

func testTokenExpiry(t *testing.T, e *env) {
	soon, later := e.Now().Add(time.Minute), e.Now().Add(time.Hour)
	made := e.token(e.admin(""), account.CreateTokenParams{ExpiresAt: &soon})
	c := e.as(made.Secret)
	_, err := c.WhoAmI(c.ctx)
	e.ok(err)

	_, err = c.CreateToken(c.ctx, account.CreateTokenParams{ExpiresAt: &later})
	e.code(err, cay.Invalid)
	child := e.token(c, account.CreateTokenParams{})
	if child.ExpiresAt == nil || !child.ExpiresAt.Equal(*made.ExpiresAt) {
		t.Fatalf("a token that expires at %v made one that expires at %v", made.ExpiresAt, child.ExpiresAt)
	}

	e.Advance(2 * time.Minute)
	for _, secret := range []string{made.Secret, child.Secret} {
		c := e.as(secret)
		_, err = c.WhoAmI(c.ctx)
		e.code(err, cay.Unauthenticated)
	}
}

func testTokenRevoked(t *testing.T, e *env) {
	admin := e.admin("")
	made := e.token(admin, account.CreateTokenParams{})
	c := e.as(made.Secret)
	_, err := c.WhoAmI(c.ctx) // now it is cached
	e.ok(err)
	e.ok(admin.DeleteToken(admin.ctx, made.ID))
	c = e.as(made.Secret)
	_, err = c.WhoAmI(c.ctx)
	e.code(err, cay.Unauthenticated)
	e.code(admin.DeleteToken(admin.ctx, made.ID), cay.NotFound)

	// A token may end itself.
	made = e.token(admin, account.CreateTokenParams{})
	c = e.as(made.Secret)
	e.ok(c.DeleteToken(c.ctx, made.ID))
}

func testBadSecrets(t *testing.T, e *env) {
	flip := []byte(e.AdminSecret)
	flip[10] ^= 1
	for _, secret := range []string{
		string(flip), e.AdminSecret[:46], e.AdminSecret + "x", strings.ToUpper(e.AdminSecret),
		"cay_", "cay_" + strings.Repeat("A", 43), "x", strings.Repeat("x", 5000),
	} {
		c := e.as(secret)
		_, err := c.WhoAmI(c.ctx)
		e.code(err, cay.Unauthenticated)
		if len(secret) > 4 && strings.Contains(err.Error(), secret) {
			t.Fatalf("the error repeats the secret: %v", err)
		}
	}
}

func testTeamLifecycle(t *testing.T, e *env) {
	admin := e.admin("")
	team, c := e.tenant("red")
	if team.Quota != e.DefaultQuota || len(team.ID) != 25 {
		t.Fatalf("made %+v", team)
	}
	_, err := admin.CreateTeam(admin.ctx, account.CreateTeamParams{Name: "red"})
	e.code(err, cay.AlreadyExists)
	_, err = c.CreateTeam(c.ctx, account.CreateTeamParams{Name: "own"})
	e.code(err, cay.PermissionDenied)
	e.code(c.DeleteTeam(c.ctx, team.ID), cay.PermissionDenied)

	page, err := c.ListTeams(c.ctx, account.ListParams{})
	e.ok(err)
	if len(page.Items) != 1 || page.Items[0].ID != team.ID {
		t.Fatalf("the team's token lists %+v", page.Items)
	}
	page, err = admin.ListTeams(admin.ctx, account.ListParams{})
	e.ok(err)
	if len(page.Items) != 2 {
		t.Fatalf("the admin lists %+v", page.Items)
	}

	_, err = c.WhoAmI(c.ctx)
	e.ok(err)
	secret := e.token(e.admin(team.ID), account.CreateTokenParams{}).Secret
	e.ok(admin.DeleteTeam(admin.ctx, team.ID))
	c = e.as(secret)
	_, err = c.WhoAmI(c.ctx)
	e.code(err, cay.Unauthenticated)
	gone := e.admin(team.ID)
	_, err = gone.WhoAmI(gone.ctx)
	e.code(err, cay.NotFound)
	_, err = gone.CreateProject(gone.ctx, account.CreateProjectParams{Name: "x"})
	e.code(err, cay.NotFound)
}

func testProjectLifecycle(t *testing.T, e *env) {
	team, c := e.tenant("red")
	p, err := c.CreateProject(c.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	if p.TeamID != team.ID || p.Name != "web" || len(p.ID) != 24 {
		t.Fatalf("made %+v", p)
	}
	_, err = c.CreateProject(c.ctx, account.CreateProjectParams{Name: "web"})
	e.code(err, cay.AlreadyExists)
	_, other := e.tenant("blue")
	_, err = other.CreateProject(other.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)

	bound := e.token(c, account.CreateTokenParams{ProjectID: p.ID})
	e.SetInUse(p.ID)
	e.code(c.DeleteProject(c.ctx, p.ID), cay.Conflict)
	admin := e.admin("")
	e.code(admin.DeleteTeam(admin.ctx, team.ID), cay.Conflict)
	e.SetInUse("")
	e.ok(c.DeleteProject(c.ctx, p.ID))
	_, err = c.GetProject(c.ctx, p.ID)
	e.code(err, cay.NotFound)
	b := e.as(bound.Secret)
	_, err = b.WhoAmI(b.ctx)
	e.code(err, cay.Unauthenticated)
}

func testQuota(t *testing.T, e *env) {
	team, c := e.tenant("red")
	admin := e.admin("")
	q := account.Quota{Sandboxes: 3, VCPUs: 1.5, MemoryMB: 1024, CreatesPerMinute: 7, SnapshotMB: 512, ImageMB: 256, ImageDownloadMB: 128}
	_, err := c.SetQuota(c.ctx, team.ID, q)
	e.code(err, cay.PermissionDenied)
	_, err = admin.SetQuota(admin.ctx, "team_none", q)
	e.code(err, cay.NotFound)
	got, err := admin.SetQuota(admin.ctx, team.ID, q)
	e.ok(err)
	if got.Quota != q {
		t.Fatalf("set %+v, got %+v", q, got.Quota)
	}
	got, err = c.GetTeam(c.ctx, team.ID)
	e.ok(err)
	if got.Quota != q {
		t.Fatalf("set %+v, read %+v", q, got.Quota)
	}
	// A quota without bounds differs from no quota.
	got, err = admin.SetQuota(admin.ctx, team.ID, account.Quota{})
	e.ok(err)
	if (got.Quota != account.Quota{}) {
		t.Fatalf("set no bounds, got %+v", got.Quota)
	}
}

func testTenancy(t *testing.T, e *env) {
	red, c := e.tenant("red")
	blue, other := e.tenant("blue")
	project, err := c.CreateProject(c.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	token := e.token(c, account.CreateTokenParams{Name: "mine"})

	for name, call := range map[string]func(c caller) error{
		"GetTeam":       func(c caller) error { _, err := c.GetTeam(c.ctx, red.ID); return err },
		"SetQuota":      func(c caller) error { _, err := c.SetQuota(c.ctx, red.ID, account.Quota{}); return err },
		"DeleteTeam":    func(c caller) error { return c.DeleteTeam(c.ctx, red.ID) },
		"GetProject":    func(c caller) error { _, err := c.GetProject(c.ctx, project.ID); return err },
		"DeleteProject": func(c caller) error { return c.DeleteProject(c.ctx, project.ID) },
		"GetToken":      func(c caller) error { _, err := c.GetToken(c.ctx, token.ID); return err },
		"DeleteToken":   func(c caller) error { return c.DeleteToken(c.ctx, token.ID) },
		"CreateToken": func(c caller) error {
			_, err := c.CreateToken(c.ctx, account.CreateTokenParams{ProjectID: project.ID})
			return err
		},
	} {
		if err := call(other); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("%s of another team's object: %v (%s), want not_found", name, err, cay.CodeOf(err))
		}
	}
	projects, err := other.ListProjects(other.ctx, account.ListParams{})
	e.ok(err)
	tokens, err := other.ListTokens(other.ctx, account.ListParams{})
	e.ok(err)
	if len(projects.Items) != 0 || len(tokens.Items) != 1 || tokens.Items[0].TeamID != blue.ID {
		t.Fatalf("another team lists %+v and %+v", projects.Items, tokens.Items)
	}

	// The admin reaches both teams, and lists the team that it acts for.
	admin := e.admin(blue.ID)
	_, err = admin.GetProject(admin.ctx, project.ID)
	e.ok(err)
	projects, err = admin.ListProjects(admin.ctx, account.ListParams{})
	e.ok(err)
	if len(projects.Items) != 0 {
		t.Fatalf("the admin for %s lists %+v", blue.ID, projects.Items)
	}
	if _, err := c.GetToken(c.ctx, token.ID); err != nil {
		t.Fatalf("after all this the token is gone: %v", err)
	}
}

func testProjectToken(t *testing.T, e *env) {
	_, team := e.tenant("red")
	web, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "web"})
	e.ok(err)
	app, err := team.CreateProject(team.ctx, account.CreateProjectParams{Name: "app"})
	e.ok(err)
	made := e.token(team, account.CreateTokenParams{ProjectID: web.ID})
	sibling := e.token(team, account.CreateTokenParams{ProjectID: web.ID})
	c := e.as(made.Secret)

	id, err := c.WhoAmI(c.ctx)
	e.ok(err)
	if id.Project == nil || id.Project.ID != web.ID || id.Token.ProjectID != web.ID {
		t.Fatalf("speaks for %+v", id)
	}
	projects, err := c.ListProjects(c.ctx, account.ListParams{})
	e.ok(err)
	tokens, err := c.ListTokens(c.ctx, account.ListParams{})
	e.ok(err)
	if len(projects.Items) != 1 || projects.Items[0].ID != web.ID || len(tokens.Items) != 1 || tokens.Items[0].ID != made.ID {
		t.Fatalf("lists %+v and %+v", projects.Items, tokens.Items)
	}
	_, err = c.GetProject(c.ctx, app.ID)
	e.code(err, cay.NotFound)
	_, err = c.GetToken(c.ctx, sibling.ID)
	e.code(err, cay.NotFound)
	_, err = c.CreateToken(c.ctx, account.CreateTokenParams{ProjectID: web.ID})
	e.code(err, cay.PermissionDenied)
	_, err = c.CreateProject(c.ctx, account.CreateProjectParams{Name: "x"})
	e.code(err, cay.PermissionDenied)
	e.code(c.DeleteProject(c.ctx, web.ID), cay.PermissionDenied)
	e.code(c.DeleteProject(c.ctx, app.ID), cay.NotFound)
	e.code(c.DeleteToken(c.ctx, made.ID), cay.PermissionDenied)
}

func testAdminTokensAreHidden(t *testing.T, e *env) {
	admin := e.admin("")
	second := e.token(admin, account.CreateTokenParams{Name: "ops", Admin: true})
	c := e.as(e.token(admin, account.CreateTokenParams{Name: "user"}).Secret) // of the same, default team

	page, err := c.ListTokens(c.ctx, account.ListParams{})
	e.ok(err)
	if len(page.Items) != 1 || page.Items[0].Admin {
		t.Fatalf("a team's token lists %+v", page.Items)
	}
	_, err = c.GetToken(c.ctx, second.ID)
	e.code(err, cay.NotFound)
	e.code(c.DeleteToken(c.ctx, second.ID), cay.NotFound)
	_, err = c.CreateToken(c.ctx, account.CreateTokenParams{Admin: true})
	e.code(err, cay.PermissionDenied)

	page, err = admin.ListTokens(admin.ctx, account.ListParams{})
	e.ok(err)
	if len(page.Items) != 3 { // the file's, ops, user
		t.Fatalf("the admin lists %+v", page.Items)
	}
	ops := e.as(second.Secret)
	_, err = ops.CreateTeam(ops.ctx, account.CreateTeamParams{Name: "green"})
	e.ok(err)
}

func testPaging(t *testing.T, e *env) {
	_, c := e.tenant("red")
	var want []string
	for i := range 5 {
		e.Advance(time.Second)
		p, err := c.CreateProject(c.ctx, account.CreateProjectParams{Name: fmt.Sprint("p", i)})
		e.ok(err)
		want = append([]string{p.ID}, want...)
	}
	for limit := 1; limit <= 6; limit++ {
		var got []string
		for params := (account.ListParams{Limit: limit}); ; {
			page, err := c.ListProjects(c.ctx, params)
			e.ok(err)
			if len(page.Items) > limit {
				t.Fatalf("asked for %d, got %d", limit, len(page.Items))
			}
			for _, p := range page.Items {
				got = append(got, p.ID)
			}
			if page.Next == "" {
				break
			}
			params.Cursor = page.Next
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("pages of %d: got %v, want %v", limit, got, want)
		}
	}
}
