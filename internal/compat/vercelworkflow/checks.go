package vercelworkflow

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
)

// checks are the answers to health checks. The SDK publishes a check as a message, and the app
// that takes the message writes its answer into a stream of no run, whose name both know. The
// daemon keeps such streams in its memory: an answer matters for seconds.
type checks struct {
	mu   sync.Mutex
	held map[checkID]*check
}

type checkID struct{ project, stream string }

// check is an answer, whole once closed is closed.
type check struct {
	text   []byte
	closed chan struct{}
	done   bool
	at     time.Time // when it was last written to, or first asked for
}

const (
	maxChecks = 256
	maxCheck  = 16 << 10 // bytes of one
)

// isCheck reports whether a stream is of a health check.
func isCheck(stream string) bool { return strings.HasPrefix(stream, "__health_check__") }

// get returns an answer, which may have nothing yet. The oldest one makes room for it.
func (c *checks) get(id checkID) *check {
	if one := c.held[id]; one != nil {
		return one
	}
	if len(c.held) >= maxChecks {
		var oldest checkID
		for other, one := range c.held {
			if at := c.held[oldest]; at == nil || one.at.Before(at.at) {
				oldest = other
			}
		}
		delete(c.held, oldest)
	}
	if c.held == nil {
		c.held = map[checkID]*check{}
	}
	one := &check{closed: make(chan struct{}), at: time.Now()}
	c.held[id] = one
	return one
}

// write appends to an answer, and ends it. Errors: too_large.
func (c *checks) write(project, stream string, chunks [][]byte, closeIt bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.get(checkID{project, stream})
	for _, chunk := range chunks {
		if len(one.text)+len(chunk) > maxCheck {
			return cay.Errorf(cay.TooLarge, "the answer to a health check has more than %d bytes", maxCheck)
		}
		if !one.done {
			one.text = append(one.text, chunk...)
		}
	}
	one.at = time.Now()
	if closeIt && !one.done {
		one.done = true
		close(one.closed)
	}
	return nil
}

// read waits for the whole answer. Errors: canceled, deadline_exceeded.
func (c *checks) read(ctx context.Context, project, stream string) ([]byte, error) {
	c.mu.Lock()
	one := c.get(checkID{project, stream})
	c.mu.Unlock()
	select {
	case <-one.closed: // after which text does not change
		return one.text, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readCheck answers with the answer to a health check.
func (h *handler) readCheck(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(r.Context(), runGrace)
	defer cancel()
	text, err := h.checks.read(wait, project, r.PathValue("stream"))
	if err != nil {
		return cay.Errorf(cay.NotFound, "no app has answered health check %.100s", r.PathValue("stream"))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, err = w.Write(text)
	return err
}

// writeCheck takes an answer to a health check, or a part of it.
func (h *handler) writeCheck(w http.ResponseWriter, r *http.Request) error {
	project, err := h.Project(r.Context(), "")
	if err != nil {
		return err
	}
	chunks, closeIt, free, err := h.readChunks(w, r, maxCheck)
	if err != nil {
		return err
	}
	defer free()
	if err := h.checks.write(project, r.PathValue("stream"), chunks, closeIt); err != nil {
		return err
	}
	return api.NoContent(w)
}
