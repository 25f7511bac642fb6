package vercelsandbox

import "sync"

// counts counts something for each session. The zero value is ready to use.
type counts struct {
	mu sync.Mutex // guards n
	n  map[string]*count
}

type count struct {
	n    int
	none chan struct{} // closed with the last
}

// add increments the count of a session until done is called, once.
func (c *counts) add(session string) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[string]*count{}
	}
	of := c.n[session]
	if of == nil {
		of = &count{none: make(chan struct{})}
		c.n[session] = of
	}
	of.n++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if of.n--; of.n == 0 {
			delete(c.n, session)
			close(of.none)
		}
	}
}

// of returns the count of a session.
func (c *counts) of(session string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.n[session]; of != nil {
		return of.n
	}
	return 0
}

// none returns a channel that is closed when the count of a session is 0.
func (c *counts) none(session string) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.n[session]; of != nil {
		return of.none
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}
