package sqlstore_test

import (
	"testing"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/queue/queuetest"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

func TestSQLite_Queue(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t testing.TB) queue.Store {
		return openSQLite(t, sqlstore.SQLiteOptions{}).Queue()
	}})
}

func TestPostgres_Queue(t *testing.T) {
	queuetest.Run(t, queuetest.Config{Open: func(t testing.TB) queue.Store {
		return openPostgres(t, pgtest.DSN(t), sqlstore.PostgresOptions{Conns: 4}).Queue()
	}})
}
