// Package js has the JavaScript packages that a daemon serves, so that programs install them
// from it, and in its version. It knows nothing of the daemon but how routes are made.
//
// world is TypeScript, built by tsc into world/dist, which is committed and embedded, so that
// building cay needs no Node. "make js" builds it; a test, where its tools are, sees that dist is
// what the source builds.
package js

import (
	"archive/tar"
	"bytes"
	"embed"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay/internal/api"
)

//go:embed world/package.json world/README.md world/dist
var files embed.FS

// Mount serves the packages under /js, to anybody: they are no secret, and npm shows no token.
func Mount(mux *api.Mux) {
	world := sync.OnceValues(func() ([]byte, error) { return pack("world") })
	mux.HandlePublic("GET /js/cayhq-world.tgz", func(w http.ResponseWriter, _ *http.Request) error {
		b, err := world()
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", "application/gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(b)))
		_, _ = w.Write(b) // fails only when the client left
		return nil
	})
}

// packed is when npm says that the files of all packages were made.
var packed = time.Date(1985, time.October, 26, 8, 15, 0, 0, time.UTC)

// pack returns a package as npm installs it. It is the same each time.
func pack(name string) ([]byte, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	archive := tar.NewWriter(zip)
	err := fs.WalkDir(files, name, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		head := &tar.Header{Name: "package" + strings.TrimPrefix(path, name), Mode: 0o644, Size: int64(len(b)), ModTime: packed, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		_, err = archive.Write(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
