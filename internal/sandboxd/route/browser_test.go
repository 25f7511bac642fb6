package route_test

import (
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/sandbox"
)

// Files that users wrote are never pages of this origin, whatever their names and
// contents: a browser saves them, does not guess their type, and would run no script in
// them.
func TestRoutes_NotAPage(t *testing.T) {
	t.Parallel()
	rec := &recorder{}
	rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		const page = `<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>`
		return io.NopCloser(strings.NewReader(page)), someFile(int64(len(page))), nil
	}
	mux := api.NewMux(wireTokens{})
	route.Mount(mux, rec, t.Context())
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = api.NewServer(mux, nil, slog.New(slog.DiscardHandler))
	srv.Start()
	t.Cleanup(srv.Close)
	for _, tt := range []struct{ path, media string }{
		{"/v1/sandboxes/s/files/content?path=/index.html", "application/octet-stream"},
		{"/v1/sandboxes/s/files/content?path=/x.svg%0d%0aContent-Type:text/html", "application/octet-stream"},
		{"/v1/sandboxes/s/files/archive?path=/", "application/x-tar"},
		{"/v1/sandboxes/s/files/archive?path=/&format=tar.gz", "application/gzip"},
		{"/v1/sandboxes/s/commands/c/output", "application/octet-stream"},
		{"/v1/snapshots/snap/export", "application/octet-stream"},
	} {
		resp, body := do(t, "GET", srv.URL+tt.path, "", "Authorization", "Bearer admin", "Accept", "application/octet-stream")
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != tt.media || h.Get("Content-Disposition") != "attachment" ||
			h.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(h.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("%s: %d %v %.100s", tt.path, resp.StatusCode, h, body)
		}
	}
}
