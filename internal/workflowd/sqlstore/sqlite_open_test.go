package sqlstore_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

// Opening a file of another format does not change it.
func TestOpenSQLite_OtherFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	notes, empty, other := filepath.Join(dir, "notes.txt"), filepath.Join(dir, "empty.db"), filepath.Join(dir, "other.db")
	for path, text := range map[string]string{notes: "what I have to do", empty: ""} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := sql.Open("sqlite", other)
	if err == nil {
		_, err = d.Exec(`CREATE TABLE t (a)`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path     string
		existing bool
		want     cay.Code // "" opens it
	}{
		{notes, false, cay.Internal},
		{notes, true, cay.Internal},
		{empty, true, cay.NotFound},
		{other, true, cay.NotFound},
		{filepath.Join(dir, "none.db"), true, cay.NotFound},
		{empty, false, ""},
		{other, false, ""}, // a program has its own tables in it
		{empty, true, ""},
		{other, true, ""},
	} {
		before, _ := os.ReadFile(c.path) // the file may not exist
		s, err := sqlstore.OpenSQLite(t.Context(), c.path, sqlstore.SQLiteOptions{Existing: c.existing})
		if err == nil {
			err = s.Close()
		}
		if cay.CodeOf(err) != c.want {
			t.Errorf("open %s, existing %v: %v, want code %q", c.path, c.existing, err, c.want)
		}
		after, _ := os.ReadFile(c.path)
		if c.want != "" && string(after) != string(before) {
			t.Errorf("%s was changed", c.path)
		}
	}
	if info, err := os.Stat(notes); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v; want the file as it was", info.Mode(), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none.db")); !os.IsNotExist(err) {
		t.Errorf("a database was made: %v", err)
	}
}

// A database of a release before chains, and before priorities, is upgraded for them.
func TestOpenSQLite_Earlier(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	s, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = d.Exec(`DROP INDEX workflow_runs_first; ALTER TABLE workflow_runs DROP COLUMN first;
			DROP INDEX workflow_messages_urgent; ALTER TABLE workflow_messages DROP COLUMN priority`)
	}
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Last(t.Context(), "wrun_1"); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("the chain of nothing: %v", err)
		}
		if _, _, err := s.Queue().Pending(t.Context(), "p", "d", 1, 1); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
