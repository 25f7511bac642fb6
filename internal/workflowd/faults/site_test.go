package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// site is a database with runs, and the world that their effects change.
type site struct {
	Database string `json:"database"` // sqlite or postgres
	At       string `json:"at"`       // a file or a DSN
	World    string `json:"world"`    // a file
	// Lease of owners, for PostgreSQL.
	Lease time.Duration `json:"lease,omitempty"`
}

// databases are the databases on which every test of this package runs.
var databases = []string{"sqlite", "postgres"}

// newSite returns an empty site. All tests share a PostgreSQL server.
func newSite(t *testing.T, database string) site {
	t.Helper()
	dir := t.TempDir()
	s := site{Database: database, World: filepath.Join(dir, "world"), Lease: 10 * time.Second}
	if database == "postgres" {
		s.At = pgtest.DSN(t)
	} else {
		s.At = filepath.Join(dir, "workflows.db")
	}
	return s
}

// opening overrides how a site is opened.
type opening struct {
	wrap func(workflowd.Store) workflowd.Store
	now  func() time.Time
	log  *slog.Logger
	// patience is the store's patience with a database that does not answer; 0 for the
	// default.
	patience time.Duration
	payload  int // the largest allowed payload; 0 for the default
	// recoveries is workflowd.Config.MaxRecoveries. 0 is a million: where processes
	// constantly die, a run is given to many workers.
	recoveries int
}

// open does the same as workflow/sqlite and workflow/postgres, with the test's wrapper
// around the store.
func (s site) open(ctx context.Context, o opening) (*workflow.Client, error) {
	e, err := s.engine(ctx, o)
	if err != nil {
		return nil, err
	}
	return workflow.NewClient(&owned{e.For(""), e}, workflow.ClientOptions{}), nil
}

func (s site) engine(ctx context.Context, o opening) (*workflowd.Engine, error) {
	store, err := s.store(ctx, o)
	if err != nil {
		return nil, err
	}
	if o.wrap != nil {
		store = o.wrap(store)
	}
	return workflowd.Open(ctx, workflowd.Config{
		Store: store, Now: o.now, Logger: o.log, MaxPayload: o.payload,
		MaxRecoveries: cmp.Or(o.recoveries, 1_000_000),
	})
}

func (s site) store(ctx context.Context, o opening) (workflowd.Store, error) {
	if s.Database == "postgres" {
		return sqlstore.OpenPostgres(ctx, s.At, sqlstore.PostgresOptions{Lease: s.Lease, Patience: o.patience, Logger: o.log})
	}
	return sqlstore.OpenSQLite(ctx, s.At, sqlstore.SQLiteOptions{})
}

// owned is a Backend whose Close closes its engine.
type owned struct {
	workflow.Backend
	e *workflowd.Engine
}

func (b *owned) Close() error { return b.e.Close() }

// session is a running program: a client, a worker and the world.
type session struct {
	client *workflow.Client
	worker *workflow.Worker
	in     *interpreter
	world  *world
}

// work opens a site and starts a worker.
func (s site) work(ctx context.Context, o opening) (_ *session, err error) {
	w, err := openWorld(s.World)
	if err != nil {
		return nil, err
	}
	client, err := s.open(ctx, o)
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return workOn(ctx, client, w, o.log)
}

// workOn starts a worker of a client. The session then owns client and world.
func workOn(ctx context.Context, client *workflow.Client, w *world, log *slog.Logger) (*session, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	in := newInterpreter(w)
	in.client = client
	n := &session{client: client, in: in, world: w}
	n.worker = workflow.NewWorker(client, workflow.WorkerConfig{
		Definitions: workflow.Definitions(in.programs, in.prepare, in.rows),
		Logger:      log,
		// Do not wait for steps that wait for an unreachable database.
		StopTimeout: 200 * time.Millisecond,
	})
	if err := n.worker.Start(ctx); err != nil {
		return nil, errors.Join(err, client.Close(), w.close())
	}
	return n, nil
}

func (n *session) close() error {
	n.worker.Stop()
	return errors.Join(n.client.Close(), n.world.close())
}

// runAll starts programs, or finds those that were started before, and waits for their
// output. After a crash it can be called again on another session.
func (n *session) runAll(ctx context.Context, programs []program, rows bool) ([][]string, error) {
	if rows {
		// A run creates the table, because only the engine may open the database.
		r, err := n.in.prepare.Start(ctx, n.client, 0, workflow.Key("prepare"))
		if err != nil {
			return nil, err
		}
		if _, err := r.Result(ctx); err != nil {
			return nil, err
		}
	}
	runs := make([]*workflow.Run[[]string], len(programs))
	for i, p := range programs {
		r, err := n.in.programs.Start(ctx, n.client, p, workflow.Key(p.Path))
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", p.Path, err)
		}
		runs[i] = r
	}
	said := make([][]string, len(programs))
	errs := make([]error, len(programs))
	var all sync.WaitGroup
	for i, r := range runs {
		all.Go(func() {
			if said[i], errs[i] = r.Result(ctx); errs[i] != nil {
				errs[i] = fmt.Errorf("program %s: %w", programs[i].Path, errs[i])
			}
		})
	}
	all.Wait()
	return said, errors.Join(errs...)
}

// readRows returns the paths of all rows that transactional steps have written.
func (n *session) readRows(ctx context.Context) ([]string, error) {
	r, err := n.in.rows.Start(ctx, n.client, 0)
	if err != nil {
		return nil, err
	}
	return r.Result(ctx)
}

// unfinished returns the logs of live runs, for the output of a failed test.
func (n *session) unfinished() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var b strings.Builder
	for run, err := range n.client.All(ctx, workflow.Query{Statuses: []workflow.Status{workflow.StatusPending, workflow.StatusRunning}}) {
		if err != nil {
			fmt.Fprintln(&b, err)
			break
		}
		fmt.Fprintf(&b, "%s is %s, recovered %d times\n", run.ID, run.Status, run.Recoveries)
		events, err := n.client.Events(ctx, run.ID, 1, 0)
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		for _, e := range events {
			fmt.Fprintf(&b, "  %d %s %s %.200s %v\n", e.Slot, e.Type, e.ID, e.Payload, e.Attributes)
		}
	}
	return b.String()
}

// verdict is the outcome of programs.
type verdict struct {
	Said [][]string `json:"said"`
	Rows []string   `json:"rows"`
}

// finish runs programs to their end.
func (n *session) finish(ctx context.Context, programs []program, rows bool) (v verdict, err error) {
	if v.Said, err = n.runAll(ctx, programs, rows); err != nil || !rows {
		return v, err
	}
	v.Rows, err = n.readRows(ctx)
	return v, err
}

// check compares the outcome of programs with the model.
func (s site) check(programs []program, v verdict) error {
	var errs []error
	var effects, rows []string
	for i, p := range programs {
		m := modelOf(p)
		if !slices.Equal(v.Said[i], m.said) {
			errs = append(errs, fmt.Errorf("program %s answered\n%q\nand must answer\n%q", p.Path, v.Said[i], m.said))
		}
		effects, rows = append(effects, m.effects...), append(rows, m.rows...)
	}
	slices.Sort(rows)
	slices.Sort(v.Rows)
	if !slices.Equal(rows, v.Rows) {
		errs = append(errs, fmt.Errorf("the rows of transactions are\n%q\nand must be\n%q", v.Rows, rows))
	}
	w, err := openWorld(s.World)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(errors.Join(errs...), w.check(effects), w.close())
}

// programsOf returns n random programs, generated from a seed.
func programsOf(seed uint64, n int, without ...kind) []program {
	g := newGenerator(seed, without...)
	all := make([]program, n)
	for i := range all {
		all[i] = g.program(fmt.Sprintf("p%d", i))
	}
	return all
}

// logTo logs to a test if CAY_FAULT_LOG is set.
func logTo(t *testing.T) *slog.Logger {
	if os.Getenv("CAY_FAULT_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}
