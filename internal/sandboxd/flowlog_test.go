package sandboxd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// newStore opens a store over a fresh database.
func newStore(t *testing.T) store {
	t.Helper()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := openStore(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newRow inserts a sandbox that has the given ports.
func newRow(t *testing.T, s store, ports ...sandbox.Port) *row {
	t.Helper()
	now := time.UnixMilli(1_700_000_000_000).UTC()
	r := &row{Sandbox: sandbox.Sandbox{
		ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
		Timeout: minute, CreatedAt: now, UpdatedAt: now, Ports: ports,
	}}
	if _, err := s.insert(t.Context(), request{row: r}); err != nil {
		t.Fatal(err)
	}
	return r
}

func newLog(t *testing.T, s store, limit int) *flowLog {
	return newFlowLog(s, slog.New(slog.DiscardHandler), limit, func(string) {})
}

func aFlow(seq int64) sandbox.Flow {
	return sandbox.Flow{Seq: seq, Time: time.UnixMilli(seq).UTC(), Protocol: "tcp", Verdict: sandbox.Denied, Rule: "mode deny-all"}
}

func stored(t *testing.T, s store, id string) (seqs []int64) {
	t.Helper()
	flows, err := s.flows(t.Context(), id, sandbox.FlowParams{}, 2*keptFlows)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		seqs = append(seqs, f.Seq)
	}
	return seqs
}

// What comes is written in the background, by itself, and the rest at the end.
func TestFlowLog_Writes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newRow(t, s)
	written := make(chan struct{}, 1000)
	l := newFlowLog(s, slog.New(slog.DiscardHandler), 1000, func(string) { written <- struct{}{} })
	l.start()
	b := newFlowBuffer(l, r.ID)
	w := &flowWatch{}
	if err := b.watch(w); err != nil {
		t.Fatal(err)
	}
	var makers sync.WaitGroup
	for i := range int64(10) {
		makers.Go(func() {
			for n := range int64(10) {
				b.add(aFlow(1 + 10*i + n))
			}
		})
	}
	makers.Wait()
	for len(stored(t, s, r.ID)) < 100 {
		<-written
	}
	b.add(aFlow(101))
	b.end(io.EOF)
	b.add(aFlow(102)) // too late
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if n := len(stored(t, s, r.ID)); n != 101 {
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

// A flood costs no more memory than is kept anyway, and nobody waits.
func TestFlowLog_Flood(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := newRow(t, s)
	l := newLog(t, s, 10_000) // not started: nothing is taken
	b := newFlowBuffer(l, r.ID)
	slow := &flowWatch{}
	if err := b.watch(slow); err != nil {
		t.Fatal(err)
	}
	const flood = 20_000
	for n := range int64(flood) {
		b.add(aFlow(n + 1))
	}
	if len(b.pending) != keptFlows || len(b.order) != keptFlows {
		t.Errorf("%d records are held", len(b.pending))
	}
	for n := range int64(flowsAhead) {
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
	if err := l.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, s, r.ID); len(got) != keptFlows || got[0] != flood-keptFlows+1 {
		t.Errorf("%d records are kept, from %d", len(got), got[0])
	}
}

func TestFlowLog_Watches(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	b := newFlowBuffer(newLog(t, s, 1000), "sbx_x")
	var last *flowWatch
	for range maxFlowWatches {
		last = &flowWatch{}
		if err := b.watch(last); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.watch(&flowWatch{}); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more: %v", err)
	}
	if err := last.Close(); err != nil {
		t.Error(err)
	}
	if err := b.watch(&flowWatch{}); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	b.end(io.EOF)
	ended := &flowWatch{}
	if err := b.watch(ended); err != nil {
		t.Fatal(err)
	}
	if _, err := ended.Next(); err != io.EOF {
		t.Errorf("got %v, want EOF", err)
	}
}

// What the past shows, the present does not repeat: not the same record, nor one
// that was replaced meanwhile.
func TestFlowWatch_Overlap(t *testing.T) {
	t.Parallel()
	b := newFlowBuffer(newLog(t, newStore(t), 1000), "sbx_x")
	closed, open := aFlow(1), aFlow(2)
	open.Open = true
	w := &flowWatch{past: []sandbox.Flow{closed, open}, seen: map[int64]bool{1: false, 2: true}}
	if err := b.watch(w); err != nil {
		t.Fatal(err)
	}
	opened := closed
	opened.Open = true
	done := open
	done.Open = false
	for _, f := range []sandbox.Flow{opened, closed, open, aFlow(3), done} {
		b.add(f)
	}
	b.end(io.EOF)
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

// Records are kept while the database takes none, and belong to no sandbox that
// was deleted meanwhile.
func TestFlowLog_Failure(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r, deleted := newRow(t, s), newRow(t, s)
	l := newLog(t, s, 1000)
	b, d := newFlowBuffer(l, r.ID), newFlowBuffer(l, deleted.ID)
	b.add(aFlow(1))
	d.add(aFlow(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.write(ctx); err == nil {
		t.Fatal("it was written")
	}
	newer := aFlow(1)
	newer.Rule = "newer"
	b.add(newer)
	b.add(aFlow(2))
	if _, err := s.db.Exec(t.Context(), `DELETE FROM sandboxes WHERE id = ?`, deleted.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	flows, err := s.flows(t.Context(), r.ID, sandbox.FlowParams{}, 10)
	if err != nil || len(flows) != 2 || flows[0].Rule != "newer" || flows[1].Seq != 2 {
		t.Errorf("got %+v, %v", flows, err)
	}
	if got := stored(t, s, deleted.ID); len(got) != 0 {
		t.Errorf("a deleted sandbox has %v", got)
	}
}

// Records that could not be written at the end of a sandbox are tried again
// though nothing more is added.
func TestFlowLog_FailureAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r, written := newRow(t, s), make(chan struct{}, 1)
	l := newFlowLog(s, slog.New(slog.DiscardHandler), 10, func(string) { written <- struct{}{} })
	newFlowBuffer(l, r.ID).add(aFlow(1))
	<-l.wake // nobody else is about to write
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.write(ctx); err == nil {
		t.Fatal("records were written without time for it")
	}
	l.start()
	select {
	case <-written:
	case <-time.After(time.Minute):
		t.Error("they are not tried again")
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, s, r.ID); len(got) != 1 {
		t.Errorf("stored are %v", got)
	}
}

// All logs together are bounded: the oldest records of all go first.
func TestFlowLog_Bound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := newLog(t, s, 500)
	var rows []*row
	for range 6 {
		r := newRow(t, s)
		rows = append(rows, r)
		b := newFlowBuffer(l, r.ID)
		for n := range int64(100) {
			b.add(aFlow(n + 1))
		}
		if err := l.write(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for i, r := range rows {
		n := len(stored(t, s, r.ID))
		total += n
		if i == 0 && n != 0 || i >= 2 && n != 100 {
			t.Errorf("sandbox %d has %d records", i, n)
		}
	}
	if total > 500 || total < 400 {
		t.Errorf("%d records are kept, of at most 500", total)
	}
}

func TestClipFlow(t *testing.T) {
	t.Parallel()
	f := sandbox.Flow{Protocol: "https", Path: strings.Repeat("é", 400), Method: strings.Repeat("M", 100)}
	clipFlow(&f)
	if len(f.Path) > 512 || !utf8.ValidString(f.Path) || len(f.Method) != 32 || f.Protocol != "https" {
		t.Errorf("got %+v", f)
	}
}

// Labels that are gone are known for 30 days, and are a bounded number.
func TestStore_Labels(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000).UTC()
	label := ident.NewLabel()
	r := newRow(t, s, sandbox.Port{Port: 80, Access: sandbox.Public, Label: label})
	gone := func(want bool) {
		t.Helper()
		if d, err := s.declared(ctx, label); err != nil || d.gone != want {
			t.Fatalf("gone: %v, %v, want %v", d.gone, err, want)
		}
	}
	gone(false)
	if _, _, err := s.update(ctx, r.ID, change{ports: []sandbox.Port{}}, now); err != nil {
		t.Fatal(err)
	}
	gone(true)
	// An update that is undone declares it again.
	if _, _, err := s.update(ctx, r.ID, change{ports: r.Ports}, now); err != nil {
		t.Fatal(err)
	}
	gone(false)
	if _, err := s.db.Exec(ctx, `UPDATE sandboxes SET status = 'stopped' WHERE id = ?`, r.ID); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.remove(ctx, r.ID, now); !ok || err != nil {
		t.Fatalf("removed: %v, %v", ok, err)
	}
	gone(true)
	if err := s.pruneLabels(ctx, now.Add(goneLifetime-time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	gone(true)
	if err := s.pruneLabels(ctx, now.Add(goneLifetime)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.declared(ctx, label); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("after 30 days: %v", err)
	}

	if _, err := s.db.Exec(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO sandbox_ports (label, sandbox_id, port, access, created_at, gone_at) SELECT 'x' || i, 'sbx', i, 'public', 0, i FROM n`,
		maxGone+500); err != nil {
		t.Fatal(err)
	}
	if err := s.pruneLabels(ctx, time.UnixMilli(0)); err != nil {
		t.Fatal(err)
	}
	var n, oldest int
	if err := s.db.QueryRow(ctx, `SELECT count(*), min(gone_at) FROM sandbox_ports`).Scan(&n, &oldest); err != nil || n != maxGone || oldest != 501 {
		t.Errorf("%d labels are kept, from %d, %v", n, oldest, err)
	}
}

// A database of before ports and flows is brought up to date with what it holds.
func TestStore_Migrates(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Migrate(t.Context(), "sandboxd", migrations[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(t.Context(), `INSERT INTO sandboxes (id, team_id, project_id, name, status, image, runtime, vcpus, memory_mb, disk_mb, env, tags, user,
		workdir, network, timeout, idle_timeout, created_at, updated_at, guest_token)
		VALUES ('sbx_1', 't', 'p', 'old', 'running', 'debian', '', 1, 1, 1, '{}', '{}', '', '/', '{"mode":"deny-all"}', 1, 0, 1, 1, 'x')`); err != nil {
		t.Fatal(err)
	}
	s, err := openStore(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.get(t.Context(), "sbx_1")
	if err != nil || r.Network.Mode != sandbox.DenyAll || r.sealed != nil || len(r.Ports) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A record that comes while an older one of the same connection is put back is not
// overwritten by that.
func TestFlowBuffer_GiveBack(t *testing.T) {
	t.Parallel()
	l := newFlowLog(store{}, slog.New(slog.DiscardHandler), 10, func(string) {})
	b := newFlowBuffer(l, "sbx")
	// Both spin, so that they meet.
	var begun, added atomic.Int64
	const rounds = 50000
	go func() {
		for n := int64(1); n <= rounds; n++ {
			for begun.Load() != n {
				runtime.Gosched()
			}
			b.add(sandbox.Flow{Seq: 1, IngressBytes: n})
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
