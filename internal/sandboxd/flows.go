package sandboxd

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// Flows implements Service.
func (e *Engine) Flows(ctx context.Context, ref string, p sandbox.FlowParams) (*sandbox.Page[sandbox.Flow], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r, m, err := e.lookup(ctx, ref)
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
	page, err := e.flows.Page(ctx, r.ID, p)
	if err != nil {
		return nil, err
	}
	if m == nil { // nothing recorded the end of connections that ended with the machine
		for i := range page.Items {
			page.Items[i].Open = false
		}
	}
	return page, nil
}

// WatchFlows implements Service.
func (e *Engine) WatchFlows(ctx context.Context, ref string, p sandbox.FlowParams) (sandbox.FlowWatch, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Limit != 0 {
		return nil, cay.Errorf(cay.Invalid, "limit %d is given for a watch, which has none", p.Limit)
	}
	r, m, err := e.lookup(ctx, ref)
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
	w.EndWith(ctx, func() error { return wire.ContextError(ctx) })
	return w, nil
}

// follow records the machine's flows, and offers intercepted flows to its egress handler.
func (m *session) follow() {
	m.inst.OnFlow(m.flows.Add)
	m.inst.OnOutbound(m.outbounds.Offer)
}

// endFlows closes a machine's flow log and writes its last records. A failure is logged
// only: it does not keep the machine from ending.
func (e *Engine) endFlows(ctx context.Context, m *session, why error) {
	m.flows.End(why)
	if err := e.flows.Write(ctx); err != nil && !errors.Is(err, context.Canceled) {
		e.log.WarnContext(ctx, "flow records were not written yet", "sandbox", m.sandboxID, "error", err)
	}
}

// HandleOutbound implements Service.
func (e *Engine) HandleOutbound(ctx context.Context, ref string) (sandbox.OutboundWatch, error) {
	m, err := e.usable(ctx, ref, wakeNone)
	if err != nil {
		return nil, err
	}
	h := m.outbounds.Open()
	h.EndWith(ctx, func() error { return wire.ContextError(ctx) })
	h.EndWith(m.ctx, func() error { return io.EOF })
	return h, nil
}

// TakeOutbound implements Service.
func (e *Engine) TakeOutbound(ctx context.Context, ref, id string, as sandbox.Handling) (net.Conn, error) {
	m, err := e.usable(ctx, ref, wakeNone)
	if err != nil {
		return nil, err
	}
	ctx, end := m.bound(ctx)
	defer end()
	conn, err := m.outbounds.Take(ctx, id, as)
	if err != nil && m.ctx.Err() != nil {
		return nil, context.Cause(m.ctx)
	}
	return conn, err
}

// DeclineOutbound implements Service.
func (e *Engine) DeclineOutbound(ctx context.Context, ref, id string, as sandbox.Handling) error {
	m, err := e.usable(ctx, ref, wakeNone)
	if err != nil {
		return err
	}
	return m.outbounds.Decline(id, as)
}

// Authority implements Service.
func (e *Engine) Authority(ctx context.Context) ([]byte, error) {
	if _, err := caller(ctx); err != nil {
		return nil, err
	}
	if e.cfg.Trust == nil {
		return nil, cay.Errorf(cay.NotSupported, "this daemon opens no TLS of sandboxes, and has no authority")
	}
	return e.cfg.Trust.Authority(), nil
}
