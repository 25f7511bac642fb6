package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// soon retries almost at once.
var soon = workflow.RetryPolicy{Initial: time.Millisecond, Max: time.Millisecond}

var errOdd = workflow.RegisterError("worker_test.odd", errors.New("odd"))

// only returns a workflow of one step.
func only[In, Out any](name string, fn func(context.Context, In) (Out, error), opts ...workflow.StepOption) *workflow.Definition[In, Out] {
	step := workflow.Step(name, fn, opts...)
	return workflow.Define("only_"+name, func(ctx workflow.Context, in In) (Out, error) { return step.Run(ctx, in) })
}

// result runs a workflow to its end.
func result[In, Out any](t *testing.T, k *workflowtest.Kit, d *workflow.Definition[In, Out], in In, opts ...workflow.StartOption) (*workflow.Run[Out], Out, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run, err := d.Start(ctx, k.Client, in, opts...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := run.Result(ctx)
	if ctx.Err() != nil {
		for _, e := range logOf(t, k, run.ID) {
			t.Logf("%+v", e)
		}
		t.Fatal("the run does not end")
	}
	return run, out, err
}

func logOf(t *testing.T, k *workflowtest.Kit, run string) []workflow.Event {
	t.Helper()
	h, err := k.Client.History(context.Background(), run)
	if err != nil {
		t.Fatal(err)
	}
	return h.Events
}

func typesOf(events []workflow.Event) string {
	var types []string
	for _, e := range events {
		types = append(types, e.Type.String())
	}
	return strings.Join(types, " ")
}

func TestWorker_OneEventPerStep(t *testing.T) {
	double := only("double", func(_ context.Context, n int) (int, error) { return 2 * n, nil })
	k := workflowtest.New(t, workflowtest.Options{}, double)
	run, got, err := result(t, k, double, 21)
	if err != nil || got != 42 {
		t.Fatal(got, err)
	}
	if types := typesOf(logOf(t, k, run.ID)); types != "run_created run_started step_completed run_completed" {
		t.Error(types)
	}
}

func TestWorker_SlowStepIsRecordedWhenItBegins(t *testing.T) {
	release := make(chan struct{})
	slow := only("slow", func(ctx context.Context, _ int) (string, error) {
		<-release
		return workflow.StepInfo(ctx).IdempotencyKey, nil
	})
	k := workflowtest.New(t, workflowtest.Options{}, slow)
	run, err := slow.Start(t.Context(), k.Client, 1)
	if err != nil {
		t.Fatal(err)
	}
	started := k.WaitFor(run.ID, "step_started", func(e *workflow.Event) bool { return e.Type == history.StepStarted })
	close(release)
	if started.Attempt != 1 || started.StartedAt == 0 || started.Name != "slow" || len(started.Input) == 0 {
		t.Errorf("%+v", started)
	}
	key, err := run.Result(t.Context())
	if err != nil || key != run.ID+"/"+started.ID {
		t.Error(key, err)
	}
}

func TestWorker_Retries(t *testing.T) {
	var calls atomic.Int32
	flaky := only("flaky", func(ctx context.Context, n int32) (int, error) {
		if calls.Add(1) <= n {
			return 0, errOdd
		}
		return workflow.StepInfo(ctx).Attempt, nil
	}, soon)
	k := workflowtest.New(t, workflowtest.Options{}, flaky)
	run, got, err := result(t, k, flaky, 2)
	if err != nil || got != 3 {
		t.Errorf("after two failures: attempt %d, %v", got, err)
	}
	if types := typesOf(logOf(t, k, run.ID)); types != "run_created run_started step_retrying step_started step_retrying step_started step_completed run_completed" {
		t.Error(types)
	}
	calls.Store(0)
	_, _, err = result(t, k, flaky, 100)
	var step *workflow.StepError
	var failed *workflow.RunFailedError
	if !errors.Is(err, errOdd) || !errors.As(err, &step) || !errors.As(err, &failed) {
		t.Fatalf("after four failures: %v", err)
	}
	if step.Attempts != 4 || step.Step != "flaky" || failed.Code != history.CodeUser || calls.Load() != 4 {
		t.Errorf("%+v %+v, %d calls", step, failed, calls.Load())
	}
}

func TestWorker_FatalAndRetryable(t *testing.T) {
	var calls atomic.Int32
	fatal := only("fatal", func(context.Context, int) (int, error) {
		calls.Add(1)
		return 0, workflow.Fatal(cay.Errorf(cay.PermissionDenied, "no"))
	})
	var first time.Time
	later := only("later", func(ctx context.Context, _ int) (time.Duration, error) {
		if workflow.StepInfo(ctx).Attempt == 1 {
			first = time.Now()
			return 0, workflow.Retryable(errOdd, 150*time.Millisecond)
		}
		return time.Since(first), nil
	}, soon)
	k := workflowtest.New(t, workflowtest.Options{}, fatal, later)
	if _, _, err := result(t, k, fatal, 1); cay.CodeOf(err) != cay.PermissionDenied || calls.Load() != 1 {
		t.Errorf("fatal: %v, %d calls", err, calls.Load())
	}
	if _, took, err := result(t, k, later, 1); err != nil || took < 150*time.Millisecond || took > time.Minute {
		t.Errorf("retryable: after %s, %v", took, err)
	}
}

func TestWorker_StepsThatMisbehave(t *testing.T) {
	panics := only("panics", func(context.Context, int) (int, error) { panic("oh") }, workflow.MaxRetries(0))
	exits := only("exits", func(context.Context, int) (int, error) { runtime.Goexit(); return 0, nil }, workflow.MaxRetries(0))
	unstorable := only("unstorable", func(context.Context, int) (any, error) { return func() {}, nil }, workflow.MaxRetries(0))
	// MaxSteps is 1, so a step that did not give its place back would block the others.
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) { c.MaxSteps = 1 }}, panics, exits, unstorable)
	_, _, err := result(t, k, panics, 1)
	var p *workflow.PanicError
	if !errors.As(err, &p) || p.Value != "oh" || !strings.Contains(p.Stack, "worker_test.go") {
		t.Errorf("panic: %v", err)
	}
	if _, _, err := result(t, k, exits, 1); cay.CodeOf(err) != cay.Internal {
		t.Errorf("Goexit: %v", err)
	}
	if _, _, err := result(t, k, unstorable, 1); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("function as result: %v", err)
	}
	if _, _, err := result(t, k, panics, 1); err == nil {
		t.Error("panics no more")
	}
}

func TestWorker_TxStep(t *testing.T) {
	var calls atomic.Int32
	book := workflow.TxStep("book", func(ctx context.Context, tx workflow.Tx, n int) (int, error) {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS bookings (n INTEGER)"); err != nil {
			return 0, err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO bookings VALUES (?)", n); err != nil {
			return 0, err
		}
		if calls.Add(1) == 1 {
			return 0, errOdd // the write is rolled back
		}
		var rows int
		return rows, tx.QueryRowContext(ctx, "SELECT count(*) FROM bookings").Scan(&rows)
	}, soon)
	d := workflow.Define("books", func(ctx workflow.Context, n int) (int, error) {
		if _, err := book.Run(ctx, n); err != nil {
			return 0, err
		}
		return book.Run(ctx, n)
	})
	k := workflowtest.New(t, workflowtest.Options{}, d)
	if _, rows, err := result(t, k, d, 1); err != nil || rows != 2 || calls.Load() != 3 {
		t.Errorf("%d rows, %v after %d calls", rows, err, calls.Load())
	}
}

func TestWorker_StepTimeouts(t *testing.T) {
	waits := func(ctx context.Context, _ int) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	late := only("late", waits, workflow.Timeout(20*time.Millisecond), workflow.MaxRetries(0))
	silent := only("silent", waits, workflow.Heartbeat(20*time.Millisecond), workflow.MaxRetries(0))
	const allowed = 2 * time.Second // time without a heartbeat, on a machine that may stall for a while
	beats := only("beats", func(ctx context.Context, _ int) (int, error) {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for begun := time.Now(); time.Since(begun) < allowed*5/4; {
			select {
			case <-tick.C:
				workflow.RecordHeartbeat(ctx)
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		return 1, nil
	}, workflow.Heartbeat(allowed), workflow.MaxRetries(0))
	k := workflowtest.New(t, workflowtest.Options{}, late, silent, beats)
	if _, _, err := result(t, k, late, 1); cay.CodeOf(err) != cay.DeadlineExceeded || !strings.Contains(err.Error(), "timeout of 20ms") {
		t.Errorf("timeout: %v", err)
	}
	if _, _, err := result(t, k, silent, 1); cay.CodeOf(err) != cay.DeadlineExceeded || !strings.Contains(err.Error(), "sign of life") {
		t.Errorf("heartbeat: %v", err)
	}
	if _, _, err := result(t, k, beats, 1); err != nil {
		t.Errorf("with beats: %v", err)
	}
}

func TestWorker_Cancel(t *testing.T) {
	entered := make(chan struct{}, 1)
	var undone atomic.Bool
	undo := workflow.Step("undo", func(context.Context, int) (int, error) { undone.Store(true); return 0, nil })
	wait := workflow.Step("wait", func(ctx context.Context, _ int) (int, error) {
		entered <- struct{}{}
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	d := workflow.Define("cancelled", func(ctx workflow.Context, in int) (int, error) {
		out, err := wait.Run(ctx, in)
		if errors.Is(err, workflow.ErrCancelled) {
			if _, err := undo.Run(workflow.WithoutCancel(ctx), in); err != nil {
				return 0, err
			}
		}
		return out, err
	})
	k := workflowtest.New(t, workflowtest.Options{}, d)
	run, err := d.Start(t.Context(), k.Client, 1)
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	if err := run.Cancel(t.Context(), workflow.CancelParams{Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	_, err = run.Result(t.Context())
	var cancelled *workflow.RunCancelledError
	if !errors.As(err, &cancelled) || cancelled.Reason != "enough" || !errors.Is(err, workflow.ErrCancelled) || cay.CodeOf(err) == "" {
		t.Errorf("%v", err)
	}
	if !undone.Load() {
		t.Error("nothing was undone")
	}
	if types := typesOf(logOf(t, k, run.ID)); strings.Contains(types, "step_retrying") {
		t.Errorf("a cancelled step is to be tried again: %s", types)
	}

	run, err = d.Start(t.Context(), k.Client, 1)
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	if err := run.Cancel(t.Context(), workflow.CancelParams{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := run.Result(t.Context()); !errors.Is(err, workflow.ErrCancelled) {
		t.Errorf("forced: %v", err)
	}
}

// observer counts calls.
type observer struct {
	workflow.NoObserver
	mu                                sync.Mutex
	started, replayed, ended, diverge int
	steps, failures, retries          int
	dropped                           chan string
}

func (o *observer) RunDropped(run *workflow.RunInfo) {
	select {
	case o.dropped <- run.ID:
	default:
	}
}

func (o *observer) add(n *int) { o.mu.Lock(); *n++; o.mu.Unlock() }
func (o *observer) get(n *int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return *n
}
func (o *observer) RunStarted(*workflow.RunInfo)                             { o.add(&o.started) }
func (o *observer) RunReplayed(*workflow.RunInfo, int, time.Duration)        { o.add(&o.replayed) }
func (o *observer) RunEnded(*workflow.RunInfo, error)                        { o.add(&o.ended) }
func (o *observer) RunDiverged(*workflow.RunInfo, *workflow.DivergenceError) { o.add(&o.diverge) }
func (o *observer) StepEnded(_ context.Context, _ *workflow.RunInfo, s workflow.StepOutcome) {
	o.add(&o.steps)
	if s.Err != nil {
		o.add(&o.failures)
	}
	if !s.RetryAt.IsZero() {
		o.add(&o.retries)
	}
}

var approval = workflow.Define("approval", func(ctx workflow.Context, token string) (string, error) {
	hook, err := workflow.NewHook[string](ctx, token)
	if err != nil {
		return "", err
	}
	who, err := hook.Receive(ctx)
	if err != nil {
		return "", err
	}
	return workflow.Do(ctx, "greet", func(context.Context) (string, error) { return "hello " + who, nil })
})

func TestWorker_IdleRunsAreDropped(t *testing.T) {
	o := &observer{dropped: make(chan string, 1)}
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) {
		c.IdleTimeout, c.Observer = 10*time.Millisecond, o
	}}, approval)
	run, err := approval.Start(t.Context(), k.Client, "token")
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(run.ID)
	if id := <-o.dropped; id != run.ID {
		t.Errorf("run %s was dropped", id)
	}
	if err := workflow.ResumeHook(t.Context(), k.Client, "token", "you"); err != nil {
		t.Fatal(err)
	}
	if got, err := run.Result(t.Context()); err != nil || got != "hello you" {
		t.Error(got, err)
	}
	k.Close()
	if o.started != 1 || o.replayed != 1 || o.steps != 1 || o.ended != 1 {
		t.Errorf("observed: %+v", o)
	}
}

func TestWorker_MoreIdleRunsThanMaxRuns(t *testing.T) {
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) { c.MaxRuns = 10 }}, approval)
	var runs []*workflow.Run[string]
	for i := range 60 {
		run, err := approval.Start(t.Context(), k.Client, fmt.Sprint("token", i))
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	for i, run := range slices.Backward(runs) { // the last run gets the place of an idle one
		k.WaitForHook(run.ID)
		if err := workflow.ResumeHook(t.Context(), k.Client, fmt.Sprint("token", i), "you"); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range runs {
		if _, err := run.Result(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Every waiting run gives its place to another run, in whatever order an append is
// decided, delivered and fed.
func TestWorker_SleepersLeaveTheirPlaces(t *testing.T) {
	sleeper := workflow.Define("sleeper", func(ctx workflow.Context, _ int) (int, error) {
		if _, err := workflow.Do(ctx, "arrive", func(context.Context) (int, error) { return 1, nil }); err != nil {
			return 0, err
		}
		return 0, workflow.Sleep(ctx, time.Hour)
	})
	o := &observer{dropped: make(chan string, 5000)}
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) {
		c.MaxRuns, c.IdleTimeout, c.Observer = 100, time.Millisecond, o
	}}, sleeper)
	for range cap(o.dropped) {
		if _, err := sleeper.Start(t.Context(), k.Client, 0); err != nil {
			t.Fatal(err)
		}
	}
	left := time.NewTimer(3 * time.Minute)
	defer left.Stop()
	seen := make(map[string]bool)
	for len(seen) < cap(o.dropped) {
		select {
		case id := <-o.dropped:
			seen[id] = true
		case <-left.C:
			t.Fatalf("%d of %d runs keep their places", cap(o.dropped)-len(seen), cap(o.dropped))
		}
	}
}

func TestWorker_MaxSteps(t *testing.T) {
	var now, most, done atomic.Int32
	var once sync.Once
	begun := make(chan struct{})
	busy := workflow.Step("busy", func(context.Context, int) (int, error) {
		once.Do(func() { close(begun) })
		n := now.Add(1)
		defer done.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-time.After(time.Millisecond)
		return 1, nil
	})
	wide := workflow.Define("wide", func(ctx workflow.Context, n int) (int, error) {
		var all []*workflow.Future[int]
		for range n {
			all = append(all, busy.Go(ctx, 1))
		}
		out, err := workflow.All(ctx, all...)
		return len(out), err
	})
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) { c.MaxSteps = 7 }}, wide)
	big, err := wide.Start(t.Context(), k.Client, 500)
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	// A small run does not wait for the end of the large one.
	if _, _, err := result(t, k, wide, 3); err != nil {
		t.Fatal(err)
	}
	if n := done.Load(); n > 300 {
		t.Errorf("the small run had to wait for %d steps", n)
	}
	if n, err := big.Result(t.Context()); err != nil || n != 500 {
		t.Error(n, err)
	}
	if most.Load() != 7 {
		t.Errorf("%d steps at one time, not 7", most.Load())
	}
}

func TestWorker_ManyStepsOfOneRun(t *testing.T) {
	one := workflow.Step("one", func(_ context.Context, n int) (int, error) { return 1, nil })
	wide := workflow.Define("wide", func(ctx workflow.Context, n int) (int, error) {
		var all []*workflow.Future[int]
		for i := range n {
			all = append(all, one.Go(ctx, i))
		}
		out, err := workflow.All(ctx, all...)
		return len(out), err
	})
	k := workflowtest.New(t, workflowtest.Options{}, wide)
	const n = 10000
	start := time.Now()
	if _, got, err := result(t, k, wide, n); err != nil || got != n {
		t.Error(got, err)
	}
	t.Logf("%d steps at once in %s", n, time.Since(start))
}

func TestWorker_DroppedAtEveryMoment(t *testing.T) {
	k := workflowtest.New(t, workflowtest.Options{Worker: func(c *workflow.WorkerConfig) { c.IdleTimeout, c.MaxRuns = time.Nanosecond, 4 }}, naps)
	var runs []*workflow.Run[int]
	for range 30 {
		run, err := naps.Start(t.Context(), k.Client, 5)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
	}
	for _, run := range runs {
		if got, err := run.Result(t.Context()); err != nil || got != 10 {
			t.Error(got, err)
		}
		seen := make(map[string]int)
		for _, e := range logOf(t, k, run.ID) {
			if e.Type == history.StepCompleted {
				seen[e.ID]++
			}
		}
		if len(seen) != 5 {
			t.Errorf("steps: %v", seen)
		}
	}
}

var naps = workflow.Define("naps", func(ctx workflow.Context, n int) (int, error) {
	total := 0
	for i := range n {
		if err := workflow.Sleep(ctx, 3*time.Millisecond); err != nil {
			return 0, err
		}
		v, err := workflow.Do(ctx, "nap", func(context.Context) (int, error) { return i, nil })
		if err != nil {
			return 0, err
		}
		total += v
	}
	return total, nil
})

func TestWorker_StopRecordsWhatEnds(t *testing.T) {
	path := t.TempDir() + "/workflows.db"
	entered, release := make(chan struct{}, 2), make(chan struct{})
	var calls atomic.Int32
	slow := workflow.Step("slow", func(ctx context.Context, _ int) (int, error) {
		calls.Add(1)
		entered <- struct{}{}
		<-release
		return 1, nil
	})
	stuck := workflow.Step("stuck", func(ctx context.Context, _ int) (int, error) {
		if calls.Add(1) > 2 {
			return 2, nil
		}
		entered <- struct{}{}
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	d := workflow.Define("two", func(ctx workflow.Context, _ int) (int, error) {
		out, err := workflow.All(ctx, slow.Go(ctx, 1), stuck.Go(ctx, 1))
		if err != nil {
			return 0, err
		}
		return out[0] + out[1], nil
	})
	k := workflowtest.New(t, workflowtest.Options{Path: path, Worker: func(c *workflow.WorkerConfig) { c.StopTimeout = 5 * time.Second }}, d)
	run, err := d.Start(t.Context(), k.Client, 1)
	if err != nil {
		t.Fatal(err)
	}
	<-entered
	<-entered
	time.AfterFunc(30*time.Millisecond, func() { close(release) }) // while the worker stops
	k.Close()

	k = workflowtest.New(t, workflowtest.Options{Path: path}, d)
	got, err := workflow.GetRun[int](k.Client, run.ID).Result(t.Context())
	if err != nil || got != 3 || calls.Load() != 3 {
		t.Errorf("%d, %v after %d calls", got, err, calls.Load())
	}
	for _, e := range logOf(t, k, run.ID) {
		if e.Type == history.StepRetrying || e.Type == history.StepFailed {
			t.Errorf("the stop of the worker counts as a failure: %+v", e)
		}
	}
}

// changed returns a workflow before or after a change.
func changed(version int) *workflow.Definition[string, string] {
	a := workflow.Step("a", func(context.Context, int) (int, error) { return 1, nil })
	b := workflow.Step("b", func(context.Context, int) (int, error) { return 2, nil })
	return workflow.Define("changed", func(ctx workflow.Context, token string) (string, error) {
		step := a
		if version == 2 {
			step = b
		}
		if _, err := step.Run(ctx, 1); err != nil {
			return "", err
		}
		hook, err := workflow.NewHook[string](ctx, token)
		if err != nil {
			return "", err
		}
		return hook.Receive(ctx)
	})
}

func TestWorker_DivergenceBlocks(t *testing.T) {
	path := t.TempDir() + "/workflows.db"
	k := workflowtest.New(t, workflowtest.Options{Path: path}, changed(1))
	run, err := changed(1).Start(t.Context(), k.Client, "token")
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(run.ID)
	file := t.TempDir() + "/history.json"
	k.SaveHistory(run.ID, file)
	k.Close()

	o := new(observer)
	k = workflowtest.New(t, workflowtest.Options{Path: path, Worker: func(c *workflow.WorkerConfig) { c.Observer = o }}, changed(2))
	if err := workflow.ResumeHook(t.Context(), k.Client, "token", "you"); err != nil {
		t.Fatal(err)
	}
	mark := k.WaitFor(run.ID, "the mark of a divergence", func(e *workflow.Event) bool { return e.Attributes["$diverged"] != "" })
	if words := mark.Attributes["$diverged"]; !strings.Contains(words, "step_a.1") || !strings.Contains(words, "step_b.1") {
		t.Errorf("it does not show both sides: %q", words)
	}
	if info, err := k.Client.Get(t.Context(), run.ID); err != nil || info.Status != workflow.StatusRunning {
		t.Errorf("%+v, %v", info, err)
	}
	if o.get(&o.diverge) != 3 || o.get(&o.steps) != 0 {
		t.Errorf("%d divergences, %d steps", o.diverge, o.steps)
	}
	k.Close()

	// The release is rolled back.
	k = workflowtest.New(t, workflowtest.Options{Path: path}, changed(1))
	if got, err := workflow.GetRun[string](k.Client, run.ID).Result(t.Context()); err != nil || got != "you" {
		t.Errorf("%q, %v", got, err)
	}
	info, err := k.Client.Get(t.Context(), run.ID)
	if err != nil || info.Attributes["$diverged"] != "" {
		t.Errorf("%+v, %v", info, err)
	}

	workflowtest.Replay(t, file, changed(1))
	var diverged *workflow.DivergenceError
	if err := replayFile(t, file, changed(2)); !errors.As(err, &diverged) || len(diverged.Logged) == 0 || len(diverged.Replayed) == 0 ||
		!strings.Contains(diverged.Replayed[0].Position, "worker_test.go") {
		t.Errorf("%+v", err)
	}
}

func TestWorker_DivergenceFails(t *testing.T) {
	path := t.TempDir() + "/workflows.db"
	k := workflowtest.New(t, workflowtest.Options{Path: path}, changed(1))
	run, err := changed(1).Start(t.Context(), k.Client, "token")
	if err != nil {
		t.Fatal(err)
	}
	k.WaitForHook(run.ID)
	k.Close()
	k = workflowtest.New(t, workflowtest.Options{Path: path, Worker: func(c *workflow.WorkerConfig) { c.Divergence = workflow.DivergenceFails }}, changed(2))
	if err := workflow.ResumeHook(t.Context(), k.Client, "token", "you"); err != nil {
		t.Fatal(err)
	}
	_, err = workflow.GetRun[string](k.Client, run.ID).Result(t.Context())
	var failed *workflow.RunFailedError
	if !errors.As(err, &failed) || failed.Code != history.CodeDivergence {
		t.Errorf("%v", err)
	}
}

func TestWorker_VerifyReplay(t *testing.T) {
	var n atomic.Int32
	d := workflow.Define("moody", func(workflow.Context, int) (int32, error) { return n.Add(1), nil })
	k := workflowtest.New(t, workflowtest.Options{}, d)
	_, _, err := result(t, k, d, 1)
	var failed *workflow.RunFailedError
	if !errors.As(err, &failed) || failed.Code != history.CodeDivergence {
		t.Errorf("%v", err)
	}
}

func TestWorker_StartAndStop(t *testing.T) {
	k := workflowtest.New(t, workflowtest.Options{}, approval)
	w := workflow.NewWorker(k.Client, workflow.WorkerConfig{Definitions: workflow.Definitions(approval)})
	w.Stop() // before Start
	if err := w.Start(t.Context()); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("start after stop: %v", err)
	}
	w = workflow.NewWorker(k.Client, workflow.WorkerConfig{Definitions: workflow.Definitions(approval)})
	ctx, cancel := context.WithCancel(t.Context())
	if err := w.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Start(ctx); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("second start: %v", err)
	}
	cancel()
	w.Stop()
	w.Stop()
}
