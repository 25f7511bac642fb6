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

// op is one request to write.
type op struct {
	add  func(b *Batch)
	size int
	// The writer calls done when the batch is stored, or has failed. done does not block.
	done func(err error)
}

// writer batches the ops that are queued during a transaction into the next transaction.
type writer struct {
	q     *Queue
	room  chan struct{} // a token for each op of callers
	ready chan struct{}

	mu     sync.Mutex // guards the fields below
	queue  []op
	closed bool
}

func newWriter(q *Queue) *writer {
	return &writer{q: q, room: make(chan struct{}, maxQueued), ready: make(chan struct{}, 1)}
}

// submit queues an op of the queue itself, of which there are few. It reports false,
// without a call of done, if the writer has ended.
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

// write adds to a batch with add, and waits until the batch is stored. If ctx ends
// meanwhile, the batch may be stored nevertheless.
func (w *writer) write(ctx context.Context, size int, add func(b *Batch)) error {
	return w.writeThen(ctx, size, add, func(error) {})
}

// writeThen is write, but the writer first calls then, whatever the outcome.
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
	// The wait does not end with ctx, because the writer would still write to the op
	// while the caller reads its results.
	return <-stored
}

func gaveUp(ctx context.Context) error {
	if ctx.Err() == context.DeadlineExceeded {
		return cay.Errorf(cay.DeadlineExceeded, "the queue did not take the request in time: %w", ctx.Err())
	}
	return cay.Errorf(cay.Canceled, "the caller gave up: %w", ctx.Err())
}

// take removes the next batch's ops from the queue.
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

// run writes until the queue ends. Ops queued by then are still written.
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

// store writes ops as one batch. If the store refuses the batch, possibly because of a
// single op, each op is written by itself.
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
	// The context does not end with the queue, so that the outcome of the write is known.
	return w.q.store.Write(context.WithoutCancel(w.q.ctx), b)
}
