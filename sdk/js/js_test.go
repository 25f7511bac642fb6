package js

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// nobody knows no token.
type nobody struct{}

func (nobody) Authenticate(context.Context, string) (api.Principal, error) {
	return api.Principal{}, cay.Errorf(cay.Unauthenticated, "no token is known")
}

// Anybody gets the package, the same each time, with what npm needs and nothing of where it was built.
func TestMount(t *testing.T) {
	t.Parallel()
	var first []byte
	for range 2 {
		mux := api.NewMux(nobody{})
		Mount(mux)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", "/js/cayhq-world.tgz", nil))
		if w.Code != 200 || w.Header().Get("Content-Type") != "application/gzip" {
			t.Fatal(w.Code, w.Header())
		}
		if first == nil {
			first = w.Body.Bytes()
		} else if !bytes.Equal(first, w.Body.Bytes()) {
			t.Error("it is another one the second time")
		}
	}
	zip, err := gzip.NewReader(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(zip); ; {
		head, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, head.Name)
		if !head.ModTime.Equal(packed) {
			t.Errorf("%s is of %s", head.Name, head.ModTime)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`sourceMappingURL|/work/|/home/`).Match(text) {
			t.Errorf("%s has something of where it was built", head.Name)
		}
	}
	for _, want := range []string{"package/package.json", "package/README.md", "package/dist/index.js", "package/dist/index.d.ts", "package/dist/start.js"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing in %v", want, names)
		}
	}
}

// The committed files are those that the source builds. This needs the compiler.
func TestDist_IsBuilt(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("world/node_modules/typescript"); err != nil {
		t.Skip("make js-deps has not been run")
	}
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "node", "node_modules/typescript/bin/tsc", "-p", ".", "--outDir", out)
	cmd.Dir = "world"
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	built, committed := tree(t, out), tree(t, "world/dist")
	for name, text := range built {
		if committed[name] != text {
			t.Errorf("dist/%s is not what the source builds: run make js", name)
		}
	}
	for name := range committed {
		if _, ok := built[name]; !ok {
			t.Errorf("dist/%s is not built any more: run make js", name)
		}
	}
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(name)] = string(b)
	}
	return all
}
