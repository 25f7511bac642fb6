package template

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// maxLog bounds the text that is searched in the output, in bytes.
const maxLog = 1024

// start starts the start command and returns when it is ready; the command keeps
// running. Errors: *StepError if the command ended before, or the check failed;
// deadline_exceeded.
func (u *build) start(ctx context.Context, box *sandbox.Sandbox) error {
	s := u.t.Start
	out, err := u.Sandboxes.Exec(ctx, box.ID, sandbox.CommandParams{
		Argv: s.Command, Env: merge(u.t.Env, s.Env), User: s.User, WorkDir: s.WorkDir,
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Command, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.Ready.timeout(),
		cay.Errorf(cay.DeadlineExceeded, "%s was not ready within %v", s.Command, s.Ready.timeout()).WithHint("allow it more with start.ready.timeout"))
	defer cancel()
	ctx, ended := context.WithCancelCause(ctx)

	u.event(Event{Phase: PhaseReady, Text: s.Ready.String()})
	seen := make(chan struct{}) // the text of Ready.Log
	done := make(chan struct{})
	go func() {
		defer close(done)
		exit, last, err := u.follow(out, lookFor(s.Ready.Log, seen))
		if err == nil {
			err = &StepError{Text: "the start command (" + s.Command.String() + ")", Exit: *exit, Output: last}
		}
		ended(err)
	}()
	err = u.await(ctx, box, seen)
	if ctx.Err() != nil { // why that ended says more than what it made fail
		err = context.Cause(ctx)
	}
	out.Close() // which leaves the command running, and ends follow
	<-done
	return err
}

// lookFor returns a function that closes seen when text was written to it,
// possibly in pieces.
func lookFor(text string, seen chan struct{}) func([]byte) {
	if text == "" {
		return nil
	}
	var last []byte
	found := false
	return func(b []byte) {
		if found {
			return
		}
		last = append(last, b...)
		if found = bytes.Contains(last, []byte(text)); found {
			close(seen)
			return
		}
		last = append(last[:0], last[max(0, len(last)-len(text)+1):]...)
	}
}

// await returns when the start command is ready.
func (u *build) await(ctx context.Context, box *sandbox.Sandbox, seen <-chan struct{}) error {
	switch r := u.t.Start.Ready; {
	case r.Port != 0:
		return u.awaitPort(ctx, box, r.Port)
	case r.File != "":
		return u.awaitFile(ctx, box, r.File)
	case r.Log != "":
		select {
		case <-seen:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	default:
		return u.run(ctx, box, "the ready check ("+r.Command.String()+")", sandbox.CommandParams{
			Argv: r.Command, Env: merge(u.t.Env, u.t.Start.Env), User: u.t.Start.User, WorkDir: u.t.Start.WorkDir,
		})
	}
}

// awaitPort connects until a connection succeeds. There is no event when a port
// begins to listen, so awaitPort tries, at growing intervals.
func (u *build) awaitPort(ctx context.Context, box *sandbox.Sandbox, port int) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 10*time.Millisecond, 500*time.Millisecond
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		conn, err := u.Sandboxes.DialPort(ctx, box.ID, port)
		if err == nil {
			return struct{}{}, conn.Close()
		}
		if cay.CodeOf(err) != cay.Unavailable { // nothing listens yet
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err
}

// awaitFile waits until a file exists.
func (u *build) awaitFile(ctx context.Context, box *sandbox.Sandbox, file string) error {
	watch, err := u.Sandboxes.Watch(ctx, box.ID, path.Dir(file), sandbox.WatchParams{})
	if err != nil {
		return fmt.Errorf("watch for %q: %w", file, err)
	}
	defer watch.Close() // it was only read
	for {
		_, err := u.Sandboxes.Stat(ctx, box.ID, file, true)
		if cay.CodeOf(err) != cay.FileNotFound {
			return err
		}
		if _, err := watch.Next(); err != nil {
			return fmt.Errorf("watch for %q: %w", file, err)
		}
	}
}

func (r *Ready) String() string {
	switch {
	case r.Port != 0:
		return fmt.Sprintf("port %d listens", r.Port)
	case r.File != "":
		return "file " + r.File
	case r.Log != "":
		return fmt.Sprintf("it writes %q", r.Log)
	}
	return r.Command.String()
}
