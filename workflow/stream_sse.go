package workflow

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
)

// sseKeepAlive bounds how long an event stream is silent, so that proxies do not close
// it.
const sseKeepAlive = 15 * time.Second

// ServeStream answers a request with a stream of a run, as server-sent events. The id of
// an event is the index of its item, so a browser's EventSource that reconnects continues
// where it was; otherwise the query parameter "from" is the first index (default 0,
// negative counts from the end). The data of an event is the item's JSON; bytes come as
// events of type "bytes", in base64. An event of type "end" says that the stream has
// ended; the reader should close the connection then.
//
// ServeStream returns when the stream has ended or the client has disconnected. If it
// returns an error before anything was written, the program can still answer with its own
// error page; later errors can only be logged. Errors: the errors of ReadStream; invalid.
func (c *Client) ServeStream(w http.ResponseWriter, r *http.Request, run, name string) error {
	from := int64(0)
	at := r.Header.Get("Last-Event-ID")
	if at == "" {
		at = r.URL.Query().Get("from")
	} else if n, err := strconv.ParseInt(at, 10, 64); err == nil {
		at = strconv.FormatInt(n+1, 10)
	}
	if at != "" {
		n, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return cay.Errorf(cay.Invalid, "%q is no index of a stream", at)
		}
		from = n
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	reader, err := c.backend.ReadStream(ctx, run, name, from)
	if err != nil {
		return err
	}
	defer reader.Close() // closing a reader loses no data

	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no")
	out := &sseWriter{w: w, flush: http.NewResponseController(w).Flush}
	if err := out.write(": stream\n\n"); err != nil {
		return err
	}
	// The reader blocks, and keep-alives must be sent meanwhile, so a goroutine reads.
	type read struct {
		chunks []Chunk
		err    error
	}
	reads := make(chan read)
	defer func() {
		cancel()
		for range reads { // until the reader has ended
		}
	}()
	go func() {
		defer close(reads)
		for {
			chunks, err := reader.ReadChunks(ctx)
			select {
			case reads <- read{chunks, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	silence := time.NewTicker(sseKeepAlive)
	defer silence.Stop()
	for {
		select {
		case <-silence.C:
			if err := out.write(": \n\n"); err != nil {
				return nil // the client has disconnected
			}
		case got, ok := <-reads:
			if !ok {
				return nil // the client has disconnected
			}
			silence.Reset(sseKeepAlive)
			for _, chunk := range got.chunks {
				if err := out.write(c.sseEvent(chunk)); err != nil {
					return nil
				}
			}
			switch {
			case got.err == nil:
			case isEOF(got.err):
				_ = out.write("event: end\ndata:\n\n") // the client may have disconnected
				return nil
			case ctx.Err() != nil:
				return nil
			default:
				return got.err
			}
		}
	}
}

// sseEvent returns a chunk as a server-sent event.
func (c *Client) sseEvent(chunk Chunk) string {
	kind, body, err := c.values.open(chunk.Data)
	if err != nil || kind != envelopeJSON {
		if err != nil {
			body = chunk.Data // raw bytes
		}
		return fmt.Sprintf("id: %d\nevent: bytes\ndata: %s\n\n", chunk.Index, base64.StdEncoding.EncodeToString(body))
	}
	return fmt.Sprintf("id: %d\ndata: %s\n\n", chunk.Index, body) // the JSON of an envelope has no newline
}

type sseWriter struct {
	w     http.ResponseWriter
	flush func() error
}

func (s *sseWriter) write(text string) error {
	if _, err := s.w.Write([]byte(text)); err != nil {
		return err
	}
	return s.flush()
}
