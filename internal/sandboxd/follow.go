package sandboxd

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/feed"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

var (
	_ sandbox.StatsWatch   = (*feed.Watch[sandbox.Stats])(nil)
	_ sandbox.CommandWatch = (*feed.Watch[sandbox.CommandChange])(nil)
	_ sandbox.Changes      = (*feed.Changes)(nil)
)

// statsPeriod is the interval at which a watched machine's counters are read.
const statsPeriod = 2 * time.Second

// WatchSandboxes implements Service.
func (e *Engine) WatchSandboxes(ctx context.Context, p sandbox.ChangeParams) (sandbox.Changes, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "sandboxes", p.ProjectID, store.SortedBy("", false), "", 1)
	if err != nil {
		return nil, err
	}
	read := func(id string) (*sandbox.Sandbox, error) {
		r, err := e.store.Find(ctx, l.Scope, id)
		if err != nil {
			return nil, err
		}
		e.refreshRows(ctx, []*store.Row{r}, time.Second)
		return &r.Sandbox, nil
	}
	w, err := e.watchers.Watch(l.Scope.Team, l.Scope.Project, read)
	if err != nil {
		return nil, err
	}
	w.EndWith(ctx, func() error { return wire.ContextError(ctx) })
	return w, nil
}

// WatchStats implements Service.
func (e *Engine) WatchStats(ctx context.Context, ref string) (sandbox.StatsWatch, error) {
	r, m, err := e.running(ctx, ref, true)
	if err != nil {
		return nil, err
	}
	w, feeding, err := watching(ctx, m, &m.readings)
	if err != nil {
		return nil, err
	}
	if feeding == nil {
		w.OfferLast("")
	} else if !e.background(func() { e.feedStats(feeding, r, m) }) {
		w.Cancel(errClosing)
	}
	return w, nil
}

// watching adds a watch to a feed of a machine; it ends with ctx or with the machine. See
// feed.Feed.Add.
func watching[T any](ctx context.Context, m *session, f *feed.Feed[T]) (*feed.Watch[T], context.Context, error) {
	w, feeding, err := f.Add(ctx)
	if err == nil {
		w.EndWith(ctx, func() error { return wire.ContextError(ctx) })
		w.EndWith(m.ctx, func() error { return ended(m) })
	}
	return w, feeding, err
}

// ended returns the error with which a watch ends together with its machine: io.EOF if
// the session is over.
func ended(m *session) error {
	if why := context.Cause(m.ctx); cay.CodeOf(why) != cay.Stopped {
		return why
	}
	return io.EOF
}

// running returns a running sandbox or, if paused is set, a running or paused one.
func (e *Engine) running(ctx context.Context, ref string, paused bool) (*store.Row, *session, error) {
	r, m, err := e.lookupWithMachine(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if m == nil || r.Status != sandbox.Running && !(paused && r.Status == sandbox.Paused) {
		return nil, nil, e.statusError(r)
	}
	return r, m, nil
}

// feedStats reads a machine's counters until ctx ends. A failed reading is skipped: the
// machine may be about to be paused, or to end.
func (e *Engine) feedStats(ctx context.Context, r *store.Row, m *session) {
	tick := time.NewTicker(statsPeriod)
	defer tick.Stop()
	for {
		if st, err := e.readStats(ctx, r, m); err == nil {
			m.readings.Tell("", *st)
		} else if ctx.Err() == nil {
			e.log.DebugContext(ctx, "counters of a sandbox could not be read", "sandbox", m.sandboxID, "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// WatchCommands implements Service.
func (e *Engine) WatchCommands(ctx context.Context, ref string) (sandbox.CommandWatch, error) {
	_, m, err := e.running(ctx, ref, false)
	if err != nil {
		return nil, err
	}
	// Start the watch before reading the list, so that no command between the two is
	// missed.
	w, _, err := watching(ctx, m, &m.changes)
	if err != nil {
		return nil, err
	}
	bound, end := m.bound(ctx)
	defer end()
	all, err := m.guest.ListCommands(bound)
	if err != nil {
		w.Close()
		if ctx.Err() != nil {
			return nil, wire.ContextError(ctx)
		}
		return nil, e.machineError(m, err)
	}
	for _, c := range slices.Backward(all) {
		w.Offer(c.ID, sandbox.CommandChange{Type: sandbox.Changed, Command: named(&c, m)})
		if c.Exit == nil {
			e.awaitExit(m, c.ID)
		}
	}
	w.Offer("", sandbox.CommandChange{Type: sandbox.Ready})
	return w, nil
}

// noteStart notifies watchers of the machine's commands of a new command.
func (e *Engine) noteStart(m *session, c *sandbox.Command) {
	if c == nil || !m.changes.Watched() {
		return
	}
	now := *c // a copy, as the caller may change its own
	m.changes.Tell(c.ID, sandbox.CommandChange{Type: sandbox.Changed, Command: named(&now, m)})
	if c.Exit == nil {
		e.awaitExit(m, c.ID)
	}
}

// awaitExit notifies watchers of a machine's commands when a command exits. It waits for
// the guest to report the exit, without polling. If the guest connection is lost, all
// watches end, and watchers list the commands again.
func (e *Engine) awaitExit(m *session, id string) {
	ctx := m.changes.Begin(id)
	if ctx == nil {
		return
	}
	e.background(func() {
		bound, end := m.bound(ctx)
		defer end()
		c, err := m.guest.Wait(bound, id)
		m.changes.Done(ctx, id)
		switch {
		case err == nil:
			m.changes.Tell(id, sandbox.CommandChange{Type: sandbox.Changed, Command: named(c, m)})
		case bound.Err() != nil, cay.CodeOf(err) == cay.NotFound: // nobody watches, or the guest has dropped the command since it exited
		default:
			m.changes.Fail(e.machineError(m, err))
		}
	})
}
