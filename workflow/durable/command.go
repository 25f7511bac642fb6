package durable

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// Command is a program that was started in a sandbox: a serialisable value, like a
// Handle.
type Command struct {
	SandboxID string `json:"sandbox_id"`
	ID        string `json:"id"`
}

// MaxOutput bounds the stored output of a command, in bytes for each stream: the newest
// bytes are kept. The log must not hold more; write more output to a file, and read the
// file outside of the workflow.
const MaxOutput = 1 << 20

// Start starts a command and returns at once. It is idempotent like Create.
func (h *Handle) Start(ctx workflow.Context, p sandbox.CommandParams) (*Command, error) {
	cmd, err := do(ctx, "start", func(ctx context.Context, c *sandbox.Client) (Command, error) {
		p := p // the attempt's copy
		p.IdempotencyKey = keyed(ctx)
		cmd, err := c.Start(ctx, h.ID, p)
		if err != nil {
			return Command{}, err
		}
		return Command{SandboxID: cmd.SandboxID, ID: cmd.ID}, nil
	})
	if err != nil {
		return nil, err
	}
	return &cmd, nil
}

// Run runs a command to its end and returns its output, at most the newest MiB of each
// stream. An exit status other than 0 is no error. When ctx is cancelled first, the
// command is killed.
func (h *Handle) Run(ctx workflow.Context, p sandbox.CommandParams) (*sandbox.Result, error) {
	cmd, err := h.Start(ctx, p)
	if err != nil {
		return nil, err
	}
	result, err := cmd.Wait(ctx)
	if err != nil && (errors.Is(err, workflow.ErrCancelled) || errors.Is(err, workflow.ErrTimeout)) {
		err = errors.Join(err, cmd.Signal(workflow.WithoutCancel(ctx), sigKill))
	}
	return result, err
}

const sigKill sandbox.Signal = 9

// Wait waits until the command has exited, and returns its output like Run.
func (cmd *Command) Wait(ctx workflow.Context) (*sandbox.Result, error) {
	r, err := do(ctx, "wait", func(ctx context.Context, c *sandbox.Client) (result, error) {
		return cmd.output(ctx, c, true)
	})
	return r.shape(err)
}

// Output returns the output that the command has written until now. Exit is the zero Exit
// while the command runs.
func (cmd *Command) Output(ctx workflow.Context) (*sandbox.Result, error) {
	r, err := do(ctx, "output", func(ctx context.Context, c *sandbox.Client) (result, error) {
		return cmd.output(ctx, c, false)
	})
	return r.shape(err)
}

// Signal signals the command's process group. Signalling a command that has exited is no
// error.
func (cmd *Command) Signal(ctx workflow.Context, sig sandbox.Signal) error {
	_, err := do(ctx, "signal", func(ctx context.Context, c *sandbox.Client) (none, error) {
		err := c.Signal(ctx, cmd.SandboxID, cmd.ID, sig)
		if is(err, cay.Conflict, cay.Stopped, cay.NotFound) {
			err = nil
		}
		return none{}, err
	})
	return err
}

// output reads the command's whole output, from the beginning.
func (cmd *Command) output(ctx context.Context, c *sandbox.Client, follow bool) (r result, err error) {
	out, err := c.Output(ctx, cmd.SandboxID, cmd.ID, sandbox.OutputParams{Follow: follow})
	if err != nil {
		return result{}, err
	}
	defer out.Close() // only reads precede it
	for {
		e, err := out.Next()
		if errors.Is(err, io.EOF) {
			r.Stdout, r.Stderr = newest(r.Stdout), newest(r.Stderr)
			return r, nil
		}
		if err != nil {
			return result{}, err
		}
		r.Truncated = r.Truncated || e.Truncated
		switch {
		case e.Exit != nil:
			r.Exit = *e.Exit
		case e.Stream == sandbox.Stderr:
			r.Stderr = r.keep(r.Stderr, e.Data)
		default:
			r.Stdout = r.keep(r.Stdout, e.Data)
		}
	}
}

// result is a sandbox.Result in the form of the log: output is text there.
type result struct {
	Stdout    text         `json:"stdout,omitempty"`
	Stderr    text         `json:"stderr,omitempty"`
	Truncated bool         `json:"truncated,omitempty"`
	Exit      sandbox.Exit `json:"exit"`
}

// keep appends to one stream, and cuts off all but the newest bytes.
func (r *result) keep(old text, data []byte) text {
	old = append(old, data...)
	if n := len(old) - MaxOutput; n > 0 {
		r.Truncated = true
		if n > MaxOutput { // not each time, so that the bytes are rarely moved
			old = append(old[:0], old[n:]...)
		}
	}
	return old
}

func newest(t text) text { return t[max(0, len(t)-MaxOutput):] }

func (r *result) shape(err error) (*sandbox.Result, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox.Result{Stdout: r.Stdout, Stderr: r.Stderr, Truncated: r.Truncated, Exit: r.Exit}, nil
}

// text is bytes that are mostly text.
type text []byte

// MarshalJSON writes a string, or {"base64": ...} if it is not UTF-8.
func (t text) MarshalJSON() ([]byte, error) {
	if utf8.Valid(t) {
		return json.Marshal(string(t))
	}
	return json.Marshal(map[string][]byte{"base64": t})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (t *text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var v struct {
			Base64 []byte `json:"base64"`
		}
		err := json.Unmarshal(b, &v)
		*t = v.Base64
		return err
	}
	var s string
	err := json.Unmarshal(b, &s)
	*t = text(s)
	return err
}
