package rootfs_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/internal/image/rootfs/rootfstest"
)

var defaultLimits = rootfs.Limits{Entries: 10_000, Bytes: 1 << 30}

func newTree(t testing.TB, l rootfs.Limits) *rootfs.Tree {
	t.Helper()
	spool, err := os.Create(filepath.Join(t.TempDir(), "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spool.Close() })
	return rootfs.New(spool, l)
}

// write writes the tree and reads it back.
func write(t testing.TB, tree *rootfs.Tree) (rootfstest.Tree, rootfs.Digest) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := tree.WriteTo(f, [16]byte{})
	if err != nil {
		t.Fatal(err)
	}
	return rootfstest.Read(t, f.Name()), d
}

// Members of a layer.
func dir(name string) *tar.Header { return &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755} }
func file(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}
func symlink(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hardlink(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// pack makes a layer. The content of a file is its name and the layer's number, so that
// tests can tell the layer of a file.
func pack(t testing.TB, layer int, members ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range members {
		h := *h
		content := ""
		if h.Typeflag == tar.TypeReg {
			content = fmt.Sprintf("%s@%d", h.Name, layer)
			h.Size = int64(len(content))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func apply(t testing.TB, tree *rootfs.Tree, layers ...[]*tar.Header) error {
	t.Helper()
	for i, l := range layers {
		if err := tree.Apply(t.Context(), bytes.NewReader(pack(t, i+1, l...))); err != nil {
			return err
		}
	}
	return nil
}

// show lists a tree as "path", "path -> target", "path = content".
func show(tree rootfstest.Tree) []string {
	var lines []string
	for _, p := range tree.Paths() {
		switch f := tree[p]; {
		case p == "/":
		case f.Target != "":
			lines = append(lines, p+" -> "+f.Target)
		case f.Data != nil:
			lines = append(lines, p+" = "+string(f.Data))
		default:
			lines = append(lines, p)
		}
	}
	return lines
}

func TestTree_Apply(t *testing.T) {
	t.Parallel()
	type layers = [][]*tar.Header
	tests := []struct {
		name   string
		layers layers
		want   []string
	}{
		{"missing parents are made", layers{{file("a/b/c")}}, []string{"/a", "/a/b", "/a/b/c = a/b/c@1"}},
		{"later file wins", layers{{file("f")}, {file("f")}}, []string{"/f = f@2"}},
		{"directory is merged", layers{{dir("d"), file("d/1")}, {dir("d"), file("d/2")}}, []string{"/d", "/d/1 = d/1@1", "/d/2 = d/2@2"}},
		{"file replaces directory", layers{{dir("d"), file("d/1")}, {file("d")}}, []string{"/d = d@2"}},
		{"directory replaces file", layers{{file("d")}, {dir("d")}}, []string{"/d"}},
		{"link replaces directory", layers{{dir("d"), file("d/1"), dir("e")}, {symlink("d", "e"), file("d/2")}},
			[]string{"/d -> e", "/e", "/e/2 = d/2@2"}},

		{"whiteout of a file", layers{{file("d/1"), file("d/2")}, {file("d/.wh.1")}}, []string{"/d", "/d/2 = d/2@1"}},
		{"whiteout of a directory", layers{{file("d/e/1")}, {file(".wh.d")}}, nil},
		{"whiteout of a link does not follow it", layers{{file("f"), symlink("l", "f")}, {file(".wh.l")}}, []string{"/f = f@1"}},
		{"whiteout of nothing", layers{{file("f")}, {file(".wh.g"), file("no/such/.wh.dir")}}, []string{"/f = f@1"}},
		{"whiteout spares its own layer, before", layers{{file("d/1")}, {file("d/2"), file(".wh.d")}}, []string{"/d", "/d/2 = d/2@2"}},
		{"whiteout spares its own layer, after", layers{{file("d/1")}, {file(".wh.d"), file("d/2")}}, []string{"/d", "/d/2 = d/2@2"}},
		{"whiteout through a link", layers{{file("usr/lib/f"), symlink("lib", "usr/lib")}, {file("lib/.wh.f")}},
			[]string{"/lib -> usr/lib", "/usr", "/usr/lib"}},
		{"opaque directory", layers{{file("d/1"), file("d/e/2")}, {dir("d"), file("d/3"), file("d/.wh..wh..opq")}},
			[]string{"/d", "/d/3 = d/3@2"}},
		{"opaque directory keeps its own layer's below", layers{{file("d/e/1")}, {file("d/.wh..wh..opq"), file("d/e/2")}},
			[]string{"/d", "/d/e", "/d/e/2 = d/e/2@2"}},
		{"opaque root", layers{{file("d/1"), file("f")}, {file(".wh..wh..opq"), file("g")}}, []string{"/g = g@2"}},
		{"AUFS bookkeeping", layers{{file("f")}, {file(".wh..wh.aufs"), dir(".wh..wh.plnk")}}, []string{"/f = f@1"}},
		{"whiteout comes back later", layers{{file("f")}, {file(".wh.f")}, {file("f")}}, []string{"/f = f@3"}},

		{"dots stay below the root", layers{{file("../../etc/passwd"), file("/a/../../../b")}},
			[]string{"/b = /a/../../../b@1", "/etc", "/etc/passwd = ../../etc/passwd@1"}},
		{"absolute names", layers{{file("/f")}}, []string{"/f = /f@1"}},
		{"writes through a link stay below the root", layers{{symlink("l", "../../../../etc")}, {file("l/passwd")}},
			[]string{"/etc", "/etc/passwd = l/passwd@2", "/l -> ../../../../etc"}},
		{"writes through an absolute link stay below the root", layers{{symlink("l", "/etc")}, {file("l/passwd")}},
			[]string{"/etc", "/etc/passwd = l/passwd@2", "/l -> /etc"}},
		{"final link is replaced, not followed", layers{{symlink("l", "/etc/passwd"), file("etc/passwd")}, {file("l")}},
			[]string{"/etc", "/etc/passwd = etc/passwd@1", "/l = l@2"}},

		{"hard link across layers", layers{{file("f")}, {hardlink("g", "f")}}, []string{"/f = f@1", "/g = f@1"}},
		{"hard link outlives what it was made from", layers{{file("f")}, {hardlink("d/g", "/f")}, {file(".wh.f")}}, []string{"/d", "/d/g = f@1"}},
		{"hard link to a symbolic link", layers{{symlink("l", "f"), hardlink("m", "l")}}, []string{"/l -> f", "/m -> f"}},
		{"hard link with dots", layers{{file("f"), hardlink("d/g", "../../f")}}, []string{"/d", "/d/g = f@1", "/f = f@1"}},
		{"devices and fifos are left out", layers{{
			{Typeflag: tar.TypeChar, Name: "dev/null", Devmajor: 1, Devminor: 3},
			{Typeflag: tar.TypeBlock, Name: "dev/sda"}, {Typeflag: tar.TypeFifo, Name: "fifo"}, file("f")}}, []string{"/f = f@1"}},
		{"character device 0:0 hides nothing", layers{{file("f")}, {{Typeflag: tar.TypeChar, Name: "f"}}}, []string{"/f = f@1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tree := newTree(t, defaultLimits)
			if err := apply(t, tree, tt.layers...); err != nil {
				t.Fatal(err)
			}
			got, _ := write(t, tree)
			if lines := show(got); !slices.Equal(lines, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(lines, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

func TestTree_Apply_rejects(t *testing.T) {
	t.Parallel()
	loop := []*tar.Header{symlink("a", "b"), symlink("b", "a"), file("a/f")}
	tests := []struct {
		name   string
		layer  []*tar.Header
		limits rootfs.Limits
		want   cay.Code
	}{
		{"whiteout of the root", []*tar.Header{file(".wh..")}, defaultLimits, cay.Invalid},
		{"whiteout of the parent", []*tar.Header{dir("d"), file("d/.wh...")}, defaultLimits, cay.Invalid},
		{"whiteout of nothing", []*tar.Header{file(".wh.")}, defaultLimits, cay.Invalid},
		{"file as the root", []*tar.Header{symlink("/", "x")}, defaultLimits, cay.Invalid},
		{"loop of links", loop, defaultLimits, cay.Invalid},
		{"path through a file", []*tar.Header{file("f"), file("f/g")}, defaultLimits, cay.Invalid},
		{"hard link to nothing", []*tar.Header{hardlink("l", "f")}, defaultLimits, cay.Invalid},
		{"hard link to a directory", []*tar.Header{dir("d"), hardlink("l", "d")}, defaultLimits, cay.Invalid},
		{"hard link to the root", []*tar.Header{hardlink("l", "..")}, defaultLimits, cay.Invalid},
		{"long name", []*tar.Header{file(strings.Repeat("n", 256))}, defaultLimits, cay.Invalid},
		{"long path", []*tar.Header{file(strings.Repeat("d/", 2049) + "f")}, defaultLimits, cay.Invalid},
		{"negative owner", []*tar.Header{{Typeflag: tar.TypeReg, Name: "f", Uid: -1}}, defaultLimits, cay.Invalid},
		{"many files", []*tar.Header{file("1"), file("2"), file("3")}, rootfs.Limits{Entries: 2, Bytes: 1 << 20}, cay.TooLarge},
		{"many whiteouts", []*tar.Header{file(".wh.1"), file(".wh.2"), file(".wh.3")}, rootfs.Limits{Entries: 2, Bytes: 1 << 20}, cay.TooLarge},
		{"many implied directories", []*tar.Header{file("1/2/3/4")}, rootfs.Limits{Entries: 2, Bytes: 1 << 20}, cay.TooLarge},
		{"many bytes", []*tar.Header{file("1"), file("2")}, rootfs.Limits{Entries: 10, Bytes: 5}, cay.TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := apply(t, newTree(t, tt.limits), tt.layer)
			if got := cay.CodeOf(err); got != tt.want {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
		})
	}
}

func TestTree_Apply_keepsMetadata(t *testing.T) {
	t.Parallel()
	when := time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)
	tree := newTree(t, defaultLimits)
	err := apply(t, tree,
		[]*tar.Header{
			{Typeflag: tar.TypeDir, Name: "./", Mode: 0o711, ModTime: when},
			{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755, ModTime: when},
			{Typeflag: tar.TypeReg, Name: "owned", Mode: 0o2640, Uid: 100_000, Gid: 4_000_000_000, ModTime: when},
			{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o1777, ModTime: when},
			{Typeflag: tar.TypeReg, Name: "old", ModTime: time.Unix(-5, 0), Format: tar.FormatPAX},
			hardlink("su2", "su"),
			{Typeflag: tar.TypeReg, Name: strings.Repeat("long/", 40) + "name", Mode: 0o600, ModTime: when},
			{Typeflag: tar.TypeReg, Name: strings.Repeat("gnu/", 40) + "name", Mode: 0o601, ModTime: when, Format: tar.FormatGNU},
			{Typeflag: tar.TypeReg, Name: "attrs", ModTime: when, Format: tar.FormatPAX, PAXRecords: map[string]string{
				"SCHILY.xattr.security.capability": "\x01\x00\x00\x02", "SCHILY.xattr.user.overlay.opaque": "y"}},
		},
		[]*tar.Header{{Typeflag: tar.TypeDir, Name: "tmp", Mode: 0o700, ModTime: when.Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	got, _ := write(t, tree)
	for path, want := range map[string]rootfstest.File{
		"/":      {Mode: 0o711, Mtime: when.Unix()},
		"/su":    {Mode: 0o4755, Mtime: when.Unix()},
		"/owned": {Mode: 0o2640, UID: 100_000, GID: 4_000_000_000, Mtime: when.Unix()},
		"/tmp":   {Mode: 0o700, Mtime: when.Add(time.Hour).Unix()},
		"/old":   {Mtime: -5},
		"/attrs": {Mtime: when.Unix()},
		"/" + strings.Repeat("long/", 40) + "name": {Mode: 0o600, Mtime: when.Unix()},
		"/" + strings.Repeat("gnu/", 40) + "name":  {Mode: 0o601, Mtime: when.Unix()},
	} {
		f, ok := got[path]
		if !ok || f.Perm() != want.Mode || f.UID != want.UID || f.GID != want.GID || f.Mtime != want.Mtime {
			t.Errorf("%s is %o %d:%d %d, want %+v", path, f.Perm(), f.UID, f.GID, f.Mtime, want)
		}
	}
	if su := got["/su"]; su.Nlink != 2 || su.Nid != got["/su2"].Nid {
		t.Errorf("/su and /su2 are not hard links: %d links", su.Nlink)
	}
}

// TestTree_Apply_sparse has a large file that consists mostly of holes, in each of GNU
// tar's sparse formats.
func TestTree_Apply_sparse(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tar"); err != nil {
		t.Skip(err)
	}
	const size = 64 << 20
	content := make([]byte, size)
	content[size/2], content[size-100_000] = 1, 2
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int64{size / 2, size - 100_000} {
		if _, err := f.WriteAt(content[at:at+1], at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "pax"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			archive, err := exec.Command("tar", "-C", dir, "--sparse", "--format="+format, "-cf", "-", "f").Output()
			if err != nil {
				t.Fatal(err)
			}
			if len(archive) > 1<<20 {
				t.Fatalf("the archive is not sparse: %d bytes", len(archive))
			}
			tree := newTree(t, defaultLimits)
			if err := tree.Apply(t.Context(), bytes.NewReader(archive)); err != nil {
				t.Fatal(err)
			}
			got, _ := write(t, tree)
			if !bytes.Equal(got["/f"].Data, content) {
				t.Error("the content differs")
			}
			err = newTree(t, rootfs.Limits{Entries: 10, Bytes: size - 1}).Apply(t.Context(), bytes.NewReader(archive))
			if cay.CodeOf(err) != cay.TooLarge {
				t.Errorf("a small archive of a large file: got %v, want too_large", err)
			}
		})
	}
}

func TestTree_Apply_truncated(t *testing.T) {
	t.Parallel()
	whole := pack(t, 1, file("first"), file("second"))
	for _, n := range []int{100, 512 + 3, 1024 + 100, 1536 + 2} {
		if err := newTree(t, defaultLimits).Apply(t.Context(), bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("no error for an archive cut after %d bytes", n)
		}
	}
}

// FuzzTree_Apply applies any two layers. In every case nothing may appear outside the
// opened files, and accepted layers must read back.
func FuzzTree_Apply(f *testing.F) {
	f.Add(pack(f, 1, dir("d"), file("d/1"), symlink("l", "../../.."), symlink("abs", "/")),
		pack(f, 2, file("l/etc/x"), file("abs/../y"), file(".wh.d"), hardlink("h", "l/canary")))
	f.Add(pack(f, 1, file("../../../canary"), symlink("a", "b"), symlink("b", "a")),
		pack(f, 2, file("d/.wh..wh..opq"), file("/..//../canary"), dir("/")))
	f.Add(pack(f, 1, symlink("canary", "canary"), hardlink("x", "canary")), []byte("not a tar"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		top := t.TempDir()
		canary := filepath.Join(top, "canary")
		if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
			t.Fatal(err)
		}
		work := filepath.Join(top, "work")
		if err := os.Mkdir(work, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Chdir(work) // should a relative name ever get to the host
		spool, err := os.Create("spool")
		if err != nil {
			t.Fatal(err)
		}
		defer spool.Close()
		tree := rootfs.New(spool, rootfs.Limits{Entries: 1000, Bytes: 1 << 20})
		for _, l := range [][]byte{lower, upper} {
			if err := tree.Apply(t.Context(), bytes.NewReader(l)); err != nil {
				return
			}
		}
		tree.MountPoint("proc", 0o755, false)
		out, err := os.Create("image")
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		if _, err := tree.WriteTo(out, [16]byte{}); err != nil {
			t.Fatal(err)
		}
		got := rootfstest.Read(t, "image")
		if p := got["/proc"]; p.Perm() != 0o755 || p.Target != "" {
			t.Errorf("/proc is %+v", p)
		}
		for dir, want := range map[string]string{top: "canary work", work: "image spool"} {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if got := strings.Join(names, " "); got != want {
				t.Fatalf("%s has %q, want %q", dir, got, want)
			}
		}
		if b, err := os.ReadFile(canary); err != nil || string(b) != "alive" {
			t.Fatalf("the canary is %q, %v", b, err)
		}
	})
}
