package workflowd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// eventPage is how many events are read from a backend at a time.
const eventPage = 200

// handleEvents answers with a line for each event. With follow it goes on until the run's
// last event.
func (h *Routes) handleEvents(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	from, limit := position(q, 1, 1)
	follow := q.Bool("follow")
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	id := r.PathValue("id")
	src := &batches[history.Event]{cancel: cancel, limit: limit}
	if follow {
		reader, err := b.Follow(ctx, id, from)
		if err != nil {
			return err
		}
		defer reader.Close() // only reads precede it
		src.next = func() ([]history.Event, error) { return reader.ReadEvents(ctx) }
	} else {
		page := func() ([]history.Event, error) {
			n := int64(eventPage)
			if limit > 0 {
				n = min(n, limit)
			}
			return b.Events(ctx, id, from, int(n))
		}
		first, err := page() // reports errors while an error answer is still possible
		if err != nil {
			return err
		}
		src.next = func() ([]history.Event, error) {
			events := first
			if first = nil; events == nil {
				var err error
				if events, err = page(); err != nil {
					return nil, err
				}
			}
			if len(events) == 0 {
				return nil, io.EOF
			}
			from = events[len(events)-1].Slot + 1
			return events, nil
		}
	}
	return api.ServeLines(w, r, src, jsonLines[history.Event, protocol.Event]{protocol.EventOf})
}

func (h *Routes) handleListStreams(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	streams, err := b.ListStreams(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return page(w, streams, "")
}

// handleReadStream answers with a line for each chunk, or with server-sent
// events, or with the bytes of a stream of bytes, as the request accepts. With
// follow it goes on until the stream is closed.
func (h *Routes) handleReadStream(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	name := q.String("name")
	from, limit := position(q, math.MinInt64, 0)
	follow := q.Bool("follow")
	if last := r.Header.Get("Last-Event-ID"); last != "" && !q.Has("from") {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 || n == math.MaxInt64 {
			return cay.Errorf(cay.Invalid, "the header Last-Event-ID is %.64q, not an index", last)
		}
		from = n + 1
	}
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	id := r.PathValue("id")
	src := &batches[history.Chunk]{cancel: cancel, limit: limit}
	if !follow {
		count, err := chunkCount(ctx, b, id, name)
		if err != nil {
			return err
		}
		if from < 0 {
			from = max(count+from, 0)
		}
		left := max(count-from, 0)
		if left == 0 {
			src.next = func() ([]history.Chunk, error) { return nil, io.EOF }
			return serveChunks(w, r, src)
		}
		if limit == 0 || left < limit {
			src.limit = left
		}
	}
	reader, err := b.ReadStream(ctx, id, name, from)
	if err != nil {
		return err
	}
	defer reader.Close() // only reads precede it
	src.next = func() ([]history.Chunk, error) { return reader.ReadChunks(ctx) }
	return serveChunks(w, r, src)
}

// chunkCount returns the current number of chunks of a stream.
func chunkCount(ctx context.Context, b workflow.Backend, run, stream string) (int64, error) {
	streams, err := b.ListStreams(ctx, run)
	if err != nil {
		return 0, err
	}
	for _, s := range streams {
		if s.Name == stream {
			return s.Chunks, nil
		}
	}
	return 0, nil
}

const typeSSE = "text/event-stream"

func serveChunks(w http.ResponseWriter, r *http.Request, src api.Source[history.Chunk]) error {
	switch {
	case accepts(r, typeSSE):
		return api.ServeLines(headed{w, typeSSE}, r, &sseSource{Source: src}, sseLines{})
	case accepts(r, wire.TypeBytes):
		w.Header().Set("Content-Type", wire.TypeBytes)
		w.WriteHeader(http.StatusOK)
		buf, free := api.Buffer()
		defer free()
		return api.Copy(w, nil, &rawChunks{src: src}, buf)
	}
	return api.ServeLines(w, r, src, jsonLines[history.Chunk, protocol.Chunk]{
		func(c *history.Chunk) *protocol.Chunk { return &protocol.Chunk{Index: c.Index, Data: c.Data} },
	})
}

// accepts reports whether the request prefers the media type, by naming it.
func accepts(r *http.Request, media string) bool {
	for _, v := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			if m, _, err := mime.ParseMediaType(part); err == nil && m == media {
				return true
			}
		}
	}
	return false
}

func (h *Routes) handleWriteStream(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	name := q.String("name")
	b, err := h.backend(r, q)
	if err != nil {
		return err
	}
	var p protocol.WriteStream
	free, err := h.readPayload(w, r, &p)
	if err != nil {
		return err
	}
	defer free()
	chunks := make([][]byte, len(p.Chunks))
	for i, c := range p.Chunks {
		chunks[i] = c
	}
	if err := b.WriteStream(r.Context(), r.PathValue("id"), name, chunks, p.Close); err != nil {
		return err
	}
	return api.NoContent(w)
}

// batches is an api.Source over batches of items: at most limit items, 0 for all. Close
// makes next return, by cancelling next's context.
type batches[T any] struct {
	next   func() ([]T, error)
	cancel context.CancelFunc
	limit  int64

	have  []T
	count int64
}

func (b *batches[T]) Next() (T, error) {
	var zero T
	if b.limit > 0 && b.count == b.limit {
		return zero, io.EOF
	}
	for len(b.have) == 0 {
		var err error
		if b.have, err = b.next(); err != nil {
			return zero, err
		}
	}
	v := b.have[0]
	b.have = b.have[1:]
	b.count++
	return v, nil
}

func (b *batches[T]) Close() error {
	b.cancel()
	return nil
}

// jsonLines writes each value as JSON, in its wire form.
type jsonLines[T, Wire any] struct{ convert func(*T) *Wire }

func (j jsonLines[T, Wire]) Append(dst []byte, v T) ([]byte, error) {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // payloads stay as they were written
	err := enc.Encode(j.convert(&v))
	return append(dst, line.Bytes()...), err
}

func (jsonLines[T, Wire]) Held() bool                { return false }
func (jsonLines[T, Wire]) Release(dst []byte) []byte { return dst }

func (jsonLines[T, Wire]) AppendError(dst []byte, e *cay.Error) []byte {
	b, err := json.Marshal(wire.ErrorBody{Type: "error", Error: wire.FromError(e)})
	if err != nil {
		return dst // strings and a number cannot fail to be encoded
	}
	return append(append(dst, b...), '\n')
}

// sseChunk is a chunk as a server-sent event, or the event that says that the stream has
// ended: browsers would take the end of the connection for an error, and reconnect.
type sseChunk struct {
	history.Chunk
	end bool
}

// sseSource is a Source of chunks that adds an event for the end.
type sseSource struct {
	api.Source[history.Chunk]
	ended bool
}

func (s *sseSource) Next() (sseChunk, error) {
	if s.ended {
		return sseChunk{}, io.EOF
	}
	c, err := s.Source.Next()
	if err == io.EOF {
		s.ended, err = true, nil
	}
	return sseChunk{c, s.ended}, err
}

// sseLines writes chunks as server-sent events, whose ids are the indexes. The
// blank lines of the heartbeat mean nothing between events.
type sseLines struct{}

func (sseLines) Append(dst []byte, c sseChunk) ([]byte, error) {
	if c.end {
		return append(dst, "event: end\ndata: {}\n\n"...), nil
	}
	dst = append(strconv.AppendInt(append(dst, "id: "...), c.Index, 10), '\n')
	for line := range bytes.SplitSeq(protocol.Payload(c.Data).Value(), []byte("\n")) {
		dst = append(append(append(dst, "data: "...), line...), '\n')
	}
	return append(dst, '\n'), nil
}

func (sseLines) Held() bool                { return false }
func (sseLines) Release(dst []byte) []byte { return dst }

func (sseLines) AppendError(dst []byte, e *cay.Error) []byte {
	b, err := json.Marshal(wire.FromError(e))
	if err != nil {
		return dst // as above
	}
	return append(append(append(dst, "event: error\ndata: "...), b...), "\n\n"...)
}

// headed keeps a content type that was set before.
type headed struct {
	http.ResponseWriter
	contentType string
}

func (h headed) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h headed) WriteHeader(status int) {
	h.Header().Set("Content-Type", h.contentType)
	h.ResponseWriter.WriteHeader(status)
}

// rawChunks reads the bytes of chunks, without their envelopes.
type rawChunks struct {
	src  api.Source[history.Chunk]
	data []byte
}

func (c *rawChunks) Read(p []byte) (int, error) {
	for len(c.data) == 0 {
		chunk, err := c.src.Next()
		if err != nil {
			return 0, err
		}
		c.data = chunk.Data
	}
	n := copy(p, c.data)
	c.data = c.data[n:]
	return n, nil
}
