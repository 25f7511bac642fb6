package docker

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// changing calls change with the container as it is now, while nobody else of this
// server changes it.
func (s *Server) changing(ctx context.Context, c *container, change func(v *live, c *container) error) error {
	v := s.lives.of(c.ID)
	v.change.Lock()
	defer v.change.Unlock()
	now, err := s.reread(ctx, c)
	if status, _ := shape(err); err != nil && status == http.StatusNotFound {
		s.lives.forget(c.ID) // it was removed before this began
	}
	if err != nil {
		return err
	}
	return change(v, now)
}

func (s *Server) handleStart(w http.ResponseWriter, r *http.Request, c *container) error {
	already := false
	err := s.changing(r.Context(), c, func(v *live, c *container) error {
		if already = c.running(); already {
			return nil
		}
		return s.start(r.Context(), v, c)
	})
	if err != nil {
		return err
	}
	if already {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return noContent(w)
}

// start starts the command of a container, whose change is locked.
func (s *Server) start(ctx context.Context, v *live, c *container) (err error) {
	if c.side != nil {
		return s.startSidecar(v, c)
	}
	open, err := s.openPorts(c)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			closeAll(open)
		}
	}()
	if r := c.Spec.Sidecar; r != nil {
		if side := s.sides.find(r.ID); side != nil {
			if err := s.handleEgress(side.side).await(ctx); err != nil {
				return err
			}
		}
	}
	p := sandbox.CommandParams{Argv: c.Spec.Argv, Stdin: c.Spec.OpenStdin, Main: true}
	if c.Spec.Tty {
		p.PTY = &sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	cmd, err := s.cfg.Sandboxes.Start(ctx, c.box.ID, p)
	if err != nil {
		return err
	}
	c.State = state{Command: cmd.ID, Started: cmd.StartedAt, Ports: map[string]int{}}
	for _, p := range open {
		c.State.Ports[p.port] = p.host
	}
	if err := s.save(context.WithoutCancel(ctx), c); err != nil {
		// Without a record nobody would know of the command.
		kill := s.cfg.Sandboxes.Signal(context.WithoutCancel(ctx), c.box.ID, cmd.ID, sandbox.Signal(unix.SIGKILL))
		return errors.Join(err, kill)
	}
	v.set(func() {
		v.starts++
		v.ports = open
	})
	s.watch(v, c)
	s.feed.tell("start", c)
	return nil
}

// watch waits for the end of a container's command in the background, unless
// somebody does.
func (s *Server) watch(v *live, c *container) {
	v.mu.Lock()
	again := v.watched == c.State.Command
	v.watched = c.State.Command
	v.mu.Unlock()
	if again {
		return
	}
	s.tasks.Go(func() { s.await(v, c) })
}

// endTime bounds the end of a container, from the exit of its command on.
const endTime = time.Minute

// await records how the command of a container ends.
func (s *Server) await(v *live, c *container) {
	code := killed
	cmd, err := s.cfg.Sandboxes.Wait(s.ctx, c.box.ID, c.State.Command)
	switch {
	case s.ctx.Err() != nil:
		return // the next server goes on
	case err == nil && cmd.Exit != nil:
		code = cmd.Exit.Code
	case cay.CodeOf(err) == cay.Unavailable || cay.CodeOf(err) == cay.Internal:
		s.cfg.Logger.WarnContext(s.ctx, "wait for a container", "container", c.ID, "error", err)
		v.unwatch()
		return
	}
	// A server that is closed meanwhile records the end, and ends the sandbox.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), endTime)
	defer cancel()
	err = s.changing(ctx, c, func(v *live, now *container) error {
		if now.State.Command != c.State.Command || now.State.Exited {
			return nil
		}
		v.closePorts()
		now.State.Exited, now.State.Code, now.State.Finished = true, code, time.Now().UTC()
		now.State.Ports = nil
		if err := s.save(ctx, now); err != nil {
			return err
		}
		v.set(func() {
			v.exits++
			v.code = code
		})
		s.feed.tell("die", now)
		v.drained(s.ctx)
		if now.Spec.AutoRemove {
			return s.remove(ctx, v, now)
		}
		// Stopping the sandbox ends the container's other processes; files and output are kept.
		_, err := s.cfg.Sandboxes.Stop(ctx, now.box.ID)
		return err
	})
	if status, _ := shape(err); err != nil && status != http.StatusNotFound {
		s.cfg.Logger.WarnContext(s.ctx, "end a container", "container", c.ID, "error", err)
		v.unwatch()
	}
}

// signalOf reads a signal: a number, or a name with or without SIG.
func signalOf(name string) (sandbox.Signal, error) {
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= 64 {
		return sandbox.Signal(n), nil
	}
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if n := unix.SignalNum(full); n != 0 {
		return sandbox.Signal(n), nil
	}
	return 0, failf(http.StatusBadRequest, "Invalid signal: %.100s", name)
}

func (s *Server) handleKill(w http.ResponseWriter, r *http.Request, c *container) error {
	sig := sandbox.Signal(unix.SIGKILL)
	if name := r.URL.Query().Get("signal"); name != "" {
		var err error
		if sig, err = signalOf(name); err != nil {
			return err
		}
	}
	if !c.running() {
		return failf(http.StatusConflict, "container %s is not running", c.ID)
	}
	if c.side != nil {
		if err := s.stopSidecar(r.Context(), c); err != nil {
			return err
		}
		return noContent(w)
	}
	if err := s.cfg.Sandboxes.Signal(r.Context(), c.box.ID, c.State.Command, sig); err != nil {
		return err
	}
	s.feed.tell("kill", c)
	return noContent(w)
}

func (s *Server) handleStop(w http.ResponseWriter, r *http.Request, c *container) error {
	if !c.running() {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if err := s.stop(r, c); err != nil {
		return err
	}
	return noContent(w)
}

// stop asks the command of a container to end, and kills it if it has not after
// the time that the request or the container says, 10 s if neither does.
func (s *Server) stop(r *http.Request, c *container) error {
	if c.side != nil {
		return s.stopSidecar(r.Context(), c)
	}
	after := 10
	if c.Spec.StopAfter != nil {
		after = *c.Spec.StopAfter
	}
	if t := r.URL.Query().Get("t"); t != "" {
		var err error
		if after, err = strconv.Atoi(t); err != nil {
			return failf(http.StatusBadRequest, "invalid t %q: it is a number of seconds", t)
		}
	}
	name := r.URL.Query().Get("signal")
	if name == "" {
		name = c.Spec.StopSignal
	}
	if name == "" {
		name = "SIGTERM"
	}
	sig, err := signalOf(name)
	if err != nil {
		return err
	}
	v := s.lives.of(c.ID)
	s.watch(v, c)
	before := v.now().exits
	ended := func(m moment) bool { return m.exits != before || m.removed }
	if err := s.signal(r.Context(), c, sig); err != nil {
		return err
	}
	ctx := r.Context()
	if after >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(after)*time.Second)
		defer cancel()
	}
	if _, err := v.until(ctx, ended); err == nil || r.Context().Err() != nil {
		return context.Cause(r.Context())
	}
	if err := s.signal(r.Context(), c, sandbox.Signal(unix.SIGKILL)); err != nil {
		return err
	}
	_, err = v.until(r.Context(), ended)
	return err
}

// signal sends a signal to the command of a container. A command that has exited is
// no error.
func (s *Server) signal(ctx context.Context, c *container, sig sandbox.Signal) error {
	err := s.cfg.Sandboxes.Signal(ctx, c.box.ID, c.State.Command, sig)
	if code := cay.CodeOf(err); code == cay.Conflict || code == cay.Stopped {
		return nil
	}
	return err
}

func (s *Server) handleRestart(w http.ResponseWriter, r *http.Request, c *container) error {
	if c.running() {
		if err := s.stop(r, c); err != nil {
			return err
		}
	}
	err := s.changing(r.Context(), c, func(v *live, c *container) error {
		if c.running() { // another client was faster
			return nil
		}
		return s.start(r.Context(), v, c)
	})
	if err != nil {
		return err
	}
	s.feed.tell("restart", c)
	return noContent(w)
}

func (s *Server) handleRename(w http.ResponseWriter, r *http.Request, c *container) error {
	name := strings.TrimPrefix(r.URL.Query().Get("name"), "/")
	if !validName.MatchString(name) {
		return failf(http.StatusBadRequest, "Invalid container name (%.300s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed, 255 at most", name)
	}
	unlock := s.names.lock(name)
	defer unlock()
	if other, err := s.find(r.Context(), name); err == nil && other.Name == name {
		return failf(http.StatusConflict, "Conflict. The container name %q is already in use by container %q.", "/"+name, other.ID)
	} else if status, _ := shape(err); err != nil && status != http.StatusNotFound {
		return err
	}
	err := s.changing(r.Context(), c, func(_ *live, c *container) error {
		c.Name = name
		if err := s.save(r.Context(), c); err != nil {
			return err
		}
		s.feed.tell("rename", c)
		return nil
	})
	if err != nil {
		return err
	}
	return noContent(w)
}

func (s *Server) handleRemove(w http.ResponseWriter, r *http.Request, c *container) error {
	if flag(r, "link") {
		return failf(http.StatusBadRequest, "containers have no links")
	}
	force := flag(r, "force")
	if c.running() && !force {
		return failf(http.StatusConflict, "cannot remove container %q: container is running: stop the container before removing or force remove", "/"+c.Name)
	}
	if force && c.side == nil {
		// What holds the container is its end, perhaps: that waits for who reads output.
		s.lives.of(c.ID).closePorts()
	}
	if err := s.changing(r.Context(), c, func(v *live, c *container) error { return s.remove(r.Context(), v, c) }); err != nil {
		return err
	}
	return noContent(w)
}

// remove deletes a container, whose change is locked, and all that is of it.
func (s *Server) remove(ctx context.Context, v *live, c *container) error {
	v.closePorts()
	if c.side != nil {
		s.sides.remove(c)
	} else {
		err := s.cfg.Sandboxes.Delete(ctx, c.box.ID)
		if err != nil && cay.CodeOf(err) != cay.NotFound {
			return err
		}
	}
	v.set(func() {
		if c.running() {
			v.exits++
			v.code = killed
		}
		v.removed = true
	})
	s.lives.forget(c.ID)
	s.execs.forget(c.ID)
	s.feed.tell("destroy", c)
	return nil
}

// handleWait answers when what the client waits for has come.
func (s *Server) handleWait(w http.ResponseWriter, r *http.Request, c *container) error {
	condition := r.URL.Query().Get("condition")
	v := s.lives.of(c.ID)
	was := v.now()
	now, err := s.reread(r.Context(), c) // an exit or a removal after was is seen
	if status, _ := shape(err); err != nil && status == http.StatusNotFound {
		s.lives.forget(c.ID)
	}
	if err != nil {
		return err
	}
	c = now
	var done func(moment) bool
	switch condition {
	case "", "not-running":
		idle := !c.running()
		done = func(m moment) bool { return idle || m.exits != was.exits || m.removed }
	case "next-exit":
		done = func(m moment) bool { return m.exits != was.exits || m.removed }
	case "removed":
		done = func(m moment) bool { return m.removed }
	default:
		return failf(http.StatusBadRequest, "invalid condition %q: it is not-running, next-exit or removed", condition)
	}
	// Clients start the container once they have the header.
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(w).Flush(); err != nil {
		return nil // the client left
	}
	m, err := v.until(r.Context(), done)
	if err != nil {
		return nil // the client left, or the server ends
	}
	code := m.code
	if m.exits == was.exits {
		code = c.exitCode()
	}
	return writeJSON(discardHeader{w}, http.StatusOK, map[string]any{"StatusCode": code})
}

// discardHeader is a ResponseWriter whose header is sent already.
type discardHeader struct{ http.ResponseWriter }

func (discardHeader) WriteHeader(int) {}
