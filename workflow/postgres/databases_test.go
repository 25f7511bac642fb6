package postgres_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/postgres"
	"github.com/cayhq/cay/workflow/sqlite"
)

// onBoth runs a test on a client of each database. file is the SQLite file, else "".
func onBoth(t *testing.T, test func(t *testing.T, c *workflow.Client, file string)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "w.db")
		c, err := sqlite.Open(t.Context(), file, sqlite.Options{NoSocket: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		test(t, c, file)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, open(t, pgtest.DSN(t), postgres.Options{}), "")
	})
}

// within waits until a condition holds.
func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	timeout, look := time.After(time.Minute), time.NewTicker(2*time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-timeout:
			t.Fatal(what)
		}
	}
}

// marker is in every payload of the test, and in no text of cay.
const marker = "Q7marker7Q"

// spill puts the marker into all kinds of payloads: inputs and results of runs and steps,
// small and large ones, errors, streams, hooks.
func spill(opts ...workflow.DefineOption) *workflow.Definition[string, string] {
	return workflow.Define("spill", func(ctx workflow.Context, in string) (string, error) {
		hook, err := workflow.NewHook[string](ctx, "hook of "+ctx.Info().RunID, workflow.Metadata(marker))
		if err != nil {
			return "", err
		}
		if _, err := hook.Receive(ctx); err != nil {
			return "", err
		}
		for _, size := range []int{0, 300, 3000, 20_000, 400_000} {
			_, err := workflow.Do(ctx, "step", func(ctx context.Context) (string, error) {
				out := workflow.Stream[string](ctx, "out")
				if err := out.Send(marker); err != nil {
					return "", err
				}
				return marker + noise(size), nil
			})
			if err != nil {
				return "", err
			}
		}
		if strings.HasSuffix(in, "fail") {
			return "", errors.New(marker)
		}
		return marker, nil
	}, opts...)
}

// noise returns text that does not compress, and so is large when stored.
func noise(size int) string {
	b, x := make([]byte, size), uint32(size)+1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[x>>26]
	}
	return string(b)
}

// bare reports whether the database has no payloads of a run any more.
func bare(t *testing.T, c *workflow.Client, run string) bool {
	t.Helper()
	events, err := c.Events(t.Context(), run, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if len(e.Payload)+len(e.Input) > 0 {
			return false
		}
	}
	chunks, err := c.Backend().ReadStream(t.Context(), run, "out", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer chunks.Close()
	some, err := chunks.ReadChunks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, chunk := range some {
		if len(chunk.Data) > 0 {
			return false
		}
	}
	return true
}

func TestRetention_NoPayloads(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		define []workflow.DefineOption
		start  []workflow.StartOption
	}{
		"Retention(0)":     {define: []workflow.DefineOption{workflow.Retention(0)}},
		"Retention(-1ns)":  {define: []workflow.DefineOption{workflow.Retention(-1)}},
		"RunRetention(0)":  {start: []workflow.StartOption{workflow.RunRetention(0)}},
		"RunRetention(-h)": {start: []workflow.StartOption{workflow.RunRetention(-time.Hour)}},
		"the run's counts": {define: []workflow.DefineOption{workflow.Retention(time.Hour)}, start: []workflow.StartOption{workflow.RunRetention(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, c *workflow.Client, file string) {
				ctx := bounded(t)
				d := spill(of.define...)
				work(t, c, d)
				for _, how := range []string{"completes", "fail", "cancel"} {
					run, err := d.Start(ctx, c, marker+how, of.start...)
					if err != nil {
						t.Fatal(err)
					}
					token := "hook of " + run.ID
					within(t, "there is no hook", func() bool { _, err := c.Hook(ctx, token); return err == nil })
					if how == "cancel" {
						err = run.Cancel(ctx, workflow.CancelParams{})
					} else {
						err = workflow.ResumeHook(ctx, c, token, marker)
					}
					if err != nil {
						t.Fatal(err)
					}
					// On a busy machine the result may be gone before it is read.
					if _, err := run.Result(ctx); (err == nil) != (how == "completes") && !errors.Is(err, &cay.Error{Code: cay.NotFound}) {
						t.Fatal(err)
					}
					within(t, "payloads are still there", func() bool { return how == "cancel" || bare(t, c, run.ID) })
					info, err := run.Info(ctx)
					if err != nil || !info.Status.Terminal() || info.ExpiresAt > 0 {
						t.Errorf("%+v, %v", info, err)
					}
				}
				if file == "" {
					return // docs/workflow.md says what PostgreSQL keeps until a vacuum
				}
				within(t, "the files still have payloads", func() bool {
					for _, name := range []string{file, file + "-wal"} {
						b, err := os.ReadFile(name)
						if err != nil && !errors.Is(err, os.ErrNotExist) {
							t.Fatal(err)
						}
						if bytes.Contains(b, []byte(marker)) {
							return false
						}
					}
					return true
				})
			})
		})
	}
}

// A retention of less than a millisecond does not become 0, which means for ever.
func TestRetention_Short(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
		ctx := bounded(t)
		d := workflow.Define("w", func(workflow.Context, int) (int, error) { return 1, nil }, workflow.Retention(time.Microsecond))
		work(t, c, d)
		run, err := d.Start(ctx, c, 1)
		if err != nil {
			t.Fatal(err)
		}
		within(t, "it has not ended", func() bool {
			info, err := run.Info(ctx)
			return errors.Is(err, &cay.Error{Code: cay.NotFound}) || err == nil && info.Status == history.Completed && info.ExpiresAt > 0
		})
	})
}

// newRelay returns a workflow that continues for some runs, and then sleeps.
func newRelay() *workflow.Definition[int, int] {
	var relay *workflow.Definition[int, int]
	relay = workflow.Define("relay", func(ctx workflow.Context, n int) (int, error) {
		if n < 3 {
			return 0, relay.ContinueAsNew(ctx, n+1)
		}
		return n, workflow.Sleep(ctx, time.Hour)
	})
	return relay
}

// parentOf returns a workflow that starts a relay as its child, and waits for it.
func parentOf(relay *workflow.Definition[int, int]) *workflow.Definition[bool, int] {
	return workflow.Define("relays", func(ctx workflow.Context, fail bool) (int, error) {
		c, err := relay.StartChild(ctx, 0)
		if err != nil {
			return 0, err
		}
		if fail {
			if err := workflow.Sleep(ctx, time.Hour); err != nil {
				return 0, err
			}
			return 0, errors.New("on purpose")
		}
		return c.Result(ctx)
	})
}

// lastRelay waits until the last run of a chain of the relay sleeps.
func lastRelay(t *testing.T, c *workflow.Client, q workflow.Query) (last *workflow.RunInfo, all []workflow.RunInfo) {
	t.Helper()
	q.Workflow, q.Ascending = "relay", true
	within(t, "the chain does not come to its end", func() bool {
		page, err := c.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		all = page.Items
		for i := range all {
			last = &all[i]
			if len(all) == 4 && last.Next == "" && last.Events >= 3 {
				return true
			}
		}
		return false
	})
	return last, all
}

// A chain behaves like one run for the program that has started its first run.
func TestChain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
		ctx, relay := bounded(t), newRelay()
		work(t, c, relay)
		start := func() *workflow.Run[int] {
			t.Helper()
			run, err := relay.Start(ctx, c, 0, workflow.Key("k"), workflow.RunRetention(time.Hour), workflow.StartPriority(7),
				workflow.Group("g"), workflow.WithAttributes(map[string]string{"of": "test"}))
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		run := start()
		last, all := lastRelay(t, c, workflow.Query{Attributes: map[string]string{"of": "test"}})
		for i, r := range all {
			if r.Priority != 7 || r.Group != "g" || i > 0 && r.First != run.ID {
				t.Errorf("run %d is %+v", i, r)
			}
		}
		for _, r := range all[1:3] {
			if err := c.Delete(ctx, r.ID); err != nil {
				t.Fatal(err)
			}
		}
		if again := start(); again.ID != run.ID || again.Created {
			t.Errorf("the key finds %+v, not %s", again, run.ID)
		}
		if err := run.Cancel(ctx, workflow.CancelParams{Reason: "enough"}); err != nil {
			t.Fatal(err)
		}
		var cancelled *workflow.RunCancelledError
		if _, err := run.Result(ctx); !errors.As(err, &cancelled) || cancelled.Reason != "enough" || cancelled.Run != last.ID {
			t.Errorf("the result is %v", err)
		}
		end, err := c.Get(ctx, last.ID)
		if err != nil || end.ExpiresAt-end.CompletedAt != time.Hour.Milliseconds() {
			t.Errorf("the last is %+v, %v", end, err)
		}
	})
}

// A child ends with its parent, even if the child was continued.
func TestChain_OfChild(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]struct {
		fails bool
		end   func(ctx context.Context, run *workflow.Run[int]) error
	}{
		"Cancel": {false, func(ctx context.Context, run *workflow.Run[int]) error {
			return run.Cancel(ctx, workflow.CancelParams{})
		}},
		"Force": {false, func(ctx context.Context, run *workflow.Run[int]) error {
			return run.Cancel(ctx, workflow.CancelParams{Force: true})
		}},
		"Fail": {true, func(ctx context.Context, run *workflow.Run[int]) error { _, err := run.Wake(ctx); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
				ctx, relay := bounded(t), newRelay()
				relays := parentOf(relay)
				work(t, c, relay, relays)
				run, err := relays.Start(ctx, c, how.fails)
				if err != nil {
					t.Fatal(err)
				}
				last, _ := lastRelay(t, c, workflow.Query{})
				within(t, "there is nothing to wait for", func() bool { return how.end(ctx, run) == nil })
				if _, err := run.Result(ctx); err == nil {
					t.Error("the parent has completed")
				}
				info, err := c.Backend().WaitRun(ctx, last.ID)
				if err != nil || info.Status != workflow.StatusCancelled {
					t.Errorf("the child is %+v, %v", info, err)
				}
			})
		})
	}
}

// An attempt ends at its timeout, whatever its function does then.
func TestTimeout(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]workflow.StepOption{"Timeout": workflow.Timeout(20 * time.Millisecond), "Heartbeat": workflow.Heartbeat(20 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
				ctx := bounded(t)
				release, written := make(chan struct{}), make(chan error, 2)
				stubborn := workflow.Define("stubborn", func(ctx workflow.Context, retries int) (int, error) {
					return workflow.Do(ctx, "step", func(ctx context.Context) (int, error) {
						attempt := workflow.StepInfo(ctx).Attempt
						if attempt > 1 {
							return attempt, nil
						}
						out := workflow.Stream[int](ctx, "out")
						<-release
						written <- errors.Join(out.Send(1), out.Flush())
						return attempt, nil
					}, ends, workflow.MaxRetries(retries), workflow.RetryPolicy{Initial: time.Millisecond})
				})
				polite := workflow.Define("polite", func(ctx workflow.Context, _ int) (int, error) {
					return workflow.Do(ctx, "step", func(ctx context.Context) (int, error) {
						<-ctx.Done()
						return 1, nil
					}, ends, workflow.MaxRetries(0))
				})
				w := work(t, c, stubborn, polite)
				result := func(d *workflow.Definition[int, int], retries int) (*workflow.Run[int], int, error) {
					t.Helper()
					run, err := d.Start(ctx, c, retries)
					if err != nil {
						t.Fatal(err)
					}
					n, err := run.Result(ctx)
					return run, n, err
				}
				late := func(what string, err error) {
					t.Helper()
					var step *workflow.StepError
					if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, &cay.Error{Code: cay.DeadlineExceeded}) || !errors.As(err, &step) {
						t.Errorf("%s: %v", what, err)
					}
				}
				first, _, err := result(stubborn, 0)
				late("goes on", err)
				second, n, err := result(stubborn, 1)
				if err != nil || n != 2 {
					t.Errorf("attempt %d, %v", n, err)
				}
				_, _, err = result(polite, 0)
				late("returns a result when its time is over", err)
				close(release)
				within(t, "late results are not counted", func() bool { return w.LateResults() == 3 })
				for range 2 {
					if err := <-written; err == nil {
						t.Error("an attempt that has ended wrote to a stream")
					}
				}
				for _, run := range []*workflow.Run[int]{first, second} {
					events, err := c.Events(ctx, run.ID, 1, 0)
					if err != nil {
						t.Fatal(err)
					}
					if last := events[len(events)-1].Type; last != workflow.EventRunCompleted && last != workflow.EventRunFailed {
						t.Errorf("after the end came %s", last)
					}
				}
			})
		})
	}
}

// Writes of a transactional step are rolled back if the step timed out.
func TestTimeout_Tx(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
		ctx := bounded(t)
		write := workflow.TxStep("write", func(ctx context.Context, tx workflow.Tx, _ int) (int, error) {
			if _, err := tx.ExecContext(ctx, "CREATE TABLE mine (n integer)"); err != nil {
				return 0, workflow.Fatal(err)
			}
			if attempt := workflow.StepInfo(ctx).Attempt; attempt > 1 {
				return attempt, nil
			}
			<-ctx.Done()
			return 1, nil
		}, workflow.Timeout(2*time.Second), workflow.RetryPolicy{Initial: time.Millisecond})
		d := workflow.Define("tx", func(ctx workflow.Context, n int) (int, error) { return write.Run(ctx, n) })
		w := work(t, c, d)
		run, err := d.Start(ctx, c, 1)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := run.Result(ctx); err != nil || n != 2 || w.LateResults() != 1 {
			t.Errorf("attempt %d, %v; %d late", n, err, w.LateResults())
		}
	})
}

// A wait that ends with the caller's context returns the context's error, whichever
// process owns the run.
func TestResult_CallersTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
		ctx := bounded(t)
		work(t, c, nap)
		asleep, err := nap.Start(ctx, c, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		other := workflow.Define("other", func(workflow.Context, int) (string, error) { return "", nil })
		waits, err := other.Start(ctx, c, 1)
		if err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithDeadline(ctx, time.Now().Add(-time.Second))
		defer cancel()
		soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		gone, leave := context.WithCancel(ctx)
		leave()
		for _, run := range []*workflow.Run[string]{asleep, waits} {
			for _, tt := range []struct {
				ctx  context.Context
				is   error
				code cay.Code
			}{{over, context.DeadlineExceeded, cay.DeadlineExceeded}, {soon, context.DeadlineExceeded, cay.DeadlineExceeded}, {gone, context.Canceled, cay.Canceled}} {
				_, err := run.Result(tt.ctx)
				if !errors.Is(err, tt.is) || cay.CodeOf(err) != tt.code || strings.Contains(err.Error(), "engine") || strings.Contains(err.Error(), "database") || !strings.Contains(err.Error(), "caller") {
					t.Errorf("%v: %v", tt.is, err)
				}
			}
		}
	})
}

// A run sleeps at least as long as requested.
func TestSleepUntil(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *workflow.Client, _ string) {
		ctx := bounded(t)
		sleeper := workflow.Define("sleeper", func(ctx workflow.Context, until time.Time) (string, error) {
			return "awake", workflow.SleepUntil(ctx, until)
		})
		work(t, c, sleeper)
		last := time.Date(9999, 12, 31, 23, 59, 59, 999e6, time.UTC)
		for _, until := range []time.Time{last, last.AddDate(-7000, 0, 0), time.Now().Add(time.Hour)} {
			run, err := sleeper.Start(ctx, c, until)
			if err != nil {
				t.Fatal(err)
			}
			within(t, "it does not sleep", func() bool {
				events, err := c.Events(ctx, run.ID, 1, 0)
				if err != nil {
					t.Fatal(err)
				}
				if e := events[len(events)-1]; until.After(time.Now()) && e.Type == workflow.EventWaitCreated {
					if got := time.UnixMilli(e.Until); got.Before(until) || got.Sub(until) >= time.Millisecond {
						t.Errorf("it sleeps until %s, not %s", got, until)
					}
					_, err := run.Wake(ctx)
					return err == nil
				}
				return !until.After(time.Now())
			})
			if _, err := run.Result(ctx); err != nil {
				t.Error(err)
			}
		}
		run, err := sleeper.Start(ctx, c, last.Add(time.Hour))
		if err == nil {
			_, err = run.Result(ctx)
		}
		if !errors.Is(err, &cay.Error{Code: cay.Invalid}) && !strings.Contains(err.Error(), "9999") {
			t.Errorf("after the last year: %v", err)
		}
	})
}
