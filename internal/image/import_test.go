package image_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
)

// layoutDir writes an OCI layout.
func layoutDir(t testing.TB, index v1.ImageIndex) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := layout.Write(dir, index); err != nil {
		t.Fatal(err)
	}
	return dir
}

// tarDir packs a directory.
func tarDir(t testing.TB, dir string) []byte {
	t.Helper()
	var members []member
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		members = append(members, file(strings.TrimPrefix(p, dir+"/"), string(b)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tarOf(t, members...)
}

func dockerArchive(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	refs := map[name.Reference]v1.Image{}
	for ref, img := range images {
		refs[checktest.Must(name.ParseReference(ref))(t)] = img
	}
	var b bytes.Buffer
	if err := tarball.MultiRefWrite(refs, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// savedTogether makes the archive that "docker save" writes since version 25: an OCI
// layout, and a manifest.json whose images consist of its blobs. The images are in the
// reverse order of their names.
func savedTogether(t testing.TB, images map[string]v1.Image) []byte {
	t.Helper()
	index := v1.ImageIndex(empty.Index)
	var list []map[string]any
	blob := func(h v1.Hash, err error) string { return "blobs/" + h.Algorithm + "/" + checktest.Must(h, err)(t).Hex }
	for _, ref := range slices.Backward(slices.Sorted(maps.Keys(images))) {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: images[ref]})
		var layers []string
		for _, l := range checktest.Must(images[ref].Layers())(t) {
			layers = append(layers, blob(l.Digest()))
		}
		list = append(list, map[string]any{"Config": blob(images[ref].ConfigName()), "RepoTags": []string{ref}, "Layers": layers})
	}
	dir := layoutDir(t, index)
	text := checktest.Must(json.Marshal(list))(t)
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return tarDir(t, dir)
}

func compressed(t testing.TB, b []byte, with func(io.Writer) (io.WriteCloser, error)) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := with(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gz(w io.Writer) (io.WriteCloser, error)  { return gzip.NewWriter(w), nil }
func zst(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }
func xzw(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }

func TestStore_Import(t *testing.T) {
	t.Parallel()
	img := imageOf(t, layerOf(t, tarOf(t, file("etc/os", "base"), file("gone", ""))),
		layerOf(t, tarOf(t, file("app", "app"), file(".wh.gone", ""))))
	foreign := withConfig(t, img, func(c *v1.ConfigFile) { c.Architecture = "s390x" })
	other := imageOf(t, layerOf(t, tarOf(t, file("other", ""))))
	simple := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})
	nested := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}})})
	oci := tarDir(t, layoutDir(t, simple))
	docker := dockerArchive(t, map[string]v1.Image{"example.com/app:v1": img})
	root := tarOf(t, file("./etc/os", "base"), file("./app", "app"), file("./manifest.json", "a file like any other"))
	tests := []struct {
		name     string
		archive  []byte
		noConfig bool
	}{
		{"OCI archive", oci, false},
		{"OCI archive, nested index, gzip", compressed(t, tarDir(t, layoutDir(t, nested)), gz), false},
		{"docker archive", docker, false},
		{"docker archive, zstd", compressed(t, docker, zst), false},
		{"docker archive of several images", dockerArchive(t, map[string]v1.Image{"example.com/app:v1": img, "example.com/b": foreign}), false},
		{"docker archive of several images, with a layout", savedTogether(t, map[string]v1.Image{"example.com/b:v1": other, "example.com/app:v1": img}), false},
		{"root file system", root, true},
		{"root file system, gzip", compressed(t, root, gz), true},
		{"root file system, zstd", compressed(t, root, zst), true},
		{"root file system, xz", compressed(t, root, xzw), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, image.Options{})
			got, err := s.Import(t.Context(), "example.com/app:v1", bytes.NewReader(tt.archive), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Source != "import" || got.Arch != runtime.GOARCH || (got.Config.User == "app:app") == tt.noConfig {
				t.Errorf("got %+v", got)
			}
			tree := contents(t, s, "example.com/app:v1")
			if string(tree["/etc/os"].Data) != "base" || string(tree["/app"].Data) != "app" {
				t.Errorf("the contents differ: %v", tree.Paths())
			}
			if _, ok := tree["/gone"]; ok {
				t.Error("/gone was not hidden")
			}
			wantClean(t, dir)
		})
	}
}

func TestStore_ImportDir(t *testing.T) {
	t.Parallel()
	img := imageOf(t, layerOf(t, tarOf(t, file("f", "content"))))
	s, dir := newStore(t), layoutDir(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}))
	if _, err := s.ImportDir(t.Context(), "app", dir, nil); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, s, "app")["/f"].Data; string(got) != "content" {
		t.Errorf("got %q", got)
	}
	t.Run("links do not lead out", func(t *testing.T) {
		outside := filepath.Join(t.TempDir(), "index.json")
		if err := os.Rename(filepath.Join(dir, "index.json"), outside); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(dir, "index.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := s.ImportDir(t.Context(), "app2", dir, nil); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("got %v, want invalid", err)
		}
	})
	if _, err := s.ImportDir(t.Context(), "app3", filepath.Join(dir, "none"), nil); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("got %v, want invalid", err)
	}
}

func TestStore_Import_errors(t *testing.T) {
	t.Parallel()
	img := imageOf(t, layerOf(t, tarOf(t, file("f", "content"))))
	other := imageOf(t, layerOf(t, tarOf(t, file("g", "other"))))
	foreign := withConfig(t, img, func(c *v1.ConfigFile) { c.Architecture = "s390x" })
	// tampered has the layer's bytes changed in an OCI layout.
	tampered := layoutDir(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img}))
	digest := checktest.Must(checktest.Must(img.Layers())(t)[0].Digest())(t)
	blob := filepath.Join(tampered, "blobs", "sha256", digest.Hex)
	b := checktest.Must(os.ReadFile(blob))(t)
	if err := os.WriteFile(blob, append(b, 0), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, ref string
		archive   []byte
		want      cay.Code
	}{
		{"nothing", "app", nil, ""},
		{"no archive", "app", []byte(strings.Repeat("text", 1000)), cay.Invalid},
		{"damaged gzip", "app", append([]byte{0x1f, 0x8b}, make([]byte, 2000)...), cay.Invalid},
		{"name of ours", "node24", tarOf(t), cay.Invalid},
		{"bad name", "no name", tarOf(t), cay.Invalid},
		{"several images, none of that name", "app", dockerArchive(t, map[string]v1.Image{"a": img, "b": other}), cay.Invalid},
		{"other platform, docker", "app", dockerArchive(t, map[string]v1.Image{"app": foreign}), cay.NotSupported},
		{"other platform, OCI", "app", tarDir(t, layoutDir(t, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
			Add: foreign, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}))), cay.NotSupported},
		{"empty OCI index", "app", tarOf(t, file("oci-layout", "{}"), file("index.json", "{}")), cay.NotSupported},
		{"damaged OCI index", "app", tarOf(t, file("oci-layout", "{}"), file("index.json", "{")), cay.Invalid},
		{"blob with dots", "app", tarOf(t, file("oci-layout", "{}"), file("index.json",
			`{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1,"digest":"sha256:../../../../../../../../../../../../../../../../../../../../etc/pass"}]}`)), cay.Invalid},
		{"missing layer", "app", tarOf(t, file("manifest.json", `[{"Config":"c","Layers":["l"]}]`),
			file("c", `{"rootfs":{"diff_ids":["sha256:`+strings.Repeat("0", 64)+`"]}}`)), cay.Invalid},
		{"tampered layer", "app", tarDir(t, tampered), cay.Invalid},
		{"too many files", "app", tarOf(t, func() (m []member) {
			for range 101 {
				m = append(m, file("f", ""))
			}
			return
		}()...), cay.TooLarge},
		{"too large", "app", compressed(t, tarOf(t, file("f", strings.Repeat("0", 3<<20))), gz), cay.TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, image.Options{Limits: image.Limits{Entries: 100, Bytes: 2 << 20}})
			_, err := s.Import(t.Context(), tt.ref, bytes.NewReader(tt.archive), nil)
			if got := cay.CodeOf(err); got != tt.want {
				t.Errorf("got %q, want %q: %v", got, tt.want, err)
			}
			wantClean(t, dir)
		})
	}
}

// FuzzStore_Import imports arbitrary bytes. A failed import must leave nothing behind.
func FuzzStore_Import(f *testing.F) {
	img := imageOf(f, layerOf(f, tarOf(f, file("f", "content"))))
	oci := tarDir(f, layoutDir(f, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img})))
	docker := dockerArchive(f, map[string]v1.Image{"app": img})
	root := tarOf(f, file("../../f", "content"))
	for _, b := range [][]byte{oci, docker, root, compressed(f, root, gz), compressed(f, root, zst), compressed(f, root, xzw)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		s := open(t, dir, image.Options{Limits: image.Limits{Entries: 100, Bytes: 1 << 20}})
		if _, err := s.Import(t.Context(), "app", bytes.NewReader(b), nil); err == nil {
			contents(t, s, "app")
		} else if cay.CodeOf(err) == cay.Internal {
			t.Errorf("the archive's fault is called ours: %v", err)
		}
		wantClean(t, dir)
	})
}
