package image_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/rootfs/rootfstest"
	"github.com/cayhq/cay/sandbox"
)

func TestStore_names(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := importFile(t, s, "alpine", "same")
	second := importFile(t, s, "example.com/app:v1", "same")
	if first.Digest != second.Digest {
		t.Fatalf("equal content has the digests %s and %s", first.Digest, second.Digest)
	}
	want := []string{"example.com/app:v1", "index.docker.io/library/alpine:latest"}
	if !slices.Equal(second.Refs, want) {
		t.Errorf("names are %q, want %q", second.Refs, want)
	}
	for _, ref := range []string{"alpine", "alpine:latest", "docker.io/library/alpine", "example.com/app:v1", first.Digest} {
		img, err := s.Get(t.Context(), ref)
		if err != nil || img.Digest != first.Digest {
			t.Errorf("Get(%q) = %v, %v", ref, img, err)
		}
	}
	if images := checktest.Must(s.List(t.Context()))(t); len(images) != 1 {
		t.Errorf("List has %d images, want 1", len(images))
	}
	other := importFile(t, s, "alpine", "other")
	if img := checktest.Must(s.Get(t.Context(), first.Digest))(t); !slices.Equal(img.Refs, want[:1]) {
		t.Errorf("the name has moved, but the first image still has %q", img.Refs)
	}
	if images := checktest.Must(s.List(t.Context()))(t); len(images) != 2 || images[0].Digest != other.Digest {
		t.Errorf("List has %v, want the newest first", images)
	}
	for ref, want := range map[string]cay.Code{
		"none": cay.NotFound, "": cay.NotFound, "default": cay.NotFound, "node24": cay.NotFound,
		"sha256:" + strings.Repeat("0", 64): cay.NotFound, "a b": cay.Invalid,
	} {
		if _, err := s.Get(t.Context(), ref); cay.CodeOf(err) != want {
			t.Errorf("Get(%q): %v, want %s", ref, err, want)
		}
	}
}

func TestStore_Tag(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	first := importFile(t, s, "app:1", "one")
	second := importFile(t, s, "app:2", "two")
	tagged := checktest.Must(s.Tag(t.Context(), "app:1", "app:2"))(t)
	want := []string{"index.docker.io/library/app:1", "index.docker.io/library/app:2"}
	if tagged.Digest != first.Digest || !slices.Equal(tagged.Refs, want) {
		t.Errorf("the image is %s with the names %q, want %s with %q", tagged.Digest, tagged.Refs, first.Digest, want)
	}
	if img := checktest.Must(s.Get(t.Context(), second.Digest))(t); len(img.Refs) != 0 {
		t.Errorf("the other image still has the names %q", img.Refs)
	}
	if err := s.Remove(t.Context(), "app:1"); err != nil {
		t.Fatal(err)
	}
	if img := checktest.Must(s.Get(t.Context(), "app:2"))(t); img.Digest != first.Digest {
		t.Errorf("app:2 is %s once app:1 is removed, want %s", img.Digest, first.Digest)
	}
	// A team's name, and its cost.
	team := s.For(image.Owner{ID: "team", Bytes: first.SizeBytes})
	if img := checktest.Must(team.Tag(t.Context(), "app:2", "ours"))(t); len(img.TeamRefs) != 1 {
		t.Errorf("the team has the names %q", img.TeamRefs)
	}
	for _, tt := range []struct {
		ref, name string
		want      cay.Code
	}{
		{"none", "app:3", cay.NotFound}, {"app:2", "debian", cay.Invalid}, {"app:2", "a b", cay.Invalid}, {"app:2", first.Digest, cay.Invalid},
	} {
		_, err := s.Tag(t.Context(), tt.ref, tt.name)
		checktest.Code(t, err, tt.want, tt.ref+" as "+tt.name)
	}
	_, err := s.For(image.Owner{ID: "other"}).Tag(t.Context(), "ours", "mine")
	checktest.Code(t, err, cay.NotFound, "another team's image")
}

func TestStore_Remove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	img := importFile(t, s, "a", "content")
	importFile(t, s, "b", "content")
	lease := checktest.Must(s.Acquire(t.Context(), "a"))(t)

	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "a"); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("second Remove: %v, want not_found", err)
	}
	if got := checktest.Must(s.Get(t.Context(), "b"))(t); len(got.Refs) != 1 {
		t.Errorf("names left: %q", got.Refs)
	}
	if err := s.Remove(t.Context(), img.Digest); err != nil {
		t.Fatal(err)
	}
	if images := checktest.Must(s.List(t.Context()))(t); len(images) > 0 {
		t.Errorf("List still has %v", images)
	}
	gc := func(want int) image.GCReport {
		t.Helper()
		r, err := s.GC(t.Context(), false)
		if err != nil || len(r.Images) != want {
			t.Fatalf("GC = %+v, %v; want %d images", r, err, want)
		}
		return r
	}
	gc(0)
	if tree := rootfstest.Read(t, lease.Path); string(tree["/f"].Data) != "content" {
		t.Error("the content of a leased image differs")
	}
	// The image can still be acquired by its digest while a lease holds it.
	again := checktest.Must(s.Acquire(t.Context(), img.Digest))(t)
	lease.Release()
	lease.Release()
	gc(0)
	again.Release()
	if r := gc(1); r.Images[0].Digest != img.Digest || r.Bytes < img.SizeBytes {
		t.Errorf("GC removed %+v, want %s", r, img.Digest)
	}
	if left := checktest.Must(filepath.Glob(filepath.Join(dir, "images", "*")))(t); len(left) > 0 {
		t.Errorf("GC left %q", left)
	}
	importFile(t, s, "a", "content") // and it can come back
	gc(0)
}

func TestStore_GC_needed(t *testing.T) {
	t.Parallel()
	var needed string
	s := open(t, t.TempDir(), image.Options{Needed: func(_ context.Context, d string) (bool, error) { return d == needed, nil }})
	kept, gone := importFile(t, s, "kept", "1"), importFile(t, s, "gone", "2")
	for _, ref := range []string{"kept", "gone"} {
		if err := s.Remove(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
	needed = kept.Digest
	r, err := s.GC(t.Context(), false)
	if err != nil || len(r.Images) != 1 || r.Images[0].Digest != gone.Digest {
		t.Errorf("GC = %+v, %v; want only %s gone", r, err, gone.Digest)
	}
}

func TestStore_GC_leftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	old := time.Now().Add(-48 * time.Hour)
	put := func(name string, when time.Time) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, when, when); err != nil {
			t.Fatal(err)
		}
		return p
	}
	gone := []string{
		put("blobs/sha256-aa", old), put("blobs/sha256-bb.partial", old), put("tmp/dead/spool", time.Now()),
		put("locks/x", time.Now()), put("images/"+strings.Repeat("a", 64)+".erofs", time.Now()),
	}
	stays := []string{put("blobs/sha256-cc.partial", time.Now()), put("tools/new", time.Now())}
	inUse := put("blobs/sha256-dd", old)
	f := checktest.Must(os.Open(inUse))(t)
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	r, err := s.GC(t.Context(), false)
	if err != nil || r.Bytes != 5000 {
		t.Errorf("GC = %+v, %v; want 5000 bytes", r, err)
	}
	for _, p := range gone {
		if _, err := os.Stat(p); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", p)
		}
	}
	for _, p := range append(stays, inUse) {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("%s is gone", p)
		}
	}
}

// TestLease_otherProcess: a lease holds across processes, and ends with its
// process.
func TestLease_otherProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	img := importFile(t, s, "app", "content")
	cmd := child(t, "lease", dir, "app")
	stdin, err := cmd.StdinPipe() // held open: the child waits until stdin ends
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != img.Digest {
		t.Fatalf("the child says %q, %v", line, err)
	}
	if err := s.Remove(t.Context(), "app"); err != nil {
		t.Fatal(err)
	}
	if r, err := s.GC(t.Context(), false); err != nil || len(r.Images) > 0 {
		t.Fatalf("GC = %+v, %v although another process has a lease", r, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if r, err := s.GC(t.Context(), false); err != nil || len(r.Images) != 1 {
		t.Fatalf("GC = %+v, %v although the lease's holder is dead", r, err)
	}
}

// TestStore_GC_races concurrently removes, imports, leases and collects one image. Each
// lease must have a complete image.
func TestStore_GC_races(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := tarOf(t, file("f", "content"))
	var wg sync.WaitGroup
	for range 4 {
		s := open(t, dir, image.Options{}) // as if in a process of its own
		wg.Go(func() {
			for range 20 {
				if _, err := s.Import(t.Context(), "app", bytes.NewReader(archive), nil); err != nil {
					t.Errorf("import: %v", err)
				}
				switch l, err := s.Acquire(t.Context(), "app"); {
				case err == nil:
					if b, err := os.ReadFile(l.Path); err != nil || len(b) == 0 {
						t.Errorf("a leased image cannot be read: %v", err)
					}
					if err := s.Remove(t.Context(), "app"); err != nil && cay.CodeOf(err) != cay.NotFound {
						t.Errorf("remove: %v", err)
					}
					l.Release()
				case cay.CodeOf(err) != cay.NotFound:
					t.Errorf("acquire: %v", err)
				}
				if _, err := s.GC(t.Context(), false); err != nil {
					t.Errorf("GC: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestStore_Acquire_used(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	img := importFile(t, s, "app", "content")
	meta := filepath.Join(dir, "images", strings.TrimPrefix(img.Digest, "sha256:")+".json")
	for _, ago := range []time.Duration{30 * time.Second, time.Hour} {
		before := time.Now().Add(-ago)
		if err := os.Chtimes(meta, before, before); err != nil {
			t.Fatal(err)
		}
		checktest.Must(s.Acquire(t.Context(), "app"))(t).Release()
		used := checktest.Must(s.Get(t.Context(), "app"))(t).UsedAt
		if updated := !used.Equal(before); updated != (ago > time.Minute) {
			t.Errorf("used %v ago: updated is %v", ago, updated)
		}
	}
}

func TestStore_Ensure_errors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for ref, want := range map[string]cay.Code{"a b": cay.Invalid, "sha256:" + strings.Repeat("0", 64): cay.NotFound} {
		if _, err := s.Ensure(t.Context(), ref, nil); cay.CodeOf(err) != want {
			t.Errorf("Ensure(%q): %v, want %s", ref, err, want)
		}
	}
	if _, err := s.Build(t.Context(), "windows", nil); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("Build: %v, want not_found", err)
	}
}

func TestStore_noSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs a small file system: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s := open(t, dir, image.Options{})
	reg := newRegistry(t)
	ref := reg.push(t, "app", imageOf(t, layerOf(t, tarOf(t, file("f", noise(3<<20)))), layerOf(t, tarOf(t, file("g", noise(100<<10))))))
	half := reg.push(t, "half", imageOf(t, layerOf(t, tarOf(t, file("f", noise(600<<10)))))) // room to download, not to unpack
	tests := map[string]func() error{
		"pull":            func() error { _, err := s.Pull(t.Context(), ref, nil); return err },
		"pull and unpack": func() error { _, err := s.Pull(t.Context(), half, nil); return err },
		"import": func() error {
			_, err := s.Import(t.Context(), "app", bytes.NewReader(tarOf(t, file("f", noise(2<<20)))), nil)
			return err
		},
		"tool": func() error {
			_, err := s.Tool(t.Context(), "guest", map[string][]byte{"guest": []byte(noise(2 << 20))})
			return err
		},
	}
	for name, f := range tests {
		if err := f(); cay.CodeOf(err) != cay.NoSpace {
			t.Errorf("%s: got %v, want no_space", name, err)
		}
		wantClean(t, dir)
	}
}

func TestStore_Tool(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	files := map[string][]byte{"guest": []byte("program"), "ca.pem": []byte("certificate")}
	var paths []string
	for range 2 {
		paths = append(paths, checktest.Must(s.Tool(t.Context(), "guest", files))(t))
	}
	if paths[0] != paths[1] {
		t.Errorf("equal content is at %q", paths)
	}
	tree := rootfstest.Read(t, paths[0])
	if g := tree["/guest"]; string(g.Data) != "program" || g.Perm() != 0o755 || g.UID != 0 {
		t.Errorf("/guest is %+v", g)
	}
	files["guest"] = []byte("newer")
	if p := checktest.Must(s.Tool(t.Context(), "guest", files))(t); p == paths[0] {
		t.Error("other content is at the same path")
	}
	if _, err := s.Tool(t.Context(), "../x", files); err == nil {
		t.Error("no error for a name with dots")
	}
	wantClean(t, dir)
}

func TestStore_Program(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, image.Options{})
	script := []byte("#!/bin/sh\necho run\n")
	path := checktest.Must(s.Program(t.Context(), "cay-sentry", "0a1b", script))(t)
	if out, err := exec.Command(path).CombinedOutput(); err != nil || string(out) != "run\n" {
		t.Errorf("%s: %q, %v", path, out, err)
	}
	if again := checktest.Must(s.Program(t.Context(), "cay-sentry", "0a1b", nil))(t); again != path {
		t.Errorf("the same program is at %s, too", again)
	}
	if other := checktest.Must(s.Program(t.Context(), "cay-sentry", "0a1c", script))(t); other == path {
		t.Error("another program is at the same path")
	}
	for _, id := range []string{"", "../x"} {
		if _, err := s.Program(t.Context(), "cay-sentry", id, script); err == nil {
			t.Errorf("no error for id %q", id)
		}
	}
	wantClean(t, dir)
}

func TestCheckRoot(t *testing.T) {
	t.Parallel()
	if err := image.CheckRoot(&sandbox.Image{Source: image.SourceRuntime, Refs: []string{"node24"}}); cay.CodeOf(err) != cay.Invalid ||
		!strings.Contains(err.Error(), "node24") {
		t.Errorf("got %v, want invalid", err)
	}
	if err := image.CheckRoot(&sandbox.Image{Source: image.SourceDebian}); err != nil {
		t.Error(err)
	}
}

// TestStore_Build_npm serves wrong packages: nothing may come of them.
func TestStore_Build_npm(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		answer http.HandlerFunc
		want   cay.Code
	}{
		"wrong content":    {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "not node") }, cay.Invalid},
		"no such package":  {http.NotFound, cay.Unavailable},
		"registry is down": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, cay.Unavailable},
	}
	for name, tt := range answers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(tt.answer)
			defer srv.Close()
			s := open(t, t.TempDir(), image.Options{NPMRegistry: srv.URL})
			if _, err := s.Build(t.Context(), "node24", nil); cay.CodeOf(err) != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if images := checktest.Must(s.List(t.Context()))(t); len(images) > 0 {
				t.Errorf("left %v", images)
			}
		})
	}
	s := open(t, t.TempDir(), image.Options{NPMRegistry: "not a url"})
	if _, err := s.Build(t.Context(), "node24", nil); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("bad address: got %v, want invalid", err)
	}
	s = open(t, t.TempDir(), image.Options{Arch: "mips", NPMRegistry: "http://127.0.0.1:1"})
	if _, err := s.Build(t.Context(), "node24", nil); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("other architecture: got %v, want not_supported", err)
	}
}
