package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
)

// written writes a tree to a file that is open until the test ends.
func written(t testing.TB, tree *rootfs.Tree) (*os.File, int64, rootfs.Digest) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	d, err := tree.WriteTo(f, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return f, info.Size(), d
}

// rich returns a tree with every type of file.
func rich(t testing.TB) *rootfs.Tree {
	t.Helper()
	tree := newTree(t, rootfs.Limits{Entries: 100_000, Bytes: 1 << 30})
	setuid := file("bin/su")
	setuid.Mode, setuid.Uid, setuid.Gid = 0o4755, 1<<31, 7
	if err := apply(t, tree, []*tar.Header{
		dir("bin"), setuid, file("etc/a"), hardlink("etc/b", "etc/a"), symlink("lib", "usr/lib"), hardlink("lib64", "lib"), file("usr/lib/x"), dir("empty"),
	}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 4096, 4097, 1 << 20} {
		if err := tree.WriteFile(fmt.Sprintf("sizes/%d", n), io.LimitReader(zeros{}, int64(n)), int64(n), rootfs.Attr{Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{306, 307, 308, 309, 310, 311, 5000} {
		for i := range n {
			if err := tree.Mkdir(fmt.Sprintf("dirs/%d/%04x", n, i), rootfs.Attr{Mode: 0o711}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range []int{1, 4031, 4032, 4033, 4095} {
		if err := tree.Symlink(fmt.Sprintf("links/%d", n), strings.Repeat("t", n), rootfs.Attr{}); err != nil {
			t.Fatal(err)
		}
	}
	return tree
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// An image that is read and written again has the same bytes.
func TestAddImage_Digest(t *testing.T) {
	t.Parallel()
	f, size, want := written(t, rich(t))
	again := newTree(t, rootfs.Limits{Entries: 100_000, Bytes: 1 << 30})
	if err := again.AddImage(t.Context(), f, size, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, got := written(t, again); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func TestAddImage(t *testing.T) {
	t.Parallel()
	base := newTree(t, defaultLimits)
	if err := apply(t, base, []*tar.Header{file("a"), file("d/1"), file("d/2"), hardlink("d/3", "d/2"), symlink("opt", "d")}); err != nil {
		t.Fatal(err)
	}
	other := newTree(t, defaultLimits)
	if err := apply(t, other, []*tar.Header{file("bin/node")}); err != nil {
		t.Fatal(err)
	}
	baseFile, baseSize, _ := written(t, base)
	otherFile, otherSize, _ := written(t, other)

	tree := newTree(t, defaultLimits)
	if err := tree.AddImage(t.Context(), baseFile, baseSize, ""); err != nil {
		t.Fatal(err)
	}
	layer := pack(t, 2, file(".wh.a"), dir("d"), file("d/.wh..wh..opq"), file("d/new"))
	if err := tree.Apply(t.Context(), bytes.NewReader(layer)); err != nil {
		t.Fatal(err)
	}
	if err := tree.AddImage(t.Context(), otherFile, otherSize, "opt/runtime"); err != nil {
		t.Fatal(err)
	}
	got, _ := write(t, tree)
	want := []string{"/d", "/d/new = d/new@2", "/opt", "/opt/runtime", "/opt/runtime/bin", "/opt/runtime/bin/node = bin/node@1"}
	if lines := show(got); !slices.Equal(lines, want) {
		t.Errorf("got  %q\nwant %q", lines, want)
	}
	if b, err := tree.ReadFile("opt/runtime/bin/node", 100); err != nil || string(b) != "bin/node@1" {
		t.Errorf("ReadFile: %q, %v", b, err)
	}
}

func TestAddImage_Limits(t *testing.T) {
	t.Parallel()
	f, size, _ := written(t, rich(t))
	for _, l := range []rootfs.Limits{{Entries: 100, Bytes: 1 << 30}, {Entries: 100_000, Bytes: 1 << 20}} {
		if err := newTree(t, l).AddImage(t.Context(), f, size, ""); cay.CodeOf(err) != cay.TooLarge {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

// For any damage, reading ends with an error or with a tree that can be written.
func FuzzAddImage(f *testing.F) {
	tree := newTree(f, defaultLimits)
	if err := apply(f, tree, []*tar.Header{file("a"), dir("d"), file("d/b"), hardlink("d/c", "a"), symlink("l", "d")}); err != nil {
		f.Fatal(err)
	}
	img, size, _ := written(f, tree)
	whole := make([]byte, size)
	if _, err := img.ReadAt(whole, 0); err != nil {
		f.Fatal(err)
	}
	f.Add(0, byte(0))
	f.Add(4096, byte(1))
	f.Fuzz(func(t *testing.T, at int, b byte) {
		damaged := slices.Clone(whole)
		if at >= 0 && at < len(damaged) {
			damaged[at] = b
		} else {
			damaged = damaged[:uint(at)%uint(len(damaged))]
		}
		tree := newTree(t, rootfs.Limits{Entries: 1000, Bytes: 1 << 20})
		if err := tree.AddImage(t.Context(), bytes.NewReader(damaged), int64(len(damaged)), ""); err != nil {
			return
		}
		out, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := tree.WriteTo(out, [16]byte{}); err != nil {
			t.Fatal(err)
		}
	})
}
