package sandboxd

import (
	"context"
	"errors"
	"io"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Flows implements Service.
func (e *Engine) Flows(ctx context.Context, ref string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, err
	}
	if m != nil {
		if err := e.flows.Write(ctx); err != nil {
			return nil, err
		}
	}
	if p.Limit == 0 {
		p.Limit = 200
	}
	return e.flows.Page(ctx, r.ID, p)
}

// WatchFlows implements Service.
func (e *Engine) WatchFlows(ctx context.Context, ref string, p sandbox.FlowParams) (sandbox.FlowWatch, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Limit != 0 {
		return nil, cay.Errorf(cay.Invalid, "limit %d is given for a watch, which has none", p.Limit)
	}
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, err
	}
	buffer := e.flows.Buffer(r.ID)
	if m != nil {
		buffer = m.flows
	} else {
		buffer.End(io.EOF)
	}
	w, err := e.flows.Watch(ctx, buffer, p)
	if err != nil {
		return nil, err
	}
	w.EndWith(ctx, func() error { return contextError(ctx) })
	return w, nil
}

// follow has the machine's flows recorded.
func (m *session) follow() { m.inst.OnFlow(m.flows.Add) }

// endFlows ends a machine's flow log with all of it written, or else logged why
// not: it keeps no machine from ending.
func (e *Engine) endFlows(ctx context.Context, m *session, why error) {
	m.flows.End(why)
	if err := e.flows.Write(ctx); err != nil && !errors.Is(err, context.Canceled) {
		e.log.WarnContext(ctx, "flow records were not written yet", "sandbox", m.sandboxID, "error", err)
	}
}
