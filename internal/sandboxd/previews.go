package sandboxd

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/label"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// PreviewTarget is the port that a preview's label names.
type PreviewTarget struct {
	SandboxID string
	TeamID    string
	Port      int
	Access    sandbox.PortAccess
	// Asleep says that the sandbox does not run, and that Engine.WakePreview can resume
	// it. Dial and Context are not set then.
	Asleep bool
	// Dial connects to the port. The connection has CloseWrite, and ends with Context.
	// The sandbox is not idle while a connection is open. Errors: unavailable (nothing
	// listens), sandbox_stopped, quota_exceeded.
	Dial func(ctx context.Context) (net.Conn, error)
	// Context ends when the PreviewTarget is outdated: the sandbox has ended, or the port
	// is no longer declared, or has another access.
	Context context.Context
}

// IsGone reports whether err says that the preview existed and was removed.
func IsGone(err error) bool { return errors.Is(err, label.ErrGone) }

// Preview returns the target of a label. It is for the preview proxy, and checks no
// caller: whoever knows the label is admitted. Preview waits for a sandbox that is being
// created, and does not wake one that is asleep. Errors: not_found, sandbox_stopped
// (IsGone tells a removed sandbox from one that has ended), conflict (paused),
// unavailable.
func (e *Engine) Preview(ctx context.Context, name string) (*PreviewTarget, error) {
	t, _, err := e.preview(ctx, name)
	return t, err
}

// WakePreview is Preview for a visitor who may see the port: it resumes a sandbox that is
// asleep. Errors: also those of Resume.
func (e *Engine) WakePreview(ctx context.Context, name string) (*PreviewTarget, error) {
	for {
		t, asleep, err := e.preview(ctx, name)
		if err != nil || asleep == nil {
			return t, err
		}
		if err := e.failedLately(asleep); err != nil {
			return nil, err
		}
		if _, err := e.ensureRunning(ctx, asleep, wakeAll, sandbox.ResumeParams{}); err != nil {
			return nil, err
		}
	}
}

// wakeAgain is how long visitors cannot wake a sandbox after a failed resume: each
// attempt costs one of the team's creations per minute.
const wakeAgain = 10 * time.Second

// failedLately returns an error if a resume of the sandbox has failed within wakeAgain.
func (e *Engine) failedLately(r *store.Row) error {
	if r.Reason != sandbox.ReasonStartFailed || r.StoppedAt == nil {
		return nil
	}
	since := e.now().Sub(*r.StoppedAt)
	if since < 0 || since >= wakeAgain {
		return nil
	}
	err := cay.Errorf(cay.Unavailable, "sandbox %q could not be resumed: %s", r.Name, r.Message)
	err.RetryAfter = wakeAgain - since
	return err
}

// preview returns the target of a label, and the row of its sandbox if the sandbox is
// asleep.
func (e *Engine) preview(ctx context.Context, name string) (t *PreviewTarget, asleep *store.Row, err error) {
	l, err := e.labels.Find(ctx, name, func(ctx context.Context, d store.Declared) (m *session, ok bool, err error) {
		m, asleep, err = e.previewSession(ctx, d)
		return m, m != nil, err
	})
	if err != nil {
		return nil, nil, err
	}
	t = &PreviewTarget{SandboxID: l.SandboxID, Port: l.Port, Access: l.Access}
	if m := l.Session; m != nil {
		t.TeamID, t.Context = m.scope.Team, l.Context
		t.Dial = func(ctx context.Context) (net.Conn, error) { return e.dialPort(ctx, m, l.Context, l.Port) }
		return t, nil, nil
	}
	t.TeamID, t.Asleep = asleep.TeamID, true
	return t, asleep, nil
}

// previewSession returns the session of a label's sandbox once it runs, or the row of the
// sandbox if it is asleep. Errors: label.ErrAgain, and those of Preview.
func (e *Engine) previewSession(ctx context.Context, d store.Declared) (m *session, asleep *store.Row, err error) {
	m = e.live(d.SandboxID)
	if m == nil || d.Status != sandbox.Pending && d.Status != sandbox.Running {
		r, err := e.store.Get(ctx, d.SandboxID)
		if cay.CodeOf(err) == cay.NotFound {
			err = label.ErrGone
		}
		switch {
		case err != nil || wakes(r):
		case m == nil && (r.Status == sandbox.Running || r.Status == sandbox.Paused):
			if err = e.missingMachineError(ctx, r); errors.Is(err, errRaced) {
				err = label.ErrAgain
			}
		default:
			err = e.statusError(r)
		}
		return nil, r, err
	}
	switch m.state() {
	case sandbox.Running:
		return m, nil, nil
	case sandbox.Paused:
		return nil, nil, e.statusError(&store.Row{Sandbox: sandbox.Sandbox{Name: d.Name, Status: sandbox.Paused}})
	case sandbox.Stopping:
		<-m.ctx.Done() // ended, or about to end
		if m.persistent() {
			return nil, nil, cmp.Or(e.awaitCleanup(ctx, m), label.ErrAgain)
		}
		return nil, nil, context.Cause(m.ctx)
	case sandbox.Hibernated:
		return nil, nil, cmp.Or(m.awaitHibernation(ctx), label.ErrAgain)
	}
	select {
	case <-m.created:
	case <-ctx.Done():
		return nil, nil, wire.ContextError(ctx)
	}
	if m.createErr != nil {
		return nil, nil, stoppedError(d.Name, sandbox.ReasonStartFailed, publicMessage(m.createErr))
	}
	return nil, nil, label.ErrAgain
}

// tokenQuery is the URL parameter of a link that holds its token.
const tokenQuery = "_cay_token"

// CreateLink implements Service.
func (e *Engine) CreateLink(ctx context.Context, ref string, port int, p sandbox.LinkParams) (*sandbox.Link, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r, _, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, declared := range r.Ports {
		if declared.Port != port {
			continue
		}
		l, err := e.labels.Read(ctx, declared.Label)
		if err != nil {
			return nil, err
		}
		if l.Access == sandbox.Public {
			return nil, cay.Errorf(cay.Conflict, "port %d is public", port).WithHint("its URL needs no link; declare it private first")
		}
		expires := e.now().Add(time.Duration(p.WithDefaults().TTL)).Truncate(time.Millisecond)
		link := &sandbox.Link{Token: e.labels.Link(l, expires), ExpiresAt: expires}
		if declared.URL != "" {
			link.URL = declared.URL + "/?" + tokenQuery + "=" + link.Token
		}
		return link, nil
	}
	return nil, cay.Errorf(cay.NotFound, "sandbox %q does not declare port %d", r.Name, port).WithHint("declare it first, as a private one")
}

// CheckLink returns the time until which a link's token opens the preview of a label.
// Errors: unauthenticated if the token is not valid, not_found, an error for which IsGone
// returns true.
func (e *Engine) CheckLink(ctx context.Context, name, token string) (expires time.Time, err error) {
	return e.labels.CheckLink(ctx, name, token)
}
