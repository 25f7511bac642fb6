package faults

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// each runs a test on both databases, with a client of a fresh one.
func each(t *testing.T, o opening, test func(t *testing.T, s site, c *workflow.Client)) {
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, database)
			o := o
			o.log = logTo(t)
			c, err := s.open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			test(t, s, c)
		})
	}
}

// serve starts a worker that stops at the end of the test.
func serve(t *testing.T, c *workflow.Client, definitions ...workflow.Workflow) {
	t.Helper()
	w := workflow.NewWorker(c, workflow.WorkerConfig{
		Definitions: workflow.Definitions(definitions...), Logger: slog.New(slog.DiscardHandler),
	})
	if err := w.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
}

// wellFormed checks a whole log: dense slots, ascending times, and a single terminal
// event.
func wellFormed(ctx context.Context, c *workflow.Client, id string) ([]workflow.Event, error) {
	run, err := c.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	var events []workflow.Event
	for {
		page, err := c.Events(ctx, id, int64(len(events)+1), 1000)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		events = append(events, page...)
	}
	var at int64
	for i, e := range events {
		if e.Slot != int64(i+1) {
			return nil, fmt.Errorf("event %d of %s has slot %d", i+1, id, e.Slot)
		}
		if e.At < at {
			return nil, fmt.Errorf("time goes back at slot %d of %s", e.Slot, id)
		}
		at = e.At
		ends := slices.Contains([]history.Type{history.RunCompleted, history.RunFailed, history.RunCancelled}, e.Type)
		if ends && i != len(events)-1 {
			return nil, fmt.Errorf("%s goes on after slot %d ended it", id, e.Slot)
		}
		if !ends && i == len(events)-1 && run.Status.Terminal() {
			return nil, fmt.Errorf("%s is %s, and no event says so", id, run.Status)
		}
	}
	return events, nil
}

// TestHookAtTheEnd resumes hooks of runs that are about to end: every successful call is
// in the log, before the end, and every other call got not_found.
func TestHookAtTheEnd(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		def := workflow.Define("ends", func(ctx workflow.Context, token string) (int, error) {
			h, err := workflow.NewHook[int](ctx, token)
			if err != nil {
				return 0, err
			}
			return h.Receive(ctx)
		})
		serve(t, c, def)
		var resumed, missed int
		for i := range rounds(t, 30, 500) {
			token := fmt.Sprintf("end-%d", i)
			run, err := def.Start(ctx, c, token)
			if err != nil {
				t.Fatal(err)
			}
			waitForHook(t, c, run.ID)
			var mu sync.Mutex
			var good int
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() {
					err := workflow.ResumeHook(ctx, c, token, n)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						good++
					case cay.CodeOf(err) == cay.NotFound:
						missed++
					default:
						t.Errorf("resume: %v", err)
					}
				})
			}
			all.Wait()
			if _, err := run.Result(ctx); err != nil {
				t.Fatal(err)
			}
			events, err := wellFormed(ctx, c, run.ID)
			if err != nil {
				t.Fatal(err)
			}
			received := count(events, history.HookReceived)
			if received != good {
				t.Fatalf("%d calls of a hook were answered well, and %d are in the log", good, received)
			}
			resumed += good
			if _, err := c.Hook(ctx, token); cay.CodeOf(err) != cay.NotFound {
				t.Fatalf("the hook of a run that ended: %v", err)
			}
		}
		t.Logf("%d calls in time, %d late", resumed, missed)
	})
}

func count(events []workflow.Event, typ history.Type) int {
	n := 0
	for _, e := range events {
		if e.Type == typ {
			n++
		}
	}
	return n
}

// waitForHook waits until a run has a live hook.
func waitForHook(t *testing.T, c *workflow.Client, run string) {
	t.Helper()
	waitForEvent(t, c, run, history.HookCreated)
}

// waitForEvent waits until a run's log has an event of a type.
func waitForEvent(t *testing.T, c *workflow.Client, run string, typ history.Type) {
	t.Helper()
	for e, err := range c.Follow(t.Context(), run, 1) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type == typ {
			return
		}
	}
	t.Fatalf("%s ended without a %s", run, typ)
}

// TestCancelAtTheEnd cancels runs that are about to end by themselves. Whichever comes
// first, the run ends once, and the cancelling caller gets the true outcome.
func TestCancelAtTheEnd(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		noop := workflow.Step("noop", func(context.Context, int) (int, error) { return 1, nil })
		def := workflow.Define("short", func(ctx workflow.Context, n int) (int, error) {
			for i := range n {
				if _, err := noop.Run(ctx, i); err != nil {
					return 0, err
				}
			}
			return n, nil
		})
		serve(t, c, def)
		ends := map[workflow.Status]int{}
		for i := range rounds(t, 60, 1000) {
			run, err := def.Start(ctx, c, i%6)
			if err != nil {
				t.Fatal(err)
			}
			force := i%2 == 0
			_, cancelErr := c.Cancel(ctx, run.ID, workflow.CancelParams{Reason: "a test", Force: force})
			_, err = run.Result(ctx)
			info, infoErr := run.Info(ctx)
			if infoErr != nil {
				t.Fatal(infoErr)
			}
			ends[info.Status]++
			var cancelled *workflow.RunCancelledError
			switch {
			case cancelErr != nil && cay.CodeOf(cancelErr) != cay.Conflict:
				t.Fatalf("cancel: %v", cancelErr)
			case cancelErr != nil && info.Status != workflow.StatusCompleted:
				t.Fatalf("cancel said %v, and the run is %s", cancelErr, info.Status)
			case cancelErr == nil && force && info.Status != workflow.StatusCancelled:
				t.Fatalf("a run that was ended is %s", info.Status)
			case info.Status == workflow.StatusCancelled && !errors.As(err, &cancelled):
				t.Fatalf("a cancelled run returned %v", err)
			case info.Status == workflow.StatusCompleted && err != nil:
				t.Fatalf("a completed run returned %v", err)
			}
			if _, err := wellFormed(ctx, c, run.ID); err != nil {
				t.Fatal(err)
			}
		}
		t.Log(ends)
	})
}

// TestDuplicates repeats requests as networks do: starts with the same key, calls of a
// hook with the same key.
func TestDuplicates(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		def := workflow.Define("receives", func(ctx workflow.Context, token string) ([]int, error) {
			h, err := workflow.NewHook[int](ctx, token)
			if err != nil {
				return nil, err
			}
			var got []int
			for len(got) < 3 {
				v, err := h.Receive(ctx)
				if err != nil {
					return nil, err
				}
				got = append(got, v)
			}
			return got, nil
		})
		serve(t, c, def)
		for i := range rounds(t, 5, 50) {
			token := fmt.Sprintf("dup-%d", i)
			var mu sync.Mutex
			ids := map[string]bool{}
			var created int
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					run, err := def.Start(ctx, c, token, workflow.Key(token))
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						t.Errorf("start: %v", err)
						return
					}
					ids[run.ID] = true
					if run.Created {
						created++
					}
				})
			}
			all.Wait()
			if len(ids) != 1 || created != 1 {
				t.Fatalf("20 starts of one key made %d runs and %d say that they made one", len(ids), created)
			}
			var id string
			for id = range ids {
			}
			waitForHook(t, c, id)
			for n := range 3 {
				for range 10 {
					all.Go(func() {
						err := workflow.ResumeHook(ctx, c, token, n, workflow.ResumeKey(fmt.Sprint(n)))
						if err != nil && cay.CodeOf(err) != cay.NotFound {
							t.Errorf("resume: %v", err)
						}
					})
				}
				all.Wait()
			}
			got, err := workflow.GetRun[[]int](c, id).Result(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, []int{0, 1, 2}) {
				t.Fatalf("three payloads, ten times each, arrived as %v", got)
			}
		}
	})
}

// TestParallel executes one run with 10,000 concurrent steps.
func TestParallel(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		const many = 10_000
		ctx := t.Context()
		var mu sync.Mutex
		calls := make([]int, many)
		step := workflow.Step("count", func(_ context.Context, i int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			calls[i]++
			return i, nil
		})
		def := workflow.Define("many", func(ctx workflow.Context, n int) (int, error) {
			futures := make([]*workflow.Future[int], n)
			for i := range futures {
				futures[i] = step.Go(ctx, i)
			}
			all, err := workflow.All(ctx, futures...)
			for i, v := range all {
				if v != i {
					return 0, workflow.Fatal(fmt.Errorf("step %d returned %d", i, v))
				}
			}
			return len(all), err
		})
		serve(t, c, def)
		begun := time.Now()
		run, err := def.Start(ctx, c, many)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := run.Result(ctx); err != nil || n != many {
			t.Fatal(n, err)
		}
		t.Logf("%d steps at once took %v", many, time.Since(begun))
		for i, n := range calls {
			if n != 1 {
				t.Fatalf("step %d was called %d times", i, n)
			}
		}
		if _, err := wellFormed(ctx, c, run.ID); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPayloads tests payloads that are too large for the log, and payloads over the
// limit. If more rounds are asked for, the limit is the default.
func TestPayloads(t *testing.T) {
	limit := 4 << 20
	if asked(t) {
		limit = 100 << 20
	}
	each(t, opening{payload: limit}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		grow := workflow.Step("grow", func(_ context.Context, n int) (string, error) { return noise(n), nil })
		def := workflow.Define("large", func(ctx workflow.Context, in string) (string, error) {
			more, err := grow.Run(ctx, len(in))
			return more + in, err
		})
		serve(t, c, def)
		third := noise(limit / 3) // stored as a blob
		run, err := def.Start(ctx, c, third)
		if err != nil {
			t.Fatal(err)
		}
		out, err := run.Result(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if out != noise(len(third))+third {
			t.Fatalf("a large result came back with %d bytes", len(out))
		}
		if _, err := def.Start(ctx, c, noise(2*limit)); cay.CodeOf(err) != cay.TooLarge {
			t.Fatalf("a start with too large an input: %v", err)
		}
		// The step's result fits, the run's result does not: the run fails with an error
		// that says why.
		run, err = def.Start(ctx, c, noise(limit/5*4))
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Result(ctx)
		if failed := (*workflow.RunFailedError)(nil); !errors.As(err, &failed) || cay.CodeOf(err) != cay.TooLarge {
			t.Fatalf("a run with too large a result: %v", err)
		}
	})
}

// noise returns n bytes of text that hardly compress, the same at each call.
func noise(n int) string {
	b := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{}).Read(b); err != nil {
		panic(err) // it never fails
	}
	return base64.RawStdEncoding.EncodeToString(b)[:n]
}
