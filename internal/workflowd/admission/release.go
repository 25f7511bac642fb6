package admission

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// release hastens the messages of pending runs, the oldest first, for as long as there is
// room. Runs without messages are passed over: their apps have yet to publish one.
func (d *Door) release(ctx context.Context, g *gate) error {
	g.deciding.Lock()
	defer g.deciding.Unlock()
	defer d.settle(g)
	let, err := d.letIn(ctx, g, "")
	if err != nil {
		return err
	}
	for _, run := range let.Pending { // other processes may have parked their messages
		if err := d.hasten(ctx, g, run); err != nil {
			return err
		}
	}
	free := g.limit.Free()
	if (d.cfg.Shared == nil || free) && !g.backlog {
		return nil
	}
	q := history.Query{
		Project: g.name.project, Workflow: g.name.workflow, Statuses: []history.Status{history.Pending}, Ascending: true, Limit: pendingPage,
	}
	for {
		page, err := d.cfg.Store.Runs(ctx, q)
		if err != nil {
			return err
		}
		for i := range page.Items {
			r := &page.Items[i]
			// The query with project "" selects all projects.
			if r.Project != g.name.project || !r.Kind.External() || slices.Contains(let.Pending, r.ID) {
				continue
			}
			if ok, err := d.releaseRun(ctx, g, r.ID); !ok || err != nil {
				return err
			}
		}
		if page.Cursor == "" {
			// The runs of a free gate are looked at once more when no process parks any.
			unknown := time.Until(g.known)
			g.backlog = free && unknown > 0 && d.cfg.Shared != nil
			if g.backlog {
				d.after(g, unknown)
			}
			return nil
		}
		q.Cursor = page.Cursor
	}
}

// releaseRun lets a run in and hastens its messages, if it has any. It reports false if
// the limit does not allow the run to start.
func (d *Door) releaseRun(ctx context.Context, g *gate, run string) (bool, error) {
	waiting, err := d.cfg.Messages.Messages(ctx, g.name.project, run, 1)
	if err != nil || len(waiting) == 0 {
		return err == nil, err
	}
	m := &waiting[0]
	if parked := m.LastError != "" && m.Receipt == ""; g.limit.Free() && !parked && m.Priority == g.limit.Priority {
		return true, nil
	}
	let, err := d.letIn(ctx, g, run)
	if err != nil {
		return false, err
	}
	if !let.OK {
		if let.Wait > 0 {
			d.after(g, let.Wait)
		}
		return false, nil
	}
	err = d.hasten(ctx, g, run)
	return err == nil, err
}

// ledger has the runs that a process has let in that shares its store with no other.
type ledger struct {
	starts Window
	in     map[string]bool // runs that had not started when last seen
}

// letIn is Shared.LetIn.
func (l *ledger) letIn(ctx context.Context, c *Config, limit history.Limit, run string) (let LetIn, err error) {
	if l.in[run] {
		return LetIn{OK: true}, nil
	}
	for {
		if err := l.prune(ctx, c.Store); err != nil {
			return let, err
		}
		let.Pending = slices.Sorted(maps.Keys(l.in))
		if run == "" {
			return let, nil
		}
		if let.Wait = l.starts.Wait(limit.Rate, limit.Period, time.Now()); let.Wait > 0 {
			return let, nil
		}
		if limit.Concurrency == 0 {
			break
		}
		running, err := c.Running(ctx, limit.Project, limit.Workflow)
		if err != nil {
			return let, err
		}
		if running+len(l.in) < limit.Concurrency {
			break
		}
		// A run that has started during the count may have been counted twice.
		if err := l.prune(ctx, c.Store); err != nil || len(l.in) == len(let.Pending) {
			return let, err
		}
	}
	l.in[run] = true
	l.starts.Add(limit.Rate, time.Now())
	let.OK, let.Pending = true, append(let.Pending, run)
	return let, nil
}

// prune drops the runs that have started or ended.
func (l *ledger) prune(ctx context.Context, store Store) error {
	for run := range l.in {
		r, err := store.Run(ctx, run)
		switch {
		case cay.CodeOf(err) == cay.NotFound || err == nil && r.Status != history.Pending:
			delete(l.in, run)
		case err != nil:
			return err
		}
	}
	return nil
}
