package docker

import (
	"context"
	"net/http"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// wanted says which streams a request wants.
func wanted(r *http.Request) (stdout, stderr bool) { return flag(r, "stdout"), flag(r, "stderr") }

func (s *Server) handleAttach(w http.ResponseWriter, r *http.Request, c *container) error {
	stdout, stderr := wanted(r)
	past, follow, stdin := flag(r, "logs"), flag(r, "stream"), flag(r, "stdin")
	if !follow && !past {
		return failf(http.StatusBadRequest, "attach takes logs, stream, or both")
	}
	v := s.lives.of(c.ID)
	before := v.now()
	done := v.reading() // from before the start on, so that nothing ends unread
	defer done()
	c, err := s.reread(r.Context(), c)
	if err != nil {
		return err
	}
	ctx, h, err := s.hijack(w, r, c.Spec.Tty)
	if err != nil {
		return nil // the client left
	}
	defer h.Close()
	if !c.running() && (!past || follow) {
		if !follow {
			return nil
		}
		m, err := v.until(ctx, func(m moment) bool { return m.starts != before.starts || m.removed })
		if err != nil || m.removed {
			return nil
		}
		if c, err = s.reread(ctx, c); err != nil {
			return nil // removed at once
		}
		past = true // all since the start
	}
	p := sandbox.OutputParams{Follow: follow}
	if !past {
		cmd, err := s.cfg.Sandboxes.GetCommand(ctx, c.box.ID, c.State.Command)
		if err != nil {
			return nil // it has ended meanwhile
		}
		p.Cursor = cmd.OutputEnd
	}
	out, err := s.output(ctx, c, p)
	if err != nil {
		s.cfg.Logger.DebugContext(ctx, "attach", "container", c.ID, "error", err)
		return nil
	}
	defer out.Close()
	if stdin && c.Spec.OpenStdin && follow {
		s.feedStdin(ctx, h, c.box.ID, c.State.Command, c.Spec.StdinOnce)
	}
	if err := copyOutput(out, &sink{w: h, raw: c.Spec.Tty, stdout: stdout, stderr: stderr}); err != nil && ctx.Err() == nil {
		s.cfg.Logger.DebugContext(ctx, "attach", "container", c.ID, "error", err)
	}
	return nil
}

// output reads the output of a container's command. When the end of the sandbox
// breaks the call off, a second one gets what was kept.
func (s *Server) output(ctx context.Context, c *container, p sandbox.OutputParams) (sandbox.Output, error) {
	out, err := s.cfg.Sandboxes.Output(ctx, c.box.ID, c.State.Command, p)
	if cay.CodeOf(err) == cay.Stopped {
		out, err = s.cfg.Sandboxes.Output(ctx, c.box.ID, c.State.Command, p)
	}
	return out, err
}

func (s *Server) handleResize(w http.ResponseWriter, r *http.Request, c *container) error {
	size, err := windowSize(r)
	if err != nil {
		return err
	}
	if !c.running() {
		return failf(http.StatusConflict, "container %s is not running", c.ID)
	}
	if err := s.cfg.Sandboxes.Resize(r.Context(), c.box.ID, c.State.Command, size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// windowSize reads h and w.
func windowSize(r *http.Request) (sandbox.WindowSize, error) {
	q := r.URL.Query()
	rows, err1 := strconv.ParseUint(q.Get("h"), 10, 16)
	cols, err2 := strconv.ParseUint(q.Get("w"), 10, 16)
	if err1 != nil || err2 != nil || rows == 0 || cols == 0 {
		return sandbox.WindowSize{}, failf(http.StatusBadRequest, "invalid size: h is %q and w is %q; both are numbers of characters", q.Get("h"), q.Get("w"))
	}
	return sandbox.WindowSize{Cols: uint16(cols), Rows: uint16(rows)}, nil
}
