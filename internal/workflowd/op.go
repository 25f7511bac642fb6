package workflowd

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// op is one thing that is asked of a run. A lane takes those of one run in the
// order they were pushed.
type op struct {
	// control, if set, is all there is: it is called between groups.
	control func()

	run string
	// session and lease, if set, are those of the worker the op comes from.
	session *session
	lease   uint64
	// decide, if set, is called when the run is in memory. It may set events, and what
	// is to happen besides.
	decide func(r *liveRun, o *op) error
	// events are appended: all or none.
	events []history.Event
	blobs  []Blob
	// messages wake the app of an external run; they are stored with the events.
	messages []queue.Message
	// create is a run to be created, with the events if there are any.
	create *creation
	// owned says that the run is this process's, or was when the op was pushed.
	owned bool
	// write, if set, is all there is: a write to a stream.
	write *write
	// holds says that the op is a transaction's, which has the run to itself when the
	// op has been carried out.
	holds bool
	// message is that of another process which this op carries out; asked says that its
	// sender waits for a verdict, and verdict is why it is refused.
	message int64
	asked   bool
	verdict error
	// done is called by the lane when all has been decided and, if so, committed and
	// delivered. It must not block.
	done func(err error)

	// absent is a run the op was waiting for that does not exist.
	absent string
	// mark and had are where the op's events begin, in the log and in the group.
	mark history.Mark
	had  int
	// show asks for after: the run as it is when the op has been carried out.
	show  bool
	after history.Run
	on    *liveRun
	// childrenEnded says that the run's children were asked to end.
	childrenEnded bool
	// unsure says that it is not known whether the op was stored.
	unsure bool
	// err is why the op failed when its claims were decided.
	err error
}

func (o *op) finish(err error) {
	if o.done != nil {
		o.done(err)
	}
}

// bytes is about what an op takes.
func (o *op) bytes() int {
	n := 64
	for i := range o.events {
		n += eventSize(&o.events[i])
	}
	for _, b := range o.blobs {
		n += len(b.Data)
	}
	for i := range o.messages {
		n += len(o.messages[i].Body)
	}
	if o.create != nil {
		n += eventSize(&o.create.created)
		for i := range o.create.carried {
			n += eventSize(&o.create.carried[i])
		}
		for _, b := range o.create.blobs {
			n += len(b.Data)
		}
	}
	if o.write != nil {
		for _, c := range o.write.chunks {
			n += len(c)
		}
	}
	return n
}

// do pushes an op and waits until it is decided. When ctx ends first, the op may
// still be carried out.
func (l *lane) do(ctx context.Context, o *op) error {
	decided := make(chan error, 1)
	o.done = func(err error) { decided <- err }
	if err := l.push(ctx, o); err != nil {
		return err
	}
	select {
	case err := <-decided:
		return err
	case <-ctx.Done():
		return contextError(ctx)
	}
}

// contextError says that a caller has given up.
func contextError(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return cay.Errorf(cay.DeadlineExceeded, "the time that the caller allowed is over: %w", ctx.Err())
	}
	return cay.Errorf(cay.Canceled, "the caller gave up: %w", ctx.Err())
}

// eventSize is about what an event takes, in bytes.
func eventSize(e *history.Event) int {
	n := 64 + len(e.ID) + len(e.Name) + len(e.Payload) + len(e.Input) + len(e.Token) + len(e.Key) + len(e.Reason)
	for k, v := range e.Attributes {
		n += len(k) + len(v)
	}
	return n
}
