package preview

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// politeGuest answers with a body that ends in good order when it is cut.
type politeGuest struct{}

func (politeGuest) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ContentLength: -1, Body: politeBody{r.Context()}}, nil
}

type politeBody struct{ ctx context.Context }

func (b politeBody) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, io.EOF }
func (politeBody) Close() error               { return nil }

// onePort is a public port, until its context ends.
type onePort struct{ ctx context.Context }

func (p onePort) Preview(context.Context, string) (*Target, error) {
	return &Target{SandboxID: "sbx_1", TeamID: "team_1", Port: 80, Access: sandbox.Public, Context: p.ctx}, nil
}

func (p onePort) WakePreview(ctx context.Context, label string) (*Target, error) {
	return p.Preview(ctx, label)
}

func (onePort) CheckLink(context.Context, string, string) (time.Time, error) {
	return time.Time{}, nil
}

// A guest that ends its answer as soon as the connection is cut does not make the answer
// look complete to the visitor.
func TestProxy_cutPolitely(t *testing.T) {
	t.Parallel()
	ctx, remove := context.WithCancel(t.Context())
	h := New(Config{Domain: "preview.test", Targets: onePort{ctx}})
	h.proxy.reverse.Transport = politeGuest{}
	s := httptest.NewServer(h)
	defer s.Close()
	defer h.Close()
	req, err := http.NewRequestWithContext(t.Context(), "GET", s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "open.preview.test"
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	remove()
	if b, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the answer came to a clean end: %d %q", res.StatusCode, b)
	}
}
