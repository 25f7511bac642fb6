package sandboxd

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/ident"
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

var errGone = cay.Errorf(cay.Stopped, "the port of this preview was removed, or its sandbox was deleted")

// IsGone reports whether err is that of a preview that there was once.
func IsGone(err error) bool { return errors.Is(err, errGone) }

// preview is a label that is declared. It does not change.
type preview struct {
	sandboxID string
	label     string
	port      int
	access    sandbox.PortAccess
	epoch     int64
	// m and ctx, which ends when this is no longer so, are nil unless its sandbox
	// runs.
	m      *session
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// previews holds the declared labels of sandboxes that run, for as long as they
// are as the database says.
type previews struct {
	mu      sync.RWMutex
	version int64 // grows with each change; what was read before one is not taken in after it
	byLabel map[string]*preview
}

func (p *previews) get(label string) *preview {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.byLabel[label]
}

func (p *previews) current() int64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.version
}

// put takes in what was read from the database at a version, for a machine that
// runs. It returns what is there now; false if that is to be read again.
func (p *previews) put(v preview, m *session, version int64) (*preview, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.version != version || m.ctx.Err() != nil {
		return nil, false
	}
	if have := p.byLabel[v.label]; have != nil {
		return have, true
	}
	v.m = m
	v.ctx, v.cancel = context.WithCancelCause(m.ctx)
	p.byLabel[v.label] = &v
	return &v, true
}

// forget drops labels that are not as they were. What is under way with them ends.
func (p *previews) forget(ended map[string]bool) {
	if len(ended) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	for label := range ended {
		p.dropLocked(label)
	}
}

// forgetSandbox drops the labels of a sandbox.
func (p *previews) forgetSandbox(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	for label, v := range p.byLabel {
		if v.sandboxID == id {
			p.dropLocked(label)
		}
	}
}

func (p *previews) dropLocked(label string) {
	if v := p.byLabel[label]; v != nil {
		delete(p.byLabel, label)
		v.cancel(errGone)
	}
}

// Preview returns what a label stands for. It is for the preview proxy: the label
// alone admits, whoever asks. A sandbox that is being created is waited for, one
// that is asleep stays so. Errors: not_found, sandbox_stopped (IsGone tells
// whether it was removed, rather than has ended), conflict (paused), unavailable.
func (e *Engine) Preview(ctx context.Context, label string) (*PreviewTarget, error) {
	v, asleep, err := e.preview(ctx, label)
	switch {
	case err != nil:
		return nil, err
	case asleep != nil:
		return &PreviewTarget{SandboxID: asleep.ID, TeamID: asleep.TeamID, Port: v.port, Access: v.access, Asleep: true}, nil
	}
	return e.target(v), nil
}

// WakePreview is Preview for a visitor who may see the port: it makes a sandbox
// that is asleep run. Errors: those of Resume, too.
func (e *Engine) WakePreview(ctx context.Context, label string) (*PreviewTarget, error) {
	for {
		v, asleep, err := e.preview(ctx, label)
		if err != nil {
			return nil, err
		}
		if asleep == nil {
			return e.target(v), nil
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

func (e *Engine) target(v *preview) *PreviewTarget {
	return &PreviewTarget{
		SandboxID: v.sandboxID, TeamID: v.m.scope.Team, Port: v.port, Access: v.access,
		Dial:    func(ctx context.Context) (net.Conn, error) { return e.dialPort(ctx, v.m, v.ctx, v.port) },
		Context: v.ctx,
	}
}

// preview returns a label whose sandbox runs, or could: then it is asleep.
func (e *Engine) preview(ctx context.Context, label string) (v *preview, asleep *store.Row, err error) {
	if v := e.previews.get(label); v != nil && v.m.state() == sandbox.Running {
		return v, nil, nil
	}
	for {
		version := e.previews.current()
		v, d, err := e.declared(ctx, label)
		if err != nil {
			return nil, nil, err
		}
		m := e.live(d.SandboxID)
		if m == nil || d.Status != sandbox.Pending && d.Status != sandbox.Running {
			r, err := e.store.Get(ctx, d.SandboxID)
			if cay.CodeOf(err) == cay.NotFound {
				err = errGone
			}
			if err != nil {
				return nil, nil, err
			}
			if wakes(r) {
				return v, r, nil
			}
			return nil, nil, e.unusable(r)
		}
		switch m.state() {
		case sandbox.Running:
			if v, ok := e.previews.put(*v, m, version); ok {
				return v, nil, nil
			}
			continue // something changed meanwhile
		case sandbox.Paused:
			return nil, nil, e.unusable(&store.Row{Sandbox: sandbox.Sandbox{Name: d.Name, Status: sandbox.Paused}})
		case sandbox.Stopping:
			<-m.ctx.Done() // it is, or is about to be
			if m.persistent() {
				if err := e.settleEnd(ctx, m); err != nil {
					return nil, nil, err
				}
				continue
			}
			return nil, nil, context.Cause(m.ctx)
		case sandbox.Hibernated:
			if err := m.settle(ctx); err != nil {
				return nil, nil, err
			}
			continue
		}
		select {
		case <-m.created:
		case <-ctx.Done():
			return nil, nil, contextError(ctx)
		}
		if m.createErr != nil {
			return nil, nil, stoppedError(d.Name, sandbox.ReasonStart, publicMessage(m.createErr))
		}
	}
}

// declared reads a label that is declared from the database.
func (e *Engine) declared(ctx context.Context, label string) (*preview, store.Declared, error) {
	if len(label) != ident.LabelLength {
		return nil, store.Declared{}, cay.Errorf(cay.NotFound, "there is no such preview")
	}
	d, err := e.store.Declared(ctx, label)
	if err == nil && (d.Gone || d.Status == "") {
		err = errGone
	}
	if err != nil {
		return nil, d, err
	}
	return &preview{sandboxID: d.SandboxID, label: label, port: d.Port, access: d.Access, epoch: d.Epoch}, d, nil
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
		v, _, err := e.declared(ctx, declared.Label)
		if err != nil {
			return nil, err
		}
		if v.access == sandbox.Public {
			return nil, cay.Errorf(cay.Conflict, "port %d is public", port).WithHint("its URL needs no link; declare it private first")
		}
		expires := e.now().Add(time.Duration(p.WithDefaults().TTL)).Truncate(time.Millisecond)
		link := &sandbox.Link{Token: e.linkToken(v, expires), ExpiresAt: expires}
		if declared.URL != "" {
			link.URL = declared.URL + "/?" + tokenQuery + "=" + link.Token
		}
		return link, nil
	}
	return nil, cay.Errorf(cay.NotFound, "sandbox %q does not declare port %d", r.Name, port).WithHint("declare it first, as a private one")
}

// linkToken returns the token of a link: when it expires, and a code of that,
// the label and the epoch of its access.
func (e *Engine) linkToken(v *preview, expires time.Time) string {
	until := strconv.FormatInt(expires.UnixMilli(), 36)
	mac := hmac.New(sha256.New, e.linkKey)
	fmt.Fprintf(mac, "%s|%d|%s", v.label, v.epoch, until) // a hash takes everything
	return until + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// CheckLink returns until when a link's token opens the preview of a label.
// Errors: unauthenticated if it does not, not_found, one that IsGone tells.
func (e *Engine) CheckLink(ctx context.Context, label, token string) (expires time.Time, err error) {
	v := e.previews.get(label)
	if v == nil {
		if v, _, err = e.declared(ctx, label); err != nil {
			return time.Time{}, err
		}
	}
	invalid := cay.Errorf(cay.Unauthenticated, "the link is not valid").WithHint("ask for a new one")
	until, _, _ := strings.Cut(token, ".")
	ms, err := strconv.ParseInt(until, 36, 64)
	if err != nil || ms < 0 {
		return time.Time{}, invalid
	}
	expires = time.UnixMilli(ms).UTC()
	if !hmac.Equal([]byte(token), []byte(e.linkToken(v, expires))) {
		return time.Time{}, invalid
	}
	if !e.now().Before(expires) {
		return time.Time{}, cay.Errorf(cay.Unauthenticated, "the link has expired").WithHint("ask for a new one")
	}
	return expires, nil
}
