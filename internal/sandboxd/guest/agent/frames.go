package agent

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// frameWriter sends frames. After an error it sends nothing more.
type frameWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	head    [guest.HeaderSize]byte
	err     error
}

func newFrameWriter(w http.ResponseWriter) *frameWriter {
	w.Header()["Content-Type"] = []string{"application/octet-stream"}
	return &frameWriter{w: w, control: http.NewResponseController(w)}
}

func (f *frameWriter) frame(kind guest.Kind, cursor int64, payload []byte) {
	for first := true; f.err == nil && (first || len(payload) > 0); first = false {
		part := payload[:min(len(payload), guest.MaxPayload)]
		payload = payload[len(part):]
		if _, f.err = f.w.Write(guest.AppendHeader(f.head[:0], kind, cursor, len(part))); f.err == nil && len(part) > 0 {
			_, f.err = f.w.Write(part)
		}
		cursor += int64(len(part))
	}
}

func (f *frameWriter) json(kind guest.Kind, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > guest.MaxPayload {
		return cay.Errorf(cay.TooLarge, "a description has more than %d bytes", guest.MaxPayload)
	}
	f.frame(kind, 0, data)
	if f.err != nil {
		return &begunError{f.err}
	}
	return nil
}

func (f *frameWriter) flush() {
	if f.err == nil {
		f.err = f.control.Flush()
	}
}

// readBody fills data from the body, which must have exactly len(data) bytes.
func readBody(r *http.Request, data []byte) error {
	if r.ContentLength != int64(len(data)) {
		return cay.Errorf(cay.TooLarge, "a piece of standard input has more than %d bytes", guest.MaxStdinChunk)
	}
	if _, err := io.ReadFull(r.Body, data); err != nil {
		return cay.Errorf(cay.Canceled, "the writer has left: %w", err)
	}
	return nil
}
