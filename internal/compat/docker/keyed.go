package docker

import "sync"

// keyed is a lock for each key that somebody holds or waits for.
type keyed struct {
	mu sync.Mutex // guards m
	m  map[string]*held
}

type held struct {
	mu    sync.Mutex
	users int
}

// lock waits for the lock of a key.
func (k *keyed) lock(key string) (unlock func()) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*held{}
	}
	h := k.m[key]
	if h == nil {
		h = new(held)
		k.m[key] = h
	}
	h.users++
	k.mu.Unlock()
	h.mu.Lock()
	return func() {
		h.mu.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(k.m, key)
		}
	}
}
