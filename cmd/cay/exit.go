package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Exit codes. Commands that run a program in a sandbox exit with the program's code.
const (
	exitOK       = 0
	exitGeneral  = 1
	exitUsage    = 2
	exitTimedOut = 124 // the program ran out of time
	exitFailed   = 125 // cay failed before the program ran
	exitNotFound = 127 // there is no such program in the sandbox
	exitSignal   = 128 // plus the number of the signal that ended us
)

// usageError is a command line that cannot be understood.
type usageError struct{ message, command string }

func (e *usageError) Error() string { return e.message }

// exitError ends the process with a code; err, if any, is reported first.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// interruptError is the cause of a context that a signal has cancelled.
type interruptError struct{ signal syscall.Signal }

func (e *interruptError) Error() string { return e.signal.String() }

func (e *interruptError) exitCode() int { return exitSignal + int(e.signal) }

// report prints err as one line and a hint, or with --json as one line of JSON, and returns the
// exit code for it.
func (a *app) report(err error) int {
	// Errors of the network have a code of their own; an EPIPE without a code is our
	// standard output's.
	if errors.Is(err, syscall.EPIPE) && !errors.As(err, new(*cay.Error)) {
		return errBrokenPipe.code
	}
	code := exitCodeOf(err)
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err == nil {
			return code
		}
		err = exit.err
	}
	if a.json {
		a.complain(errorLine{Error: &wire.Error{Code: codeOf(err), Message: err.Error(), Hint: hintOf(err)}})
		return code
	}
	fmt.Fprintln(a.stderr, "cay: "+oneLine(err.Error()))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintln(a.stderr, "     "+oneLine(hint))
	}
	return code
}

// errorLine is a line of standard error with --json.
type errorLine struct {
	Error   *wire.Error `json:"error,omitempty"`
	Warning string      `json:"warning,omitempty"` // the command goes on
}

// complain writes a line of JSON on standard error.
func (a *app) complain(line errorLine) {
	enc := json.NewEncoder(a.stderr)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(line); err != nil {
		return // there is nowhere left to say so
	}
}

// codeOf returns the code of an error, as in the API. Errors of the command line itself are
// invalid for wrong usage, and internal otherwise.
func codeOf(err error) cay.Code {
	if errors.As(err, new(*usageError)) {
		return cay.Invalid
	}
	return cay.CodeOf(err)
}

func exitCodeOf(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	if errors.As(err, new(*usageError)) {
		return exitUsage
	}
	return exitGeneral
}

func hintOf(err error) string {
	var u *usageError
	if errors.As(err, &u) {
		return fmt.Sprintf("see \"%s --help\"", u.command)
	}
	var e *cay.Error
	if errors.As(err, &e) {
		return e.Hint
	}
	if errors.Is(err, syscall.EMFILE) {
		return "raise the limit of open files: ulimit -n"
	}
	return ""
}

// oneLine keeps text from a sandbox from moving the cursor or starting a new line.
func oneLine(s string) string {
	return clean(strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// warn prints a line that does not change the exit code.
func (a *app) warn(format string, args ...any) {
	if a.json {
		a.complain(errorLine{Warning: fmt.Sprintf(format, args...)})
		return
	}
	fmt.Fprintln(a.stderr, "cay: "+oneLine(fmt.Sprintf(format, args...)))
}

// repeatWindow is the time in which a signal equal to the last one counts as a copy. GNU
// timeout signals its child and then the child's process group, and npm and make forward
// signals that the terminal has sent to all processes: neither means the user's second
// Ctrl-C.
const repeatWindow = 100 * time.Millisecond

// interrupts passes each signal to the current receiver: first the function that cancels
// the command's context, then, while a program runs in a sandbox, the function that
// forwards signals to it. A signal equal to the last one and within repeatWindow of it is
// dropped.
type interrupts struct {
	ch   chan os.Signal
	done chan struct{}

	mu      sync.Mutex // guards what follows
	handler func(syscall.Signal)
	onExit  []func()
}

// watchSignals starts to handle signals. The first cancels; the second ends the
// process at once.
func watchSignals(cancel func(cause error)) *interrupts {
	first := true
	var i *interrupts
	i = newInterrupts(func(s syscall.Signal) {
		if !first {
			i.exit(s)
		}
		first = false
		cancel(&interruptError{s})
	})
	// A write to a closed pipe must return an error, so that the command can clean up, and
	// not kill this process.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signal.Notify(i.ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return i
}

// newInterrupts starts to pass the signals sent to ch to handle.
func newInterrupts(handle func(syscall.Signal)) *interrupts {
	i := &interrupts{ch: make(chan os.Signal, 8), done: make(chan struct{}), handler: handle}
	go i.dispatch()
	return i
}

// dispatch passes signals on until ch is closed.
func (i *interrupts) dispatch() {
	defer close(i.done)
	var last os.Signal
	var at time.Time
	for s := range i.ch {
		now := time.Now()
		if s == last && now.Sub(at) < repeatWindow {
			continue
		}
		last, at = s, now
		i.mu.Lock()
		handle := i.handler
		i.mu.Unlock()
		handle(s.(syscall.Signal))
	}
}

// take makes handle the receiver of signals until release is called.
func (i *interrupts) take(handle func(syscall.Signal)) (release func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.handler
	i.handler = handle
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.handler = before
	}
}

// atExit makes f run if a signal ends the process at once; undo removes f.
func (i *interrupts) atExit(f func()) (undo func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.onExit = append(i.onExit, f)
	n := len(i.onExit) - 1
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.onExit[n] = func() {}
	}
}

// exit ends the process because of a signal.
func (i *interrupts) exit(s syscall.Signal) {
	i.mu.Lock()
	onExit := i.onExit
	i.mu.Unlock()
	for _, f := range onExit {
		f()
	}
	os.Exit(exitSignal + int(s))
}

func (i *interrupts) stop() {
	signal.Stop(i.ch)
	close(i.ch)
	<-i.done
}
