package sqlstore_test

import (
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/internal/workflowd/storetest"
)

func reopenSQLite(t testing.TB, s workflowd.Store) workflowd.Store {
	t.Helper()
	path := s.(*sqlstore.SQLite).Path()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestSQLite(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) workflowd.Store {
			s, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "workflows.db"), sqlstore.SQLiteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return s
		},
		Reopen: reopenSQLite,
	})
}
