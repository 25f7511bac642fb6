package workflow

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// branch is a flow of control of a workflow's code: the workflow's function, or a
// function passed to Go. It is a coroutine: only one of an execution's branches and the
// goroutine that feeds it runs at a time, in a deterministic order.
type branch struct {
	x          *execution
	prev, next *branch
	name       string // "" for the workflow's function
	end        func(error)

	resume func() (struct{}, bool)
	cancel func() // stops the iter.Pull
	yield  func(struct{}) bool

	parked bool
	queued bool       // in execution.ready
	under  *canceller // the canceller that ends the branch's wait
	// The branch's wait, described for people.
	what, id string
	position string
}

// branchList is a list of branches in the order in which they began.
type branchList struct{ first, last *branch }

func (l *branchList) add(b *branch) {
	b.prev = l.last
	if l.last == nil {
		l.first = b
	} else {
		l.last.next = b
	}
	l.last = b
}

func (l *branchList) remove(b *branch) {
	if b.prev == nil {
		l.first = b.next
	} else {
		b.prev.next = b.next
	}
	if b.next == nil {
		l.last = b.prev
	} else {
		b.next.prev = b.prev
	}
	b.prev, b.next = nil, nil
}

// spawn adds a branch, which runs when its turn comes. end is called with the result of
// fn, or a *PanicError.
func (x *execution) spawn(name string, fn func() error, end func(error)) {
	b := &branch{x: x, name: name, end: end, parked: true, under: x.root}
	b.resume, b.cancel = iter.Pull(func(yield func(struct{}) bool) {
		b.yield = yield
		b.main(fn)
	})
	x.branches.add(b)
	b.wake()
}

// main runs the branch's function to its end, including a panic or Goexit.
func (b *branch) main(fn func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		if b.x.closing {
			if v != nil && b.x.logger != nil { // the panic of a deferred function does not affect the run
				b.x.logger.Warn("workflow code panicked when it was let go of", "workflow", b.x.run.Workflow,
					"run", b.x.run.ID, "panic", v, "stack", string(debug.Stack()))
			}
			return
		}
		if v != nil {
			err := &PanicError{Value: cut(fmt.Sprint(v), maxErrorWords), Stack: cut(string(debug.Stack()), maxErrorWords)}
			b.x.logTo().Error("workflow code panicked", "panic", err.Value, "stack", err.Stack)
			b.finish(err)
			return
		}
		// runtime.Goexit was called, for example by a test's FailNow. It cannot be
		// stopped here, and must not end the goroutine that feeds the execution: it
		// completes when the branch is closed.
		b.finish(fmt.Errorf("workflow code called runtime.Goexit"))
		b.x.stuck = append(b.x.stuck, b)
		b.yield(struct{}{})
	}()
	err := fn()
	returned = true
	b.finish(err)
}

func (b *branch) finish(err error) {
	if b.x.closing {
		return
	}
	b.x.branches.remove(b)
	b.end(err)
}

// stop ends a branch that waits. It uses a goroutine of its own, because the branch's
// Goexit ends the goroutine that resumes it.
func (x *execution) stop(b *branch) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.current.Store(b)
		defer x.current.Store(nil)
		b.cancel()
	}()
	<-done
}

// schedule runs ready branches until there are none, or until the workflow's function has
// returned: then the other branches do not go on.
func (x *execution) schedule() {
	for i := 0; i < len(x.ready) && !x.returned && x.diverged == nil; i++ {
		b := x.ready[i]
		b.queued = false
		b.parked = false
		x.current.Store(b)
		b.resume()
		x.current.Store(nil)
	}
	clear(x.ready)
	x.ready = x.ready[:0]
}

// waiter is woken when the thing it waits for happens.
type waiter interface{ wake() }

// waitList holds the waiters for one thing.
type waitList struct {
	all     []waiter
	pruneAt int
}

// add adds a waiter. The list may have the waiter already, left over from a wait that
// ended for another reason; add drops such waiters from time to time, so that the list
// stays short.
func (l *waitList) add(w waiter) {
	if len(l.all) >= max(l.pruneAt, minPruneWaiters) {
		seen := make(map[waiter]bool, len(l.all))
		l.all = slices.DeleteFunc(l.all, func(w waiter) bool {
			again := seen[w]
			seen[w] = true
			return again
		})
		l.pruneAt = 2 * len(l.all)
	}
	l.all = append(l.all, w)
}

const minPruneWaiters = 8

func (l *waitList) wake() {
	for _, w := range l.all {
		w.wake()
	}
	clear(l.all)
	l.all = l.all[:0]
}

// remove removes waiters that must not be woken any more.
func (l *waitList) remove(f func(waiter) bool) { l.all = slices.DeleteFunc(l.all, f) }

// wake adds the branch to the end of the ready queue. The waiting code checks its
// condition again, because a branch may be woken for several reasons.
func (b *branch) wake() {
	if b.parked && !b.queued {
		b.queued = true
		b.x.ready = append(b.x.ready, b)
	}
}

// park lets other branches run until the branch is woken: by one of the lists, or because
// under has ended. what and id describe the wait.
func (x *execution) park(under *canceller, what, id string, lists ...*waitList) {
	b := x.use()
	if x.closing {
		runtime.Goexit() // a deferred function waits, but no event will come
	}
	for _, l := range lists {
		l.add(b)
	}
	b.under, b.what, b.id = under, what, id
	b.parked = true
	for {
		if !b.yield(struct{}{}) || x.closing {
			runtime.Goexit()
		}
		if !x.locating {
			return
		}
		b.position = callerPosition()
		b.parked = true
	}
}

// locate makes every branch report where in the user's code it waits.
func (x *execution) locate() {
	x.locating = true
	for b := x.branches.first; b != nil; b = b.next {
		if b.yield != nil && b.what != "" {
			x.current.Store(b)
			b.resume()
			x.current.Store(nil)
		}
	}
	x.locating = false
}

// ours is the prefix of functions between the user's code and park.
const ours = "github.com/cayhq/cay/workflow"

// callerPosition returns the file and line of the innermost call outside package
// workflow.
func callerPosition() string {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, ours+".") && !strings.HasPrefix(f.Function, ours+"/durable.") || strings.HasSuffix(f.File, "_test.go") {
			if strings.HasPrefix(f.Function, "iter.") || strings.HasPrefix(f.Function, "runtime.") {
				return ""
			}
			return fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if !more {
			return ""
		}
	}
}
