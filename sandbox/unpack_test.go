package sandbox

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

// archive packs headers; a regular file holds its own name.
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(h.Name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// confine unpacks an archive beside a canary, and fails if anything outside the
// destination directory has changed.
func confine(t testing.TB, data []byte) (dir string, err error) {
	t.Helper()
	up := t.TempDir()
	canary := filepath.Join(up, "canary")
	if err := os.WriteFile(canary, []byte("alive"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(up, "dir")
	err = unpack(bytes.NewReader(data), dir)
	if b, cerr := os.ReadFile(canary); cerr != nil || string(b) != "alive" {
		t.Errorf("the canary is %q, %v", b, cerr)
	}
	if fi, cerr := os.Stat(canary); cerr != nil || fi.Mode() != 0o600 {
		t.Errorf("the canary is %v", fi.Mode())
	}
	if entries, cerr := os.ReadDir(up); cerr != nil || len(entries) > 2 {
		t.Errorf("beside the directory: %v, %v", entries, cerr)
	}
	return dir, err
}

func TestUnpack_Hostile(t *testing.T) {
	t.Parallel()
	file := func(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
	}
	for name, headers := range map[string][]tar.Header{
		"upwards":                {file("d/../../canary")},
		"upwards at once":        {file("../canary")},
		"upwards as the first":   {file("../../canary")},
		"absolute":               {file("/canary")},
		"through a link":         {link("d/l", ".."), file("d/l/canary")},
		"through a chain":        {link("d/a", "."), link("d/a/b", ".."), file("d/b/canary")},
		"hard link out":          {{Typeflag: tar.TypeLink, Name: "d/h", Linkname: "../canary"}, file("d/h")},
		"hard link through link": {link("d/l", ".."), {Typeflag: tar.TypeLink, Name: "d/h", Linkname: "d/l/canary"}, file("d/h")},
	} {
		if _, err := confine(t, archive(t, headers...)); err == nil {
			t.Errorf("%s: it was unpacked", name)
		}
	}
	for name, headers := range map[string][]tar.Header{
		"over a link":         {link("d/l", "../canary"), file("d/l")},
		"directory over link": {link("d/l", ".."), {Typeflag: tar.TypeDir, Name: "d/l/", Mode: 0o777}, file("d/l/canary")},
		"devices":             {{Typeflag: tar.TypeChar, Name: "d/null", Devmajor: 1, Devminor: 3}, {Typeflag: tar.TypeFifo, Name: "d/pipe"}},
	} {
		if _, err := confine(t, archive(t, headers...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	dir, err := confine(t, archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/sub/suid", Mode: 0o6755},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/closed/", Mode: 0o500},
		tar.Header{Typeflag: tar.TypeReg, Name: "d/closed/in"},
		tar.Header{Typeflag: tar.TypeLink, Name: "d/hard", Linkname: "d/sub/suid"},
	))
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]fs.FileMode{".": fs.ModeDir | 0o700, "sub/suid": 0o755, "hard": 0o755, "closed": fs.ModeDir | 0o700, "closed/in": 0o755} {
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", name, fi.Mode(), err, mode)
		}
	}
	if err := unpack(strings.NewReader("no archive"), dir); cay.CodeOf(err) != cay.Internal {
		t.Errorf("rubbish: %v", err)
	}
}

// No archive writes outside of the directory.
func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "d/l", Linkname: ".."}, tar.Header{Typeflag: tar.TypeReg, Name: "d/l/canary"}))
	f.Add(archive(f, tar.Header{Typeflag: tar.TypeReg, Name: "d/a"}, tar.Header{Typeflag: tar.TypeLink, Name: "d/b", Linkname: "d/a"}))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = confine(t, data) })
}

func TestTail(t *testing.T) {
	t.Parallel()
	w := &tail{limit: 4}
	for _, tt := range []struct {
		write, want string
		cut         bool
	}{{"ab", "ab", false}, {"cd", "abcd", false}, {"e", "bcde", true}, {"fghi", "fghi", true}, {"0123456789", "6789", true}} {
		if n, err := w.Write([]byte(tt.write)); n != len(tt.write) || err != nil {
			t.Fatal(n, err)
		}
		if got := string(w.bytes()); got != tt.want || w.cut != tt.cut {
			t.Errorf("after %q: %q, cut %v", tt.write, got, w.cut)
		}
	}
}
