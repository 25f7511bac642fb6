package workflowd

import (
	"context"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// session is a worker's connection to the engine.
type session struct {
	e       *Engine
	project string
	info    workflow.WorkerInfo
	runner  workflow.Runner
	lost    chan struct{}
	ending  chan struct{} // closed when the session begins to end

	load int   // runs that the session has, or is about to get; guarded by the dispatcher's mu
	cell *cell // the cell that dies with the session

	mu    sync.Mutex // guards the fields below
	runs  map[string]*liveRun
	over  bool
	ended chan struct{} // closed when all runs were given back

	transactions sync.WaitGroup // transactions in progress
}

var _ workflow.Session = (*session)(nil)

// Defaults of a worker's settings.
const (
	defaultMaxRuns   = 10_000
	defaultMaxEvents = 25_000
)

func (b *backend) Attach(ctx context.Context, w workflow.WorkerInfo, r workflow.Runner) (workflow.Session, error) {
	if err := checkWorker(&w); err != nil {
		return nil, err
	}
	e := b.e
	s := &session{
		e: e, project: b.project, info: w, runner: r, lost: make(chan struct{}), ending: make(chan struct{}),
		runs: make(map[string]*liveRun), ended: make(chan struct{}), cell: &e.dispatch.here,
	}
	if e.cfg.RemoteWorkers {
		s.cell = new(cell)
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errClosed
	}
	e.sessions[s] = struct{}{}
	e.tasks.Go(func() {
		select {
		case <-ctx.Done():
			s.end(true)
		case <-s.lost:
		}
	})
	e.mu.Unlock()
	e.dispatch.attach(s)
	if len(s.info.HeldRuns) > 0 {
		for _, l := range e.lanes {
			l.post(func() { l.absolve(s) }) // a lane that has ended has no runs
		}
	}
	e.serve()
	return s, nil
}

func checkWorker(w *workflow.WorkerInfo) error {
	if len(w.Definitions) == 0 {
		return cay.Errorf(cay.Invalid, "a worker needs at least one definition")
	}
	if w.MaxRuns < 0 {
		return cay.Errorf(cay.Invalid, "a worker cannot take %d runs", w.MaxRuns)
	}
	if len(w.Definitions) > maxDefinitions || len(w.Accept) > maxDefinitions {
		return cay.Errorf(cay.Invalid, "a worker has at most %d definitions, and accepts as many builds", maxDefinitions)
	}
	for _, build := range append([]string{w.Build}, w.Accept...) {
		if err := checkText("a build", build, maxName); err != nil {
			return err
		}
	}
	setDefault(&w.MaxRuns, defaultMaxRuns)
	w.HeldRuns = w.HeldRuns[:min(len(w.HeldRuns), maxHeldRuns)]
	for _, run := range w.HeldRuns {
		if err := checkText("the id of a run that survived,", run, maxName); err != nil {
			return err
		}
	}
	for i := range w.Definitions {
		d := &w.Definitions[i]
		if d.Name == "" {
			return cay.Errorf(cay.Invalid, "a definition needs a name")
		}
		if err := checkText("the name of a workflow,", d.Name, maxName); err != nil {
			return err
		}
		if err := checkNumber("the priority of "+d.Name, d.Priority); err != nil {
			return err
		}
		for _, other := range w.Definitions[:i] {
			if other.Name == d.Name {
				return cay.Errorf(cay.Invalid, "workflow %q is defined twice", d.Name)
			}
		}
		if (d.Rate > 0 || d.RatePerGroup > 0) && d.RatePeriod <= 0 {
			return cay.Errorf(cay.Invalid, "the rate limit of %s needs a period", d.Name)
		}
		setDefault(&d.MaxEvents, defaultMaxEvents)
	}
	return nil
}

// take records that the session has a run. It reports false if the session is over.
func (s *session) take(r *liveRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.runs[r.id] = r
	return true
}

func (s *session) isOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *session) drop(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, run)
}

func (s *session) laneOf(run string) *lane {
	if len(s.e.lanes) == 1 {
		return s.e.lanes[0]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[run]; r != nil {
		return r.lane
	}
	return s.e.lanes[0] // the run is not this session's: any lane refuses it
}

func (s *session) Append(run string, lease uint64, events []workflow.Event, done func(error)) {
	o := &op{run: run, session: s, lease: lease, done: done}
	err := checkEvents(events)
	if err == nil {
		o.events, o.blobs, err = s.e.shelve(run, events)
	}
	if err != nil {
		o.finish(err)
		return
	}
	s.push(o)
}

func (s *session) WriteStream(run string, lease uint64, stream string, chunks [][]byte, closeIt bool, done func(error)) {
	o := &op{run: run, session: s, lease: lease, write: &write{key: streamKey{run, stream}, chunks: chunks, close: closeIt}, done: done}
	if err := o.write.check(); err != nil {
		o.finish(err)
		return
	}
	s.push(o)
}

func (s *session) push(o *op) {
	if err := s.laneOf(o.run).push(context.Background(), o); err != nil {
		o.finish(err)
	}
}

func (s *session) StartRun(run string, lease uint64, p workflow.NewRun, started workflow.Event, done func(error)) {
	o := &op{run: run, session: s, lease: lease, done: done}
	err := checkEvent(&started)
	if err == nil {
		o.events, o.blobs, err = s.e.shelve(run, []history.Event{started})
	}
	if err != nil {
		o.finish(err)
		return
	}
	c, err := s.e.newCreation(s.project, &p)
	if err != nil {
		o.finish(err)
		return
	}
	o.create = c
	s.push(o)
}

func (s *session) Release(run string, lease uint64, slot int64) {
	l := s.laneOf(run)
	l.pushNow(&op{run: run, session: s, lease: lease, decide: func(r *liveRun, o *op) error {
		l.release(r, slot)
		return nil
	}})
}

// release takes a sleeping run from its worker.
func (l *lane) release(r *liveRun, slot int64) {
	if slot > 0 && r.log.Run.Recoveries != 0 { // the run has no work in progress, and its worker lives
		l.touch(r)
		r.log.Run.Recoveries, r.row = 0, true
	}
	l.detach(r)
	if r.log.Run.Events > slot || len(r.fresh) > 0 || l.retryDue(r) {
		r.want = true
		return
	}
	l.drowsy[r.id] = struct{}{}
}

// retryDue reports whether a step may be retried by now.
func (l *lane) retryDue(r *liveRun) bool {
	now := l.e.now()
	for o := range r.log.AllOpen() {
		if o.State == history.StepPending && o.Until != 0 && o.Until <= now {
			return true
		}
	}
	return false
}

func (s *session) Lost() <-chan struct{} { return s.lost }

func (s *session) Close() error {
	s.end(false)
	return nil
}

// end takes all runs from the session, so that other sessions can get them. lost means
// that the worker may have died.
func (s *session) end(lost bool) {
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		<-s.ended
		return
	}
	s.over = true
	s.mu.Unlock()
	close(s.ending)
	e := s.e
	e.dispatch.remove(s)
	s.transactions.Wait()
	var lanes sync.WaitGroup
	for _, l := range e.lanes {
		lanes.Add(1)
		if !l.post(func() { l.takeAll(s, lost); lanes.Done() }) {
			lanes.Done()
		}
	}
	lanes.Wait()
	e.mu.Lock()
	delete(e.sessions, s)
	closed := e.closed
	e.mu.Unlock()
	if !closed {
		e.serve()
	}
	close(s.lost)
	close(s.ended)
}

// takeAll takes a session's runs from it and puts them in line again.
func (l *lane) takeAll(s *session, lost bool) {
	l.commit() // earlier ops of the worker are decided
	if !lost {
		for _, r := range l.runs {
			if r.session == s && !r.held {
				l.pardon(r)
			}
		}
		l.commit()
	}
	for _, r := range l.runs {
		if r.session != s {
			continue
		}
		l.detach(r)
		s.runner.Revoke(r.id, r.lease)
		t := ticketOf(&r.log.Run)
		t.recovered = lost
		l.e.dispatch.enqueue(t)
		l.unload(r)
	}
}
