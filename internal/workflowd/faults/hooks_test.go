package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// senders returns the clients that send values to runs of c: c itself, and for a shared
// database another process's client.
func senders(t *testing.T, s site, c *workflow.Client) []*workflow.Client {
	t.Helper()
	if s.Database != "postgres" {
		return []*workflow.Client{c}
	}
	other, err := s.open(t.Context(), opening{log: logTo(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	})
	return []*workflow.Client{c, other}
}

// drain receives all values of a hook that have arrived, without waiting.
func drain(ctx workflow.Context, h *workflow.HookHandle[int]) (got []int, err error) {
	for {
		v, err := h.Receive(ctx, 0)
		if errors.Is(err, workflow.ErrTimeout) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		got = append(got, v)
	}
}

// replays checks that the replay of a run's log gives the same result.
func replays(t *testing.T, c *workflow.Client, id string, defs ...workflow.Workflow) *workflow.History {
	t.Helper()
	h, err := c.History(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := workflow.Replay(h, workflow.ClientOptions{}, defs...); err != nil {
		t.Fatalf("replay of %s: %v", id, err)
	}
	return h
}

// TestHookDrained sends values to runs that receive one value, take all other values that
// have arrived, and end: the accepted values are in their results, and the sends of all
// others were refused.
func TestHookDrained(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		step := workflow.Step("work", func(_ context.Context, n int) (int, error) { return n, nil })
		def := workflow.Define("drains", func(ctx workflow.Context, token string) ([]int, error) {
			h, err := workflow.NewHook[int](ctx, token)
			if err != nil {
				return nil, err
			}
			first, err := h.Receive(ctx)
			if err != nil {
				return nil, err
			}
			got := []int{first}
			for {
				more, err := drain(ctx, h)
				if err != nil || len(more) == 0 {
					return got, err
				}
				for _, v := range more {
					if v, err = step.Run(ctx, v); err != nil {
						return nil, err
					}
					got = append(got, v)
				}
			}
		})
		serve(t, c, def)
		clients := senders(t, s, c)
		refused, early := 0, 0
		for i := range rounds(t, 25, 500) {
			token := fmt.Sprintf("drain-%d", i)
			run, err := def.Start(ctx, c, token)
			if err != nil {
				t.Fatal(err)
			}
			waitForHook(t, c, run.ID)
			var mu sync.Mutex
			var accepted []int
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() {
					for v := n; v < 40; v += 4 {
						err := workflow.ResumeHook(ctx, clients[v%len(clients)], token, v)
						mu.Lock()
						switch {
						case err == nil:
							accepted = append(accepted, v)
						case cay.CodeOf(err) == cay.NotFound:
							refused++
						default:
							t.Errorf("resume: %v", err)
						}
						mu.Unlock()
					}
				})
			}
			all.Wait()
			got, err := run.Result(ctx)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			slices.Sort(accepted)
			if !slices.Equal(got, accepted) {
				t.Fatalf("round %d: accepted %v, and the run has got %v", i, accepted, got)
			}
			if _, err := wellFormed(ctx, c, run.ID); err != nil {
				t.Fatal(err)
			}
			early += len(got) - 1
			replays(t, c, run.ID, def)
		}
		t.Logf("%d values beside the first, %d refused", early, refused)
	})
}

// tallied is the set of values that a chain of runs has received.
type tallied struct {
	Token string `json:"token"`
	Got   []int  `json:"got,omitempty"`
}

// TestHookOverContinue sends values to a hook whose run is constantly continued as new:
// no sender gets not_found, and each value arrives once.
func TestHookOverContinue(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		const last = -1
		var def *workflow.Definition[tallied, []int]
		def = workflow.Define("line", func(ctx workflow.Context, in tallied) ([]int, error) {
			h, err := workflow.NewHook[int](ctx, in.Token)
			if err != nil {
				return nil, err
			}
			for range 3 {
				v, err := h.Receive(ctx)
				if err != nil {
					return nil, err
				}
				if v == last {
					return in.Got, nil
				}
				in.Got = append(in.Got, v)
			}
			return nil, def.ContinueAsNew(ctx, in)
		})
		serve(t, c, def)
		clients := senders(t, s, c)
		for i := range rounds(t, 2, 50) {
			token := fmt.Sprintf("line-%d", i)
			run, err := def.Start(ctx, c, tallied{Token: token})
			if err != nil {
				t.Fatal(err)
			}
			waitForHook(t, c, run.ID)
			var all sync.WaitGroup
			const each, many = 50, 4
			for n := range many {
				all.Go(func() {
					for v := n; v < each*many; v += many {
						if err := workflow.ResumeHook(ctx, clients[n%len(clients)], token, v); err != nil {
							t.Errorf("value %d: %v", v, err)
							return
						}
					}
				})
			}
			all.Wait()
			if err := workflow.ResumeHook(ctx, c, token, last); err != nil {
				t.Fatal(err)
			}
			got, err := run.Result(ctx)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			for v := range each * many {
				if v >= len(got) || got[v] != v {
					t.Fatalf("%d values were accepted, and %v arrived", each*many, got)
				}
			}
			if _, err := c.Hook(ctx, token); cay.CodeOf(err) != cay.NotFound {
				t.Errorf("after the end there is a hook: %v", err)
			}
			for id := run.ID; id != ""; {
				id = replays(t, c, id, def).Run.Next
			}
		}
	})
}

// TestMaxEvents makes the logs of runs too long: their code gets ErrMaxEvents in time,
// and cleans up, or continues in another run.
func TestMaxEvents(t *testing.T) {
	each(t, opening{}, func(t *testing.T, s site, c *workflow.Client) {
		ctx := t.Context()
		var mu sync.Mutex
		did := map[int]int{}
		step := workflow.Step("do", func(_ context.Context, n int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			did[n]++
			return n, nil
		})
		undo := workflow.Step("undo", func(_ context.Context, n int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			did[n]--
			return n, nil
		})
		endless := workflow.Define("endless", func(ctx workflow.Context, _ int) (n int, err error) {
			saga := workflow.NewSaga(ctx)
			defer saga.Guard(&err)
			for {
				n++
				at := n
				saga.Add("undo", func(ctx workflow.Context) error { _, err := undo.Run(ctx, at); return err })
				if _, err := step.Run(ctx, at); err != nil {
					return 0, err
				}
			}
		}, workflow.MaxEvents(100))
		var goesOn *workflow.Definition[int, int]
		goesOn = workflow.Define("goes_on", func(ctx workflow.Context, runs int) (int, error) {
			for runs < 3 {
				if err := workflow.Sleep(ctx, time.Millisecond); errors.Is(err, workflow.ErrMaxEvents) {
					return 0, goesOn.ContinueAsNew(ctx, runs+1)
				} else if err != nil {
					return 0, err
				}
			}
			return runs, nil
		}, workflow.MaxEvents(30))
		serve(t, c, endless, goesOn)
		run, err := endless.Start(ctx, c, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = run.Result(ctx)
		var failed *workflow.RunFailedError
		if !errors.Is(err, workflow.ErrMaxEvents) || !errors.As(err, &failed) || failed.Code != history.CodeMaxEvents {
			t.Errorf("the run ended with %v", err)
		}
		if len(did) < 50 {
			t.Errorf("it did %d steps, and may have 100 events", len(did))
		}
		for n, times := range did {
			if times != 0 && n < len(did) { // the last may have been cancelled before it began
				t.Errorf("step %d was done %d times more than undone", n, times)
			}
		}
		replays(t, c, run.ID, endless)
		line, err := goesOn.Start(ctx, c, 0)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := line.Result(ctx); err != nil || n != 3 {
			t.Errorf("a run that goes on returned %d, %v", n, err)
		}
	})
}
