package sandboxd

import (
	"context"
	"io"
	"strconv"

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
		if err := e.flows.write(ctx); err != nil {
			return nil, err
		}
	}
	if p.Limit == 0 {
		p.Limit = 200
	}
	flows, err := e.store.flows(ctx, r.ID, p, p.Limit+1)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Flow]{Items: []sandbox.Flow{}}
	if len(flows) > p.Limit {
		flows = flows[:p.Limit]
		page.Next = strconv.FormatInt(flows[p.Limit-1].Seq, 10)
	}
	page.Items = append(page.Items, flows...)
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
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, err
	}
	buffer := newFlowBuffer(e.flows, r.ID)
	if m != nil {
		buffer = m.flows
	} else {
		buffer.end(io.EOF)
	}
	w := &flowWatch{verdict: p.Verdict}
	// Before the past is read, so that nothing is missed in between.
	if err := buffer.watch(w); err != nil {
		return nil, err
	}
	if err := e.flows.write(ctx); err != nil {
		w.cancel(err)
		return nil, err
	}
	if w.past, err = e.store.flows(ctx, r.ID, p, keptFlows); err != nil {
		w.cancel(err)
		return nil, err
	}
	w.seen = make(map[int64]bool, len(w.past))
	for _, f := range w.past {
		w.seen[f.Seq] = f.Open
	}
	w.unhook = context.AfterFunc(ctx, func() { w.cancel(contextError(ctx)) })
	return w, nil
}
