// Package dbtest opens databases for as long as a test.
package dbtest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
)

// Open returns a new database.
func Open(t testing.TB) *db.DB {
	t.Helper()
	return OpenFile(t, filepath.Join(t.TempDir(), "test.db"))
}

// OpenFile opens the database in a file, and makes the file if it is missing.
func OpenFile(t testing.TB, path string) *db.DB {
	t.Helper()
	d := checktest.Must(db.Open(context.Background(), path, db.Options{}))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
