// Package limit lets so many do something at one time; others wait by turns, or are
// refused.
package limit

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Bounds are the numbers of places.
type Bounds struct {
	All     int // for all holders together
	Each    int // for one; 0: as many as for all
	Waiting int // waiting callers; 0: no waiting
}

// Limit lets a bounded number of callers through at one time. A place is held in the name
// of a holder, such as a team. When places are scarce, the waiting holders take turns,
// each holder's callers in their order: a holder with a thousand waiting callers delays
// another holder's caller by a single turn.
type Limit struct {
	bounds Bounds

	mu      sync.Mutex // guards what follows
	free    int
	held    map[string]int // by holder, without zeros; nil: Each does not bound
	waiting int
	queues  map[string]*list.List // of chan struct{}, by holder; never empty
	turns   list.List             // of string, the keys of queues
	freed   chan struct{}         // closed when a place becomes free; nil unless Quiet waits
}

// ErrFull is the error of Enter if too many callers wait already.
var ErrFull = errors.New("too many wait already")

// New returns a limit with all places free.
func New(b Bounds) *Limit {
	l := &Limit{bounds: b, free: b.All, queues: make(map[string]*list.List)}
	if b.Each > 0 {
		l.held = make(map[string]int)
	}
	return l
}

// Take takes a place for a holder if one is free, and reports whether it did. Leave
// returns the place.
func (l *Limit) Take(holder string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takeLocked(holder)
}

func (l *Limit) takeLocked(holder string) bool {
	if l.free == 0 || l.held != nil && l.held[holder] >= l.bounds.Each {
		return false
	}
	l.free--
	if l.held != nil {
		l.held[holder]++
	}
	return true
}

// Enter waits for a place. Leave returns the place. Errors: ErrFull, or the cause of the
// end of ctx.
func (l *Limit) Enter(ctx context.Context, holder string) error {
	l.mu.Lock()
	if l.takeLocked(holder) {
		l.mu.Unlock()
		return nil
	}
	if l.waiting == l.bounds.Waiting {
		l.mu.Unlock()
		return ErrFull
	}
	l.waiting++
	admitted := make(chan struct{})
	q := l.queues[holder]
	if q == nil {
		q = list.New()
		l.queues[holder] = q
		l.turns.PushBack(holder)
	}
	place := q.PushBack(admitted)
	l.mu.Unlock()

	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-admitted: // in the meantime; pass it on
		l.leaveLocked(holder)
		return context.Cause(ctx)
	default:
	}
	l.waiting--
	if q.Remove(place); q.Len() == 0 {
		delete(l.queues, holder)
		for t := l.turns.Front(); t != nil; t = t.Next() {
			if t.Value == holder {
				l.turns.Remove(t)
				break
			}
		}
	}
	return context.Cause(ctx)
}

// Leave gives back a place.
func (l *Limit) Leave(holder string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaveLocked(holder)
}

// leaveLocked frees a place of holder and gives it to the next holder in turn that may
// have another place.
func (l *Limit) leaveLocked(holder string) {
	l.free++
	if l.held != nil {
		if l.held[holder]--; l.held[holder] == 0 {
			delete(l.held, holder)
		}
	}
	for turn := l.turns.Front(); turn != nil; turn = turn.Next() {
		next := turn.Value.(string)
		if !l.takeLocked(next) {
			continue
		}
		q := l.queues[next]
		close(q.Remove(q.Front()).(chan struct{}))
		l.waiting--
		if q.Len() == 0 {
			delete(l.queues, next)
			l.turns.Remove(turn)
		} else {
			l.turns.MoveToBack(turn)
		}
		return
	}
	if l.freed != nil {
		close(l.freed)
		l.freed = nil
	}
}

// Quiet waits until a place is free, which means that no caller waits for a place. Quiet
// takes no place: work that the caller does afterwards delays no other caller.
func (l *Limit) Quiet(ctx context.Context) error {
	for {
		l.mu.Lock()
		if l.free > 0 {
			l.mu.Unlock()
			return nil
		}
		if l.freed == nil {
			l.freed = make(chan struct{})
		}
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
