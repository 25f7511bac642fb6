package workflowd

import "github.com/cayhq/cay/workflow"

// NextAfter returns when a schedule is due after a time.
var NextAfter = nextAfter

// Queued returns the number of ops that wait for the next group.
func Queued(b workflow.Backend) int {
	l := b.(*backend).e.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// Waiting returns the number of ops that wait for the log of a run.
func Waiting(b workflow.Backend, run string) int {
	l := b.(*backend).e.lanes[0]
	n := make(chan int, 1)
	l.post(func() {
		if r := l.runs[run]; r != nil && r.loading {
			n <- len(r.waiting)
		} else {
			n <- 0
		}
	})
	return <-n
}
