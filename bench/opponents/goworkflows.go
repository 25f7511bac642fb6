package main

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/cschleiden/go-workflows/backend"
	"github.com/cschleiden/go-workflows/backend/monoprocess"
	"github.com/cschleiden/go-workflows/backend/sqlite"
	"github.com/cschleiden/go-workflows/client"
	"github.com/cschleiden/go-workflows/worker"
	"github.com/cschleiden/go-workflows/workflow"
	"github.com/google/uuid"
)

// goWorkflows is go-workflows in the arrangement that is fastest for it: backend
// and worker in one process that notify each other of work, and SQLite with
// synchronous=NORMAL unless the suite asks for FULL, which is its default.
type goWorkflows struct {
	db      *sql.DB
	backend backend.Backend
	client  *client.Client
	worker  *worker.Worker
	stop    context.CancelFunc
}

// The engine finds workflows and activities by the names of functions, so the
// functions cannot be methods of a value, and report to package variables.
var (
	goDone, goAsleep, goBlocked = newArrivals(), newArrivals(), newArrivals()
	goWaiting                   = make(chan struct{})
	goResumed                   = make(chan time.Time)
)

func openGoWorkflows(ctx context.Context, p place) (_ engine, err error) {
	if p.store != "sqlite" {
		return nil, errNotSupported
	}
	synchronous := "NORMAL"
	if p.full {
		synchronous = "FULL"
	}
	e := &goWorkflows{}
	e.db, err = sql.Open("sqlite", "file:"+p.at+"?_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)&_pragma=synchronous("+synchronous+")")
	if err != nil {
		return nil, err
	}
	e.db.SetMaxOpenConns(1) // as in its own constructor
	e.backend = monoprocess.NewMonoprocessBackend(sqlite.NewSqliteBackendWithDB(e.db, sqlite.WithApplyMigrations(true),
		sqlite.WithBackendOptions(backend.WithLogger(slog.New(slog.DiscardHandler)), backend.WithMaxHistorySize(1_000_000))))
	o := worker.DefaultOptions
	o.SingleWorkerMode = true
	o.WorkflowExecutorCacheSize = 20_000
	e.worker = worker.New(e.backend, &o)
	for _, w := range []workflow.Workflow{goSteps, goTogether, goReceiver, goSleeper, goBlocker} {
		if err := e.worker.RegisterWorkflow(w); err != nil {
			return nil, err
		}
	}
	for _, a := range []workflow.Activity{goNoop, goArrive, goBlock} {
		if err := e.worker.RegisterActivity(a); err != nil {
			return nil, err
		}
	}
	e.client = client.New(e.backend)
	ctx, e.stop = context.WithCancel(ctx)
	return e, e.worker.Start(ctx)
}

func goNoop(context.Context) (int, error)   { return 1, nil }
func goArrive(context.Context) (int, error) { goAsleep.arrive(); return 1, nil }

func goBlock(ctx context.Context) (int, error) {
	goBlocked.arrive()
	<-ctx.Done()
	return 0, ctx.Err()
}

func goSteps(ctx workflow.Context, n int) (int, error) {
	sum := 0
	for range n {
		v, err := workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goNoop).Get(ctx)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	goDone.arrive()
	return sum, nil
}

func (e *goWorkflows) start(ctx context.Context, w workflow.Workflow, args ...any) (*workflow.Instance, error) {
	return e.client.CreateWorkflowInstance(ctx, client.WorkflowInstanceOptions{InstanceID: uuid.NewString()}, w, args...)
}

// run asks the engine for the result of a single run. For several runs it only
// waits until their functions return: the engine polls for results, which would
// slow it down.
func (e *goWorkflows) run(ctx context.Context, runs, steps int) error {
	var last *workflow.Instance
	for range runs {
		i, err := e.start(ctx, goSteps, steps)
		if err != nil {
			return err
		}
		last = i
	}
	if runs == 1 {
		if _, err := client.GetWorkflowResult[int](ctx, e.client, last, 10*time.Minute); err != nil {
			return err
		}
	}
	return goDone.await(ctx, runs)
}

func goTogether(ctx workflow.Context, n int) (int, error) {
	futures := make([]workflow.Future[int], n)
	for i := range futures {
		futures[i] = workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goNoop)
	}
	sum := 0
	for _, f := range futures {
		v, err := f.Get(ctx)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func (e *goWorkflows) parallel(ctx context.Context, steps int) error {
	i, err := e.start(ctx, goTogether, steps)
	if err != nil {
		return err
	}
	_, err = client.GetWorkflowResult[int](ctx, e.client, i, 10*time.Minute)
	return err
}

func goReceiver(ctx workflow.Context) (int, error) {
	if !workflow.Replaying(ctx) {
		go func() { goWaiting <- struct{}{} }()
	}
	v, _ := workflow.NewSignalChannel[int](ctx, "go").Receive(ctx)
	at := time.Now()
	go func() { goResumed <- at }()
	return v, nil
}

func (e *goWorkflows) resume(ctx context.Context) (time.Duration, error) {
	i, err := e.start(ctx, goReceiver)
	if err != nil {
		return 0, err
	}
	<-goWaiting
	time.Sleep(settled)
	since := time.Now()
	if err := e.client.SignalWorkflow(ctx, i.InstanceID, "go", 1); err != nil {
		return 0, err
	}
	took := (<-goResumed).Sub(since)
	_, err = client.GetWorkflowResult[int](ctx, e.client, i, time.Minute)
	return took, err
}

func goBlocker(ctx workflow.Context) (int, error) {
	for range 3 {
		if _, err := workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goNoop).Get(ctx); err != nil {
			return 0, err
		}
	}
	return workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goBlock).Get(ctx)
}

func (e *goWorkflows) live(ctx context.Context, runs int) error {
	return start(ctx, runs, func() error {
		_, err := e.start(ctx, goBlocker)
		return err
	}, goBlocked)
}

// recovered is not measured: an activity that was interrupted is tried again only
// when its lock has timed out, minutes later.
func (e *goWorkflows) recovered(context.Context, int) error { return errNotSupported }

func goSleeper(ctx workflow.Context) (int, error) {
	if _, err := workflow.ExecuteActivity[int](ctx, workflow.DefaultActivityOptions, goArrive).Get(ctx); err != nil {
		return 0, err
	}
	return 0, workflow.Sleep(ctx, 24*time.Hour)
}

func (e *goWorkflows) sleep(ctx context.Context, runs int) error {
	return start(ctx, runs, func() error {
		_, err := e.start(ctx, goSleeper)
		return err
	}, goAsleep)
}

func (e *goWorkflows) close() error {
	e.stop()
	if err := e.worker.WaitForCompletion(); err != nil {
		return err
	}
	return e.db.Close()
}
