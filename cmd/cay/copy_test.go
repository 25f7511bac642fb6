package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire"
)

// The total of a copy of one file is known from its first byte on, in both directions; earlier
// requests about files do not count.
func TestCountingTransport(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		kind := wire.TypeJSON
		if r.URL.Path == "/down" {
			kind = wire.TypeBytes
		}
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, strings.Repeat("x", 100)) // seen by the client
	}))
	t.Cleanup(server.Close)
	for name, c := range map[string]struct {
		path, kind string
		body       io.Reader
		total      int64
	}{
		"asking":           {"/stat", "", nil, 0},
		"up":               {"/up", wire.TypeBytes, strings.NewReader(strings.Repeat("y", 5000)), 5000},
		"up, of no length": {"/up", wire.TypeBytes, io.MultiReader(strings.NewReader("y")), 0},
		"an archive":       {"/up", "application/x-tar", bytes.NewReader(make([]byte, 10)), 0},
		"down":             {"/down", "", nil, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := &countingTransport{base: http.DefaultTransport, p: &progress{out: io.Discard}, name: "f"}
			for _, q := range []struct {
				path, kind string
				body       io.Reader
			}{{"/stat", "", nil}, {c.path, c.kind, c.body}} {
				r, err := http.NewRequestWithContext(t.Context(), "PUT", server.URL+q.path, q.body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", q.kind)
				resp, err := (&http.Client{Transport: tr}).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Error(err)
				}
				resp.Body.Close()
			}
			if tr.total != c.total || c.total > 0 && tr.n < c.total {
				t.Errorf("counted %d of %d, want %d", tr.n, tr.total, c.total)
			}
		})
	}
}
