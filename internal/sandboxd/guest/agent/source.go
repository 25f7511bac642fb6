package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"path"
	"strings"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxSourceBody bounds a SourceRequest.
	maxSourceBody = 16 << 20
	// maxSaid bounds the end of a helper's output that is passed on, in bytes.
	maxSaid = 700
)

func (s *Server) handleSource(w http.ResponseWriter, r *http.Request) error {
	var req guest.SourceRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSourceBody))
	dec.DisallowUnknownFields() // see handleStart
	if err := dec.Decode(&req); err != nil {
		return cay.Errorf(cay.Invalid, "source: %w", err)
	}
	if err := req.Source.Validate(); err != nil {
		return err
	}
	real, shown, err := s.resolve(cmp.Or(req.Source.Dir, "."))
	if err != nil {
		return err
	}
	own, err := s.owner("")
	if err != nil {
		return err
	}
	if err := makeParents(path.Clean(real), 0o755, own); err != nil {
		return fileError("make directory", shown, err)
	}
	if req.Source.Type == sandbox.TarballSource {
		return s.untar(r.Context(), req, real, shown, own)
	}
	return s.clone(r.Context(), req, real, shown)
}

// helper is a finished program that was run for the agent.
type helper struct {
	code   int
	stdout []byte
	said   string // the end of its stderr, as one line
}

// help runs a program as the machine's user and waits for its end. The program runs as a
// command that is not shown to users.
func (s *Server) help(ctx context.Context, p sandbox.CommandParams) (*helper, error) {
	id := guest.NewCommandID()
	e, _, err := s.table.reserve(id)
	if err != nil {
		return nil, err
	}
	pl, err := s.prepare(p)
	var c *command
	if err == nil {
		pl.hidden = true
		c, err = s.launch(id, pl)
	}
	s.table.setStarted(e, c, err)
	if err != nil {
		return nil, err
	}
	defer c.log.forget()
	select {
	case <-c.done:
	case <-ctx.Done():
		_ = c.signal(syscall.SIGKILL) // a command that has exited needs no signal
		<-c.done
		return nil, &begunError{ctx.Err()}
	}
	r, err := c.log.reader(0)
	if err != nil {
		return nil, err
	}
	defer r.close()
	h := &helper{code: c.describe().Exit.Code}
	var stderr []byte
	for {
		segs, _, err := r.read(ctx, false)
		if err != nil {
			return nil, &begunError{err}
		}
		if len(segs) == 0 {
			break
		}
		for _, seg := range segs {
			if seg.kind == guest.KindStdout {
				h.stdout = append(h.stdout, seg.data...)
			} else {
				stderr = append(stderr, seg.data...)
				stderr = stderr[max(0, len(stderr)-maxSaid):]
			}
			r.advance(seg.end())
		}
	}
	h.said = oneLine(string(stderr))
	return h, nil
}

// oneLine joins the lines of a text.
func oneLine(s string) string {
	lines := strings.FieldsFunc(strings.ToValidUTF8(s, ""), func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines, "; ")
}
