package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/internal/image/rootfs/rootfstest"
	"github.com/cayhq/cay/internal/seedtest"
)

// TestWriteTo_sizes has directories, links and files around the sizes where the
// layout of the image changes.
func TestWriteTo_sizes(t *testing.T) {
	t.Parallel()
	tree := newTree(t, rootfs.Limits{Entries: 100_000, Bytes: 1 << 30})
	attr := rootfs.Attr{Mode: 0o755}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	contents := map[string]string{}
	for _, n := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20} {
		name := fmt.Sprintf("/file%d", n)
		contents[name] = strings.Repeat("x", n)
		must(tree.WriteFile(name, strings.NewReader(contents[name]), int64(n), attr))
	}
	targets := map[string]string{}
	for _, n := range []int{1, 64, 4031, 4032, 4033, 4095} {
		name := fmt.Sprintf("/link%d", n)
		targets[name] = strings.Repeat("t", n)
		must(tree.Symlink(name, targets[name], attr))
	}
	// 13 bytes an entry: from empty through one block to many.
	for _, n := range []int{0, 1, 100, 306, 307, 308, 309, 310, 311, 312, 313, 314, 315, 316, 5000} {
		name := fmt.Sprintf("/dir%d", n)
		must(tree.Mkdir(name, attr))
		for i := range n {
			must(tree.Mkdir(fmt.Sprintf("%s/%04x", name, i), attr))
		}
	}
	for _, name := range []string{"/!", "/-", "/...", "/..a", "/ ", "/\xff\xfe", "/" + strings.Repeat("n", 255)} {
		must(tree.Mkdir(name, attr))
	}
	must(tree.Mkdir("/deep"+strings.Repeat("/d", 300), attr))

	got, _ := write(t, tree)
	for name, want := range contents {
		if string(got[name].Data) != want {
			t.Errorf("%s has %d bytes of other content", name, len(got[name].Data))
		}
	}
	for name, want := range targets {
		if got[name].Target != want {
			t.Errorf("%s has a target of %d bytes", name, len(got[name].Target))
		}
	}
	count := map[string]int{}
	for p := range got {
		count[filepath.Dir(p)]++
	}
	for _, n := range []int{1, 100, 306, 310, 316, 5000} {
		if name := fmt.Sprintf("/dir%d", n); count[name] != n {
			t.Errorf("%s has %d entries", name, count[name])
		}
	}
	if _, ok := got["/deep"+strings.Repeat("/d", 300)]; !ok {
		t.Error("the deep directory is missing")
	}
}

// TestWriteTo_digest: equal trees have equal digests, however they were made, and
// different trees have different digests.
func TestWriteTo_digest(t *testing.T) {
	t.Parallel()
	digest := func(layers ...[]*tar.Header) rootfs.Digest {
		t.Helper()
		tree := newTree(t, defaultLimits)
		for _, l := range layers {
			// The same number for all, so that contents agree.
			if err := tree.Apply(t.Context(), bytes.NewReader(pack(t, 1, l...))); err != nil {
				t.Fatal(err)
			}
		}
		_, d := write(t, tree)
		return d
	}
	want := digest([]*tar.Header{dir("d"), file("d/1"), file("f"), hardlink("g", "f")})
	for name, layers := range map[string][][]*tar.Header{
		"other order":    {{dir("d"), file("f"), file("d/1"), hardlink("g", "f")}},
		"several layers": {{file("gone"), file("f"), hardlink("g", "f")}, {file(".wh.gone"), dir("d"), file("d/1")}},
	} {
		if got := digest(layers...); got != want {
			t.Errorf("%s: digest %s, want %s", name, got, want)
		}
	}
	if got := digest([]*tar.Header{dir("d"), file("d/1"), file("f"), file("g")}); got == want {
		t.Error("another tree has the same digest")
	}
}

func TestTree_MountPoint(t *testing.T) {
	t.Parallel()
	tree := newTree(t, defaultLimits)
	err := apply(t, tree, []*tar.Header{
		symlink("proc", "/etc"), file("etc/passwd"), file("sys"), symlink("vercel", "../.."),
		file("dev/pts"), symlink("dev/null", "/etc/passwd"), file("tmp/kept"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"proc", "sys", "dev", "vercel/runtimes"} {
		tree.MountPoint(p, 0o755, false)
	}
	tree.MountPoint("tmp", 0o1777, true)
	got, _ := write(t, tree)
	want := "/dev /etc /etc/passwd = etc/passwd@1 /proc /sys /tmp /tmp/kept = tmp/kept@1 /vercel /vercel/runtimes"
	if s := strings.Join(show(got), " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	if p := got["/tmp"].Perm(); p != 0o1777 {
		t.Errorf("/tmp has mode %o", p)
	}
}

func TestTree_ReadFile(t *testing.T) {
	t.Parallel()
	tree := newTree(t, defaultLimits)
	if err := apply(t, tree, []*tar.Header{file("etc/os"), symlink("l", "/etc/os"), dir("d")}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etc/os", "/l"} {
		if b, err := tree.ReadFile(name, 100); err != nil || string(b) != "etc/os@1" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, name := range []string{"none", "d", "etc/os/x"} {
		if _, err := tree.ReadFile(name, 100); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := tree.ReadFile("etc/os", 3); err == nil {
		t.Error("no error for a file over the limit")
	}
}

// TestTree_model compares random layers with a plain map of paths.
func TestTree_model(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(rt *rapid.T) {
		tmp, err := os.MkdirTemp("", "rootfs")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(tmp)
		spool, err := os.Create(filepath.Join(tmp, "spool"))
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		tree := rootfs.New(spool, defaultLimits)
		model := map[string]string{} // path of a file -> content
		path := rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 2, 3), func(s []string) string {
			return strings.Join(s, "/")
		})
		for layer := range rapid.IntRange(1, 4).Draw(rt, "layers") {
			upper := map[string]string{}
			var members []*tar.Header
			for range rapid.IntRange(0, 6).Draw(rt, "members") {
				p := path.Draw(rt, "path") + ".f"
				if rapid.Bool().Draw(rt, "whiteout") {
					d := filepath.Dir(p)
					for q := range model {
						if strings.HasPrefix(q, d+"/") {
							delete(model, q)
						}
					}
					members = append(members, file(d+"/.wh..wh..opq"))
					continue
				}
				upper[p] = fmt.Sprintf("%s@%d", p, layer)
				members = append(members, file(p))
			}
			if err := tree.Apply(t.Context(), bytes.NewReader(pack(t, layer, members...))); err != nil {
				rt.Fatal(err)
			}
			for p, c := range upper {
				model[p] = c
			}
		}
		out, err := os.Create(filepath.Join(tmp, "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := tree.WriteTo(out, [16]byte{}); err != nil {
			rt.Fatal(err)
		}
		got := map[string]string{}
		for p, f := range rootfstest.Read(t, out.Name()) {
			if f.Data != nil {
				got[p[1:]] = string(f.Data)
			}
		}
		if len(got) != len(model) {
			rt.Fatalf("got %v, want %v", got, model)
		}
		for p, want := range model {
			if got[p] != want {
				rt.Fatalf("%s is %q, want %q", p, got[p], want)
			}
		}
	})
}
