package vercelsandbox

import (
	"context"
	"net/http"
	"slices"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/sandbox"
)

// command is the JSON form of a command.
type command struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"` // the program as given
	Args       []string `json:"args"`
	Cwd        string   `json:"cwd"`
	SessionID  string   `json:"sessionId,omitempty"`
	SandboxID  string   `json:"sandboxId,omitempty"`
	ExitCode   *int     `json:"exitCode"` // null while it runs
	StartedAt  int64    `json:"startedAt"`
	DurationMs *int64   `json:"durationMs,omitempty"`
}

type commandAnswer struct {
	Command command `json:"command"`
}

// startRequest is the body of a request to start a command.
type startRequest struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Sudo    bool              `json:"sudo"`
	Timeout *sandbox.Duration `json:"timeout"`
	Wait    bool              `json:"wait"`
	Logs    bool              `json:"logs"` // send the logs, with Wait
}

// utilities are programs of the hosted service's system that most systems have
// only in their shell. The older command line looks for its helper with "command
// -v", and takes an error for success.
var utilities = []string{
	"alias", "bg", "cd", "command", "fc", "fg", "getopts", "hash", "jobs", "read", "type", "ulimit", "umask", "unalias", "wait",
}

// inShell is the script with which a shell runs a utility: $0 is the utility.
const inShell = `"$0" "$@"`

func (in startRequest) params() (sandbox.CommandParams, error) {
	if in.Command == "" {
		return sandbox.CommandParams{}, cay.Errorf(cay.Invalid, "command is empty").WithHint("name a program; its arguments are args")
	}
	argv := append([]string{in.Command}, in.Args...)
	if slices.Contains(utilities, in.Command) {
		argv = append([]string{"sh", "-c", inShell}, argv...)
	}
	p := sandbox.CommandParams{Argv: argv, Env: in.Env, WorkDir: in.Cwd, Sudo: in.Sudo}
	if in.Timeout != nil {
		if *in.Timeout == 0 {
			return p, cay.Errorf(cay.Invalid, "timeout 0 is less than 100 ms").WithHint("leave it out for none")
		}
		p.Timeout, p.TimeoutSignal = *in.Timeout, sandbox.Signal(syscall.SIGKILL)
	}
	return p, nil
}

// handleStart starts a command. With wait it answers with lines: the command, its
// output if requested, and the command when it has ended.
func (h *handler) handleStart(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	var in startRequest
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	p, err := in.params()
	if err != nil {
		return err
	}
	q := r.URL.Query() // one client sends the options there
	if in.Wait || q.Get("wait") == "true" {
		out, err := h.Sandboxes.Exec(r.Context(), o.ref, p)
		if err != nil {
			return err
		}
		// Clients of the first version take the second line for the last.
		logs := !o.v1 && (in.Logs || q.Get("logs") == "true")
		return serveOutput(w, r, out, &lines{command: o.command, output: logs})
	}
	c, err := h.Sandboxes.Start(r.Context(), o.ref, p)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, commandAnswer{o.command(c)})
}

func (h *handler) handleListCommands(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	all, err := h.Sandboxes.ListCommands(r.Context(), o.ref)
	if err != nil {
		return err
	}
	out := struct {
		Commands []command `json:"commands"`
	}{[]command{}}
	for i := range all {
		out.Commands = append(out.Commands, o.command(&all[i]))
	}
	return writeJSON(w, http.StatusOK, out)
}

func (h *handler) handleGetCommand(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	get := h.Sandboxes.GetCommand
	if r.URL.Query().Get("wait") == "true" {
		get = h.Sandboxes.Wait
		var end func()
		r, end = api.UntilStopping(r) // clients repeat the request
		defer end()
	}
	return h.padded(w, r, func(ctx context.Context) (int, any, error) {
		c, err := get(ctx, o.ref, r.PathValue("cmd"))
		if err != nil {
			return 0, nil, err
		}
		return http.StatusOK, commandAnswer{o.command(c)}, nil
	})
}

// handleLogs answers with a command's output, from its beginning to its end.
func (h *handler) handleLogs(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	out, err := h.Sandboxes.Output(r.Context(), o.ref, r.PathValue("cmd"), sandbox.OutputParams{Follow: true})
	if err != nil {
		return err
	}
	return serveOutput(w, r, out, &lines{output: true})
}

// handleKill signals a command's process group. A command that has exited, by
// itself or with its session, is returned unchanged.
func (h *handler) handleKill(w http.ResponseWriter, r *http.Request) error {
	o, err := ownerOf(r)
	if err != nil {
		return err
	}
	var in struct {
		Signal sandbox.Signal `json:"signal"`
	}
	if err := readJSON(w, r, &in); err != nil {
		return err
	}
	ctx, id := r.Context(), r.PathValue("cmd")
	signalled := h.Sandboxes.Signal(ctx, o.ref, id, in.Signal)
	switch cay.CodeOf(signalled) {
	case "", cay.Conflict, cay.Stopped:
	default:
		return signalled
	}
	c, err := h.Sandboxes.GetCommand(ctx, o.ref, id)
	if err != nil {
		return err
	}
	if signalled != nil && c.Exit == nil {
		return signalled
	}
	return writeJSON(w, http.StatusOK, commandAnswer{o.command(c)})
}
