package workflowd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// maxLoads bounds the concurrent reads of logs from the store.
const maxLoads = 4

// liveRun is a run in memory: it has a worker, or is part of pending work. Only its lane
// touches it, except for fields that say otherwise.
type liveRun struct {
	id   string
	lane *lane // immutable
	// owner is the project, nil while the log is being read and after the run has ended.
	// Any goroutine may read it.
	owner atomic.Pointer[string]
	log   *history.Log // nil while it is read for the first time

	// call and retention come from run_created: the parent's call that waits for the run,
	// and how long the run is kept after its end, in milliseconds.
	call      string
	retention int64

	session *session // the worker that has the run, nil if none
	lease   uint64
	// known is the whole log, kept while no worker has the run and one may get it soon.
	known []history.Event
	whole bool // whether known is complete
	// view is for other goroutines: see the type. memo belongs to it.
	view atomic.Pointer[view]
	memo *Memo

	// loading means that ops have to wait: the log is being read, or the run is held.
	loading bool
	held    bool  // held by a transaction: only its goroutine may use log
	doubt   bool  // it is unknown which of the run's events were stored
	waiting []*op // ops that wait for the log, or for ending
	ending  *op   // ends the run when its children have been asked to end; see endChildren

	asleep bool // the store has, or may have, the run as asleep

	charged bool // this try counts in Recoveries; see suspects.go
	turn    bool // the run is tried apart from others

	// The fields below belong to the pending group.
	inGroup bool
	mark    history.Mark
	fresh   []history.Event // appended events
	isNew   bool            // the run was created in the group
	row     bool            // the row has changed in more than its last event
	sealed  bool            // takes no more ops: its claims are undecided
	slumber bool            // created asleep
	want    bool            // needs a worker, though no event was appended
	assign  *assignment
	hooks   bool              // its live hooks may have changed
	blobs   map[string][]byte // payloads of fresh that are stored as blobs, by name
}

// assignment is a run about to be given to a worker that has room for it.
type assignment struct {
	session *session
	ticket  *ticket
	charged bool // the try counts in Recoveries
}

// ticketOf returns a ticket for a run.
func ticketOf(r *history.Run) *ticket {
	return &ticket{
		run: r.ID, root: r.Root, workflow: workflowName{r.Project, r.Workflow}, group: r.Group, build: r.Build,
		priority: r.Priority, created: r.CreatedAt, started: r.Status == history.Running,
		recoveries: r.Recoveries, external: r.Kind.External(),
	}
}

// read starts reading a run's log, or only its events if only they are missing. Ops that
// arrive meanwhile wait.
func (l *lane) read(r *liveRun) {
	r.loading = true
	l.e.loads.add(l.e, r)
}

// loads is the queue of logs to read. A few goroutines read them and end when the queue
// is empty.
type loads struct {
	mu    sync.Mutex // guards the fields below
	queue []*liveRun
	busy  int
}

func (q *loads) add(e *Engine, r *liveRun) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queue = append(q.queue, r)
	if q.busy < maxLoads {
		q.busy++
		e.spawn(func() { q.work() })
	}
}

func (q *loads) work() {
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			q.queue = nil
			q.busy--
			q.mu.Unlock()
			return
		}
		r := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		q.mu.Unlock()
		r.lane.load(r)
	}
}

// Waits between attempts to reach a store that does not answer.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// load reads a run and hands it to its lane. It retries while the store does not answer;
// callers that wait for the run can give up by themselves.
func (l *lane) load(r *liveRun) {
	e := l.e
	if e.ctx.Err() != nil {
		return // the lane has ended
	}
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		log, events, err := e.readLog(e.ctx, r.id)
		if cay.CodeOf(err) != cay.Unavailable && e.ctx.Err() == nil {
			l.post(func() { l.loaded(r, log, events, err) })
			return
		}
		if e.ctx.Err() != nil {
			return
		}
		e.log.Warn("cannot read a run, will try again", "run", r.id, "error", err)
		if !e.sleep(wait) {
			return
		}
	}
}

// readLog returns a run's log and all its events.
func (e *Engine) readLog(ctx context.Context, id string) (*history.Log, []history.Event, error) {
	run, err := e.store.Run(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	events, err := e.store.Events(ctx, id, 1, 0)
	if err != nil {
		return nil, nil, err
	}
	log, err := history.LoadLog(*run, events)
	if err != nil {
		return nil, nil, err
	}
	return log, events, e.unshelveFrom(ctx, id, events)
}

// sleep waits. It reports false if the engine has ended.
func (e *Engine) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}

// loaded handles the result of load: a run's log, or an error such as not_found.
func (l *lane) loaded(r *liveRun, log *history.Log, events []history.Event, err error) {
	r.loading = false
	if l.runs[r.id] != r {
		return // the run was dropped meanwhile
	}
	if r.doubt {
		l.resolved(r, log, events)
		if r.log == nil {
			l.forget(r)
		}
		l.unload(r)
		return
	}
	if err == nil && r.log == nil {
		r.log, r.asleep = log, !log.Run.Kind.External()
	}
	if err == nil {
		r.known, r.whole = events, true
		r.readOrigin(&events[0])
		r.show()
	} else if cay.CodeOf(err) != cay.NotFound {
		l.e.log.Error("a run cannot be read", "run", r.id, "error", err)
	}
	waiting := r.waiting
	r.waiting = nil
	for _, o := range waiting {
		switch {
		case o.run != r.id:
			l.unpark(o, r, err)
		case err != nil && (o.create == nil || o.create.run.ID != r.id || cay.CodeOf(err) != cay.NotFound):
			o.finish(err)
		default:
			l.admit(o)
		}
	}
	if r.log == nil && !r.inGroup {
		l.forget(r)
	}
	l.unload(r)
}

// readOrigin copies fields from run_created that the row does not have.
func (r *liveRun) readOrigin(created *history.Event) {
	r.call, r.retention = created.ID, created.Until
	if !r.ended() {
		project := r.log.Run.Project
		r.owner.Store(&project)
	}
}

// isOf reports whether the run is known to belong to a project ("" for any) and to be
// live: its end will be published.
func (r *liveRun) isOf(project string) bool {
	owner := r.owner.Load()
	return owner != nil && (project == "" || *owner == project)
}

// project returns the run's project.
func (r *liveRun) project() string { return r.log.Run.Project }

func (r *liveRun) workflowName() workflowName {
	return workflowName{r.log.Run.Project, r.log.Run.Workflow}
}

func (r *liveRun) ended() bool { return r.log.Run.Status.Terminal() }
