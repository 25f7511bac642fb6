package vercelsandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
)

// headerDelay is how long an answer may take before its headers are sent ahead, and the
// interval of the white space that follows them. Clients give up 60 s or 300 s after the
// last byte they received.
const headerDelay = 20 * time.Second

// padded answers with the result of do. If do takes long, padded sends the headers of a
// success ahead, and white space until the result is known; an error then breaks the
// connection.
func (h *handler) padded(w http.ResponseWriter, r *http.Request, do func(ctx context.Context) (status int, body any, err error)) error {
	return h.paddedAs(w, r, http.StatusOK, do)
}

// paddedAs is padded with another status for success.
func (h *handler) paddedAs(w http.ResponseWriter, r *http.Request, success int, do func(ctx context.Context) (status int, body any, err error)) error {
	p := h.startPadding(w, success)
	defer p.stop() // of a panic
	status, body, err := do(r.Context())
	began := p.stop()
	if err != nil {
		return err
	}
	if !began {
		return writeJSON(w, status, body)
	}
	b, err := encode(body)
	if err != nil {
		return err
	}
	_, _ = w.Write(b) // fails only when the client left
	return nil
}

// padding keeps the connection of a slow answer alive.
type padding struct {
	end  context.CancelFunc
	done sync.WaitGroup
	// began says that the headers were sent. Read it when done.
	began bool
}

// startPadding begins to pad a JSON answer with a status of success. Until stop no other
// code may write to w.
func (h *handler) startPadding(w http.ResponseWriter, success int) *padding {
	every := h.HeaderDelay
	if every <= 0 {
		every = headerDelay
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &padding{end: cancel}
	p.done.Go(func() {
		t := time.NewTicker(every)
		defer t.Stop()
		rc := http.NewResponseController(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if ctx.Err() != nil { // both are ready
				return
			}
			if !p.began {
				p.began = true
				w.Header().Set("Content-Type", wire.TypeJSON)
				w.WriteHeader(success)
			}
			// A client that does not read is cut off. Write errors mean that the client
			// has left, which ends the request's context.
			_ = rc.SetWriteDeadline(time.Now().Add(api.StallTimeout))
			_, err := w.Write([]byte{' '})
			if err == nil {
				err = rc.Flush()
			}
			_ = rc.SetWriteDeadline(time.Time{})
			if err != nil {
				return
			}
		}
	})
	return p
}

// stop ends the padding, and reports whether the headers were sent. It may be called
// several times.
func (p *padding) stop() (began bool) {
	p.end()
	p.done.Wait()
	return p.began
}

// encode writes v as JSON.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return b.Bytes(), nil
}
