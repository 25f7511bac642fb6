package workflowd

import (
	"context"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// NextAfter returns when a schedule is due after a time.
var NextAfter = nextAfter

// Queued returns the number of ops that wait for the next group.
func Queued(b workflow.Backend) int {
	l := b.(*backend).e.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// Waiting returns the number of ops that wait for the log of a run, or for its end.
func Waiting(b workflow.Backend, run string) int {
	l := b.(*backend).e.lanes[0]
	n := make(chan int, 1)
	l.post(func() {
		if r := l.runs[run]; r != nil {
			n <- len(r.waiting)
		} else {
			n <- 0
		}
	})
	return <-n
}

// Stored returns a run and its log as the database has them.
func Stored(ctx context.Context, x *External, run string) (*history.Run, []history.Event, error) {
	r, err := x.e.store.Run(ctx, run)
	if err != nil {
		return nil, nil, err
	}
	events, err := x.e.store.Events(ctx, run, 1, 0)
	if err != nil {
		return nil, nil, err
	}
	return r, events, x.e.unshelveFrom(ctx, run, events)
}

// Memos returns the bytes that the memos of all runs keep.
func Memos(e *Engine) int64 { return e.memos.Load() }
