package cloudflare

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/cmdoutput"
	"github.com/cayhq/cay/sandbox"
)

// leavePatience is how long a command may take to end after a signal that says that its
// client has left, before it is killed.
const leavePatience = 5 * time.Second

// execRequest is the body of an exec.
type execRequest struct {
	Argv      []string `json:"argv"`
	TimeoutMs *float64 `json:"timeout_ms"`
	Cwd       *string  `json:"cwd"`
}

// execution is a command that a client asked for.
type execution struct {
	argv    []string
	cwd     string // absolute; "": the session's, or the workspace
	session string // "": none
	timeout time.Duration
}

// readExecution reads a request. Errors: invalid.
func readExecution(w http.ResponseWriter, r *http.Request) (execution, error) {
	var in execRequest
	if err := api.ReadOpenJSON(w, r, &in); err != nil {
		return execution{}, badJSON(err)
	}
	if len(in.Argv) == 0 {
		return execution{}, cay.Errorf(cay.Invalid, "argv must be a non-empty array").
			WithHint(`for a shell send ["/bin/sh", "-lc", "..."]`)
	}
	x := execution{argv: in.Argv}
	var err error
	if x.session, err = headerSession(r); err != nil {
		return x, err
	}
	if in.Cwd != nil {
		var ok bool
		if x.cwd, ok = inWorkspace(*in.Cwd); !ok {
			return x, outside("cwd", *in.Cwd)
		}
	}
	x.timeout, err = milliseconds("timeout_ms", in.TimeoutMs, 100*time.Millisecond)
	return x, err
}

// badJSON adds to an error of reading a body that the body is the reason.
func badJSON(err error) error {
	if cay.CodeOf(err) != cay.Invalid {
		return err
	}
	return cay.Errorf(cay.Invalid, "Invalid JSON body: %w", err)
}

// params is the command for the service.
func (x execution) params() sandbox.CommandParams {
	p := sandbox.CommandParams{Argv: x.argv, WorkDir: x.cwd, Timeout: sandbox.Duration(x.timeout)}
	if x.session != "" {
		p.Argv, p.WorkDir = sessionArgv(x.session, x.cwd, x.argv), "/"
	}
	return p
}

// handleExec runs a command and streams its output. The command ends with the connection.
func (h *handler) handleExec(w http.ResponseWriter, r *http.Request) error {
	x, err := readExecution(w, r)
	if err != nil {
		return err
	}
	ctx := r.Context()
	sb, err := h.ensure(ctx, r.PathValue("id"))
	if err != nil {
		return err
	}
	if x.session != "" {
		unlock, err := h.sessions.lock(ctx, sb.ID+"/"+x.session)
		if err != nil {
			return err
		}
		defer unlock()
	}
	// Cancelling a start would leave it open whether the command runs.
	out, err := h.start(context.WithoutCancel(ctx), sb.ID, x)
	if err != nil {
		return err
	}
	first, err := out.Next()
	if err != nil {
		_ = out.Close() // it has failed already
		return shaped(http.StatusBadGateway, codeExecTransport, err)
	}
	enc := &events{timeout: x.timeout}
	err = api.ServeEvents(w, r, cmdoutput.Own(out), enc)
	if !enc.exited && first.Command != nil {
		h.end(ctx, sb.ID, first.Command.ID, syscall.SIGTERM)
	}
	return err
}

// start starts a command, whose first event is the command. A program or a directory that
// is missing is no error to clients of the bridge, but the exit code of a shell.
func (h *handler) start(ctx context.Context, ref string, x execution) (sandbox.Output, error) {
	p := x.params()
	out, err := h.Sandboxes.Exec(ctx, ref, p)
	switch cay.CodeOf(err) {
	case cay.ExecutableMissing:
		if x.session == "" && !strings.Contains(x.argv[0], "/") {
			// cd, type and others are programs of a shell alone; it says what it does not have.
			p.Argv = append([]string{"/bin/sh", "-c", `"$@"`, "sh"}, x.argv...)
			if out, err = h.Sandboxes.Exec(ctx, ref, p); cay.CodeOf(err) != cay.ExecutableMissing {
				return out, err
			}
		}
		return exits(127, err), nil
	case cay.Invalid:
		if p.WorkDir != "" && !h.isDir(ctx, ref, p.WorkDir) {
			return exits(1, err), nil
		}
	}
	return out, err
}

func (h *handler) isDir(ctx context.Context, ref, path string) bool {
	info, err := h.Sandboxes.Stat(ctx, ref, path, true)
	return err == nil && info.Type == sandbox.TypeDir
}

// end ends a command that has lost its client: a signal to its process group, and SIGKILL
// if that does not help. Signals that cannot be sent mean that the command has exited,
// or its sandbox has.
func (h *handler) end(ctx context.Context, ref, id string, signals ...syscall.Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*leavePatience)
	defer cancel()
	for _, sig := range signals {
		if h.Sandboxes.Signal(ctx, ref, id, sandbox.Signal(sig)) != nil {
			return
		}
	}
	h.Logger.InfoContext(ctx, "command is ended because its client left", "sandbox", ref, "command", id)
	wait, stop := context.WithTimeout(ctx, leavePatience)
	defer stop()
	if _, err := h.Sandboxes.Wait(wait, ref, id); err != nil {
		_ = h.Sandboxes.Signal(ctx, ref, id, sandbox.Signal(syscall.SIGKILL))
	}
}

// ended is the Output of a command that did not start.
type ended struct{ events []sandbox.Event }

// exits returns an Output that shows an error and then an exit code.
func exits(code int, err error) sandbox.Output {
	return &ended{[]sandbox.Event{
		{}, // in the place of the command
		{Stream: sandbox.Stderr, Data: []byte(err.Error() + "\n")},
		{Exit: &sandbox.Exit{Code: code}},
	}}
}

func (e *ended) Next() (sandbox.Event, error) {
	if len(e.events) == 0 {
		return sandbox.Event{}, io.EOF
	}
	next := e.events[0]
	e.events = e.events[1:]
	return next, nil
}

func (e *ended) Close() error { return nil }

// events writes the output of a command as server-sent events. It is an api.Encoder.
type events struct {
	timeout time.Duration // of the command

	stdout, stderr cmdoutput.Splitter
	cursor         int64 // of the next byte of output
	exited         bool
}

var _ api.Encoder[sandbox.Event] = (*events)(nil)

// Append implements api.Encoder.
func (v *events) Append(dst []byte, e sandbox.Event) ([]byte, error) {
	if e.Exit != nil {
		v.exited = true
		dst = v.Release(dst)
		if e.Exit.TimedOut {
			dst = appendData(dst, sandbox.Stderr, fmt.Appendf(nil, "Command timed out after %dms\n", v.timeout.Milliseconds()))
		}
		return fmt.Appendf(dst, "event: exit\ndata: {\"exit_code\":%d}\n\n", e.Exit.Code), nil
	}
	if e.Truncated {
		// The protocol has no event for lost output.
		dst = appendData(v.Release(dst), sandbox.Stderr, fmt.Appendf(nil, "[cay: %d bytes of output are no longer kept]\n", e.Cursor-v.cursor))
		v.cursor = e.Cursor
	}
	if len(e.Data) == 0 {
		return dst, nil
	}
	v.cursor = e.Cursor + int64(len(e.Data))
	part := &v.stdout
	if e.Stream == sandbox.Stderr {
		part = &v.stderr
	}
	return appendData(dst, e.Stream, part.Whole(e.Data)), nil
}

// Held implements api.Encoder. The rest of a character may take any time to come.
func (v *events) Held() bool { return false }

// Release implements api.Encoder.
func (v *events) Release(dst []byte) []byte {
	dst = appendData(dst, sandbox.Stdout, v.stdout.Rest())
	return appendData(dst, sandbox.Stderr, v.stderr.Rest())
}

// AppendError implements api.Encoder.
func (v *events) AppendError(dst []byte, e *cay.Error) []byte {
	_, body := shapeOf(e, e)
	body.Code = codeExecTransport
	if e.Code == cay.Invalid {
		body.Code = codeExec
	}
	b, _ := json.Marshal(body) // two strings can be encoded
	return fmt.Appendf(dst, "event: error\ndata: %s\n\n", b)
}

// appendData appends an event with output, unless there is none.
func appendData(dst []byte, stream sandbox.Stream, data []byte) []byte {
	if len(data) == 0 {
		return dst
	}
	dst = fmt.Appendf(dst, "event: %s\ndata: ", stream)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, "\n\n"...)
}
