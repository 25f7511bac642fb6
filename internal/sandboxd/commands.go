package sandboxd

import (
	"context"
	"errors"
	"io"

	"github.com/cayhq/cay/sandbox"
)

// prepareCommand completes a command's environment. The engine adds the sandbox's
// environment here only, so that the guest does not hold it before a command needs it.
func prepareCommand(p *sandbox.CommandParams, m *session) {
	m.commands.Store(true)
	if p.IdempotencyKey != "" {
		p.IdempotencyKey = m.sandboxID + " " + p.IdempotencyKey // command ids are hashes of keys; the prefix makes them differ between sandboxes
	}
	p.Env = mergeEnv(m.environ(), p.Env)
}

// named fills in the sandbox's id, which the guest does not know.
func named(c *sandbox.Command, m *session) *sandbox.Command {
	if c != nil {
		c.SandboxID = m.sandboxID
	}
	return c
}

// Start implements Service.
func (e *Engine) Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, wakeAll, func(ctx context.Context, m *session) (*sandbox.Command, error) {
		prepareCommand(&p, m)
		c, err := m.guest.Start(ctx, p)
		e.noteStart(m, c)
		return named(c, m), err
	})
}

// Exec implements Service.
func (e *Engine) Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return e.stream(ctx, ref, wakeAll, func(ctx context.Context, m *session) (sandbox.Output, error) {
		prepareCommand(&p, m)
		return m.guest.Exec(ctx, p)
	})
}

// Output implements Service.
func (e *Engine) Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	begun := false
	out, err := e.stream(ctx, ref, wakeHibernated, func(ctx context.Context, m *session) (sandbox.Output, error) {
		begun = true
		return m.guest.Output(ctx, id, p)
	})
	if !past(err, begun) {
		return out, err
	}
	f, c, err := e.archivedCommand(ctx, ref, id, err)
	if err != nil {
		return nil, err
	}
	if out, err = f.Output(id, p, c.Exit); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if c.Exit == nil && p.Follow {
		out = unfinished{out, id}
	}
	return out, nil
}

// unfinished is the output of a hibernated command, for a caller that follows the command
// to its end.
type unfinished struct {
	sandbox.Output
	id string
}

// Next implements sandbox.Output.
func (o unfinished) Next() (sandbox.Event, error) {
	ev, err := o.Output.Next()
	if err == io.EOF {
		err = goesOn(o.id)
	}
	return ev, err
}

func (e *Engine) stream(ctx context.Context, ref string, w wake, open func(context.Context, *session) (sandbox.Output, error)) (sandbox.Output, error) {
	c, err := e.call(ctx, ref, false, w)
	if err != nil {
		return nil, err
	}
	out, err := open(c.ctx, c.m)
	if err != nil {
		return nil, c.done(err)
	}
	return &output{out, c}, nil
}

// GetCommand implements Service.
func (e *Engine) GetCommand(ctx context.Context, ref, id string) (*sandbox.Command, error) {
	begun := false
	c, err := get(ctx, e, ref, wakeHibernated, func(ctx context.Context, m *session) (*sandbox.Command, error) {
		begun = true
		c, err := m.guest.GetCommand(ctx, id)
		return named(c, m), err
	})
	if !past(err, begun) {
		return c, err
	}
	return e.getArchived(ctx, ref, id, err)
}

// ListCommands implements Service.
func (e *Engine) ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error) {
	begun := false
	cmds, err := get(ctx, e, ref, wakeHibernated, func(ctx context.Context, m *session) ([]sandbox.Command, error) {
		begun = true
		cmds, err := m.guest.ListCommands(ctx)
		for i := range cmds {
			named(&cmds[i], m)
		}
		return cmds, err
	})
	if !past(err, begun) {
		return cmds, err
	}
	return e.listArchived(ctx, ref, err)
}

// Wait implements Service.
func (e *Engine) Wait(ctx context.Context, ref, id string) (*sandbox.Command, error) {
	begun := false
	c, err := get(ctx, e, ref, wakeHibernated, func(ctx context.Context, m *session) (*sandbox.Command, error) {
		begun = true
		c, err := m.guest.Wait(ctx, id)
		return named(c, m), err
	})
	if !past(err, begun) {
		return c, err
	}
	if c, err = e.getArchived(ctx, ref, id, err); err == nil && c.Exit == nil {
		return nil, goesOn(id)
	}
	return c, err
}

// Signal implements Service.
func (e *Engine) Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error {
	if err := sig.Validate(); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeHibernated, func(ctx context.Context, m *session) error { return m.guest.Signal(ctx, id, sig) })
}

// WriteStdin implements Service.
func (e *Engine) WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error {
	// Not active: a sandbox with an open terminal is idle while nobody types.
	c, err := e.call(ctx, ref, false, wakeHibernated)
	if err != nil {
		return err
	}
	// The guest client runs in a goroutine of its own: otherwise the call would learn of
	// the machine's end only at the next keystroke, and lose it. The goroutine ends with
	// the request.
	wrote := make(chan error, 1)
	go func() { wrote <- c.m.guest.WriteStdin(c.ctx, id, typed{r, c}, closeAfter) }()
	select {
	case err = <-wrote:
	case <-c.ctx.Done():
		err = context.Cause(c.ctx)
	}
	return c.done(err)
}

// Resize implements Service.
func (e *Engine) Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error {
	if err := size.Validate(); err != nil {
		return err
	}
	return e.do(ctx, ref, wakeHibernated, func(ctx context.Context, m *session) error { return m.guest.Resize(ctx, id, size) })
}
