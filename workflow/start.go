package workflow

import (
	"context"
	"crypto/rand"
	"maps"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Start starts a run of the workflow, and returns when it is recorded; a Worker
// executes it. Errors: invalid, too_large, quota_exceeded (too many wait to start).
func (d *Definition[In, Out]) Start(ctx context.Context, c *Client, in In, opts ...StartOption) (*Run[Out], error) {
	info, created, err := c.start(ctx, d.Name(), in, opts)
	if err != nil {
		return nil, err
	}
	return &Run[Out]{ID: info.ID, Created: created, client: c}, nil
}

// Schedule makes the workflow start by the clock, with in as every run's input. It
// replaces the schedule of that ID, if there is one. Errors: invalid.
func (d *Definition[In, Out]) Schedule(ctx context.Context, c *Client, s ScheduleParams, in In) (*Schedule, error) {
	return c.PutSchedule(ctx, d.Name(), s, in)
}

// ScheduleParams say when a schedule starts runs.
type ScheduleParams struct {
	// ID names the schedule.
	ID string
	// Cron has five fields, or is "@every <duration>". Zone is an IANA name; empty means
	// UTC. A time that the zone's clocks skip is due at the first moment after, one that
	// they show twice once; a schedule that is never due is invalid.
	Cron, Zone string
	// Overlap lets a run start while an earlier one has not ended. Else that time is
	// left out.
	Overlap bool
	// Paused keeps the schedule from starting runs.
	Paused bool
}

// PutSchedule is Definition.Schedule for who knows a workflow only by its name.
func (c *Client) PutSchedule(ctx context.Context, workflow string, s ScheduleParams, in any) (*Schedule, error) {
	env, err := c.values.encode("schedule/"+s.ID, in)
	if err != nil {
		return nil, err
	}
	return c.backend.PutSchedule(ctx, Schedule{
		ID: s.ID, Workflow: workflow, Cron: s.Cron, Zone: s.Zone, Overlap: s.Overlap, Paused: s.Paused, Input: env,
	})
}

// Start starts a run of a workflow of a name, and returns when it is recorded. It
// is for who has no Definition; others use Definition.Start. Errors: as there.
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

// Key makes the start idempotent: while a run of the workflow that was started
// with this key is kept, or one that continues it, it is returned, and none is started.
func Key(key string) StartOption { return startOption(func(p *NewRun) { p.Key = key }) }

// Group is whom the run is counted for by GroupConcurrency and GroupRateLimit,
// such as a customer.
func Group(group string) StartOption { return startOption(func(p *NewRun) { p.Group = group }) }

// StartPriority says who goes first when runs wait for workers or limits: who has
// more. The default is the definition's Priority.
func StartPriority(n int) StartOption { return startOption(func(p *NewRun) { p.Priority = n }) }

// StartAt makes the run start not before a time.
func StartAt(t time.Time) StartOption { return startOption(func(p *NewRun) { p.StartAt = t }) }

// Delay is StartAt, counted from now.
func Delay(d time.Duration) StartOption {
	return startOption(func(p *NewRun) { p.StartAt = time.Now().Add(d) })
}

// WithAttributes gives the run attributes, by which it is found in lists.
func WithAttributes(attributes map[string]string) StartOption {
	return startOption(func(p *NewRun) {
		if p.Attributes == nil {
			p.Attributes = make(map[string]string, len(attributes))
		}
		maps.Copy(p.Attributes, attributes)
	})
}

// RunID gives the run its id, "wrun_" and a ULID. Starting two runs of one id
// starts one. The default is a new id.
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

// PinBuild pins the run to workers of a build; "" to none. The default is that of
// the Client.
func PinBuild(build string) StartOption { return startOption(func(p *NewRun) { p.Build = build }) }

// Run is a run whose workflow returns an Out. GetRun makes one of an id. If the run was
// continued (ContinueAsNew), Result, Cancel and Wake are about the last run of its chain,
// and Info about the run itself.
type Run[Out any] struct {
	ID string
	// Created is false if Start found a run of the same Key or RunID.
	Created bool

	client *Client
}

// GetRun returns a run by its id. It does not ask whether there is one.
func GetRun[Out any](c *Client, id string) *Run[Out] { return &Run[Out]{ID: id, client: c} }

// Info returns what is known of the run. Errors: not_found.
func (r *Run[Out]) Info(ctx context.Context) (*RunInfo, error) { return r.client.Get(ctx, r.ID) }

// Result waits until the run has ended, and returns what its workflow returned; if
// that was ContinueAsNew, the result of the run that continues it. It returns a
// *RunFailedError or a *RunCancelledError if that was the end. Errors: deadline_exceeded,
// canceled if ctx ends before, which wrap ctx.Err(); not_found (the run, or its result, is not kept any more), invalid (the result is no Out).
func (r *Run[Out]) Result(ctx context.Context) (Out, error) {
	var out Out
	id, again := r.ID, true
	for {
		info, end, err := r.client.backend.WaitEnd(ctx, id)
		if cay.CodeOf(err) == cay.NotFound && id != r.ID && again {
			// It was deleted just now: the first run knows what goes on.
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

// waitedFor returns the error of a wait for a run's end, which is the caller's own if its
// context has ended.
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
	// It is the last of the log, or steps that were under way ended a little later.
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

// outcome makes of a run's end what Result returns.
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
