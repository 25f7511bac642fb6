package image

import (
	"context"
	"sync"

	"github.com/cayhq/cay/sandbox"
)

// flights merges equal requests within this process into one piece of work. The work is
// cancelled when the last caller has left.
type flights struct {
	mu sync.Mutex
	m  map[string]*flight // guarded by mu
}

type flight struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when lease and err are set
	lease  *Lease
	err    error

	mu      sync.Mutex
	waiters map[*func(sandbox.ImageProgress)]struct{} // guarded by mu
	last    sandbox.ImageProgress                     // for callers that join late; guarded by mu
}

// do runs work, or joins a run that is under way, and returns a separate lease on the
// result.
func (s *Store) do(ctx context.Context, key string, progress func(sandbox.ImageProgress),
	work func(context.Context, func(sandbox.ImageProgress)) (*Lease, error)) (*Lease, error) {
	if progress == nil {
		progress = func(sandbox.ImageProgress) {}
	}
	fl := s.flights.join(ctx, key, &progress, work)
	defer s.flights.leave(key, fl, &progress)
	select {
	case <-ctx.Done():
		return nil, workError(ctx, context.Cause(ctx))
	case <-fl.done:
	}
	if fl.err != nil {
		return nil, fl.err
	}
	// The flight's own lease ends after this, when the last waiter leaves.
	return s.lease(ctx, fl.lease.Image.Digest, digestOf(fl.lease))
}

func (f *flights) join(ctx context.Context, key string, progress *func(sandbox.ImageProgress),
	work func(context.Context, func(sandbox.ImageProgress)) (*Lease, error)) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl, ok := f.m[key]; ok {
		fl.mu.Lock()
		fl.waiters[progress] = struct{}{}
		last := fl.last
		fl.mu.Unlock()
		if last.Phase != "" {
			(*progress)(last)
		}
		return fl
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	fl := &flight{
		cancel: cancel, done: make(chan struct{}),
		waiters: map[*func(sandbox.ImageProgress)]struct{}{progress: {}},
	}
	if f.m == nil {
		f.m = map[string]*flight{}
	}
	f.m[key] = fl
	go func() {
		lease, err := work(ctx, fl.report)
		fl.lease, fl.err = lease, workError(ctx, err)
		close(fl.done)
	}()
	return fl
}

// leave ends the wait of one caller. The last caller cancels the work and waits until the
// work has cleaned up.
func (f *flights) leave(key string, fl *flight, progress *func(sandbox.ImageProgress)) {
	f.mu.Lock()
	fl.mu.Lock()
	delete(fl.waiters, progress)
	last := len(fl.waiters) == 0
	fl.mu.Unlock()
	ended := last
	select {
	case <-fl.done:
		ended = true
	default:
	}
	if ended {
		// From here on the same request is new work.
		if f.m[key] == fl {
			delete(f.m, key)
		}
	}
	f.mu.Unlock()
	if !last {
		return
	}
	fl.cancel()
	<-fl.done
	if fl.lease != nil {
		fl.lease.Release()
	}
}

// report passes progress on to all waiting callers.
func (fl *flight) report(p sandbox.ImageProgress) {
	fl.mu.Lock()
	defer fl.mu.Unlock()
	fl.last = p
	for w := range fl.waiters {
		(*w)(p)
	}
}
