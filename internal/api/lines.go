package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const (
	// Heartbeat is the interval of blank lines on a silent stream, so that clients
	// and proxies can distinguish silence from a broken connection.
	Heartbeat = 15 * time.Second

	// linger is how long an Encoder may hold a part back while it waits for the
	// rest.
	linger = 20 * time.Millisecond

	// headPatience is how long the headers of a stream wait for its first line, to
	// be sent with it: each separate packet wakes the receiver.
	headPatience = 5 * time.Millisecond

	// firstPatience is how long a stopping server waits for the first value of a stream.
	firstPatience = time.Second

	// queued is how many values may wait for a slow reader.
	queued = 8
)

// Source is the source of a stream. Next returns io.EOF at the end; Close makes a
// waiting Next return.
type Source[T any] interface {
	Next() (T, error)
	io.Closer
}

// Encoder writes the lines of a stream.
type Encoder[T any] interface {
	// Append appends the lines of v. It may hold part of v back for the next call.
	Append(dst []byte, v T) ([]byte, error)
	// Held reports whether a part is held back, and Release appends it.
	Held() bool
	Release(dst []byte) []byte
	// AppendError appends the last line of a stream that failed.
	AppendError(dst []byte, e *cay.Error) []byte
}

// ServeLines writes a line for each value of src at once, and closes src. An error
// of src is the last line of the stream. It returns when src ends, the client
// leaves, or the client has not taken a line for StallTimeout. Next runs on a
// goroutine of its own, up to a few values ahead.
//
// When the server stops, the stream ends at once, with the error of WithStopping as its
// last line. The values that Next has returned come before it, and the first value comes
// in any case, if Next returns it soon: a client needs it to attach again.
//
// To a client that asks for a WebSocket the lines are text messages, of one or
// several lines each: browsers have few connections for all pages of an origin, and
// many WebSockets.
func ServeLines[T any](w http.ResponseWriter, r *http.Request, src Source[T], enc Encoder[T]) error {
	if isWebSocket(r) {
		return serveSocket(w, r, src, enc)
	}
	return serve(r.Context(), src, enc, newLineWriter(w, wire.TypeLines))
}

// ServeEvents is ServeLines for server-sent events; enc writes whole events, each
// with its blank line.
func ServeEvents[T any](w http.ResponseWriter, r *http.Request, src Source[T], enc Encoder[T]) error {
	w.Header().Set("Cache-Control", "no-cache")
	return serve(r.Context(), src, enc, newLineWriter(w, "text/event-stream"))
}

func serve[T any](ctx context.Context, src Source[T], enc Encoder[T], out *lineWriter) error {
	taking, cancel := context.WithCancel(ctx)
	items := make(chan item[T], queued)
	stopping := stoppingOf(ctx)
	var late <-chan time.Time // when a stopping server waits no longer for the first value
	first := true
	go pump(taking, src, items)
	defer func() {
		cancel()
		// Close only unblocks Next here; its error does not concern a client that
		// has its answer, or left.
		_ = src.Close()
		for range items {
		}
	}()

	head := time.NewTimer(headPatience)
	defer head.Stop()
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	var release <-chan time.Time // fires when what enc holds back must go
	for next := items; ; {
		select {
		case it, ok := <-next:
			if !ok { // as ctx has ended
				next = nil
				continue
			}
			release, first = nil, false
			if it.err != nil {
				return finish(ctx, enc, out, it.err)
			}
			var err error
			if out.buf, err = enc.Append(out.buf, it.value); err != nil {
				return err
			}
			if len(items) > 0 && len(out.buf) < copyBuffer {
				continue // more is there to go with it
			}
			if enc.Held() {
				release = time.After(linger)
			}
		case <-release:
			release = nil
			out.buf = enc.Release(out.buf)
		case <-head.C:
		case <-beat.C:
			out.buf = append(out.buf, '\n')
		case <-stopping.Done():
			if first {
				stopping, late = context.Background(), time.After(firstPatience)
				continue
			}
			return endStopping(ctx, next, enc, out)
		case <-late:
			return endStopping(ctx, next, enc, out)
		case <-ctx.Done():
			if e := endedBy(ctx); e != nil {
				return finish(ctx, enc, out, e)
			}
			return ctx.Err()
		}
		if late != nil && !first {
			return endStopping(ctx, next, enc, out)
		}
		if err := out.flush(); err != nil {
			return err
		}
		head.Stop()
		beat.Reset(Heartbeat)
	}
}

// finish writes the last lines of a stream that err ended; io.EOF is a good end.
func finish[T any](ctx context.Context, enc Encoder[T], out *lineWriter, err error) error {
	out.buf = enc.Release(out.buf)
	if err != io.EOF {
		out.buf = enc.AppendError(out.buf, Public(ctx, err))
	}
	return out.end()
}

// endStopping ends a stream because the server stops, after the values that are there.
func endStopping[T any](ctx context.Context, items <-chan item[T], enc Encoder[T], out *lineWriter) error {
	for {
		select {
		case it, ok := <-items:
			switch {
			case !ok:
				return finish(ctx, enc, out, context.Cause(stoppingOf(ctx)))
			case it.err != nil:
				return finish(ctx, enc, out, it.err)
			}
			var err error
			if out.buf, err = enc.Append(out.buf, it.value); err != nil {
				return err
			}
			if len(out.buf) >= copyBuffer {
				if err := out.flush(); err != nil {
					return err
				}
			}
		default:
			return finish(ctx, enc, out, context.Cause(stoppingOf(ctx)))
		}
	}
}

type item[T any] struct {
	value T
	err   error
}

// pump passes the values of src on, until its first error or the end of ctx.
func pump[T any](ctx context.Context, src Source[T], items chan<- item[T]) {
	defer close(items)
	for {
		v, err := src.Next()
		select {
		case items <- item[T]{v, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// lineWriter collects the bytes to send to a client.
type lineWriter struct {
	buf []byte
	// send sends b, which may be empty, and gives the client StallTimeout to
	// receive it. With last, the bytes may be sent together with the end of the
	// answer, when the handler returns.
	send func(b []byte, last bool) error
}

func newLineWriter(w http.ResponseWriter, contentType string) *lineWriter {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Accel-Buffering", "no") // asks proxies to pass lines on as they come
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	return &lineWriter{send: func(b []byte, last bool) error {
		if err := rc.SetWriteDeadline(time.Now().Add(StallTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return answerError(err)
		}
		if len(b) > 0 {
			if _, err := w.Write(b); err != nil {
				return answerError(err)
			}
		}
		if last {
			return nil
		}
		return answerError(rc.Flush())
	}}
}

func (l *lineWriter) flush() error {
	err := l.send(l.buf, false)
	l.buf = l.buf[:0]
	return err
}

// end is the last flush.
func (l *lineWriter) end() error { return l.send(l.buf, true) }

// patience is how long a slow call may take before its headers are sent.
const patience = time.Second

// ServeSlow answers with the JSON of call's result. When call takes long, the
// status 200 is sent early and blank lines follow until the result is known, so
// that the connection does not look dead; a failure after that is an error object
// in the body. call only waits: when the server stops, ServeSlow ends it, see
// WithStopping.
func ServeSlow(w http.ResponseWriter, r *http.Request, call func(ctx context.Context) (any, error)) error {
	r, end := UntilStopping(r)
	defer end()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	done := make(chan item[any], 1)
	go func() {
		v, err := call(ctx)
		done <- item[any]{v, err}
	}()
	early := time.NewTimer(patience)
	defer early.Stop()
	select {
	case it := <-done:
		if it.err != nil {
			return it.err
		}
		return WriteJSON(w, http.StatusOK, it.value)
	case <-early.C:
	}

	return waitSlow(r.Context(), newLineWriter(w, wire.TypeJSON), done, cancel)
}

// waitSlow sends blank lines until the call is done, and then the call's result.
func waitSlow(ctx context.Context, out *lineWriter, done <-chan item[any], cancel context.CancelFunc) error {
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for {
		if err := out.flush(); err != nil {
			cancel()
			<-done
			return err
		}
		select {
		case <-beat.C:
			out.buf = append(out.buf, '\n')
		case it := <-done:
			v := it.value
			if it.err != nil {
				v = wire.ErrorBody{Error: wire.FromError(Public(ctx, it.err))}
			}
			line, err := json.Marshal(v)
			if err != nil {
				return fmt.Errorf("encode the answer: %w", err)
			}
			out.buf = append(append(out.buf, line...), '\n')
			return out.end()
		}
	}
}
