package docker

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// live is the part of a container that the server keeps in memory: a lock for
// changes, counters that wake clients, and the listeners of published ports.
type live struct {
	change sync.Mutex // held by whoever changes the container

	mu      sync.Mutex // guards what follows
	changed chan struct{}
	starts  int // since the server knows the container
	exits   int
	code    int // of the last exit
	removed bool
	session bool   // the server has created it, for a workerd
	readers int    // streams of output
	watched string // command that a goroutine waits for
	ports   []*published
}

// lives has a live for each container by its id.
type lives struct {
	mu sync.Mutex // guards m
	m  map[string]*live
}

// of returns the live of a container.
func (l *lives) of(id string) *live {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m == nil {
		l.m = map[string]*live{}
	}
	v := l.m[id]
	if v == nil {
		v = &live{changed: make(chan struct{})}
		l.m[id] = v
	}
	return v
}

// forget drops the live of a container that is gone.
func (l *lives) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.m, id)
}

// ids are the containers that have one.
func (l *lives) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.m))
}

// sessions are the containers that the server has created for a workerd.
func (l *lives) sessions() []string {
	var out []string
	for _, id := range l.ids() {
		v := l.of(id)
		v.mu.Lock()
		if v.session {
			out = append(out, id)
		}
		v.mu.Unlock()
	}
	return out
}

// keep drops those of ids whose containers do not exist.
func (l *lives) keep(ids []string, exists map[string]bool) {
	l.mu.Lock()
	var gone []*live
	for _, id := range ids {
		if v := l.m[id]; v != nil && !exists[id] {
			gone = append(gone, v)
			delete(l.m, id)
		}
	}
	l.mu.Unlock()
	for _, v := range gone {
		v.closePorts()
		v.set(func() { v.removed = true })
	}
}

// set changes what is guarded, and wakes those who wait.
func (v *live) set(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
	close(v.changed)
	v.changed = make(chan struct{})
}

// moment is a live at one time.
type moment struct {
	starts, exits, code, readers int
	removed                      bool
	changed                      <-chan struct{} // closed by the next change
}

func (v *live) now() moment {
	v.mu.Lock()
	defer v.mu.Unlock()
	return moment{v.starts, v.exits, v.code, v.readers, v.removed, v.changed}
}

// until waits until done says so. It returns the cause if ctx ends before.
func (v *live) until(ctx context.Context, done func(moment) bool) (moment, error) {
	for {
		m := v.now()
		if done(m) {
			return m, nil
		}
		select {
		case <-m.changed:
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
	}
}

// unwatch makes the next sweep wait for the container's command again.
func (v *live) unwatch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched = ""
}

// reading counts a stream of output until done is called.
func (v *live) reading() (done func()) {
	v.set(func() { v.readers++ })
	return sync.OnceFunc(func() { v.set(func() { v.readers-- }) })
}

// drainTime is how long the last output of a container may be on its way to
// clients before its sandbox ends.
const drainTime = 10 * time.Second

// drained waits until nobody reads output any more.
func (v *live) drained(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	_, _ = v.until(ctx, func(m moment) bool { return m.readers == 0 }) // who is too slow loses the rest
}
