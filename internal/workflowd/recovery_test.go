package workflowd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

func TestRecovery(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		const n = 300
		ids := make(map[string]bool, n)
		for range n {
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			h.append(a, step("step_a.1"))
			ids[a.run] = true
		}
		b.end()
		h = attach(t, open(), of("w"))
		for range n {
			a := h.take("")
			if !ids[a.run] || len(a.events) != 3 || !a.assigned.Recovered || a.assigned.Run.Recoveries != 1 {
				t.Fatalf("assigned %+v", a.assigned)
			}
			delete(ids, a.run)
			h.append(a, step("step_b.1"))
			h.append(a, completed)
		}
	})
}

// A run that has ended in any way is given to no worker, and no worker can write to it:
// not while its step and its wait are open, nor when the engine opens again.
func TestEnded_NeverAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		for name, end := range map[string]func(news){
			"completed": func(a news) { h.append(a, completed) },
			"failed":    func(a news) { h.append(a, workflow.Event{Type: history.RunFailed, Code: history.CodeUser}) },
			"forced": func(a news) {
				if _, err := b.CancelRun(t.Context(), a.run, workflow.CancelParams{Force: true}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			h.begins(a)
			h.append(a, workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Millisecond).UnixMilli()},
				workflow.Event{Type: history.HookCreated, ID: "hook_h.1", Token: name})
			end(a)
			if err := h.try(a, step("step_a.1")); err == nil {
				t.Errorf("%s: its worker wrote to it", name)
			}
			if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: name, Payload: []byte("json1")}); cay.CodeOf(err) != cay.NotFound {
				t.Errorf("%s: its hook took a value: %v", name, err)
			}
		}
		last := create(t, b, workflow.NewRun{Workflow: "w"}).ID // runs before it in line are given out first
		h.begins(h.take(last))
		h.idle("all others have ended")
		b.end()
		h = attach(t, open(), of("w"))
		if a := h.take(""); a.run != last {
			t.Errorf("%s was assigned, which has ended", a.run)
		}
		h.idle("all others have ended")
	})
}

func TestChildren_EndWithParent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w", "child"))
		for _, force := range []bool{true, false} {
			p := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			var children []news
			for i, call := range []string{"child_a.1", "child_b.1", ""} {
				id := fmt.Sprintf("wrun_%v%d", force, i)
				done := make(chan error, 1)
				event := call
				if event == "" {
					event = "child_c.1"
				}
				h.session.StartRun(p.run, p.lease, workflow.NewRun{ID: id, Workflow: "child", ParentCall: call},
					workflow.Event{Type: history.ChildStarted, ID: event, Name: "child", Token: id}, func(err error) { done <- err })
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				children = append(children, h.take(id))
			}
			// The second child sleeps, and is not in memory.
			h.append(children[1], workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Hour).UnixMilli()})
			h.session.Release(children[1].run, children[1].lease, 3)
			if force {
				if _, err := b.CancelRun(t.Context(), p.run, workflow.CancelParams{Force: true}); err != nil {
					t.Fatal(err)
				}
			} else {
				h.append(p, workflow.Event{Type: history.RunFailed, Code: history.CodeUser})
			}
			h.hears(children[0].run, history.CancelRequested)
			again := h.take(children[1].run)
			if last := again.events[len(again.events)-1]; last.Type != history.CancelRequested {
				t.Errorf("it was woken by %+v", last)
			}
			h.append(children[0], workflow.Event{Type: history.RunCancelled})
			h.append(again, workflow.Event{Type: history.RunCancelled})
			if run := get(t, b, children[2].run); run.CancelRequested {
				t.Error("a detached child was cancelled")
			}
			h.append(children[2], completed)
		}
	})
}

// A child that another caller started cannot be waited for; a child that no parent waits
// for is left alone.
func TestChildren_Taken(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		h := attach(t, b, of("w"))
		p := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		other := create(t, b, workflow.NewRun{Workflow: "child", Key: "k"})
		start := func(n workflow.NewRun, call string) error {
			n.Workflow, n.ParentCall = "child", call
			done := make(chan error, 1)
			h.session.StartRun(p.run, p.lease, n, workflow.Event{Type: history.ChildStarted, ID: "child_" + n.ID, Token: n.ID}, func(err error) { done <- err })
			return <-done
		}
		for _, n := range []workflow.NewRun{{ID: "wrun_1", Key: "k"}, {ID: other.ID}} {
			if err := start(n, "child_a.1"); !errors.Is(err, &cay.Error{Code: cay.Conflict}) {
				t.Errorf("a child to be waited for: %v", err)
			}
			if err := start(n, ""); err != nil {
				t.Errorf("a child of its own: %v", err)
			}
			if e := h.hears(p.run, history.ChildStarted); e.Token != other.ID {
				t.Errorf("it started %+v", e)
			}
		}
		if _, err := b.GetRun(t.Context(), "wrun_1"); !errors.Is(err, &cay.Error{Code: cay.NotFound}) {
			t.Errorf("the second one: %v", err)
		}
		h.append(p, completed)
	})
}

// Sleeping runs are not in memory.
func TestSleepers(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{})
	b := e.For("")
	h := attach(t, b, of("w"))
	for range 100 {
		a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
		h.append(a, workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(5 * time.Hour).UnixMilli()})
		h.session.Release(a.run, a.lease, 3)
	}
	eventually(t, "all are out of memory", func() bool {
		s := e.Stats()
		return s.Live == 0 && s.InLine == 0 && s.Timers == 0
	})
}

func TestContinueAsNew(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{}).For("")
	h := attach(t, b, of("w", "child"))
	p := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	start := func(of news, id string, call string, e workflow.Event) {
		t.Helper()
		done := make(chan error, 1)
		h.session.StartRun(of.run, of.lease, workflow.NewRun{ID: id, Workflow: "child", ParentCall: call}, e, func(err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	start(p, "wrun_1", "child_a.1", workflow.Event{Type: history.ChildStarted, ID: "child_a.1", Token: "wrun_1"})
	first := h.take("wrun_1")
	start(first, "wrun_2", "", workflow.Event{Type: history.RunCompleted, Token: "wrun_2"})
	second := h.take("wrun_2")
	if r := second.assigned.Run; r.Previous != "wrun_1" || r.Parent != p.run {
		t.Errorf("it is %+v", r)
	}
	if r := get(t, b, "wrun_1"); r.Next != "wrun_2" || r.Status != workflow.StatusCompleted {
		t.Errorf("the first is %+v", r)
	}
	h.append(second, completed)
	if e := h.hears(p.run, history.ChildEnded); e.ID != "child_a.1" || e.Token != "wrun_2" {
		t.Errorf("the parent heard %+v", e)
	}
	h.append(p, completed)
}

// A run that is cancelled by force ends as cancelled, also if its code fails while the run's
// children are asked to end: the code may fail because they were.
func TestCancel_FailsMeanwhile(t *testing.T) {
	t.Parallel()
	f, b := openFaulty(t)
	h := attach(t, b, of("w"))
	first := h.take(create(t, b, workflow.NewRun{ID: "wrun_1", Workflow: "w"}).ID)
	done := make(chan error, 1)
	h.session.StartRun(first.run, first.lease, workflow.NewRun{ID: "wrun_2", Workflow: "w"},
		workflow.Event{Type: history.RunCompleted, Token: "wrun_2"}, func(err error) { done <- err })
	checktest.OK(t, <-done)
	second := h.take("wrun_2") // the children of a run that continues another one are read from the store
	asked, goOn := make(chan struct{}), make(chan struct{})
	hold := func() { close(asked); <-goOn }
	f.children.Store(&hold)
	cancelled := make(chan error, 1)
	go func() {
		_, err := b.CancelRun(t.Context(), "wrun_2", workflow.CancelParams{Force: true})
		cancelled <- err
	}()
	<-asked
	failed := make(chan error, 1)
	h.session.Append(second.run, second.lease, []workflow.Event{{Type: history.RunFailed, Reason: "a child was cancelled"}}, func(err error) { failed <- err })
	eventually(t, "the failure waits", func() bool { return workflowd.Waiting(b, "wrun_2") == 1 || len(failed) == 1 })
	if err := h.try(second, step("step_a.1")); err != nil {
		t.Errorf("a step of a run that has not ended: %v", err)
	}
	close(goOn)
	checktest.OK(t, <-cancelled)
	checktest.Code(t, <-failed, cay.Conflict)
	if r := get(t, b, "wrun_2"); r.Status != workflow.StatusCancelled {
		t.Errorf("the run is %s", r.Status)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	var shift atomic.Int64
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{
		Now: func() time.Time { return time.Now().Add(time.Duration(shift.Load())) },
	}).For("")
	h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", Retention: time.Hour}))
	kept := h.take(create(t, b, workflow.NewRun{Workflow: "w", Retention: 100 * time.Hour}).ID)
	h.append(kept, completed)
	gone := h.take(create(t, b, workflow.NewRun{Workflow: "w", Key: "k"}).ID)
	h.append(gone, completed)
	bare := h.take(create(t, b, workflow.NewRun{Workflow: "w", Input: []byte("json1"), Retention: -1 * time.Millisecond}).ID)
	h.append(bare, step("step_a.1"), completed)
	eventually(t, "payloads are deleted at the end", func() bool {
		events, err := b.Events(t.Context(), bare.run, 1, 100)
		return err == nil && len(events) == 4 && events[0].Payload == nil && events[2].Payload == nil
	})
	shift.Store(int64(2 * time.Hour))
	// The next deletion of payloads triggers the check at once.
	bare = h.take(create(t, b, workflow.NewRun{Workflow: "w", Retention: -1 * time.Millisecond}).ID)
	h.append(bare, completed)
	eventually(t, "the run is deleted", func() bool {
		_, err := b.GetRun(t.Context(), gone.run)
		return errors.Is(err, &cay.Error{Code: cay.NotFound})
	})
	get(t, b, kept.run)
	create(t, b, workflow.NewRun{Workflow: "w", Key: "k"}) // the key is free again
}

// The wall clock jumps ahead: timers that are due by then fire.
func TestTimers_ClockJump(t *testing.T) {
	t.Parallel()
	var shift atomic.Int64
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{
		Now: func() time.Time { return time.Now().Add(time.Duration(shift.Load())) },
	}).For("")
	h := attach(t, b, of("w"))
	a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	wait := func(id string, d time.Duration) workflow.Event {
		return workflow.Event{Type: history.WaitCreated, ID: id, Until: time.Now().Add(d).UnixMilli()}
	}
	h.append(a, wait("wait_a.1", 10*time.Hour))
	h.session.Release(a.run, a.lease, 3)
	shift.Store(int64(11 * time.Hour))
	// A timer that is due soon makes the engine check the clock; otherwise that takes
	// seconds.
	other := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	h.append(other, workflow.Event{Type: history.WaitCreated, ID: "wait_b.1", Until: time.Now().Add(11 * time.Hour).UnixMilli()})
	a = h.take(a.run)
	if last := a.events[len(a.events)-1]; last.Type != history.WaitCompleted || last.At < a.events[0].At {
		t.Errorf("it was woken by %+v", last)
	}
	shift.Store(-int64(time.Hour)) // set back: the log's time does not go back
	h.append(a, step("step_a.1"))
	events, err := b.Events(t.Context(), a.run, 1, 10)
	if err != nil || events[4].At < events[3].At {
		t.Errorf("%+v, %v", events, err)
	}
}

// Two processes share a database: a request to one takes effect in the other, and when
// one process ends the other takes over.
func TestShared(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	b1, b2 := openShared(t, dsn, workflowd.Config{}).For("p"), openShared(t, dsn, workflowd.Config{})
	second := b2.For("p")
	h := attach(t, second, of("w"))

	a := h.take(create(t, b1, workflow.NewRun{Workflow: "w"}).ID)
	h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_a.1", Token: "x"},
		workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Hour).UnixMilli()})
	if _, err := b1.ResumeHook(t.Context(), workflow.ResumeParams{Token: "x", Payload: []byte("json1")}); err != nil {
		t.Fatal(err)
	}
	if e := h.hears(a.run, history.HookReceived); string(e.Payload) != "json1" {
		t.Errorf("it got %+v", e)
	}
	if n, err := b1.WakeRun(t.Context(), a.run, nil); err != nil || n != 1 {
		t.Errorf("woke %d, %v", n, err)
	}
	h.hears(a.run, history.WaitCompleted)
	follow, err := b1.Follow(t.Context(), a.run, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	h.append(a, step("step_a.1"))
	if events, err := follow.ReadEvents(t.Context()); err != nil || events[0].ID != "step_a.1" {
		t.Errorf("%+v, %v", events, err)
	}
	if run, err := b1.CancelRun(t.Context(), a.run, workflow.CancelParams{Reason: "r"}); err != nil || !run.CancelRequested {
		t.Errorf("%+v, %v", run, err)
	}
	h.hears(a.run, history.CancelRequested)
	h.append(a, workflow.Event{Type: history.RunCancelled})
	if run, err := b1.WaitRun(t.Context(), a.run); err != nil || run.Status != workflow.StatusCancelled {
		t.Errorf("%+v, %v", run, err)
	}

	// Each process has a worker; the second process ends.
	awake, asleep := h.take(create(t, second, workflow.NewRun{Workflow: "w"}).ID), h.take(create(t, second, workflow.NewRun{Workflow: "w"}).ID)
	h.append(awake, step("step_a.1"))
	h.append(asleep, workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Second).UnixMilli()})
	h.session.Release(asleep.run, asleep.lease, 3)
	h1 := attach(t, b1, of("w"))
	if err := b2.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{awake.run, asleep.run} {
		a := h1.take(id)
		if len(a.events) < 3 {
			t.Errorf("assigned %+v", a)
		}
		h1.append(a, completed)
	}
}

// slowInbox delays the result of its second read of messages until the messages have been
// handled.
type slowInbox struct {
	*sqlstore.Postgres
	read  atomic.Int32  // number of reads that returned messages
	asked chan struct{} // closed after the second read; commits wait for it
	over  chan struct{} // closed to release the result
}

func (s *slowInbox) Owner() workflowd.Owner { return s }

func (s *slowInbox) Inbox(ctx context.Context, limit int) ([]workflowd.Message, error) {
	messages, err := s.Postgres.Inbox(ctx, limit)
	if len(messages) > 0 && s.read.Add(1) == 2 {
		close(s.asked)
		select {
		case <-s.over:
		case <-ctx.Done(): // the test has failed, and its engine ends
		}
	}
	return messages, err
}

func (s *slowInbox) Commit(ctx context.Context, g *workflowd.Group) error {
	if s.read.Load() > 0 {
		<-s.asked
	}
	return s.Postgres.Commit(ctx, g)
}

// A request from another process is carried out once, even if the inbox is read during
// the work.
func TestShared_InboxOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	b1 := openShared(t, dsn, workflowd.Config{}).For("p")
	store, err := sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Conns: 6})
	if err != nil {
		t.Fatal(err)
	}
	slow := &slowInbox{Postgres: store, asked: make(chan struct{}), over: make(chan struct{})}
	second := start(t, workflowd.Config{Store: slow}).For("p")
	h := attach(t, second, of("w"))
	a := h.take(create(t, second, workflow.NewRun{Workflow: "w"}).ID)
	h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_a.1", Token: "x"})
	// Senders wait for the owner's verdict, and the owner commits nothing before it has
	// read its inbox twice.
	var senders sync.WaitGroup
	resume := func(payload string) {
		if _, err := b1.ResumeHook(t.Context(), workflow.ResumeParams{Token: "x", Payload: []byte(payload)}); err != nil {
			t.Error(err)
		}
	}
	senders.Go(func() { resume("json1") })
	eventually(t, "the first was read", func() bool { return slow.read.Load() > 0 })
	senders.Go(func() { resume("json2") })
	h.hears(a.run, history.HookReceived)
	h.append(a, step("step_a.1")) // the lane is done with all earlier ops
	close(slow.over)
	senders.Wait()
	resume("json3")
	var got []string
	eventually(t, "the last is there", func() bool {
		events, err := b1.Events(t.Context(), a.run, 1, 100)
		got = got[:0]
		for _, e := range events {
			if e.Type == history.HookReceived {
				got = append(got, string(e.Payload))
			}
		}
		return err == nil && slices.Contains(got, "json3")
	})
	if !slices.Equal(got, []string{"json1", "json2", "json3"}) {
		t.Errorf("it received %v", got)
	}
	h.append(a, completed)
}

// A parent and its child are owned by different processes.
func TestShared_Child(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	b1, b2 := openShared(t, dsn, workflowd.Config{}).For("p"), openShared(t, dsn, workflowd.Config{}).For("p")
	parents, children := attach(t, b1, of("w")), attach(t, b2, of("child"))
	p := parents.take(create(t, b1, workflow.NewRun{Workflow: "w"}).ID)
	done := make(chan error, 1)
	parents.session.StartRun(p.run, p.lease, workflow.NewRun{ID: "wrun_1", Workflow: "child", ParentCall: "child_a.1"},
		workflow.Event{Type: history.ChildStarted, ID: "child_a.1", Token: "wrun_1"}, func(err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	children.append(children.take("wrun_1"), completed)
	if e := parents.hears(p.run, history.ChildEnded); e.Token != "wrun_1" || e.Code != "completed" {
		t.Errorf("it heard %+v", e)
	}
	parents.append(p, completed)
}
