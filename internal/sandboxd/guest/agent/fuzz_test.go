package agent

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

func FuzzUsers(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\n", "root")
	f.Add("a:x:1:2:::\n#c\nb:x:1:3:g:/h:/s\n", "g:x:2:a,b\nh:x:9:b", "b:h")
	f.Add("x:x:99999999999:0:::\n:::::\n", "::\n\x00", "1:4294967295")
	dir := f.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		p, g := filepath.Join(dir, "etc/passwd"), filepath.Join(dir, "etc/group")
		if err := os.WriteFile(p, []byte(passwd), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(g, []byte(group), 0o644); err != nil {
			t.Fatal(err)
		}
		a, err := resolve(spec, p, g)
		if err != nil {
			if c := cay.CodeOf(err); c != cay.Invalid {
				t.Fatalf("%v (%s)", err, c)
			}
			return
		}
		if a.name == "" || a.home == "" || a.shell == "" || len(a.groups) == 0 || len(a.groups) > maxGroups+1 {
			t.Fatalf("%q: %+v", spec, a)
		}
	})
}

func TestUsers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	u := &users{root: dir}
	if a, err := u.lookup("root"); err != nil || a.uid != 0 || a.home != "/root" {
		t.Errorf("root without passwd: %+v, %v", a, err)
	}
	write("passwd", "# comment\nbroken\n"+strings.Repeat("l", 70000)+":x:5:5:::\nann:x:7:70:,,,:/home/ann:/bin/zsh\n8:x:9:90::/eight:\n")
	write("group", "staff:x:50:bob,ann\nann:x:70:\nempty:x:60:\n")
	for spec, want := range map[string]account{
		"ann":       {name: "ann", uid: 7, gid: 70, home: "/home/ann", shell: "/bin/zsh"},
		"7":         {name: "ann", uid: 7, gid: 70, home: "/home/ann", shell: "/bin/zsh"},
		"8":         {name: "8", uid: 9, gid: 90, home: "/eight", shell: "/bin/sh"},
		"ann:empty": {name: "ann", uid: 7, gid: 60, home: "/home/ann", shell: "/bin/zsh"},
		"11:12":     {name: "11", uid: 11, gid: 12, home: "/", shell: "/bin/sh"},
	} {
		a, err := u.lookup(spec)
		if err != nil {
			t.Errorf("%s: %v", spec, err)
			continue
		}
		got := *a
		got.groups = nil
		if got.name != want.name || got.uid != want.uid || got.gid != want.gid || got.home != want.home || got.shell != want.shell {
			t.Errorf("%s: got %+v, want %+v", spec, got, want)
		}
	}
	// A changed file is seen.
	write("passwd", "ann:x:77:70:,,,:/home/ann:/bin/zsh\nnew:x:1:1:::\n")
	if a, err := u.lookup("ann"); err != nil || a.uid != 77 {
		t.Errorf("after a change: %+v, %v", a, err)
	}
}

// For any archive, nothing changes outside of the directory.
func FuzzExtract(f *testing.F) {
	seed := func(members ...tar.Header) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range members {
			if h.Typeflag == tar.TypeReg {
				h.Size = 3
			}
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if h.Typeflag == tar.TypeReg {
				w.Write([]byte("abc"))
			}
		}
		w.Close()
		for options := range uint8(4) {
			f.Add(b.Bytes(), options)
		}
	}
	seed(tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644})
	seed(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "l/x", Typeflag: tar.TypeReg})
	seed(tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../out"}, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o700})
	seed(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/../out"}, tar.Header{Name: "m", Typeflag: tar.TypeSymlink, Linkname: "/.."}, tar.Header{Name: "m/x", Typeflag: tar.TypeReg})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, options uint8) {
		contentOnly, whole := options&1 != 0, options&2 != 0
		top, err := os.MkdirTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		in := filepath.Join(top, "in")
		if err := os.Mkdir(in, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, "out"), []byte("outside"), 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.Open(in)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		x := &extractor{ctx: t.Context(), root: root, own: owner{-1, -1}, contentOnly: contentOnly, whole: whole, maxBytes: 1 << 20, maxEntries: 100, taking: taking{memory: new(memory)}}
		defer x.leaveDirs()
		// Most archives are refused; the test checks the effects.
		_ = x.extract(bytes.NewReader(data), sandbox.Tar)
		entries, err := os.ReadDir(top)
		if err != nil || len(entries) != 2 {
			t.Fatalf("outside are %v, %v", entries, err)
		}
		out, err := os.ReadFile(filepath.Join(top, "out"))
		if err != nil || string(out) != "outside" {
			t.Fatalf("the file outside is %q, %v", out, err)
		}
		if info, err := os.Stat(filepath.Join(top, "out")); err != nil || info.Mode() != 0o600 {
			t.Fatalf("the file outside is %v, %v", info, err)
		}
		var size int64
		filepath.WalkDir(in, func(_ string, d fs.DirEntry, _ error) error {
			info, err := d.Info()
			if err == nil && contentOnly && !info.Mode().IsRegular() && !info.IsDir() {
				t.Fatalf("%s is %v", d.Name(), info.Mode())
			}
			if err == nil && info.Mode().IsRegular() {
				size += info.Size()
			} else if err == nil && info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
				t.Fatalf("%s is %v", d.Name(), info.Mode())
			}
			return nil
		})
		if size > 1<<20 {
			t.Fatalf("%d bytes were unpacked", size)
		}
	})
}

func FuzzGlob(f *testing.F) {
	for _, p := range []string{"/a/*", "/**/x", "/{a,b}/[a-z]?", `/\*`, "/[", "/{a,{b,c}}**", "/***a*b*c"} {
		f.Add(p)
	}
	dir := f.TempDir()
	for _, p := range []string{"a/b/c", "a/x", "b/[y]"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		elems, err := parseGlob(pattern)
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Fatal(err)
			}
			return
		}
		for _, e := range elems {
			if e == ".." || strings.ContainsRune(e, 0) {
				return // a clean path has none
			}
		}
		g := &globber{ctx: t.Context(), root: dir, found: map[string]struct{}{}}
		if err := g.walk("", elems); err != nil {
			t.Fatal(err)
		}
		for p := range g.found {
			if _, err := os.Lstat(dir + p); err != nil {
				t.Fatalf("%q matches %q: %v", pattern, p, err)
			}
		}
	})
}
