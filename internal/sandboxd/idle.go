package sandboxd

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// idling adapts a session to package idle.
type idling struct {
	*session
	e *Engine
}

// AwaitCommands implements idle.Sandbox.
func (i idling) AwaitCommands() (waited bool) {
	for {
		running, err := i.e.runningCommand(i.session)
		if err == nil && running == "" {
			return waited
		}
		if err == nil {
			waited = true
			_, err = i.guest.Wait(i.ctx, running)
		}
		if err != nil {
			if i.ctx.Err() == nil {
				i.e.log.Warn("commands of a sandbox could not be listed; it is taken for active", "sandbox", i.sandboxID, "error", err)
			}
			return true
		}
	}
}

// runningCommand returns the id of a running command, "" if no command runs.
func (e *Engine) runningCommand(m *session) (id string, err error) {
	ctx, cancel := context.WithTimeout(m.ctx, guestPatience)
	defer cancel()
	all, err := m.guest.ListCommands(ctx)
	for _, c := range all {
		if c.Exit == nil {
			id = c.ID
		}
	}
	return id, err
}

// Hold implements idle.Sandbox.
func (i idling) Hold() (release func(), ok bool) {
	if i.lock(i.e.ctx) != nil {
		return nil, false
	}
	return i.unlock, true
}

// Idle implements idle.Sandbox.
func (i idling) Idle(after time.Duration) {
	i.e.stopAfterCheck(i.session, store.End{Reason: sandbox.ReasonIdle, Message: fmt.Sprintf("it was idle for %v", after)})
}

// armIdleLocked sets the timer of the idle timeout, to fire no earlier than atLeast from
// now, if the sandbox runs.
func (m *session) armIdleLocked(atLeast time.Duration) {
	if m.status == sandbox.Running {
		m.idle.Arm(atLeast)
	} else {
		m.idle.Disarm()
	}
}
