package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// poison is a set of concurrent runs. Some of them kill the process.
type poison struct {
	// Steps are runs in which one of three concurrent steps kills the process; Codes are
	// runs whose own code does, each some milliseconds after its start.
	Steps []int `json:"steps"`
	Codes []int `json:"codes,omitempty"`
	// Innocents are runs with a step that takes the given milliseconds. The step must
	// never fail.
	Innocents []int `json:"innocents"`
}

// maxDeaths bounds how often one run may kill its process: in its first try, in the 12
// that are counted, and in one that was not charged, because it was not the run's turn.
const maxDeaths = 14

// TestPoison executes runs that kill their process at every try, among others that take
// longer than the process lives: the guilty runs are found, and fail. All other runs
// succeed, although their steps may not fail once.
func TestPoison(t *testing.T) {
	t.Parallel()
	for _, database := range databases {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(rounds(t, 1, 20)) {
				r := rand.New(rand.NewPCG(seed, 5))
				o := newOrder(t, database, 0, 0)
				o.Poison = &poison{Steps: []int{r.IntN(50)}}
				for range 4 + r.IntN(8) {
					o.Poison.Innocents = append(o.Poison.Innocents, 100+r.IntN(200))
				}
				if seed%3 == 1 {
					o.Poison.Steps = append(o.Poison.Steps, r.IntN(300))
				}
				if seed%3 == 2 {
					o.Poison.Codes = append(o.Poison.Codes, r.IntN(50))
				}
				most := maxDeaths * (len(o.Poison.Steps) + len(o.Poison.Codes))
				kills, where := 0, fmt.Sprintf("poison %d", seed)
				for !ended(t, child(t, o), where) {
					if kills++; kills > most {
						t.Fatalf("%s: after %d deaths the guilty were not found", where, kills)
					}
				}
				t.Logf("%s: %d deaths", where, kills)
			}
		})
	}
}

// TestRedeployed stops the worker during a step again and again, in good order: the step
// must never fail, and succeeds when the worker is not stopped.
func TestRedeployed(t *testing.T) {
	each(t, opening{recoveries: 12}, func(t *testing.T, s site, c *workflow.Client) {
		begun, last := make(chan int), make(chan struct{})
		long := workflow.Step("long", func(ctx context.Context, _ int) (int, error) {
			attempt := workflow.StepInfo(ctx).Attempt
			select {
			case begun <- attempt:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			select {
			case <-last:
				return attempt, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}, workflow.MaxRetries(0))
		def := workflow.Define("redeployed", func(ctx workflow.Context, n int) (int, error) { return long.Run(ctx, n) })
		var run *workflow.Run[int]
		done := make(chan error, 1)
		const times = 15
		for i := range times {
			w := workflow.NewWorker(c, workflow.WorkerConfig{
				Definitions: workflow.Definitions(def), Logger: slog.New(slog.DiscardHandler), StopTimeout: time.Millisecond,
			})
			if err := w.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if run == nil {
				var err error
				if run, err = def.Start(t.Context(), c, 0); err != nil {
					t.Fatal(err)
				}
				go func() {
					_, err := run.Result(t.Context())
					done <- err
				}()
			}
			select {
			case <-begun:
			case err := <-done:
				w.Stop()
				t.Fatalf("after %d stops of its worker the run ended: %v", i, err)
			}
			if i == 0 { // later attempts are recorded when they begin
				waitForEvent(t, c, run.ID, history.StepStarted)
			}
			if i == times-1 {
				close(last)
				if err := <-done; err != nil {
					t.Errorf("after %d stops of its worker: %v", i, err)
				}
			}
			w.Stop()
		}
	})
}

// kill ends this process.
func kill() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way
}

// work simulates work that takes some milliseconds.
func work(ms int) { <-time.After(time.Duration(ms) * time.Millisecond) }

// be starts the runs, or finds those that earlier processes have started, and returns nil
// when each has ended as expected.
func (p *poison) be(ctx context.Context, s site) (err error) {
	client, err := s.open(ctx, opening{recoveries: 12})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	deadly := workflow.Step("the_deadly_one", func(_ context.Context, ms int) (int, error) {
		work(ms)
		kill()
		return 0, nil
	}, workflow.MaxRetries(0))
	slow := workflow.Step("slow", func(_ context.Context, ms int) (int, error) {
		work(ms)
		return ms, nil
	}, workflow.MaxRetries(0))
	guilty := workflow.Define("guilty", func(ctx workflow.Context, ms int) (int, error) {
		poison := deadly.Go(ctx, ms)
		beside := []*workflow.Future[int]{slow.Go(ctx, 150), slow.Go(ctx, 150)}
		if _, err := poison.Get(ctx); !errors.Is(err, workflow.ErrPoisoned) {
			return 0, fmt.Errorf("the step that ends its process returned %v", err)
		}
		if _, err := workflow.All(ctx, beside...); err != nil {
			return 0, fmt.Errorf("a step beside it: %w", err)
		}
		return slow.Run(ctx, ms) // the run continues without waiting for it
	})
	code := workflow.Define("code", func(ctx workflow.Context, ms int) (int, error) {
		work(ms) // workflow code must not do that either
		kill()
		return 0, nil
	})
	innocent := workflow.Define("innocent", func(ctx workflow.Context, ms int) (int, error) { return slow.Run(ctx, ms) })
	w := workflow.NewWorker(client, workflow.WorkerConfig{
		Definitions: workflow.Definitions(guilty, code, innocent), Logger: slog.New(slog.DiscardHandler),
	})
	if err := w.Start(ctx); err != nil {
		return err
	}
	defer w.Stop()
	for _, kind := range []struct {
		def  *workflow.Definition[int, int]
		runs []int
		end  error
	}{{innocent, p.Innocents, nil}, {guilty, p.Steps, nil}, {code, p.Codes, workflow.ErrPoisoned}} {
		runs := make([]*workflow.Run[int], len(kind.runs))
		for i, ms := range kind.runs {
			if runs[i], err = kind.def.Start(ctx, client, ms, workflow.Key(fmt.Sprint(i))); err != nil {
				return err
			}
		}
		defer func() {
			for i, run := range runs {
				if got, end := run.Result(ctx); !errors.Is(end, kind.end) || end == nil && got != kind.runs[i] {
					err = errors.Join(err, fmt.Errorf("run %d of %s returned %d, %v", i, kind.def.Name(), got, end))
				}
			}
		}()
	}
	return nil
}
