package workflowd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

// sameAsStored compares what x reads of a run with what the database has.
func sameAsStored(t *testing.T, x *workflowd.External, run string) {
	t.Helper()
	want, stored, err := workflowd.Stored(t.Context(), x, run)
	if err != nil {
		t.Fatal(err)
	}
	got, err := x.GetRun(t.Context(), run)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the run is %+v, %v; stored is %+v", got, err, want)
	}
	for _, limit := range []int{1, 3, 1000} {
		var log []history.Event
		for more := true; more; {
			part, err := x.ReadLog(t.Context(), run, int64(len(log))+1, limit)
			if err != nil {
				t.Fatal(err)
			}
			log, more = append(log, part.Events...), part.More
		}
		if !reflect.DeepEqual(log, stored) {
			t.Errorf("in pages of %d the log is\n%+v; stored is\n%+v", limit, log, stored)
		}
	}
}

// randomEntry is an entry that the run may or may not allow.
func randomEntry(r *rand.Rand) workflowd.Entry {
	payload := func() []byte {
		n := r.IntN(50)
		if r.IntN(4) == 0 {
			n += 200 // a blob
		}
		return fmt.Appendf(nil, "devl%0*d", n, n)
	}
	ev := history.Event{ID: fmt.Sprint("id_", r.IntN(4)), Extra: []byte{byte(r.IntN(3))}}
	switch ev.Type = []history.Type{
		history.RunStarted, history.AttrSet, history.StepCreated, history.StepStarted, history.StepCompleted, history.StepFailed,
		history.StepRetrying, history.HookCreated, history.HookReceived, history.HookDisposed, history.WaitCreated, history.WaitCompleted,
	}[r.IntN(12)]; ev.Type {
	case history.AttrSet:
		ev.ID, ev.Attributes = "", map[string]string{fmt.Sprint("a", r.IntN(3)): fmt.Sprint(r.IntN(2))}
	case history.StepCreated:
		ev.Name, ev.Input = "s", payload()
	case history.HookCreated:
		ev.Token = fmt.Sprint("t", r.IntN(4))
	case history.StepCompleted, history.StepFailed, history.StepRetrying, history.HookReceived:
		ev.Payload = payload()
	}
	return workflowd.Entry{ev}
}

// eachStore runs a test on both databases.
func eachStore(t *testing.T, test func(t *testing.T, openIt func() (workflowd.Store, error))) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "w.db")
		test(t, func() (workflowd.Store, error) {
			return sqlstore.OpenSQLite(t.Context(), path, sqlstore.SQLiteOptions{})
		})
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		test(t, func() (workflowd.Store, error) {
			return sqlstore.OpenPostgres(t.Context(), dsn, sqlstore.PostgresOptions{Conns: 6})
		})
	})
}

// A run in memory reads as the database has it, whatever was appended or
// refused, also after commits that were lost or whose outcome is unknown, and after a
// restart.
func TestView(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, openIt func() (workflowd.Store, error)) {
		rnd := seedtest.Rand(t)
		for round := range seedtest.Rounds(t, 4) {
			run := fmt.Sprintf("wrun_01M8BS000000000000000000%02d", round)
			var e *workflowd.Engine
			var store *faulty
			var calls *counted
			reopen := func() *workflowd.External {
				if e != nil {
					if err := e.Close(); err != nil {
						t.Fatal(err)
					}
				}
				s, err := openIt()
				if err != nil {
					t.Fatal(err)
				}
				store = &faulty{Store: s}
				calls = &counted{Store: store}
				e = start(t, workflowd.Config{Store: calls, InlinePayload: 100})
				return e.External("p", history.JavaScript)
			}
			x := reopen()
			createExternal(t, x, run)
			for range 40 {
				fault := rnd.IntN(12)
				switch fault {
				case 0:
					store.fail(func(func() error) error { return cay.Errorf(cay.NoSpace, "full") })
				case 1:
					store.fail(func(func() error) error { return cay.Errorf(cay.Unavailable, "away") })
				case 2:
					store.fail(func(commit func() error) error {
						if err := commit(); err != nil {
							return err
						}
						return cay.Errorf(cay.Unavailable, "unknown")
					})
				case 3:
					x = reopen()
				}
				entries := make([]workflowd.Entry, 1+rnd.IntN(3))
				for i := range entries {
					entries[i] = randomEntry(rnd)
				}
				_, err := x.Record(t.Context(), run, entries...)
				store.heal()
				if err != nil && fault > 2 {
					t.Fatal(err)
				}
				sameAsStored(t, x, run)
				if _, err := x.Record(t.Context(), run, workflowd.Entry{{Type: history.RunStarted}}); err != nil {
					t.Fatal(err)
				}
				sameAsStored(t, x, run)
			}
			before := calls.reads.Load()
			for range 3 {
				if _, err := x.GetRun(t.Context(), run); err != nil {
					t.Fatal(err)
				}
				if _, err := x.ReadLog(t.Context(), run, 1, 10); err != nil {
					t.Fatal(err)
				}
			}
			if n := calls.reads.Load() - before; n != 0 {
				t.Errorf("the run in memory took %d reads of the database", n)
			}
			if _, err := e.External("other", history.JavaScript).ReadLog(t.Context(), run, 1, 10); cay.CodeOf(err) != cay.NotFound {
				t.Errorf("another project reads it: %v", err)
			}
			end := history.Event{Type: history.RunCompleted, Payload: []byte("devl1")}
			if _, err := x.Record(t.Context(), run, workflowd.Entry{end}); err != nil {
				t.Fatal(err)
			}
			sameAsStored(t, x, run)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// stuck is a store whose process does not come to renew its registration.
type stuck struct {
	workflowd.Store
	over chan struct{}
}

func (s *stuck) Owner() workflowd.Owner { return stuckOwner{s.Store.Owner(), s.over} }

type stuckOwner struct {
	workflowd.Owner
	over chan struct{}
}

func (o stuckOwner) Renew(context.Context) error {
	<-o.over
	return cay.Errorf(cay.Unavailable, "stuck")
}

// A process that other processes hold for dead reads its runs from the database: another
// process may have them.
func TestView_stale(t *testing.T) {
	t.Parallel()
	dsn := pgtest.DSN(t)
	options := sqlstore.PostgresOptions{Conns: 6, Lease: 3 * time.Second}
	store, err := sqlstore.OpenPostgres(t.Context(), dsn, options)
	if err != nil {
		t.Fatal(err)
	}
	s := &stuck{Store: store, over: make(chan struct{})}
	a := start(t, workflowd.Config{Store: s}).External("p", history.JavaScript)
	t.Cleanup(sync.OnceFunc(func() { close(s.over) }))
	other, err := sqlstore.OpenPostgres(t.Context(), dsn, options)
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, workflowd.Config{Store: other}).External("p", history.JavaScript)
	createExternal(t, a, externalRun)
	sameAsStored(t, a, externalRun)
	for {
		_, err := b.Record(t.Context(), externalRun, workflowd.Entry{{Type: history.RunStarted}})
		if err == nil {
			break
		}
		if cay.CodeOf(err) != cay.Unavailable {
			t.Fatal(err)
		}
	}
	sameAsStored(t, a, externalRun)
	sameAsStored(t, b, externalRun)
}

// The bytes derived from the events of runs stay within bounds, and go with the runs.
func TestMemo(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{})
	x := e.External("p", history.JavaScript)
	createExternal(t, x, externalRun)
	for range 20 {
		if errs := record(t, x, history.Event{Type: history.AttrSet, Attributes: map[string]string{"a": "1"}}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	part, err := x.ReadLog(t.Context(), externalRun, 1, 1000)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	derive := func(ev *history.Event) ([]byte, error) {
		calls++
		b := make([]byte, 1<<20)
		b[0] = byte(ev.Slot)
		return b, nil
	}
	for range 2 {
		for i := range part.Events {
			b, err := part.Memo.Get(1, &part.Events[i], derive)
			if err != nil || b[0] != byte(part.Events[i].Slot) {
				t.Fatalf("event %d: %d, %v", i, b[0], err)
			}
		}
	}
	// Seven of them fit.
	if n := len(part.Events); calls != 2*n-7 {
		t.Errorf("twice %d events were derived %d times", n, calls)
	}
	if n := workflowd.Memos(e); n < 7<<20 || n > 8<<20 {
		t.Errorf("%d bytes are kept", n)
	}
	for range 2 { // when the lane takes the second it is done with the first
		if errs := record(t, x, history.Event{Type: history.RunCancelled}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	if _, err := part.Memo.Get(1, &part.Events[0], derive); err != nil {
		t.Fatal(err)
	}
	if n := workflowd.Memos(e); n != 0 {
		t.Errorf("after the end of the run %d bytes are kept", n)
	}
}
