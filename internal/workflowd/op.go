package workflowd

import (
	"context"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// op is one request for a change of a run. A lane takes the ops of one run in the order
// in which they were pushed.
type op struct {
	// control, if set, is the whole op: a function called between groups.
	control func()

	run string
	// session and lease, if set, identify the worker that sent the op.
	session *session
	lease   uint64
	// decide, if set, is called when the run is in memory. It may set events and the op's
	// other fields.
	decide func(r *liveRun, o *op) error
	// events are appended: all or none.
	events []history.Event
	blobs  []Blob
	// messages wake the app of an external run; they are stored with the events.
	messages []queue.Message
	// create is a run to create, with the events if there are any.
	create *creation
	// owned means that this process owns the run, or did when the op was pushed.
	owned bool
	// write, if set, is the whole op: a write to a stream.
	write *write
	// holds means that a transaction sent the op; once the op is applied, the transaction
	// holds the run alone.
	holds bool
	// message is the id of another process's message that this op carries out; asked
	// means that the sender waits for a verdict, and verdict is why the message is
	// refused.
	message int64
	asked   bool
	verdict error
	// The lane calls done when the op has been decided and, if accepted, committed and
	// delivered. done must not block.
	done func(err error)

	// absent is the id of a missing run that the op waited for.
	absent string
	// mark and had are the positions where the op's events begin, in the log and in the
	// group.
	mark history.Mark
	had  int
	// show asks for after: the run after the op was applied.
	show  bool
	after history.Run
	on    *liveRun
	// childrenEnded means that the run's children were asked to end.
	childrenEnded bool
	// unsure means that the op may or may not have been stored.
	unsure bool
	// err is why the op failed when its claims were decided.
	err error
}

func (o *op) finish(err error) {
	if o.done != nil {
		o.done(err)
	}
}

// bytes estimates the memory of an op.
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
		return wire.ContextError(ctx)
	}
}

// eventSize estimates the memory of an event, in bytes.
func eventSize(e *history.Event) int {
	n := 64 + len(e.ID) + len(e.Name) + len(e.Payload) + len(e.Input) + len(e.Token) + len(e.Key) + len(e.Reason) + len(e.Extra)
	for k, v := range e.Attributes {
		n += len(k) + len(v)
	}
	return n
}
