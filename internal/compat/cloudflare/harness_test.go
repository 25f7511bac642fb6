package cloudflare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// operator may see the daemon's pools.
var operator = api.Principal{TokenID: "tok_admin", TeamID: account.DefaultTeam, Admin: true}

// The tokens of two callers who share nothing.
var (
	mine   = sandboxtest.ProjectA.TokenID
	theirs = sandboxtest.ProjectB.TokenID
)

// callers authenticates the callers of sandboxtest and the operator, whose tokens are
// their ids.
type callers struct{}

func (callers) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	for _, p := range []api.Principal{sandboxtest.Default, sandboxtest.TeamA, sandboxtest.ProjectA, sandboxtest.ProjectA2, sandboxtest.ProjectB, operator} {
		if p.TokenID == secret {
			return p, nil
		}
	}
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "the token is not valid")
}

// service is the bridge on an engine with a fake runtime.
type service struct {
	*sandboxtest.Harness
	t      *testing.T
	url    string
	client *http.Client
	h      *handler
}

func serve(t *testing.T) *service {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{Harness: sandboxtest.Start(t, rt), t: t}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	s.h = &handler{Config: Config{Sandboxes: s.Engine, Image: "image", MaxTimeout: sandboxtest.MaxTimeout, Logger: slog.New(slog.DiscardHandler)}}
	mux := api.NewMux(callers{})
	route.Mount(mux, s.Engine, context.Background()) // whose patterns must not clash with ours
	s.h.register(mux)
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s.url = srv.URL + Prefix
	s.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

// answer is an answer of the bridge.
type answer struct {
	status int
	header http.Header
	body   string
}

// at returns the text that is a member of the answer's object.
func (a answer) at(name string) string {
	var v map[string]any
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return ""
	}
	s, _ := v[name].(string)
	return s
}

func (s *service) request(ctx context.Context, token, method, path string, body io.Reader, header ...string) *http.Response {
	s.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// do makes a request of a token and returns the whole answer. Errors have to have the
// shape of the protocol.
func (s *service) do(token, method, path, body string, header ...string) answer {
	s.t.Helper()
	resp := s.request(s.t.Context(), token, method, path, strings.NewReader(body), header...)
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := answer{resp.StatusCode, resp.Header, string(b)}
	if a.status >= 400 && (a.at("error") == "" || a.at("code") == "" || a.header.Get("Content-Type") != "application/json") {
		s.t.Errorf("%s %s: an error of another shape: %d %s", method, path, a.status, b)
	}
	return a
}

// must is do with my token for requests that succeed.
func (s *service) must(method, path, body string, header ...string) answer {
	s.t.Helper()
	a := s.do(mine, method, path, body, header...)
	if a.status >= 300 {
		s.t.Fatalf("%s %s: %d %s", method, path, a.status, a.body)
	}
	return a
}

// refused makes a request with my token whose error has a status, a code and a text.
func (s *service) refused(method, path, body string, status int, code, text string, header ...string) {
	s.t.Helper()
	a := s.do(mine, method, path, body, header...)
	if a.status != status || a.at("code") != code || !strings.Contains(a.at("error"), text) {
		s.t.Errorf("%s %s %.100s: %d %s, want %d %s %q", method, path, body, a.status, a.body, status, code, text)
	}
}

// box makes a sandbox and returns the path of its routes.
func (s *service) box() string {
	s.t.Helper()
	id := s.must("POST", "/v1/sandbox", "").at("id")
	if !sandboxIDs.MatchString(id) || len(id) != 26 {
		s.t.Fatalf("the id %q", id)
	}
	return "/v1/sandbox/" + id
}

// result is what an exec streams.
type result struct {
	stdout, stderr string
	exit           string // the data of the last event
	last           string // its name
}

// exec runs a command in the sandbox at a path.
func (s *service) exec(box, body string, header ...string) result {
	s.t.Helper()
	a := s.do(mine, "POST", box+"/exec", body, header...)
	if a.status != http.StatusOK || a.header.Get("Content-Type") != "text/event-stream" {
		s.t.Fatalf("exec %s: %d %s", body, a.status, a.body)
	}
	return readEvents(s.t, strings.NewReader(a.body))
}

// shell runs a script.
func (s *service) shell(box, script string, header ...string) result {
	s.t.Helper()
	b, err := json.Marshal(map[string]any{"argv": []string{"/bin/sh", "-c", script}})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.exec(box, string(b), header...)
}

// readEvents reads a stream of events to its end, strictly: each event is a line of its
// name, a line of data and a blank line.
func readEvents(t testing.TB, r io.Reader) (out result) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	var name string
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "event: "); ok && name == "" {
			name = rest
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		switch {
		case line == "" && name == "":
			continue // a heartbeat, or the end of an event
		case !ok || name == "" || out.last != "":
			t.Fatalf("a line %q in event %q, after the end %q", line, name, out.last)
		case name == "exit" || name == "error":
			out.last, out.exit = name, data
		default:
			b, err := base64.StdEncoding.DecodeString(data)
			if err != nil || len(b) == 0 {
				t.Fatalf("%s: %q: %v", name, data, err)
			}
			if name == "stdout" {
				out.stdout += string(b)
			} else if name == "stderr" {
				out.stderr += string(b)
			} else {
				t.Fatalf("an event %q", name)
			}
		}
		name = ""
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// want compares a result with one without a look at stderr if that is "*".
func (got result) want(t testing.TB, stdout, stderr, exit string) {
	t.Helper()
	if got.stdout != stdout || stderr != "*" && got.stderr != stderr || got.last != "exit" || got.exit != `{"exit_code":`+exit+`}` {
		t.Errorf("got %+v, want %q %q %s", got, stdout, stderr, exit)
	}
}

// tarOf returns an archive of some members.
func tarOf(t testing.TB, members ...member) string {
	t.Helper()
	var b bytes.Buffer
	writeMembers(t, &b, members)
	return b.String()
}
