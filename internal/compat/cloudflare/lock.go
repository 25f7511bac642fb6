package cloudflare

import (
	"context"
	"sync"
)

// locks are mutexes by name. A lock exists while callers hold it or wait for it.
type locks struct {
	mu     sync.Mutex // guards byName
	byName map[string]*namedLock
}

type namedLock struct {
	users int           // callers that hold the lock or wait for it
	taken chan struct{} // holds a value while the lock is held
}

// lock waits for the lock of a name. Errors: those of ctx.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	k := l.byName[name]
	if k == nil {
		k = &namedLock{taken: make(chan struct{}, 1)}
		if l.byName == nil {
			l.byName = make(map[string]*namedLock)
		}
		l.byName[name] = k
	}
	k.users++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.byName, name)
		}
	}
	select {
	case k.taken <- struct{}{}:
		return func() { <-k.taken; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
