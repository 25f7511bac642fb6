package chat

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// response is an HTTP answer that records whether it has begun.
type response struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // for what is sent to be taken
	begun   bool
	buf     []byte
}

func (w *response) WriteHeader(status int) {
	w.begun = true
	w.ResponseWriter.WriteHeader(status)
}

// event appends a chunk to the buffer.
func (w *response) event(chunk []byte) {
	w.buf = append(w.buf, "data: "...)
	w.buf = append(w.buf, chunk...)
	w.buf = append(w.buf, "\n\n"...)
}

// comment appends a comment, which clients ignore.
func (w *response) comment() { w.buf = append(w.buf, ": \n\n"...) }

// send writes the buffer.
func (w *response) send() error {
	err := w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return errLeft
	}
	_, err = w.ResponseWriter.Write(w.buf)
	w.buf = w.buf[:0]
	if err != nil || w.control.Flush() != nil {
		return errLeft
	}
	return nil
}

// maxPending bounds the buffer of one write.
const maxPending = 64 << 10

// serve streams a run to a reader from an index on; a negative index counts from the
// end.
func (s *server) serve(w *response, r *http.Request, run string, from int64) error {
	done, err := s.read(run)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	info, err := s.streamInfo(ctx, run)
	if err != nil {
		return err
	}
	resumes := from >= 0
	if !resumes {
		from = max(0, info.Chunks+from)
	}
	v := newView(from, resumes, s.o.ResetStep)
	if err := s.scan(ctx, v, run, info.Chunks); err != nil {
		return err
	}
	if from > info.Chunks && !info.Closed {
		got, err := s.client.Get(ctx, run)
		if err != nil {
			return err
		}
		if !got.Status.Terminal() {
			return cay.Errorf(cay.Invalid, "startIndex is %d, and the stream has %d chunks", from, info.Chunks)
		}
	}

	header := w.Header()
	streamHeader(header)
	header.Set(headerRun, run)
	header.Set(headerTail, strconv.FormatInt(info.Chunks-1, 10))
	w.WriteHeader(http.StatusOK)
	w.comment()
	err = w.send()
	if err == nil {
		err = s.follow(ctx, w, v, run, info.Chunks)
	}
	if errors.Is(err, errLeft) {
		return nil
	}
	return err
}

// streamHeader sets the common header of streams.
func streamHeader(header http.Header) {
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache, no-transform")
	header.Set("X-Accel-Buffering", "no")
	header.Set(headerVersion, "v1")
}

// streamInfo returns the state of a run's stream.
func (s *server) streamInfo(ctx context.Context, run string) (workflow.StreamInfo, error) {
	all, err := s.client.Streams(ctx, run)
	if err != nil {
		return workflow.StreamInfo{}, err
	}
	for _, info := range all {
		if info.Name == stream {
			return info, nil
		}
	}
	return workflow.StreamInfo{Name: stream}, nil // nothing was said yet
}

// isOver reports whether a run's answer is complete. The run may not have ended yet.
func (s *server) isOver(ctx context.Context, run *workflow.RunInfo) (bool, error) {
	if run.Status.Terminal() {
		return true, nil
	}
	info, err := s.streamInfo(ctx, run.ID)
	return info.Closed, err
}

// scan passes the first n chunks to v.known.
func (s *server) scan(ctx context.Context, v *view, run string, n int64) error {
	if n == 0 {
		return nil
	}
	for chunk, err := range s.client.ReadChunks(ctx, run, stream, 0) {
		if err != nil {
			return err
		}
		v.known(chunk.Index, s.value(chunk))
		if chunk.Index >= n-1 {
			break
		}
	}
	return nil
}

// value returns the JSON of a chunk; nil if the chunk has none, which agents never
// write.
func (s *server) value(chunk workflow.Chunk) []byte {
	var raw json.RawMessage
	if err := s.client.Value(chunk.Data, &raw); err != nil {
		return nil
	}
	return raw
}

// follow writes the stream until it ends. length is a lower bound of the number of
// chunks.
func (s *server) follow(ctx context.Context, w *response, v *view, run string, length int64) error {
	ctx, cancel := context.WithCancel(ctx)
	type item struct {
		chunk workflow.Chunk
		err   error
	}
	items := make(chan item, 16)
	defer func() {
		cancel()
		for range items { // until the reading has ended
		}
	}()
	// Reading blocks, but heartbeats must be sent: a goroutine of its own reads.
	go func() {
		defer close(items)
		for chunk, err := range s.client.ReadChunks(ctx, run, stream, v.from) {
			select {
			case items <- item{chunk, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	silence := time.NewTicker(s.o.Heartbeat)
	defer silence.Stop()
	for {
		select {
		case <-silence.C:
			w.comment()
			if err := w.send(); err != nil {
				return err
			}
		case it, ok := <-items:
			for ok && it.err == nil {
				w.event(v.next(it.chunk.Index, s.value(it.chunk)))
				length = max(length, it.chunk.Index+1)
				if len(w.buf) > maxPending || len(items) == 0 {
					break
				}
				it, ok = <-items
			}
			switch {
			case ctx.Err() != nil:
				return errLeft
			case ok && it.err != nil:
				return it.err
			case !ok:
				return s.end(ctx, w, v, run, length)
			}
			silence.Reset(s.o.Heartbeat)
			if err := w.send(); err != nil {
				return err
			}
		}
	}
}

// end writes the chunks that follow the last of length chunks.
func (s *server) end(ctx context.Context, w *response, v *view, run string, length int64) error {
	info, err := s.client.Get(ctx, run)
	if err != nil {
		return err
	}
	rest := v.rest(info.Status)
	if skip := v.from - length; skip > 0 {
		rest = rest[min(skip, int64(len(rest))):]
	}
	if len(rest) == 0 && v.from >= length {
		rest = [][]byte{chunkFinish} // a client that asks for a later chunk waits for a finish
	}
	for _, chunk := range rest {
		w.event(chunk)
	}
	w.event(chunkDone)
	return w.send()
}
