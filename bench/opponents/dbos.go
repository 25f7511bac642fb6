package main

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite"
	"github.com/google/uuid"
)

// dbosEngine is DBOS as its documentation shows it, with its own settings of
// SQLite and its own pool for PostgreSQL.
type dbosEngine struct {
	ctx dbos.Context
	own *sql.DB // with FULL

	asleep, blocked *arrivals
	waiting         chan struct{}
	resumed         chan time.Time
}

func openDBOS(ctx context.Context, p place) (_ engine, err error) {
	e := &dbosEngine{
		asleep: newArrivals(), blocked: newArrivals(),
		waiting: make(chan struct{}), resumed: make(chan time.Time),
	}
	c := dbos.Config{
		AppName: "bench", ExecutorID: "bench", ApplicationVersion: "bench",
		Logger: slog.New(slog.DiscardHandler),
	}
	switch {
	case p.store == "postgres":
		c.DatabaseURL = p.at
	case p.full:
		// The same options with which DBOS opens a database itself, except for
		// synchronous(FULL).
		e.own, err = sql.Open("sqlite", "file:"+p.at+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=foreign_keys(ON)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
		if err != nil {
			return nil, err
		}
		e.own.SetMaxOpenConns(8)
		e.own.SetMaxIdleConns(4)
		c.SQLiteSystemDB = e.own
	default:
		c.DatabaseURL = "sqlite:" + p.at
	}
	if e.ctx, err = dbos.NewContext(ctx, c); err != nil {
		return nil, err
	}
	dbos.RegisterWorkflow(e.ctx, e.steps)
	dbos.RegisterWorkflow(e.ctx, e.together)
	dbos.RegisterWorkflow(e.ctx, e.receiver)
	dbos.RegisterWorkflow(e.ctx, e.sleeper)
	dbos.RegisterWorkflow(e.ctx, e.blocker)
	if err := dbos.Launch(e.ctx); err != nil {
		return nil, err
	}
	return e, nil
}

func noop(context.Context) (int, error) { return 1, nil }

func (e *dbosEngine) steps(ctx dbos.Context, n int) (int, error) {
	sum := 0
	for range n {
		v, err := dbos.RunAsStep(ctx, noop)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func (e *dbosEngine) run(_ context.Context, runs, steps int) error {
	handles := make([]dbos.WorkflowHandle[int], runs)
	for i := range handles {
		h, err := dbos.RunWorkflow(e.ctx, e.steps, steps)
		if err != nil {
			return err
		}
		handles[i] = h
	}
	for _, h := range handles {
		if _, err := h.GetResult(); err != nil {
			return err
		}
	}
	return nil
}

func (e *dbosEngine) together(ctx dbos.Context, n int) (int, error) {
	outcomes := make([]<-chan dbos.StepOutcome[int], n)
	for i := range outcomes {
		o, err := dbos.Go(ctx, noop)
		if err != nil {
			return 0, err
		}
		outcomes[i] = o
	}
	sum := 0
	for _, o := range outcomes {
		r := <-o
		if r.Err != nil {
			return 0, r.Err
		}
		sum += r.Result
	}
	return sum, nil
}

func (e *dbosEngine) parallel(_ context.Context, steps int) error {
	h, err := dbos.RunWorkflow(e.ctx, e.together, steps)
	if err != nil {
		return err
	}
	_, err = h.GetResult()
	return err
}

func (e *dbosEngine) receiver(ctx dbos.Context, _ int) (int, error) {
	if _, err := dbos.RunAsStep(ctx, func(context.Context) (int, error) { e.waiting <- struct{}{}; return 1, nil }); err != nil {
		return 0, err
	}
	v, err := dbos.Recv[int](ctx, "go", time.Minute)
	e.resumed <- time.Now()
	return v, err
}

func (e *dbosEngine) resume(context.Context) (time.Duration, error) {
	id := uuid.NewString()
	h, err := dbos.RunWorkflow(e.ctx, e.receiver, 0, dbos.WithWorkflowID(id))
	if err != nil {
		return 0, err
	}
	<-e.waiting
	time.Sleep(settled) // until it waits: nothing says so
	since := time.Now()
	if err := dbos.Send(e.ctx, id, 1, "go"); err != nil {
		return 0, err
	}
	took := (<-e.resumed).Sub(since)
	_, err = h.GetResult()
	return took, err
}

// settled is longer than a run takes to begin to wait.
const settled = 30 * time.Millisecond

func (e *dbosEngine) blocker(ctx dbos.Context, n int) (int, error) {
	if _, err := e.steps(ctx, 3); err != nil {
		return 0, err
	}
	return dbos.RunAsStep(ctx, func(ctx context.Context) (int, error) {
		e.blocked.arrive()
		<-ctx.Done()
		return 0, ctx.Err()
	})
}

func (e *dbosEngine) live(ctx context.Context, runs int) error {
	return start(ctx, runs, func() error {
		_, err := dbos.RunWorkflow(e.ctx, e.blocker, 0)
		return err
	}, e.blocked)
}

func (e *dbosEngine) recovered(ctx context.Context, runs int) error {
	return e.blocked.await(ctx, runs)
}

func (e *dbosEngine) sleeper(ctx dbos.Context, _ int) (int, error) {
	if _, err := dbos.RunAsStep(ctx, func(context.Context) (int, error) { e.asleep.arrive(); return 1, nil }); err != nil {
		return 0, err
	}
	_, err := dbos.Sleep(ctx, 24*time.Hour)
	return 0, err
}

func (e *dbosEngine) sleep(ctx context.Context, runs int) error {
	return start(ctx, runs, func() error {
		_, err := dbos.RunWorkflow(e.ctx, e.sleeper, 0)
		return err
	}, e.asleep)
}

func (e *dbosEngine) close() error {
	if err := dbos.Shutdown(e.ctx, 2*time.Second); err != nil {
		return err
	}
	if e.own != nil {
		return e.own.Close()
	}
	return nil
}
