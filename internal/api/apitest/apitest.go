// Package apitest holds routes to their golden list and to their description in
// OpenAPI, in the tests of each slice.
package apitest

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
)

var updateRoutes = flag.Bool("update-routes", false, "rewrite testdata/routes.txt")

// Golden compares the routes of mux with testdata/routes.txt: a change of the API
// is a changed line there.
func Golden(t *testing.T, mux *api.Mux) {
	t.Helper()
	const golden = "testdata/routes.txt"
	got := strings.Join(mux.Routes(), "\n") + "\n"
	if *updateRoutes {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the routes are\n%swant\n%s(run with -update-routes if that is meant)", got, want)
	}
}

// Spec returns the document that mux serves. Answers in tests may only have members
// that it names. The document itself does not promise that, so that members can be
// added.
func Spec(mux *api.Mux) (*openapi3.T, error) {
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(w.Body.Bytes())
	if err != nil {
		return nil, err
	}
	if err := doc.Validate(loader.Context); err != nil {
		return nil, err
	}
	closed := false
	for _, s := range doc.Components.Schemas {
		if s.Value.Properties != nil && s.Value.AdditionalProperties.Has == nil {
			s.Value.AdditionalProperties.Has = &closed
		}
	}
	return doc, nil
}

// Described checks that the document describes the routes of mux, and no others.
func Described(t *testing.T, mux *api.Mux, doc *openapi3.T) {
	t.Helper()
	var want []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			want = append(want, method+" "+path)
		}
	}
	var got []string
	for _, r := range mux.Routes() {
		r = strings.ReplaceAll(r, "...}", "}")
		if strings.Contains(r, " ") {
			got = append(got, r)
			continue
		}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} { // it takes any method; these are described
			got = append(got, method+" "+r)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("described\n%s\nregistered\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

// Conform returns a transport that checks every request and answer of a client
// against the document. Answers for which live, unless nil, returns true are
// streamed without checking their content.
func Conform(t *testing.T, doc *openapi3.T, live func(*http.Request, *openapi3.Operation) bool) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			item, op := findOperation(doc, r)
			if op == nil {
				t.Errorf("%s %s is not described", r.Method, r.URL.Path)
				return next.RoundTrip(r)
			}
			for name := range r.URL.Query() {
				if op.Parameters.GetByInAndName("query", name) == nil && item.Parameters.GetByInAndName("query", name) == nil {
					t.Errorf("%s takes query parameter %q, which is not described", op.OperationID, name)
				}
			}
			if op.RequestBody != nil && r.Body != nil {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(b))
				Content(t, "request of "+op.OperationID, op.RequestBody.Value.Content, r.Header.Get("Content-Type"), b)
			}
			resp, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			answer := op.Responses.Status(resp.StatusCode)
			if answer == nil {
				answer = op.Responses.Default()
				if resp.StatusCode < 400 {
					t.Errorf("%s answered %d, which is not described", op.OperationID, resp.StatusCode)
				}
			}
			if resp.StatusCode == http.StatusSwitchingProtocols || live != nil && live(r, op) {
				return resp, nil
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				return nil, err
			}
			resp.Body = io.NopCloser(bytes.NewReader(b))
			if len(b) > 0 {
				Content(t, fmt.Sprintf("answer %d of %s", resp.StatusCode, op.OperationID), answer.Value.Content, resp.Header.Get("Content-Type"), b)
			}
			return resp, nil
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func findOperation(doc *openapi3.T, r *http.Request) (*openapi3.PathItem, *openapi3.Operation) {
	got := strings.Split(r.URL.EscapedPath(), "/")
	var best *openapi3.PathItem
	literal := -1
	for path, item := range doc.Paths.Map() {
		want := strings.Split(path, "/")
		if len(want) != len(got) || item.GetOperation(r.Method) == nil {
			continue
		}
		same := 0
		for i := range want {
			if want[i] == got[i] {
				same++
			} else if !strings.HasPrefix(want[i], "{") {
				same = -1
				break
			}
		}
		if same > literal {
			best, literal = item, same
		}
	}
	if best == nil {
		return nil, nil
	}
	return best, best.GetOperation(r.Method)
}

// Content checks a body against its description; for types other than JSON and
// lines of JSON it checks only the type.
func Content(t *testing.T, what string, content openapi3.Content, contentType string, b []byte) {
	t.Helper()
	media, ok := content[contentType]
	if !ok {
		t.Errorf("%s has content type %q, which is not described", what, contentType)
		return
	}
	values := [][]byte{b}
	switch contentType {
	case wire.TypeJSON:
	case wire.TypeLines:
		values = bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	default:
		return
	}
	for _, v := range values {
		if len(v) == 0 {
			continue // a heartbeat
		}
		var decoded any
		if err := json.Unmarshal(v, &decoded); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if err := media.Schema.Value.VisitJSON(decoded, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: %.2000s\n%v", what, v, err)
		}
	}
}

// Serve serves h the way the daemon does, with its log in the test's.
func Serve(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(h, nil, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelInfo})))
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

// testLog writes log lines to the test.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(string(p))
	return len(p), nil
}
