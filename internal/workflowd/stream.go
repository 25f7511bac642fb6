package workflowd

import (
	"bytes"
	"context"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/workflow"
)

// Bounds of streams.
const (
	maxChunk      = 16 << 20 // bytes of one chunk
	maxWrite      = 64 << 20 // bytes of all chunks of one write
	maxStreamName = 512
	chunkPage     = 256

	// A tail keeps the most recent chunks for concurrent readers.
	tailChunks = 1024
	tailBytes  = 1 << 20
)

// streamKey identifies a stream of a run.
type streamKey struct{ run, name string }

// stream is a lane's state of a stream that it writes to.
type stream struct {
	info    history.StreamInfo
	lease   uint64 // the run's lease when info was read; 0 if no other process uses the store
	loading bool
	waiting []*op
	written int // position of its chunks in the group's records, from 1; 0 if none
}

// write is a write to a stream, as part of an op.
type write struct {
	key    streamKey
	chunks [][]byte
	close  bool
	// repeat means that the write may have been stored before, behind the first after
	// chunks. looked means that the stream was searched for the write. The field there means
	// that the search found it.
	repeat, looked, there bool
	after                 int64
	// length is the length of the stream after the write.
	length int64
}

// maxStreams bounds the idle streams that a lane remembers.
const maxStreams = 10_000

// admitWrite adds a write to the group.
func (l *lane) admitWrite(o *op) {
	w := o.write
	r := l.runs[w.key.run]
	if o.session != nil && (r == nil || o.session != r.session || o.lease != r.lease) {
		o.finish(notYours(w.key.run))
		return
	}
	lease := uint64(0)
	if l.e.owner != nil {
		// Other processes may write to the streams of runs that this process does not
		// own.
		switch {
		case o.owned:
		case r == nil || r.session == nil:
			o.finish(cay.Errorf(cay.Conflict, "run %s is not at work in this process, so its streams cannot be written to here", w.key.run))
			return
		default:
			lease = r.lease
		}
	}
	s := l.streams[w.key]
	if s == nil || s.lease != lease && !s.loading {
		if len(l.streams) >= maxStreams {
			l.forgetStreams()
		}
		s = &stream{lease: lease, loading: true}
		l.streams[w.key] = s
		l.e.spawn(func() { l.loadStream(w.key, s) })
	}
	if s.loading {
		s.waiting = append(s.waiting, o)
		return
	}
	if w.repeat && !w.looked && len(w.chunks) > 0 {
		if s.written > 0 { // the store has to have the chunks that are searched
			l.again = append(l.again, o)
			return
		}
		s.loading = true
		s.waiting = append(s.waiting, o)
		l.e.spawn(func() { l.searchStream(w, s) })
		return
	}
	if w.there {
		w.chunks = nil
	}
	if s.info.Closed && len(w.chunks) > 0 {
		o.finish(cay.Errorf(cay.Conflict, "stream %q of run %s is closed", w.key.name, w.key.run))
		return
	}
	g := &l.group
	g.ops = append(g.ops, o)
	w.length = s.info.Chunks + int64(len(w.chunks))
	if len(w.chunks) == 0 && (!w.close || s.info.Closed) {
		return
	}
	if s.written == 0 {
		g.records.Chunks = append(g.records.Chunks, StreamChunks{Run: w.key.run, Stream: w.key.name})
		g.streams = append(g.streams, s)
		s.written = len(g.records.Chunks)
	}
	rec := &g.records.Chunks[s.written-1]
	for _, c := range w.chunks {
		rec.Chunks = append(rec.Chunks, history.Chunk{Index: s.info.Chunks, Data: c})
		s.info.Chunks++
		g.bytes += len(c) + 32
	}
	rec.Close = rec.Close || w.close
	s.info.Closed = s.info.Closed || w.close
}

// forgetStreamsOf forgets the streams of a run that another process may own from now on.
func (l *lane) forgetStreamsOf(run string) {
	for key, s := range l.streams {
		if key.run == run && !s.loading && s.written == 0 {
			delete(l.streams, key)
		}
	}
}

// forgetStreams makes room for other streams; a forgotten stream is read again when
// needed.
func (l *lane) forgetStreams() {
	for key, s := range l.streams {
		if !s.loading && s.written == 0 {
			delete(l.streams, key)
		}
	}
}

// loadStream reads the length and state of a stream.
func (l *lane) loadStream(key streamKey, s *stream) {
	e := l.e
	_, err := e.store.Run(e.ctx, key.run)
	var info history.StreamInfo
	if err == nil {
		_, info, err = e.store.Chunks(e.ctx, key.run, key.name, math.MaxInt64, 1)
	}
	l.streamRead(key, s, info, err)
}

// searchStream looks whether a stream has the chunks of a write, one behind the other. The
// lane adds nothing to the stream meanwhile.
func (l *lane) searchStream(w *write, s *stream) {
	e := l.e
	var info history.StreamInfo
	var err error
	var seen [][]byte // the last chunks, as many as the write has
	for from, more := w.after, true; more && err == nil && !w.there; {
		var chunks []history.Chunk
		if chunks, info, err = e.store.Chunks(e.ctx, w.key.run, w.key.name, from, chunkPage); err != nil {
			break
		}
		for i := range chunks {
			seen = append(seen, chunks[i].Data)
			if len(seen) > len(w.chunks) {
				seen = seen[1:]
			}
			if len(seen) == len(w.chunks) && slices.EqualFunc(seen, w.chunks, bytes.Equal) {
				w.there = true
				break
			}
		}
		from += int64(len(chunks))
		more = len(chunks) > 0 && from < info.Chunks
	}
	w.looked = err == nil
	l.streamRead(w.key, s, info, err)
}

// streamRead hands the length and state of a stream to its lane, and admits the ops that
// wait for them.
func (l *lane) streamRead(key streamKey, s *stream, info history.StreamInfo, err error) {
	l.post(func() { // a lane that has ended fails the waiting ops itself
		s.info, s.loading = info, false
		waiting := s.waiting
		s.waiting = nil
		if err != nil {
			delete(l.streams, key)
		}
		for _, o := range waiting {
			if err != nil {
				o.finish(err)
			} else {
				l.admitWrite(o)
			}
		}
	})
}

// publishStreams passes the group's chunks to readers, or forgets the streams after an
// error.
func (l *lane) publishStreams(err error) {
	g := &l.group
	for i, s := range g.streams {
		rec := &g.records.Chunks[i]
		key := streamKey{rec.Run, rec.Stream}
		s.written = 0
		if err != nil {
			if l.streams[key] == s {
				delete(l.streams, key)
			}
			continue
		}
		l.e.tails.publish(key, rec)
		l.e.byName.publish(key)
	}
}

// tails are the most recent chunks of streams that have readers.
type tails struct {
	mu   sync.Mutex // guards the fields below
	tail map[streamKey]*tail
}

// tail is the most recent chunks of a stream, and its readers.
type tail struct {
	readers []*streamReader
	chunks  []history.Chunk // consecutive indexes
	bytes   int
	closed  bool
}

func (t *tails) init() { t.tail = make(map[streamKey]*tail) }

func (t *tails) publish(key streamKey, rec *StreamChunks) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.tail[key]
	if end == nil {
		return
	}
	end.chunks = append(end.chunks, rec.Chunks...)
	for _, c := range rec.Chunks {
		end.bytes += len(c.Data)
	}
	drop := 0
	for len(end.chunks)-drop > tailChunks || end.bytes > tailBytes && drop < len(end.chunks)-1 {
		end.bytes -= len(end.chunks[drop].Data)
		drop++
	}
	if drop > 0 {
		end.chunks = slices.Clone(end.chunks[drop:])
	}
	end.closed = end.closed || rec.Close
	for _, r := range end.readers {
		r.poke()
	}
}

// streamReader reads the stored chunks of a stream and then waits for new ones.
type streamReader struct {
	b    *backend
	key  streamKey
	next int64
	sub  *subscription // for the end of the run, and changes by other processes
	wake chan struct{}
	look bool // read the store
	over bool // the run has ended
}

func (r *streamReader) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// check refuses writes that are too large. Errors: invalid, too_large.
func (w *write) check() error {
	if err := checkText("the name of a stream,", w.key.name, maxStreamName); err != nil {
		return err
	}
	size := 0
	for _, c := range w.chunks {
		if len(c) > maxChunk {
			return cay.Errorf(cay.TooLarge, "a chunk of %d bytes: at most %d are allowed", len(c), maxChunk)
		}
		size += len(c)
	}
	if size > maxWrite {
		return cay.Errorf(cay.TooLarge, "a write of %d bytes: at most %d are allowed", size, maxWrite)
	}
	return nil
}

func (b *backend) WriteStream(ctx context.Context, run, name string, chunks [][]byte, closeIt bool) error {
	return b.writeStream(ctx, &write{key: streamKey{run, name}, chunks: chunks, close: closeIt})
}

func (b *backend) writeStream(ctx context.Context, w *write) error {
	run := w.key.run
	if err := w.check(); err != nil {
		return err
	}
	if r, ok := b.e.live.Load(run); !ok || !r.(*liveRun).isOf(b.project) {
		if _, err := b.GetRun(ctx, run); err != nil {
			return err
		}
	}
	l, err := b.e.route(ctx, run)
	if err != nil {
		return err
	}
	return l.do(ctx, &op{run: run, write: w})
}

func (b *backend) ReadStream(ctx context.Context, run, name string, from int64) (workflow.ChunkReader, error) {
	key := streamKey{run, name}
	r := &streamReader{
		b: b, key: key, next: from, look: true,
		sub: b.e.hub.subscribe(run, false), wake: make(chan struct{}, 1),
	}
	b.e.tails.add(r)
	if err := r.begin(ctx); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (t *tails) add(r *streamReader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.tail[r.key]
	if end == nil {
		end = &tail{}
		t.tail[r.key] = end
	}
	end.readers = append(end.readers, r)
}

func (t *tails) remove(r *streamReader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.tail[r.key]
	if end == nil {
		return
	}
	end.readers = slices.DeleteFunc(end.readers, func(o *streamReader) bool { return o == r })
	if len(end.readers) == 0 {
		delete(t.tail, r.key)
	}
}

// begin finds the index where the reader begins.
func (r *streamReader) begin(ctx context.Context) error {
	run, err := r.b.GetRun(ctx, r.key.run)
	if err != nil {
		return err
	}
	r.over = run.Status.Terminal()
	if r.next < 0 {
		_, info, err := r.b.e.store.Chunks(ctx, r.key.run, r.key.name, math.MaxInt64, 1)
		if err != nil {
			return err
		}
		r.next = max(0, info.Chunks+r.next)
	}
	return nil
}

func (r *streamReader) ReadChunks(ctx context.Context) ([]workflow.Chunk, error) {
	for {
		chunks, closed, behind := r.fromTail()
		if len(chunks) > 0 {
			r.next = chunks[len(chunks)-1].Index + 1
			return chunks, nil
		}
		if r.look || behind || closed {
			over := r.over // read before the store: chunks that arrive later belong to no run
			chunks, info, err := r.b.e.store.Chunks(ctx, r.key.run, r.key.name, r.next, chunkPage)
			if err != nil {
				return nil, err
			}
			if len(chunks) > 0 {
				r.next = chunks[len(chunks)-1].Index + 1
				return chunks, nil
			}
			if info.Closed || over {
				return nil, io.EOF
			}
			r.look = false
		}
		select {
		case <-ctx.Done():
			return nil, wire.ContextError(ctx)
		case <-r.wake:
		case <-r.sub.wake:
			seen := r.sub.take()
			switch {
			case seen.ended != nil && !r.over:
				r.over, r.look = true, true
			case seen.closed:
				return nil, errClosed
			case seen.missed:
				run, err := r.b.GetRun(ctx, r.key.run)
				if err != nil {
					return nil, err
				}
				r.over, r.look = run.Status.Terminal(), true
			}
		}
	}
}

// fromTail returns the next chunks if they are in memory; behind means that they are only
// in the store.
func (r *streamReader) fromTail() (chunks []history.Chunk, closed, behind bool) {
	t := &r.b.e.tails
	t.mu.Lock()
	defer t.mu.Unlock()
	end := t.tail[r.key]
	if end == nil {
		return nil, false, false
	}
	if len(end.chunks) == 0 {
		return nil, end.closed, false
	}
	first := end.chunks[0].Index
	if r.next < first {
		return nil, end.closed, true
	}
	if skip := r.next - first; skip < int64(len(end.chunks)) {
		return slices.Clone(end.chunks[skip:]), end.closed, false
	}
	return nil, end.closed, false
}

func (r *streamReader) Close() error {
	r.b.e.tails.remove(r)
	r.b.e.hub.unsubscribe(r.sub)
	return nil
}

func (b *backend) ListStreams(ctx context.Context, run string) ([]workflow.StreamInfo, error) {
	if _, err := b.GetRun(ctx, run); err != nil {
		return nil, err
	}
	return b.e.store.Streams(ctx, run)
}
