package queue

import (
	"context"
	"sync"

	"github.com/cayhq/cay"
)

const (
	maxQueued     = 1024     // ops of callers that wait for the writer
	maxBatch      = 256      // ops of one transaction
	maxBatchBytes = 16 << 20 // bodies of one transaction
)

// op is one thing to be written.
type op struct {
	add  func(b *Batch)
	size int
	// done is called by the writer when the batch is stored, or could not be. It does not
	// block.
	done func(err error)
}

// writer writes what is queued while the last batch was stored, as the next one.
type writer struct {
	q     *Queue
	room  chan struct{} // a token for each op of callers
	ready chan struct{}

	mu     sync.Mutex // guards what follows
	queue  []op
	closed bool
}

func newWriter(q *Queue) *writer {
	return &writer{q: q, room: make(chan struct{}, maxQueued), ready: make(chan struct{}, 1)}
}

// submit queues an op of the queue itself: there are few. It reports false, and calls
// nothing, if the writer has ended.
func (w *writer) submit(o op) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.queue = append(w.queue, o)
	select {
	case w.ready <- struct{}{}:
	default:
	}
	return true
}

// write queues what add adds to a batch, and waits until it is stored. If ctx ends
// meanwhile it may be stored all the same.
func (w *writer) write(ctx context.Context, size int, add func(b *Batch)) error {
	return w.writeThen(ctx, size, add, func(error) {})
}

// writeThen is write, and has the writer call then first, however it ends.
func (w *writer) writeThen(ctx context.Context, size int, add func(b *Batch), then func(error)) (err error) {
	queued := false
	defer func() {
		if !queued {
			then(err)
		}
	}()
	select {
	case w.room <- struct{}{}:
	case <-ctx.Done():
		return gaveUp(ctx)
	case <-w.q.ctx.Done():
		return errClosed
	}
	stored := make(chan error, 1)
	o := op{add: add, size: size, done: func(err error) {
		<-w.room
		then(err)
		stored <- err
	}}
	if queued = w.submit(o); !queued {
		<-w.room
		return errClosed
	}
	// No select on ctx: what the caller reads out of the op would be written to.
	return <-stored
}

func gaveUp(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return cay.Errorf(cay.DeadlineExceeded, "the queue did not take the request in time: %w", ctx.Err())
	}
	return cay.Errorf(cay.Canceled, "the caller gave up: %w", ctx.Err())
}

// take removes the ops of the next batch from the queue.
func (w *writer) take() []op {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, 0
	for n < len(w.queue) && n < maxBatch && (n == 0 || size+w.queue[n].size <= maxBatchBytes) {
		size += w.queue[n].size
		n++
	}
	ops := w.queue[:n:n]
	w.queue = w.queue[n:]
	if len(w.queue) == 0 {
		w.queue = nil
	}
	return ops
}

// run writes until the queue ends. What was queued by then is written still.
func (w *writer) run() {
	for {
		select {
		case <-w.ready:
		case <-w.q.ctx.Done():
			w.mu.Lock()
			w.closed = true
			w.mu.Unlock()
		}
		for ops := w.take(); len(ops) > 0; ops = w.take() {
			w.store(ops)
		}
		if w.q.ctx.Err() != nil {
			w.mu.Lock()
			over := w.closed && len(w.queue) == 0
			w.mu.Unlock()
			if over {
				return
			}
		}
	}
}

// store writes ops as one batch. If the batch is refused, for what only one of them
// may be the reason, each is written by itself.
func (w *writer) store(ops []op) {
	err := w.storeAll(ops)
	if err == nil || len(ops) == 1 || cay.CodeOf(err) == cay.Unavailable || cay.CodeOf(err) == cay.NoSpace {
		for _, o := range ops {
			o.done(err)
		}
		return
	}
	for i := range ops {
		ops[i].done(w.storeAll(ops[i : i+1]))
	}
}

func (w *writer) storeAll(ops []op) error {
	b := &Batch{Now: w.q.now()}
	for _, o := range ops {
		o.add(b)
	}
	// Not with the queue's context: it is known then what was stored.
	return w.q.store.Write(context.WithoutCancel(w.q.ctx), b)
}
