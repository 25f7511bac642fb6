package sqlstore_test

import (
	"context"
	"testing"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/internal/workflowd/storetest"
)

func openPostgres(t testing.TB, dsn string, o sqlstore.PostgresOptions) *sqlstore.Postgres {
	t.Helper()
	s, err := sqlstore.OpenPostgres(context.Background(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	// The workflows of the suite's runs.
	var all []workflowd.Served
	for _, project := range []string{"", "p", "q", "other"} {
		for _, workflow := range []string{"order", "refund"} {
			all = append(all, workflowd.Served{Project: project, Workflow: workflow, Build: "b1"})
		}
	}
	s.Serve(all)
	return s
}

func TestPostgres(t *testing.T) {
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) workflowd.Store {
			return openPostgres(t, pgtest.DSN(t), sqlstore.PostgresOptions{Conns: 4})
		},
		// The next process takes over the runs that the previous one released.
		Reopen: func(t testing.TB, s workflowd.Store) workflowd.Store {
			dsn := s.(*sqlstore.Postgres).DSN()
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			r := openPostgres(t, dsn, sqlstore.PostgresOptions{Conns: 4})
			if _, err := r.Claim(t.Context(), 1_000_000); err != nil {
				t.Fatal(err)
			}
			return r
		},
	})
}
