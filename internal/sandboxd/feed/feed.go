// Package feed tells those who watch what something is now: a Feed what belongs to one
// sandbox, a Hub which sandboxes are not what they were. It knows neither what it tells
// nor of whom.
package feed

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
)

const (
	// maxWatches bounds the watchers of one feed, feedAhead what one of them
	// may not have read.
	maxWatches = 64
	feedAhead  = 1000
)

// Feed tells those who watch something of a sandbox what it is now. What feeds it runs
// only while somebody watches. The zero value is ready.
type Feed[T any] struct {
	mu      sync.Mutex // guards what follows, and what of the watches says so
	watches map[*Watch[T]]struct{}
	ctx     context.Context // of what feeds it; nil while nobody watches
	stop    context.CancelFunc
	last    *T                  // what was told last, for who comes in between; nil: nothing yet
	running map[string]struct{} // what is waited for, by its key
}

// Watch is one watcher of a Feed.
type Watch[T any] struct {
	feed    *Feed[T]
	unhook  []func() bool
	changed chan struct{} // has room for one; closed with end

	// feed.mu guards what follows.
	queue []string // keys of items, in the order of their first change
	items map[string]T
	end   error // what Next returns; nil before
}

// Add begins to watch, until EndWith or Close ends it. It returns a context if nobody
// Watched before: that of what is to feed all from now on, with the values of ctx.
// Errors: quota_exceeded.
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

// Tell has all know what key is now.
func (f *Feed[T]) Tell(key string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &v
	for w := range f.watches {
		w.offerLocked(key, v)
	}
}

// Watched reports whether anybody watches.
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

// Begin returns the context in which key is to be waited for, nil if it is already, or
// nobody watches.
func (f *Feed[T]) Begin(key string) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.running[key]; ok || f.ctx == nil {
		return nil
	}
	f.running[key] = struct{}{}
	return f.ctx
}

// Done ends what Begin began. Of one that somebody else has begun since it knows nothing.
func (f *Feed[T]) Done(ctx context.Context, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == ctx {
		delete(f.running, key)
	}
}

// Offer tells this one what key is now.
func (w *Watch[T]) Offer(key string, v T) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.offerLocked(key, v)
}

// OfferLast offers what was told last, if anything was.
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

// EndWith ends the watch with why, when ctx has ended. It is not to be called beside
// Close.
func (w *Watch[T]) EndWith(ctx context.Context, why func() error) {
	w.unhook = append(w.unhook, context.AfterFunc(ctx, func() { w.Cancel(why()) }))
}

// Cancel ends the watch: what Next has not returned yet comes before why.
func (w *Watch[T]) Cancel(why error) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.endLocked(why)
}

// Next waits for the next change. What was told before the end comes before it.
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
