package workflow

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"sync"

	"github.com/cayhq/cay"
)

// StreamWriter writes a stream of a run, in a step.
type StreamWriter[T any] struct {
	ctx  context.Context // the step's context, which outlives the writer
	env  *stepEnv
	sink *streamSink
}

// Stream returns the writer of a stream of the run that the step of ctx belongs to.
// Streams are named, and the first write to a name creates the stream. Several steps may
// write to the same stream, also concurrently. The end of a step does not end a stream;
// Close does. Items that a step has sent are stored before the step is recorded. A step
// that is retried sends again.
//
// With a context that is not a step's context, the writer's methods fail.
func Stream[T any](ctx context.Context, name string) *StreamWriter[T] {
	w := &StreamWriter[T]{ctx: ctx, env: stepEnvOf(ctx)}
	if w.env != nil && w.env.streams != nil {
		w.sink = w.env.streams.sink(ctx, name)
	}
	return w
}

var errNoStep = cay.Errorf(cay.Invalid, "streams are written by steps: the context is not that of a step")

// Send appends values to the stream, each as one item. It returns before they are stored,
// unless too many are pending. Errors: invalid (the value cannot be stored, or there is
// no step), too_large, conflict (the stream is closed), and those of earlier calls.
func (w *StreamWriter[T]) Send(values ...T) error {
	if w.sink == nil {
		return errNoStep
	}
	chunks := make([][]byte, len(values))
	for i, v := range values {
		var err error
		if chunks[i], err = w.env.payloads.encode(v); err != nil {
			return err
		}
	}
	return w.sink.send(w.ctx, chunks, false)
}

// Close ends the stream for all writers: readers see its end, and nothing more can be
// sent. Closing twice is fine. Close returns when all items are stored.
func (w *StreamWriter[T]) Close() error {
	if w.sink == nil {
		return errNoStep
	}
	if err := w.sink.send(w.ctx, nil, true); err != nil {
		return err
	}
	return w.sink.flush()
}

// End is Send and Close in one: the values are stored and the stream is closed, or
// neither, wherever the process dies. It returns when both are done. Errors: those of
// Send; conflict if the stream was closed before, for example by an earlier attempt of
// the step that was interrupted just after it.
func (w *StreamWriter[T]) End(values ...T) error {
	if w.sink == nil {
		return errNoStep
	}
	if len(values) > maxBatchChunks {
		return cay.Errorf(cay.TooLarge, "a stream cannot end with %d values at once, only with %d", len(values), maxBatchChunks)
	}
	chunks := make([][]byte, len(values))
	for i, v := range values {
		var err error
		if chunks[i], err = w.env.payloads.encode(v); err != nil {
			return err
		}
	}
	if err := w.sink.flush(); err != nil {
		return err
	}
	return w.env.streams.write(w.ctx, w.sink.name, chunks, true)
}

// Flush returns when all sent items are stored, or with the error of storing them. A step
// need not call Flush: sent items are stored before the step is recorded.
func (w *StreamWriter[T]) Flush() error {
	if w.sink == nil {
		return errNoStep
	}
	return w.sink.flush()
}

// Last returns the newest items of the stream, at most n, the oldest first. A step uses
// Last to find out which items its earlier attempts have sent. Other steps may write
// meanwhile. Errors: invalid (an item does not fit T, n is not 1 to 1000, or there is no
// step).
func (w *StreamWriter[T]) Last(n int) ([]Item[T], error) {
	if w.sink == nil || w.env.readStream == nil {
		return nil, errNoStep
	}
	if n < 1 || n > maxBatchChunks {
		return nil, cay.Errorf(cay.Invalid, "n is %d, not 1 to %d", n, maxBatchChunks)
	}
	if err := w.sink.flush(); err != nil {
		return nil, err
	}
	chunks, err := w.env.readStream(w.ctx, w.sink.name, n)
	if err != nil {
		return nil, err
	}
	items := make([]Item[T], len(chunks))
	for i, c := range chunks {
		items[i].Index = c.Index
		if err := w.env.payloads.decode(c.Data, &items[i].Value); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// lastChunks returns the newest chunks of a stream, at most n.
func lastChunks(ctx context.Context, b Backend, run, name string, n int) (chunks []Chunk, err error) {
	all, err := b.ListStreams(ctx, run)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s StreamInfo) bool { return s.Name == name })
	if i < 0 || all[i].Chunks == 0 {
		return nil, nil
	}
	end := all[i].Chunks
	r, err := b.ReadStream(ctx, run, name, max(0, end-int64(n)))
	if err != nil {
		return nil, err
	}
	defer r.Close() // closing a reader loses no data
	for {
		more, err := r.ReadChunks(ctx)
		if err != nil && !isEOF(err) {
			return nil, err
		}
		for _, c := range more {
			if c.Index < end {
				chunks = append(chunks, c)
			}
		}
		if err != nil || len(more) > 0 && more[len(more)-1].Index >= end-1 {
			return chunks, nil
		}
	}
}

// ByteStream is Stream for a stream of bytes. Each Write is one chunk, of at most 1 MiB;
// a larger Write is divided.
func ByteStream(ctx context.Context, name string) io.WriteCloser {
	return &byteWriter{*Stream[[]byte](ctx, name)}
}

type byteWriter struct{ w StreamWriter[[]byte] }

func (b *byteWriter) Write(p []byte) (n int, err error) {
	if b.w.sink == nil {
		return 0, errNoStep
	}
	for part := range slices.Chunk(p, maxBatchBytes) {
		chunk, err := b.w.env.streams.raw(part)
		if err != nil {
			return n, err
		}
		if err := b.w.sink.send(b.w.ctx, [][]byte{chunk}, false); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

func (b *byteWriter) Close() error { return b.w.Close() }

// How much is written at a time, and how much may wait to be written.
const (
	maxBatchChunks = 1000
	maxBatchBytes  = 1 << 20
	maxBuffered    = 8 << 20
)

// streamSinks are the streams that an attempt of a step writes to.
type streamSinks struct {
	write  func(ctx context.Context, stream string, chunks [][]byte, closeIt bool) error
	sealed payloads

	mu     sync.Mutex // guards byName
	byName map[string]*streamSink
}

func (s *streamSinks) sink(ctx context.Context, name string) *streamSink {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.byName[name]
	if k == nil {
		if s.byName == nil {
			s.byName = make(map[string]*streamSink)
		}
		k = &streamSink{name: name, ctx: ctx, write: s.write}
		s.byName[name] = k
	}
	return k
}

// raw returns the stored form of bytes: the bytes themselves, or sealed.
func (s *streamSinks) raw(b []byte) ([]byte, error) {
	if r, ok := s.sealed.(*runEnvelopes); ok && len(r.all.keys) > 0 {
		return seal(r.all.keys[0], r.run, b)
	}
	return slices.Clone(b), nil
}

// flush waits until all sent chunks are stored.
func (s *streamSinks) flush() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byName) == 0 {
		return nil
	}
	var errs []error
	for _, k := range s.byName {
		errs = append(errs, k.flush())
	}
	return errors.Join(errs...)
}

// streamSink writes one stream: the first chunks at once, and chunks that are sent
// meanwhile together.
type streamSink struct {
	name  string
	ctx   context.Context // the step's context
	write func(ctx context.Context, stream string, chunks [][]byte, closeIt bool) error

	mu      sync.Mutex // guards the fields below
	pending [][]byte
	bytes   int
	closing bool
	moved   chan struct{} // while chunks are being written: closed when some have been written
	err     error
}

func (k *streamSink) send(ctx context.Context, chunks [][]byte, closeIt bool) error {
	size := 0
	for _, c := range chunks {
		size += len(c)
	}
	k.mu.Lock()
	for k.err == nil && k.bytes > 0 && k.bytes+size > maxBuffered {
		moved := k.moved
		k.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	if k.closing {
		if len(chunks) == 0 {
			return nil
		}
		return cay.Errorf(cay.Conflict, "stream %q is closed", k.name)
	}
	k.pending = append(k.pending, chunks...)
	k.bytes += size
	k.closing = k.closing || closeIt
	if k.moved == nil && (len(k.pending) > 0 || closeIt) {
		k.moved = make(chan struct{})
		go k.run() // flush waits for it
	}
	return nil
}

// run writes until nothing is pending.
func (k *streamSink) run() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		n, size := 0, 0
		for n < len(k.pending) && n < maxBatchChunks && (n == 0 || size+len(k.pending[n]) <= maxBatchBytes) {
			size += len(k.pending[n])
			n++
		}
		batch := k.pending[:n:n]
		k.pending = k.pending[n:]
		closeIt := k.closing && len(k.pending) == 0
		k.mu.Unlock()
		err := k.write(k.ctx, k.name, batch, closeIt)
		k.mu.Lock()
		k.bytes -= size
		if err != nil {
			k.err = err
			k.pending, k.bytes = nil, 0
		}
		close(k.moved)
		k.moved = nil
		if len(k.pending) == 0 && (err != nil || !k.closing || closeIt) {
			return
		}
		k.moved = make(chan struct{})
	}
}

func (k *streamSink) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.moved != nil {
		moved := k.moved
		k.mu.Unlock()
		<-moved // run's context ends with the step's
		k.mu.Lock()
	}
	return k.err
}

// Item is one item of a stream.
type Item[T any] struct {
	Index int64 // from 0; to continue, read from the next index
	Value T
}

// ReadStream iterates over the items of a stream of a run, from an index on; a negative
// one counts from the end, so that -1 begins with the last item. It waits for further
// ones until the stream is closed or the run has ended. An error ends the iteration.
// Errors: not_found, invalid (an item does not fit T).
func ReadStream[T any](ctx context.Context, c *Client, run, name string, from int64) iter.Seq2[Item[T], error] {
	return func(yield func(Item[T], error) bool) {
		for chunk, err := range c.ReadChunks(ctx, run, name, from) {
			item := Item[T]{Index: chunk.Index}
			if err == nil {
				err = c.values.decode(chunk.Data, &item.Value)
			}
			if err != nil {
				yield(Item[T]{Index: chunk.Index}, err)
				return
			}
			if !yield(item, nil) {
				return
			}
		}
	}
}

// ReadBytes is ReadStream for a stream written with ByteStream.
func ReadBytes(ctx context.Context, c *Client, run, name string, from int64) iter.Seq2[Item[[]byte], error] {
	return func(yield func(Item[[]byte], error) bool) {
		for chunk, err := range c.ReadChunks(ctx, run, name, from) {
			data := chunk.Data
			if err == nil && len(c.values.keys) > 0 && len(data) >= 4 && string(data[:4]) == envelopeSealed {
				data, err = unseal(c.values.keys, data)
			}
			if err != nil {
				yield(Item[[]byte]{Index: chunk.Index}, err)
				return
			}
			if !yield(Item[[]byte]{Index: chunk.Index, Value: data}, nil) {
				return
			}
		}
	}
}

// ReadChunks iterates over the chunks of a stream of any type: see ReadStream, and decode
// the chunks with Value.
func (c *Client) ReadChunks(ctx context.Context, run, name string, from int64) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		r, err := c.backend.ReadStream(ctx, run, name, from)
		if err != nil {
			yield(Chunk{}, err)
			return
		}
		defer r.Close() // closing a reader loses no data
		for {
			chunks, err := r.ReadChunks(ctx)
			for _, chunk := range chunks {
				if !yield(chunk, nil) {
					return
				}
			}
			if isEOF(err) {
				return
			}
			if err != nil {
				yield(Chunk{}, err)
				return
			}
		}
	}
}

// Stream is Client.ReadChunks of the run.
func (r *Run[Out]) Stream(ctx context.Context, name string, from int64) iter.Seq2[Chunk, error] {
	return r.client.ReadChunks(ctx, r.ID, name, from)
}

// Follow is Client.Follow of the run.
func (r *Run[Out]) Follow(ctx context.Context, from int64) iter.Seq2[Event, error] {
	return r.client.Follow(ctx, r.ID, from)
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
