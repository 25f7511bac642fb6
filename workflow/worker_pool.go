package workflow

import "sync"

// pool runs tasks in goroutines it keeps: their stacks have grown to what such
// tasks need, which costs as much as a short step itself.
type pool struct {
	mu     sync.Mutex // guards what follows
	idle   []chan task
	closed bool
	all    sync.WaitGroup
}

type task interface{ run() }

// maxIdleTasks bounds the goroutines kept for later.
const maxIdleTasks = 256

// start runs t in a goroutine. It reports false if the pool is closed.
func (p *pool) start(t task) bool {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false
	}
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		c <- t // it has room
		return true
	}
	p.all.Add(1)
	p.mu.Unlock()
	go p.loop(t)
	return true
}

// loop runs tasks until the pool has no use for it, or a task ends the goroutine.
func (p *pool) loop(t task) {
	defer p.all.Done()
	c := make(chan task, 1)
	for ok := true; ok; {
		t.run()
		p.mu.Lock()
		if p.closed || len(p.idle) >= maxIdleTasks {
			p.mu.Unlock()
			return
		}
		p.idle = append(p.idle, c)
		p.mu.Unlock()
		t, ok = <-c
	}
}

// close keeps further tasks from starting, and ends the goroutines that have none.
// p.all is done when the others have ended too.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		close(c)
	}
	p.idle = nil
}
