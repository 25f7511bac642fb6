package workflowd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// backend is the engine for one project.
type backend struct {
	e       *Engine
	project string
}

var _ workflow.Backend = (*backend)(nil)

// failure is the error envelope of an error that the engine raises.
func failure(format string, args ...any) []byte {
	return errorEnvelope(map[string]string{"message": fmt.Sprintf(format, args...)})
}

// poisonedBy is the error envelope of a workflow.ErrPoisoned.
func poisonedBy(message string) []byte {
	return errorEnvelope(map[string]string{"type": "workflow.ErrPoisoned", "message": message})
}

// errorEnvelope is the JSON form in which package workflow reads errors from logs.
func errorEnvelope(fields map[string]string) []byte {
	b, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return append([]byte("json"), b...)
}

// Bounds of the fields of a start.
const (
	maxName        = 512
	maxKey         = 1024
	maxID          = 4096 // step ids in branches of branches are long
	maxDefinitions = 10_000
	maxAttributes  = 64
	maxAttribute   = 1024
)

// newCreation checks the fields of a new run.
func (e *Engine) newCreation(project string, p *workflow.NewRun) (*creation, error) {
	if p.Workflow == "" || len(p.Workflow) > maxName {
		return nil, cay.Errorf(cay.Invalid, "a run needs the name of a workflow, of at most %d bytes", maxName)
	}
	if err := checkTexts(text{"the name of a workflow,", p.Workflow, maxName}, text{"a run's key", p.Key, maxKey}, text{"a run's group", p.Group, maxKey},
		text{"a run's build", p.Build, maxName}, text{"a run's id", p.ID, maxName}, text{"the id of a call", p.ParentCall, maxID},
		text{"a run's parent", p.Parent, maxName}, text{"a run's root", p.Root, maxName}, text{"the run before a run", p.Previous, maxName}); err != nil {
		return nil, err
	}
	if err := checkAttributes(p.Attributes); err != nil {
		return nil, err
	}
	c := &creation{mayExist: p.ID != "" && !p.NewID}
	id := p.ID
	if id == "" {
		id = e.ids.Next(e.now())
	} else if !strings.HasPrefix(id, "wrun_") {
		return nil, cay.Errorf(cay.Invalid, "a run's id begins with wrun_")
	}
	c.run = history.Run{
		ID: id, Project: project, Workflow: p.Workflow, Build: p.Build, Key: p.Key, Group: p.Group,
		Priority: p.Priority, Parent: p.Parent, Root: p.Root, Previous: p.Previous,
	}
	if c.run.Priority == 0 {
		c.run.Priority = e.dispatch.definition(workflowName{project, p.Workflow}).Priority
	}
	if err := checkNumber("a run's priority", c.run.Priority); err != nil {
		return nil, err
	}
	if !p.StartAt.IsZero() {
		c.run.NotBefore = p.StartAt.UnixMilli()
	}
	c.created = history.Event{
		Type: history.RunCreated, Name: p.Workflow, Payload: p.Input, Attributes: p.Attributes,
		ID: p.ParentCall, Until: protocol.DurationMillis(p.Retention),
	}
	events, blobs, err := e.shelve(id, append([]history.Event{c.created}, carriedEvents(p.Hooks)...))
	if err != nil {
		return nil, err
	}
	c.created, c.carried, c.blobs = events[0], events[1:], blobs
	return c, nil
}

// expiry returns when a run that has just ended is deleted: see history.Run.ExpiresAt.
func (e *Engine) expiry(r *liveRun) int64 {
	keep := r.retention
	if keep == 0 {
		keep = protocol.DurationMillis(e.dispatch.definition(r.workflowName()).Retention)
		if r.log.Run.Kind.External() {
			keep = e.cfg.Retention.Milliseconds()
		}
	}
	switch {
	case keep < 0:
		return -1
	case keep == 0:
		return 0
	}
	return r.log.Run.CompletedAt + keep
}

func (b *backend) CreateRun(ctx context.Context, p workflow.NewRun) (*workflow.RunInfo, bool, error) {
	c, err := b.e.newCreation(b.project, &p)
	if err != nil {
		return nil, false, err
	}
	if b.e.dispatch.pending() >= b.e.cfg.MaxPending {
		return nil, false, cay.Errorf(cay.QuotaExceeded, "too many runs wait to start")
	}
	o := &op{run: c.run.ID, create: c, show: true}
	if err := b.e.laneOf(c.run.ID, c.run.Root).do(ctx, o); err != nil {
		return nil, false, err
	}
	if c.existing != "" {
		run, err := b.GetRun(ctx, c.existing)
		return run, false, err
	}
	return &o.after, true, nil
}

// own returns not_found unless a run belongs to the backend's project.
func (b *backend) own(id string, r *history.Run) error {
	if b.project != "" && r.Project != b.project {
		return cay.Errorf(cay.NotFound, "run %q not found", id)
	}
	return nil
}

func (b *backend) GetRun(ctx context.Context, id string) (*workflow.RunInfo, error) {
	r, err := b.e.store.Run(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := b.own(id, r); err != nil {
		return nil, err
	}
	return b.e.relink(ctx, r)
}

func (b *backend) ListRuns(ctx context.Context, q workflow.Query) (*history.Page[workflow.RunInfo], error) {
	return b.e.store.Runs(ctx, b.query(q))
}

func (b *backend) CountRuns(ctx context.Context, q workflow.Query) (workflow.RunCounts, error) {
	return b.e.store.Count(ctx, b.query(q))
}

// query restricts q to the backend's project.
func (b *backend) query(q history.Query) history.Query {
	q.Project = b.project
	if q.Schedule != "" {
		q.Attributes = maps.Clone(q.Attributes)
		if q.Attributes == nil {
			q.Attributes = make(map[string]string)
		}
		q.Attributes[scheduleAttribute], q.Schedule = q.Schedule, ""
	}
	return q
}

func (b *backend) WaitRun(ctx context.Context, id string) (*workflow.RunInfo, error) {
	run, _, err := b.WaitEnd(ctx, id)
	return run, err
}

func (b *backend) WaitEnd(ctx context.Context, id string) (*workflow.RunInfo, *workflow.Event, error) {
	sub := b.e.hub.subscribe(id, false)
	defer b.e.hub.unsubscribe(sub)
	look := true
	if r, ok := b.e.live.Load(id); ok && r.(*liveRun).isOf(b.project) {
		look = false // the hub will publish the run's end
	}
	for {
		if look {
			r, err := b.GetRun(ctx, id)
			if err != nil {
				return nil, nil, err
			}
			if r.Status.Terminal() {
				return r, nil, nil
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, wire.ContextError(ctx)
		case <-sub.wake:
		}
		seen := sub.take()
		switch {
		case seen.ended != nil:
			if err := b.own(id, seen.ended); err != nil {
				return nil, nil, err
			}
			return seen.ended, seen.end, nil
		case seen.closed:
			return nil, nil, errClosed
		}
		look = seen.missed
	}
}

func (b *backend) Events(ctx context.Context, id string, from int64, limit int) ([]workflow.Event, error) {
	if _, err := b.GetRun(ctx, id); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > 1000 {
		limit = 1000
	}
	events, _, err := b.e.page(ctx, id, max(from, 1), limit)
	return events, err
}

func (b *backend) Follow(ctx context.Context, id string, from int64) (workflow.EventReader, error) {
	f := &follower{b: b, run: id, next: max(from, 1), sub: b.e.hub.subscribe(id, true), look: true}
	if _, err := b.GetRun(ctx, id); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// follower reads the stored events of a run and then waits for new ones.
type follower struct {
	b    *backend
	run  string
	next int64 // slot of the next event
	sub  *subscription
	look bool // read the store
	over bool // the end of the run was reported
}

// followPage is how many events a follower reads at a time.
const followPage = 500

func (f *follower) ReadEvents(ctx context.Context) ([]workflow.Event, error) {
	for {
		if f.look {
			events, more, err := f.b.e.page(ctx, f.run, f.next, followPage)
			if err != nil {
				return nil, err
			}
			f.look = more
			if len(events) > 0 {
				return f.report(events), nil
			}
			r, err := f.b.GetRun(ctx, f.run)
			if err != nil {
				return nil, err
			}
			f.over = f.over || r.Status.Terminal() && r.Events < f.next
		}
		seen := f.sub.take()
		for len(seen.events) > 0 && seen.events[0].Slot < f.next {
			seen.events = seen.events[1:]
		}
		if len(seen.events) > 0 && seen.events[0].Slot == f.next {
			f.look = seen.missed
			return f.report(seen.events), nil
		}
		if seen.missed || len(seen.events) > 0 {
			f.look = true
			continue
		}
		if f.over {
			return nil, io.EOF
		}
		if seen.closed {
			return nil, errClosed
		}
		select {
		case <-ctx.Done():
			return nil, wire.ContextError(ctx)
		case <-f.sub.wake:
		}
	}
}

func (f *follower) report(events []history.Event) []history.Event {
	f.next = events[len(events)-1].Slot + 1
	for i := range events {
		f.over = f.over || ends(&events[i])
	}
	return events
}

func (f *follower) Close() error {
	f.b.e.hub.unsubscribe(f.sub)
	return nil
}

// act asks a run's lane to decide and apply a request from outside.
func (b *backend) act(ctx context.Context, id string, decide func(r *liveRun, o *op) error) (*history.Run, error) {
	ours := func(r *liveRun, o *op) error {
		if err := b.own(id, &r.log.Run); err != nil {
			return err
		}
		return decide(r, o)
	}
	if b.e.owner != nil {
		return b.actShared(ctx, id, ours)
	}
	return b.actHere(ctx, id, ours)
}

// actHere is act on a run that this process owns.
func (b *backend) actHere(ctx context.Context, id string, decide func(r *liveRun, o *op) error) (*history.Run, error) {
	l, err := b.e.route(ctx, id)
	if err != nil {
		return nil, err
	}
	o := &op{run: id, show: true, owned: true, decide: decide}
	if err := l.do(ctx, o); err != nil {
		return nil, err
	}
	return &o.after, nil
}

// maxReason bounds the reason of a cancellation, in bytes.
const maxReason = 512

func (b *backend) CancelRun(ctx context.Context, id string, p workflow.CancelParams) (*workflow.RunInfo, error) {
	if err := checkText("a reason", p.Reason, maxReason); err != nil {
		return nil, err
	}
	return b.cancel(ctx, id, p, func(*history.Run) {})
}

// cancel cancels a run. It calls before with the state before the cancellation.
func (b *backend) cancel(ctx context.Context, id string, p workflow.CancelParams, before func(*history.Run)) (*history.Run, error) {
	return b.actOnLast(ctx, id, func(r *liveRun, o *op) error {
		before(&r.log.Run)
		return cancelOp(r, o, p)
	})
}

// cancelOp decides which event cancels a run. A run that has not started ends at once,
// unless it continues another run: then its code may have to undo the work of that run.
// The end of an external run is also immediate, because its code cannot be told.
func cancelOp(r *liveRun, o *op, p workflow.CancelParams) error {
	switch row := &r.log.Run; {
	case row.Status == history.Cancelled:
	case row.Status.Terminal():
		return endedAs(row)
	case row.Status == history.Pending && row.Previous == "" || p.Force || row.Kind.External():
		o.events = []history.Event{{Type: history.RunCancelled, Reason: p.Reason}}
	case !row.CancelRequested:
		o.events = []history.Event{{Type: history.CancelRequested, Reason: p.Reason}}
	}
	return nil
}

func endedAs(r *history.Run) error {
	return cay.Errorf(cay.Conflict, "run %s has ended: it is %s", r.ID, r.Status)
}

// maxBulk bounds the runs that one call cancels.
const maxBulk = 500

func (b *backend) CancelRuns(ctx context.Context, q workflow.Query, p workflow.CancelParams) ([]workflow.CancelResult, error) {
	if err := checkText("a reason", p.Reason, maxReason); err != nil {
		return nil, err
	}
	if q.Limit <= 0 || q.Limit > maxBulk {
		q.Limit = maxBulk
	}
	page, err := b.ListRuns(ctx, q)
	if err != nil {
		return nil, err
	}
	results := make([]workflow.CancelResult, len(page.Items))
	var all sync.WaitGroup
	for i := range page.Items {
		// Each run's lane decides; the ops share commits.
		all.Go(func() { results[i] = b.cancelOne(ctx, &page.Items[i], p) })
	}
	all.Wait()
	return results, nil
}

// cancelOne cancels one run of many. If the selected run had been continued, cancelOne
// leaves the continuing run alone: the query selected that one by itself, or did not.
func (b *backend) cancelOne(ctx context.Context, selected *history.Run, p workflow.CancelParams) workflow.CancelResult {
	result := workflow.CancelResult{Run: selected.ID}
	if selected.Next != "" {
		result.Outcome, result.Error = "not_cancellable", endedAs(selected).Error()
		return result
	}
	before := history.Pending
	run, err := b.cancel(ctx, selected.ID, p, func(r *history.Run) { before = r.Status })
	switch {
	case err == nil && before == history.Cancelled:
		result.Outcome = "already_cancelled"
	case err == nil && run.Status == history.Cancelled:
		result.Outcome = "cancelled"
	case err == nil:
		result.Outcome = "requested"
	case cay.CodeOf(err) == cay.Conflict:
		result.Outcome, result.Error = "not_cancellable", err.Error()
	default:
		result.Outcome, result.Error = "failed", err.Error()
	}
	return result
}

func (b *backend) WakeRun(ctx context.Context, id string, waits []string) (int, error) {
	n := 0
	_, err := b.actOnLast(ctx, id, func(r *liveRun, o *op) error {
		n, o.events, o.messages = 0, nil, nil
		for open := range r.log.AllOpen() {
			if open.State != history.WaitOpen {
				continue
			}
			if len(waits) > 0 && !slices.Contains(waits, open.ID) {
				continue
			}
			o.events = append(o.events, history.Event{Type: history.WaitCompleted, ID: open.ID})
			n++
		}
		if n == 0 {
			return nil
		}
		return b.e.wake(r, o)
	})
	return n, err
}

// rerunAttribute names the run that a rerun repeats.
const rerunAttribute = "$replayedFromRunId"

func (b *backend) RerunRun(ctx context.Context, id string, p workflow.RerunParams) (*workflow.RunInfo, error) {
	old, err := b.GetRun(ctx, id)
	if err != nil {
		return nil, err
	}
	events, _, err := b.e.page(ctx, id, 1, 1)
	if err != nil {
		return nil, err
	}
	if len(events) == 0 || events[0].Payload == nil && old.Status.Terminal() {
		return nil, cay.Errorf(cay.Conflict, "the input of run %s is not kept", id)
	}
	if old.Kind.External() {
		return b.rerunExternal(ctx, old, &events[0], p)
	}
	attributes := map[string]string{rerunAttribute: id}
	for k, v := range events[0].Attributes {
		if !strings.HasPrefix(k, "$") {
			attributes[k] = v
		}
	}
	run, created, err := b.CreateRun(ctx, workflow.NewRun{
		Workflow: old.Workflow, Input: events[0].Payload, Key: p.Key, Build: p.Build,
		Group: old.Group, Priority: old.Priority, Attributes: attributes,
		Retention: protocol.Duration(events[0].Until),
	})
	if err == nil && !created {
		return nil, cay.Errorf(cay.Conflict, "run %s was started with the key %q", run.ID, p.Key)
	}
	return run, err
}

func (b *backend) DeleteRun(ctx context.Context, id string) error {
	r, err := b.GetRun(ctx, id)
	if err != nil {
		return err
	}
	if !r.Status.Terminal() {
		return cay.Errorf(cay.Conflict, "run %s has not ended: cancel it first", id)
	}
	if r.Next != "" && r.First == "" {
		last, err := b.e.last(ctx, id)
		if err == nil && !last.Status.Terminal() {
			return cay.Errorf(cay.Conflict, "run %s goes on as %s: cancel that first", id, last.ID)
		}
		if err != nil && cay.CodeOf(err) != cay.NotFound {
			return err
		}
	}
	if err := b.e.store.Delete(ctx, []string{id}); err != nil {
		return err
	}
	b.e.unlist(r)
	return nil
}

func (b *backend) SetAttributes(ctx context.Context, id string, attributes map[string]string) (*workflow.RunInfo, error) {
	if err := checkAttributes(attributes); err != nil {
		return nil, err
	}
	return b.actOnLast(ctx, id, func(r *liveRun, o *op) error {
		if err := b.e.crowded(r, history.AttrSet); err != nil {
			return err
		}
		o.events = []history.Event{{Type: history.AttrSet, Attributes: attributes}}
		return nil
	})
}

func (b *backend) ResumeHook(ctx context.Context, p workflow.ResumeParams) (*workflow.Hook, error) {
	if err := checkText("a key", p.Key, maxKey); err != nil {
		return nil, err
	}
	h, err := b.e.store.Hook(ctx, b.project, p.Token)
	if err != nil {
		return nil, err
	}
	for {
		if p.Webhook && !h.Webhook {
			return nil, errNoHook
		}
		if err = b.resume(ctx, h, &p); err == nil {
			return h, nil
		} else if err != errNoHook {
			return nil, err
		}
		// The hook has just ended, or the run that continues this one has it now.
		was := *h
		if h, err = b.e.store.Hook(ctx, b.project, p.Token); err != nil {
			return nil, err
		}
		if h.Run == was.Run && h.ID == was.ID {
			return nil, errNoHook
		}
	}
}

var errNoHook = cay.Errorf(cay.NotFound, "there is no hook of that token")

// noHook returns the error for a run without a hook of the token. While a pending group
// changes the run, other runs cannot see yet which run has the token next, so the op
// waits for the next group.
func (r *liveRun) noHook() error {
	if r.inGroup && len(r.fresh) > 0 {
		return errNextGroup
	}
	return errNoHook
}

// resume gives a payload to the hook of the run that has the token when the lane decides.
func (b *backend) resume(ctx context.Context, h *workflow.Hook, p *workflow.ResumeParams) error {
	payload, err := b.forRuntime(ctx, h.Run, p.Payload)
	if err != nil {
		return err
	}
	events, blobs, err := b.e.shelve(h.Run, []history.Event{{Type: history.HookReceived, Payload: payload, Key: p.Key}})
	if err != nil {
		return err
	}
	_, err = b.act(ctx, h.Run, func(r *liveRun, o *op) error {
		live, ok := r.log.Open(h.ID)
		if !ok || live.State != history.HookLive || live.Token != p.Token {
			live, ok = r.log.LiveHook(p.Token)
		}
		if !ok {
			return r.noHook()
		}
		if err := b.e.crowded(r, history.HookReceived); err != nil {
			return err
		}
		received := slices.Clone(events)
		received[0].ID = live.ID
		o.events, o.blobs = received, blobs
		return b.e.wake(r, o)
	})
	return err
}

// forRuntime converts a payload to the form that the run's runtime reads.
func (b *backend) forRuntime(ctx context.Context, run string, payload []byte) ([]byte, error) {
	if len(b.e.cfg.Runtimes) == 0 {
		return payload, nil
	}
	r, err := b.e.store.Run(ctx, run)
	if cay.CodeOf(err) == cay.NotFound {
		return nil, errNoHook
	}
	if err != nil || !r.Kind.External() {
		return payload, err
	}
	rt, err := b.e.runtime(r)
	if err != nil {
		return nil, err
	}
	return rt.Payload(payload)
}

func (b *backend) GetHook(ctx context.Context, token string) (*workflow.Hook, error) {
	return b.e.store.Hook(ctx, b.project, token)
}

func (b *backend) ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[workflow.Hook], error) {
	return b.e.store.Hooks(ctx, b.project, run, cursor, limit)
}

// Close does nothing: the opener of the engine closes it.
func (b *backend) Close() error { return nil }
