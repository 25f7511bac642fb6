// Package feed notifies watchers of the current values of something: a Feed carries
// values of one sandbox, a Hub the ids of sandboxes that have changed. It does not know
// the meaning of the values.
package feed

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
)

const (
	// maxWatches bounds the watches of one feed, feedAhead the unread values of one
	// watch.
	maxWatches = 64
	feedAhead  = 1000
)

// Feed notifies watches of the current values of one sandbox, such as its counters or
// commands. Its producer runs only while there are watches. The zero value is ready.
type Feed[T any] struct {
	mu      sync.Mutex // guards the fields below, and those of watches marked so
	watches map[*Watch[T]]struct{}
	ctx     context.Context // the producer's; nil without watches
	stop    context.CancelFunc
	last    *T                  // the last value told, for new watches; nil: none yet
	running map[string]struct{} // keys between Begin and Done
}

// Watch is one watch of a Feed.
type Watch[T any] struct {
	feed    *Feed[T]
	unhook  []func() bool
	changed chan struct{} // capacity 1; closed when end is set

	// Guarded by feed.mu.
	queue []string // keys of items, in the order of their first change
	items map[string]T
	end   error // the error that Next returns at the end; nil while the watch goes on
}

// Add begins a watch, which EndWith or Close ends. For the first watch of a feed it also
// returns a context, with the values of ctx; the caller starts the producer with it, and
// it ends with the last watch. Errors: quota_exceeded.
func (f *Feed[T]) Add(ctx context.Context) (*Watch[T], context.Context, error) {
	w := &Watch[T]{feed: f, changed: make(chan struct{}, 1), items: make(map[string]T)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watches) >= maxWatches {
		return nil, nil, cay.Errorf(cay.QuotaExceeded, "%d watch this of the sandbox already", maxWatches).WithHint("close some")
	}
	if f.watches == nil {
		f.watches = make(map[*Watch[T]]struct{})
	}
	f.watches[w] = struct{}{}
	if f.ctx != nil {
		return w, nil, nil
	}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.last, f.running = nil, make(map[string]struct{})
	return w, f.ctx, nil
}

// Tell sends the current value of key to all watches.
func (f *Feed[T]) Tell(key string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &v
	for w := range f.watches {
		w.offerLocked(key, v)
	}
}

// Watched reports whether there are watches.
func (f *Feed[T]) Watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watches) > 0
}

// Fail ends all watches.
func (f *Feed[T]) Fail(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		w.endLocked(why)
	}
}

// Begin marks key as being waited for, and returns the context for the wait; nil if the
// key is waited for already, or there are no watches.
func (f *Feed[T]) Begin(key string) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.running[key]; ok || f.ctx == nil {
		return nil
	}
	f.running[key] = struct{}{}
	return f.ctx
}

// Done ends the wait that Begin began with ctx. It does not affect a later wait for the
// same key.
func (f *Feed[T]) Done(ctx context.Context, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == ctx {
		delete(f.running, key)
	}
}

// Offer sends the current value of key to this watch only.
func (w *Watch[T]) Offer(key string, v T) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.offerLocked(key, v)
}

// OfferLast sends the last value told to this watch, if there is one.
func (w *Watch[T]) OfferLast(key string) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	if w.feed.last != nil {
		w.offerLocked(key, *w.feed.last)
	}
}

func (w *Watch[T]) offerLocked(key string, v T) {
	if w.end != nil {
		return
	}
	if _, ok := w.items[key]; !ok {
		if len(w.queue) >= feedAhead {
			w.endLocked(cay.Errorf(cay.QuotaExceeded, "%d changes were not read", feedAhead).WithHint("watch anew"))
			return
		}
		w.queue = append(w.queue, key)
	}
	w.items[key] = v
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *Watch[T]) endLocked(why error) {
	if w.end != nil {
		return
	}
	w.end = why
	close(w.changed)
	f := w.feed
	delete(f.watches, w)
	if len(f.watches) == 0 && f.stop != nil {
		f.stop()
		f.ctx, f.stop, f.last, f.running = nil, nil, nil, nil
	}
}

// EndWith makes the watch end with the error of why when ctx ends. It must not be called
// concurrently with Close.
func (w *Watch[T]) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.Cancel(why()) }))
}

// Cancel ends the watch: Next first returns the unread values, then why.
func (w *Watch[T]) Cancel(why error) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.endLocked(why)
}

// Next waits for the next value. Values told before the end are returned before the
// error.
func (w *Watch[T]) Next() (T, error) {
	for {
		v, ok, err := w.take()
		if ok || err != nil {
			return v, err
		}
		<-w.changed
	}
}

func (w *Watch[T]) take() (v T, ok bool, err error) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	if len(w.queue) == 0 {
		return v, false, w.end
	}
	key := w.queue[0]
	w.queue = w.queue[1:]
	v = w.items[key]
	delete(w.items, key)
	return v, true, nil
}

// Close ends the watch. It may be called while Next waits, which then fails.
func (w *Watch[T]) Close() error {
	for _, unhook := range w.unhook {
		unhook()
	}
	w.Cancel(io.ErrClosedPipe)
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.queue, w.items = nil, nil
	return nil
}
