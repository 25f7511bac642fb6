package db_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db"
)

// A copy has the state at the time of OpenState, whatever is written meanwhile.
func TestState(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	d, err := db.Open(ctx, filepath.Join(dir, "a b?.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := d.Exec(ctx, query, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE words (word TEXT, bytes BLOB)`)
	exec(`INSERT INTO words VALUES ('before', zeroblob(100000))`)
	s, err := db.OpenState(ctx, d.Path())
	if err != nil {
		t.Fatal(err)
	}
	exec(`INSERT INTO words VALUES ('after', zeroblob(100000))`)
	exec(`DELETE FROM words WHERE word = 'before'`)
	words, err := db.Collect(ctx, s, db.Column[string], `SELECT word FROM words`)
	if err != nil || len(words) != 1 || words[0] != "before" {
		t.Errorf("the state has %q, %v", words, err)
	}
	file := filepath.Join(dir, "copy.db")
	if err := s.CopyTo(ctx, file); err != nil {
		t.Fatal(err)
	}
	if err := s.CopyTo(ctx, file); err == nil {
		t.Error("a copy replaces a file")
	}
	exec(`INSERT INTO words VALUES ('during', NULL)`)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, err := filepath.Glob(file + "*"); err != nil || len(entries) != 1 {
		t.Errorf("files of the copy: %q, %v", entries, err)
	}
	made, err := db.Open(ctx, file, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	words, err = db.Collect(ctx, made, db.Column[string], `SELECT word FROM words`)
	if err != nil || len(words) != 1 || words[0] != "before" {
		t.Errorf("the copy has %q, %v", words, err)
	}
	if _, err := db.OpenState(ctx, filepath.Join(dir, "none.db")); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a database that is not there: %v", err)
	}
}

// A damaged database is not copied as if it were whole.
func TestState_damaged(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	path := filepath.Join(dir, "a.db")
	d, err := db.Open(ctx, path, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(ctx, `CREATE TABLE words (word TEXT PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if _, err := d.Unsynced().Exec(ctx, `INSERT INTO words VALUES (hex(randomblob(32)))`); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for page := int64(3); page < 20; page++ {
		if _, err := f.WriteAt(make([]byte, 512), page*4096); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := db.OpenState(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.CopyTo(ctx, filepath.Join(dir, "copy.db")); err == nil {
		t.Error("a damaged database was copied")
	}
}
