package workflowd_test

import (
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/workflowd"
)

// described is a mux whose handlers are not called.
func described() *api.Mux {
	mux := api.NewMux(tokens{})
	workflowd.NewRoutes(mux, nil, tokens{})
	mux.ServeOpenAPI("test")
	return mux
}

var spec = sync.OnceValues(func() (*openapi3.T, error) { return apitest.Spec(described()) })

func mustSpec(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := spec()
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestRoutes_Golden(t *testing.T) {
	t.Parallel()
	apitest.Golden(t, described())
}

func TestOpenAPI_DescribesRoutes(t *testing.T) {
	t.Parallel()
	apitest.Described(t, described(), mustSpec(t))
}

// conform checks a client's requests and answers against the OpenAPI document. Streamed
// answers are passed on unchecked.
func conform(t *testing.T, next http.RoundTripper) http.RoundTripper {
	return apitest.Conform(t, mustSpec(t), func(r *http.Request, op *openapi3.Operation) bool {
		return op.OperationID == "waitRun" || op.OperationID == "watchRuns" || r.URL.Query().Has("follow")
	})(next)
}
