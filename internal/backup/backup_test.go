package backup_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/blob/blobtest"
	"github.com/cayhq/cay/internal/db"
)

const passphrase = "correct horse"

// house is a data directory with a database of rows that refer to blobs.
type house struct {
	dir   string
	db    *db.DB
	blobs blob.Store
	// beforeNeeded, if set, is called before the rows are read.
	beforeNeeded func()
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{dir: t.TempDir()}
	var err error
	if h.db, err = db.Open(t.Context(), filepath.Join(h.dir, "cay.db"), db.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.db.Close(); err != nil {
			t.Error(err)
		}
	})
	if h.blobs, err = blob.OpenDir(filepath.Join(h.dir, "snapshots"), blob.DirOptions{}); err != nil {
		t.Fatal(err)
	}
	h.exec(t, `CREATE TABLE rows (blob TEXT)`)
	for _, name := range []string{"snap_a", "snap_b"} {
		h.add(t, name)
	}
	blobtest.Put(t, h.blobs, "snap_stray", map[string]string{"a": "no row has it"})
	for name, content := range map[string]string{"secret.key": "the key", "ca/ca.key": "the authority", "gateway-models.json": "{}"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(h.dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *house) exec(t *testing.T, query string, args ...any) {
	t.Helper()
	if _, err := h.db.Exec(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func (h *house) add(t *testing.T, name string) {
	t.Helper()
	blobtest.Put(t, h.blobs, name, map[string]string{"manifest.json": name, "disk/pages.img": strings.Repeat(name, 1000)})
	h.exec(t, `INSERT INTO rows VALUES (?)`, name)
}

func (h *house) source() backup.Source {
	return backup.Source{
		Dir: h.dir, Databases: []backup.Database{{Name: "cay", File: h.db.Path()}}, Stores: []backup.Store{{Name: "snapshots", Blob: h.blobs}},
		Files: []string{"gateway-models.json", "none.json"}, Keys: []string{"secret.key", "ca/ca.key", "none.key"}, Key: "0badcafe", Left: []string{"a thing"},
		Needed: func(ctx context.Context, states map[string]*db.State) (map[string][]string, error) {
			names, err := db.Collect(ctx, states["cay"], db.Column[string], `SELECT blob FROM rows`)
			if h.beforeNeeded != nil {
				h.beforeNeeded()
			}
			return map[string][]string{"snapshots": names}, err
		},
		Images: func(context.Context, bool) ([]backup.Image, map[string]string, func(), error) {
			return []backup.Image{{Digest: "sha256:1", Refs: []string{"debian"}, Size: 1}}, nil, func() {}, nil
		},
	}
}

// write writes a backup and returns its bytes.
func (h *house) write(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	r, err := backup.Write(t.Context(), &out, h.source(), backup.Options{Passphrase: passphrase, WorkFactor: 10})
	if err != nil {
		t.Fatal(err)
	}
	if r.Size != int64(out.Len()) || !r.Keys || len(r.Manifest.Images) != 1 || r.Left[0] != "a thing" {
		t.Errorf("%+v of %d bytes", r, out.Len())
	}
	if _, err := os.Stat(filepath.Join(h.dir, "backup")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("working files stay: %v", err)
	}
	return out.Bytes()
}

func save(t *testing.T, content []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cay.backup")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t *testing.T, file string) *backup.Archive {
	t.Helper()
	a, err := backup.Open(t.Context(), file, passphrase)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

var stores = []string{"snapshots"}

// rows returns what the database of a restored directory refers to, and checks that each
// blob is there.
func rows(t *testing.T, dir string) []string {
	t.Helper()
	d, err := db.Open(t.Context(), filepath.Join(dir, "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names, err := db.Collect(t.Context(), d, db.Column[string], `SELECT blob FROM rows ORDER BY blob`)
	if err != nil {
		t.Fatal(err)
	}
	s, err := blob.OpenDir(filepath.Join(dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := s.Open(t.Context(), name, "disk/pages.img")
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
		if err := errors.Join(err, f.Close()); err != nil || string(b) != strings.Repeat(name, 1000) {
			t.Errorf("blob %s has %.30q, %v", name, b, err)
		}
	}
	return names
}

func TestBackup(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	file := save(t, h.write(t))
	h.exec(t, `DELETE FROM rows`)
	dir := filepath.Join(t.TempDir(), "new", "data")
	if err := open(t, file).Restore(t.Context(), backup.Target{Dir: dir, Stores: stores}); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, dir); fmt.Sprint(got) != "[snap_a snap_b]" {
		t.Errorf("restored %q", got)
	}
	for name, want := range map[string]string{"secret.key": "the key", "ca/ca.key": "the authority", "gateway-models.json": "{}"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		info, serr := os.Stat(filepath.Join(dir, name))
		if err != nil || serr != nil || string(b) != want || info.Mode() != 0o600 {
			t.Errorf("%s: %q, %v, %v", name, b, info.Mode(), err)
		}
	}
	if err := backup.Unfinished(dir); err != nil {
		t.Error(err)
	}
	s, err := blob.OpenDir(filepath.Join(dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(t.Context(), blob.ListOptions{}); err != nil || len(all) != 2 {
		t.Errorf("blobs %v, %v", all, err)
	}
	// A directory with data is left alone.
	if err := open(t, file).Restore(t.Context(), backup.Target{Dir: dir, Stores: stores}); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("into a directory that is not empty: %v", err)
	}
	if got := rows(t, dir); len(got) != 2 {
		t.Errorf("afterwards it has %q", got)
	}
}

// Blobs that are made and deleted while the backup is written are in it if rows refer to
// them, whole.
func TestBackup_blobsChange(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	round := 0
	h.beforeNeeded = func() {
		switch round++; round {
		case 1: // the rows were read: a new row, and a blob that its owner deletes
			h.add(t, "snap_c")
		case 3: // all leases are taken: what the rows refer to goes
			h.exec(t, `DELETE FROM rows`)
			for _, name := range []string{"snap_a", "snap_b", "snap_c"} {
				if err := h.blobs.Delete(t.Context(), name); err != nil {
					t.Error(err)
				}
			}
		}
	}
	// The first state has snap_a and snap_b, all leased: so the backup is complete, and
	// without snap_c.
	file := save(t, h.write(t))
	dir := t.TempDir()
	if err := open(t, file).Restore(t.Context(), backup.Target{Dir: dir, Stores: stores}); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, dir); fmt.Sprint(got) != "[snap_a snap_b]" || round != 1 {
		t.Errorf("round %d: restored %q", round, got)
	}
}

// late is a store whose List does not have a blob yet, and whose blobs are deleted once
// they are leased.
type late struct {
	blob.Store
	hidden string
}

func (l late) List(ctx context.Context, o blob.ListOptions) ([]blob.Info, error) {
	all, err := l.Store.List(ctx, o)
	for i, b := range all {
		if b.Name == l.hidden {
			return append(all[:i:i], all[i+1:]...), err
		}
	}
	return all, err
}

func (l late) Local(ctx context.Context, name string) (*blob.Lease, error) {
	lease, err := l.Store.Local(ctx, name)
	if err == nil {
		err = l.Store.Delete(ctx, name)
	}
	return lease, err
}

// A blob that was made after the leases were taken, and that is deleted once the backup has
// it, is in the backup; a blob without files is named.
func TestBackup_lateBlob(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.exec(t, `INSERT INTO rows VALUES ('snap_lost')`)
	src := h.source()
	src.Stores = []backup.Store{{Name: "snapshots", Blob: late{h.blobs, "snap_b"}}}
	var out bytes.Buffer
	r, err := backup.Write(t.Context(), &out, src, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(r.Missing) != "[snapshots/snap_lost]" {
		t.Errorf("missing: %q", r.Missing)
	}
	for _, name := range []string{"snap_a", "snap_b"} {
		found := false
		for _, p := range r.Parts {
			found = found || p.Name == "blobs/snapshots/"+name+"/disk/pages.img" && p.Size == int64(1000*len(name))
		}
		if !found {
			t.Errorf("%s is not in the backup: %v", name, r.Parts)
		}
	}
	if all, err := h.blobs.List(t.Context(), blob.ListOptions{}); err != nil || len(all) != 0 {
		t.Errorf("blobs stay: %v, %v", all, err)
	}
}

// refused checks that a file is refused, and returns the message.
func refused(t *testing.T, content []byte) string {
	t.Helper()
	a, err := backup.Open(t.Context(), save(t, content), passphrase)
	if err == nil {
		a.Close()
		t.Fatal("it was opened")
	}
	if c := cay.CodeOf(err); c != cay.Invalid && c != cay.NotSupported {
		t.Fatalf("%s: %v", c, err)
	}
	return err.Error()
}

// A file with any byte changed, or cut off anywhere, is refused.
func TestOpen_damaged(t *testing.T) {
	t.Parallel()
	whole := newHouse(t).write(t)
	for i := 0; i < len(whole); i += 211 { // a prime: all offsets in a block of 512 come
		damaged := bytes.Clone(whole)
		damaged[i] ^= 0x10
		refused(t, damaged)
	}
	for i := len(whole) - 700; i < len(whole); i++ { // the ends of the tar, and the last line
		damaged := bytes.Clone(whole)
		damaged[i] ^= 1
		refused(t, damaged)
	}
	for n := 0; n < len(whole); n += 307 {
		msg := refused(t, whole[:n])
		if n >= 1024 && !strings.Contains(msg, "cut off") {
			t.Fatalf("cut off after %d bytes: %s", n, msg)
		}
	}
	for n := len(whole) - 100; n < len(whole); n++ {
		refused(t, whole[:n])
	}
	refused(t, append(bytes.Clone(whole), 0))
}

// rebuild changes a backup and makes all sums right again, as a person who wants to change
// it unseen would.
func rebuild(t *testing.T, whole []byte, change func(h *tar.Header, body []byte) []byte, more ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	tr, tw := tar.NewReader(bytes.NewReader(whole)), tar.NewWriter(&out)
	var parts []backup.Part
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == "manifest.json" {
			for _, m := range more {
				m.Mode = 0o600
				if err := tw.WriteHeader(&m); err != nil {
					t.Fatal(err)
				}
				parts = append(parts, backup.Part{Name: m.Name, SHA256: fmt.Sprintf("%x", sha256.Sum256(nil))})
			}
			var m backup.Manifest
			if err := json.Unmarshal(body, &m); err != nil {
				t.Fatal(err)
			}
			m.Parts = parts
			if body, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
		} else {
			body = change(h, body)
		}
		h.Size = int64(len(body))
		if h.Name != "cay-backup.json" && h.Name != "keys.age" && h.Name != "manifest.json" {
			parts = append(parts, backup.Part{Name: h.Name, Size: h.Size, SHA256: fmt.Sprintf("%x", sha256.Sum256(body))})
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&out, "cay-backup-end %x\n", sha256.Sum256(out.Bytes()))
	return out.Bytes()
}

func same(_ *tar.Header, body []byte) []byte { return body }

func TestOpen_hostile(t *testing.T) {
	t.Parallel()
	whole := newHouse(t).write(t)
	for name, tc := range map[string]struct {
		change func(h *tar.Header, body []byte) []byte
		more   []tar.Header
		says   string
	}{
		"changed, all sums right": {func(h *tar.Header, body []byte) []byte {
			if h.Name == "blobs/snapshots/snap_a/manifest.json" {
				return []byte("evil")
			}
			return body
		}, nil, "changed after it was made"},
		"out of the directory": {same, []tar.Header{{Name: "files/../../x", Typeflag: tar.TypeReg}}, "which no backup has"},
		"absolute":             {same, []tar.Header{{Name: "/etc/x", Typeflag: tar.TypeReg}}, "which no backup has"},
		"hidden":               {same, []tar.Header{{Name: "files/.x", Typeflag: tar.TypeReg}}, "which no backup has"},
		"out of a blob":        {same, []tar.Header{{Name: "blobs/snapshots/snap_a/../../x", Typeflag: tar.TypeReg}}, "which no backup has"},
		"link":                 {same, []tar.Header{{Name: "files/x", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink}}, "not a regular file"},
		"hard link":            {same, []tar.Header{{Name: "files/x", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}}, "not a regular file"},
		"twice":                {same, []tar.Header{{Name: "db/cay.db", Typeflag: tar.TypeReg}}, "two parts"},
		"false image":          {same, []tar.Header{{Name: "images/images/" + strings.Repeat("0", 64) + ".erofs", Typeflag: tar.TypeReg}}, "is not the content with that sum"},
		"newer": {func(h *tar.Header, body []byte) []byte {
			return bytes.Replace(body, []byte(`"format": 1`), []byte(`"format": 2`), 1)
		}, nil, "this cay knows format 1"},
		"without its database": {func(h *tar.Header, body []byte) []byte {
			if h.Name == "db/cay.db" {
				h.Name = "files/cay.db"
			}
			return body
		}, nil, "no database"},
	} {
		if msg := refused(t, rebuild(t, whole, tc.change, tc.more...)); !strings.Contains(msg, tc.says) {
			t.Errorf("%s: %s", name, msg)
		}
	}
	if msg := refused(t, []byte("#!/bin/sh\n")); !strings.Contains(msg, "no backup of cay") {
		t.Error(msg)
	}
	_, err := backup.Open(t.Context(), save(t, whole), "wrong horse")
	if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "passphrase") {
		t.Errorf("a wrong passphrase: %v", err)
	}
	if _, err := backup.Open(t.Context(), "/dev/null", ""); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("a device: %v", err)
	}
}

// A file that changes after it was checked leaves nothing behind.
func TestRestore_changedMeanwhile(t *testing.T) {
	t.Parallel()
	whole := newHouse(t).write(t)
	file := save(t, whole)
	a := open(t, file)
	whole[len(whole)/2] ^= 1
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := a.Restore(t.Context(), backup.Target{Dir: dir, Stores: stores}); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("restored: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s stays: %v", dir, err)
	}
}

// Only one backup is made at a time, and working files of a backup that died go.
func TestBackup_lock(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	left := filepath.Join(h.dir, "backup")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "cay.db"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	var second error
	h.beforeNeeded = func() {
		h.beforeNeeded = nil
		_, second = backup.Write(t.Context(), io.Discard, h.source(), backup.Options{})
	}
	h.write(t)
	if cay.CodeOf(second) != cay.Conflict {
		t.Errorf("a second backup at the same time: %v", second)
	}
}

const crashEnv = "CAY_TEST_RESTORE" // file, directory and point

// TestMain restores and dies at a point if it is told to.
func TestMain(m *testing.M) {
	args := strings.Split(os.Getenv(crashEnv), "\n")
	if len(args) != 3 {
		os.Exit(m.Run())
	}
	a, err := backup.Open(context.Background(), args[0], passphrase)
	if err != nil {
		panic(err)
	}
	var point atomic.Int64
	t := backup.TargetAt(backup.Target{Dir: args[1], Stores: stores}, func(string) {
		if fmt.Sprint(point.Add(1)) == args[2] {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err := a.Restore(context.Background(), t); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// A restore that was killed, at whatever point, leaves a directory that is refused, or one
// that is whole.
func TestRestore_killed(t *testing.T) {
	t.Parallel()
	file := save(t, newHouse(t).write(t))
	for point := 1; ; point++ {
		dir := filepath.Join(t.TempDir(), "data")
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%d", crashEnv, file, dir, point))
		out, err := cmd.CombinedOutput()
		if err == nil {
			if got := rows(t, dir); len(got) != 2 || point < 5 {
				t.Errorf("after %d points: %q", point, got)
			}
			return
		}
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() {
			t.Fatalf("%v: %s", err, out)
		}
		if err := backup.Unfinished(dir); cay.CodeOf(err) != cay.Conflict || !strings.Contains(err.Error(), "was not finished") {
			t.Errorf("killed at point %d: %v", point, err)
		}
		if err := open(t, file).Restore(t.Context(), backup.Target{Dir: dir, Stores: stores}); cay.CodeOf(err) != cay.Conflict {
			t.Errorf("restored again: %v", err)
		}
	}
}
