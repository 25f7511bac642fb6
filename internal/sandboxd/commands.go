package sandboxd

import (
	"context"
	"io"

	"github.com/cayhq/cay/sandbox"
)

// prepareCommand completes a command's environment. That happens only here, so
// that what a sandbox's environment holds is not in the guest before a command
// needs it.
func prepareCommand(p *sandbox.CommandParams, m *machine) { p.Env = mergeEnv(m.environ(), p.Env) }

// named fills in what a guest does not know of a command: its sandbox.
func named(c *sandbox.Command, m *machine) *sandbox.Command {
	if c != nil {
		c.SandboxID = m.id
	}
	return c
}

// Start implements Service.
func (e *Engine) Start(ctx context.Context, ref string, p sandbox.CommandParams) (*sandbox.Command, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return get(ctx, e, ref, func(ctx context.Context, m *machine) (*sandbox.Command, error) {
		prepareCommand(&p, m)
		c, err := m.guest.Start(ctx, p)
		return named(c, m), err
	})
}

// Exec implements Service.
func (e *Engine) Exec(ctx context.Context, ref string, p sandbox.CommandParams) (sandbox.Output, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return e.stream(ctx, ref, func(ctx context.Context, m *machine) (sandbox.Output, error) {
		prepareCommand(&p, m)
		return m.guest.Exec(ctx, p)
	})
}

// Output implements Service.
func (e *Engine) Output(ctx context.Context, ref, id string, p sandbox.OutputParams) (sandbox.Output, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return e.stream(ctx, ref, func(ctx context.Context, m *machine) (sandbox.Output, error) {
		return m.guest.Output(ctx, id, p)
	})
}

func (e *Engine) stream(ctx context.Context, ref string, open func(context.Context, *machine) (sandbox.Output, error)) (sandbox.Output, error) {
	c, err := e.call(ctx, ref, false)
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
	return get(ctx, e, ref, func(ctx context.Context, m *machine) (*sandbox.Command, error) {
		c, err := m.guest.GetCommand(ctx, id)
		return named(c, m), err
	})
}

// ListCommands implements Service.
func (e *Engine) ListCommands(ctx context.Context, ref string) ([]sandbox.Command, error) {
	return get(ctx, e, ref, func(ctx context.Context, m *machine) ([]sandbox.Command, error) {
		cmds, err := m.guest.ListCommands(ctx)
		for i := range cmds {
			named(&cmds[i], m)
		}
		return cmds, err
	})
}

// Wait implements Service.
func (e *Engine) Wait(ctx context.Context, ref, id string) (*sandbox.Command, error) {
	return get(ctx, e, ref, func(ctx context.Context, m *machine) (*sandbox.Command, error) {
		c, err := m.guest.Wait(ctx, id)
		return named(c, m), err
	})
}

// Signal implements Service.
func (e *Engine) Signal(ctx context.Context, ref, id string, sig sandbox.Signal) error {
	if err := sig.Validate(); err != nil {
		return err
	}
	return e.do(ctx, ref, func(ctx context.Context, m *machine) error { return m.guest.Signal(ctx, id, sig) })
}

// WriteStdin implements Service.
func (e *Engine) WriteStdin(ctx context.Context, ref, id string, r io.Reader, closeAfter bool) error {
	// Not active: an open terminal nobody types on is idle.
	c, err := e.call(ctx, ref, false)
	if err != nil {
		return err
	}
	return c.done(c.m.guest.WriteStdin(c.ctx, id, typed{r, c}, closeAfter))
}

// Resize implements Service.
func (e *Engine) Resize(ctx context.Context, ref, id string, size sandbox.WindowSize) error {
	if err := size.Validate(); err != nil {
		return err
	}
	return e.do(ctx, ref, func(ctx context.Context, m *machine) error { return m.guest.Resize(ctx, id, size) })
}
