package sandbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Start starts a command and returns at once. Errors: invalid,
// executable_not_found, sandbox_stopped, quota_exceeded (too many at once).
func (c *Client) Start(ctx context.Context, ref string, p CommandParams) (*Command, error) {
	pth, err := endpoint(ref, "commands")
	if err != nil {
		return nil, err
	}
	header, err := keyHeader(p.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return fetch[Command](ctx, c, wire.Request{Method: http.MethodPost, Path: pth, Header: header, JSON: p, Repeat: header != nil})
}

// keyHeader returns the header with an idempotency key, nil if key is empty.
func keyHeader(key string) (http.Header, error) {
	if key == "" {
		return nil, nil
	}
	return http.Header{wire.HeaderIdempotency: {key}}, checkKey(key)
}

// Exec is Start and Output in one round trip: the first event carries the
// command. Closing the Output early leaves the command running. When the
// connection breaks, the Output reconnects and resumes where it was, and tries
// that for 30 seconds, so that commands go on while the daemon restarts. When the
// sandbox is hibernated, the Output waits until something wakes the sandbox, and
// then resumes, too.
func (c *Client) Exec(ctx context.Context, ref string, p CommandParams) (Output, error) {
	pth, err := endpoint(ref, "commands")
	if err != nil {
		return nil, err
	}
	if p.IdempotencyKey == "" {
		// If the connection breaks, repeating the request finds the command that it
		// started.
		p.IdempotencyKey = rand.Text()
	}
	header, err := keyHeader(p.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	o := newOutput(ctx, c, ref, true)
	o.start = wire.Request{Method: http.MethodPost, Path: pth, Query: url.Values{"stream": {"true"}}, Header: header, JSON: p, Repeat: true}
	if err := o.open(o.start); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// GetCommand returns a command. If the command's session has ended, the daemon
// answers from the command's kept record, as for ListCommands, Wait and Output,
// and does not resume the sandbox. Errors: not_found, sandbox_stopped (nothing
// was kept).
func (c *Client) GetCommand(ctx context.Context, ref, id string) (*Command, error) {
	return one[Command](ctx, c, http.MethodGet, nil, ref, "commands", id)
}

// ListCommands lists running commands and the newest finished ones, newest first.
func (c *Client) ListCommands(ctx context.Context, ref string) ([]Command, error) {
	page, err := one[Page[Command]](ctx, c, http.MethodGet, nil, ref, "commands")
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

// Wait returns when the command has exited. Hibernation does not end a command:
// Wait goes on waiting, and the command continues when something wakes the
// sandbox. When the connection breaks, Wait tries for 30 seconds to wait again.
// Errors: not_found, sandbox_stopped.
func (c *Client) Wait(ctx context.Context, ref, id string) (*Command, error) {
	var out outage
	for reached := false; ; reached = true {
		began := time.Now()
		cmd, err := c.wait(ctx, ref, id)
		if cay.CodeOf(err) != cay.Unavailable || !reached && errors.Is(err, syscall.ECONNREFUSED) {
			return cmd, err
		}
		slept, werr := c.awake(ctx, ref)
		if slept && werr == nil || time.Since(began) > steady {
			out.over()
		}
		if slept && werr == nil {
			continue
		}
		if cay.CodeOf(werr) != cay.Unavailable && werr != nil {
			return nil, werr
		}
		if !out.again(err) {
			return nil, err
		}
		out.pause(ctx)
	}
}

func (c *Client) wait(ctx context.Context, ref, id string) (*Command, error) {
	// The daemon sends blank lines while the command runs, so that a failure
	// after the first line comes in the body.
	raw, err := one[json.RawMessage](ctx, c, http.MethodGet, nil, ref, "commands", id, "wait")
	if err != nil {
		return nil, err
	}
	var fail wire.ErrorBody
	if err := json.Unmarshal(*raw, &fail); err == nil && fail.Error != nil {
		return nil, fail.Error.Err()
	}
	cmd := new(Command)
	if err := json.Unmarshal(*raw, cmd); err != nil {
		return nil, cay.Errorf(cay.Internal, "the answer is not a command: %w", err)
	}
	return cmd, nil
}

// Signal signals the command's process group. Errors: invalid, conflict if the
// command has exited.
func (c *Client) Signal(ctx context.Context, ref, id string, sig Signal) error {
	return c.none(ctx, http.MethodPost, map[string]Signal{"signal": sig}, ref, "commands", id, "signal")
}

// Output reads the command's output, from any cursor, any number of times. When
// the connection breaks, the Output reconnects and resumes where it was; with
// p.Follow it does so after the sandbox was hibernated, too, as in Exec.
func (c *Client) Output(ctx context.Context, ref, id string, p OutputParams) (Output, error) {
	o := newOutput(ctx, c, ref, p.Follow)
	o.id, o.cursor, o.reached, o.times = id, p.Cursor, p.Cursor, p.Times
	if err := o.attach(); err != nil {
		o.Close()
		return nil, err
	}
	return o, nil
}

// WriteStdin copies r to the command's standard input or terminal, and closes it
// at the end of r if closeAfter (on a terminal: types end-of-file). Errors:
// conflict if stdin was not asked for, is closed, or the command has exited.
// After an error a Read of r may still be in progress; its data is lost.
func (c *Client) WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error {
	pth, err := endpoint(ref, "commands", id, "stdin")
	if err != nil {
		return err
	}
	q := url.Values{}
	setBool(q, "close", closeAfter)
	return c.call(ctx, wire.Request{Method: http.MethodPost, Path: pth, Query: q, Body: r, Length: known(r)}, nil)
}

// Resize changes the size of the command's terminal. Errors: invalid, conflict
// if the command has no terminal.
func (c *Client) Resize(ctx context.Context, ref, id string, size WindowSize) error {
	return c.none(ctx, http.MethodPost, size, ref, "commands", id, "resize")
}

// known returns the length of r's content, as in wire.Request.Length.
func known(r io.Reader) int64 {
	l, ok := r.(interface{ Len() int })
	if !ok {
		return 0
	}
	switch r.(type) {
	case *bytes.Buffer, *bytes.Reader:
	default:
		return 0
	}
	if n := l.Len(); n > 0 {
		return int64(n)
	}
	return -1
}
