package flowlog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// stores are the tables of sandboxes and of flows.
type stores struct {
	*flowTable
	sandboxes *store.Store
}

type flowTable = store.Flows // the field has another name than the method Flows

// newStore opens stores over fresh databases. It returns the database of sandboxes, too.
func newStore(t *testing.T) (stores, *db.DB) {
	t.Helper()
	d := dbtest.Open(t)
	s := checktest.Must(store.Open(t.Context(), d, store.Options{}))(t)
	return stores{checktest.Must(store.OpenFlows(t.Context(), dbtest.Open(t), d))(t), s}, d
}

// newSandbox inserts a sandbox and returns its id.
func newSandbox(t *testing.T, s stores) string {
	t.Helper()
	now := time.UnixMilli(1_700_000_000_000).UTC()
	r := &store.Row{Sandbox: sandbox.Sandbox{
		ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
		CreatedAt: now, UpdatedAt: now,
	}}
	if _, err := s.sandboxes.Insert(t.Context(), store.Request{Row: r}); err != nil {
		t.Fatal(err)
	}
	return r.ID
}

func newLog(t *testing.T, s stores, limit int) *Log {
	return New(s, slog.New(slog.DiscardHandler), limit, func(string) {})
}

func aFlow(seq int64) sandbox.Flow {
	return sandbox.Flow{Seq: seq, Time: time.UnixMilli(seq).UTC(), Protocol: "tcp", Verdict: sandbox.Denied, Rule: "mode deny-all"}
}

func stored(t *testing.T, s stores, id string) (seqs []int64) {
	t.Helper()
	flows, err := s.Flows(t.Context(), id, sandbox.FlowParams{}, 2*Kept)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		seqs = append(seqs, f.Seq)
	}
	return seqs
}

// Added records are written in the background, and the rest by Close.
func TestLog_Writes(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	r := newSandbox(t, s)
	written := make(chan struct{}, 1000)
	l := New(s, slog.New(slog.DiscardHandler), 1000, func(string) { written <- struct{}{} })
	l.Start()
	b := l.Buffer(r)
	w := &Watch{}
	if err := b.watch(w); err != nil {
		t.Fatal(err)
	}
	var makers sync.WaitGroup
	for i := range int64(10) {
		makers.Go(func() {
			for n := range int64(10) {
				b.Add(aFlow(1 + 10*i + n))
			}
		})
	}
	makers.Wait()
	for len(stored(t, s, r)) < 100 {
		<-written
	}
	b.Add(aFlow(101))
	b.End(io.EOF)
	b.Add(aFlow(102)) // too late
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(stored(t, s, r)); n != 101 {
		t.Errorf("%d records are there, want 101", n)
	}
	n := 0
	for {
		if _, err := w.Next(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 101 {
		t.Errorf("%d records were seen, want 101", n)
	}
}

// A flood of records takes no more memory than the kept records, and blocks no caller.
func TestLog_Flood(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	r := newSandbox(t, s)
	l := newLog(t, s, 10_000) // not started: nothing is taken
	b := l.Buffer(r)
	slow := &Watch{}
	if err := b.watch(slow); err != nil {
		t.Fatal(err)
	}
	const flood = 20_000
	for n := range int64(flood) {
		b.Add(aFlow(n + 1))
	}
	if len(b.pending) != Kept || len(b.order) != Kept {
		t.Errorf("%d records are held", len(b.pending))
	}
	for n := range int64(watchAhead) {
		if f, err := slow.Next(); err != nil || f.Seq != n+1 {
			t.Fatalf("got %d, %v, want %d", f.Seq, err, n+1)
		}
	}
	if _, err := slow.Next(); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one that is too slow is told %v", err)
	}
	if len(b.watches) != 0 {
		t.Error("one that is too slow is kept")
	}
	if err := l.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, s, r); len(got) != Kept || got[0] != flood-Kept+1 {
		t.Errorf("%d records are kept, from %d", len(got), got[0])
	}
}

func TestLog_Watches(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	b := newLog(t, s, 1000).Buffer("sbx_x")
	var last *Watch
	for range maxWatches {
		last = &Watch{}
		if err := b.watch(last); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.watch(&Watch{}); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	if err := b.watch(&Watch{}); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	b.End(io.EOF)
	ended := &Watch{}
	if err := b.watch(ended); err != nil {
		t.Fatal(err)
	}
	if _, err := ended.Next(); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

// A watch does not repeat live the records that it has returned from the database,
// neither the same record nor one that was replaced meanwhile.
func TestWatch_Overlap(t *testing.T) {
	t.Parallel()
	b := New(nil, slog.New(slog.DiscardHandler), 1000, func(string) {}).Buffer("sbx_x")
	closed, open := aFlow(1), aFlow(2)
	open.Open = true
	w := &Watch{past: []sandbox.Flow{closed, open}, seen: map[int64]bool{1: false, 2: true}}
	if err := b.watch(w); err != nil {
		t.Fatal(err)
	}
	opened := closed
	opened.Open = true
	done := open
	done.Open = false
	for _, f := range []sandbox.Flow{opened, closed, open, aFlow(3), done} {
		b.Add(f)
	}
	b.End(io.EOF)
	var got []string
	for {
		f, err := w.Next()
		if err == io.EOF {
			break
		}
		got = append(got, fmt.Sprint(f.Seq, f.Open))
	}
	if want := "1 false, 2 true, 3 false, 2 false"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", strings.Join(got, ", "), want)
	}
}

// Records are kept while the database refuses writes, except those of sandboxes that were
// deleted meanwhile.
func TestLog_Failure(t *testing.T) {
	t.Parallel()
	s, d := newStore(t)
	r, deleted := newSandbox(t, s), newSandbox(t, s)
	l := newLog(t, s, 1000)
	b := l.Buffer(r)
	b.Add(aFlow(1))
	l.Buffer(deleted).Add(aFlow(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Write(ctx); err == nil {
		t.Fatal("it was written")
	}
	newer := aFlow(1)
	newer.Rule = "newer"
	b.Add(newer)
	b.Add(aFlow(2))
	if _, err := d.Exec(t.Context(), `DELETE FROM sandboxes WHERE id = ?`, deleted); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	flows, err := s.Flows(t.Context(), r, sandbox.FlowParams{}, 10)
	if err != nil || len(flows) != 2 || flows[0].Rule != "newer" || flows[1].Seq != 2 {
		t.Errorf("got %+v, %v", flows, err)
	}
	if got := stored(t, s, deleted); len(got) != 0 {
		t.Errorf("a deleted sandbox has %v", got)
	}
}

// Records that could not be written at the end of a sandbox are retried even if no more
// are added.
func TestLog_FailureAtTheEnd(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	r, written := newSandbox(t, s), make(chan struct{}, 1)
	l := New(s, slog.New(slog.DiscardHandler), 10, func(string) { written <- struct{}{} })
	l.Buffer(r).Add(aFlow(1))
	<-l.wake // nothing else is about to be written
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Write(ctx); err == nil {
		t.Fatal("records were written without time for it")
	}
	l.Start()
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Error("they are not tried again")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, s, r); len(got) != 1 {
		t.Errorf("stored are %v", got)
	}
}

// The total of all logs is bounded: the oldest records of all are dropped first.
func TestLog_Bound(t *testing.T) {
	t.Parallel()
	s, _ := newStore(t)
	l := newLog(t, s, 500)
	var rows []string
	for range 6 {
		r := newSandbox(t, s)
		rows = append(rows, r)
		b := l.Buffer(r)
		for n := range int64(100) {
			b.Add(aFlow(n + 1))
		}
		if err := l.Write(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for i, r := range rows {
		n := len(stored(t, s, r))
		total += n
		if i == 0 && n != 0 || i >= 2 && n != 100 {
			t.Errorf("sandbox %d has %d records", i, n)
		}
	}
	if total > 500 || total < 400 {
		t.Errorf("%d records are kept, of at most 500", total)
	}
}

// The records of a deleted sandbox are removed, those of others stay. At a start the log
// also finds deletions that nobody has reported.
func TestLog_Removed(t *testing.T) {
	t.Parallel()
	s, d := newStore(t)
	l := newLog(t, s, 1000)
	stays, reported, unreported := newSandbox(t, s), newSandbox(t, s), newSandbox(t, s)
	for _, id := range []string{stays, reported, unreported} {
		l.Buffer(id).Add(aFlow(1))
	}
	checktest.OK(t, l.Write(t.Context()))
	checktest.Must(d.Exec(t.Context(), `DELETE FROM sandboxes WHERE id IN (?, ?)`, reported, unreported))(t)
	l.Removed(stays)
	l.Removed(reported)
	checktest.OK(t, l.Close())
	for id, want := range map[string]int{stays: 1, reported: 0, unreported: 1} {
		if got := stored(t, s, id); len(got) != want {
			t.Errorf("records of a sandbox: %v, want %d", got, want)
		}
	}
	next := newLog(t, s, 1000)
	next.Start()
	for len(stored(t, s, unreported)) > 0 {
		runtime.Gosched()
	}
	if got := stored(t, s, stays); len(got) != 1 {
		t.Errorf("records of the sandbox that stays: %v", got)
	}
	checktest.OK(t, next.Close())
}

// If more sandboxes are deleted than the log remembers, it looks at all of them.
func TestLog_ManyRemoved(t *testing.T) {
	t.Parallel()
	s, d := newStore(t)
	l := newLog(t, s, 1000)
	id := newSandbox(t, s)
	l.Buffer(id).Add(aFlow(1))
	checktest.OK(t, l.Write(t.Context()))
	checktest.Must(d.Exec(t.Context(), `DELETE FROM sandboxes WHERE id = ?`, id))(t)
	for n := range maxRemoved {
		l.Removed(fmt.Sprint(n))
	}
	l.Removed(id)
	if len(l.removed) != maxRemoved {
		t.Errorf("%d deletions are remembered, of at most %d", len(l.removed), maxRemoved)
	}
	checktest.OK(t, l.Close())
	if got := stored(t, s, id); len(got) != 0 {
		t.Errorf("a deleted sandbox has %v", got)
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	f := sandbox.Flow{Protocol: "https", Path: strings.Repeat("é", 400), Method: strings.Repeat("M", 100)}
	clipAll(&f)
	if len(f.Path) > 512 || !utf8.ValidString(f.Path) || len(f.Method) != 32 || f.Protocol != "https" {
		t.Errorf("got %+v", f)
	}
}

// A record that is added while an older one of the same connection is put back is not
// overwritten by the older one.
func TestBuffer_GiveBack(t *testing.T) {
	t.Parallel()
	l := New(nil, slog.New(slog.DiscardHandler), 10, func(string) {})
	b := l.Buffer("sbx")
	// Both goroutines spin, so that they meet.
	var begun, added atomic.Int64
	const rounds = 50000
	go func() {
		for n := int64(1); n <= rounds; n++ {
			for begun.Load() != n {
				runtime.Gosched()
			}
			b.Add(sandbox.Flow{Seq: 1, IngressBytes: n})
			added.Store(n)
		}
	}()
	for n := int64(1); n <= rounds; n++ {
		begun.Store(n)
		b.giveBack([]sandbox.Flow{{Seq: 1}})
		for added.Load() != n {
			runtime.Gosched()
		}
		if kept := b.take(); len(kept) != 1 || kept[0].IngressBytes != n {
			t.Fatalf("record %d came, kept is %+v", n, kept)
		}
	}
}
