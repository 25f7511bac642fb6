package workflow

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
)

// branch is a flow of control of a workflow's code: its function, or what Go was
// given. It is a coroutine: of all branches of an execution, and the goroutine that
// feeds it, one runs at a time, and which is never left to chance.
type branch struct {
	x          *execution
	prev, next *branch
	name       string // "" for the function itself
	end        func(error)

	resume func() (struct{}, bool)
	cancel func() // of iter.Pull
	yield  func(struct{}) bool

	parked bool
	queued bool       // in execution.ready
	under  *canceller // that ends what it waits for
	// What it waits for, for people.
	what, id string
	position string
}

// branchList are branches in the order they began.
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

// spawn makes a branch that is run when it is its turn. end is called with what fn
// returned, or a *PanicError.
func (x *execution) spawn(name string, fn func() error, end func(error)) {
	b := &branch{x: x, name: name, end: end, parked: true, under: x.root}
	b.resume, b.cancel = iter.Pull(func(yield func(struct{}) bool) {
		b.yield = yield
		b.main(fn)
	})
	x.branches.add(b)
	b.wake()
}

// main runs the branch's function to its end, whatever that is.
func (b *branch) main(fn func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		v := recover()
		if b.x.closing {
			if v != nil && b.x.logger != nil { // a deferred function; the run is none the worse for it
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
		// runtime.Goexit, as by a test's FailNow. It cannot be ended here, and must not
		// end the goroutine that feeds us: it waits until the branch is closed.
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

// stop ends a branch that waits. It is given a goroutine to take with it.
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

// schedule runs branches that are ready until none is, or the workflow's function has
// returned: what other branches would still have done is not.
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

// waiter is told when what it waits for is there.
type waiter interface{ wake() }

// waitList are those who wait for one thing.
type waitList struct {
	all     []waiter
	pruneAt int
}

// add adds a waiter. It may be there already, left from a wait that something else
// has ended; now and then such are dropped, so that there are never many.
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

// remove takes out waiters that are not to be woken any more.
func (l *waitList) remove(f func(waiter) bool) { l.all = slices.DeleteFunc(l.all, f) }

// wake puts the branch behind all others that are ready. Whoever waits looks again
// whether it is time, since it may be woken for several reasons.
func (b *branch) wake() {
	if b.parked && !b.queued {
		b.queued = true
		b.x.ready = append(b.x.ready, b)
	}
}

// park lets others run until the branch is woken: by one of the lists, or because
// under has ended. what and id say what it waits for.
func (x *execution) park(under *canceller, what, id string, lists ...*waitList) {
	b := x.use()
	if x.closing {
		runtime.Goexit() // a deferred function waits; nothing comes any more
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

// locate makes every branch say where in the user's code it waits.
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

// ours begins the names of functions that stand between the user's code and park.
const ours = "github.com/cayhq/cay/workflow"

// callerPosition returns the file and line of the innermost call that is not ours.
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
