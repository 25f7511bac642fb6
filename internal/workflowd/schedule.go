package workflowd

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/calendar"
	"github.com/cayhq/cay/workflow"
)

// scheduleAttribute names the schedule that started a run.
const scheduleAttribute = "$schedule"

// maxSchedules bounds the schedules of a project.
const maxSchedules = 10_000

// refreshSchedules is how often schedules are read again if other processes may change
// them.
const refreshSchedules = 30 * time.Second

// schedules starts runs by the clock. Each start has an idempotency key made of the
// schedule and its due time, so that it happens once, whichever process is first, and
// even if a process dies.
type schedules struct {
	e    *Engine
	wake chan struct{}

	changing sync.Mutex // held while a schedule is changed in the store

	mu    sync.Mutex // guards the fields below; not held during calls of the store
	known map[scheduleKey]history.Schedule
	fresh bool // known equals the store's schedules
}

type scheduleKey struct{ project, id string }

func (s *schedules) init(e *Engine) {
	s.e = e
	s.wake = make(chan struct{}, 1)
	s.known = make(map[scheduleKey]history.Schedule)
}

func (s *schedules) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// nextAfter returns when a schedule is due after a time; 0 for never.
func nextAfter(s *history.Schedule, now time.Time) (int64, error) {
	schedule, at, err := calendar.Parse(s.Cron, s.Zone)
	if err != nil {
		return 0, err
	}
	next := schedule.Next(now.In(at))
	if next.IsZero() {
		return 0, nil
	}
	return next.UnixMilli(), nil
}

// mustCome is nextAfter, but refuses schedules that are never due.
func mustCome(s *history.Schedule, now time.Time) (int64, error) {
	next, err := nextAfter(s, now)
	if err == nil && next == 0 {
		err = cay.Errorf(cay.Invalid, "schedule %q never comes: no month it names has such a day", s.Cron)
	}
	return next, err
}

func (b *backend) ListSchedules(ctx context.Context) ([]workflow.Schedule, error) {
	return b.e.store.Schedules(ctx, b.project)
}

func (b *backend) PutSchedule(ctx context.Context, p workflow.Schedule) (*workflow.Schedule, error) {
	if p.ID == "" || len(p.ID) > maxName || p.Workflow == "" || len(p.Workflow) > maxName {
		return nil, cay.Errorf(cay.Invalid, "a schedule needs an id and a workflow, of at most %d bytes each", maxName)
	}
	if err := checkTexts(text{"a schedule's id", p.ID, maxName}, text{"the name of a workflow,", p.Workflow, maxName}); err != nil {
		return nil, err
	}
	if len(p.Input) > b.e.cfg.InlinePayload {
		return nil, cay.Errorf(cay.TooLarge, "the input of a schedule has at most %d bytes", b.e.cfg.InlinePayload)
	}
	now := b.e.cfg.Now()
	next, err := mustCome(&p, now)
	if err != nil {
		return nil, err
	}
	b.e.schedules.changing.Lock()
	defer b.e.schedules.changing.Unlock()
	all, err := b.e.store.Schedules(ctx, b.project)
	if err != nil {
		return nil, err
	}
	p.Project, p.NextAt, p.CreatedAt, p.LastAt, p.LastRun = b.project, next, now.UnixMilli(), 0, ""
	switch old := scheduleOf(all, p.ID); {
	case old != nil:
		p.CreatedAt, p.LastAt, p.LastRun = old.CreatedAt, old.LastAt, old.LastRun
		if old.Cron == p.Cron && old.Zone == p.Zone && !old.Paused {
			p.NextAt = old.NextAt
		}
	case len(all) >= maxSchedules:
		return nil, cay.Errorf(cay.QuotaExceeded, "a project has at most %d schedules", maxSchedules)
	}
	if err := b.e.store.PutSchedule(ctx, p); err != nil {
		return nil, err
	}
	b.e.schedules.put(p)
	return &p, nil
}

// scheduleOf returns the schedule with an id, nil if there is none.
func scheduleOf(all []history.Schedule, id string) *history.Schedule {
	for i := range all {
		if all[i].ID == id {
			return &all[i]
		}
	}
	return nil
}

func (b *backend) UpdateSchedule(ctx context.Context, id string, u workflow.ScheduleUpdate) (*workflow.Schedule, error) {
	b.e.schedules.changing.Lock()
	defer b.e.schedules.changing.Unlock()
	all, err := b.e.store.Schedules(ctx, b.project)
	if err != nil {
		return nil, err
	}
	p := scheduleOf(all, id)
	if p == nil {
		return nil, cay.Errorf(cay.NotFound, "schedule %q not found", id)
	}
	old := *p
	set(&p.Cron, u.Cron)
	set(&p.Zone, u.Zone)
	set(&p.Overlap, u.Overlap)
	set(&p.Paused, u.Paused)
	if old.Cron != p.Cron || old.Zone != p.Zone || old.Paused && !p.Paused {
		if p.NextAt, err = mustCome(p, b.e.cfg.Now()); err != nil {
			return nil, err
		}
	}
	if err := b.e.store.PutSchedule(ctx, *p); err != nil {
		return nil, err
	}
	b.e.schedules.put(*p)
	return p, nil
}

// set sets v to *to, unless to is nil.
func set[T any](v, to *T) {
	if to != nil {
		*v = *to
	}
}

func (b *backend) DeleteSchedule(ctx context.Context, id string) error {
	b.e.schedules.changing.Lock()
	defer b.e.schedules.changing.Unlock()
	if err := b.e.store.DeleteSchedule(ctx, b.project, id); err != nil {
		return err
	}
	b.e.schedules.remove(b.project, id)
	return nil
}

func (s *schedules) put(p history.Schedule) {
	s.mu.Lock()
	s.known[scheduleKey{p.Project, p.ID}] = p
	s.mu.Unlock()
	s.poke()
	s.e.feed.schedules(p.Project)
}

func (s *schedules) remove(project, id string) {
	s.mu.Lock()
	delete(s.known, scheduleKey{project, id})
	s.mu.Unlock()
	s.e.feed.schedules(project)
}

// loop starts runs until the engine ends.
func (s *schedules) loop() {
	nap := time.NewTimer(0)
	defer nap.Stop()
	wait := firstRetry
	for {
		select {
		case <-s.e.ctx.Done():
			return
		case <-nap.C:
		case <-s.wake:
		}
		next, err := s.run()
		switch {
		case err == nil:
			wait = firstRetry
		case s.e.ctx.Err() != nil:
			return
		default:
			s.e.log.Warn("cannot start what is scheduled, will try again", "error", err)
			next, wait = wait, min(2*wait, lastRetry)
		}
		nap.Reset(next)
	}
}

// run starts the due runs, and returns how long to wait for the next.
func (s *schedules) run() (time.Duration, error) {
	if err := s.refresh(); err != nil {
		return 0, err
	}
	now := s.e.now()
	next := maxNap // a jump of the clock is noticed after maxNap at the latest
	var due []history.Schedule
	s.mu.Lock()
	for _, p := range s.known {
		switch {
		case p.Paused || p.NextAt == 0:
		case p.NextAt <= now:
			due = append(due, p)
		default:
			next = min(next, time.Duration(p.NextAt-now)*time.Millisecond)
		}
	}
	s.mu.Unlock()
	for i := range due {
		if err := s.fire(&due[i]); err != nil {
			return 0, err
		}
	}
	if len(due) > 0 {
		return 0, nil
	}
	return next, nil
}

// refresh reads the schedules, at first and then every refreshSchedules if other
// processes may change them. It holds changing, so that this process changes no schedule
// between the read and the update of known.
func (s *schedules) refresh() error {
	if s.isFresh() {
		return nil
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	s.setFresh(true) // set before the read, so that a schedule that becomes stale meanwhile is read again
	all, err := s.e.store.Schedules(s.e.ctx, "")
	if err != nil {
		s.setFresh(false)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.known)
	for _, p := range all {
		s.known[scheduleKey{p.Project, p.ID}] = p
	}
	return nil
}

func (s *schedules) isFresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh
}

func (s *schedules) setFresh(fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = fresh
}

// stale makes refresh read the schedules again.
func (s *schedules) stale() {
	s.setFresh(false)
	s.poke()
}

// fire starts a run of a due schedule. A single run makes up for all times that were
// missed because no engine was running.
func (s *schedules) fire(p *history.Schedule) error {
	e := s.e
	b := &backend{e: e, project: p.Project}
	next, err := nextAfter(p, e.cfg.Now())
	if err != nil {
		e.log.Error("a schedule cannot be read", "schedule", p.ID, "error", err)
		s.remove(p.Project, p.ID)
		return nil
	}
	start := true
	if !p.Overlap && p.LastRun != "" {
		goesOn, err := e.goesOn(e.ctx, p.LastRun)
		if err != nil {
			return err
		}
		start = !goesOn
	}
	fired := *p
	fired.NextAt = next
	if start {
		run, _, err := b.CreateRun(e.ctx, workflow.NewRun{
			Workflow: p.Workflow, Input: p.Input, Attributes: map[string]string{scheduleAttribute: p.ID},
			Key: scheduleAttribute + ":" + p.ID + ":" + strconv.FormatInt(p.NextAt, 10),
		})
		switch {
		case err == nil:
			fired.LastRun, fired.LastAt = run.ID, p.NextAt
		case cay.CodeOf(err) == cay.QuotaExceeded:
			e.log.Warn("a scheduled run was skipped", "schedule", p.ID, "error", err)
		default:
			return err
		}
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	now, err := s.current(p)
	if err != nil || now == nil {
		return err
	}
	if now.Cron != p.Cron || now.Zone != p.Zone || now.Paused != p.Paused || now.Workflow != p.Workflow ||
		now.Overlap != p.Overlap || string(now.Input) != string(p.Input) {
		s.put(*now) // fire ran out of date: the stored schedule decides when it is due
		return nil
	}
	if err := e.store.PutSchedule(e.ctx, fired); err != nil {
		return err
	}
	s.put(fired)
	return nil
}

// current returns a schedule from the store, nil if it was deleted.
func (s *schedules) current(p *history.Schedule) (*history.Schedule, error) {
	all, err := s.e.store.Schedules(s.e.ctx, p.Project)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].ID == p.ID && all[i].Project == p.Project {
			return &all[i], nil
		}
	}
	s.remove(p.Project, p.ID)
	return nil, nil
}
