package route_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/api/apitest"
	"github.com/cayhq/cay/internal/sandboxd/route"
)

func wireMux() *api.Mux {
	mux := api.NewMux(wireTokens{})
	route.Mount(mux, &recorder{}, context.Background())
	mux.ServeOpenAPI("test")
	return mux
}

var spec = sync.OnceValues(func() (*openapi3.T, error) { return apitest.Spec(wireMux()) })

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
	apitest.Golden(t, wireMux())
}

func TestOpenAPI_DescribesRoutes(t *testing.T) {
	t.Parallel()
	apitest.Described(t, wireMux(), mustSpec(t))
}

// conformance returns a transport that checks every request and response of a client
// against the document.
func conformance(t *testing.T) func(http.RoundTripper) http.RoundTripper {
	return apitest.Conform(t, mustSpec(t), nil)
}
