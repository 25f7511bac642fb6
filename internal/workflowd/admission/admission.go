// Package admission enforces limits on the starts of runs of external runtimes, by the
// name of their workflow, and knows the priority of their messages. The queue of messages
// asks Admit before it sends a message to an app. The first message of a run that may not
// start yet is parked in the queue; when there is room for the run, release hastens the
// message.
package admission

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// Store is the part of the engine's store that the package needs. See workflowd.Store.
type Store interface {
	Run(ctx context.Context, id string) (*history.Run, error)
	Runs(ctx context.Context, q history.Query) (*history.Page[history.Run], error)
	Limits(ctx context.Context, project string) ([]history.Limit, error)
	PutLimit(ctx context.Context, l history.Limit) error
	DeleteLimit(ctx context.Context, project, workflow string) error
}

// Messages is the queue of messages. *queue.Queue implements it.
type Messages interface {
	Hasten(ctx context.Context, project, run string, priority int) (due, leased int, err error)
	Messages(ctx context.Context, project, run string, limit int) ([]queue.Message, error)
}

// Shared counts the starts of all processes that share a store.
type Shared interface {
	// LetIn lets a run start if its limit allows that. With run "" it only returns
	// Pending.
	LetIn(ctx context.Context, l history.Limit, run string) (LetIn, error)
}

// LetIn is the outcome of Shared.LetIn.
type LetIn struct {
	OK bool
	// Wait is how long the rate of the limit holds the run up; 0 if it does not.
	Wait time.Duration
	// Pending are runs that were let in and have not started.
	Pending []string
}

// Config has the parts of a Door.
type Config struct {
	Store    Store
	Messages Messages
	Shared   Shared // nil if no other process uses the store
	// Running counts the running runs of a workflow, if Shared is nil.
	Running func(ctx context.Context, project, workflow string) (int, error)
	// Await waits until a run of a project exists, or ctx ends.
	Await func(ctx context.Context, project, run string) error
	// Cancel cancels a run that has not started. Errors: conflict, not_found.
	Cancel func(ctx context.Context, project, run, reason string) error
	Spawn  func(func()) // starts background work
	Logger *slog.Logger
}

// Door lets runs start. A nil Door lets all runs start at once.
type Door struct {
	cfg Config
	ctx context.Context // ends with the engine's background work

	changing sync.Mutex // held while a limit is changed in the store

	mu    sync.Mutex // guards the fields below; not held during calls of the store
	gates map[name]*gate
	// priorities are those above 0, by project and workflow. The maps are not written to.
	priorities map[string]map[string]int
	read       time.Time // when gates last equaled the store's limits
	// closed means that no background work may begin.
	closed bool
}

type name struct{ project, workflow string }

// gate is the state of one limit.
type gate struct {
	name name
	// free means that the limit, as last read, holds no run up.
	free atomic.Bool

	// deciding is held while it is decided about a run, also during calls of the store.
	// It guards the fields below.
	deciding sync.Mutex
	limit    history.Limit
	backlog  bool // runs may be parked: new runs go behind them
	// known is when all processes know the limit: until then others may park messages by
	// the earlier one.
	known time.Time
	local ledger

	mu        sync.Mutex // guards the fields below
	releasing bool       // release runs
	again     bool       // and has to run once more
	timer     *time.Timer
	timerAt   time.Time // zero if timer is not set
	closed    bool

	// gone means that the store has no such limit. The gate is forgotten when it holds no
	// run up, see settle. Door.mu guards the field.
	gone bool
}

const (
	// staleLimits is how old limits may be that other processes may change.
	staleLimits = time.Second
	// firstMessage is how long Admit waits for a run to be created: the SDK creates it and
	// publishes its first message at the same time.
	firstMessage = 2 * time.Second
	// lostStart is how long until the messages of a run that was let in are hastened
	// again, if the run has not started.
	lostStart = 30 * time.Second
	// knownAfter is how long after its change all processes know a limit.
	knownAfter = 2 * staleLimits
	// parkedMeanwhile is lostStart for a message that another process may be about to park.
	parkedMeanwhile = time.Second

	pendingPage = 100 // runs read at a time
	maxLimits   = 1000
	maxRate     = 10_000 // bounds the starts that are remembered
)

// Open returns a Door, and lets runs in that have had room since the last process ended.
// Background work ends with ctx.
func Open(ctx context.Context, c Config) (*Door, error) {
	d := &Door{cfg: c, ctx: ctx, gates: make(map[name]*gate)}
	return d, d.refresh(ctx)
}

// Close stops the timers.
func (d *Door) Close() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for _, g := range d.gates {
		g.close()
	}
}

// refresh reads the limits from the store, unless they are fresh.
func (d *Door) refresh(ctx context.Context) error {
	d.mu.Lock()
	fresh := !d.read.IsZero() && (d.cfg.Shared == nil || time.Since(d.read) < staleLimits)
	d.mu.Unlock()
	if fresh {
		return nil
	}
	all, err := d.cfg.Store.Limits(ctx, "")
	if err != nil {
		return err
	}
	known, priorities := make(map[name]history.Limit, len(all)), make(map[string]map[string]int)
	for _, l := range all {
		known[name{l.Project, l.Workflow}] = l
		if l.Priority > 0 {
			if priorities[l.Project] == nil {
				priorities[l.Project] = make(map[string]int)
			}
			priorities[l.Project][l.Workflow] = l.Priority
		}
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	for n := range known {
		if d.gates[n] == nil {
			d.gates[n] = &gate{name: n, backlog: true, local: ledger{in: make(map[string]bool)}}
		}
	}
	gates := make([]*gate, 0, len(d.gates))
	for n, g := range d.gates {
		gates = append(gates, g)
		_, ok := known[n]
		g.gone = !ok
	}
	d.read, d.priorities = time.Now(), priorities
	d.mu.Unlock()
	for _, g := range gates {
		if d.set(g, known[g.name]) {
			d.trigger(g)
		}
	}
	return nil
}

// set changes the limit, and reports whether it is another one.
func (d *Door) set(g *gate, l history.Limit) bool {
	g.deciding.Lock()
	defer g.deciding.Unlock()
	changed := g.limit != l
	if changed {
		g.limit, g.backlog, g.known = l, true, time.Now().Add(knownAfter)
	}
	g.free.Store(l.Free())
	d.settle(g)
	return changed
}

// settle forgets a gate whose limit was deleted, once no run can be parked by it. A limit
// that is set again before that gets the same gate: release of another one would set
// messages back to its own priority. The caller holds g.deciding.
func (d *Door) settle(g *gate) {
	if g.backlog || g.limit != (history.Limit{}) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if g.gone && d.gates[g.name] == g {
		delete(d.gates, g.name)
		g.close()
	}
}

// close stops the timer: release begins no more.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// gate returns the gate of a workflow, nil if it has no limit.
func (d *Door) gate(n name) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.gates[n]
}

// limits reports whether a limit may hold up runs of a project.
func (d *Door) limits(project string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for n, g := range d.gates {
		if n.project == project && !g.free.Load() {
			return true
		}
	}
	return false
}

// Priorities returns the priorities above 0 of a project's workflows. The map must not be
// written to. Errors: those of the store.
func (d *Door) Priorities(ctx context.Context, project string) (map[string]int, error) {
	if d == nil {
		return nil, nil
	}
	err := d.refresh(ctx)
	return d.known(project), err
}

// Priority returns the priority of a workflow as last read.
func (d *Door) Priority(project, workflow string) int { return d.known(project)[workflow] }

func (d *Door) known(project string) map[string]int {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.priorities[project]
}

// Admit reports whether a message of an external run may be sent to its app: nil, or why
// the run may not start yet. Errors: *queue.ParkedError; those of the store.
func (d *Door) Admit(ctx context.Context, m *queue.Message) error {
	if d == nil {
		return nil
	}
	if err := d.refresh(ctx); err != nil {
		return err
	}
	if m.Run == "" || !d.limits(m.Project) {
		return nil
	}
	r, err := d.pending(ctx, m)
	if r == nil || err != nil {
		return err
	}
	g := d.gate(name{r.Project, r.Workflow})
	if g == nil || g.free.Load() {
		return nil
	}
	g.deciding.Lock()
	defer g.deciding.Unlock()
	if g.backlog && d.cfg.Shared == nil && !g.local.in[r.ID] {
		return &queue.ParkedError{Reason: g.limit.Reason()}
	}
	let, err := d.letIn(ctx, g, r.ID)
	switch {
	case err != nil:
		return err
	case let.OK:
		d.after(g, lostStart)
		return nil
	}
	g.backlog = true
	if let.Wait > 0 {
		d.after(g, let.Wait)
	}
	return &queue.ParkedError{Reason: g.limit.Reason()}
}

// pending returns the run of a message if it is external and has not started; nil
// otherwise.
func (d *Door) pending(ctx context.Context, m *queue.Message) (*history.Run, error) {
	r, err := d.cfg.Store.Run(ctx, m.Run)
	if cay.CodeOf(err) == cay.NotFound {
		wait, cancel := context.WithTimeout(ctx, firstMessage)
		defer cancel()
		if d.cfg.Await(wait, m.Project, m.Run) != nil {
			return nil, ctx.Err() // the app creates the run when it gets the message
		}
		r, err = d.cfg.Store.Run(ctx, m.Run)
	}
	if err != nil {
		return nil, err
	}
	if r.Project != m.Project || !r.Kind.External() || r.Status != history.Pending {
		return nil, nil
	}
	return r, nil
}

// letIn lets a run start if the limit allows that; with run "" it only looks at the runs
// that were let in. The caller holds g.deciding.
func (d *Door) letIn(ctx context.Context, g *gate, run string) (LetIn, error) {
	switch {
	case g.limit.Free(): // also if it was deleted
		return LetIn{OK: true}, nil
	case d.cfg.Shared != nil:
		return d.cfg.Shared.LetIn(ctx, g.limit, run)
	}
	return g.local.letIn(ctx, &d.cfg, g.limit, run)
}

// Ended is called when an external run has ended, started or not. It does not block.
func (d *Door) Ended(project, workflow, run string, started bool) {
	n := name{project, workflow}
	if d == nil || d.cfg.Shared == nil && d.gate(n) == nil {
		return
	}
	d.cfg.Spawn(func() {
		if err := d.ended(n, run, started); err != nil && d.ctx.Err() == nil {
			d.cfg.Logger.Warn("cannot let the next run of a workflow start", "workflow", workflow, "error", err)
		}
	})
}

func (d *Door) ended(n name, run string, started bool) error {
	if err := d.refresh(d.ctx); err != nil {
		return err
	}
	g := d.gate(n)
	if g == nil {
		return nil
	}
	d.trigger(g)
	if started {
		return nil
	}
	// The app learns of the end from the message that was parked.
	_, _, err := d.cfg.Messages.Hasten(d.ctx, n.project, run, d.Priority(n.project, n.workflow))
	return err
}

// hasten lets the messages of a run that was let in be delivered. The caller holds
// g.deciding.
func (d *Door) hasten(ctx context.Context, g *gate, run string) error {
	_, leased, err := d.cfg.Messages.Hasten(ctx, g.name.project, run, g.limit.Priority)
	switch {
	case g.limit.Free(): // release looks at all runs once more
	case leased > 0:
		d.after(g, parkedMeanwhile)
	default:
		d.after(g, lostStart)
	}
	return err
}

// trigger makes release run soon.
func (d *Door) trigger(g *gate) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if g.releasing {
		g.again = true
		return
	}
	g.releasing = true
	d.cfg.Spawn(func() {
		for again := true; again; {
			if err := d.release(d.ctx, g); err != nil && d.ctx.Err() == nil {
				d.cfg.Logger.Warn("cannot let runs start, will try again", "workflow", g.name.workflow, "error", err)
				d.after(g, time.Second)
			}
			g.mu.Lock()
			again = g.again && d.ctx.Err() == nil
			g.again, g.releasing = false, again
			g.mu.Unlock()
		}
	})
}

// after makes release run after a time, or earlier.
func (d *Door) after(g *gate, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := time.Now().Add(wait)
	if g.closed || !g.timerAt.IsZero() && !at.Before(g.timerAt) {
		return
	}
	g.timerAt = at
	if g.timer != nil {
		g.timer.Reset(wait)
		return
	}
	g.timer = time.AfterFunc(wait, func() {
		g.mu.Lock()
		g.timerAt = time.Time{}
		g.mu.Unlock()
		d.trigger(g)
	})
}

// List returns the limits of a project.
func (d *Door) List(ctx context.Context, project string) ([]history.Limit, error) {
	if d == nil {
		return nil, nil
	}
	return d.cfg.Store.Limits(ctx, project)
}

// Put sets a limit. Errors: invalid, quota_exceeded, not_supported (d is nil).
func (d *Door) Put(ctx context.Context, l history.Limit) error {
	switch {
	case d == nil:
		return cay.Errorf(cay.NotSupported, "only a daemon limits workflows by name; workers declare the limits of their workflows")
	case l.Workflow == "":
		return cay.Errorf(cay.Invalid, "a limit needs the name of a workflow")
	case l.Priority < 0 || l.Priority > queue.MaxPriority:
		return cay.Errorf(cay.Invalid, "the priority is %d; it goes from 0 to %d", l.Priority, queue.MaxPriority)
	case l.Concurrency < 0 || l.Rate < 0 || l.Free() && l.Priority == 0:
		return cay.Errorf(cay.Invalid, "a limit needs a concurrency, a rate or a priority of at least 1, not %d, %d and %d", l.Concurrency, l.Rate, l.Priority)
	case l.Rate > 0 && l.Period <= 0:
		return cay.Errorf(cay.Invalid, "a rate of %d needs a period", l.Rate)
	case l.Rate == 0 && l.Period != 0:
		return cay.Errorf(cay.Invalid, "a period of %s needs a rate", l.Period)
	case l.Rate > maxRate:
		return cay.Errorf(cay.Invalid, "the rate is %d; at most %d runs are counted", l.Rate, maxRate)
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	all, err := d.cfg.Store.Limits(ctx, l.Project)
	if err != nil {
		return err
	}
	if len(all) >= maxLimits && !has(all, l.Workflow) {
		return cay.Errorf(cay.QuotaExceeded, "a project has at most %d limits", maxLimits)
	}
	if err := d.cfg.Store.PutLimit(ctx, l); err != nil {
		return err
	}
	return d.reread(ctx)
}

func has(all []history.Limit, workflow string) bool {
	for i := range all {
		if all[i].Workflow == workflow {
			return true
		}
	}
	return false
}

// reread reads the limits that this process has changed.
func (d *Door) reread(ctx context.Context) error {
	d.mu.Lock()
	d.read = time.Time{}
	d.mu.Unlock()
	return d.refresh(ctx)
}

// Delete removes a limit. Parked runs are let in before the limit is gone from the store,
// so that a crash leaves none behind. Errors: not_found.
func (d *Door) Delete(ctx context.Context, project, workflow string) error {
	missing := cay.Errorf(cay.NotFound, "workflow %q has no limit", workflow)
	if d == nil {
		return missing
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	all, err := d.cfg.Store.Limits(ctx, project)
	if err != nil {
		return err
	}
	if !has(all, workflow) {
		return missing
	}
	if g := d.gate(name{project, workflow}); g != nil {
		d.set(g, history.Limit{})
		err = d.release(ctx, g)
	}
	if err == nil {
		err = d.cfg.Store.DeleteLimit(ctx, project, workflow)
	}
	if err != nil {
		err = fmt.Errorf("the limit of workflow %s stays: %w", workflow, err)
	}
	return errors.Join(err, d.reread(ctx)) // a limit that stays is in force again
}
