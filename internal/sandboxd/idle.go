package sandboxd

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// touch notes activity: a call, bytes that move.
func (e *Engine) touch(m *session) { m.lastActive.Store(int64(e.clock.Mono())) }

// armIdleLocked sets the timer of the idle timeout, at least atLeast from now.
// The timer is not moved by each activity: when it fires it looks how long the
// last one is ago.
func (e *Engine) armIdleLocked(m *session, atLeast time.Duration) {
	clock.Stop(&m.idler)
	if m.idle == 0 || m.status != sandbox.Running {
		return
	}
	at := max(time.Duration(m.lastActive.Load())+m.idle, e.clock.Mono()+atLeast)
	m.idler = e.clock.At(at, func() { e.background(func() { e.checkIdle(m) }) })
}

// checkIdle, called by the idle timer, stops a sandbox that has been idle for its idle timeout, and
// otherwise arms the timer again. A command that runs keeps a sandbox active
// until it exits, whoever is connected: its exit is waited for.
func (e *Engine) checkIdle(m *session) {
	if !m.idling.CompareAndSwap(false, true) {
		return // the one under way arms the timer again
	}
	active, err := e.awaitCommands(m)
	if err != nil {
		if m.ctx.Err() == nil {
			e.log.Warn("commands of a sandbox could not be listed; it is taken for active", "sandbox", m.sandboxID, "error", err)
		}
		active = true
	}
	if active {
		e.touch(m)
	}
	if m.lock(e.ctx) != nil {
		return
	}
	defer m.unlock()
	m.mu.Lock()
	m.idling.Store(false)
	idle := m.idle
	due := idle != 0 && m.status == sandbox.Running && m.busy.Load() == 0 &&
		e.clock.Mono()-time.Duration(m.lastActive.Load()) >= idle
	if !due {
		if m.busy.Load() > 0 {
			e.touch(m)
		}
		e.armIdleLocked(m, 0)
	}
	m.mu.Unlock()
	if due {
		e.stopAfterCheck(m, store.End{Reason: sandbox.ReasonIdle, Message: fmt.Sprintf("it was idle for %v", idle)})
	}
}

// awaitCommands waits until no command runs in the guest, and reports whether
// one did. It costs nothing if there was activity anyhow.
func (e *Engine) awaitCommands(m *session) (waited bool, err error) {
	m.mu.Lock()
	recent := m.status != sandbox.Running || e.clock.Mono()-time.Duration(m.lastActive.Load()) < m.idle
	m.mu.Unlock()
	if recent {
		return false, nil
	}
	for {
		cmds, err := e.guestCommands(m)
		if err != nil {
			return waited, err
		}
		running := ""
		for _, c := range cmds {
			if c.Exit == nil {
				running = c.ID
			}
		}
		if running == "" {
			return waited, nil
		}
		waited = true
		if _, err := m.guest.Wait(m.ctx, running); err != nil {
			return waited, err
		}
	}
}

func (e *Engine) guestCommands(m *session) ([]sandbox.Command, error) {
	ctx, cancel := context.WithTimeout(m.ctx, guestPatience)
	defer cancel()
	return m.guest.ListCommands(ctx)
}
