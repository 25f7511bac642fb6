package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

// quiet is how long a stream may be silent. The daemon sends a heartbeat every
// 15 s, so a connection without one is dead.
const quiet = 45 * time.Second

// lines reads an answer of newline-delimited JSON. It fails when the daemon is silent for
// too long.
type lines struct {
	conn   *wire.Conn
	body   io.Closer
	dec    *json.Decoder
	cancel context.CancelFunc
	timer  *time.Timer
}

// open sends a request whose answer is newline-delimited JSON.
func (r *remote) open(ctx context.Context, req wire.Request) (*lines, error) {
	ctx, cancel := context.WithCancel(ctx)
	req.Header = http.Header{"Accept": {wire.TypeLines}}
	resp, err := r.conn.Do(ctx, req)
	if err != nil {
		cancel()
		return nil, err
	}
	timer := time.AfterFunc(quiet, cancel)
	return &lines{
		conn: r.conn, body: resp.Body, cancel: cancel, timer: timer,
		dec: json.NewDecoder(&alive{resp.Body, timer}),
	}, nil
}

// alive restarts a timer after every read.
type alive struct {
	r     io.Reader
	timer *time.Timer
}

func (a *alive) Read(p []byte) (int, error) {
	n, err := a.r.Read(p)
	if n > 0 {
		a.timer.Reset(quiet)
	}
	return n, err
}

// next decodes the next line. io.EOF means that the daemon ended the answer.
func (l *lines) next(v any) error { return l.dec.Decode(v) }

// explain returns the reason of a failed read.
func (l *lines) explain(ctx context.Context, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, new(*cay.Error)) {
		return err
	}
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return cay.Errorf(cay.Internal, "the daemon sent what cannot be read: %w", err)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return l.conn.StreamError(ctx, err)
}

func (l *lines) close() {
	l.timer.Stop()
	l.cancel()
	l.body.Close() // reading is over, so an error of Close does not matter
}

// errEndOfLines is the daemon's marker for the end of a stream.
var errEndOfLines = errors.New("end of lines")

func (r *remote) eventsRequest(id string, from int64, follow bool, limit int) (wire.Request, error) {
	p, err := runPath(id, "events")
	if err != nil {
		return wire.Request{}, err
	}
	q := r.query()
	q.Set("from", strconv.FormatInt(from, 10))
	if follow {
		q.Set("follow", "true")
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return wire.Request{Method: http.MethodGet, Path: p, Query: q}, nil
}

func nextEvent(in *lines) (Event, error) {
	var line struct {
		protocol.Event
		Error *wire.Error `json:"error"`
	}
	if err := in.next(&line); err != nil {
		return Event{}, endOfLines(err)
	}
	if line.Error != nil {
		return Event{}, line.Error.Err()
	}
	return line.Event.Event(), nil
}

func nextChunk(in *lines) (Chunk, error) {
	var line struct {
		protocol.Chunk
		Error *wire.Error `json:"error"`
	}
	if err := in.next(&line); err != nil {
		return Chunk{}, endOfLines(err)
	}
	if line.Error != nil {
		return Chunk{}, line.Error.Err()
	}
	return Chunk{Index: line.Index, Data: line.Data}, nil
}

func endOfLines(err error) error {
	if err == io.EOF {
		return errEndOfLines
	}
	return err
}

func (r *remote) Follow(ctx context.Context, id string, from int64) (EventReader, error) {
	f := &follower[Event]{
		next: max(from, 1), read: nextEvent, position: func(e Event) int64 { return e.Slot },
		open: func(ctx context.Context, from int64) (*lines, error) {
			req, err := r.eventsRequest(id, from, true, 0)
			if err != nil {
				return nil, err
			}
			return r.open(ctx, req)
		},
	}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	return &eventReader{f}, nil
}

func (r *remote) ReadStream(ctx context.Context, run, stream string, from int64) (ChunkReader, error) {
	p, err := runPath(run, "stream")
	if err != nil {
		return nil, err
	}
	f := &follower[Chunk]{
		next: from, read: nextChunk, position: func(c Chunk) int64 { return c.Index },
		open: func(ctx context.Context, from int64) (*lines, error) {
			q := r.query()
			q.Set("name", stream)
			q.Set("from", strconv.FormatInt(from, 10))
			q.Set("follow", "true")
			return r.open(ctx, wire.Request{Method: http.MethodGet, Path: p, Query: q})
		},
	}
	if err := f.start(ctx); err != nil {
		return nil, err
	}
	return &chunkReader{f}, nil
}

type eventReader struct{ *follower[Event] }

func (r *eventReader) ReadEvents(ctx context.Context) ([]Event, error) { return r.take(ctx) }

type chunkReader struct{ *follower[Chunk] }

func (r *chunkReader) ReadChunks(ctx context.Context) ([]Chunk, error) { return r.take(ctx) }

// follower reads a stream to its end on a goroutine of its own. When a connection breaks,
// it continues at the same position on a new connection.
type follower[T any] struct {
	next     int64 // next position
	open     func(ctx context.Context, from int64) (*lines, error)
	read     func(*lines) (T, error)
	position func(T) int64

	cancel context.CancelFunc
	done   sync.WaitGroup
	values chan T
	end    error // why values is closed
}

// ahead is the number of values that are read in advance.
const ahead = 64

// start connects, so that errors are reported at once.
func (f *follower[T]) start(ctx context.Context) error {
	ctx, f.cancel = context.WithCancel(ctx)
	in, err := f.open(ctx, f.next)
	if err != nil {
		f.cancel()
		return err
	}
	f.values = make(chan T, ahead)
	f.done.Go(func() {
		defer close(f.values)
		f.end = f.run(ctx, in)
	})
	return nil
}

func (f *follower[T]) run(ctx context.Context, in *lines) error {
	var again patience
	for {
		err := f.drain(ctx, in, &again)
		in.close()
		for {
			if err == nil {
				return io.EOF
			}
			if !again.wait(ctx, err) {
				return err
			}
			if in, err = f.open(ctx, f.next); err == nil {
				break
			}
		}
	}
}

// drain passes the values of a connection on. It returns nil at the end of the stream.
func (f *follower[T]) drain(ctx context.Context, in *lines, again *patience) error {
	for {
		v, err := f.read(in)
		if err == errEndOfLines {
			return nil
		}
		if err != nil {
			return in.explain(ctx, err)
		}
		select {
		case f.values <- v:
		case <-ctx.Done():
			return in.explain(ctx, ctx.Err())
		}
		f.next = f.position(v) + 1
		again.reset()
	}
}

// take waits for values and returns all available ones.
func (f *follower[T]) take(ctx context.Context) ([]T, error) {
	select {
	case v, ok := <-f.values:
		if !ok {
			return nil, f.end
		}
		out := []T{v}
		for len(out) < ahead {
			select {
			case v, ok := <-f.values:
				if !ok {
					return out, nil
				}
				out = append(out, v)
				continue
			default:
			}
			break
		}
		return out, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", ctx.Err())
		}
		return nil, cay.Errorf(cay.Canceled, "canceled: %w", ctx.Err())
	}
}

// Close ends the reading.
func (f *follower[T]) Close() error {
	f.cancel()
	f.done.Wait()
	return nil
}

// patience bounds the retries of a request that the daemon did not answer.
type patience struct {
	tries int
	since time.Time // first failure of the current series
}

// reset ends a series of failures.
func (p *patience) reset() { p.tries = 0 }

// wait waits before the next try. It reports false if the request must not be retried.
func (p *patience) wait(ctx context.Context, err error) bool {
	if cay.CodeOf(err) != cay.Unavailable || ctx.Err() != nil {
		return false
	}
	now := time.Now()
	if p.tries == 0 {
		p.since = now
	}
	if now.Sub(p.since) > ReconnectTimeout {
		return false
	}
	d := min(50*time.Millisecond<<min(p.tries, 6), 2*time.Second)
	p.tries++
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
