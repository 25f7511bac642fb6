package sandboxd

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

var (
	_ sandbox.StatsWatch   = (*feedWatch[sandbox.Stats])(nil)
	_ sandbox.CommandWatch = (*feedWatch[sandbox.CommandChange])(nil)
)

// statsPeriod is how often counters are read while somebody watches them.
const statsPeriod = 2 * time.Second

// WatchStats implements Service.
func (e *Engine) WatchStats(ctx context.Context, ref string) (sandbox.StatsWatch, error) {
	r, m, err := e.running(ctx, ref, true)
	if err != nil {
		return nil, err
	}
	w, feeding, err := m.readings.add(ctx, m)
	if err != nil {
		return nil, err
	}
	if feeding == nil {
		w.offerLast("")
	} else if !e.background(func() { e.feedStats(feeding, r, m) }) {
		w.cancel(errClosing)
	}
	return w, nil
}

// running returns a sandbox that runs, or may be paused.
func (e *Engine) running(ctx context.Context, ref string, paused bool) (*row, *machine, error) {
	r, m, err := e.current(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if m == nil || r.Status != sandbox.Running && !(paused && r.Status == sandbox.Paused) {
		return nil, nil, e.unusable(r)
	}
	return r, m, nil
}

// feedStats reads a machine's counters until ctx ends. One reading that fails is
// left out: the machine may be about to be paused, or to end.
func (e *Engine) feedStats(ctx context.Context, r *row, m *machine) {
	tick := time.NewTicker(statsPeriod)
	defer tick.Stop()
	for {
		if st, err := e.readStats(ctx, r, m); err == nil {
			m.readings.tell("", *st)
		} else if ctx.Err() == nil {
			e.log.DebugContext(ctx, "counters of a sandbox could not be read", "sandbox", m.id, "error", err)
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
	// Before the list is read, so that nothing is missed in between.
	w, _, err := m.changes.add(ctx, m)
	if err != nil {
		return nil, err
	}
	bound, end := m.bound(ctx)
	defer end()
	all, err := m.guest.ListCommands(bound)
	if err != nil {
		w.Close()
		if ctx.Err() != nil {
			return nil, contextError(ctx)
		}
		return nil, e.machineError(m, err)
	}
	for _, c := range slices.Backward(all) {
		w.offer(c.ID, sandbox.CommandChange{Type: sandbox.Changed, Command: named(&c, m)})
		if c.Exit == nil {
			e.awaitExit(m, c.ID)
		}
	}
	w.offer("", sandbox.CommandChange{Type: sandbox.Ready})
	return w, nil
}

// noteStart tells those who watch the machine's commands of a new one.
func (e *Engine) noteStart(m *machine, c *sandbox.Command) {
	if c == nil || !m.changes.watched() {
		return
	}
	now := *c // the caller may change its own
	m.changes.tell(c.ID, sandbox.CommandChange{Type: sandbox.Changed, Command: named(&now, m)})
	if c.Exit == nil {
		e.awaitExit(m, c.ID)
	}
}

// awaitExit has those who watch a machine's commands told when one exits. The guest
// says so: nobody asks again and again. Of a guest that is lost, all watches end, and
// who still wants to know lists anew.
func (e *Engine) awaitExit(m *machine, id string) {
	ctx := m.changes.begin(id)
	if ctx == nil {
		return
	}
	e.background(func() {
		bound, end := m.bound(ctx)
		defer end()
		c, err := m.guest.Wait(bound, id)
		m.changes.done(ctx, id)
		switch {
		case err == nil:
			m.changes.tell(id, sandbox.CommandChange{Type: sandbox.Changed, Command: named(c, m)})
		case bound.Err() != nil, cay.CodeOf(err) == cay.NotFound: // nobody watches; or it was forgotten, having exited long ago
		default:
			m.changes.fail(e.machineError(m, err))
		}
	})
}
