package vercelsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

var update = flag.Bool("update", false, "write the golden files")

// operator may act for every team.
var operator = api.Principal{TokenID: "tok_admin", TeamID: account.DefaultTeam, Admin: true}

// callers authenticates the callers of sandboxtest and the operator, whose tokens
// are their ids.
type callers struct{}

func (callers) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	for _, p := range []api.Principal{
		sandboxtest.Default, sandboxtest.TeamA, sandboxtest.ProjectA, sandboxtest.ProjectA2, sandboxtest.TeamB, sandboxtest.ProjectB, operator,
	} {
		if p.TokenID == secret {
			return p, nil
		}
	}
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// accounts are the teams and projects of sandboxtest. A name is its id with "name-"
// before it.
type accounts struct{ Accounts }

func (accounts) GetTeam(ctx context.Context, id string) (*account.Team, error) {
	p, _ := api.PrincipalFrom(ctx)
	if _, ok := sandboxtest.Projects[id]; !ok || id != p.TeamID && !p.Admin {
		return nil, cay.Errorf(cay.NotFound, "team %q not found", id)
	}
	return &account.Team{ID: id, Name: "name-" + id}, nil
}

func (a accounts) ListTeams(ctx context.Context, _ account.ListParams) (*account.Page[account.Team], error) {
	page := &account.Page[account.Team]{}
	for id := range sandboxtest.Projects {
		if t, err := a.GetTeam(ctx, id); err == nil {
			page.Items = append(page.Items, *t)
		}
	}
	return page, nil
}

func (a accounts) GetProject(ctx context.Context, id string) (*account.Project, error) {
	page, err := a.ListProjects(ctx, account.ListParams{})
	if err != nil {
		return nil, err
	}
	for _, p := range page.Items {
		if p.ID == id {
			return &p, nil
		}
	}
	return nil, cay.Errorf(cay.NotFound, "project %q not found", id)
}

func (accounts) ListProjects(ctx context.Context, _ account.ListParams) (*account.Page[account.Project], error) {
	p, _ := api.PrincipalFrom(ctx)
	page := &account.Page[account.Project]{}
	for _, id := range sandboxtest.Projects[p.TeamID] {
		if p.ProjectID == "" || p.ProjectID == id {
			page.Items = append(page.Items, account.Project{ID: id, TeamID: p.TeamID, Name: "name-" + id})
		}
	}
	return page, nil
}

// service is the facade on an engine with a fake runtime.
type service struct {
	*sandboxtest.Harness
	url    string
	client *http.Client
	h      *handler
}

// serve starts one. Change may change its Config.
func serve(t testing.TB, change ...func(*Config)) *service {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Harness: sandboxtest.Start(t, rt)}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	signed := map[string][]byte{}
	s.h = &handler{Config: Config{
		Sandboxes: s.Engine, Accounts: accounts{}, Logger: slog.New(slog.DiscardHandler), MaxTimeout: sandboxtest.MaxTimeout,
		HasImage: func(_ context.Context, ref string) (bool, error) { return ref == "vercel/sandbox/python:3.14", nil },
		Sign: func(purpose string, text []byte) string {
			key := fmt.Sprintf("%s-%d", purpose, len(signed))
			signed[key] = text
			return key
		},
		Open: func(_, key string) ([]byte, error) {
			if b, ok := signed[key]; ok {
				return b, nil
			}
			return nil, io.ErrUnexpectedEOF
		},
	}}
	for _, f := range change {
		f(&s.h.Config)
	}
	mux := api.NewMux(callers{})
	route.Mount(mux, s.Engine, context.Background()) // its patterns must not clash with ours
	s.h.register(mux)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, []string{v1Host}, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s.url, s.client = srv.URL, &http.Client{Transport: transport}
	return s
}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// at returns the value at a path of the answer, as in "sandbox.name".
func (a answer) at(path string) any {
	var v any
	if json.Unmarshal(a.body, &v) != nil {
		return nil
	}
	for key := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[key]
		case []any:
			var i int
			if _, err := fmt.Sscan(key, &i); err != nil || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// text is at for texts.
func (a answer) text(path string) string {
	s, _ := a.at(path).(string)
	return s
}

// do makes a request with a token. A path that begins with // is a path at v1Host.
func (s *service) do(t testing.TB, token, method, path, body string) answer {
	t.Helper()
	host := ""
	if rest, ok := strings.CutPrefix(path, "//"); ok {
		host, path = v1Host, "/"+rest
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = host
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{resp.StatusCode, resp.Header, b}
	checkAnswer(t, method+" "+path, a)
	return a
}

// mayBeNull are the members that clients accept as null.
var mayBeNull = []string{"command.exitCode", "commands.exitCode", "pagination.next", "pagination.prev", "user.defaultTeamId"}

// checkAnswer checks every answer for the clients' requirements.
func checkAnswer(t testing.TB, what string, a answer) {
	t.Helper()
	if !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
		return
	}
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Errorf("%s: the answer is not JSON: %v\n%s", what, err, a.body)
		return
	}
	top, ok := v.(map[string]any)
	if !ok {
		t.Errorf("%s: the answer is no object: %s", what, a.body)
	}
	if a.status >= 300 {
		e, _ := top["error"].(map[string]any)
		if c, _ := e["code"].(string); c == "" {
			t.Errorf("%s: an error without a code: %s", what, a.body)
		}
		if m, _ := e["message"].(string); m == "" {
			t.Errorf("%s: an error without a message: %s", what, a.body)
		}
	}
	for _, path := range nulls(v, "") {
		if !slices.Contains(mayBeNull, path) {
			t.Errorf("%s: %s is null: %s", what, path, a.body)
		}
	}
}

// nulls are the paths of all nulls in v, without indexes.
func nulls(v any, path string) (all []string) {
	switch v := v.(type) {
	case nil:
		return []string{path}
	case map[string]any:
		for k, v := range v {
			all = append(all, nulls(v, strings.TrimPrefix(path+"."+k, "."))...)
		}
	case []any:
		for _, v := range v {
			all = append(all, nulls(v, path)...)
		}
	}
	return all
}

// must calls do for a request that has to succeed.
func (s *service) must(t testing.TB, token, method, path, body string) answer {
	t.Helper()
	a := s.do(t, token, method, path, body)
	if a.status >= 300 {
		t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	return a
}

// refused checks that a request fails with a status and a code.
func (s *service) refused(t testing.TB, token, method, path, body string, status int, code string) answer {
	t.Helper()
	a := s.do(t, token, method, path, body)
	if a.status != status || a.text("error.code") != code {
		t.Errorf("%s %s %s: %d %s, want %d %s", method, path, body, a.status, a.body, status, code)
	}
	return a
}

// script is a conversation, for a golden file: values that differ from run to run
// are numbered.
type script struct {
	*service
	token string
	out   bytes.Buffer
	seen  map[string]string
}

func (s *service) script(token string) *script {
	return &script{service: s, token: token, seen: map[string]string{}}
}

var unstable = regexp.MustCompile(`\b(sbx|ses|snap|drv|cmd)_[a-z0-9]{20}\b|"(subdomain|url|next)": "[^"]+"|\b1[78][0-9]{11}\b|\b[a-z]+-[a-z]+-[a-z0-9]{4,8}\b`)

// measured are members with measured values.
var measured = regexp.MustCompile(`"(\w*Bytes|ingress|egress|\w*CpuDurationMs)": [0-9]+`)

// step makes a request and appends it with its answer to the script.
func (c *script) step(t testing.TB, method, path, body string) answer {
	t.Helper()
	a := c.do(t, c.token, method, path, body)
	fmt.Fprintf(&c.out, "%s %s\n", method, c.stable(path))
	if body != "" {
		fmt.Fprintf(&c.out, "%s\n", c.stable(body))
	}
	fmt.Fprintf(&c.out, "-> %d %s\n", a.status, a.header.Get("Content-Type"))
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, bytes.TrimSpace(a.body), "", "  "); err != nil {
		pretty.Write(a.body)
	}
	fmt.Fprintf(&c.out, "%s\n\n", c.stable(pretty.String()))
	return a
}

// stable numbers the values that differ from run to run. Times keep their order, as
// only the test moves the clock.
func (c *script) stable(s string) string {
	s = measured.ReplaceAllString(s, `"$1": <n>`)
	return unstable.ReplaceAllStringFunc(s, func(m string) string {
		if had, ok := c.seen[m]; ok {
			return had
		}
		kind := "name"
		switch {
		case strings.HasPrefix(m, `"`):
			kind, _, _ = strings.Cut(m[1:], `"`)
		case m[0] == '1':
			kind = "time"
		default:
			if k, _, ok := strings.Cut(m, "_"); ok {
				kind = k
			}
		}
		n := 1
		for _, v := range c.seen {
			if strings.Contains(v, "<"+kind+" ") {
				n++
			}
		}
		v := fmt.Sprintf("<%s %d>", kind, n)
		if strings.HasPrefix(m, `"`) {
			v = fmt.Sprintf("%q: %q", kind, v)
		}
		c.seen[m] = v
		return v
	})
}

// golden compares got with a file in testdata.
func golden(t testing.TB, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		a, b := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
		for i := range a {
			if i >= len(b) || a[i] != b[i] {
				t.Fatalf("%s differs at line %d:\n%s\nwant:\n%s\nrun with -update if that is meant", file, i+1,
					strings.Join(a[max(0, i-6):min(len(a), i+6)], "\n"), strings.Join(b[max(0, min(len(b), i-6)):min(len(b), i+6)], "\n"))
			}
		}
		t.Fatalf("%s is longer: run with -update if that is meant", file)
	}
}
