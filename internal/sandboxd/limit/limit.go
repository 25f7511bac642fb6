// Package limit lets so many do something at one time; others wait by turns, or are
// refused.
package limit

import (
	"container/list"
	"context"
	"errors"
	"sync"
)

// Limit lets a bounded number through at one time. Those who wait are let in by
// turns of the group they belong to, in order within it, so a group with a
// thousand waiting delays another's one by a single turn.
type Limit struct {
	mu      sync.Mutex
	free    int
	waiting int
	max     int                   // of waiting
	queues  map[string]*list.List // of chan struct{}; never empty
	turns   list.List             // of string, the keys of queues
	freed   chan struct{}         // closed when a place becomes free; nil unless Quiet waits
}

// ErrFull is the error of Enter if as many wait as may.
var ErrFull = errors.New("too many wait already")

// New returns one that lets size through, for whose places up to maxWaiting wait.
func New(size, maxWaiting int) *Limit {
	return &Limit{free: size, max: maxWaiting, queues: make(map[string]*list.List)}
}

// Enter waits for a place, which Leave gives back. Errors: ErrFull, or what ctx was
// cancelled with.
func (g *Limit) Enter(ctx context.Context, group string) error {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return nil
	}
	if g.waiting == g.max {
		g.mu.Unlock()
		return ErrFull
	}
	g.waiting++
	admitted := make(chan struct{})
	q := g.queues[group]
	if q == nil {
		q = list.New()
		g.queues[group] = q
		g.turns.PushBack(group)
	}
	place := q.PushBack(admitted)
	g.mu.Unlock()

	select {
	case <-admitted:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-admitted: // in the meantime; pass it on
		g.leaveLocked()
		return context.Cause(ctx)
	default:
	}
	g.waiting--
	if q.Remove(place); q.Len() == 0 {
		delete(g.queues, group)
		for t := g.turns.Front(); t != nil; t = t.Next() {
			if t.Value == group {
				g.turns.Remove(t)
				break
			}
		}
	}
	return context.Cause(ctx)
}

// Leave gives back a place.
func (g *Limit) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked()
}

func (g *Limit) leaveLocked() {
	turn := g.turns.Front()
	if turn == nil {
		g.free++
		if g.freed != nil {
			close(g.freed)
			g.freed = nil
		}
		return
	}
	group := turn.Value.(string)
	q := g.queues[group]
	close(q.Remove(q.Front()).(chan struct{}))
	g.waiting--
	if q.Len() == 0 {
		delete(g.queues, group)
		g.turns.Remove(turn)
	} else {
		g.turns.MoveToBack(turn)
	}
}

// Quiet waits until a place is free, and so nobody waits for one. It takes none:
// who goes on when it returns delays nobody.
func (g *Limit) Quiet(ctx context.Context) error {
	for {
		g.mu.Lock()
		if g.free > 0 {
			g.mu.Unlock()
			return nil
		}
		if g.freed == nil {
			g.freed = make(chan struct{})
		}
		freed := g.freed
		g.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
