package sandboxd

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Get implements Service.
func (e *Engine) Get(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.store.find(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	e.bringUpToDate(ctx, []*row{r}, 0)
	return &r.Sandbox, nil
}

// bringUpToDate adds to rows what their machines know better. Counters read
// less than age ago are good enough.
func (e *Engine) bringUpToDate(ctx context.Context, rows []*row, age time.Duration) {
	byID := make(map[string]*machine)
	var machines []*machine
	for _, r := range rows {
		if m := e.machine(r.ID); m != nil {
			byID[r.ID] = m
			machines = append(machines, m)
		}
	}
	e.refreshAll(ctx, machines, age)
	now, mono := e.now(), e.clock.Mono()
	for _, r := range rows {
		if m := byID[r.ID]; m != nil {
			m.overlay(r, now, mono)
		}
	}
}

// cursor is where a page of a list begins: after the sandbox it names.
type cursor struct {
	At int64  `json:"t"`
	ID string `json:"i"`
}

func (c cursor) String() string {
	b, _ := json.Marshal(c) // a number and a string always encode
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseCursor(s string) (c cursor, err error) {
	if s == "" {
		return c, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || c.ID == "" {
		return c, cay.Errorf(cay.Invalid, "cursor %.100q is not one of a list of sandboxes", s).
			WithHint("pass the next field of the page before")
	}
	return c, nil
}

// List implements Service.
func (e *Engine) List(ctx context.Context, p sandbox.ListParams) (*sandbox.Page[sandbox.Sandbox], error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	after, err := parseCursor(p.Cursor)
	if err != nil {
		return nil, err
	}
	// A team without a default project is listed whole.
	whole := p.ProjectID == "" && sc.project == "" && sc.team != account.DefaultTeam
	if p.ProjectID != "*" && !whole {
		if sc.project, err = e.project(ctx, sc, p.ProjectID); err != nil {
			return nil, err
		}
	}
	if p.Limit == 0 {
		p.Limit = 50
	}
	rows, err := e.store.list(ctx, sc, p, after, p.Limit+1)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Sandbox]{Items: []sandbox.Sandbox{}}
	if len(rows) > p.Limit {
		rows = rows[:p.Limit]
		last := rows[p.Limit-1]
		page.Next = cursor{last.CreatedAt.UnixMilli(), last.ID}.String()
	}
	e.bringUpToDate(ctx, rows, time.Second)
	for _, r := range rows {
		page.Items = append(page.Items, r.Sandbox)
	}
	return page, nil
}

// found is a sandbox a method is about: its row, and its machine if it has one.
func (e *Engine) found(ctx context.Context, ref string) (*row, *machine, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, nil, err
	}
	r, err := e.store.find(ctx, sc, ref)
	if err != nil {
		return nil, nil, err
	}
	return r, e.machine(r.ID), nil
}

// locked is found for a sandbox that must run, or be paused. It holds the
// machine's op, which the caller unlocks.
func (e *Engine) locked(ctx context.Context, ref string) (*row, *machine, error) {
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	if m == nil || r.Status != sandbox.Running && r.Status != sandbox.Paused {
		return nil, nil, e.unusable(r)
	}
	if err := m.lock(ctx); err != nil {
		return nil, nil, err
	}
	// It may have changed while we waited.
	if r, err = e.store.get(ctx, r.ID); err == nil && r.Status != sandbox.Running && r.Status != sandbox.Paused {
		err = e.unusable(r)
	}
	if err != nil {
		m.unlock()
		return nil, nil, err
	}
	return r, m, nil
}

// unusable says why a sandbox cannot be worked with.
func (e *Engine) unusable(r *row) error {
	switch r.Status {
	case sandbox.Pending:
		return cay.Errorf(cay.Conflict, "sandbox %q is still being created", r.Name).WithHint("wait until it is running")
	case sandbox.Paused:
		return cay.Errorf(cay.Conflict, "sandbox %q is paused", r.Name).WithHint("resume it first")
	}
	return stoppedError(r.Name, r.Reason, r.Message)
}

// reread returns a sandbox as it is now.
func (e *Engine) reread(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	r, err := e.store.get(ctx, id)
	if err != nil {
		return nil, err
	}
	e.bringUpToDate(ctx, []*row{r}, time.Second)
	return &r.Sandbox, nil
}

// Update implements Service.
func (e *Engine) Update(ctx context.Context, ref string, p sandbox.UpdateParams) (*sandbox.Sandbox, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	c := change{tags: p.Tags, idle: p.IdleTimeout}
	if p.Ports != nil {
		var err error
		if c.ports, err = declare(p.Ports); err != nil {
			return nil, err
		}
	}
	if p.Network == nil && p.IdleTimeout == nil {
		r, _, err := e.found(ctx, ref)
		if err != nil {
			return nil, err
		}
		if c.tags != nil || c.ports != nil {
			ended, _, err := e.store.update(ctx, r.ID, c, e.now())
			if err != nil {
				return nil, fmt.Errorf("update sandbox: %w", err)
			}
			e.previews.forget(ended)
		}
		return e.reread(ctx, r.ID)
	}
	r, m, err := e.locked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	var network sandbox.Network
	if p.Network != nil {
		network = p.Network.WithDefaults()
		if err := network.Limits.Within(e.cfg.Limits.Network); err != nil {
			return nil, err
		}
		kept, err := e.keep(r.ID, network)
		if err != nil {
			return nil, err
		}
		c.network = &kept
	}
	if p.Network != nil && r.Status == sandbox.Running {
		// Before anything changes: a guest whose TLS is opened must trust us by
		// then. One that is paused gets what it lacks when it goes on.
		if err := e.trust(ctx, m, network, guest.Trust{}); err != nil {
			return nil, e.machineError(m, err)
		}
	}
	// The row first: if we die before the machine follows, recovery makes it.
	ended, ok, err := e.store.update(ctx, r.ID, c, e.now())
	if err != nil {
		return nil, fmt.Errorf("update sandbox: %w", err)
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	e.previews.forget(ended)
	if p.Network != nil {
		e.at("network-recorded")
		if err := m.inst.SetNetwork(network); err != nil {
			return nil, e.machineError(m, fmt.Errorf("set network: %w", errors.Join(err, e.undo(ctx, r, c))))
		}
	}
	if p.IdleTimeout != nil {
		m.mu.Lock()
		m.idle = time.Duration(*p.IdleTimeout)
		e.touch(m)
		e.armIdleLocked(m, 0)
		m.mu.Unlock()
	}
	return e.reread(ctx, r.ID)
}

// undo gives what a change set its value of before.
func (e *Engine) undo(ctx context.Context, before *row, c change) error {
	back := change{network: &policy{before.Network, before.sealed}, idle: &before.IdleTimeout}
	if c.tags != nil {
		back.tags = map[string]string{}
		maps.Copy(back.tags, before.Tags)
	}
	if c.ports != nil {
		back.ports = append([]sandbox.Port{}, before.Ports...)
	}
	ended, _, err := e.store.update(context.WithoutCancel(ctx), before.ID, back, e.now())
	e.previews.forget(ended)
	return err
}

// Extend implements Service.
func (e *Engine) Extend(ctx context.Context, ref string, d sandbox.Duration) (*sandbox.Sandbox, error) {
	if d < sandbox.Duration(time.Millisecond) {
		return nil, cay.Errorf(cay.Invalid, "duration %v is not at least 1ms", d)
	}
	d = truncateMS(time.Duration(d))
	r, m, err := e.locked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	limit := sandbox.Duration(e.cfg.Limits.MaxTimeout)
	if d > limit || r.Timeout+d > limit {
		return nil, cay.Errorf(cay.Invalid, "a timeout of %v, extended by %v, is more than this daemon's maximum of %v", r.Timeout, d, limit).
			WithHint("extend it by at most %v", max(limit-r.Timeout, 0))
	}
	ok, err := e.store.extend(ctx, r.ID, d, limit, e.now())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	m.mu.Lock()
	m.timeout = time.Duration(r.Timeout + d)
	e.armDeadlineLocked(m)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// Stop implements Service.
func (e *Engine) Stop(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, err
	}
	if m != nil {
		if err := e.stop(ctx, m, end{reason: sandbox.ReasonRequested}); err != nil {
			return nil, err
		}
	}
	s, err := e.reread(ctx, r.ID)
	if err == nil && !s.Status.Final() {
		return nil, notRecovered(ref)
	}
	return s, err
}

// notRecovered is the answer for a sandbox the last restart left without a
// machine, while recovery tries again to finish with it.
func notRecovered(ref string) error {
	return cay.Errorf(cay.Unavailable, "sandbox %q is still being cleaned up after a restart", ref).
		WithHint("try again in a minute; the daemon's log says what is in the way")
}

// Delete implements Service.
func (e *Engine) Delete(ctx context.Context, ref string) error {
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return err
	}
	if m != nil {
		if err := e.stop(ctx, m, end{reason: sandbox.ReasonRequested, deleting: true}); err != nil {
			return err
		}
	}
	if removed, err := e.store.remove(ctx, r.ID, e.now()); err != nil || removed {
		return err
	}
	switch _, err := e.store.get(ctx, r.ID); cay.CodeOf(err) {
	case cay.NotFound: // removed with its end
		return nil
	case "":
		return notRecovered(ref)
	default:
		return err
	}
}

// Pause implements Service.
func (e *Engine) Pause(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.locked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	if r.Status == sandbox.Paused {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q is paused already", ref)
	}
	// The row first: recovery pauses again a machine whose row says so.
	ok, err := e.store.move(ctx, r.ID, sandbox.Running, sandbox.Paused, e.now())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	e.at("pause-recorded")
	m.setState(sandbox.Paused)
	if err := m.inst.Pause(ctx); err != nil {
		m.setState(sandbox.Running)
		_, uerr := e.store.move(context.WithoutCancel(ctx), r.ID, sandbox.Paused, sandbox.Running, e.now())
		return nil, e.machineError(m, fmt.Errorf("pause: %w", errors.Join(err, uerr)))
	}
	m.mu.Lock()
	e.armIdleLocked(m, 0)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// Resume implements Service.
func (e *Engine) Resume(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	r, m, err := e.locked(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer m.unlock()
	if r.Status == sandbox.Running {
		return nil, cay.Errorf(cay.Conflict, "sandbox %q is not paused", ref)
	}
	if err := m.inst.Resume(ctx); err != nil {
		return nil, e.machineError(m, fmt.Errorf("resume: %w", err))
	}
	e.at("resumed")
	ok, err := e.store.move(context.WithoutCancel(ctx), r.ID, sandbox.Paused, sandbox.Running, e.now())
	if err != nil {
		return nil, errors.Join(err, m.inst.Pause(context.WithoutCancel(ctx)))
	}
	if !ok {
		return nil, stoppedError(ref, "", "")
	}
	e.trustAtStart(ctx, m, r.Network, guest.Trust{})
	m.setState(sandbox.Running)
	e.touch(m)
	m.mu.Lock()
	e.armIdleLocked(m, 0)
	m.mu.Unlock()
	return e.reread(ctx, r.ID)
}

// Stats implements Service.
func (e *Engine) Stats(ctx context.Context, ref string) (*sandbox.Stats, error) {
	r, m, err := e.found(ctx, ref)
	if err != nil {
		return nil, err
	}
	if m == nil || r.Status != sandbox.Running && r.Status != sandbox.Paused {
		return nil, e.unusable(r)
	}
	st, err := e.refresh(ctx, m)
	if err != nil {
		return nil, e.machineError(m, err)
	}
	e.bringUpToDate(ctx, []*row{r}, time.Minute)
	stats := &sandbox.Stats{
		Usage: r.Usage, MemoryBytes: st.MemoryBytes, MemoryLimit: r.MemoryMB << 20,
		DiskBytes: st.DiskBytes, DiskLimit: r.DiskMB << 20, Processes: st.Processes,
	}
	if m.state() == sandbox.Paused {
		return stats, nil // its guest cannot be asked
	}
	ctx, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	h, err := m.guest.Health(ctx)
	if err != nil {
		return nil, e.machineError(m, err)
	}
	stats.Commands = h.Commands
	if stats.Processes == 0 {
		stats.Processes = h.Processes
	}
	if stats.DiskBytes == 0 {
		stats.DiskBytes = h.DiskBytes
	}
	return stats, nil
}

// machineError prefers that the machine has ended, or is about to, to what
// that made a call fail with.
func (e *Engine) machineError(m *machine, err error) error {
	if m.ctx.Err() != nil {
		return context.Cause(m.ctx)
	}
	if isClosed(m.inst.Done()) {
		x := m.inst.Exit()
		return stoppedError(m.id, x.Reason, x.Message)
	}
	return err
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
