package workflowd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/admission"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// openDoor starts to enforce limits on the starts of external runs.
func (e *Engine) openDoor() (err error) {
	if e.cfg.Messages == nil {
		return nil
	}
	c := admission.Config{
		Store: e.store, Messages: e.cfg.Messages, Spawn: e.spawn, Logger: e.log,
		Running: func(ctx context.Context, project, name string) (int, error) {
			return e.countRunning(ctx, workflowName{project, name}, "")
		},
		Await: func(ctx context.Context, project, run string) error {
			return e.External(project, history.JavaScript).AwaitRun(ctx, run)
		},
	}
	c.Cancel = func(ctx context.Context, project, run, reason string) error {
		b := &backend{e: e, project: project}
		_, err := b.actOnLast(ctx, run, func(r *liveRun, o *op) error {
			if r.log.Run.Status == history.Pending {
				o.events = []history.Event{{Type: history.RunCancelled, Reason: reason}}
			}
			return nil
		})
		return err
	}
	if e.owner != nil {
		c.Shared = e.owner
	}
	e.door, err = admission.Open(e.ctx, c)
	return err
}

// Admit reports whether a message of an external run may be sent to its app. Errors:
// *queue.ParkedError, the run may not start yet.
func (e *Engine) Admit(ctx context.Context, m *queue.Message) error { return e.door.Admit(ctx, m) }

// Priorities returns the priorities above 0 of the messages of external runs, by workflow.
// The map must not be written to.
func (e *Engine) Priorities(ctx context.Context, project string) (map[string]int, error) {
	return e.door.Priorities(ctx, project)
}

func (b *backend) ListLimits(ctx context.Context) ([]workflow.Limit, error) {
	return b.e.door.List(ctx, b.project)
}

func (b *backend) PutLimit(ctx context.Context, l workflow.Limit) (*workflow.Limit, error) {
	l.Project = b.project
	if err := checkTexts(text{"the name of a workflow,", l.Workflow, maxName}); err != nil {
		return nil, err
	}
	if b.e.dispatch.declared(workflowName{b.project, l.Workflow}) {
		return nil, cay.Errorf(cay.Conflict, "the workers of workflow %s declare its limits: change them in its code", l.Workflow)
	}
	return &l, b.e.door.Put(ctx, l)
}

func (b *backend) DeleteLimit(ctx context.Context, name string) error {
	return b.e.door.Delete(ctx, b.project, name)
}

// External is the engine for an external runtime, which replays the code of runs outside
// cay's workers: see history.Kind. It creates runs, appends to their logs, and reads
// them. The runtime has no session and no lease: several of its processes may replay one
// run at the same time, and the log decides which of them is right.
type External struct {
	*backend
	kind history.Kind
}

// External returns the engine for the runtime of a kind and the runs of a project.
func (e *Engine) External(project string, kind history.Kind) *External {
	return &External{backend: &backend{e: e, project: project}, kind: kind}
}

// ExternalRun is a run that an external runtime creates.
type ExternalRun struct {
	workflow.NewRun // with an ID
	// Extra of the run and of its first event: see history.Run and history.Event.
	Extra, EventExtra []byte
	// At is when the runtime says that the run was created, in Unix milliseconds; 0 means
	// now.
	At int64
}

// Entry is a list of events that are appended together, or not at all. An event without a
// time gets the time of the commit; a time before that of the preceding event is moved
// forward to it.
type Entry []history.Event

// Recorded is the outcome of a Create or Record.
type Recorded struct {
	Run history.Run // after the call
	// Log is all events of the run, in order. It must not be written to.
	Log     []history.Event
	Memo    *Memo         // of these events
	Results []EntryResult // one for each entry, in order
}

// EntryResult is the outcome of one entry: Events are the newly stored events, none if
// the entry asks for the present state. Err is why the entry was refused.
type EntryResult struct {
	Events []history.Event
	Err    error
}

// Bounds of the appends of external runtimes.
const (
	// MaxExternalEvents is the maximum length of an external run's log. The end of the
	// run may always be appended.
	MaxExternalEvents = 25_000
	maxExtra          = 64 << 10
	maxAhead          = 5 * time.Minute // how far a runtime's time may be ahead of the engine's
)

// Why an entry is refused that is correct but arrives too late or too early.
var (
	ErrRunEnded = fmt.Errorf("the run has ended")
	ErrTooEarly = fmt.Errorf("the step may not be tried again yet")
)

// EarlyError is returned for a step that may not start before Until. It is ErrTooEarly.
type EarlyError struct{ Until time.Time }

func (e *EarlyError) Error() string {
	return fmt.Sprintf("%v: not before %s", ErrTooEarly, e.Until.UTC().Format(time.RFC3339Nano))
}

func (e *EarlyError) Is(target error) bool { return target == ErrTooEarly }

// Create creates a run. Errors: invalid; too_large; conflict if the id is in use.
func (x *External) Create(ctx context.Context, p ExternalRun) (*Recorded, error) {
	e := x.e
	if len(p.Extra) > maxExtra || len(p.EventExtra) > maxExtra {
		return nil, tooMuchExtra(max(len(p.Extra), len(p.EventExtra)))
	}
	c, err := e.newCreation(x.project, &p.NewRun)
	if err != nil {
		return nil, err
	}
	c.run.Kind, c.run.Extra = x.kind, p.Extra
	c.created.Extra, c.created.At = p.EventExtra, e.allowedTime(p.At)
	var rec Recorded
	o := &op{run: c.run.ID, create: c, show: true}
	if err := x.carryOut(ctx, e.laneOf(c.run.ID, ""), o, &rec); err != nil {
		return nil, err
	}
	if c.existing != "" {
		return nil, cay.Errorf(cay.Conflict, "run %s exists already", c.existing)
	}
	rec.Results = []EntryResult{{Events: rec.Log[:1]}}
	return &rec, nil
}

// Record appends entries to a run, in one commit. Each entry is decided as if the
// accepted entries before it had been appended; refused entries are left out. The errors
// of entries are in the results: conflict; not_found, there is no such step, hook or
// wait; invalid; too_large; quota_exceeded; ErrRunEnded and ErrTooEarly, each a conflict.
// Errors: not_found, there is no such run; unavailable.
func (x *External) Record(ctx context.Context, run string, entries ...Entry) (*Recorded, error) {
	e := x.e
	entries, blobs, results, err := x.prepare(run, entries)
	if err != nil {
		return nil, err
	}
	var first, last []int64 // first and last slot of each entry's events
	decide := func(r *liveRun, o *op) error {
		if err := x.own(run, &r.log.Run); err != nil {
			return err
		}
		if r.log.Run.Kind != x.kind {
			return notOfRuntime(run)
		}
		o.events, o.blobs = nil, blobs
		first, last = make([]int64, len(entries)), make([]int64, len(entries))
		before := r.log.Mark()
		for i, entry := range entries {
			if results[i].Err != nil && entry == nil {
				continue // the entry was invalid by itself
			}
			first[i] = r.log.Run.Events
			allowed, err := e.allowed(r, entry)
			results[i].Err, last[i] = err, r.log.Run.Events
			o.events = append(o.events, allowed...)
		}
		r.log.Revert(before)
		return nil
	}
	var rec Recorded
	o := &op{run: run, show: true, owned: true, decide: decide}
	if err := x.onRun(ctx, run, func(l *lane) error { return x.carryOut(ctx, l, o, &rec) }); err != nil {
		return nil, err
	}
	for i := range results {
		results[i].Events = rec.Log[first[i]:last[i]:last[i]]
	}
	rec.Results = results
	return &rec, nil
}

// prepare checks each entry by itself and moves large payloads to blobs. An invalid entry
// becomes nil, and its result has the error.
func (x *External) prepare(run string, entries []Entry) ([]Entry, []Blob, []EntryResult, error) {
	ready, results := make([]Entry, len(entries)), make([]EntryResult, len(entries))
	var blobs []Blob
	for i, entry := range entries {
		if results[i].Err = checkEntry(entry); results[i].Err != nil {
			continue
		}
		events, large, err := x.e.shelve(run, entry)
		if err != nil {
			results[i].Err = err
			continue
		}
		ready[i] = make(Entry, len(events))
		copy(ready[i], events)
		for j := range ready[i] {
			ready[i][j].At = x.e.allowedTime(ready[i][j].At)
		}
		blobs = append(blobs, large...)
	}
	return ready, blobs, results, nil
}

// checkEntry refuses events that no external runtime may append.
func checkEntry(entry Entry) error {
	if len(entry) == 0 {
		return cay.Errorf(cay.Invalid, "an entry has no events")
	}
	for i := range entry {
		ev := &entry[i]
		switch ev.Type {
		case history.RunStarted, history.RunCompleted, history.RunFailed, history.RunCancelled, history.AttrSet,
			history.StepCreated, history.StepStarted, history.StepCompleted, history.StepFailed, history.StepRetrying,
			history.HookCreated, history.HookReceived, history.HookDisposed, history.WaitCreated, history.WaitCompleted:
		default:
			return cay.Errorf(cay.Invalid, "an event of type %s cannot be appended by the runtime of a run", ev.Type)
		}
		if ev.Type == history.AttrSet {
			if err := checkAttributes(ev.Attributes); err != nil {
				return err
			}
		}
		if ev.Type == history.HookCreated && ev.Token == "" {
			return cay.Errorf(cay.Invalid, "a hook needs a token")
		}
		if len(ev.Extra) > maxExtra {
			return tooMuchExtra(len(ev.Extra))
		}
		if err := checkText("a key", ev.Key, maxKey); err != nil {
			return err
		}
		if err := checkEvent(ev); err != nil {
			return err
		}
	}
	return nil
}

func tooMuchExtra(n int) error {
	return cay.Errorf(cay.TooLarge, "what an event or a run says besides its payload has %d bytes: at most %d are allowed", n, maxExtra)
}

// allowedTime returns a runtime's time, limited so that it is not far in the future.
func (e *Engine) allowedTime(at int64) int64 {
	if at <= 0 {
		return 0
	}
	return min(at, e.now()+maxAhead.Milliseconds())
}

// allowed applies an entry to the log of r, and returns the events that have to be
// stored. After an error none of the entry is applied.
func (e *Engine) allowed(r *liveRun, entry Entry) (stored []history.Event, err error) {
	before := r.log.Mark()
	for i := range entry {
		ev := entry[i] // Apply writes to it
		if ev.At == 0 {
			ev.At = e.now()
		}
		err := e.comesInTime(r, &ev)
		is := false
		if err == nil {
			is, err = r.log.Apply(&ev)
		}
		if err != nil {
			r.log.Revert(before)
			return nil, err
		}
		if is {
			stored = append(stored, entry[i])
		}
	}
	r.log.Keep(before)
	return stored, nil
}

// comesInTime checks the conditions on an event that depend on the time, which the log
// does not check.
func (e *Engine) comesInTime(r *liveRun, ev *history.Event) error {
	row := &r.log.Run
	if row.Status.Terminal() {
		switch ev.Type {
		case history.StepCompleted, history.StepFailed:
			if r.log.State(ev.ID) == history.StepRunning {
				return nil
			}
		case history.RunCancelled:
			if row.Status == history.Cancelled {
				return nil
			}
		}
		return cay.Errorf(cay.Conflict, "%w: run %s is %s", ErrRunEnded, row.ID, row.Status)
	}
	if ev.Type == history.StepStarted {
		if open, ok := r.log.Open(ev.ID); ok && open.State == history.StepPending && open.Until > e.now() {
			return cay.Errorf(cay.Conflict, "%w", &EarlyError{Until: time.UnixMilli(open.Until)})
		}
	}
	if row.Events >= MaxExternalEvents && !ends(ev) {
		return cay.Errorf(cay.QuotaExceeded, "the log of run %s has %d events, as many as it may", row.ID, row.Events)
	}
	return nil
}

// carryOut pushes an op on an external run, waits for the decision, and reads the run's
// log with the new events.
func (x *External) carryOut(ctx context.Context, l *lane, o *op, rec *Recorded) error {
	decided := make(chan error, 1)
	var seen Recorded // written by the lane before it reports the decision
	o.done = func(err error) {
		if err == nil && o.on != nil {
			seen.Run, seen.Log, seen.Memo = o.after, o.on.known, o.on.memo
		}
		decided <- err
	}
	if err := l.push(ctx, o); err != nil {
		return err
	}
	select {
	case err := <-decided:
		*rec = seen
		return err
	case <-ctx.Done():
		return wire.ContextError(ctx)
	}
}

// onRun calls f with the lane of a run, and takes the run from another process first if
// need be. Errors: those of f; unavailable, another process owns the run and does not give
// it up.
func (x *External) onRun(ctx context.Context, run string, f func(*lane) error) error {
	e := x.e
	var w wish
	for n := 0; n < tries; {
		if e.owner != nil {
			mine, err := e.mine(ctx, run)
			if err != nil {
				return err
			}
			if !mine && !e.leaves(run) {
				r, err := x.GetRun(ctx, run)
				if err != nil {
					return err
				}
				if r.Kind != x.kind {
					return notOfRuntime(run)
				}
				if !r.Status.Terminal() {
					if err := w.ask(ctx, e, run); err != nil {
						return err
					}
					continue
				}
			}
		}
		l, err := e.route(ctx, run)
		if err != nil {
			return err
		}
		if err := f(l); err != errElsewhere {
			return err
		}
		if w.since.IsZero() || time.Since(w.since) > wishPatience {
			n++ // else it was taken, and asked for again
		}
		if ctx.Err() != nil {
			return wire.ContextError(ctx)
		}
		if !e.sleep(firstRetry) {
			return errClosed
		}
	}
	return cay.Errorf(cay.Unavailable, "run %s is another process's", run)
}

func notOfRuntime(run string) error {
	return cay.Errorf(cay.NotFound, "run %s is no run of this runtime", run)
}

// WriteStream appends chunks to a stream of a run, and closes the stream if closeIt is
// set. It creates a missing stream; closing twice is fine. Errors: not_found; conflict,
// the stream is closed; too_large; unavailable, another process owns the run.
func (x *External) WriteStream(ctx context.Context, run, name string, chunks [][]byte, closeIt bool) error {
	return x.writeStream(ctx, &write{key: streamKey{run, name}, chunks: chunks, close: closeIt})
}

// Append is WriteStream, and returns the length of the stream after the write. If after is
// not negative the chunks may have been stored by an earlier call, whose outcome is unknown
// to the caller, when the stream had that length; they are not stored again then. The caller
// has written nothing else to the stream since.
func (x *External) Append(ctx context.Context, run, name string, chunks [][]byte, closeIt bool, after int64) (length int64, err error) {
	w := &write{key: streamKey{run, name}, chunks: chunks, close: closeIt, repeat: after >= 0, after: after}
	err = x.writeStream(ctx, w)
	if err != nil {
		return 0, err // the lane may still use w
	}
	return w.length, nil
}

func (x *External) writeStream(ctx context.Context, w *write) error {
	if x.e.owner == nil {
		return x.backend.writeStream(ctx, w)
	}
	run := w.key.run
	if err := w.check(); err != nil {
		return err
	}
	return x.onRun(ctx, run, func(l *lane) error {
		// The write joins the lane's work while the lane has the run: then no other process
		// gets the run before the write is stored.
		stored, joined := make(chan error, 1), false
		err := l.do(ctx, &op{run: run, owned: true, decide: func(r *liveRun, _ *op) error {
			if err := x.own(run, &r.log.Run); err != nil || joined {
				return err
			}
			joined = true
			l.admitWrite(&op{run: run, owned: true, write: w, done: func(err error) { stored <- err }})
			return nil
		}})
		if err != nil {
			return err
		}
		select {
		case err := <-stored:
			return err
		case <-ctx.Done():
			return wire.ContextError(ctx)
		}
	})
}

// AwaitRun waits until a run with the id exists. Errors: those of ctx; closed.
func (x *External) AwaitRun(ctx context.Context, run string) error {
	sub := x.e.hub.subscribe(run, false)
	defer x.e.hub.unsubscribe(sub)
	for {
		if _, err := x.GetRun(ctx, run); cay.CodeOf(err) != cay.NotFound {
			return err
		}
		select {
		case <-ctx.Done():
			return wire.ContextError(ctx)
		case <-sub.wake:
		}
		if sub.take().closed {
			return errClosed
		}
	}
}

// Chunks returns at most limit chunks of a stream from an index on, and the stream's
// length and state. Errors: not_found, there is no such run.
func (x *External) Chunks(ctx context.Context, run, stream string, from int64, limit int) ([]history.Chunk, history.StreamInfo, error) {
	if _, err := x.GetRun(ctx, run); err != nil {
		return nil, history.StreamInfo{}, err
	}
	return x.e.store.Chunks(ctx, run, stream, from, limit)
}

// StreamRun returns the run that has a stream. If no run has it, StreamRun waits until this
// process writes to a stream of that name. Errors: those of ctx.
func (x *External) StreamRun(ctx context.Context, stream string) (string, error) {
	written := x.e.byName.await(stream)
	defer x.e.byName.leave(stream, written)
	for {
		run, err := x.e.store.StreamRun(ctx, x.project, stream)
		if cay.CodeOf(err) != cay.NotFound {
			return run, err
		}
		select {
		case <-ctx.Done():
			return "", wire.ContextError(ctx)
		case <-written:
		}
	}
}

// byName holds the streams that callers await by name alone.
type byName struct {
	mu      sync.Mutex // guards the fields below
	waiting map[string][]chan struct{}
}

func (n *byName) await(stream string) chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = make(map[string][]chan struct{})
	}
	written := make(chan struct{}, 1)
	n.waiting[stream] = append(n.waiting[stream], written)
	return written
}

func (n *byName) leave(stream string, written chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rest := slices.DeleteFunc(n.waiting[stream], func(other chan struct{}) bool { return other == written })
	if len(rest) == 0 {
		delete(n.waiting, stream)
	} else {
		n.waiting[stream] = rest
	}
}

// publish wakes the callers that wait for a stream that was written to.
func (n *byName) publish(key streamKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, written := range n.waiting[key.name] {
		select {
		case written <- struct{}{}:
		default:
		}
	}
}
