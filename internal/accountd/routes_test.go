package accountd_test

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/accountd/accounttest"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
)

// serve puts the bundle's engine behind HTTP.
func (b *bundle) serve(t *testing.T) (url string, hc *http.Client) {
	t.Helper()
	mux := api.NewMux(b.Engine)
	accountd.Routes(mux, b.Engine)
	accountd.PublicRoutes(mux, b.Engine)
	logger := slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, logger)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL, srv.Client()
}

// serveMux serves a mux of a test's own.
func serveMux(t *testing.T, mux *api.Mux) (url string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestClient(t *testing.T) {
	t.Parallel()
	accounttest.Run(t, func(t *testing.T) *accounttest.Env {
		b := setup(t)
		url, hc := b.serve(t)
		return b.env(t, func(secret, team string) (accountd.Service, context.Context) {
			return &account.Client{URL: url, Token: secret, Team: team, HTTPClient: hc}, t.Context()
		})
	})
}

var update = flag.Bool("update", false, "rewrite testdata/routes.txt")

// TestRoutes_Golden shows each change of the API as a changed line in review.
func TestRoutes_Golden(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mux := api.NewMux(b.Engine)
	accountd.Routes(mux, b.Engine)
	accountd.PublicRoutes(mux, b.Engine)
	const golden = "testdata/routes.txt"
	got := strings.Join(mux.Routes(), "\n") + "\n"
	if *update {
		checktest.OK(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want, err := os.ReadFile(golden)
	checktest.OK(t, err)
	if got != string(want) {
		t.Errorf("the routes are not those of %s; run the test with -update if that is meant\n%s", golden, got)
	}
}

// Every route is described and every description has its route.
func TestRoutes_Described(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mux := api.NewMux(b.Engine)
	accountd.Routes(mux, b.Engine)
	accountd.PublicRoutes(mux, b.Engine)
	mux.ServeOpenAPI("test")
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest("GET", "/v1/openapi.json", nil))
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	var described []string
	for path, ops := range doc.Paths {
		for method := range ops {
			described = append(described, strings.ToUpper(method)+" "+path)
		}
	}
	registered := mux.Routes()
	slices.Sort(described)
	slices.Sort(registered)
	if !slices.Equal(described, registered) {
		t.Fatalf("described  %v\nregistered %v", described, registered)
	}
}

func TestRoutes_Strict(t *testing.T) {
	t.Parallel()
	b := setup(t)
	url, hc := b.serve(t)
	for _, tc := range []struct {
		name, method, path, auth, body string
		status                         int
		says                           string
	}{
		{"UnknownField", "POST", "/v1/tokens", b.secret(t), `{"nmae":"x"}`, 400, "nmae"},
		{"WrongType", "PUT", "/v1/teams/team_default/quota", b.secret(t), `{"sandboxes":"many"}`, 400, "sandboxes"},
		{"QuotaNaN", "PUT", "/v1/teams/team_default/quota", b.secret(t), `{"vcpus":1e999}`, 400, "vcpus"},
		{"UnknownQuery", "GET", "/v1/tokens?secret=x", b.secret(t), "", 400, "secret"},
		{"LimitText", "GET", "/v1/tokens?limit=all", b.secret(t), "", 400, "all"},
		{"EmptyID", "GET", "/v1/tokens/%00", b.secret(t), "", 404, "not found"},
		{"NoToken", "GET", "/v1/whoami", "", "", 401, "no token"},
		{"TokenInQuery", "GET", "/v1/whoami?token=" + b.secret(t), "", "", 401, "no token"},
		{"WrongToken", "GET", "/v1/whoami", "cay_" + strings.Repeat("C", 43), "", 401, "not valid"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tc.method, url+tc.path, strings.NewReader(tc.body))
			checktest.OK(t, err)
			if tc.body != "" {
				req.Header.Set("Content-Type", "application/json")
			}
			if tc.auth != "" {
				req.Header.Set("Authorization", "Bearer "+tc.auth)
			}
			resp, err := hc.Do(req)
			checktest.OK(t, err)
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			checktest.OK(t, err)
			if resp.StatusCode != tc.status || !strings.Contains(string(body), tc.says) {
				t.Fatalf("got %d %s, want %d that says %s", resp.StatusCode, body, tc.status, tc.says)
			}
		})
	}
	for _, s := range []string{b.secret(t)[4:], strings.Repeat("C", 43)} {
		if strings.Contains(b.log.String(), s) {
			t.Errorf("the log holds a secret")
		}
	}
}
