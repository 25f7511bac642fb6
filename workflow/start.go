package workflow

import (
	"context"
	"crypto/rand"
	"maps"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Start starts a run of the workflow, and returns when the start is recorded; a Worker
// executes the run. Errors: invalid, too_large, quota_exceeded (too many runs wait to
// start).
func (d *Definition[In, Out]) Start(ctx context.Context, c *Client, in In, opts ...StartOption) (*Run[Out], error) {
	info, created, err := c.start(ctx, d.Name(), in, opts)
	if err != nil {
		return nil, err
	}
	return &Run[Out]{ID: info.ID, Created: created, client: c}, nil
}

// Schedule makes the workflow start by the clock, with in as every run's input. An
// existing schedule with the same ID is replaced. Errors: invalid.
func (d *Definition[In, Out]) Schedule(ctx context.Context, c *Client, s ScheduleParams, in In) (*Schedule, error) {
	return c.PutSchedule(ctx, d.Name(), s, in)
}

// ScheduleParams say when a schedule starts runs.
type ScheduleParams struct {
	// ID names the schedule.
	ID string
	// Cron has five fields, or is "@every <duration>". Zone is an IANA name; empty means
	// UTC. A time that the zone's clocks skip is due at the first moment after it, and a
	// time that they show twice is due once; a schedule that is never due is invalid.
	Cron, Zone string
	// Overlap lets a run start while an earlier one has not ended. Without it the
	// schedule skips that time.
	Overlap bool
	// Paused keeps the schedule from starting runs.
	Paused bool
}

// PutSchedule is Definition.Schedule for programs that know only the name of the
// workflow.
func (c *Client) PutSchedule(ctx context.Context, workflow string, s ScheduleParams, in any) (*Schedule, error) {
	env, err := c.values.encode("schedule/"+s.ID, in)
	if err != nil {
		return nil, err
	}
	return c.backend.PutSchedule(ctx, Schedule{
		ID: s.ID, Workflow: workflow, Cron: s.Cron, Zone: s.Zone, Overlap: s.Overlap, Paused: s.Paused, Input: env,
	})
}

// Start starts a run of the workflow with a name, and returns when the start is recorded.
// It is for programs without the Definition; others use Definition.Start. Errors: as for
// Definition.Start.
func (c *Client) Start(ctx context.Context, workflow string, in any, opts ...StartOption) (*RunInfo, error) {
	info, _, err := c.start(ctx, workflow, in, opts)
	return info, err
}

func (c *Client) start(ctx context.Context, workflow string, in any, opts []StartOption) (*RunInfo, bool, error) {
	if c == nil {
		return nil, false, errNoClient
	}
	p := NewRun{Workflow: workflow, Build: c.build}
	for _, opt := range opts {
		opt.applyStart(&p)
	}
	if p.ID == "" {
		var entropy [10]byte
		_, _ = rand.Read(entropy[:]) // never fails
		p.ID, p.NewID = newRunID(time.Now(), entropy), true
	}
	var err error
	if p.Input, err = c.values.encode(p.ID, in); err != nil {
		return nil, false, err
	}
	return c.backend.CreateRun(ctx, p)
}

// StartOption changes a run that is started.
type StartOption interface{ applyStart(*NewRun) }

type startOption func(*NewRun)

func (o startOption) applyStart(p *NewRun) { o(p) }

// Key makes the start idempotent: while a run of the workflow with this key, or a run
// that continues it, is kept, Start returns that run and starts none.
func Key(key string) StartOption { return startOption(func(p *NewRun) { p.Key = key }) }

// Group assigns the run to a group for GroupConcurrency and GroupRateLimit, such as a
// customer.
func Group(group string) StartOption { return startOption(func(p *NewRun) { p.Group = group }) }

// StartPriority is the run's priority when runs wait for workers or limits: higher goes
// first. The default is the definition's Priority.
func StartPriority(n int) StartOption { return startOption(func(p *NewRun) { p.Priority = n }) }

// StartAt makes the run start no earlier than t.
func StartAt(t time.Time) StartOption { return startOption(func(p *NewRun) { p.StartAt = t }) }

// Delay is StartAt, counted from now.
func Delay(d time.Duration) StartOption {
	return startOption(func(p *NewRun) { p.StartAt = time.Now().Add(d) })
}

// WithAttributes gives the run attributes, which lists of runs can be filtered by.
func WithAttributes(attributes map[string]string) StartOption {
	return startOption(func(p *NewRun) {
		if p.Attributes == nil {
			p.Attributes = make(map[string]string, len(attributes))
		}
		maps.Copy(p.Attributes, attributes)
	})
}

// RunID sets the run's id, "wrun_" and a ULID. Starting a second run with the same id
// returns the first. The default is a new id.
func RunID(id string) StartOption { return startOption(func(p *NewRun) { p.ID = id }) }

// RunRetention is Retention for this run.
func RunRetention(keep time.Duration) StartOption {
	return startOption(func(p *NewRun) {
		if keep <= 0 {
			keep = -1
		}
		p.Retention = keep
	})
}

// PinBuild pins the run to workers of a build; "" does not pin it. The default is the
// Client's Build.
func PinBuild(build string) StartOption { return startOption(func(p *NewRun) { p.Build = build }) }

// Run is a run whose workflow returns an Out. GetRun makes a Run from an id. If the run
// was continued (ContinueAsNew), Result, Cancel and Wake act on the last run of its
// chain, and Info on the run itself.
type Run[Out any] struct {
	ID string
	// Created is false if Start found an existing run with the same Key or RunID.
	Created bool

	client *Client
}

// GetRun returns the Run with an id. It does not check that the run exists.
func GetRun[Out any](c *Client, id string) *Run[Out] { return &Run[Out]{ID: id, client: c} }

// Info returns the run without its log. Errors: not_found.
func (r *Run[Out]) Info(ctx context.Context) (*RunInfo, error) { return r.client.Get(ctx, r.ID) }

// Result waits until the run has ended, and returns the result of its workflow; after
// ContinueAsNew, it returns the result of the run that continues it. If the run failed or
// was cancelled, Result returns a *RunFailedError or a *RunCancelledError. Errors:
// deadline_exceeded, canceled if ctx ends before, which wrap ctx.Err(); not_found (the
// run, or its result, is no longer kept), invalid (the result does not fit Out).
func (r *Run[Out]) Result(ctx context.Context) (Out, error) {
	var out Out
	id, again := r.ID, true
	for {
		info, end, err := r.client.backend.WaitEnd(ctx, id)
		if cay.CodeOf(err) == cay.NotFound && id != r.ID && again {
			// The run was just deleted: the first run of the chain leads to the last.
			id, again = r.ID, false
			continue
		}
		if err != nil {
			return out, waitedFor(ctx, id, err)
		}
		if info.Next != "" {
			id, again = info.Next, again || info.ID != r.ID
			continue
		}
		if end == nil {
			if end, err = r.client.lastEvent(ctx, info); err != nil {
				return out, waitedFor(ctx, id, err)
			}
		}
		err = r.client.outcome(info, end, &out)
		return out, err
	}
}

// waitedFor returns the error of a wait for a run's end: the caller's own error if the
// caller's context has ended.
func waitedFor(ctx context.Context, run string, err error) error {
	switch ctx.Err() {
	case nil:
		return err
	case context.DeadlineExceeded:
		return cay.Errorf(cay.DeadlineExceeded, "the caller's time was over before it had the result of run %s, which goes on: %w", run, ctx.Err())
	}
	return cay.Errorf(cay.Canceled, "the caller gave up before it had the result of run %s, which goes on: %w", run, ctx.Err())
}

// lastEvent returns the event that ended a run.
func (c *Client) lastEvent(ctx context.Context, info *RunInfo) (*Event, error) {
	// The terminal event is the last of the log, except that running steps may have ended
	// a little later.
	for from, step := info.Events, int64(1); ; step *= 16 {
		from = max(from-step+1, 1)
		events, err := c.backend.Events(ctx, info.ID, from, int(info.Events-from+1))
		if err != nil {
			return nil, err
		}
		for i := len(events) - 1; i >= 0; i-- {
			if endsRun(events[i].Type) {
				return &events[i], nil
			}
		}
		if from == 1 {
			return nil, cay.Errorf(cay.Internal, "the log of run %s has no end, but the run has", info.ID)
		}
	}
}

// endsRun reports whether an event of that type is a run's end.
func endsRun(t history.Type) bool {
	return t == history.RunCompleted || t == history.RunFailed || t == history.RunCancelled
}

// outcome converts a run's end to the result of Result.
func (c *Client) outcome(info *RunInfo, end *Event, out any) error {
	switch info.Status {
	case StatusCompleted:
		if len(end.Payload) == 0 {
			return cay.Errorf(cay.NotFound, "the result of run %s is no longer kept", info.ID)
		}
		return c.values.decode(end.Payload, out)
	case StatusFailed:
		return &RunFailedError{Run: info.ID, Workflow: info.Workflow, Code: end.Code, Cause: c.values.decodeError(end.Payload)}
	case StatusCancelled:
		return &RunCancelledError{Run: info.ID, Workflow: info.Workflow, Reason: end.Reason}
	}
	return cay.Errorf(cay.Internal, "run %s has ended, but is %s", info.ID, info.Status)
}

// Cancel is Client.Cancel.
func (r *Run[Out]) Cancel(ctx context.Context, p CancelParams) error {
	_, err := r.client.Cancel(ctx, r.ID, p)
	return err
}

// Wake is Client.Wake.
func (r *Run[Out]) Wake(ctx context.Context, waits ...string) (int, error) {
	return r.client.Wake(ctx, r.ID, waits...)
}
