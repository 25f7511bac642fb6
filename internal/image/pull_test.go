package image_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/sandbox"
)

// noise returns incompressible content.
func noise(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return string(b)
}

func TestStore_Pull(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	s := open(t, dir, image.Options{})
	ref := reg.push(t, "team/app:v1", imageOf(t,
		layerOf(t, tarOf(t, file("etc/os", "base"), file("gone", "x"), member{tar.Header{
			Typeflag: tar.TypeSymlink, Name: "dev", Linkname: "/etc"}, ""}, member{tar.Header{
			Typeflag: tar.TypeSymlink, Name: "proc", Linkname: "/etc"}, ""})),
		layerOf(t, tarOf(t, file("app", noise(300<<10)), file(".wh.gone", "")), tarball.WithCompression(compression.ZStd), tarball.WithMediaType(types.OCILayerZStd)),
		layerOf(t, tarOf(t, member{tar.Header{Typeflag: tar.TypeLink, Name: "link", Linkname: "app"}, ""})),
	))
	var mu sync.Mutex
	var phases []string
	img, err := s.Pull(t.Context(), ref, func(p sandbox.ImageProgress) {
		mu.Lock()
		defer mu.Unlock()
		if !slices.Contains(phases, p.Phase) {
			phases = append(phases, p.Phase)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := sandbox.ImageConfig{Env: []string{"PATH=/bin"}, User: "app:app", WorkDir: "/srv", Entrypoint: []string{"/entry"}, Cmd: []string{"-v"},
		Labels: map[string]string{"made": "here"}, ExposedPorts: []string{"53/udp", "8080/tcp"}}
	if fmt.Sprint(img.Config) != fmt.Sprint(want) || img.Source != "oci" || img.Arch != runtime.GOARCH || len(img.Refs) != 1 {
		t.Errorf("got %+v", img)
	}
	for _, p := range []string{"resolve", "download", "unpack", "build", "done"} {
		if !slices.Contains(phases, p) {
			t.Errorf("no progress of the phase %q in %v", p, phases)
		}
	}
	tree := contents(t, s, ref)
	if string(tree["/etc/os"].Data) != "base" || string(tree["/app"].Data) != noise(300<<10) || tree["/link"].Nid != tree["/app"].Nid {
		t.Error("the contents differ")
	}
	if _, ok := tree["/gone"]; ok {
		t.Error("/gone was not hidden")
	}
	for _, p := range []string{"/proc", "/sys", "/dev", "/tmp", "/run", "/vercel/runtimes"} {
		if f, ok := tree[p]; !ok || f.Target != "" {
			t.Errorf("%s is not a directory but %+v", p, f)
		}
	}
	wantClean(t, dir)

	t.Run("again, and by another name", func(t *testing.T) {
		before := reg.blobs.Load()
		other := reg.push(t, "team/app:v2", checktest.Must(remoteImage(t, ref))(t))
		for _, ref := range []string{ref, other} {
			again, err := s.Pull(t.Context(), ref, nil)
			if err != nil || again.Digest != img.Digest {
				t.Errorf("%s: got %v, %v, want %s", ref, again, err, img.Digest)
			}
		}
		// The configuration is read to learn about the image; layers are not read.
		if n := reg.blobs.Load() - before; n > 4 {
			t.Errorf("%d blobs were downloaded again", n)
		}
	})
}

func remoteImage(t testing.TB, ref string) (v1.Image, error) {
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return remote.Image(checktest.Must(name.ParseReference(ref))(t), remote.WithTransport(tr))
}

// TestStore_Pull_config: images that differ only in their configuration have two digests.
func TestStore_Pull_config(t *testing.T) {
	t.Parallel()
	reg, s := newRegistry(t), newStore(t)
	one := imageOf(t, layerOf(t, tarOf(t, file("f", "1"))))
	two := withConfig(t, one, func(c *v1.ConfigFile) { c.Config.Cmd = []string{"other"} })
	for ref, want := range map[string]string{reg.push(t, "one", one): "-v", reg.push(t, "two", two): "other"} {
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		if got := checktest.Must(s.Get(t.Context(), ref))(t).Config.Cmd; !slices.Equal(got, []string{want}) {
			t.Errorf("%s runs %q, want %q", ref, got, want)
		}
	}
}

func TestStore_Pull_index(t *testing.T) {
	t.Parallel()
	reg, s := newRegistry(t), newStore(t)
	platform := func(arch string) mutate.IndexAddendum {
		img := withConfig(t, imageOf(t, layerOf(t, tarOf(t, file("arch", arch)))), func(c *v1.ConfigFile) { c.Architecture = arch })
		return mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}}
	}
	both := reg.push(t, "both", mutate.AppendManifests(empty.Index, platform("s390x"), platform(runtime.GOARCH)))
	if _, err := s.Pull(t.Context(), both, nil); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, s, both)["/arch"].Data; string(got) != runtime.GOARCH {
		t.Errorf("got the image for %q", got)
	}
	for name, what := range map[string]remote.Taggable{
		"index": mutate.AppendManifests(empty.Index, platform("s390x")),
		"image": platform("s390x").Add.(v1.Image),
	} {
		if _, err := s.Pull(t.Context(), reg.push(t, "other/"+name, what), nil); cay.CodeOf(err) != cay.NotSupported {
			t.Errorf("%s for another platform: got %v", name, err)
		}
	}
}

func TestStore_Pull_errors(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	s := open(t, dir, image.Options{Limits: image.Limits{Layers: 20, Entries: 1000, Bytes: 4 << 20}})
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer private.Close()

	one := layerOf(t, tarOf(t, file("f", "1")))
	two := layerOf(t, tarOf(t, file("f", "2")))
	reg.push(t, "bad/two", imageOf(t, two)) // so that its bytes are not requested again
	push := func(name string, img v1.Image) string { return reg.push(t, "bad/"+name, img) }
	gz := func(b []byte) []byte {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		w.Write(b)
		w.Close()
		return z.Bytes()
	}
	raw := func(b []byte) v1.Layer { return static.NewLayer(b, types.OCILayer) }
	// diffs replaces the checksums of the uncompressed layers.
	diffs := func(img v1.Image, of ...[]byte) v1.Image {
		return withConfig(t, img, func(c *v1.ConfigFile) {
			c.RootFS.DiffIDs = nil
			for _, b := range of {
				h, _, err := v1.SHA256(bytes.NewReader(b))
				if err != nil {
					t.Fatal(err)
				}
				c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, h)
			}
		})
	}
	plain := tarOf(t, file("f", "content"))
	many := make([]v1.Layer, 21)
	for i := range many {
		many[i] = one
	}
	tests := []struct {
		name, ref string
		want      cay.Code
	}{
		{"bad reference", "UPPER case", cay.Invalid},
		{"digest alone", "sha256:" + strings.Repeat("0", 64), cay.Invalid},
		{"one of ours", "debian", cay.Invalid},
		{"no such image", strings.TrimPrefix(reg.URL, "http://") + "/no/such", cay.NotFound},
		{"private", strings.TrimPrefix(private.URL, "http://") + "/app", cay.PermissionDenied},
		{"registry is down", "127.0.0.1:1/app", cay.Unavailable},
		{"too many layers", push("layers", imageOf(t, many...)), cay.TooLarge},
		{"bomb", push("bomb", imageOf(t, layerOf(t, tarOf(t, file("f", strings.Repeat("0", 5<<20)))))), cay.TooLarge},
		{"bomb behind the archive", push("padding", imageOf(t, layerOf(t, append(bytes.Clone(plain), make([]byte, 12<<20)...)))), cay.TooLarge},
		{"not a tar", push("notar", imageOf(t, layerOf(t, []byte(strings.Repeat("no tar ", 200))))), cay.Invalid},
		{"truncated gzip", push("cut", diffs(imageOf(t, raw(gz(plain)[:60])), plain)), cay.Invalid},
		{"junk behind gzip", push("junk", diffs(imageOf(t, raw(append(gz(plain), "junk"...))), plain)), cay.Invalid},
		{"zstd behind gzip", push("mixed", diffs(imageOf(t, raw(append(gz(plain), 0x28, 0xb5, 0x2f, 0xfd, 0, 0, 1))), plain)), cay.Invalid},
		{"wrong checksum of the layer", push("diffid", diffs(imageOf(t, one), []byte("other"))), cay.Invalid},
		{"more checksums than layers", push("diffids", diffs(imageOf(t, one), plain, plain)), cay.Invalid},
		{"hostile layer", push("wh", imageOf(t, layerOf(t, tarOf(t, file(".wh..", ""))))), cay.Invalid},
		{"says it is smaller", push("small", imageOf(t, sizedLayer{one, -1})), cay.Invalid},
		{"says it is larger", push("large", imageOf(t, sizedLayer{one, +1})), cay.Invalid},
		{"says it is larger, not seen before", push("larger", imageOf(t, sizedLayer{two, +1})), cay.Invalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.Pull(t.Context(), tt.ref, nil)
			if got := cay.CodeOf(err); got != tt.want {
				t.Errorf("got %q, want %q: %v", got, tt.want, err)
			}
			if images := checktest.Must(s.List(t.Context()))(t); len(images) > 0 {
				t.Errorf("left %v", images)
			}
		})
	}
}

// sizedLayer lies about its size.
type sizedLayer struct {
	v1.Layer
	by int64
}

func (l sizedLayer) Size() (int64, error) {
	n, err := l.Layer.Size()
	return n + l.by, err
}

func TestStore_Pull_wrongBytes(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	s := open(t, dir, image.Options{})
	layer := layerOf(t, tarOf(t, file("f", noise(100<<10))))
	ref := reg.push(t, "app", imageOf(t, layer))
	digest := checktest.Must(layer.Digest())(t).String()
	reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest) {
			w = &corruptingWriter{ResponseWriter: w}
		}
		next.ServeHTTP(w, r)
	})
	if _, err := s.Pull(t.Context(), ref, nil); cay.CodeOf(err) != cay.Invalid {
		t.Fatalf("got %v, want invalid", err)
	}
	reg.onBlob(nil)
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatalf("after the registry was repaired: %v", err)
	}
}

// TestStore_Pull_resumes has a registry that cuts every connection early.
func TestStore_Pull_resumes(t *testing.T) {
	t.Parallel()
	for name, ranges := range map[string]bool{"with ranges": true, "without ranges": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg, dir := newRegistry(t), t.TempDir()
			s := open(t, dir, image.Options{})
			layer := layerOf(t, tarOf(t, file("f", noise(1<<20))))
			ref := reg.push(t, "app", imageOf(t, layer))
			digest := checktest.Must(layer.Digest())(t).String()
			var cuts atomic.Int64
			reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if !ranges {
					r.Header.Del("Range")
				}
				if strings.HasSuffix(r.URL.Path, digest) && cuts.Add(1) <= 3 {
					w = &cuttingWriter{ResponseWriter: w, left: 200 << 10}
				}
				next.ServeHTTP(w, r)
			})
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, s, ref)["/f"].Data; string(got) != noise(1<<20) {
				t.Error("the content differs")
			}
			size := checktest.Must(layer.Size())(t)
			if n := reg.bytes.Load(); ranges && n > size+64<<10 {
				t.Errorf("%d bytes were served for a layer of %d: it started over", n, size)
			}
			wantClean(t, dir)
		})
	}
}

// TestStore_Pull_once pulls in many goroutines with two stores over one directory, which
// stand for two processes.
func TestStore_Pull_once(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	layers := []v1.Layer{layerOf(t, tarOf(t, file("a", noise(100<<10)))), layerOf(t, tarOf(t, file("b", noise(200<<10))))}
	ref := reg.push(t, "app", imageOf(t, layers...))
	hits := map[string]*atomic.Int64{}
	for _, l := range layers {
		hits[checktest.Must(l.Digest())(t).String()] = new(atomic.Int64)
	}
	reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n := hits[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]; n != nil {
			n.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	stores := []*image.Store{open(t, dir, image.Options{}), open(t, dir, image.Options{})}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			l, err := stores[i%2].Ensure(t.Context(), ref, func(sandbox.ImageProgress) {})
			if err != nil {
				t.Error(err)
				return
			}
			l.Release()
		})
	}
	wg.Wait()
	for digest, n := range hits {
		if n.Load() != 1 {
			t.Errorf("layer %s was downloaded %d times", digest, n.Load())
		}
	}
	wantClean(t, dir)
}

// TestStore_Pull_sharedLayer concurrently pulls two images with a common layer.
func TestStore_Pull_sharedLayer(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	base := layerOf(t, tarOf(t, file("base", noise(300<<10))))
	var refs []string
	for i := range 4 {
		refs = append(refs, reg.push(t, fmt.Sprint("app", i), imageOf(t, base, layerOf(t, tarOf(t, file("own", fmt.Sprint(i)))))))
	}
	s := open(t, dir, image.Options{})
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() {
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, ref := range refs {
		if tree := contents(t, s, ref); string(tree["/own"].Data) != fmt.Sprint(i) || len(tree["/base"].Data) != 300<<10 {
			t.Errorf("%s has other contents", ref)
		}
	}
	wantClean(t, dir)
}

func TestStore_Pull_canceled(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	s := open(t, dir, image.Options{})
	layer := layerOf(t, tarOf(t, file("f", noise(1<<20))))
	ref := reg.push(t, "app", imageOf(t, layer))
	digest := checktest.Must(layer.Digest())(t).String()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest) {
			cancel()
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
	})
	_, err := s.Pull(ctx, ref, nil)
	if cay.CodeOf(err) != cay.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	if _, err := s.Acquire(t.Context(), ref); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a canceled pull left an image: %v", err)
	}
}

// TestStore_Pull_killed kills a process in the middle of a pull, and continues
// in another one.
func TestStore_Pull_killed(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	small, big := layerOf(t, tarOf(t, file("small", noise(50<<10)))), layerOf(t, tarOf(t, file("big", noise(2<<20))))
	ref := reg.push(t, "app", imageOf(t, small, big))
	digest, size := checktest.Must(big.Digest())(t).String(), checktest.Must(big.Size())(t)

	half := make(chan struct{})
	reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest) {
			w = &pausingWriter{ResponseWriter: w, left: int(size / 2), paused: half, until: r.Context().Done()}
		}
		next.ServeHTTP(w, r)
	})
	cmd := child(t, "pull", dir, ref)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, half)
	// The sent bytes must be on the disk before the process is killed.
	waitForSize(t, dir, size/2)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()

	s := open(t, dir, image.Options{})
	if images := checktest.Must(s.List(t.Context()))(t); len(images) > 0 {
		t.Fatalf("half an image is visible: %v", images)
	}
	reg.onBlob(nil)
	before := reg.bytes.Load()
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	// The small layer may not have been there when the process died.
	if n := reg.bytes.Load() - before; n > size/2+128<<10 {
		t.Errorf("%d bytes were served to continue a layer of %d of which half was there", n, size)
	}
	if got := contents(t, s, ref); string(got["/big"].Data) != noise(2<<20) || len(got["/small"].Data) != 50<<10 {
		t.Error("the content differs")
	}
	wantClean(t, dir)
}

// TestStore_Pull_otherProcess waits for a pull in another process and uses its result.
func TestStore_Pull_otherProcess(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	layer := layerOf(t, tarOf(t, file("f", noise(1<<20))))
	ref := reg.push(t, "app", imageOf(t, layer))
	digest := checktest.Must(layer.Digest())(t).String()
	started, goOn := make(chan struct{}), make(chan struct{})
	var hits atomic.Int64
	reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest) && hits.Add(1) == 1 {
			close(started)
			select {
			case <-goOn:
			case <-r.Context().Done():
			}
		}
		next.ServeHTTP(w, r)
	})
	cmd := child(t, "pull", dir, ref)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, started)
	s := open(t, dir, image.Options{})
	var once sync.Once
	img, err := s.Pull(t.Context(), ref, func(p sandbox.ImageProgress) {
		if strings.Contains(p.Item, "another process") {
			once.Do(func() { close(goOn) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != img.Digest {
		t.Errorf("the other process got %q, %v; we got %s", line, err, img.Digest)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if hits.Load() != 1 {
		t.Errorf("the layer was downloaded %d times", hits.Load())
	}
}

func TestStore_Pull_transport(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	ref := reg.push(t, "app", imageOf(t, layerOf(t, tarOf(t, file("f", "1")))))
	s := open(t, t.TempDir(), image.Options{Transport: refusing{}})
	_, err := s.Pull(t.Context(), ref, nil)
	if cay.CodeOf(err) != cay.Unavailable || !errors.Is(err, errRefused) {
		t.Errorf("got %v, want the refusal of the transport", err)
	}
	if reg.blobs.Load() > 0 {
		t.Error("the registry was reached")
	}
}

var errRefused = errors.New("this address may not be reached")

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errRefused }

// A manifest, or the digest of a layer, gives no owner access to another owner's files,
// neither of an image nor of an unfinished download.
func TestStore_Pull_ofOthers(t *testing.T) {
	t.Parallel()
	reg, dir := newRegistry(t), t.TempDir()
	secret := layerOf(t, tarOf(t, file("secret", noise(300<<10))))
	s := open(t, dir, image.Options{})
	stores := map[string]*image.Store{"": s, "a": s.For(image.Owner{ID: "a"}), "b": s.For(image.Owner{ID: "b"}),
		"c": s.For(image.Owner{ID: "c"}), "d": s.For(image.Owner{ID: "d"})}
	gone := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, digestOfLayer(t, secret)) {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	}
	for _, c := range []struct{ has, wants string }{{"a", "b"}, {"a", ""}, {"c", "d"}} {
		t.Run(fmt.Sprintf("%q of %q", c.wants, c.has), func(t *testing.T) {
			// The other owner has the whole image.
			img := imageOf(t, secret, layerOf(t, tarOf(t, file("of", c.has+" "+c.wants))))
			ref := reg.push(t, "whole-"+c.has+c.wants, img)
			if _, err := stores[c.has].Pull(t.Context(), ref, nil); err != nil {
				t.Fatal(err)
			}
			// The other owner has only the layer, from a download that failed.
			part := imageOf(t, secret, layerOf(t, tarOf(t, file("bad", "x"))))
			broken := reg.push(t, "part-"+c.has+c.wants, part)
			reg.onBlob(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.Contains(r.URL.Path, digestOfLayer(t, secret)) || strings.Contains(r.URL.Path, configOf(t, part)) {
					next.ServeHTTP(w, r)
					return
				}
				http.NotFound(w, r)
			})
			if _, err := stores[c.has].Pull(t.Context(), broken, nil); err == nil {
				t.Fatal("an image without one of its layers was pulled")
			}
			reg.onBlob(gone)
			defer reg.onBlob(nil)
			for _, ref := range []string{ref, broken} {
				if _, err := stores[c.wants].Pull(t.Context(), ref, nil); err == nil {
					t.Errorf("%s was pulled without its layers", ref)
				}
			}
			// The owner of the image gets it by another name without a download.
			if _, err := stores[c.has].Pull(t.Context(), reg.push(t, "again-"+c.has+c.wants, img), nil); err != nil {
				t.Errorf("by its owner: %v", err)
			}
		})
	}
	t.Run("of the installation", func(t *testing.T) {
		img := imageOf(t, secret, layerOf(t, tarOf(t, file("of", "all"))))
		ref := reg.push(t, "common", img)
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		reg.onBlob(gone)
		if _, err := stores["b"].Pull(t.Context(), reg.push(t, "common-again", img), nil); err != nil {
			t.Error(err)
		}
	})
}

func digestOfLayer(t testing.TB, l v1.Layer) string {
	t.Helper()
	return checktest.Must(l.Digest())(t).String()
}

func configOf(t testing.TB, img v1.Image) string {
	t.Helper()
	return checktest.Must(img.ConfigName())(t).String()
}
