package workflowd

import "container/list"

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
