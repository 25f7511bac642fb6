package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A full disk makes the ledger refuse calls and loses no record; calls are admitted again
// when there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small disk needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("mounting a small disk: ", err)
	}
	t.Cleanup(func() { checktest.OK(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	ctx := context.Background()
	d, err := db.Open(ctx, filepath.Join(dir, "gateway.db"), db.Options{})
	checktest.OK(t, err)
	b, err := Open(ctx, d, Options{})
	checktest.OK(t, err)
	t.Cleanup(func() { checktest.OK(t, errors.Join(b.Close(), d.Close())) })
	_, err = b.SetBudget(ctx, "team", gateway.BudgetID{Scope: gateway.ScopeTeam, Ref: "team"}, gateway.BudgetParams{Limit: gateway.Dollar * 1000, Period: gateway.Never})
	checktest.OK(t, err)
	filler := filepath.Join(dir, "filler")
	fill, err := os.Create(filler)
	checktest.OK(t, err)
	for {
		if _, err := fill.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	size, err := fill.Seek(0, 1)
	checktest.OK(t, err)
	checktest.OK(t, errors.Join(fill.Truncate(size-200<<10), fill.Close()))

	admitted := 0
	var refusal error
	var last Hold
	for range 100_000 {
		h, err := b.Admit(ctx, caller(), cost(cent))
		if err != nil {
			refusal = err
			break
		}
		if admitted++; last != nil {
			r := request(caller(), cent)
			r.Error = strings.Repeat("long ", 200)
			last.Settle(r)
		}
		last = h
	}
	if last == nil {
		t.Fatal("not even the first call was admitted")
	}
	last.Settle(request(caller(), cent)) // while the disk is full
	t.Logf("%d calls were admitted", admitted)
	e := wantKind(t, refusal, hub.Overloaded)
	if e.RetryAfter == 0 || !strings.Contains(e.Message, "cannot grow") {
		t.Errorf("it is told %q", e.Message)
	}
	wantKind(t, b.Record(request(caller(), 0)), hub.Overloaded)
	_, err = b.Requests(ctx, "team", "", gateway.RequestFilter{})
	checktest.Code(t, err, cay.NoSpace)

	checktest.OK(t, os.Remove(filler))
	checktest.OK(t, b.writer.flush(ctx, true))
	h, err := b.Admit(ctx, caller(), cost(cent))
	checktest.OK(t, err)
	h.Settle(request(caller(), cent))
	spent, err := b.Spend(ctx, "team", "", gateway.SpendParams{By: []string{"project"}})
	checktest.OK(t, err)
	want := gateway.Money(admitted+1) * cent
	budget, err := b.GetBudget(ctx, "team", gateway.BudgetID{Scope: gateway.ScopeTeam, Ref: "team"})
	checktest.OK(t, err)
	if len(spent) != 1 || spent[0].Requests != int64(admitted+1) || spent[0].Cost != want || budget.Spent != want || b.Err() != nil {
		t.Errorf("%d calls were admitted; the records say %+v, the budget %+v, %v", admitted+1, spent, budget, b.Err())
	}
}

// The queue is bounded: the ledger refuses a call whose record it could not queue.
func TestQueueFull(t *testing.T) {
	t.Parallel()
	f := setup(t, func(o *Options) { o.Queue = 3 })
	var holds []Hold
	for range 3 {
		holds = append(holds, f.admit(caller(), Need{}))
	}
	e := wantKind(t, second(f.Admit(t.Context(), caller(), Need{})), hub.Overloaded)
	if !strings.Contains(e.Message, "too many") {
		t.Error(e.Message)
	}
	wantKind(t, f.Record(request(caller(), 0)), hub.Overloaded)
	for _, h := range holds {
		h.Settle(request(caller(), 0))
	}
	checktest.OK(t, f.writer.flush(t.Context(), false))
	checktest.OK(t, f.Record(request(caller(), 0)))
	page, err := f.Requests(t.Context(), "team", "", gateway.RequestFilter{})
	checktest.OK(t, err)
	if len(page.Items) != 4 {
		t.Errorf("%d records, want 4", len(page.Items))
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: gateway.Dollar})
	open := f.admit(caller(), cost(3*cent))
	f.admit(caller(), cost(cent)).Settle(request(caller(), cent))
	old := f.Book
	checktest.OK(t, old.Close())
	checktest.OK(t, old.Close())
	wantKind(t, second(old.Admit(t.Context(), caller(), cost(1))), hub.Overloaded)
	wantKind(t, old.Record(request(caller(), 0)), hub.Overloaded)
	open.Settle(request(caller(), cent)) // too late
	checktest.OK(t, f.db.Close())
	f.open()
	if b := f.spent(gateway.ScopeTeam, "team", 4*cent, 0); b.Unsettled != 3*cent {
		t.Errorf("%s is unsettled, want what was under way", b.Unsettled)
	}
	page, err := f.Requests(t.Context(), "team", "", gateway.RequestFilter{})
	checktest.OK(t, err)
	if len(page.Items) != 1 {
		t.Errorf("%d records, want that of the call that had ended", len(page.Items))
	}
}

// A caller that leaves while it waits for the disk keeps no hold.
func TestAdmit_Canceled(t *testing.T) {
	t.Parallel()
	f := setup(t)
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: gateway.Dollar})
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.memory.mu.Lock()
	f.writer.at = func(point string) {
		if point == "before commit" {
			once.Do(func() { close(reached); <-goOn })
		}
	}
	f.memory.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := f.Admit(ctx, caller(), cost(50*cent))
		failed <- err
	}()
	<-reached
	cancel()
	wantKind(t, <-failed, hub.Canceled)
	close(goOn)
	f.spent(gateway.ScopeTeam, "team", 0, 0)
	f.admit(caller(), cost(gateway.Dollar)).Settle(request(caller(), gateway.Dollar))
	if s := f.Stats(); s.Admitted != 1 || s.Refused != 1 || s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

// While a group is being written, the database may be in the state before or after it.
// Calls admitted meanwhile must be covered in both states.
func TestAdmit_WhileCommitting(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const limit = 1000
	f.budget(gateway.ScopeTeam, "team", gateway.BudgetParams{Limit: limit, Period: gateway.Never})
	h := f.admit(caller(), cost(100)) // 100 and a stock of 10 are held
	reached, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.memory.mu.Lock()
	f.writer.at = func(point string) {
		if point == "before commit" {
			once.Do(func() { close(reached); <-goOn })
		}
	}
	f.memory.mu.Unlock()
	h.Settle(request(caller(), 40))
	go func() { _ = f.writer.flush(context.Background(), false) }() // the group reports the error
	<-reached
	// Before the commit 110 units are held, and 40 of them are queued; after the commit
	// 10 are held.
	small := f.admit(caller(), cost(10))
	waits := make(chan Hold, 1)
	go func() {
		h, err := f.Admit(context.Background(), caller(), cost(1))
		if err != nil {
			t.Error(err)
		}
		waits <- h
	}()
	select {
	case h := <-waits:
		t.Error("a call was admitted that nothing covers")
		waits <- h
	case <-goOnAfter(f):
	}
	close(goOn)
	(<-waits).Settle(request(caller(), 1))
	small.Settle(request(caller(), 10))
	f.spent(gateway.ScopeTeam, "team", 51, 0)
}

// goOnAfter returns a channel that is closed when a call waits for a group, or when the
// test ends.
func goOnAfter(f *fixture) <-chan struct{} {
	c := make(chan struct{})
	go func() {
		defer close(c)
		for f.t.Context().Err() == nil {
			f.memory.mu.Lock()
			waiting := f.waiting != nil
			f.memory.mu.Unlock()
			if waiting {
				return
			}
			runtime.Gosched()
		}
	}()
	return c
}
