package workflowd_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

// chains is an engine whose clock the test sets, and a worker driven by hand.
type chains struct {
	*testing.T
	workflow.Backend
	hand  *hand
	shift *atomic.Int64
	runs  int
}

// onChains runs a test on an engine on each database.
func onChains(t *testing.T, test func(c *chains)) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T, cfg workflowd.Config) *workflowd.Engine{
		"SQLite": func(t *testing.T, cfg workflowd.Config) *workflowd.Engine {
			return open(t, filepath.Join(t.TempDir(), "w.db"), cfg)
		},
		"Postgres": func(t *testing.T, cfg workflowd.Config) *workflowd.Engine { return openShared(t, pgtest.DSN(t), cfg) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shift := new(atomic.Int64)
			b := open(t, workflowd.Config{Now: func() time.Time { return time.Now().Add(time.Duration(shift.Load())) }}).For("p")
			test(&chains{T: t, Backend: b, hand: attach(t, b, of("w", "child")), shift: shift})
		})
	}
}

// begin starts a run, which the worker takes.
func (c *chains) begin(p workflow.NewRun) news {
	c.Helper()
	if p.Workflow == "" {
		p.Workflow = "w"
	}
	return c.hand.take(create(c, c.Backend, p).ID)
}

// start makes a run start another run.
func (c *chains) start(from news, p workflow.NewRun, started workflow.Event) error {
	c.Helper()
	done := make(chan error, 1)
	c.hand.session.StartRun(from.run, from.lease, p, started, func(err error) { done <- err })
	return <-done
}

// continues continues a run n times, and returns all runs of the chain.
func (c *chains) continues(from news, n int) []news {
	c.Helper()
	chain := []news{from}
	for range n {
		c.runs++
		id, last := fmt.Sprintf("wrun_next%d", c.runs), chain[len(chain)-1]
		err := c.start(last, workflow.NewRun{ID: id, Workflow: last.assigned.Run.Workflow}, workflow.Event{Type: history.RunCompleted, Token: id})
		if err != nil {
			c.Fatal(err)
		}
		chain = append(chain, c.hand.take(id))
	}
	return chain
}

// childOf starts a child that its parent waits for.
func (c *chains) childOf(parent news) news {
	c.Helper()
	c.runs++
	id := fmt.Sprintf("wrun_child%d", c.runs)
	err := c.start(parent, workflow.NewRun{ID: id, Workflow: "child", ParentCall: "child_a.1"},
		workflow.Event{Type: history.ChildStarted, ID: "child_a.1", Name: "child", Token: id})
	if err != nil {
		c.Fatal(err)
	}
	return c.hand.take(id)
}

// detachedOf starts a child that its parent does not wait for.
func (c *chains) detachedOf(parent news) news {
	c.Helper()
	c.runs++
	id := fmt.Sprintf("wrun_detached%d", c.runs)
	err := c.start(parent, workflow.NewRun{ID: id, Workflow: "child"}, workflow.Event{Type: history.ChildStarted, ID: "child_b.1", Name: "child", Token: id})
	if err != nil {
		c.Fatal(err)
	}
	return c.hand.take(id)
}

// expire moves the clock, and waits until an expired run is deleted.
func (c *chains) expire(by time.Duration, run string) {
	c.Helper()
	c.shift.Add(int64(by))
	c.look()
	eventually(c, run+" is deleted", func() bool {
		_, err := c.GetRun(c.Context(), run)
		return errors.Is(err, &cay.Error{Code: cay.NotFound})
	})
}

// look makes the engine look for expired runs: the end of a run without retained payloads
// triggers that.
func (c *chains) look() {
	c.Helper()
	bare := c.begin(workflow.NewRun{Input: []byte("json1"), Retention: -1})
	c.hand.append(bare, completed)
	eventually(c, "the payloads are deleted", func() bool {
		events, err := c.Events(c.Context(), bare.run, 1, 1)
		return err == nil && events[0].Payload == nil
	})
}

// A request to the first run of a chain goes to the last, even if the runs in between
// were deleted.
func TestChain_Handle(t *testing.T) {
	onChains(t, func(c *chains) {
		for _, length := range []int{1, 2, 3} {
			for _, gone := range []bool{false, true} {
				chain := c.continues(c.begin(workflow.NewRun{}), length)
				first, last := chain[0], chain[length]
				c.hand.append(last, workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Hour).UnixMilli()})
				if gone {
					for _, n := range chain[1:length] {
						if err := c.DeleteRun(c.Context(), n.run); err != nil {
							c.Fatal(err)
						}
					}
				}
				if err := c.DeleteRun(c.Context(), first.run); !errors.Is(err, &cay.Error{Code: cay.Conflict}) {
					c.Errorf("the first was deleted while the chain goes on: %v", err)
				}
				if r := get(c, c.Backend, first.run); gone && r.Next != last.run || r.Next == "" {
					c.Errorf("the first is continued by %s, want %s", r.Next, last.run)
				}
				if r := get(c, c.Backend, last.run); r.First != first.run {
					c.Errorf("the last began with %q", r.First)
				}
				if r, err := c.SetAttributes(c.Context(), first.run, map[string]string{"a": "b"}); err != nil || r.ID != last.run || r.Attributes["a"] != "b" {
					c.Errorf("attributes: %+v, %v", r, err)
				}
				if n, err := c.WakeRun(c.Context(), first.run, nil); err != nil || n != 1 {
					c.Errorf("woke %d, %v", n, err)
				}
				if r, err := c.CancelRun(c.Context(), first.run, workflow.CancelParams{Reason: "enough"}); err != nil || r.ID != last.run || !r.CancelRequested {
					c.Errorf("cancel: %+v, %v", r, err)
				}
				if e := c.hand.hears(last.run, history.CancelRequested); e.Reason != "enough" {
					c.Errorf("the last heard %+v", e)
				}
				c.hand.append(last, workflow.Event{Type: history.RunCancelled})
				if r, err := c.CancelRun(c.Context(), first.run, workflow.CancelParams{}); err != nil || r.Status != history.Cancelled {
					c.Errorf("cancelled again: %+v, %v", r, err)
				}
			}
		}
		// A bulk cancel acts on the selected runs only: an ended run is not replaced by
		// the run that continues it.
		chain := c.continues(c.begin(workflow.NewRun{Group: "many"}), 1)
		results, err := c.CancelRuns(c.Context(), workflow.Query{Statuses: []workflow.Status{history.Completed}, Limit: 1}, workflow.CancelParams{})
		if err != nil || len(results) != 1 || results[0].Run != chain[0].run || results[0].Outcome != "not_cancellable" {
			c.Errorf("%+v, %v", results, err)
		}
		c.hand.append(chain[1], completed)
	})
}

// A cancel that comes just before the run is continued is seen by the next.
func TestChain_CancelBeforeNext(t *testing.T) {
	onChains(t, func(c *chains) {
		first := c.begin(workflow.NewRun{})
		if _, err := c.CancelRun(c.Context(), first.run, workflow.CancelParams{Reason: "now"}); err != nil {
			c.Fatal(err)
		}
		next := c.continues(first, 1)[1]
		asked := slices.ContainsFunc(next.events, func(e workflow.Event) bool { return e.Type == history.CancelRequested && e.Reason == "now" })
		if r := next.assigned.Run; !asked || !r.CancelRequested {
			c.Errorf("the next is %+v, with %+v", r, next.events)
		}
		c.hand.append(next, workflow.Event{Type: history.RunCancelled})
	})
}

// The child of a run that fails or is cancelled ends, even if the child has been
// continued.
func TestChain_Child(t *testing.T) {
	onChains(t, func(c *chains) {
		for how, ends := range map[string]workflow.Event{
			"its parent was cancelled": {Type: history.RunCancelled}, "its parent has failed": {Type: history.RunFailed, Payload: []byte("json1")},
		} {
			for length := range 4 {
				parent := c.begin(workflow.NewRun{})
				chain := c.continues(c.childOf(parent), length)
				for i := 1; i < length; i++ {
					if err := c.DeleteRun(c.Context(), chain[i].run); err != nil {
						c.Fatal(err)
					}
				}
				c.hand.append(parent, ends)
				if e := c.hand.hears(chain[length].run, history.CancelRequested); e.Reason != how {
					c.Errorf("the child heard %+v, want %q", e, how)
				}
				c.hand.append(chain[length], workflow.Event{Type: history.RunCancelled})
			}
		}
	})
}

// The children that a run leaves running when it is continued end with its chain, even if
// that run's own retention is over.
func TestChain_ChildrenOfEarlierRuns(t *testing.T) {
	onChains(t, func(c *chains) {
		for how, ends := range map[string]workflow.Event{
			"its parent was cancelled": {Type: history.RunCancelled}, "its parent has failed": {Type: history.RunFailed, Payload: []byte("json1")},
		} {
			first := c.begin(workflow.NewRun{Retention: time.Hour})
			left := []news{c.childOf(first)}
			second := c.continues(first, 1)[1]
			left = append(left, c.continues(c.childOf(second), 1)[1])
			detached := c.detachedOf(second)
			third := c.continues(second, 1)[1]
			gone := c.continues(third, 1)[1]
			left = append(left, c.childOf(gone))
			c.expire(2*time.Hour, third.run) // it has no children
			c.hand.append(gone, ends)
			for _, child := range left {
				if e := c.hand.hears(child.run, history.CancelRequested); e.Reason != how {
					c.Errorf("a child heard %+v, want %q", e, how)
				}
				c.hand.append(child, workflow.Event{Type: history.RunCancelled})
			}
			if r := get(c, c.Backend, detached.run); r.CancelRequested {
				c.Errorf("a detached child is %+v", r)
			}
			c.hand.append(detached, completed)
		}
	})
}

// A key finds its chain as long as any run of the chain is kept, and the options of the
// first run apply to all.
func TestChain_KeyAndRetention(t *testing.T) {
	onChains(t, func(c *chains) {
		p := workflow.NewRun{Workflow: "w", Key: "k", Retention: time.Hour, Priority: 3}
		chain := c.continues(c.begin(p), 2)
		found := func(want string) {
			c.Helper()
			r, created, err := c.CreateRun(c.Context(), p)
			if err != nil || created || r.ID != want {
				c.Fatalf("the key finds %+v, created %v, %v", r, created, err)
			}
		}
		c.expire(2*time.Hour, chain[1].run)
		found(chain[0].run)
		last := chain[2]
		if r := get(c, c.Backend, chain[0].run); r.Next != last.run {
			c.Errorf("the first is continued by %q", r.Next)
		}
		c.hand.append(last, completed)
		r := get(c, c.Backend, last.run)
		if left := time.Duration(r.ExpiresAt-r.CompletedAt) * time.Millisecond; left != time.Hour {
			c.Errorf("the last is kept for %s", left)
		}
		c.shift.Add(int64(30 * time.Minute))
		c.look()
		found(chain[0].run)
		c.expire(time.Hour, last.run)
		c.expire(0, chain[0].run)
		again := c.begin(p)
		if again.run == chain[0].run {
			c.Error("the key is not free")
		}
		c.hand.append(again, completed)
	})
}

// A schedule whose runs must not overlap waits for the end of the chain.
func TestChain_Schedule(t *testing.T) {
	onChains(t, func(c *chains) {
		put := func(id string) {
			c.Helper()
			if _, err := c.PutSchedule(c.Context(), workflow.Schedule{ID: id, Workflow: "w", Cron: "@every 1h"}); err != nil {
				c.Fatal(err)
			}
		}
		runs := func() []workflow.RunInfo {
			page, err := c.ListRuns(c.Context(), workflow.Query{Schedule: "s"})
			if err != nil {
				c.Fatal(err)
			}
			return page.Items
		}
		passed := func() {
			c.Helper()
			before := schedule(c, c.Backend, "s").NextAt
			c.shift.Add(int64(time.Hour))
			put("other") // makes the engine check the schedules
			eventually(c, "the time has passed", func() bool { return schedule(c, c.Backend, "s").NextAt > before })
		}
		put("s")
		passed()
		first := c.hand.take(runs()[0].ID)
		chain := c.continues(first, 1)
		passed()
		chain = append(chain, c.continues(chain[1], 2)[1:]...)
		passed()
		if n := len(runs()); n != 1 {
			c.Errorf("%d runs were started", n)
		}
		c.hand.append(chain[3], completed)
		passed()
		if n := len(runs()); n != 2 {
			c.Errorf("%d runs were started when the chain had ended", n)
		}
	})
}

func schedule(t testing.TB, b workflow.Backend, id string) workflow.Schedule {
	t.Helper()
	all, err := b.ListSchedules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.ID == id {
			return s
		}
	}
	t.Fatalf("there is no schedule %s in %+v", id, all)
	return workflow.Schedule{}
}

// A process cancels a chain while another process continues the chain.
func TestShared_Chain(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	b1, b2 := openShared(t, dsn, workflowd.Config{}).For("p"), openShared(t, dsn, workflowd.Config{}).For("p")
	c := &chains{T: t, Backend: b1, hand: attach(t, b1, of("w"))}
	for range 15 {
		first := c.begin(workflow.NewRun{})
		asked := make(chan error, 1)
		go func() {
			_, err := b2.CancelRun(t.Context(), first.run, workflow.CancelParams{})
			asked <- err
		}()
		last := c.continues(first, 3)[3]
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		eventually(t, "the last run hears of it", func() bool { return get(t, b1, last.run).CancelRequested })
		c.hand.append(last, workflow.Event{Type: history.RunCancelled})
	}
}
