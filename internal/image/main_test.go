package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/rootfs/rootfstest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/sandbox"
)

// childEnv makes the test binary one of the programs in children instead.
const childEnv = "CAY_IMAGE_TEST_CHILD"

// children are the programs of other processes in tests. They get the store's directory
// and a reference as arguments, and run until they finish or are killed.
var children = map[string]func(s *image.Store, ref string) error{
	"pull": func(s *image.Store, ref string) error {
		img, err := s.Pull(context.Background(), ref, nil)
		if err != nil {
			return err
		}
		fmt.Println(img.Digest)
		return nil
	},
	// lease takes a lease, prints a line, and holds the lease until stdin ends.
	"lease": func(s *image.Store, ref string) error {
		l, err := s.Acquire(context.Background(), ref)
		if err != nil {
			return err
		}
		defer l.Release()
		fmt.Println(l.Image.Digest)
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	},
}

func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childEnv)]; ok {
		s, err := image.Open(os.Args[1], image.Options{})
		if err == nil {
			err = child(s, os.Args[2])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// patience is how long a test waits for another process.
const patience = time.Minute

// await waits until ch is closed.
func await(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatal("the other process does not come to it")
	}
}

// child returns a command that runs one of children. It is killed if it still runs at the
// end of the test, or after patience.
func child(t *testing.T, name, dir, ref string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, dir, ref)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// open opens a store that leaves nothing running behind.
func open(t testing.TB, dir string, opts image.Options) *image.Store {
	t.Helper()
	if opts.Transport == nil {
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		opts.Transport = tr
	}
	s, err := image.Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	s.RetryAtOnce()
	return s
}

func newStore(t testing.TB) *image.Store { t.Helper(); return open(t, t.TempDir(), image.Options{}) }

// member is a member of a layer; a regular file by default.
type member struct {
	tar.Header
	content string
}

func file(name, content string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func tarOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.Size = int64(len(m.content))
		if err := w.WriteHeader(&m.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layerOf makes a layer of a tar archive.
func layerOf(t testing.TB, b []byte, opts ...tarball.LayerOption) v1.Layer {
	t.Helper()
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf makes an image for this machine.
func imageOf(t testing.TB, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return withConfig(t, img, func(c *v1.ConfigFile) {
		c.OS, c.Architecture = "linux", runtime.GOARCH
		c.Config = v1.Config{
			Env: []string{"PATH=/bin", "broken"}, User: "app:app", WorkingDir: "/srv",
			Entrypoint: []string{"/entry"}, Cmd: []string{"-v"},
			Volumes: map[string]struct{}{"/etc": {}}, Labels: map[string]string{"made": "here"},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}, "53/udp": {}},
		}
	})
}

func withConfig(t testing.TB, img v1.Image, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	change(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

// contents leases an image and returns its tree.
func contents(t testing.TB, s *image.Store, ref string) rootfstest.Tree {
	t.Helper()
	l, err := s.Acquire(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Release)
	return rootfstest.Read(t, l.Path)
}

// wantClean fails the test if a store has anything but images.
func wantClean(t testing.TB, dir string) {
	t.Helper()
	for _, d := range []string{"tmp", "blobs", "locks"} {
		entries, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("%s/%s is left in the store", d, e.Name())
		}
	}
}

// importFile puts an image with one file into a store.
func importFile(t testing.TB, s *image.Store, ref, content string) *sandbox.Image {
	t.Helper()
	img, err := s.Import(t.Context(), ref, bytes.NewReader(tarOf(t, file("f", content))), nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// waitForSize waits until the partial downloads of a store have n bytes.
func waitForSize(t testing.TB, dir string, n int64) {
	t.Helper()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(watch), "inotify")
	defer events.Close()
	if err := events.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.InotifyAddWatch(watch, filepath.Join(dir, "blobs"), unix.IN_MODIFY|unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	for {
		files, err := filepath.Glob(filepath.Join(dir, "blobs", "*.partial"))
		if err != nil {
			t.Fatal(err)
		}
		var size int64
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				size += info.Size()
			}
		}
		if size >= n {
			return
		}
		if _, err := events.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
}
