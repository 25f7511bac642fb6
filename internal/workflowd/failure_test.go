package workflowd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// faulty is a store whose commits fail on demand.
type faulty struct {
	workflowd.Store
	fault atomic.Pointer[func(commit func() error) error]
	away  atomic.Bool // reads fail
	// children is called by the next LiveChildren.
	children atomic.Pointer[func()]
}

func (f *faulty) Run(ctx context.Context, id string) (*history.Run, error) {
	if f.away.Load() {
		return nil, cay.Errorf(cay.Unavailable, "away")
	}
	return f.Store.Run(ctx, id)
}

func (f *faulty) LiveChildren(ctx context.Context, of string) ([]history.Run, error) {
	if first := f.children.Swap(nil); first != nil {
		(*first)()
	}
	return f.Store.LiveChildren(ctx, of)
}

func (f *faulty) Commit(ctx context.Context, g *workflowd.Group) error {
	commit := func() error { return f.Store.Commit(ctx, g) }
	if fault := f.fault.Load(); fault != nil {
		return (*fault)(commit)
	}
	return commit()
}

func (f *faulty) fail(how func(commit func() error) error) { f.fault.Store(&how) }
func (f *faulty) heal()                                    { f.fault.Store(nil) }

func openFaulty(t testing.TB) (*faulty, workflow.Backend) {
	t.Helper()
	store, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "w.db"), sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := &faulty{Store: store}
	return f, start(t, workflowd.Config{Store: f}).For("")
}

// While the disk is full a worker waits; other callers get an error.
func TestCommit_NoSpace(t *testing.T) {
	t.Parallel()
	f, b := openFaulty(t)
	h := attach(t, b, of("w"))
	a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	tried := make(chan struct{}, 100)
	f.fail(func(func() error) error {
		select {
		case tried <- struct{}{}:
		default:
		}
		return cay.Errorf(cay.NoSpace, "full")
	})
	done := make(chan error, 2)
	h.session.Append(a.run, a.lease, []workflow.Event{step("step_a.1")}, func(err error) { done <- err })
	h.session.Append(a.run, a.lease, []workflow.Event{step("step_b.1")}, func(err error) { done <- err })
	<-tried
	<-tried
	if _, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "w"}); !errors.Is(err, &cay.Error{Code: cay.NoSpace}) {
		t.Errorf("a start says %v", err)
	}
	if len(done) > 0 {
		t.Errorf("the worker was told %v", <-done)
	}
	f.heal()
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("the worker was told %v", err)
		}
	}
	h.append(a, completed)
	events, err := b.Events(t.Context(), a.run, 1, 100)
	if err != nil || len(events) != 5 || events[2].ID != "step_a.1" || events[3].ID != "step_b.1" {
		t.Errorf("%+v, %v", events, err)
	}
}

// A failed commit may have been stored or not: the engine reads the log to find out.
func TestCommit_Unknown(t *testing.T) {
	t.Parallel()
	for _, stored := range []bool{true, false} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			t.Parallel()
			f, b := openFaulty(t)
			h := attach(t, b, of("w"))
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			f.fail(func(commit func() error) error {
				f.heal()
				if stored {
					if err := commit(); err != nil {
						t.Error(err)
					}
				}
				return cay.Errorf(cay.Unavailable, "gone")
			})
			h.append(a, step("step_a.1"))
			if e := h.hears(a.run, history.StepCompleted); e.Slot != 3 || e.ID != "step_a.1" {
				t.Errorf("delivered %+v", e)
			}
			h.append(a, step("step_b.1"), completed)
			if run := get(t, b, a.run); run.Events != 5 || run.Status != workflow.StatusCompleted {
				t.Errorf("it is %+v", run)
			}

			// A start that may have been stored is found again.
			f.fail(func(commit func() error) error {
				f.heal()
				if stored {
					if err := commit(); err != nil {
						t.Error(err)
					}
				}
				return cay.Errorf(cay.Unavailable, "gone")
			})
			if _, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "w"}); !errors.Is(err, &cay.Error{Code: cay.Unavailable}) {
				t.Errorf("a start says %v", err)
			}
			if stored {
				h.append(h.take(""), completed)
			} else {
				h.append(h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID), completed)
				h.idle("nothing was stored")
			}
		})
	}
}

// If the group with a transaction's hold on its run could not be stored, the run is
// released.
func TestCommit_HoldFails(t *testing.T) {
	t.Parallel()
	for _, code := range []cay.Code{cay.NoSpace, cay.Unavailable} {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			f, b := openFaulty(t)
			h := attach(t, b, of("w"))
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			other := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			transact := func() error {
				return h.session.Transact(t.Context(), a.run, a.lease, func(context.Context, workflow.Tx) (workflow.Event, error) {
					return step("step_tx.1"), nil
				})
			}
			// While a commit is running, the next group gathers both.
			under, goOn := make(chan struct{}), make(chan struct{})
			var commits atomic.Int32
			f.fail(func(commit func() error) error {
				switch commits.Add(1) {
				case 1:
					close(under)
					<-goOn
					return commit()
				case 2:
					return cay.Errorf(code, "the second fails")
				}
				return commit()
			})
			decided := make(chan error, 3)
			done := func(err error) { decided <- err }
			h.session.Append(other.run, other.lease, []workflow.Event{step("step_a.1")}, done)
			<-under
			h.session.Append(other.run, other.lease, []workflow.Event{step("step_b.1")}, done)
			held := make(chan error, 1)
			go func() { held <- transact() }()
			eventually(t, "both are queued", func() bool { return workflowd.Queued(b) == 2 })
			close(goOn)
			if err := <-held; !errors.Is(err, &cay.Error{Code: code}) {
				t.Fatalf("the transaction says %v", err)
			}
			h.append(a, step("step_c.1")) // the run is no longer held
			if err := transact(); err != nil {
				t.Fatal(err)
			}
			h.append(a, completed)
			for range 2 {
				if err := <-decided; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// WaitRun on an ended run returns even while an op that publishes nothing is changing the
// run.
func TestWaitRun_Touched(t *testing.T) {
	t.Parallel()
	f, b := openFaulty(t)
	done := make(chan error, 3)
	cancel := func(id string) {
		_, err := b.CancelRun(t.Context(), id, workflow.CancelParams{})
		done <- err
	}
	start := func() {
		_, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "w"})
		done <- err
	}
	id := create(t, b, workflow.NewRun{Workflow: "w"}).ID
	if cancel(id); <-done != nil {
		t.Fatal("it was not cancelled")
	}

	// While a commit is running, the next group gathers a start, and a second request to
	// cancel the run, whose log was read for it.
	f.away.Store(true)
	go cancel(id)
	eventually(t, "the log is to be read", func() bool { return workflowd.Waiting(b, id) == 1 })
	under, goOn := make(chan struct{}), make(chan struct{})
	f.fail(func(commit func() error) error {
		under <- struct{}{}
		<-goOn
		return commit()
	})
	go start()
	<-under
	f.away.Store(false)
	eventually(t, "the log was read", func() bool { return workflowd.Queued(b) == 1 })
	go start()
	eventually(t, "there is something to commit", func() bool { return workflowd.Queued(b) == 2 })
	goOn <- struct{}{}
	<-under

	ctx, giveUp := context.WithTimeout(t.Context(), patience)
	defer giveUp()
	if run, err := b.WaitRun(ctx, id); err != nil || run.Status != workflow.StatusCancelled {
		t.Errorf("it ended as %+v, %v", run, err)
	}
	f.heal()
	close(goOn)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// While it is unknown which events were stored, a caller that waits for a transaction can
// give up, and so can the end of the session.
func TestTransact_GivesUp(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"context", "session"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f, b := openFaulty(t)
			h := attach(t, b, of("w"))
			a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
			f.away.Store(true)
			f.fail(func(func() error) error { return cay.Errorf(cay.Unavailable, "away") })
			h.session.Append(a.run, a.lease, []workflow.Event{step("step_a.1")}, func(error) {})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			waits := make(chan error, 1)
			go func() {
				waits <- h.session.Transact(ctx, a.run, a.lease, func(context.Context, workflow.Tx) (workflow.Event, error) {
					t.Error("it is executed")
					return workflow.Event{}, errors.New("no")
				})
			}()
			eventually(t, "both wait for the log", func() bool { return workflowd.Waiting(b, a.run) == 2 })
			if how == "context" {
				cancel()
			} else if err := h.session.Close(); err != nil {
				t.Error(err)
			}
			if err := <-waits; err == nil {
				t.Error("the transaction succeeded")
			}
			f.heal()
			f.away.Store(false)
		})
	}
}
