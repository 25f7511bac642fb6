package sandboxd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/wire"
)

var updateRoutes = flag.Bool("update-routes", false, "rewrite testdata/routes.txt")

func wireMux() *api.Mux {
	mux := api.NewMux(wireTokens{})
	sandboxd.Routes(mux, &recorder{}, context.Background())
	sandboxd.ImageRoutes(mux, &imageRecorder{&recorder{}})
	mux.ServeOpenAPI("test")
	return mux
}

// A change of the API is a changed line here.
func TestRoutes_Golden(t *testing.T) {
	t.Parallel()
	const golden = "testdata/routes.txt"
	got := strings.Join(wireMux().Routes(), "\n") + "\n"
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

// spec is the document as it is served. Answers may only hold what it names,
// which the document itself does not promise, so that fields can be added.
var spec = sync.OnceValues(func() (*openapi3.T, error) {
	w := httptest.NewRecorder()
	wireMux().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/openapi.json", nil))
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
})

func mustSpec(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestOpenAPI_DescribesRoutes(t *testing.T) {
	t.Parallel()
	var described []string
	for path, item := range mustSpec(t).Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	registered := wireMux().Routes()
	for i, r := range registered {
		registered[i] = strings.ReplaceAll(r, "...}", "}")
	}
	slices.Sort(described)
	slices.Sort(registered)
	if !slices.Equal(described, registered) {
		t.Errorf("described\n%s\nregistered\n%s", strings.Join(described, "\n"), strings.Join(registered, "\n"))
	}
}

// conformance returns what checks every request and answer of a client against
// the document.
func conformance(t *testing.T) func(http.RoundTripper) http.RoundTripper {
	doc := mustSpec(t)
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			item, op := findOperation(doc, r)
			if op == nil {
				t.Errorf("%s %s is not described", r.Method, r.URL.Path)
				return next.RoundTrip(r)
			}
			checkQuery(t, item, op, r)
			if op.RequestBody != nil && r.Body != nil {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					return nil, err
				}
				r.Body = io.NopCloser(bytes.NewReader(b))
				checkContent(t, "request of "+op.OperationID, op.RequestBody.Value.Content, r.Header.Get("Content-Type"), b)
			}
			resp, err := next.RoundTrip(r)
			if err != nil {
				return nil, err
			}
			if resp.StatusCode == http.StatusSwitchingProtocols {
				return resp, nil
			}
			b, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				return nil, err
			}
			resp.Body = io.NopCloser(bytes.NewReader(b))
			answer := op.Responses.Status(resp.StatusCode)
			if answer == nil {
				answer = op.Responses.Default()
				if resp.StatusCode < 400 {
					t.Errorf("%s answered %d, which is not described", op.OperationID, resp.StatusCode)
				}
			}
			if len(b) > 0 {
				checkContent(t, fmt.Sprintf("answer %d of %s", resp.StatusCode, op.OperationID), answer.Value.Content, resp.Header.Get("Content-Type"), b)
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

func checkQuery(t *testing.T, item *openapi3.PathItem, op *openapi3.Operation, r *http.Request) {
	t.Helper()
	for name := range r.URL.Query() {
		if op.Parameters.GetByInAndName("query", name) == nil && item.Parameters.GetByInAndName("query", name) == nil {
			t.Errorf("%s takes query parameter %q, which is not described", op.OperationID, name)
		}
	}
}

func checkContent(t *testing.T, what string, content openapi3.Content, contentType string, b []byte) {
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
		var decoded any
		if err := json.Unmarshal(v, &decoded); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if err := media.Schema.Value.VisitJSON(decoded, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: %s\n%v", what, v, err)
		}
	}
}
