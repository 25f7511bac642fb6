package workflowd_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// counted is a store that counts its calls.
type counted struct {
	workflowd.Store
	commits, reads atomic.Int64
}

func (c *counted) Commit(ctx context.Context, g *workflowd.Group) error {
	c.commits.Add(1)
	return c.Store.Commit(ctx, g)
}

func (c *counted) Run(ctx context.Context, id string) (*history.Run, error) {
	c.reads.Add(1)
	return c.Store.Run(ctx, id)
}

func (c *counted) Events(ctx context.Context, id string, from int64, limit int) ([]history.Event, error) {
	c.reads.Add(1)
	return c.Store.Events(ctx, id, from, limit)
}

// A run of one step, from its start to its result, takes three commits: start, step, and
// end. The process that starts the run and executes it reads nothing of it.
func TestCost_OneStep(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (workflowd.Store, error){
		"SQLite": func(t *testing.T) (workflowd.Store, error) {
			return sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "w.db"), sqlstore.SQLiteOptions{})
		},
		"PostgreSQL": func(t *testing.T) (workflowd.Store, error) {
			return sqlstore.OpenPostgres(t.Context(), pgtest.DSN(t), sqlstore.PostgresOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := open(t)
			if err != nil {
				t.Fatal(err)
			}
			calls := &counted{Store: store}
			client := workflow.NewClient(start(t, workflowd.Config{Store: calls}).For(""), workflow.ClientOptions{})
			double := workflow.Step("double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
			doubles := workflow.Define("doubles", func(ctx workflow.Context, n int) (int, error) { return double.Run(ctx, n) })
			w := workflow.NewWorker(client, workflow.WorkerConfig{Definitions: workflow.Definitions(doubles)})
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer w.Stop()

			type cost struct{ commits, reads int64 }
			var all []cost
			for n := range 10 {
				commits, reads := calls.commits.Load(), calls.reads.Load()
				run, err := doubles.Start(t.Context(), client, n)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := run.Result(t.Context()); err != nil || got != 2*n {
					t.Fatalf("the result is %d, %v; want %d", got, err, 2*n)
				}
				// On a busy machine a step may take long enough for two events, or an
				// unrelated notice of the database may make the waiter read: most runs
				// have neither.
				c := cost{calls.commits.Load() - commits, calls.reads.Load() - reads}
				if c == (cost{3, 0}) {
					return
				}
				all = append(all, c)
			}
			t.Errorf("runs of one step took these commits and reads: %v; want 3 and 0", all)
		})
	}
}
