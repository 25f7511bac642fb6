package image_test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// testRegistry is an OCI registry that counts requests, and can return errors.
type testRegistry struct {
	*httptest.Server
	blobs atomic.Int64 // requests for layers and configurations
	bytes atomic.Int64 // of them served

	mu sync.Mutex
	// wrap, if set, handles requests for blobs and may call next; guarded by mu.
	wrap func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

func newRegistry(t testing.TB) *testRegistry {
	t.Helper()
	reg := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	reg.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			inner.ServeHTTP(w, r)
			return
		}
		reg.blobs.Add(1)
		reg.mu.Lock()
		wrap := reg.wrap
		reg.mu.Unlock()
		cw := &countingWriter{ResponseWriter: w, n: &reg.bytes}
		if wrap != nil {
			wrap(cw, r, inner)
			return
		}
		inner.ServeHTTP(cw, r)
	}))
	t.Cleanup(reg.Close)
	return reg
}

func (reg *testRegistry) onBlob(f func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.wrap = f
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.n.Add(int64(n))
	return n, err
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// push pushes an image or index and returns its reference.
func (reg *testRegistry) push(t testing.TB, repo string, what remote.Taggable) string {
	t.Helper()
	ref := strings.TrimPrefix(reg.URL, "http://") + "/" + repo
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	switch what := what.(type) {
	case v1.Image:
		err = remote.Write(parsed, what, remote.WithTransport(tr))
	case v1.ImageIndex:
		err = remote.WriteIndex(parsed, what, remote.WithTransport(tr))
	default:
		err = fmt.Errorf("cannot push a %T", what)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// corruptingWriter changes a byte.
type corruptingWriter struct {
	http.ResponseWriter
	done bool
}

func (w *corruptingWriter) Write(p []byte) (int, error) {
	if !w.done {
		p = bytes.Clone(p)
		p[len(p)-1] ^= 1
		w.done = true
	}
	return w.ResponseWriter.Write(p)
}

// cuttingWriter cuts the connection after some bytes.
type cuttingWriter struct {
	http.ResponseWriter
	left int
}

func (w *cuttingWriter) Write(p []byte) (int, error) {
	if len(p) < w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	w.ResponseWriter.Write(p[:w.left])
	http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// pausingWriter stops in the middle.
type pausingWriter struct {
	http.ResponseWriter
	left   int
	paused chan struct{}
	until  <-chan struct{}
}

func (w *pausingWriter) Write(p []byte) (int, error) {
	if len(p) < w.left {
		w.left -= len(p)
		return w.ResponseWriter.Write(p)
	}
	w.ResponseWriter.Write(p[:w.left])
	http.NewResponseController(w.ResponseWriter).Flush()
	close(w.paused)
	<-w.until
	panic(http.ErrAbortHandler)
}
