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
	"github.com/cayhq/cay/sandbox"
)

// PreviewTarget is what a preview's label stands for.
type PreviewTarget struct {
	SandboxID string
	TeamID    string
	Port      int
	Access    sandbox.PortAccess
	// Asleep says that the sandbox does not run, and that Engine.WakePreview makes
	// it. The rest is not set then.
	Asleep bool
	// Dial connects to the port. The connection has CloseWrite, and ends with
	// Context. While one is open the sandbox is not idle. Errors: unavailable
	// (nothing listens), sandbox_stopped, quota_exceeded.
	Dial func(ctx context.Context) (net.Conn, error)
	// Context ends when what this says is no longer so: the sandbox has ended, or
	// the port is not declared any more, or with another access.
	Context context.Context
}

// IsGone reports whether err is that of a preview that there was once.
func IsGone(err error) bool { return errors.Is(err, label.ErrGone) }

// Preview returns what a label stands for. It is for the preview proxy: the label
// alone admits, whoever asks. A sandbox that is being created is waited for, one
// that is asleep stays so. Errors: not_found, sandbox_stopped (IsGone tells
// whether it was removed, rather than has ended), conflict (paused), unavailable.
func (e *Engine) Preview(ctx context.Context, name string) (*PreviewTarget, error) {
	t, _, err := e.preview(ctx, name)
	return t, err
}

// WakePreview is Preview for a visitor who may see the port: it makes a sandbox
// that is asleep run. Errors: those of Resume, too.
func (e *Engine) WakePreview(ctx context.Context, name string) (*PreviewTarget, error) {
	for {
		t, asleep, err := e.preview(ctx, name)
		if err != nil || asleep == nil {
			return t, err
		}
		if err := e.failedLately(asleep); err != nil {
			return nil, err
		}
		if _, err := e.awake(ctx, asleep, wakeAll, sandbox.ResumeParams{}); err != nil {
			return nil, err
		}
	}
}

// wakeAgain is how long visitors do not wake a sandbox that could not be resumed:
// each try costs a start, of which the team has so many a minute.
const wakeAgain = 10 * time.Second

// failedLately returns an error if a sandbox was to be resumed a moment ago, and
// could not be.
func (e *Engine) failedLately(r *store.Row) error {
	if r.Reason != sandbox.ReasonStart || r.StoppedAt == nil {
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

// preview returns what a label stands for, and its sandbox if that is asleep.
func (e *Engine) preview(ctx context.Context, name string) (t *PreviewTarget, asleep *store.Row, err error) {
	l, err := e.labels.Find(ctx, name, func(ctx context.Context, d store.Declared) (m *session, ok bool, err error) {
		m, asleep, err = e.visited(ctx, d)
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

// visited returns the session of the sandbox that a label is of once it runs, or else
// the sandbox if it is asleep. Errors: label.ErrAgain, and those of Preview.
func (e *Engine) visited(ctx context.Context, d store.Declared) (m *session, asleep *store.Row, err error) {
	m = e.live(d.SandboxID)
	if m == nil || d.Status != sandbox.Pending && d.Status != sandbox.Running {
		r, err := e.store.Get(ctx, d.SandboxID)
		if cay.CodeOf(err) == cay.NotFound {
			err = label.ErrGone
		}
		switch {
		case err != nil || wakes(r):
		case m == nil && (r.Status == sandbox.Running || r.Status == sandbox.Paused):
			if err = e.absent(ctx, r); errors.Is(err, errRaced) {
				err = label.ErrAgain
			}
		default:
			err = e.unusable(r)
		}
		return nil, r, err
	}
	switch m.state() {
	case sandbox.Running:
		return m, nil, nil
	case sandbox.Paused:
		return nil, nil, e.unusable(&store.Row{Sandbox: sandbox.Sandbox{Name: d.Name, Status: sandbox.Paused}})
	case sandbox.Stopping:
		<-m.ctx.Done() // it is, or is about to be
		if m.persistent() {
			return nil, nil, cmp.Or(e.settleEnd(ctx, m), label.ErrAgain)
		}
		return nil, nil, context.Cause(m.ctx)
	case sandbox.Hibernated:
		return nil, nil, cmp.Or(m.settle(ctx), label.ErrAgain)
	}
	select {
	case <-m.created:
	case <-ctx.Done():
		return nil, nil, contextError(ctx)
	}
	if m.createErr != nil {
		return nil, nil, stoppedError(d.Name, sandbox.ReasonStart, publicMessage(m.createErr))
	}
	return nil, nil, label.ErrAgain
}

// tokenQuery is the parameter of a link's URL that holds its token.
const tokenQuery = "_cay_token"

// CreateLink implements Service.
func (e *Engine) CreateLink(ctx context.Context, ref string, port int, p sandbox.LinkParams) (*sandbox.Link, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	r, _, err := e.current(ctx, ref)
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

// CheckLink returns until when a link's token opens the preview of a label.
// Errors: unauthenticated if it does not, not_found, one that IsGone tells.
func (e *Engine) CheckLink(ctx context.Context, name, token string) (expires time.Time, err error) {
	return e.labels.CheckLink(ctx, name, token)
}
