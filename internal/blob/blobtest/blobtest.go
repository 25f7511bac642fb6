// Package blobtest has the tests every blob.Store passes. To add a Store, call
// Run in its tests with a function that opens an empty one:
//
//	func TestStore(t *testing.T) {
//		blobtest.Run(t, func(t *testing.T) blob.Store { return open(t) })
//	}
package blobtest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
)

// Put writes a blob; files maps paths to contents.
func Put(t testing.TB, s blob.Store, name string, files map[string]string) blob.Info {
	t.Helper()
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, d, files)
	info, err := d.Commit(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Write writes files into a draft; files maps paths to contents.
func Write(t testing.TB, d interface {
	Writer(file string) (io.WriteCloser, error)
}, files map[string]string) {
	t.Helper()
	for path, content := range files {
		w, err := d.Writer(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Read returns the files of a directory by their paths in it.
func Read(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[rel] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// FastDir returns a temporary directory in memory, if the machine has a file system in
// memory: for tests that commit very many blobs.
func FastDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "blobtest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func names(t testing.TB, s blob.Store, o blob.ListOptions) []string {
	t.Helper()
	infos, err := s.List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range infos {
		got = append(got, i.Name)
	}
	return got
}

// Run runs the tests. open returns an empty store of the test's own.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	for name, test := range map[string]func(*testing.T, blob.Store){
		"a blob is there when committed": testCommit,
		"a file is read in pieces":       testOpen,
		"files put into a directory":     testDir,
		"a name is taken once":           testTaken,
		"an aborted draft":               testAbort,
		"wrong names":                    testNames,
		"deleting":                       testDelete,
		"a lease outlives its blob":      testLease,
		"reducing":                       testReduce,
		"listing":                        testList,
		"cleaning spares drafts":         testClean,
		"a canceled caller":              testCanceled,
		"all at once":                    testConcurrent,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func testCommit(t *testing.T, s blob.Store) {
	d, err := s.Create(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"a": "content", "sub/b": "", "sub/dir/c.d_e-f": "x"}
	Write(t, d, files)
	_, err = s.Stat(t.Context(), "one")
	checktest.Code(t, err, cay.NotFound, "Stat before Commit")
	before := time.Now().Add(-time.Second)
	info, err := d.Commit(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "one" || info.Size != 8 || info.CreatedAt.Before(before) || info.CreatedAt.After(time.Now().Add(time.Second)) {
		t.Errorf("committed %+v", info)
	}
	if got, err := s.Stat(t.Context(), "one"); err != nil || got != info {
		t.Errorf("Stat: %+v, %v; Commit said %+v", got, err, info)
	}
	if err := d.Abort(); err != nil {
		t.Errorf("Abort after Commit: %v", err)
	}
	if _, err := d.Writer("late"); err == nil {
		t.Error("a committed blob takes another file")
	}
	if _, err := d.Commit(t.Context(), "two"); err == nil {
		t.Error("a draft was committed twice")
	}
	l, err := s.Local(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if got := Read(t, l.Dir); len(got) != 3 || got["a"] != "content" || got["sub/dir/c.d_e-f"] != "x" {
		t.Errorf("the blob has %q", got)
	}
	if l.Info != info {
		t.Errorf("leased %+v", l.Info)
	}
}

func testOpen(t *testing.T, s blob.Store) {
	Put(t, s, "one", map[string]string{"dir/file": "0123456789"})
	f, err := s.Open(t.Context(), "one", "dir/file")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if n, err := f.ReadAt(b, 3); n != 4 || err != nil || string(b) != "3456" {
		t.Errorf("ReadAt in the middle: %q, %v", b[:n], err)
	}
	if n, err := f.ReadAt(b, 8); n != 2 || !errors.Is(err, io.EOF) || string(b[:n]) != "89" {
		t.Errorf("ReadAt over the end: %q, %v", b[:n], err)
	}
	if f.Size() != 10 {
		t.Errorf("Size is %d", f.Size())
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	Put(t, s, "two", map[string]string{"dir/file": ""})
	for _, file := range []string{"other", "dir", "dir/file/x"} {
		_, err := s.Open(t.Context(), "two", file)
		checktest.Code(t, err, cay.NotFound, "Open "+file)
	}
	_, err = s.Open(t.Context(), "none", "file")
	checktest.Code(t, err, cay.NotFound, "Open in no blob")
	_, err = s.Open(t.Context(), "two", "../x")
	checktest.Code(t, err, cay.Invalid, "Open with dots")
}

func testDir(t *testing.T, s blob.Store) {
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := d.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "made"), []byte("by others"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	_, err = d.Commit(t.Context(), "one")
	checktest.Code(t, err, cay.Invalid, "Commit with a symbolic link")
	if err := os.Rename(filepath.Join(dir, "sub", "made"), filepath.Join(dir, "sub", ".hidden")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	_, err = d.Commit(t.Context(), "one")
	checktest.Code(t, err, cay.Invalid, "Commit with a bad name")
	if err := os.Rename(filepath.Join(dir, "sub", ".hidden"), filepath.Join(dir, "sub", "made")); err != nil {
		t.Fatal(err)
	}
	Write(t, d, map[string]string{"written": "too"})
	if _, err := d.Writer("written"); cay.CodeOf(err) != cay.AlreadyExists {
		t.Errorf("a second file of one path: %v", err)
	}
	if _, err := d.Commit(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	l, err := s.Local(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if got := Read(t, l.Dir); len(got) != 2 || got["sub/made"] != "by others" || got["written"] != "too" {
		t.Errorf("the blob has %q", got)
	}
}

func testTaken(t *testing.T, s blob.Store) {
	Put(t, s, "one", map[string]string{"f": "first"})
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, d, map[string]string{"f": "second"})
	_, err = d.Commit(t.Context(), "one")
	checktest.Code(t, err, cay.AlreadyExists, "Commit")
	if _, err := d.Commit(t.Context(), "two"); err != nil {
		t.Errorf("Commit with another name: %v", err)
	}
	for name, want := range map[string]string{"one": "first", "two": "second"} {
		l, err := s.Local(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := Read(t, l.Dir)["f"]; got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
		l.Release()
	}
}

func testAbort(t *testing.T, s blob.Store) {
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, d, map[string]string{"f": "content"})
	w, err := d.Writer("open")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(t.Context(), "one"); err == nil {
		t.Error("a draft with an open file was committed")
	}
	for range 2 {
		if err := d.Abort(); err != nil {
			t.Errorf("Abort: %v", err)
		}
	}
	w.Close()
	if _, err := d.Commit(t.Context(), "one"); err == nil {
		t.Error("an aborted draft was committed")
	}
	if got := names(t, s, blob.ListOptions{}); len(got) > 0 {
		t.Errorf("there are %q", got)
	}
	if n, err := s.Clean(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("Abort left %d bytes, %v", n, err)
	}
}

func testNames(t *testing.T, s blob.Store) {
	for _, name := range []string{"", ".", "..", "a/b", "/a", ".a", "-a", "a b", "a\x00", "ä", strings.Repeat("a", 201)} {
		d, err := s.Create(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Commit(t.Context(), name)
		checktest.Code(t, err, cay.Invalid, "Commit "+name)
		if err := d.Abort(); err != nil {
			t.Error(err)
		}
		_, err = s.Local(t.Context(), name)
		checktest.Code(t, err, cay.Invalid, "Local "+name)
		checktest.Code(t, s.Delete(t.Context(), name), cay.Invalid, "Delete "+name)
	}
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Abort()
	for _, file := range []string{"", ".", "..", "../a", "a/../b", "a//b", "/a", "a/", "a/.b", "a/b/c/d/e"} {
		_, err := d.Writer(file)
		checktest.Code(t, err, cay.Invalid, "Writer "+file)
	}
}

func testDelete(t *testing.T, s blob.Store) {
	Put(t, s, "one", map[string]string{"f": "first"})
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	checktest.Code(t, s.Delete(t.Context(), "one"), cay.NotFound, "second Delete")
	_, err := s.Local(t.Context(), "one")
	checktest.Code(t, err, cay.NotFound, "Local")
	if n, err := s.Clean(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("Delete left %d bytes, %v", n, err)
	}
	Put(t, s, "one", map[string]string{"f": "again"})
}

func testLease(t *testing.T, s blob.Store) {
	Put(t, s, "one", map[string]string{"f": "first"})
	var leases []*blob.Lease
	for range 2 {
		l, err := s.Local(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	if err := s.Delete(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	Put(t, s, "one", map[string]string{"f": "second"})
	leases[0].Release()
	if _, err := s.Clean(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if got := Read(t, leases[1].Dir)["f"]; got != "first" {
		t.Errorf("a leased blob has %q", got)
	}
	leases[1].Release()
	if _, err := os.Stat(leases[1].Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a deleted blob is still there after its last lease: %v", err)
	}
	if got := names(t, s, blob.ListOptions{}); !slices.Equal(got, []string{"one"}) {
		t.Errorf("there are %q", got)
	}
}

func testReduce(t *testing.T, s blob.Store) {
	keep := func(file string) bool { return strings.HasPrefix(file, "sub/") }
	_, err := s.Reduce(t.Context(), "one", keep, nil)
	checktest.Code(t, err, cay.NotFound)
	Put(t, s, "one", map[string]string{"a": "gone", "sub/b": "stays", "sub/dir/c": "too", "said": "before"})
	before, err := s.Local(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Reduce(t.Context(), "one", keep, map[string][]byte{"../a": nil})
	checktest.Code(t, err, cay.Invalid)
	info, err := s.Reduce(t.Context(), "one", keep, map[string][]byte{"said": []byte("after")})
	if err != nil || info.Name != "one" || info.Size != 13 {
		t.Errorf("reduced to %+v, %v", info, err)
	}
	after, err := s.Local(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	defer after.Release()
	if got := Read(t, before.Dir); len(got) != 4 || got["a"] != "gone" || got["said"] != "before" {
		t.Errorf("who had it before has %q", got)
	}
	before.Release()
	if _, err := os.Stat(before.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what it was is still there after its last lease: %v", err)
	}
	if got := Read(t, after.Dir); len(got) != 3 || got["sub/b"] != "stays" || got["sub/dir/c"] != "too" || got["said"] != "after" {
		t.Errorf("it has %q", got)
	}
	if n, err := s.Clean(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("%d bytes are left of what it was, %v", n, err)
	}
}

func testList(t *testing.T, s blob.Store) {
	for _, name := range []string{"snap_b", "snap_a", "drive_a"} {
		Put(t, s, name, map[string]string{"f": name})
	}
	last, err := s.Stat(t.Context(), "drive_a")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		o    blob.ListOptions
		want []string
	}{
		{blob.ListOptions{}, []string{"drive_a", "snap_a", "snap_b"}},
		{blob.ListOptions{Prefix: "snap_"}, []string{"snap_a", "snap_b"}},
		{blob.ListOptions{Prefix: "snap_a"}, []string{"snap_a"}},
		{blob.ListOptions{Prefix: "x"}, nil},
		{blob.ListOptions{Before: last.CreatedAt.Add(-time.Hour)}, nil},
		{blob.ListOptions{Before: last.CreatedAt.Add(time.Hour), Prefix: "drive"}, []string{"drive_a"}},
	} {
		if got := names(t, s, tt.o); !slices.Equal(got, tt.want) {
			t.Errorf("List(%+v) has %q, want %q", tt.o, got, tt.want)
		}
	}
}

func testClean(t *testing.T, s blob.Store) {
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, d, map[string]string{"f": "content"})
	Put(t, s, "other", map[string]string{"f": "content"})
	if n, err := s.Clean(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("Clean removed %d bytes of what is in use, %v", n, err)
	}
	if _, err := d.Commit(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	if got := names(t, s, blob.ListOptions{}); !slices.Equal(got, []string{"one", "other"}) {
		t.Errorf("there are %q", got)
	}
}

func testCanceled(t *testing.T, s blob.Store) {
	d, err := s.Create(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	Write(t, d, map[string]string{"f": "content"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Commit(ctx, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v", err)
	}
	if err := d.Abort(); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(ctx, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
}

// testConcurrent writes, leases, deletes and cleans the same name concurrently. Each
// lease must have a complete blob as long as it lasts.
func testConcurrent(t *testing.T, s blob.Store) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				d, err := s.Create(t.Context(), 0)
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				for _, f := range []string{"a", "b"} {
					w, err := d.Writer(f)
					if err != nil {
						t.Errorf("write: %v", err)
						return
					}
					_, err = io.WriteString(w, "content")
					if err := errors.Join(err, w.Close()); err != nil {
						t.Errorf("write: %v", err)
					}
				}
				if _, err := d.Commit(t.Context(), "one"); err != nil {
					if cay.CodeOf(err) != cay.AlreadyExists {
						t.Errorf("commit: %v", err)
					}
					if err := d.Abort(); err != nil {
						t.Errorf("abort: %v", err)
					}
				}
				switch l, err := s.Local(t.Context(), "one"); {
				case err == nil:
					if err := s.Delete(t.Context(), "one"); err != nil && cay.CodeOf(err) != cay.NotFound {
						t.Errorf("delete: %v", err)
					}
					for _, f := range []string{"a", "b"} {
						if b, err := os.ReadFile(filepath.Join(l.Dir, f)); err != nil || string(b) != "content" {
							t.Errorf("a leased blob has %q, %v", b, err)
						}
					}
					l.Release()
				case cay.CodeOf(err) != cay.NotFound:
					t.Errorf("lease: %v", err)
				}
				if _, err := s.Clean(t.Context(), 0); err != nil {
					t.Errorf("clean: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range names(t, s, blob.ListOptions{}) {
		if err := s.Delete(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if n, err := s.Clean(t.Context(), 0); n != 0 || err != nil {
		t.Errorf("left %d bytes, %v", n, err)
	}
}
