package db_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
)

// smallDisk mounts a file system of 32 MiB, for as long as the test.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("needs a small file system: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillDisk takes all free space of the file system at dir, and returns a function that
// gives it back.
func fillDisk(t *testing.T, dir string) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "fill")
	f := checktest.Must(os.Create(name))(t)
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 {
		for err := error(nil); err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

// A database with a reserve can be written while the disk is full, as long as the reserve
// lasts, and has its reserve again once the disk has had free space.
func TestReserve(t *testing.T) {
	t.Parallel()
	const reserve = 8 << 20
	dir := smallDisk(t)
	d := checktest.Must(db.Open(t.Context(), filepath.Join(dir, "cay.db"), db.Options{Reserve: reserve}))(t)
	defer d.Close()
	checktest.Must(d.Exec(t.Context(), "CREATE TABLE t (id INTEGER PRIMARY KEY, v BLOB)"))(t)
	value := make([]byte, 16<<10)
	insert := func() error {
		_, err := d.Exec(t.Context(), "INSERT INTO t (v) VALUES (?)", value)
		return err
	}
	for round := range 2 {
		free := fillDisk(t, dir)
		if _, err := io.WriteString(checktest.Must(os.Create(filepath.Join(dir, "other")))(t), "x"); err == nil {
			t.Fatal("the disk is not full")
		}
		written := 0
		var err error
		for err == nil && written < reserve {
			if err = insert(); err == nil {
				written += len(value)
			}
		}
		if written < reserve/4 {
			t.Fatalf("round %d: on the full disk %d bytes were written: %v", round, written, err)
		}
		if err != nil {
			checktest.Code(t, err, cay.NoSpace)
		}
		free()
		if err := insert(); err != nil {
			t.Fatal("with room on the disk: ", err)
		}
		d.KeepReserve()
	}
}

// Without a reserve, writes fail on a full disk.
func TestReserve_none(t *testing.T) {
	t.Parallel()
	dir := smallDisk(t)
	d := checktest.Must(db.Open(t.Context(), filepath.Join(dir, "cay.db"), db.Options{}))(t)
	defer d.Close()
	checktest.Must(d.Exec(t.Context(), "CREATE TABLE t (v BLOB)"))(t)
	fillDisk(t, dir)
	_, err := d.Exec(t.Context(), "INSERT INTO t (v) VALUES (?)", make([]byte, 256<<10))
	checktest.Code(t, err, cay.NoSpace)
}
