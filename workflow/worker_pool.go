package workflow

import "sync"

// pool runs tasks in reused goroutines: their stacks have grown already to the size that
// such tasks need, and growing a stack costs as much as a short step.
type pool struct {
	mu     sync.Mutex // guards the fields below
	idle   []chan task
	closed bool
	all    sync.WaitGroup
}

type task interface{ run() }

// maxIdleTasks bounds the idle goroutines.
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
		c <- t // c has capacity
		return true
	}
	p.all.Add(1)
	p.mu.Unlock()
	go p.loop(t)
	return true
}

// loop runs tasks until the pool does not need the goroutine any more, or a task ends the
// goroutine.
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

// close keeps further tasks from starting, and ends idle goroutines. p.all is done when
// all goroutines have ended.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		close(c)
	}
	p.idle = nil
}
