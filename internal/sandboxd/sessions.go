package sandboxd

import (
	"context"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// Sessions implements Service.
func (e *Engine) Sessions(ctx context.Context, ref string, p sandbox.SessionParams) (*sandbox.Page[sandbox.Session], error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := store.NewListing("the sessions of a sandbox", store.SortedBy(store.ByNumber, p.Ascending), p.Cursor, p.Limit)
	if err != nil {
		return nil, err
	}
	r, _, err := e.lookup(ctx, ref)
	if err != nil {
		return nil, err
	}
	rows, err := e.store.SessionsOf(ctx, l, r.ID)
	if err != nil {
		return nil, err
	}
	return e.sessionPage(ctx, l, rows, func(v *store.SessionRow) (any, string) { return v.Number, v.ID }), nil
}

// ListSessions implements Service.
func (e *Engine) ListSessions(ctx context.Context, p sandbox.SessionListParams) (*sandbox.Page[sandbox.Session], error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "sessions", p.ProjectID, store.SortedBy(sandbox.ByCreation, p.Ascending), p.Cursor, p.Limit)
	if err != nil {
		return nil, err
	}
	rows, err := e.store.ListSessions(ctx, l)
	if err != nil {
		return nil, err
	}
	return e.sessionPage(ctx, l, rows, func(v *store.SessionRow) (any, string) { return v.CreatedAt.UnixMilli(), v.ID }), nil
}

// GetSession implements Service.
func (e *Engine) GetSession(ctx context.Context, id string) (*sandbox.Session, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	v, err := e.store.FindSession(ctx, sc, id)
	if err != nil {
		return nil, err
	}
	e.refreshSessions(ctx, []*store.SessionRow{v})
	return &v.Session, nil
}

func (e *Engine) sessionPage(ctx context.Context, l store.Listing, rows []*store.SessionRow, at func(*store.SessionRow) (any, string)) *sandbox.Page[sandbox.Session] {
	page := &sandbox.Page[sandbox.Session]{Items: []sandbox.Session{}}
	rows, page.Next = store.Cut(l, rows, at)
	e.refreshSessions(ctx, rows)
	for _, v := range rows {
		page.Items = append(page.Items, v.Session)
	}
	return page
}

// refreshSessions updates running sessions with the current values of their
// machines.
func (e *Engine) refreshSessions(ctx context.Context, sessions []*store.SessionRow) {
	var rows []*store.Row
	for _, v := range sessions {
		if v.Status == sandbox.Running || v.Status == sandbox.Paused {
			rows = append(rows, &store.Row{Sandbox: sandbox.Sandbox{ID: v.SandboxID, SessionID: v.ID, Status: v.Status, Usage: v.Usage}})
		}
	}
	if len(rows) == 0 {
		return
	}
	e.refreshRows(ctx, rows, time.Second)
	usage := make(map[string]sandbox.Usage, len(rows))
	for _, r := range rows {
		usage[r.SessionID] = r.Usage
	}
	for _, v := range sessions {
		if u, ok := usage[v.ID]; ok {
			v.Usage = u
		}
	}
}
