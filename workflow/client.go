package workflow

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
)

// Client starts runs and controls them, in this process's engine or on a daemon:
// sqlite.Open, postgres.Open and Connect return one. It is safe for concurrent use. Close
// the Client after stopping the Workers that use it.
//
// Errors are *cay.Error, with the codes that each method names; every method can return
// unavailable.
type Client struct {
	backend Backend
	values  envelopes
	build   string
	log     *slog.Logger
}

// ClientOptions change how a Client stores values.
type ClientOptions struct {
	// Codec writes and reads values. Nil means JSON.
	Codec Codec
	// Keys seal all values: inputs and results of runs and steps, payloads of hooks,
	// items of streams, errors. The first key seals, all keys open. Without keys, values
	// are stored in the clear.
	Keys []EncryptionKey
	// Build pins the runs that this client starts to workers of that build. Empty pins no
	// runs; see WorkerConfig.Build.
	Build string
	// Logger logs errors that no caller gets, as in WebhookHandler. Nil means no logs.
	Logger *slog.Logger
}

// NewClient returns a Client of a Backend. Programs rarely call it: the functions that
// open a Backend return a Client.
func NewClient(b Backend, o ClientOptions) *Client {
	c := &Client{backend: b, values: envelopes{codec: o.Codec, keys: o.Keys}, build: o.Build, log: slog.New(slog.DiscardHandler)}
	if o.Logger != nil {
		c.log = o.Logger.With("component", "workflow")
	}
	return c
}

// With returns a Client of the same Backend with other options. Close only one of the
// two.
func (c *Client) With(o ClientOptions) *Client { return NewClient(c.backend, o) }

// Backend returns the Backend that keeps the runs.
func (c *Client) Backend() Backend { return c.backend }

// Close closes the Backend. An engine in this process stops: its runs stay in the
// database, and go on when the database is opened again.
func (c *Client) Close() error { return c.backend.Close() }

// Page is one page of a list. Cursor, passed to the next query, is "" on the last page.
type Page[T any] = history.Page[T]

// Get returns a run without its log. Errors: not_found.
func (c *Client) Get(ctx context.Context, id string) (*RunInfo, error) {
	return c.backend.GetRun(ctx, id)
}

// List returns a page of runs, newest first. Errors: invalid.
func (c *Client) List(ctx context.Context, q Query) (*Page[RunInfo], error) {
	return c.backend.ListRuns(ctx, q)
}

// All iterates over all runs that q selects, page by page. An error ends it.
func (c *Client) All(ctx context.Context, q Query) iter.Seq2[RunInfo, error] {
	return func(yield func(RunInfo, error) bool) {
		for {
			page, err := c.backend.ListRuns(ctx, q)
			if err != nil {
				yield(RunInfo{}, err)
				return
			}
			for _, r := range page.Items {
				if !yield(r, nil) {
					return
				}
			}
			if page.Cursor == "" {
				return
			}
			q.Cursor = page.Cursor
		}
	}
}

// Count returns the number of runs that q selects, by state. It ignores Cursor, Limit and
// order. In a state with very many runs it does not count all of them, see RunCount.
// Errors: invalid.
func (c *Client) Count(ctx context.Context, q Query) (RunCounts, error) {
	return c.backend.CountRuns(ctx, q)
}

// Watch iterates over the changes of the list of runs that q selects, until the context
// ends or an error occurs. The first change is ChangeReady; List the runs then.
// ChangeReady comes again after a reconnect to a daemon, and ChangeMissed when the
// iteration was too slow: List again. Errors: quota_exceeded (too many watches).
func (c *Client) Watch(ctx context.Context, q Query) iter.Seq2[RunChange, error] {
	return func(yield func(RunChange, error) bool) {
		r, err := c.backend.WatchRuns(ctx, q)
		if err != nil {
			yield(RunChange{}, err)
			return
		}
		defer r.Close() // closing a reader loses no data
		for {
			changes, err := r.ReadChanges(ctx)
			for _, change := range changes {
				if !yield(change, nil) {
					return
				}
			}
			if err != nil {
				yield(RunChange{}, err)
				return
			}
		}
	}
}

// Cancel asks a run to end, or with Force ends it at once. If the run was continued,
// Cancel acts on the last run of its chain. Cancelling a run twice does nothing. Errors:
// not_found, conflict (it has ended otherwise), invalid.
func (c *Client) Cancel(ctx context.Context, id string, p CancelParams) (*RunInfo, error) {
	return c.backend.CancelRun(ctx, id, p)
}

// CancelMany cancels the runs that q selects, at most q.Limit (500 if it is 0), and
// returns the outcome for each. Errors: invalid.
func (c *Client) CancelMany(ctx context.Context, q Query, p CancelParams) ([]CancelResult, error) {
	return c.backend.CancelRuns(ctx, q, p)
}

// Wake ends sleeps of a run early: the sleeps with the given ids, or all. If the run was
// continued, Wake acts on the last run of its chain. It returns the number of sleeps.
// Errors: not_found, conflict (the run has ended).
func (c *Client) Wake(ctx context.Context, id string, waits ...string) (int, error) {
	return c.backend.WakeRun(ctx, id, waits)
}

// Rerun starts a new run with the input of an old one, and returns it. Errors:
// not_found, conflict (the input is no longer kept).
func (c *Client) Rerun(ctx context.Context, id string, p RerunParams) (*RunInfo, error) {
	return c.backend.RerunRun(ctx, id, p)
}

// Delete deletes a run that has ended. Errors: not_found, conflict (the run has not
// ended, or is the first of a chain that goes on).
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.backend.DeleteRun(ctx, id)
}

// SetAttributes changes attributes of a run from outside; an empty value removes an
// attribute. If the run was continued, SetAttributes changes the last run of its chain.
// Errors: not_found, invalid, conflict (the run has ended).
func (c *Client) SetAttributes(ctx context.Context, id string, attributes map[string]string) (*RunInfo, error) {
	return c.backend.SetAttributes(ctx, id, attributes)
}

// Events returns at most limit events of a run's log (0: 1000), from a slot on; the first
// slot is 1. Value decodes their payloads. Errors: not_found.
func (c *Client) Events(ctx context.Context, id string, from int64, limit int) ([]Event, error) {
	return c.backend.Events(ctx, id, from, limit)
}

// Follow iterates over the events of a run from a slot on, as they are committed,
// until the run has ended. An error ends it. Errors: not_found.
func (c *Client) Follow(ctx context.Context, id string, from int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		r, err := c.backend.Follow(ctx, id, from)
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer r.Close() // closing a reader loses no data
		for {
			events, err := r.ReadEvents(ctx)
			for i := range events {
				if !yield(events[i], nil) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
		}
	}
}

// Value decodes the payload of an event, hook or chunk into the value that v points to.
// Errors: invalid if it does not fit, permission_denied if no key opens it.
func (c *Client) Value(payload []byte, v any) error { return c.values.decode(payload, v) }

// Err returns the error in the payload of a run_failed, step_failed or step_retrying
// event.
func (c *Client) Err(payload []byte) error { return c.values.decodeError(payload) }

// Hook returns the live hook of a token. Errors: not_found.
func (c *Client) Hook(ctx context.Context, token string) (*Hook, error) {
	return c.backend.GetHook(ctx, token)
}

// Hooks lists live hooks of a run, or of all runs if run is "".
func (c *Client) Hooks(ctx context.Context, run, cursor string, limit int) (*Page[Hook], error) {
	return c.backend.ListHooks(ctx, run, cursor, limit)
}

// Streams lists the streams of a run. Errors: not_found.
func (c *Client) Streams(ctx context.Context, run string) ([]StreamInfo, error) {
	return c.backend.ListStreams(ctx, run)
}

// Schedules lists the schedules, which start runs by the clock.
func (c *Client) Schedules(ctx context.Context) ([]Schedule, error) {
	return c.backend.ListSchedules(ctx)
}

// UpdateSchedule changes a schedule, for example to pause it. Errors: not_found, invalid.
func (c *Client) UpdateSchedule(ctx context.Context, id string, u ScheduleUpdate) (*Schedule, error) {
	return c.backend.UpdateSchedule(ctx, id, u)
}

// Limits lists the limits of workflows of external runtimes, such as Vercel's Workflow SDK.
func (c *Client) Limits(ctx context.Context) ([]Limit, error) {
	return c.backend.ListLimits(ctx)
}

// SetLimit limits how many runs of a workflow of an external runtime are running at one
// time, and how many start within a period, and sets their priority. Errors: invalid, quota_exceeded, not_supported,
// conflict (workers of cay declare the workflow: see Concurrency and RateLimit).
func (c *Client) SetLimit(ctx context.Context, l Limit) (*Limit, error) {
	return c.backend.PutLimit(ctx, l)
}

// DeleteLimit removes a limit, and lets the runs start that wait for it. Errors: not_found.
func (c *Client) DeleteLimit(ctx context.Context, workflow string) error {
	return c.backend.DeleteLimit(ctx, workflow)
}

// DeleteSchedule removes a schedule. Runs that it has started go on. Errors: not_found.
func (c *Client) DeleteSchedule(ctx context.Context, id string) error {
	return c.backend.DeleteSchedule(ctx, id)
}

// Resume gives a payload to the live hook of a token. When Resume returns without an
// error the payload is durable, and the run, or the run that continues it, does not end
// before its code could receive the payload, unless the run is ended from outside or the
// code disposes of the hook. With ResumeKey, a second call with the same key and payload
// does nothing. Errors: not_found, conflict (the key was used with another payload),
// too_large, quota_exceeded (the run has the maximum number of values or events; see
// MaxEvents). After deadline_exceeded, canceled and unavailable the payload may or may
// not have been given.
func (c *Client) Resume(ctx context.Context, token string, payload any, opts ...ResumeOption) (*Hook, error) {
	p := ResumeParams{Token: token}
	for _, opt := range opts {
		opt.applyResume(&p)
	}
	scope := ""
	if len(c.values.keys) > 0 {
		// The payload is sealed with the key of the run that waits for it.
		h, err := c.backend.GetHook(ctx, token)
		if err != nil {
			return nil, err
		}
		scope = h.Run
	}
	var err error
	if p.Payload, err = c.values.encode(scope, payload); err != nil {
		return nil, err
	}
	return c.backend.ResumeHook(ctx, p)
}

// ResumeHook is Resume with the type of the hook's payload as a type parameter.
func ResumeHook[T any](ctx context.Context, c *Client, token string, payload T, opts ...ResumeOption) error {
	_, err := c.Resume(ctx, token, payload, opts...)
	return err
}

// ResumeOption changes a call of Resume.
type ResumeOption interface{ applyResume(*ResumeParams) }

type resumeOption func(*ResumeParams)

func (o resumeOption) applyResume(p *ResumeParams) { o(p) }

// ResumeKey sets the idempotency key of a call of Resume.
func ResumeKey(key string) ResumeOption {
	return resumeOption(func(p *ResumeParams) { p.Key = key })
}

// Connect returns a Client of a daemon ("cay serve"), for programs that start runs
// there and for Workers. It does not connect; see Dial. Errors: invalid.
func Connect(o RemoteOptions) (*Client, error) {
	b, err := Dial(o)
	if err != nil {
		return nil, err
	}
	return NewClient(b, ClientOptions{}), nil
}

// errNoClient is returned by functions that were given no Client.
var errNoClient = cay.Errorf(cay.Invalid, "no client was given")
