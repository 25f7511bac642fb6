package agent

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest/agent/process"
)

// Reaper waits for every child of the process, as PID 1 must: for children that it was
// asked to start, and for orphans that became its children. No other goroutine of the
// process may wait for children.
type Reaper struct {
	spawned chan struct{}      // has an element when there may be children again
	alone   chan chan struct{} // each received channel is closed when there are no children

	// failures counts children that could not exec. Package process reaps such children
	// itself, before fork returns.
	failures atomic.Int64

	mu      sync.Mutex // guards waiting; held from fork until the child is in it
	waiting map[int]func(reap func() syscall.WaitStatus)
}

// NewReaper returns a Reaper; Run does its work.
func NewReaper() *Reaper {
	return &Reaper{spawned: make(chan struct{}, 1), alone: make(chan chan struct{}), waiting: map[int]func(func() syscall.WaitStatus){}}
}

// Run reaps children, for ever. It occupies a thread while there are children.
func (r *Reaper) Run() {
	for {
		failures := r.failures.Load()
		pid, err := process.AwaitExit(0)
		if err == unix.ECHILD {
			// Orphans come from children, so there are no processes until we start one.
			select {
			case <-r.spawned:
			case none := <-r.alone:
				close(none)
			}
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("agent: waitid: %v", err))
		}
		r.mu.Lock()
		if r.failures.Load() != failures {
			// The zombie may have been a child that could not exec, and which package
			// process has reaped. Otherwise the next round sees it again.
			r.mu.Unlock()
			continue
		}
		exited := r.waiting[pid]
		delete(r.waiting, pid)
		r.mu.Unlock()
		if exited == nil {
			reap(pid)
			continue
		}
		exited(func() syscall.WaitStatus { return reap(pid) })
	}
}

// waitAll waits until there are no children. It returns false if ctx ended first.
func (r *Reaper) waitAll(ctx context.Context) bool {
	none := make(chan struct{})
	select {
	case r.alone <- none:
		<-none
		return true
	case <-ctx.Done():
		return false
	}
}

// start forks. When the child is a zombie, start's Reaper calls exited, which must call
// reap and must not block; until reap the child's pid is not reused. A nil Reaper waits
// for this child alone.
func (r *Reaper) start(fork func() (int, error), exited func(reap func() syscall.WaitStatus)) (int, error) {
	if r == nil {
		pid, err := fork()
		if err != nil {
			return 0, err
		}
		go func() {
			if _, err := process.AwaitExit(pid); err != nil {
				panic(fmt.Sprintf("agent: waitid of child %d: %v", pid, err))
			}
			exited(func() syscall.WaitStatus { return reap(pid) })
		}()
		return pid, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		r.failures.Add(1)
		return 0, err
	}
	r.waiting[pid] = exited
	select {
	case r.spawned <- struct{}{}:
	default:
	}
	return pid, nil
}

// reap takes the exit status of a zombie.
func reap(pid int) syscall.WaitStatus {
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("agent: wait4 of zombie %d: %v", pid, err))
		}
		return ws
	}
}
