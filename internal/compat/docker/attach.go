package docker

import (
	"bytes"
	"context"
	"io"
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

func (s *Server) handleLogs(w http.ResponseWriter, r *http.Request, c *container) error {
	q := r.URL.Query()
	stdout, stderr := wanted(r)
	switch {
	case !stdout && !stderr:
		return failf(http.StatusBadRequest, "Bad parameters: you must choose at least one stream")
	case flag(r, "timestamps"), flag(r, "since"), flag(r, "until"):
		return failf(http.StatusNotImplemented, "cay keeps output without the times of its lines: leave out timestamps, since and until")
	}
	tail := -1
	if t := q.Get("tail"); t != "" && t != "all" {
		var err error
		if tail, err = strconv.Atoi(t); err != nil || tail < 0 {
			return failf(http.StatusBadRequest, "invalid tail %q: it is a number of lines, or all", t)
		}
	}
	if c.State.Command == "" {
		w.Header().Set("Content-Type", streamType(c.Spec.Tty))
		w.WriteHeader(http.StatusOK)
		return nil
	}
	follow := flag(r, "follow") && c.running()
	v := s.lives.of(c.ID)
	defer v.reading()()
	ctx := r.Context()
	out, err := s.output(ctx, c, sandbox.OutputParams{Follow: follow && tail < 0})
	if err != nil {
		return err
	}
	defer func() { out.Close() }()
	w.Header().Set("Content-Type", streamType(c.Spec.Tty))
	w.WriteHeader(http.StatusOK)
	to := &sink{w: w, raw: c.Spec.Tty, stdout: stdout, stderr: stderr, flush: http.NewResponseController(w).Flush}
	if tail >= 0 {
		last := lastLines{lines: tail, stdout: stdout, stderr: stderr}
		cursor, err := last.read(out)
		if err != nil {
			return s.broken(err)
		}
		for _, ev := range last.events() {
			if err := to.put(ev.Stream, ev.Data); err != nil {
				return nil
			}
		}
		if !follow {
			return nil
		}
		out.Close()
		next, err := s.output(ctx, c, sandbox.OutputParams{Follow: true, Cursor: cursor})
		if err != nil {
			return s.broken(err)
		}
		out = next
	}
	return s.broken(copyOutput(out, to))
}

// broken ends an answer that has begun by closing its connection, so that a client
// does not take what it has for all.
func (s *Server) broken(err error) error {
	if err != nil && err != errUnwanted {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// lastLines keeps the last lines of an output. The daemon bounds what it keeps of
// an output, and thereby what this holds.
type lastLines struct {
	lines          int
	stdout, stderr bool
	kept           []sandbox.Event // each a line, or the rest of one
}

// read reads all there is and returns the cursor after it.
func (l *lastLines) read(out sandbox.Output) (cursor int64, err error) {
	for {
		ev, err := out.Next()
		if err != nil {
			if err == io.EOF {
				return cursor, nil
			}
			return cursor, err
		}
		if len(ev.Data) == 0 {
			continue
		}
		cursor = ev.Cursor + int64(len(ev.Data))
		if ev.Stream == sandbox.Stderr && !l.stderr || ev.Stream == sandbox.Stdout && !l.stdout {
			continue
		}
		for line := range bytes.Lines(bytes.Clone(ev.Data)) {
			l.add(sandbox.Event{Stream: ev.Stream, Data: line})
		}
	}
}

func (l *lastLines) add(ev sandbox.Event) {
	// The rest of a line that came in pieces belongs to it.
	for i := len(l.kept) - 1; i >= 0; i-- {
		if k := &l.kept[i]; k.Stream == ev.Stream {
			if !bytes.HasSuffix(k.Data, []byte("\n")) {
				k.Data = append(k.Data[:len(k.Data):len(k.Data)], ev.Data...)
				return
			}
			break
		}
	}
	l.kept = append(l.kept, ev)
	if len(l.kept) > 2*l.lines+64 {
		l.kept = append(l.kept[:0], l.kept[len(l.kept)-l.lines:]...)
	}
}

func (l *lastLines) events() []sandbox.Event { return l.kept[max(0, len(l.kept)-l.lines):] }
