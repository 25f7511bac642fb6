package dbtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
)

// Power shows a database as it would be after a power cut: a copy of its files at the
// last sync.
type Power struct {
	live *db.DB

	mu    sync.Mutex        // guards what follows
	files map[string][]byte // of the copy, by suffix
	syncs int
}

// OpenPower returns a new database, and a Power that shows the effect of a power cut on
// it.
func OpenPower(t testing.TB) (*db.DB, *Power) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	p := &Power{}
	d := checktest.Must(db.Open(context.Background(), path, db.Options{Synced: func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		files, err := Files(path)
		if err != nil {
			t.Error(err)
		}
		p.files = files
		p.syncs++
	}}))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	p.live = d
	return d, p
}

// logHeader is the length of the header of a write-ahead log, in bytes. The header
// changes when SQLite writes the log from its beginning again.
const logHeader = 32

// Files returns the contents of the files of a database that a process has open, by
// suffix: "" for the file itself, and "-wal" for its log, if there is one. A power cut at
// this moment may leave these contents. If this process has the database open, Files
// releases its locks, so no other process may have the database open.
func Files(path string) (map[string][]byte, error) {
	for {
		files, err := readFiles(path)
		if err != nil {
			return nil, err
		}
		// A checkpoint meanwhile moved pages from one to the other.
		again, err := readFiles(path)
		if err != nil {
			return nil, err
		}
		header := func(log []byte) []byte { return log[:min(len(log), logHeader)] }
		if bytes.Equal(files[""], again[""]) && bytes.Equal(header(files["-wal"]), header(again["-wal"])) {
			return files, nil
		}
	}
}

func readFiles(path string) (map[string][]byte, error) {
	files := make(map[string][]byte)
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(path + suffix)
		if suffix != "" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files[suffix] = b
	}
	return files, nil
}

// Check fails the test if a power cut would undo op, which was acknowledged; see Undone.
func (p *Power) Check(t testing.TB, op string, except ...string) {
	t.Helper()
	for _, row := range p.Undone(t, except...) {
		t.Errorf("%s: a power cut %s", op, row)
	}
}

// Undone returns the rows that a power cut would now remove, or bring back. Columns named
// as table.column in except may differ. Undone looks again while work in the background
// is being synced.
func (p *Power) Undone(t testing.TB, except ...string) (undone []string) {
	t.Helper()
	for {
		before := p.count()
		undone = p.compare(t, except)
		if len(undone) == 0 || p.count() == before {
			return undone
		}
	}
}

func (p *Power) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.syncs
}

func (p *Power) compare(t testing.TB, except []string) (undone []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cut.db")
	p.mu.Lock()
	files := maps.Clone(p.files)
	p.mu.Unlock()
	for suffix, b := range files {
		if err := os.WriteFile(path+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cut := checktest.Must(db.Open(t.Context(), path, db.Options{}))(t)
	defer cut.Close()
	for _, table := range tables(t, p.live) {
		had, left := contents(t, p.live, table, except), contents(t, cut, table, except)
		for _, row := range had {
			if !slices.Contains(left, row) {
				undone = append(undone, fmt.Sprintf("takes from %s: %s", table, row))
			}
		}
		for _, row := range left {
			if !slices.Contains(had, row) {
				undone = append(undone, fmt.Sprintf("brings back in %s: %s", table, row))
			}
		}
	}
	return undone
}

func tables(t testing.TB, d *db.DB) (names []string) {
	t.Helper()
	rows := checktest.Must(d.Query(t.Context(), `SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name`))(t)
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// contents returns the rows of a table as texts, nil if the table does not exist.
func contents(t testing.TB, d *db.DB, table string, except []string) (all []string) {
	t.Helper()
	rows, err := d.Query(t.Context(), `SELECT * FROM "`+table+`"`)
	if err != nil && strings.Contains(err.Error(), "no such table") {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns := checktest.Must(rows.Columns())(t)
	for rows.Next() {
		values, at := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			at[i] = &values[i]
		}
		if err := rows.Scan(at...); err != nil {
			t.Fatal(err)
		}
		var row strings.Builder
		for i, c := range columns {
			if !slices.Contains(except, table+"."+c) {
				fmt.Fprintf(&row, "%s=%v ", c, values[i])
			}
		}
		all = append(all, row.String())
	}
	return all
}
