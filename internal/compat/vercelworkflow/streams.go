package vercelworkflow

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/workflow"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// Bounds of what one write to a stream may have: those of the engine.
const (
	maxWrite  = 64 << 20
	maxChunks = 1000
)

// streamOf returns the stream that a request is about, and its run. The 4.7 line reads
// streams by their name alone. Most names have the run's ULID: strm_<ULID>_user and so
// on. Errors: not_found.
func (h *handler) streamOf(r *http.Request) (runs Runs, run, stream string, err error) {
	if runs, err = h.runs(r); err != nil {
		return nil, "", "", err
	}
	run, stream = r.PathValue("run"), r.PathValue("stream")
	if run != "" {
		return runs, run, stream, nil
	}
	if id, ok := strings.CutPrefix(stream, "strm_"); ok {
		id, _, _ = strings.Cut(id, "_")
		if _, err := runs.GetRun(r.Context(), "wrun_"+id); err == nil {
			return runs, "wrun_" + id, stream, nil
		} else if cay.CodeOf(err) != cay.NotFound {
			return nil, "", "", err
		}
	}
	wait, cancel := context.WithTimeout(r.Context(), runGrace)
	defer cancel()
	run, err = runs.StreamRun(wait, stream)
	if err != nil && r.Context().Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = cay.Errorf(cay.NotFound, "nobody has written to a stream %.100q", stream)
	}
	return runs, run, stream, err
}

// handleWriteStream appends chunks to a stream, or closes it.
func (h *handler) handleWriteStream(w http.ResponseWriter, r *http.Request) error {
	if isCheck(r.PathValue("stream")) {
		return h.writeCheck(w, r)
	}
	runs, run, stream, err := h.streamOf(r)
	if err != nil {
		return err
	}
	chunks, closeIt, free, err := h.readChunks(w, r, maxWrite)
	if err != nil {
		return err
	}
	defer free()
	if len(chunks) > 0 || closeIt {
		after, err := afterOf(r)
		if err != nil {
			return err
		}
		length, err := runs.Append(r.Context(), run, stream, chunks, closeIt, after)
		if err != nil {
			return err
		}
		w.Header().Set(lengthHeader, itoa(length))
	}
	return api.NoContent(w)
}

// The preload repeats a write that may have arrived with the length that the stream had
// before, and learns the length of a stream from each answer.
const (
	afterHeader  = "X-Cay-After"
	lengthHeader = "X-Cay-Length"
)

// afterOf returns the length that a stream had before a write that is repeated; -1 if the
// request is no repetition. Errors: invalid.
func afterOf(r *http.Request) (int64, error) {
	text := r.Header.Get(afterHeader)
	if text == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, cay.Errorf(cay.Invalid, "%s is %.40q, and should be the length of a stream", afterHeader, text)
	}
	return n, nil
}

// readChunks reads what a request writes to a stream, and whether it closes the stream. free
// gives back the room of the chunks. Errors: invalid, too_large, canceled.
func (h *handler) readChunks(w http.ResponseWriter, r *http.Request, limit int64) (chunks [][]byte, closeIt bool, free func(), err error) {
	if r.Header.Get("X-Stream-Done") == "true" {
		return nil, true, func() {}, nil
	}
	b, free, err := h.readBody(w, r, limit)
	if err != nil {
		return nil, false, nil, err
	}
	if len(b) == 0 {
		free()
		// A client of the SDK that repeats a request after a broken connection has sent the
		// body already, and repeats the request without it. A chunk without bytes would
		// have readers wait for ever.
		if r.ContentLength != 0 {
			return nil, false, nil, cay.Errorf(cay.Invalid, "the write to %.100s has no bytes: its client has lost them on a connection that broke", r.PathValue("stream"))
		}
		return nil, false, func() {}, nil
	}
	if r.Header.Get("X-Stream-Multi") != "true" {
		return [][]byte{b}, false, free, nil
	}
	for len(b) > 0 {
		chunk, rest, ok := takeBytes(b)
		if !ok || len(chunks) == maxChunks {
			free()
			return nil, false, nil, cay.Errorf(cay.Invalid, "the chunks are cut short, or there are more than %d", maxChunks)
		}
		if b = rest; len(chunk) > 0 {
			chunks = append(chunks, chunk)
		}
	}
	return chunks, false, free, nil
}

// runGrace is how long a reader waits for a run that does not exist yet. The request that
// creates the run may still be under way.
const runGrace = 30 * time.Second

// handleReadStream answers with the chunks of a stream as they come, and ends when the
// stream is closed. A connection that has to end before is broken: a reader that sees its
// end would take the stream for closed.
func (h *handler) handleReadStream(w http.ResponseWriter, r *http.Request) error {
	if isCheck(r.PathValue("stream")) {
		return h.readCheck(w, r)
	}
	runs, run, stream, err := h.streamOf(r)
	if err != nil {
		return err
	}
	from, err := queryOf(r).number("startIndex", 0)
	if err != nil {
		return err
	}
	reader, err := runs.ReadStream(r.Context(), run, stream, from)
	if cay.CodeOf(err) == cay.NotFound {
		reader, err = awaitStream(r.Context(), runs, run, stream, from)
	}
	if err != nil {
		return err
	}
	defer reader.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	if err := out.Flush(); err != nil {
		return err
	}
	for {
		chunks, err := reader.ReadChunks(r.Context())
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err // the kit breaks the connection
		}
		for i := range chunks {
			if _, err := w.Write(chunks[i].Data); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// handleStreams lists the names of a run's streams.
func (h *handler) handleStreams(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	found, err := runs.ListStreams(r.Context(), run.ID)
	if err != nil {
		return err
	}
	names := make([]string, len(found))
	for i := range found {
		names[i] = found[i].Name
	}
	return api.WriteJSON(w, http.StatusOK, names)
}

// handleChunks answers with a page of the chunks that a stream has.
func (h *handler) handleChunks(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	q := queryOf(r)
	limit, err := q.limit(100)
	if err != nil {
		return err
	}
	from, err := q.number("cursor", 0)
	if err != nil {
		return err
	}
	chunks, info, err := runs.Chunks(r.Context(), run.ID, r.PathValue("stream"), from, limit)
	if err != nil {
		return err
	}
	data := make([]object, len(chunks))
	next := from
	for i := range chunks {
		data[i] = object{"index": chunks[i].Index, "data": chunks[i].Data}
		next = chunks[i].Index + 1
	}
	more := next < info.Chunks
	o := object{"data": data, "cursor": nil, "hasMore": more, "done": info.Closed && !more}
	if more {
		o["cursor"] = itoa(next)
	}
	return writeCBOR(w, o)
}

func (h *handler) handleStreamInfo(w http.ResponseWriter, r *http.Request) error {
	runs, run, err := h.run(r)
	if err != nil {
		return err
	}
	_, info, err := runs.Chunks(r.Context(), run.ID, r.PathValue("stream"), 0, 1)
	if err != nil {
		return err
	}
	w.Header().Set(lengthHeader, itoa(info.Chunks))
	return writeCBOR(w, object{"tailIndex": info.Chunks - 1, "done": info.Closed})
}

// awaitStream is ReadStream of a run that is not there, but may be soon.
func awaitStream(ctx context.Context, runs Runs, run, stream string, from int64) (workflow.ChunkReader, error) {
	wait, cancel := context.WithTimeout(ctx, runGrace)
	defer cancel()
	if err := runs.AwaitRun(wait, run); err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, cay.Errorf(cay.NotFound, "run %.100q not found", run)
		}
		return nil, err
	}
	return runs.ReadStream(ctx, run, stream, from)
}
