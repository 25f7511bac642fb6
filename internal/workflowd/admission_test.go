package workflowd_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// limitedWorkflow is the workflow of the runs of external.
const limitedWorkflow = "workflow//./w//f"

// limitedApp is an app with an engine and a queue: it starts the run of each message.
type limitedApp struct {
	*testing.T
	e       *workflowd.Engine
	x       *workflowd.External
	b       workflow.Backend
	q       *queue.Queue
	other   *workflowd.External // of a daemon that may own runs; or nil
	started chan string         // runs
}

// databaseStore is a store of runs and messages.
type databaseStore interface {
	workflowd.Store
	Queue() queue.Store
}

func openLimited(t *testing.T, store databaseStore, change ...func(*queue.Config)) *limitedApp {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	a := &limitedApp{T: t, started: make(chan string, 100)}
	c := queue.Config{Store: store.Queue(), Logger: logger}
	for _, f := range change {
		f(&c)
	}
	a.q = checktest.Must(queue.Open(t.Context(), c))(t)
	a.e = checktest.Must(workflowd.Open(t.Context(), workflowd.Config{
		Store: store, Logger: logger, Messages: a.q, Runtimes: map[history.Kind]workflowd.Runtime{history.JavaScript: upper{}},
	}))(t)
	a.x, a.b = a.e.External("p", history.JavaScript), a.e.For("p")
	a.q.SetPusher(a)
	checktest.Must(a.q.Register(t.Context(), queue.Deployment{Project: "p", ID: "dpl_1", URL: "http://127.0.0.1:3000"}))(t)
	return a
}

func (a *limitedApp) close() {
	a.Helper()
	checktest.OK(a, a.q.Close())
	checktest.OK(a, a.e.Close())
}

// Push implements queue.Pusher.
func (a *limitedApp) Push(ctx context.Context, _ queue.Deployment, m queue.Message) error {
	if err := a.e.Admit(ctx, &m); err != nil {
		return err
	}
	rec, err := a.record(ctx, m.Run, history.RunStarted)
	if err != nil {
		return err
	}
	a.started <- m.Run
	if rec.Results[0].Err != nil {
		a.started <- "not: " + rec.Results[0].Err.Error()
	}
	return a.q.Acknowledge(ctx, "p", m.Receipt)
}

// Check implements queue.Pusher.
func (a *limitedApp) Check(context.Context, queue.Deployment) error { return nil }

// record appends an event at the daemon that owns the run.
func (a *limitedApp) record(ctx context.Context, run string, event history.Type) (*workflowd.Recorded, error) {
	rec, err := a.x.Record(ctx, run, workflowd.Entry{{Type: event}})
	if cay.CodeOf(err) == cay.Unavailable && a.other != nil {
		rec, err = a.other.Record(ctx, run, workflowd.Entry{{Type: event}})
	}
	return rec, err
}

// begin creates a run and publishes its first message, as the SDK does.
func (a *limitedApp) begin(n int) string {
	a.Helper()
	id := fmt.Sprintf("wrun_01M8BS000000000000000000%02d", n)
	createExternal(a.T, a.x, id)
	checktest.Must(a.q.Publish(a.Context(), queue.Message{Project: "p", Deployment: "dpl_1", Topic: "t", Run: id}))(a)
	return id
}

func (a *limitedApp) end(run string) {
	a.Helper()
	checktest.Must(a.record(a.Context(), run, history.RunCompleted))(a)
}

// starts waits until the next run starts.
func (a *limitedApp) starts(want string) {
	a.Helper()
	select {
	case run := <-a.started:
		if run != want {
			a.Fatalf("%s starts, want %s", run, want)
		}
	case <-time.After(20 * time.Second):
		a.Fatalf("%s does not start", want)
	}
}

// parked waits until so many messages are parked.
func (a *limitedApp) parked(n int) {
	a.Helper()
	for {
		all := checktest.Must(a.q.Messages(a.Context(), "p", "", 100))(a)
		found := 0
		for i := range all {
			if strings.Contains(all[i].LastError, "waits for the limit of workflow "+limitedWorkflow) {
				found++
			}
		}
		if found == n && len(all) == n {
			return
		}
		select {
		case run := <-a.started:
			a.Fatalf("%s starts, beyond the limit", run)
		case <-time.After(5 * time.Millisecond):
		case <-a.Context().Done():
			a.Fatalf("%d of %d messages are parked", found, len(all))
		}
	}
}

// eachLimited runs a test on both databases; reopen closes the app with its engine and
// opens it again on the same database.
func eachLimited(t *testing.T, test func(t *testing.T, reopen func() *limitedApp), change ...func(*queue.Config)) {
	run := func(t *testing.T, open func() databaseStore) {
		t.Parallel()
		var a *limitedApp
		test(t, func() *limitedApp {
			if a != nil {
				a.close()
			}
			a = openLimited(t, open(), change...)
			return a
		})
		a.close()
	}
	t.Run("SQLite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "w.db")
		run(t, func() databaseStore {
			return checktest.Must(sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{}))(t)
		})
	})
	t.Run("Postgres", func(t *testing.T) {
		dsn := pgtest.DSN(t)
		run(t, func() databaseStore {
			return checktest.Must(sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Conns: 6}))(t)
		})
	})
}

// So many runs of a workflow are running as its limit allows, the oldest first, also after
// a restart; ended and cancelled runs make room, and without the limit all start.
func TestAdmission_Concurrency(t *testing.T) {
	eachLimited(t, func(t *testing.T, reopen func() *limitedApp) {
		a := reopen()
		limit := checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 2}))(t)
		if all := checktest.Must(a.b.ListLimits(t.Context()))(t); len(all) != 1 || all[0] != *limit {
			t.Errorf("the limits are %+v, want %+v", all, limit)
		}
		var runs []string
		for n := range 8 {
			runs = append(runs, a.begin(n))
			if n < 2 {
				a.starts(runs[n])
			}
		}
		a.parked(6)
		a.end(runs[0])
		a.starts(runs[2])
		a.parked(5)
		a = reopen()
		a.parked(5)
		if _, err := a.b.CancelRun(t.Context(), runs[3], workflow.CancelParams{}); err != nil {
			t.Fatal(err)
		}
		a.starts(runs[3]) // so that the app learns of the end
		if why := <-a.started; !strings.HasPrefix(why, "not: ") {
			t.Fatalf("a canceled run starts: %s", why)
		}
		a.parked(4)
		a.end(runs[1])
		a.starts(runs[4])
		a.end(runs[2])
		a.starts(runs[5])
		a.parked(2)
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 3}))(t)
		a.starts(runs[6])
		a.parked(1)
		checktest.OK(t, a.b.DeleteLimit(t.Context(), limitedWorkflow))
		a.starts(runs[7])
		a.starts(a.begin(8))
		checktest.Code(t, a.b.DeleteLimit(t.Context(), limitedWorkflow), cay.NotFound)
	})
}

// Runs of a workflow with a priority go before others that wait for their app, also if they
// had been waiting when they got the priority, and after a restart. They are not parked.
func TestAdmission_Priority(t *testing.T) {
	eachLimited(t, func(t *testing.T, reopen func() *limitedApp) {
		a := reopen()
		checktest.OK(t, a.q.Deregister(t.Context(), "p", "dpl_1", ""))
		priorities := func(want int) {
			t.Helper()
			if all := checktest.Must(a.e.Priorities(t.Context(), "p"))(t); all[limitedWorkflow] != want || len(all) > 1 {
				t.Errorf("the priorities are %v, want %d", all, want)
			}
		}
		priorities(0)
		var low, high []string
		for n := range 6 {
			id := fmt.Sprintf("wrun_01M8BS000000000000000000%02d", n)
			name := limitedWorkflow
			if n < 3 {
				name, low = "workflow//./w//other", append(low, id)
			} else {
				high = append(high, id)
			}
			createOf(t, a.x, id, name)
			checktest.Must(a.q.Publish(t.Context(), queue.Message{Project: "p", Deployment: "dpl_1", Topic: "t", Run: id}))(t)
		}
		levels := func(want int) {
			t.Helper()
			for {
				found := 0
				for _, m := range checktest.Must(a.q.Messages(t.Context(), "p", "", 100))(t) {
					if m.Priority == 5 {
						found++
					}
				}
				if found == want {
					return
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-t.Context().Done():
					t.Fatalf("%d messages have the priority, want %d", found, want)
				}
			}
		}
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Priority: 5}))(t)
		levels(3)
		checktest.OK(t, a.b.DeleteLimit(t.Context(), limitedWorkflow))
		levels(0)
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Priority: 5}))(t)
		levels(3)
		a = reopen() // registers the app
		priorities(5)
		for _, run := range append(high, low...) {
			a.starts(run)
		}
	}, func(c *queue.Config) { c.InFlight = 1 })
}

// Daemons that share a database share the limit.
func TestAdmission_Shared(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	open := func() *limitedApp {
		return openLimited(t, checktest.Must(sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Conns: 6}))(t))
	}
	a, b := open(), open()
	a.other, b.other = b.x, a.x
	defer a.close()
	defer b.close()
	checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 1}))(t)
	started := func() string {
		t.Helper()
		select {
		case run := <-a.started:
			return run
		case run := <-b.started:
			return run
		case <-time.After(20 * time.Second):
			t.Fatal("no run starts")
			return ""
		}
	}
	a.begin(0)
	run := started()
	for n := range 5 {
		a.begin(n + 1)
	}
	for range 5 {
		a.end(run)
		run = started()
		select {
		case other := <-a.started:
			t.Fatalf("%s starts beside %s", other, run)
		case other := <-b.started:
			t.Fatalf("%s starts beside %s", other, run)
		default:
		}
	}
}

// Runs start as often as a rate allows.
func TestAdmission_Rate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		a := openLimited(t, checktest.Must(sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{}))(t))
		defer a.close()
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Rate: 3, Period: 10 * time.Second}))(t)
		begin := time.Now()
		var all sync.WaitGroup
		for n := range 10 {
			all.Go(func() { a.begin(n) })
		}
		all.Wait()
		seen := map[string]bool{}
		for n := range 10 {
			seen[<-a.started] = true
			if at, want := time.Since(begin), time.Duration(n/3)*10*time.Second; at < want || at > want+time.Second {
				t.Errorf("run %d starts after %s, want %s", n, at, want)
			}
		}
		if len(seen) != 10 {
			t.Errorf("%d runs have started", len(seen))
		}
	})
}

// A message of a run that its app has not created yet waits a little for the run.
func TestAdmission_MessageFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		a := openLimited(t, checktest.Must(sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{}))(t))
		defer a.close()
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 1}))(t)
		a.begin(0)
		<-a.started
		const late = "wrun_01M8BS00000000000000000077"
		admit := func() error {
			return a.e.Admit(t.Context(), &queue.Message{Project: "p", Deployment: "dpl_1", Topic: "t", Run: late})
		}
		if err := admit(); err != nil {
			t.Errorf("a message that carries its run: %v", err)
		}
		time.AfterFunc(time.Second, func() { createExternal(t, a.x, late) })
		if _, parked := admit().(*queue.ParkedError); !parked {
			t.Error("a run that is created a second later is not held up")
		}
	})
}

// A run is canceled whose app died between its creation and its first message; others that
// wait are left alone.
func TestAdmission_Orphan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.db")
	synctest.Test(t, func(t *testing.T) {
		a := openLimited(t, checktest.Must(sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{}))(t))
		defer a.close()
		checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 1}))(t)
		running, parked := a.begin(0), a.begin(1)
		<-a.started
		const orphan = "wrun_01M8BS00000000000000000077"
		createExternal(t, a.x, orphan)
		check := func(want map[string]history.Status) {
			t.Helper()
			for run, status := range want {
				if r := checktest.Must(a.b.GetRun(t.Context(), run))(t); r.Status != status {
					t.Errorf("%s is %s, want %s", run, r.Status, status)
				}
			}
		}
		time.Sleep(9 * time.Minute)
		check(map[string]history.Status{running: history.Running, parked: history.Pending, orphan: history.Pending})
		time.Sleep(time.Hour)
		check(map[string]history.Status{running: history.Running, parked: history.Pending, orphan: history.Cancelled})
		events := checktest.Must(a.b.Events(t.Context(), orphan, 1, 0))(t)
		if last := events[len(events)-1]; !strings.Contains(last.Reason, "died before it had published") {
			t.Errorf("its end is %+v", last)
		}
		a.end(running)
		if run := <-a.started; run != parked {
			t.Errorf("%s starts, want %s", run, parked)
		}
	})
}

// stubborn is a store that cannot delete limits.
type stubborn struct{ databaseStore }

func (stubborn) DeleteLimit(context.Context, string, string) error {
	return cay.Errorf(cay.NoSpace, "the disk is full")
}

// A limit that cannot be deleted stays in force.
func TestAdmission_StaysWhenNotDeleted(t *testing.T) {
	t.Parallel()
	store := checktest.Must(sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "w.db"), sqlstore.SQLiteOptions{}))(t)
	a := openLimited(t, stubborn{store})
	defer a.close()
	checktest.Must(a.b.PutLimit(t.Context(), workflow.Limit{Workflow: limitedWorkflow, Concurrency: 1}))(t)
	checktest.Code(t, a.b.DeleteLimit(t.Context(), limitedWorkflow), cay.NoSpace)
	a.starts(a.begin(0))
	a.begin(1)
	a.parked(1)
}

func TestAdmission_Refused(t *testing.T) {
	t.Parallel()
	store := checktest.Must(sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "w.db"), sqlstore.SQLiteOptions{}))(t)
	a := openLimited(t, store)
	defer a.close()
	for _, l := range []workflow.Limit{
		{Concurrency: 1}, {Workflow: "w"}, {Workflow: "w", Concurrency: -1}, {Workflow: "w", Priority: 101}, {Workflow: "w", Concurrency: 1, Priority: -1}, {Workflow: "w", Rate: 1}, {Workflow: "w", Concurrency: 1, Period: time.Second},
		{Workflow: "w", Rate: 1, Period: -time.Second}, {Workflow: "w", Rate: 1e6, Period: time.Hour}, {Workflow: "\xff", Concurrency: 1},
		{Workflow: strings.Repeat("w", 1025), Concurrency: 1},
	} {
		_, err := a.b.PutLimit(t.Context(), l)
		checktest.Code(t, err, cay.Invalid, fmt.Sprintf("%.60v", l))
	}
	e := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{})
	_, err := e.For("p").PutLimit(t.Context(), workflow.Limit{Workflow: "w", Concurrency: 1})
	checktest.Code(t, err, cay.NotSupported)
}
