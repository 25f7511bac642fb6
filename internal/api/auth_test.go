package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// ending accepts all requests, until end is called.
type ending struct {
	knowing
	end context.CancelCauseFunc
}

func (e *ending) Hold(ctx context.Context, _ api.Principal, _ api.Credential) (context.Context, func(), error) {
	ctx, e.end = context.WithCancelCause(ctx)
	return ctx, func() { e.end(nil) }, nil
}

// A context that a service derives ends later than the request's; an error in
// between is still attributed to the end of the request.
func TestHolder_EndsBeforeWhatIsDerived(t *testing.T) {
	a := &ending{}
	mux := api.NewMux(a)
	mux.Handle("GET /", func(_ http.ResponseWriter, r *http.Request) error {
		later := context.WithoutCancel(r.Context())
		if e := api.Public(later, context.Canceled); e.Code != cay.Internal {
			t.Errorf("a service that gives up by itself: %v", e)
		}
		a.end(cay.Errorf(cay.Unauthenticated, "gone"))
		if e := api.Public(later, context.Canceled); e.Code != cay.Unauthenticated || e.Message != "gone" {
			t.Errorf("got %v", e)
		}
		return r.Context().Err()
	})
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
	r.Header.Set("Authorization", "Bearer x")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		t.Errorf("got %d: %s", w.Code, w.Body)
	}
}
