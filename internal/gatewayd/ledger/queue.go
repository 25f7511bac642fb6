package ledger

import (
	"context"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// queue holds the records of settled calls that wait for the database. It is guarded by
// memory.mu.
type queue struct {
	holds []*hold // settled, to be written
	lines []byte  // their records, in order
	tail  *tail   // holds the queued records, too
}

// push appends a record. The record is queued even if it cannot be appended to the tail;
// push returns only the first of several such errors.
func (q *queue) push(h *hold, line []byte) error {
	q.holds = append(q.holds, h)
	q.lines = append(q.lines, line...)
	return q.tail.append(line)
}

// take returns the first records, for a group; all says that no more are queued. The
// records stay in the queue, unchanged, until the group is written.
func (q *queue) take() (holds []*hold, records []byte, all bool) {
	n := min(len(q.holds), groupSize)
	holds = q.holds[:n:n]
	if all = n == len(q.holds); all {
		q.tail.turn()
	}
	length := 0
	for _, h := range holds {
		length += h.length
	}
	return holds, q.lines[:length:length], all
}

// written removes the records of a group that is in the database. The group's slices,
// which share the queue's memory, must not be used afterwards.
func (q *queue) written(g *group) (err error) {
	if g.all {
		err = q.tail.end()
	}
	left := copy(q.holds, q.holds[len(g.holds):])
	clear(q.holds[left:])
	q.holds = q.holds[:left]
	left = copy(q.lines, q.lines[len(g.records):])
	if q.lines = q.lines[:left]; left == 0 && cap(q.lines) > maxIdleLines {
		q.lines = nil
	}
	return err
}

// close closes the tail.
func (q *queue) close() error {
	err := q.tail.close()
	q.tail = nil
	return err
}

// ticket lets callers wait for the commit of a group.
type ticket struct {
	done chan struct{}
	err  error // once done is closed
}

// end wakes the waiters. A nil *ticket has none.
func (t *ticket) end(err error) {
	if t != nil {
		t.err = err
		close(t.done)
	}
}

// await waits for a group to be written.
func (t *ticket) await(ctx context.Context) error {
	select {
	case <-t.done:
		if t.err != nil {
			return overloaded(t.err)
		}
		return nil
	case <-ctx.Done():
		return &hub.Error{Kind: hub.Canceled, Message: "the client left", Cause: ctx.Err()}
	}
}
