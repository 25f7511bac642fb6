package sandboxd

import (
	"context"
	"errors"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// wake says which sandboxes a call resumes. Each value includes those before it.
type wake int

const (
	// wakeNone resumes no sandbox.
	wakeNone wake = iota
	// wakeHibernated resumes hibernated sandboxes, whose processes go on. It is for calls
	// about commands, which a restarted sandbox does not know.
	wakeHibernated
	// wakeAll also resumes persistent sandboxes.
	wakeAll
	// wakeAsked also resumes sandboxes that failed to start.
	wakeAsked
	// wakeFresh also starts sandboxes that are not persistent, without their unsaved
	// files.
	wakeFresh
)

// errRaced is the error of a transition that found the sandbox in another status than
// expected.
var errRaced = errors.New("the sandbox is not where it was")

// ensureRunning returns the machine of a running sandbox. It waits for a sandbox that is being
// resumed, and resumes one that does not run, if w says so; the first of concurrent
// callers resumes it, and the others wait. With wakeAsked or more it also waits for a
// sandbox that is being created. A call restricted to a session resumes nothing. Errors:
// sandbox_stopped, conflict (paused, or being created), and those of Resume.
func (e *Engine) ensureRunning(ctx context.Context, r *store.Row, w wake, p sandbox.ResumeParams) (_ *session, err error) {
	if r.Only != "" {
		w = wakeNone
	}
	for {
		if err := r.Over(); err != nil {
			return nil, err
		}
		m := e.live(r.ID)
		if m == nil {
			switch {
			case r.Status.Final() || r.Status == sandbox.Hibernated:
				if !wakesBy(r, w) {
					return nil, e.statusError(r)
				}
				if m, err = e.resume(ctx, r, p); err != nil && !errors.Is(err, errRaced) {
					return nil, err
				}
				if err == nil {
					return m, nil
				}
			default:
				if err := e.missingMachineError(ctx, r); !errors.Is(err, errRaced) {
					return nil, err
				}
			}
			// The sandbox has ended, or was resumed, since r was read.
		} else if r.Only == "" || m.sessionID() == r.Only { // else the session has ended since r was read
			switch m.state() {
			case sandbox.Running:
				return m, nil
			case sandbox.Paused:
				r.Status = sandbox.Paused
				return nil, e.statusError(r)
			case sandbox.Stopping:
				if w == wakeNone || !m.persistent() && w < wakeFresh {
					<-m.ctx.Done() // ended now or in a moment
					return nil, context.Cause(m.ctx)
				}
				if why := m.why.Load(); why != nil && why.Deleting {
					return nil, context.Cause(m.ctx)
				}
				err = e.awaitCleanup(ctx, m)
			case sandbox.Hibernated:
				err = m.awaitHibernation(ctx)
			case sandbox.Pending:
				created := r.Status != sandbox.Pending // the creating call is about to set the session's state
				if !created && w < wakeAsked {
					return nil, e.statusError(r)
				}
				if err = m.awaitCreated(ctx); err != nil && !created && ctx.Err() == nil {
					err = errRaced // the row says why the creation failed
				}
			case sandbox.Resuming:
				err = m.awaitCreated(ctx)
			}
			if err != nil && !errors.Is(err, errRaced) {
				return nil, err
			}
		}
		if r, err = e.store.Reread(ctx, r); err != nil {
			return nil, err
		}
	}
}

// awaitCleanup waits until nothing of an ending machine is left. Errors: unavailable if the
// end failed and will be retried.
func (e *Engine) awaitCleanup(ctx context.Context, m *session) error {
	<-m.ctx.Done() // ended now or in a moment
	if cause := context.Cause(m.ctx); errors.Is(cause, errClosing) {
		return cause
	}
	if !m.stuck.Load() {
		err := e.awaitEnd(ctx, m)
		if e.ctx.Err() != nil {
			return errClosing // Close detaches machines that are ending
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
	return cay.Errorf(cay.Unavailable, "the end of the sandbox before is not done yet, and is tried again").
		WithHint("try again in a minute; the daemon's log says what is in the way")
}

// awaitCreated waits until a machine that is being started runs, and returns an error if
// it failed to start.
func (m *session) awaitCreated(ctx context.Context) error {
	select {
	case <-m.created:
		return m.createErr
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
}

// wakesBy reports whether w resumes a sandbox that has ended or is hibernated.
func wakesBy(r *store.Row, w wake) bool {
	switch {
	case r.Deleting:
		return false
	case r.Status == sandbox.Hibernated:
		return w >= wakeHibernated
	}
	if r.Status == sandbox.Failed && r.Reason == sandbox.ReasonStartFailed && w < wakeAsked {
		return false
	}
	return w >= wakeAll && r.Persistent || w == wakeFresh
}

// wakes reports whether a sandbox that does not run is being resumed, or is one that
// wakeAll resumes.
func wakes(r *store.Row) bool {
	switch r.Status {
	case sandbox.Resuming:
		return true
	case sandbox.Stopping:
		return r.Persistent && !r.Deleting
	}
	return (r.Status.Final() || r.Status == sandbox.Hibernated) && wakesBy(r, wakeAll)
}

// resume starts a session of a sandbox that has ended or is hibernated. It is independent
// of the caller: when the caller leaves, it goes on. It returns errRaced if another
// caller resumes the sandbox, or the sandbox is not in the status of r.
func (e *Engine) resume(ctx context.Context, r *store.Row, p sandbox.ResumeParams) (*session, error) {
	quota, err := e.cfg.Accounts.Quota(ctx, r.TeamID)
	if err != nil {
		return nil, fmt.Errorf("read quota: %w", err)
	}
	if err := e.cfg.CheckSpace(); err != nil {
		return nil, fmt.Errorf("resume sandbox: %w", err)
	}
	begun := *r
	begun.SessionID, begun.Status = ident.NewSession(), sandbox.Resuming
	m := e.newSession(&begun)
	other, err := e.add(m)
	if err == nil && other != nil {
		err = errRaced
	}
	if err != nil {
		m.cancel(nil)
		return nil, err
	}
	work := func() {
		ctx := context.WithoutCancel(ctx)
		r, err := e.store.Resume(ctx, m.sandboxID, m.id, ident.NewToken(), p.Fresh, quota, e.now())
		if err == nil && r == nil {
			err = errRaced
		}
		if err != nil {
			m.createErr = err
			m.detach(err)
			e.drop(m)
			close(m.created)
			close(m.gone)
			return
		}
		e.at("resuming")
		e.freeCommands() // of sessions beyond the last 1000
		r.FilesOnly = p.FilesOnly
		_, _ = e.boot(ctx, m, r) // the error is in m.createErr
	}
	if !e.background(work) {
		m.createErr = errClosing
		m.detach(errClosing)
		e.drop(m)
		close(m.created)
		close(m.gone)
	}
	if err := m.awaitCreated(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Resume implements Service.
func (e *Engine) Resume(ctx context.Context, ref string, p sandbox.ResumeParams) (*sandbox.Sandbox, error) {
	r, _, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return nil, err
	}
	w := wakeAsked
	if p.Fresh {
		w = wakeFresh
	}
	for {
		if r.Status == sandbox.Paused {
			s, err := e.unpause(ctx, r.Ref())
			if !errors.Is(err, errRaced) {
				return s, err
			}
		} else if _, err := e.ensureRunning(ctx, r, w, p); err == nil {
			return e.reread(ctx, r.ID)
		} else if cay.CodeOf(err) != cay.Conflict {
			return nil, err
		} else if m := e.live(r.ID); m == nil || m.state() != sandbox.Paused {
			return nil, err
		}
		if r, err = e.store.Reread(ctx, r); err != nil {
			return nil, err
		}
	}
}
