package vercelsandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/secret"
)

// offices is a facade on real accounts: teams red and blue beside the default
// one, the first with projects web and app.
type offices struct {
	url       string
	red, blue *account.Team
	web       *account.Project
	// Secrets: an operator's, of team red, and of its project web, also as a JWT.
	admin, team, project, jwt string
}

func openOffices(t *testing.T) *offices {
	t.Helper()
	dir := t.TempDir()
	d := dbtest.OpenFile(t, filepath.Join(dir, "cay.db"))
	secrets, err := secret.Open(filepath.Join(dir, "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now() // moves only when we say so: pages of teams go by the time
	e, err := accountd.NewEngine(t.Context(), accountd.Config{
		DB: d, Logger: slog.New(slog.DiscardHandler), Secrets: secrets, AdminTokenFile: filepath.Join(dir, "admin.token"),
		PublicURL: "https://cay.example", Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Stop)
	mux := api.NewMux(e)
	accountd.Routes(mux, e)
	Routes(mux, Config{Accounts: e, Logger: slog.New(slog.DiscardHandler)})
	s := httptest.NewServer(api.NewServer(mux, nil, slog.New(slog.DiscardHandler)).Handler)
	t.Cleanup(s.Close)

	o := &offices{url: s.URL}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "admin.token"))
	must(err)
	o.admin = strings.TrimSpace(string(text))
	operator, err := e.Authenticate(t.Context(), o.admin)
	must(err)
	in := func(team string) context.Context {
		p := operator
		p.TeamID = team
		return api.WithPrincipal(t.Context(), p)
	}
	ctx := in(account.DefaultTeam)
	token := func(team string, p account.CreateTokenParams) string {
		t.Helper()
		created, err := e.CreateToken(in(team), p)
		must(err)
		return created.Secret
	}
	now = now.Add(time.Second)
	o.red, err = e.CreateTeam(ctx, account.CreateTeamParams{Name: "red"})
	must(err)
	now = now.Add(time.Second)
	o.blue, err = e.CreateTeam(ctx, account.CreateTeamParams{Name: "blue"})
	must(err)
	o.web, err = e.CreateProject(in(o.red.ID), account.CreateProjectParams{Name: "web"})
	must(err)
	_, err = e.CreateProject(in(o.red.ID), account.CreateProjectParams{Name: "app"})
	must(err)
	o.team = token(o.red.ID, account.CreateTokenParams{Name: "of red"})
	o.project = token(o.red.ID, account.CreateTokenParams{Name: "of web", ProjectID: o.web.ID})
	o.jwt = token(o.red.ID, account.CreateTokenParams{Name: "of web, too", ProjectID: o.web.ID, JWT: true})
	return o
}

// call returns the answer's status and its body, decoded.
func (o *offices) call(t *testing.T, secret, method, path, body string) (int, map[string]any) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, o.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s %s: %d %q: %v", method, path, resp.StatusCode, b, err)
	}
	return resp.StatusCode, v
}

// at returns the value at a path such as "teams.0.id".
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			i := 0
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func TestAccount(t *testing.T) {
	t.Parallel()
	o := openOffices(t)
	for _, tt := range []struct {
		name, secret, method, path, body string
		status                           int
		want                             map[string]any
	}{
		{"User", o.team, "GET", "/v2/user", "", 200, map[string]any{"user.defaultTeamId": o.red.ID, "user.username": "red", "user.name": "of red"}},
		{"UserOfProject", o.jwt, "GET", "/v2/user", "", 200, map[string]any{"user.defaultTeamId": o.red.ID}},
		{"UserOfNobody", "cay_none", "GET", "/v2/user", "", 401, map[string]any{"error.code": "unauthorized"}},
		{"UserWithoutToken", "", "GET", "/v2/user", "", 401, map[string]any{"error.code": "unauthorized"}},

		{"Teams", o.team, "GET", "/v2/teams?limit=20", "", 200, map[string]any{
			"teams.0.id": o.red.ID, "teams.0.slug": "red", "teams.0.membership.role": "MEMBER", "teams.0.billing.plan": "enterprise",
			"teams.1": nil, "pagination.count": 1.0, "pagination.next": nil,
		}},
		{"TeamsOfOperator", o.admin, "GET", "/v2/teams", "", 200, map[string]any{
			"teams.0.slug": "blue", "teams.1.slug": "red", "teams.2.slug": "default", "teams.0.membership.role": "OWNER", "pagination.count": 3.0,
		}},
		{"TeamsPage", o.admin, "GET", "/v2/teams?limit=1", "", 200, map[string]any{
			"teams.0.slug": "blue", "teams.1": nil, "pagination.next": float64(o.blue.CreatedAt.UnixMilli()),
		}},
		{"TeamsNextPage", o.admin, "GET", fmt.Sprint("/v2/teams?limit=1&until=", o.blue.CreatedAt.UnixMilli()), "", 200, map[string]any{
			"teams.0.slug": "red", "teams.1": nil, "pagination.next": float64(o.red.CreatedAt.UnixMilli()),
		}},
		{"TeamsLastPage", o.admin, "GET", fmt.Sprint("/v2/teams?limit=1&until=", o.red.CreatedAt.UnixMilli()), "", 200, map[string]any{
			"teams.0.slug": "default", "teams.1": nil, "pagination.next": nil,
		}},
		{"TeamsBadLimit", o.admin, "GET", "/v2/teams?limit=0", "", 400, map[string]any{"error.code": "bad_request"}},
		{"TeamsBadUntil", o.admin, "GET", "/v2/teams?until=x", "", 400, map[string]any{"error.code": "bad_request"}},

		{"Team", o.team, "GET", "/v2/teams/" + o.red.ID, "", 200, map[string]any{"slug": "red", "id": o.red.ID}},
		{"TeamByName", o.team, "GET", "/v2/teams/red", "", 200, map[string]any{"id": o.red.ID}},
		{"TeamOfOthers", o.team, "GET", "/v2/teams/blue", "", 404, map[string]any{"error.code": "not_found"}},
		{"TeamForOperator", o.admin, "GET", "/v2/teams/blue", "", 200, map[string]any{"id": o.blue.ID}},
		{"TeamUnknown", o.admin, "GET", "/v2/teams/green", "", 404, map[string]any{"error.code": "not_found"}},

		{"Project", o.team, "GET", "/v2/projects/" + o.web.ID + "?teamId=" + o.red.ID, "", 200, map[string]any{"name": "web", "accountId": o.red.ID}},
		{"ProjectByName", o.team, "GET", "/v2/projects/web?slug=red", "", 200, map[string]any{"id": o.web.ID}},
		{"ProjectUnknown", o.team, "GET", "/v2/projects/none?slug=red", "", 404, map[string]any{"error.code": "not_found"}},
		{"ProjectOfOtherTeam", o.team, "GET", "/v2/projects/web?slug=blue", "", 403, map[string]any{"error.code": "forbidden"}},
		{"ProjectForOperator", o.admin, "GET", "/v2/projects/web?slug=red", "", 200, map[string]any{"id": o.web.ID}},
		{"ProjectOfProjectToken", o.project, "GET", "/v2/projects/app", "", 404, map[string]any{"error.code": "not_found"}},

		{"ClientsProject", o.team, "GET", "/v2/projects/vercel-sandbox-default-project?slug=red", "", 404, map[string]any{"error.code": "not_found"}},
		{"ClientsProjectOfProjectToken", o.project, "GET", "/v2/projects/vercel-sandbox-default-project?teamId=" + o.red.ID, "", 200, map[string]any{"id": o.web.ID}},

		{"CreateProject", o.team, "POST", "/v11/projects?slug=red", `{"name":"new","framework":null}`, 200, map[string]any{"name": "new"}},
		{"CreateProjectAgain", o.team, "POST", "/v11/projects?slug=red", `{"name":"web"}`, 409, map[string]any{"error.code": "conflict"}},
		{"CreateProjectBadName", o.team, "POST", "/v11/projects", `{"name":"a b"}`, 400, map[string]any{"error.code": "bad_request"}},
		{"CreateProjectNotAllowed", o.project, "POST", "/v11/projects", `{"name":"mine"}`, 403, map[string]any{"error.code": "forbidden"}},

		{"TokenOfOtherProject", o.project, "POST", "/v1/projects/app/token", "", 404, map[string]any{"error.code": "not_found"}},
		{"TokenForOperator", o.admin, "POST", "/v1/projects/prj_default/token", "", 403, map[string]any{"error.code": "forbidden"}},

		{"Health", "", "GET", "/health", "", 200, map[string]any{"status": "ok"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for i, base := range []string{"/api", ""} {
				if tt.name == "CreateProject" && i > 0 {
					continue // it exists
				}
				status, got := o.call(t, tt.secret, tt.method, base+tt.path, tt.body)
				if status != tt.status {
					t.Errorf("%s%s: %d %v, want %d", base, tt.path, status, got, tt.status)
				}
				for path, want := range tt.want {
					if v := at(got, path); v != want {
						t.Errorf("%s%s: %s is %v, want %v: %v", base, tt.path, path, v, want, got)
					}
				}
			}
		})
	}
}

// A client whose token is about to expire gets a new token that is valid for as
// long as the old one was.
func TestAccount_token(t *testing.T) {
	t.Parallel()
	o := openOffices(t)
	for name, secret := range map[string]string{"Team": o.team, "Project": o.project, "JWT": o.jwt} {
		t.Run(name, func(t *testing.T) {
			status, got := o.call(t, secret, "POST", "/api/v1/projects/"+o.web.ID+"/token?source=vercel-oidc-refresh&teamId="+o.red.ID, "")
			fresh, ok := got["token"].(string)
			if status != 200 || !ok || strings.Count(fresh, ".") != 2 {
				t.Fatalf("%d %v", status, got)
			}
			if status, got := o.call(t, fresh, "GET", "/api/v2/projects/web", ""); status != 200 || got["id"] != o.web.ID {
				t.Errorf("%d %v", status, got)
			}
			if status, got := o.call(t, fresh, "GET", "/api/v2/projects/app", ""); status != 404 {
				t.Errorf("another project: %d %v", status, got)
			}
		})
	}
}

// Routes of the hosted service that cay does not have answer with an error that
// says so, in the service's shape, to every client.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	o := openOffices(t)
	for _, path := range []string{"/api/v9/projects", "/api/v13/deployments", "/api/", "/api/v1/blob"} {
		for _, method := range []string{"GET", "POST"} {
			status, got := o.call(t, "", method, path, "{}")
			if text, _ := at(got, "error.message").(string); status != 404 || at(got, "error.code") != "not_found" || !strings.Contains(text, path) {
				t.Errorf("%s %s: %d %v", method, path, status, got)
			}
		}
	}
}

func TestPreload(t *testing.T) {
	t.Parallel()
	o := openOffices(t)
	get := func(header ...string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "GET", o.url+"/vercel/preload.mjs", nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(b)
	}
	resp, text := get()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || kind != "text/javascript; charset=utf-8" {
		t.Errorf("%d %s", resp.StatusCode, kind)
	}
	if text != preload.Module(o.url, "") || !strings.Contains(text, "const written = \""+o.url+"\";") {
		t.Errorf("the module does not name %s", o.url)
	}
	if _, text := get("X-Forwarded-Proto", "https"); text != preload.Module(strings.Replace(o.url, "http:", "https:", 1), "") {
		t.Error("behind a proxy that ends TLS the module names another scheme")
	}
}
