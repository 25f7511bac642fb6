package sandboxd

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// A guest may stop answering: a root program in the guest has stopped its agent, or the
// machine gets no CPU time. So while calls into a guest are under way, the engine asks
// for its health every Limits.Answer. If the guest sends no byte for that long, or for up
// to guest.Patience on a host whose CPUs are all busy, the calls end with an error, new
// calls are refused, and the sandbox has unresponsive_since until the guest answers
// again. Connections to ports are left alone: they belong to programs, which may be fine.

// answering is a period in which a guest answers, or in which it does not.
type answering struct {
	// ctx is a child of the machine's context, and ends when the guest stops answering.
	// The cause is the error that callers get.
	ctx    context.Context
	cancel context.CancelCauseFunc
	since  *time.Time // when the guest stopped answering; nil: it answers
}

func (m *session) answersFromNow() {
	a := new(answering)
	a.ctx, a.cancel = context.WithCancelCause(m.ctx)
	m.answers.Store(a)
}

// standsStill reports whether the guest cannot answer because the engine has paused its
// machine or is saving it.
func (m *session) standsStill() bool {
	if m.state() != sandbox.Running || !m.saving.TryLock() {
		return true
	}
	defer m.saving.Unlock()
	return m.paused
}

// watchGuest makes the engine probe the guest while calls are under way.
func (e *Engine) watchGuest(m *session) {
	if m.watched.CompareAndSwap(false, true) {
		e.armProbe(m)
	}
}

func (e *Engine) armProbe(m *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.detached {
		m.prober = e.clock.At(e.clock.Mono()+e.cfg.Limits.Answer, func() { e.background(func() { e.probe(m) }) })
	}
}

// probe asks the guest for its health once, if calls are under way or the guest did not
// answer before.
func (e *Engine) probe(m *session) {
	silent := m.answers.Load().since != nil
	if m.calls.Load() == 0 && !silent {
		m.watched.Store(false)
		if m.calls.Load() > 0 { // a call has begun meanwhile
			e.watchGuest(m)
		}
		return
	}
	defer e.armProbe(m)
	if m.standsStill() {
		return
	}
	heard := m.guest.Heard()
	ctx, cancel := context.WithTimeout(m.ctx, max(e.cfg.Limits.Answer, guest.Patience))
	defer cancel()
	h, err := m.guest.Health(ctx) // returns an error if the guest sends nothing, see guest.Client.Silence
	switch answers := err == nil || m.guest.Heard() != heard; {
	case m.ctx.Err() != nil || isClosed(m.inst.Done()):
	case answers && silent:
		e.answersAgain(m, h)
	case !answers && !silent && !m.standsStill():
		e.fellSilent(m, err)
	}
}

// fellSilent ends all calls into a guest that does not answer.
func (e *Engine) fellSilent(m *session, err error) {
	e.log.Warn("sandbox does not answer", "sandbox", m.sandboxID, "calls", m.calls.Load(), "error", err)
	now := e.now()
	before := m.answers.Load()
	m.answers.Store(&answering{ctx: before.ctx, cancel: before.cancel, since: &now})
	before.cancel(cay.Errorf(cay.Unavailable, "the sandbox does not answer since %s", now.Format(time.RFC3339)).
		WithHint("it is overloaded, or a program in it has stopped its agent; if waiting does not help, stop the sandbox"))
	m.guest.CloseIdleConnections()
	e.answersChanged(m)
}

// answersAgain admits calls into the guest again.
func (e *Engine) answersAgain(m *session, h guest.Health) {
	e.log.Info("sandbox answers again", "sandbox", m.sandboxID)
	m.answersFromNow()
	e.answersChanged(m)
	if r, err := e.store.Get(e.ctx, m.sandboxID); err != nil {
		e.log.Warn("a sandbox that answers again was not given its certificates", "sandbox", m.sandboxID, "error", err)
	} else if m.lock(e.ctx) == nil {
		defer m.unlock()
		e.trustAtStart(e.ctx, m, r.Network, h.Trust)
	}
	e.resetStale(m)
}

// answersChanged notifies watchers that the guest has stopped answering, or answers
// again.
func (e *Engine) answersChanged(m *session) {
	e.watchers.Tell(m.scope.Team, m.scope.Project, m.sandboxID)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countSilentLocked()
}

func (e *Engine) countSilentLocked() {
	n := 0
	for _, m := range e.bySandbox {
		if m.answers.Load().since != nil {
			n++
		}
	}
	e.cfg.Metrics.Unresponsive(n)
}
