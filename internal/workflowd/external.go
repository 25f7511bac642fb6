package workflowd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// External is the engine as the runtime of runs sees it that replays their code
// elsewhere: see history.Kind. It creates runs, appends to their logs, and reads them.
// The runtime has no session and no lease: several of its processes may replay one run
// at the same time, and the log decides which of them is right.
type External struct {
	*backend
	kind history.Kind
}

// External returns the engine as the runtime of a kind sees the runs of a project.
func (e *Engine) External(project string, kind history.Kind) *External {
	return &External{backend: &backend{e: e, project: project}, kind: kind}
}

// ExternalRun is a run that an external runtime creates.
type ExternalRun struct {
	workflow.NewRun // with an ID
	// Extra of the run and of its first event: see history.Run and history.Event.
	Extra, EventExtra []byte
	// At is when it was created as its runtime says, in Unix milliseconds; 0 means now.
	At int64
}

// Entry is events that are appended together, or not at all. An event without a time
// has that of the commit; a time is moved behind that of the event before.
type Entry []history.Event

// Recorded is what became of what an external runtime asked for.
type Recorded struct {
	Run history.Run // as it is after it
	// Log is all events of the run, in order. Nobody may write to it.
	Log     []history.Event
	Results []EntryResult // one for each entry
}

// EntryResult is what became of an entry: Events are the part of the log that is new,
// none if the entry asks for what is so already. Err is why it was refused.
type EntryResult struct {
	Events []history.Event
	Err    error
}

// Bounds of what external runtimes may append.
const (
	// MaxExternalEvents is how many events the log of an external run may have. Its end
	// may always be said.
	MaxExternalEvents = 25_000
	maxExtra          = 64 << 10
	maxAhead          = 5 * time.Minute // of a time that a runtime gives
)

// Why an entry is refused that is correct, but comes too late or too early.
var (
	ErrRunEnded = fmt.Errorf("the run has ended")
	ErrTooEarly = fmt.Errorf("the step may not be tried again yet")
)

// EarlyError is why a step cannot start: it is to wait until Until. It is ErrTooEarly.
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

// Record appends entries to a run, in one commit: each that the log allows, as if the
// ones before had been appended, and without those that it refuses. The errors of
// entries are in the results: conflict; not_found, there is no such step, hook or wait;
// invalid; too_large; quota_exceeded; ErrRunEnded and ErrTooEarly, each a conflict.
// Errors: not_found, there is no such run; unavailable.
func (x *External) Record(ctx context.Context, run string, entries ...Entry) (*Recorded, error) {
	e := x.e
	entries, blobs, results, err := x.prepare(run, entries)
	if err != nil {
		return nil, err
	}
	var first, last []int64 // slots of each entry's events
	decide := func(r *liveRun, o *op) error {
		if err := x.own(run, &r.log.Run); err != nil {
			return err
		}
		if r.log.Run.Kind != x.kind {
			return cay.Errorf(cay.NotFound, "run %s is no run of this runtime", run)
		}
		o.events, o.blobs = nil, blobs
		first, last = make([]int64, len(entries)), make([]int64, len(entries))
		before := r.log.Mark()
		for i, entry := range entries {
			if results[i].Err != nil && entry == nil {
				continue // it was invalid by itself
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

// prepare checks entries by themselves and puts large payloads aside. An entry that is
// invalid becomes nil, and its result says why.
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

// checkEntry refuses what no external runtime may append.
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

// allowedTime is a time that a runtime gives, which must not be far in the future.
func (e *Engine) allowedTime(at int64) int64 {
	if at <= 0 {
		return 0
	}
	return min(at, e.now()+maxAhead.Milliseconds())
}

// allowed applies an entry to the log of r, and returns those of its events that are to
// be stored. After an error nothing of it is applied.
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

// comesInTime decides what depends on when an event comes, beyond what the log decides.
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

// carryOut pushes an op on an external run, waits for it, and takes the run's log with
// what it appended.
func (x *External) carryOut(ctx context.Context, l *lane, o *op, rec *Recorded) error {
	decided := make(chan error, 1)
	var seen Recorded // written by the lane, before it says that the op is decided
	o.done = func(err error) {
		if err == nil && o.on != nil {
			seen.Run, seen.Log = o.after, o.on.known
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
		return contextError(ctx)
	}
}

// onRun calls f with the lane of a run that is this process's, or that nobody has.
// Errors: those of f; unavailable, another process has it.
func (x *External) onRun(ctx context.Context, run string, f func(*lane) error) error {
	e := x.e
	for range tries {
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
				if !r.Status.Terminal() {
					break
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
		if !e.sleep(firstRetry) {
			return errClosed
		}
	}
	return cay.Errorf(cay.Unavailable, "run %s is another process's", run)
}

// ReadLog returns the events of a run from a slot on, at most limit, and whether there
// are more. Errors: not_found.
func (x *External) ReadLog(ctx context.Context, run string, from int64, limit int) (events []history.Event, more bool, err error) {
	if _, err := x.GetRun(ctx, run); err != nil {
		return nil, false, err
	}
	return x.e.page(ctx, run, max(from, 1), limit)
}

// WriteStream appends chunks to a stream of a run, and closes it. A stream that nobody
// wrote to is made; closing twice is fine. Errors: not_found; conflict, the stream is
// closed; too_large; unavailable, the run is another process's.
func (x *External) WriteStream(ctx context.Context, run, name string, chunks [][]byte, closeIt bool) error {
	if x.e.owner == nil {
		return x.backend.WriteStream(ctx, run, name, chunks, closeIt)
	}
	w := &write{key: streamKey{run, name}, chunks: chunks, close: closeIt}
	if err := w.check(); err != nil {
		return err
	}
	return x.onRun(ctx, run, func(l *lane) error {
		err := l.do(ctx, &op{run: run, owned: true, decide: func(r *liveRun, _ *op) error { return x.own(run, &r.log.Run) }})
		if err != nil {
			return err
		}
		return l.do(ctx, &op{run: run, owned: true, write: w})
	})
}

// AwaitRun returns when there is a run of an id. Errors: those of ctx; closed.
func (x *External) AwaitRun(ctx context.Context, run string) error {
	sub := x.e.hub.subscribe(run, false)
	defer x.e.hub.unsubscribe(sub)
	for {
		if _, err := x.GetRun(ctx, run); cay.CodeOf(err) != cay.NotFound {
			return err
		}
		select {
		case <-ctx.Done():
			return contextError(ctx)
		case <-sub.wake:
		}
		if sub.take().closed {
			return errClosed
		}
	}
}

// Chunks returns at most limit chunks of a stream from an index on, and how far the
// stream is. Errors: not_found, there is no such run.
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
			return "", contextError(ctx)
		case <-written:
		}
	}
}

// byName is streams that somebody asks for by their name alone.
type byName struct {
	mu      sync.Mutex // guards what follows
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

// publish tells those who wait for a stream that it was written to.
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
