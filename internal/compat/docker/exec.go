package docker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// maxExecs is how many exec instances are remembered; the oldest that do not run
// are forgotten.
const maxExecs = 2048

// execBody is the body of an exec create.
type execBody struct {
	AttachStdin, AttachStdout, AttachStderr bool
	Tty, Privileged                         bool
	Cmd                                     words
	Env                                     []string
	WorkingDir, User                        string
	ConsoleSize                             []uint16 // rows, columns
}

// execution is an exec instance: a command beside the one of its container.
type execution struct {
	id        string
	container string
	box       string
	body      execBody
	params    sandbox.CommandParams

	mu      sync.Mutex // guards what follows
	started bool
	command string // by id, once it has started
	pid     int
	exit    *int
}

// execs are the exec instances of a server. They end with it; commands go on.
type execs struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*execution
	ids  []string // oldest first
}

// add remembers an exec instance. Errors: 429 if too many run.
func (x *execs) add(e *execution) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.ids) >= maxExecs {
		i := slices.IndexFunc(x.ids, func(id string) bool { return !x.byID[id].runs() })
		if i < 0 {
			return failf(http.StatusTooManyRequests, "%d exec instances run; wait for one to end", maxExecs)
		}
		delete(x.byID, x.ids[i])
		x.ids = slices.Delete(x.ids, i, i+1)
	}
	if x.byID == nil {
		x.byID = map[string]*execution{}
	}
	x.byID[e.id] = e
	x.ids = append(x.ids, e.id)
	return nil
}

func (x *execs) find(id string) (*execution, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if e := x.byID[id]; e != nil {
		return e, nil
	}
	return nil, failf(http.StatusNotFound, "No such exec instance: %.100s", id)
}

// forget drops the exec instances of a container that is gone.
func (x *execs) forget(container string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids = slices.DeleteFunc(x.ids, func(id string) bool {
		gone := x.byID[id].container == container
		if gone {
			delete(x.byID, id)
		}
		return gone
	})
}

// of returns the ids of the exec instances of a container.
func (x *execs) of(container string) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	ids := []string{}
	for _, id := range x.ids {
		if e := x.byID[id]; e.container == container && e.runs() {
			ids = append(ids, id)
		}
	}
	return ids
}

func (e *execution) runs() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started && e.exit == nil
}

func (s *Server) handleExecCreate(w http.ResponseWriter, r *http.Request, c *container) error {
	var body execBody
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	switch {
	case body.Privileged:
		return failf(http.StatusBadRequest, "cay refuses Privileged: %s", rules["Privileged"].why)
	case len(body.Cmd) == 0:
		return failf(http.StatusBadRequest, "No exec command specified")
	case !c.running():
		return failf(http.StatusConflict, "container %s is not running", c.ID)
	}
	env, _, err := environment(body.Env)
	if err != nil {
		return err
	}
	e := &execution{
		id: newID(), container: c.ID, box: c.box.ID, body: body,
		params: sandbox.CommandParams{Argv: body.Cmd, Env: env, WorkDir: body.WorkingDir, User: body.User, Stdin: body.AttachStdin},
	}
	if err := e.params.Validate(); err != nil {
		return err
	}
	if err := s.execs.add(e); err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, map[string]string{"Id": e.id})
}

func (s *Server) handleExecStart(w http.ResponseWriter, r *http.Request) error {
	e, err := s.execs.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	var body struct {
		Detach, Tty bool
		ConsoleSize []uint16
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	e.mu.Lock()
	again := e.started
	e.started = true
	e.mu.Unlock()
	if again {
		return failf(http.StatusConflict, "exec %s has been started before", e.id)
	}
	tty := e.body.Tty
	if tty {
		e.params.PTY = terminal(body.ConsoleSize, e.body.ConsoleSize)
	}
	if body.Detach {
		cmd, err := s.cfg.Sandboxes.Start(r.Context(), e.box, e.params)
		if err != nil {
			e.failed(err)
			return err
		}
		e.begun(cmd)
		w.WriteHeader(http.StatusOK)
		return nil
	}
	ctx, h, err := s.hijack(w, r, tty)
	if err != nil {
		e.failed(err)
		return nil // the client left
	}
	defer h.Close()
	all := !e.body.AttachStdout && !e.body.AttachStderr
	s.attachExec(ctx, h, e, &sink{w: h, raw: tty, stdout: all || e.body.AttachStdout, stderr: all || e.body.AttachStderr})
	return nil
}

// attachExec starts a command, whose output the client reads. An error of the start
// is told in the stream, which has begun, as Docker does it.
func (s *Server) attachExec(ctx context.Context, h *hijacked, e *execution, to *sink) {
	out, err := s.cfg.Sandboxes.Exec(s.ctx, e.box, e.params)
	var begin sandbox.Event
	if err == nil {
		defer out.Close()
		begin, err = out.Next()
	}
	if err == nil && begin.Command == nil {
		err = fmt.Errorf("the first event of an exec is no command")
	}
	if err != nil {
		e.failed(err)
		_, message := shape(err)
		to.stdout, to.stderr = true, true
		_ = to.put(sandbox.Stderr, []byte(message+"\r\n")) // the client may have left
		return
	}
	e.begun(begin.Command)
	stop := context.AfterFunc(ctx, func() { out.Close() })
	defer stop()
	if e.body.AttachStdin {
		s.feedStdin(ctx, h, e.box, begin.Command.ID, true)
	}
	s.streamExec(out, e, to)
}

// streamExec passes on the output of an exec, and keeps its exit code.
func (s *Server) streamExec(out sandbox.Output, e *execution, to *sink) {
	for {
		ev, err := out.Next()
		switch {
		case err == io.EOF:
			return
		case err != nil:
			s.cfg.Logger.DebugContext(s.ctx, "output of an exec", "exec", e.id, "error", err)
			return
		case ev.Exit != nil:
			e.ended(ev.Exit.Code)
		}
		if to.put(ev.Stream, ev.Data) != nil {
			return // the client left; the command goes on
		}
	}
}

// terminal is the size that the first list gives which has one: rows, columns.
func terminal(sizes ...[]uint16) *sandbox.WindowSize {
	for _, size := range sizes {
		if len(size) == 2 && size[0] > 0 && size[1] > 0 {
			return &sandbox.WindowSize{Rows: size[0], Cols: size[1]}
		}
	}
	return &sandbox.WindowSize{Cols: 80, Rows: 24}
}

func (e *execution) begun(cmd *sandbox.Command) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.command, e.pid = cmd.ID, cmd.PID
}

func (e *execution) ended(code int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.exit = &code
}

// failed records that a command did not start, by the codes of shells.
func (e *execution) failed(err error) {
	if cay.CodeOf(err) == cay.ExecutableMissing {
		e.ended(127)
		return
	}
	e.ended(126)
}

func (s *Server) handleExecResize(w http.ResponseWriter, r *http.Request) error {
	e, err := s.execs.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	size, err := windowSize(r)
	if err != nil {
		return err
	}
	e.mu.Lock()
	command := e.command
	e.mu.Unlock()
	if command == "" || !e.runs() {
		return failf(http.StatusConflict, "exec %s does not run", e.id)
	}
	if err := s.cfg.Sandboxes.Resize(r.Context(), e.box, command, size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) handleExecInspect(w http.ResponseWriter, r *http.Request) error {
	e, err := s.execs.find(r.PathValue("id"))
	if err != nil {
		return err
	}
	e.mu.Lock()
	command, exited := e.command, e.exit != nil
	e.mu.Unlock()
	if command != "" && !exited {
		// A detached one, or one whose client left: the daemon knows.
		switch cmd, err := s.cfg.Sandboxes.GetCommand(r.Context(), e.box, command); {
		case err == nil && cmd.Exit != nil:
			e.ended(cmd.Exit.Code)
		case cay.CodeOf(err) == cay.NotFound || cay.CodeOf(err) == cay.Stopped:
			e.ended(killed)
		case err != nil:
			return err
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return writeJSON(w, http.StatusOK, map[string]any{
		"ID": e.id, "ContainerID": e.container, "Running": e.started && e.exit == nil, "ExitCode": e.exit, "Pid": e.pid,
		"OpenStdin": e.body.AttachStdin, "OpenStdout": e.body.AttachStdout, "OpenStderr": e.body.AttachStderr,
		"CanRemove": false, "DetachKeys": "",
		"ProcessConfig": map[string]any{
			"tty": e.body.Tty, "entrypoint": e.body.Cmd[0], "arguments": e.body.Cmd[1:], "privileged": false, "user": e.body.User,
		},
	})
}
