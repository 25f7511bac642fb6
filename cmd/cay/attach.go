package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/muesli/cancelreader"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// execFlags are the flags of every command that runs a program in a sandbox.
type execFlags struct {
	interactive, tty bool
	env, envFiles    []string
	workDir, user    string
	sudo             bool
}

const execCodes = `Exit codes: the program's own; 128 + n when signal n ended it; 124 when it ran out
of time; 127 when the sandbox has no such program; 125 when cay failed before the
program ran; 1 other errors; 2 wrong usage; 130 interrupted before it ran.`

func (f *execFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "forward standard input even if it is a terminal")
	fl.BoolVarP(&f.tty, "tty", "t", false, "run on a terminal of its own; with -i, this terminal is it")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set a variable, as KEY=VALUE, or KEY for the value it has here")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "set the variables in a file of KEY=VALUE lines")
	fl.StringVarP(&f.workDir, "workdir", "w", "", "directory to run in")
	fl.StringVarP(&f.user, "user", "u", "", "user to run as, by name or id")
	fl.BoolVar(&f.sudo, "sudo", false, "run as root")
}

// params returns what to run.
func (f *execFlags) params(a *app, argv []string) (sandbox.CommandParams, error) {
	env, err := parseEnv(f.envFiles, f.env, os.LookupEnv)
	if err != nil {
		return sandbox.CommandParams{}, err
	}
	if f.tty && a.json {
		return sandbox.CommandParams{}, cay.Errorf(cay.Invalid, "-t and --json do not go together")
	}
	if f.tty && f.interactive && !isTerminal(a.stdin) {
		return sandbox.CommandParams{}, cay.Errorf(cay.Invalid, "-it needs a terminal as standard input").WithHint("leave -t out to forward it as it is")
	}
	return sandbox.CommandParams{
		Argv: argv, Env: env, WorkDir: f.workDir, User: f.user, Sudo: f.sudo,
		Stdin: f.interactive || !f.tty && !isTerminal(a.stdin),
	}, nil
}

// errBrokenPipe means that the reader of our output has gone.
var errBrokenPipe = &exitError{code: exitSignal + int(syscall.SIGPIPE)}

// attach runs a program in a sandbox on this process's standard streams and signals,
// and returns its exit. With -t, attach sets params.PTY. The first SIGINT, SIGTERM or
// SIGHUP is passed on to the program, the second kills it. If the program does not
// start soon after a signal, attach stops waiting for it. Two equal signals within
// 100 ms count as one; see interrupts.
//
// An error before the program ran has an exit code of its own.
func (a *app) attach(ctx context.Context, c *sandbox.Client, ref string, p sandbox.CommandParams, tty bool, stdout, stderr io.Writer) (*sandbox.Command, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	at := &attachment{app: a, client: c, ref: ref, cancel: cancel, stdout: stdout, stderr: stderr}
	release := a.signals.take(at.signal)
	defer release()
	if tty {
		restore, err := at.terminal(&p)
		if err != nil {
			return nil, &exitError{exitFailed, err}
		}
		defer restore()
	}
	out, err := c.Exec(ctx, ref, p)
	if err != nil {
		return nil, at.before(ctx, err)
	}
	defer out.Close()
	defer at.wg.Wait() // after the stop of what it waits for, below
	stop := func() {}
	defer func() { stop() }()
	for {
		event, err := out.Next()
		if err != nil {
			return at.command(), at.during(ctx, err)
		}
		switch {
		case event.Command != nil:
			at.started(event.Command)
			stop = at.pump(ctx, p)
		case event.Exit != nil:
			cmd := *at.command()
			cmd.Exit = event.Exit
			return &cmd, nil
		case event.Truncated:
			a.warn("output was lost: the program wrote faster than it could be read")
		}
		if err := at.write(event); err != nil {
			at.kill()
			return at.command(), err
		}
	}
}

// attachment is one program being run.
type attachment struct {
	app            *app
	client         *sandbox.Client
	ref            string
	cancel         func(cause error)
	stdout, stderr io.Writer
	wg             sync.WaitGroup

	mu      sync.Mutex // guards what follows
	cmd     *sandbox.Command
	signals int
	pending syscall.Signal // came when the program was about to start
}

func (at *attachment) started(c *sandbox.Command) {
	at.mu.Lock()
	at.cmd = c
	pending := at.pending
	at.mu.Unlock()
	if pending != 0 {
		at.send(sandbox.Signal(pending))
	}
}

func (at *attachment) command() *sandbox.Command {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.cmd
}

func (at *attachment) write(e sandbox.Event) error {
	w := at.stdout
	if e.Stream == sandbox.Stderr {
		w = at.stderr
	}
	if len(e.Data) == 0 {
		return nil
	}
	_, err := w.Write(e.Data)
	if errors.Is(err, syscall.EPIPE) {
		return errBrokenPipe
	}
	if err != nil {
		return fmt.Errorf("write the program's output: %w", err)
	}
	return nil
}

// signal handles signals while the program runs.
func (at *attachment) signal(s syscall.Signal) {
	at.mu.Lock()
	at.signals++
	n, running := at.signals, at.cmd != nil
	if n == 1 && !running {
		at.pending = s
	}
	at.mu.Unlock()
	switch {
	case n > 2:
		at.app.signals.exit(s)
	case n == 2:
		if running {
			at.kill()
		}
		at.cancel(&interruptError{s})
	case running:
		at.send(sandbox.Signal(s))
	default:
		time.AfterFunc(startPatience, func() {
			if at.command() == nil {
				at.cancel(&interruptError{s})
			}
		})
	}
}

const (
	signalTimeout = 5 * time.Second
	// startPatience is how long a program that is about to start may take after a
	// signal. A program that would start later must not be left running without its
	// caller.
	startPatience = 2 * time.Second
)

// send signals the program without waiting for the daemon.
func (at *attachment) send(s sandbox.Signal) {
	id := at.command().ID
	at.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), signalTimeout)
		defer cancel()
		if err := at.client.Signal(ctx, at.ref, id, s); err != nil && !ended(err) {
			at.app.warn("cannot signal the program: %v", err)
		}
	})
}

func (at *attachment) kill() { at.send(sandbox.Signal(syscall.SIGKILL)) }

// ended reports whether err only says that the program has ended already.
func ended(err error) bool {
	switch cay.CodeOf(err) {
	case cay.Conflict, cay.NotFound, cay.Stopped:
		return true
	}
	return false
}

// before adds the exit code for errors from before the program ran.
func (at *attachment) before(ctx context.Context, err error) error {
	var i *interruptError
	switch {
	case errors.As(context.Cause(ctx), &i):
		return &exitError{code: i.exitCode()}
	case cay.CodeOf(err) == cay.ExecutableMissing:
		return &exitError{exitNotFound, err}
	}
	return &exitError{exitFailed, err}
}

// during explains why the output of a running program ended without its exit.
func (at *attachment) during(ctx context.Context, err error) error {
	var i *interruptError
	if errors.As(context.Cause(ctx), &i) {
		return &exitError{code: i.exitCode()}
	}
	if at.command() == nil {
		return at.before(ctx, err)
	}
	if cay.CodeOf(err) != cay.Stopped {
		return err
	}
	s, gerr := at.client.Get(ctx, at.ref)
	if gerr != nil || !s.Status.Final() { // it is being ended, and err knows why
		return err
	}
	why := cay.Errorf(cay.Stopped, "sandbox %s ended while the program ran: %s", s.Name, reasonText(s))
	switch s.Reason {
	case sandbox.ReasonTimeout:
		return &exitError{exitTimedOut, why.WithHint("give it more time with --timeout, or \"cay sandbox extend\"")}
	case sandbox.ReasonOOM:
		return &exitError{exitSignal + int(syscall.SIGKILL), why.WithHint("give it more memory with --memory")}
	}
	return why
}

// pump forwards standard input and changes of the window's size until stop is called.
func (at *attachment) pump(ctx context.Context, p sandbox.CommandParams) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var in cancelreader.CancelReader
	if p.Stdin {
		var err error
		if in, err = cancelreader.NewReader(at.app.stdin); err != nil {
			// A regular file or /dev/null: nothing to wait for, so reads do not block.
			in, err = cancelreader.NewReader(struct{ io.Reader }{at.app.stdin})
		}
		if err != nil {
			at.app.warn("cannot read standard input: %v", err)
		} else {
			at.forward(ctx, in, p.PTY != nil)
		}
	}
	if p.PTY != nil {
		at.resize(ctx)
	}
	return func() {
		cancel()
		if in != nil {
			in.Cancel()
		}
	}
}

func (at *attachment) forward(ctx context.Context, in cancelreader.CancelReader, tty bool) {
	id := at.command().ID
	at.wg.Go(func() {
		defer in.Close()
		var err error
		if tty {
			err = typeOn(ctx, in, func(r io.Reader) error { return at.client.WriteStdin(ctx, at.ref, id, r, true) })
		} else {
			err = at.client.WriteStdin(ctx, at.ref, id, in, true)
		}
		if err != nil && ctx.Err() == nil && !ended(err) && !errors.Is(err, cancelreader.ErrCanceled) {
			at.app.warn("standard input was cut off: %v", err)
		}
	})
}

func (at *attachment) resize(ctx context.Context) {
	id := at.command().ID
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	at.wg.Go(func() {
		defer signal.Stop(changed)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				size := windowSize(at.app.stdin)
				if err := at.client.Resize(ctx, at.ref, id, size); err != nil && ctx.Err() == nil && !ended(err) {
					at.app.warn("cannot resize the terminal: %v", err)
				}
			}
		}
	})
}

// terminal requests a terminal of this one's size, and with -i makes this one pass
// every key on. restore must be called.
func (at *attachment) terminal(p *sandbox.CommandParams) (restore func(), err error) {
	size := windowSize(at.app.stdin)
	p.PTY = &size
	if _, ok := p.Env["TERM"]; !ok {
		if t := os.Getenv("TERM"); t != "" {
			env := map[string]string{"TERM": t}
			for k, v := range p.Env {
				env[k] = v
			}
			p.Env = env
		}
	}
	if !p.Stdin {
		return func() {}, nil
	}
	fd := int(at.app.stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("set up the terminal: %w", err)
	}
	var once sync.Once
	back := func() {
		once.Do(func() {
			if err := term.Restore(fd, state); err != nil {
				at.app.warn("cannot restore the terminal: %v", err)
			}
		})
	}
	undo := at.app.signals.atExit(back)
	return func() { undo(); back() }, nil
}

func windowSize(f *os.File) sandbox.WindowSize {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return sandbox.WindowSize{Cols: 80, Rows: 24}
	}
	return sandbox.WindowSize{Cols: uint16(min(cols, 10000)), Rows: uint16(min(rows, 10000))}
}

// result is the result of a program, for --json.
type result struct {
	Command   *sandbox.Command `json:"command"`
	Stdout    text             `json:"stdout"`
	Stderr    text             `json:"stderr"`
	Truncated bool             `json:"truncated,omitempty"` // more than 16 MiB of either was cut off
}

// text is output; bytes that are not UTF-8 are written as U+FFFD.
type text string

const maxCapture = 16 << 20

// capture keeps the first maxCapture bytes.
type capture struct {
	b         []byte
	truncated bool
}

func (c *capture) Write(p []byte) (int, error) {
	n := min(len(p), maxCapture-len(c.b))
	c.b = append(c.b, p[:n]...)
	c.truncated = c.truncated || n < len(p)
	return len(p), nil
}

func (c *capture) text() text {
	b := c.b
	// A character that the limit has cut in two must not become U+FFFD.
	if c.truncated {
		for i := 0; i < utf8.UTFMax && len(b) > 0 && !utf8.Valid(b[max(0, len(b)-utf8.UTFMax):]); i++ {
			b = b[:len(b)-1]
		}
	}
	return text(b)
}

// runAttached runs a program, prints its output, or with --json the whole result at
// the end, and returns its exit code as an error.
func (a *app) runAttached(ctx context.Context, c *sandbox.Client, ref string, p sandbox.CommandParams, tty bool) error {
	if !a.json {
		cmd, err := a.attach(ctx, c, ref, p, tty, a.stdout, a.stderr)
		if err != nil {
			return err
		}
		return a.exitOf(cmd.Exit)
	}
	var stdout, stderr capture
	cmd, err := a.attach(ctx, c, ref, p, false, &stdout, &stderr)
	if err != nil {
		return err
	}
	if err := a.printJSON(result{cmd, stdout.text(), stderr.text(), stdout.truncated || stderr.truncated}); err != nil {
		return err
	}
	return a.exitOf(cmd.Exit)
}

func (a *app) exitOf(e *sandbox.Exit) error {
	switch {
	case e.TimedOut && !a.json:
		return &exitError{e.Code, cay.Errorf(cay.DeadlineExceeded, "the program was ended after %v: it ran out of time", time.Duration(e.Duration).Round(time.Millisecond))}
	case e.Code == 0:
		return nil
	}
	return &exitError{code: e.Code}
}
