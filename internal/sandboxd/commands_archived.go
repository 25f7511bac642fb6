package sandboxd

import (
	"context"
	"errors"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/sandboxd/cmdarchive"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/sandbox"
)

// past reports whether the kept commands are to answer a call that ended with err:
// because the guest does not know the command, or no guest could be asked. A call that
// was interrupted by the end of its session is not answered again.
func past(err error, begun bool) bool {
	code := cay.CodeOf(err)
	return code == cay.NotFound || code == cay.Stopped && !begun
}

// archivedCommand finds a kept command in the session ref, or in any session of the sandbox
// ref. asked is the error of the preceding call into the guest; archivedCommand returns it if
// nothing is known of the command. The caller closes the file.
func (e *Engine) archivedCommand(ctx context.Context, ref, id string, asked error) (*cmdarchive.File, *sandbox.Command, error) {
	r, _, err := e.lookup(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	s, err := e.store.SessionOfCommand(ctx, r, id)
	if err != nil {
		return nil, nil, err
	}
	if s == nil {
		// The last session had no command, or kept commands without this one: the command
		// does not exist.
		last, err := e.store.LastCommands(ctx, r)
		if err == nil && last.Commands != "" {
			asked = cay.Errorf(cay.NotFound, "command %q not found", id)
		}
		return nil, nil, firstError(err, asked)
	}
	f, err := e.openCommands(ctx, s)
	if err != nil || f == nil {
		return nil, nil, firstError(err, asked)
	}
	c := f.Command(id)
	if c == nil {
		return nil, nil, firstError(f.Close(), asked)
	}
	return f, completeCommand(s, c), nil
}

// openCommands opens the file with a session's kept commands; nil if it was removed
// meanwhile.
func (e *Engine) openCommands(ctx context.Context, s *store.ArchivedSession) (*cmdarchive.File, error) {
	if e.cfg.Commands == nil {
		return nil, nil
	}
	// The file counts as a call: it takes a file descriptor, as a call into a guest takes
	// a connection, and briefly the memory of all the session's commands.
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if !e.calls.Take(sc.Team) {
		return nil, tooMany(inDaemon, e.cfg.Limits.Calls)
	}
	f, err := e.cfg.Commands.Open(ctx, s.Commands, commandsFile)
	if err != nil {
		e.calls.Leave(sc.Team)
		if cay.CodeOf(err) == cay.NotFound {
			err = nil
		}
		return nil, err
	}
	counted := &countedFile{f, sync.OnceFunc(func() { e.calls.Leave(sc.Team) })}
	select {
	case e.reading <- struct{}{}:
		defer func() { <-e.reading }()
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), counted.Close())
	}
	return cmdarchive.Open(counted)
}

// maxReading is how many lists of kept commands are read concurrently.
const maxReading = 8

// countedFile is a file that counts as a call until it is closed.
type countedFile struct {
	blob.File
	done func()
}

// Close implements io.Closer.
func (f *countedFile) Close() error {
	defer f.done()
	return f.File.Close()
}

// completeCommand fills in fields of a command that its guest did not know. A command that was
// running when its session ended was killed then. A hibernated command continues in the
// next session.
func completeCommand(s *store.ArchivedSession, c *sandbox.Command) *sandbox.Command {
	c.SandboxID = s.SandboxID
	if c.Exit == nil && s.Status != sandbox.Hibernated && s.StoppedAt != nil {
		c.Exit = &sandbox.Exit{Code: 137, Signal: 9, At: *s.StoppedAt, Duration: usage.Millis(max(0, s.StoppedAt.Sub(c.StartedAt)))}
	}
	return c
}

// getArchived returns a kept command; see archivedCommand.
func (e *Engine) getArchived(ctx context.Context, ref, id string, asked error) (*sandbox.Command, error) {
	f, c, err := e.archivedCommand(ctx, ref, id, asked)
	if err != nil {
		return nil, err
	}
	return c, f.Close()
}

// listArchived returns the commands of the session ref, or of the newest session of the
// sandbox ref.
func (e *Engine) listArchived(ctx context.Context, ref string, asked error) ([]sandbox.Command, error) {
	r, _, err := e.lookup(ctx, ref)
	if err != nil {
		return nil, err
	}
	s, err := e.store.LastCommands(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case s.Commands == "":
		return nil, asked
	case s.Commands == store.NoCommands:
		return []sandbox.Command{}, nil
	}
	f, err := e.openCommands(ctx, s)
	if err != nil || f == nil {
		return nil, firstError(err, asked)
	}
	all := f.Commands()
	for i := range all {
		completeCommand(s, &all[i])
	}
	return all, f.Close()
}

// goesOn is the error for a caller that waits for a hibernated command.
func goesOn(id string) error {
	return cay.Errorf(cay.Stopped, "command %q was hibernated with its session, and goes on with the sandbox", id).
		WithHint("ask the sandbox instead of its session: that resumes it")
}
