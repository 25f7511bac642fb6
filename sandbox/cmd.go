package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Cmd is a command being prepared or run, in the manner of os/exec. It is made
// by Handle.Command and can be run once.
type Cmd struct {
	// Params may be changed before Start. Stdin is set by Start if Cmd.Stdin is.
	Params CommandParams
	// Stdin is the command's standard input. Nil means none.
	Stdin io.Reader
	// Stdout and Stderr receive the command's output; nil discards it. If a
	// write fails, the command ends as from a closed pipe. With a terminal
	// everything goes to Stdout. Both are written from one goroutine.
	Stdout, Stderr io.Writer
	// Command is set by Start, and Exit by Wait.
	Command *Command
	Exit    *Exit

	h         *Handle
	ctx       context.Context // of the command, as with exec.CommandContext
	wg        sync.WaitGroup
	stop      context.CancelFunc // ends the copying of Stdin
	stdinErr  error
	outputErr error
	truncated bool // some output was gone before it could be read
}

// ExitError reports that a command ended with a status other than 0.
type ExitError struct {
	Exit Exit
	// Stderr is the end of the command's standard error, if Output ran the
	// command.
	Stderr []byte
}

func (e *ExitError) Error() string {
	switch {
	case e.Exit.TimedOut:
		return "the command ran into its timeout"
	case e.Exit.Signal != 0:
		return fmt.Sprintf("the command was killed by signal %d", e.Exit.Signal)
	}
	return fmt.Sprintf("the command exited with status %d", e.Exit.Code)
}

// Command prepares a command. When ctx ends before the command does, it is
// killed.
func (h *Handle) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Params: CommandParams{Argv: append([]string{name}, args...)}, h: h, ctx: ctx}
}

// Run starts the command and waits for its end. Errors: as Start and Wait.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the command and returns its standard output, at most the newest 16
// MiB. If Stderr is nil, an *ExitError has the end of the command's standard
// error.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, cay.Errorf(cay.Invalid, "Output collects standard output, but Stdout is set")
	}
	stdout := &tail{limit: maxCapture}
	c.Stdout = stdout
	var stderr *tail
	if c.Stderr == nil {
		stderr = &tail{limit: 64 << 10}
		c.Stderr = stderr
	}
	err := c.Run()
	var exit *ExitError
	if stderr != nil && errors.As(err, &exit) {
		exit.Stderr = bytes.Clone(stderr.bytes())
	}
	return stdout.bytes(), err
}

// Start starts the command. Errors: invalid, executable_not_found,
// sandbox_stopped, quota_exceeded. Wait must be called after Start has
// succeeded.
func (c *Cmd) Start() error {
	if c.Command != nil {
		return cay.Errorf(cay.Conflict, "the command was started before")
	}
	if c.Stdin != nil {
		c.Params.Stdin = true
	}
	out, err := c.h.c.Exec(c.ctx, c.h.ref, c.Params)
	if err != nil {
		return err
	}
	first, err := out.Next()
	if err == nil && first.Command == nil {
		err = cay.Errorf(cay.Internal, "the daemon did not say which command it started")
	}
	if err != nil {
		out.Close() // of no use without its command
		return err
	}
	c.Command = first.Command
	ctx, stop := context.WithCancel(c.ctx)
	c.stop = stop
	if c.Stdin != nil {
		c.wg.Go(func() {
			c.stdinErr = c.h.c.WriteStdin(ctx, c.h.ref, c.Command.ID, c.Stdin, true)
		})
	}
	c.wg.Go(func() {
		c.outputErr = c.copyOutput(out)
		stop() // the rest of Stdin is not read
	})
	return nil
}

// copyOutput passes events on until the command's exit.
func (c *Cmd) copyOutput(out Output) error {
	defer out.Close() // at its end, or given up
	for {
		e, err := out.Next()
		if err != nil {
			if c.ctx.Err() != nil {
				c.abandon(9)
			}
			return err
		}
		switch {
		case e.Exit != nil:
			c.Exit = e.Exit
			return nil
		case e.Truncated:
			c.truncated = true
		case len(e.Data) > 0:
			w := c.Stdout
			if e.Stream == Stderr {
				w = c.Stderr
			}
			if w == nil {
				continue
			}
			if _, err := w.Write(e.Data); err != nil {
				c.abandon(13)
				return err
			}
		}
	}
}

// abandon signals the command although ctx may have ended: signal 9 kills, 13 is
// the signal of a closed pipe.
func (c *Cmd) abandon(sig Signal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), 10*time.Second)
	defer cancel()
	// A command that cannot be reached has exited, or will end with its sandbox.
	_ = c.h.c.Signal(ctx, c.h.ref, c.Command.ID, sig)
}

// Signal signals the command's process group. Errors: conflict if the command
// has exited or was not started.
func (c *Cmd) Signal(ctx context.Context, sig Signal) error {
	if c.Command == nil {
		return cay.Errorf(cay.Conflict, "the command was not started")
	}
	return c.h.c.Signal(ctx, c.h.ref, c.Command.ID, sig)
}

// Wait waits for the end of the command and of its output. It returns an
// *ExitError if the exit status is not 0; else the error that kept Stdin, Stdout
// or Stderr from being copied, if any. A Read of Stdin may still be in progress
// when Wait returns.
func (c *Cmd) Wait() error {
	exit, err := c.wait()
	switch {
	case err != nil:
		return err
	case exit.Code != 0:
		return &ExitError{Exit: *exit}
	case c.stdinErr != nil && cay.CodeOf(c.stdinErr) != cay.Conflict && cay.CodeOf(c.stdinErr) != cay.Canceled:
		// A command may exit without reading all of its input: no error.
		return c.stdinErr
	}
	return nil
}

func (c *Cmd) wait() (*Exit, error) {
	if c.Command == nil {
		return nil, cay.Errorf(cay.Conflict, "the command was not started")
	}
	c.wg.Wait()
	c.stop()
	if c.outputErr != nil {
		return nil, c.outputErr
	}
	return c.Exit, nil
}
