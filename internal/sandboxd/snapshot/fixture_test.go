package snapshot_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
)

// A snapshot that the first version exported can be imported by every later version, and
// its files can be read without the runtime that saved them. The archive is never
// replaced: when the format changes, another archive is added.
//
// These commands had been run in the sandbox, as root in /vercel/sandbox:
//
//	echo x > m; chown 1234:4321 m; chmod 6751 m; touch -d "2020-01-02 03:04:05" m
//	ln m hard; ln -s "a b/ü" sym; mkfifo fifo; mknod null c 1 3
//	truncate -s 3G sparse; printf end | dd of=sparse bs=1 seek=2000000000 conv=notrunc
//	mkdir sub; chmod 1777 sub; : > sub/empty; truncate -s 5000 sub/zeros
//	rm /etc/issue; rm -r /usr/share/doc; mkdir /usr/share/doc; echo new > /usr/share/doc/only; rmdir /opt
//
// Also, m got the attributes user.text, trusted.x and an access list, which changed its
// mode, "many" the numbers up to 2999, and two files odd names.
func TestFixture(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/filesystem-v1.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	archive, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	m, err := s.Import(t.Context(), archive, snapshot.ImportParams{ID: "snap_a"})
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != snapshot.Filesystem || m.Origin != "snap_fixture" || m.DiskMB != 1024 {
		t.Errorf("imported %+v", m)
	}
	snap, err := s.Open(t.Context(), "snap_a")
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Close()
	if err := snap.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	var layer bytes.Buffer
	if err := snap.WriteLayer(t.Context(), "/", &layer); err != nil {
		t.Fatal(err)
	}
	files, sparse := readLayer(t, &layer)
	var many strings.Builder
	for i := range 3000 {
		fmt.Fprintln(&many, i)
	}
	const dir = "vercel/sandbox/"
	for name, want := range map[string]string{
		"./":                           "5 755 0:0",
		dir:                            "5 755 1000:1000",
		dir + "hard":                   "", // either name is a link to the other
		dir + "sym":                    "2 777 0:0 -> a b/ü",
		dir + "fifo":                   "6 644 0:0",
		dir + "null":                   "3 644 0:0 1,3",
		dir + "many":                   fmt.Sprintf("0 644 0:0 %q", many.String()),
		dir + "sub/":                   "5 1777 0:0",
		dir + "sub/empty":              `0 644 0:0 ""`,
		dir + "sub/zeros":              fmt.Sprintf("0 644 0:0 %q", strings.Repeat("\x00", 5000)),
		dir + "bad\xff\xfename":        `0 644 0:0 "1"`,
		dir + strings.Repeat("n", 250): `0 644 0:0 "1"`,
		dir + "sparse":                 "0 644 0:0 3221225472 bytes",
		"etc/.wh.issue":                `0 600 0:0 ""`,
		".wh.opt":                      `0 600 0:0 ""`,
		"usr/share/doc/.wh..wh..opq":   `0 600 0:0 ""`,
		"usr/share/doc/only":           `0 644 0:0 "new\n"`,
	} {
		got, ok := files[name]
		if !ok || want != "" && got.text != want {
			t.Errorf("%q is %.200q, %v; want %.200q", name, got.text, ok, want)
		}
	}
	m1, m2 := files[dir+"m"], files[dir+"hard"]
	if m1.Typeflag == tar.TypeLink {
		m1, m2 = m2, m1
	}
	if m1.text != `0 6771 1234:4321 "x\n"` || m1.ModTime.Unix() != 1577934245 || m2.Typeflag != tar.TypeLink || m2.Linkname != m1.Name {
		t.Errorf("m is %q of %v, and %+v", m1.text, m1.ModTime, m2.Header)
	}
	acl := "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x06\x00\xd2\x04\x00\x00"
	if x := m1.PAXRecords; x["SCHILY.xattr.user.text"] != "v" || x["SCHILY.xattr.trusted.x"] != "a\x00b" || !strings.HasPrefix(x["SCHILY.xattr.system.posix_acl_access"], acl) {
		t.Errorf("the attributes of m are %q", x)
	}
	if sparse > 1<<20 {
		t.Errorf("the layer of a file with holes has %d bytes", sparse)
	}
	for name := range files {
		if strings.Contains(name, "skel") || name == "opt/" || name == "etc/issue" {
			t.Errorf("there is %q", name)
		}
	}
	if err := snap.WriteLayer(t.Context(), "/data", io.Discard); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("files of another mount: %v", err)
	}
}

type layerFile struct {
	*tar.Header
	text string
}

// readLayer describes the files of a layer, and says how large it is.
func readLayer(t *testing.T, layer *bytes.Buffer) (files map[string]layerFile, size int) {
	t.Helper()
	size = layer.Len()
	files = map[string]layerFile{}
	for tr := tar.NewReader(layer); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files, size
		}
		if err != nil {
			t.Fatal(err)
		}
		f := layerFile{h, fmt.Sprintf("%c %o %d:%d", h.Typeflag, h.Mode, h.Uid, h.Gid)}
		switch {
		case h.Typeflag == tar.TypeReg && h.Size > 1<<30:
			f.text += fmt.Sprintf(" %d bytes", h.Size)
			if _, err := io.CopyN(io.Discard, tr, 2_000_000_000); err != nil {
				t.Fatal(err)
			}
			end := make([]byte, 4)
			if _, err := io.ReadFull(tr, end); err != nil || !slices.Equal(end, []byte("end\x00")) {
				t.Errorf("%s has %q, %v, after its hole", h.Name, end, err)
			}
		case h.Typeflag == tar.TypeReg:
			b, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			f.text += fmt.Sprintf(" %q", b)
		case h.Typeflag == tar.TypeSymlink:
			f.text += " -> " + h.Linkname
		case h.Typeflag == tar.TypeChar:
			f.text += fmt.Sprintf(" %d,%d", h.Devmajor, h.Devminor)
		}
		files[h.Name] = f
	}
}
