package workflowd

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// kept holds external runs that stay in memory between calls: such a run gets many calls,
// and each would otherwise have to read the whole log. The least recently used runs are
// dropped first.
type kept struct {
	order list.List // of *keptRun, the most recently used in front
	runs  map[*liveRun]*list.Element
	bytes int
}

type keptRun struct {
	run    *liveRun
	events int // how many of the run's events are counted in bytes
	memo   int // how much of the run's memo is
	bytes  int
}

// Bounds of the runs that a lane keeps.
const (
	maxKept      = 4096
	maxKeptBytes = 64 << 20
)

// keep reports whether an idle run stays in memory, and drops other runs to make room.
func (l *lane) keep(r *liveRun) bool {
	if r.log == nil || !r.log.Run.Kind.External() || !r.whole || r.doubt || r.ended() {
		return false
	}
	k := &l.kept
	at := k.runs[r]
	if at == nil {
		if k.runs == nil {
			k.runs = make(map[*liveRun]*list.Element)
		}
		at = k.order.PushFront(&keptRun{run: r})
		k.runs[r] = at
	}
	k.order.MoveToFront(at)
	own := at.Value.(*keptRun)
	for _, ev := range r.known[own.events:] {
		own.bytes += eventSize(&ev)
		k.bytes += eventSize(&ev)
	}
	own.events = len(r.known)
	grown := r.memo.size() - own.memo
	own.memo += grown
	own.bytes += grown
	k.bytes += grown
	for last := k.order.Back(); last != nil && (k.bytes > maxKeptBytes || len(k.runs) > maxKept); last = k.order.Back() {
		other := last.Value.(*keptRun).run
		k.drop(other)
		if other == r {
			return false
		}
		if !other.needed() {
			l.forget(other)
		}
	}
	return true
}

// drop stops counting a run.
func (k *kept) drop(r *liveRun) {
	at := k.runs[r]
	if at == nil {
		return
	}
	k.bytes -= at.Value.(*keptRun).bytes
	k.order.Remove(at)
	delete(k.runs, r)
}

// view is what callers besides the lane see of an external run in memory: the run and its
// log as they were stored last. The apps of such runs read the log again and again, and
// mostly while nothing else has changed. The lane sets the view after each commit, before
// it reports the commit to anybody, and removes it while it does not know what is stored.
// A view and its events are never changed.
type view struct {
	run    history.Run
	events []history.Event // all of them
	memo   *Memo
}

// show sets the view of a run to its present state, which is stored. It removes the view
// of a run that has no complete log in memory, or that has ended: ended runs are stripped
// and deleted without their lane.
func (r *liveRun) show() {
	if r.log == nil || !r.log.Run.Kind.External() || !r.whole || r.doubt || r.ended() {
		r.hide()
		return
	}
	if r.memo == nil {
		r.memo = &Memo{total: &r.lane.e.memos}
	}
	r.view.Store(&view{run: r.log.Run, events: r.known, memo: r.memo})
}

func (r *liveRun) hide() { r.view.Store(nil) }

// viewOf returns the view of a run of a project, nil if there is none or if another
// process may own the run by now.
func (b *backend) viewOf(id string) *view {
	live, ok := b.e.live.Load(id)
	if !ok {
		return nil
	}
	v := live.(*liveRun).view.Load()
	if v == nil || b.own(id, &v.run) != nil {
		return nil
	}
	// As long as the registration held after the view was read, nobody else has written.
	if !b.e.holds() {
		return nil
	}
	return v
}

// holds reports whether no other process can own runs of this process yet.
func (e *Engine) holds() bool {
	if e.owner == nil {
		return true
	}
	e.ownership.mu.Lock()
	defer e.ownership.mu.Unlock()
	return !e.ownership.losing && time.Since(e.ownership.renewed) < e.owner.Lease()*2/3
}

// GetRun is workflow.Backend's. It reads no database for a run that this process works on.
func (x *External) GetRun(ctx context.Context, id string) (*workflow.RunInfo, error) {
	if v := x.viewOf(id); v != nil {
		run := v.run
		return &run, nil
	}
	return x.backend.GetRun(ctx, id)
}

// Part is a part of a run's log.
type Part struct {
	Events []history.Event // must not be written to
	More   bool            // there are events behind these
	Memo   *Memo           // nil keeps nothing
}

// ReadLog returns the events of a run from a slot on, at most limit, and fewer if their
// payloads are large. Errors: not_found.
func (x *External) ReadLog(ctx context.Context, run string, from int64, limit int) (*Part, error) {
	from = max(from, 1)
	if v := x.viewOf(run); v != nil {
		events := v.events[min(from-1, int64(len(v.events))):]
		n := min(limit, len(events))
		size := 0
		for i := range n {
			if size += eventSize(&events[i]); size >= maxPageBytes {
				n = i + 1
			}
		}
		return &Part{Events: slices.Clip(events[:n]), More: n < len(events), Memo: v.memo}, nil
	}
	if _, err := x.backend.GetRun(ctx, run); err != nil {
		return nil, err
	}
	events, more, err := x.e.page(ctx, run, from, limit)
	if err != nil {
		return nil, err
	}
	return &Part{Events: events, More: more}, nil
}

// Memo keeps for each event of a run in memory what a runtime derives from it, such as the
// event in the form that its protocol has. It is dropped together with the run.
type Memo struct {
	total *atomic.Int64 // bytes of all memos of the engine

	mu      sync.Mutex      // guards the fields below
	derived [Forms][][]byte // by slot - 1
	bytes   int64
	dropped bool
}

// Bounds of memos, in bytes. The rest is derived each time.
const (
	maxMemo  = 8 << 20  // of a run
	maxMemos = 96 << 20 // of all runs
)

// Forms is in how many forms a runtime can have an event.
const Forms = 2

// Get returns a form of an event of the run: what derive makes of the event. derive has to
// return bytes of the same meaning each time, for all callers; they must not be written to.
func (m *Memo) Get(form int, ev *history.Event, derive func(*history.Event) ([]byte, error)) ([]byte, error) {
	if m == nil {
		return derive(ev)
	}
	i := int(ev.Slot) - 1
	m.mu.Lock()
	if all := m.derived[form]; i < len(all) && all[i] != nil {
		b := all[i]
		m.mu.Unlock()
		return b, nil
	}
	m.mu.Unlock()
	b, err := derive(ev)
	if err != nil {
		return nil, err
	}
	m.keep(form, i, b)
	return b, nil
}

// memoEntry is the memory of an entry besides its bytes.
const memoEntry = 24

func (m *Memo) keep(form, i int, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.derived[form]
	if i < len(all) && all[i] != nil {
		return
	}
	grow := int64(max(0, i+1-len(all))) * memoEntry
	if grow += int64(cap(b)); m.dropped || m.bytes+grow > maxMemo {
		return
	}
	if m.total.Add(grow) > maxMemos {
		m.total.Add(-grow)
		return
	}
	m.bytes += grow
	if n := i + 1 - len(all); n > 0 {
		all = append(all, make([][]byte, n)...)
		m.derived[form] = all
	}
	all[i] = b
}

// size is the memory of a memo.
func (m *Memo) size() int {
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return int(m.bytes)
}

// drop empties a memo. It keeps nothing from then on.
func (m *Memo) drop() {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total.Add(-m.bytes)
	m.derived, m.bytes, m.dropped = [Forms][][]byte{}, 0, true
}
