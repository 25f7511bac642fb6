package sandboxd

import (
	"context"
	"io"
	"sync"

	"github.com/cayhq/cay"
)

const (
	// maxFeedWatches bounds the watchers of one feed, feedAhead what one of them
	// may not have read.
	maxFeedWatches = 64
	feedAhead      = 1000
)

// feed tells those who watch something of a machine what it is now. What feeds it runs
// only while somebody watches. The zero value is ready.
type feed[T any] struct {
	mu      sync.Mutex // guards what follows, and what of the watches says so
	watches map[*feedWatch[T]]struct{}
	ctx     context.Context // of what feeds it; nil while nobody watches
	stop    context.CancelFunc
	last    *T                  // what was told last, for who comes in between; nil: nothing yet
	running map[string]struct{} // what is waited for, by its key
}

// feedWatch is one watcher.
type feedWatch[T any] struct {
	feed    *feed[T]
	unhook  func()
	changed chan struct{} // has room for one; closed with end

	// feed.mu guards what follows.
	queue []string // keys of items, in the order of their first change
	items map[string]T
	end   error // what Next returns; nil before
}

// add begins to watch until ctx ends, or the machine does. It returns a context if
// nobody watched before: that of what is to feed all from now on.
func (f *feed[T]) add(ctx context.Context, m *machine) (*feedWatch[T], context.Context, error) {
	w := &feedWatch[T]{feed: f, changed: make(chan struct{}, 1), items: make(map[string]T)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watches) >= maxFeedWatches {
		return nil, nil, cay.Errorf(cay.QuotaExceeded, "%d watch this of the sandbox already", maxFeedWatches).WithHint("close some")
	}
	if f.watches == nil {
		f.watches = make(map[*feedWatch[T]]struct{})
	}
	f.watches[w] = struct{}{}
	callerLeft := context.AfterFunc(ctx, func() { w.cancel(contextError(ctx)) })
	machineEnded := context.AfterFunc(m.ctx, func() { w.cancel(ended(m)) })
	w.unhook = func() {
		callerLeft()
		machineEnded()
	}
	if f.ctx != nil {
		return w, nil, nil
	}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.last, f.running = nil, make(map[string]struct{})
	return w, f.ctx, nil
}

// ended is how a watch ends with its machine: in order, if the session is over.
func ended(m *machine) error {
	if why := context.Cause(m.ctx); cay.CodeOf(why) != cay.Stopped {
		return why
	}
	return io.EOF
}

// tell has all know what key is now.
func (f *feed[T]) tell(key string, v T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = &v
	for w := range f.watches {
		w.offerLocked(key, v)
	}
}

// watched reports whether anybody watches.
func (f *feed[T]) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watches) > 0
}

// fail ends all watches.
func (f *feed[T]) fail(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w := range f.watches {
		w.endLocked(why)
	}
}

// begin returns the context in which key is to be waited for, nil if it is already, or
// nobody watches.
func (f *feed[T]) begin(key string) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.running[key]; ok || f.ctx == nil {
		return nil
	}
	f.running[key] = struct{}{}
	return f.ctx
}

// done ends what begin began. Of one that somebody else has begun since it knows nothing.
func (f *feed[T]) done(ctx context.Context, key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx == ctx {
		delete(f.running, key)
	}
}

func (w *feedWatch[T]) offer(key string, v T) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.offerLocked(key, v)
}

// offerLast offers what was told last, if anything was.
func (w *feedWatch[T]) offerLast(key string) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	if w.feed.last != nil {
		w.offerLocked(key, *w.feed.last)
	}
}

func (w *feedWatch[T]) offerLocked(key string, v T) {
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

func (w *feedWatch[T]) endLocked(why error) {
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

func (w *feedWatch[T]) cancel(why error) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.endLocked(why)
}

// Next waits for the next change. What was told before the end comes before it.
func (w *feedWatch[T]) Next() (T, error) {
	for {
		v, ok, err := w.take()
		if ok || err != nil {
			return v, err
		}
		<-w.changed
	}
}

func (w *feedWatch[T]) take() (v T, ok bool, err error) {
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
func (w *feedWatch[T]) Close() error {
	w.unhook()
	w.cancel(io.ErrClosedPipe)
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	w.queue, w.items = nil, nil
	return nil
}
