package workflowd_test

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/backendtest"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// open returns an engine on a database at path, which is closed at the end of the test.
func open(t testing.TB, path string, cfg workflowd.Config) *workflowd.Engine {
	t.Helper()
	store, err := sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store = store
	return start(t, cfg)
}

// start returns an engine that is closed at the end of the test.
func start(t testing.TB, cfg workflowd.Config) *workflowd.Engine {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	e, err := workflowd.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// openShared returns an engine on a PostgreSQL database, which is closed at the end of
// the test.
func openShared(t testing.TB, dsn string, cfg workflowd.Config) *workflowd.Engine {
	t.Helper()
	store, err := sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Conns: 6})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store = store
	return start(t, cfg)
}

func TestBackend_Postgres(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Backend {
		return backendtest.Backend{Backend: openShared(t, pgtest.DSN(t), workflowd.Config{}).For("p")}
	})
}

func TestBackend(t *testing.T) {
	backendtest.Run(t, func(t *testing.T) backendtest.Backend {
		return backendtest.Backend{Backend: open(t, filepath.Join(t.TempDir(), "workflows.db"), workflowd.Config{}).For("p")}
	})
}
