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

// Client starts runs and works with them, wherever they live: sqlite.Open,
// postgres.Open and Connect return one. It is safe for concurrent use. Close it
// when the Workers that use it have been stopped.
//
// Errors are *cay.Error, with the codes each method names; every method can return
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
	// items of streams, errors. The first seals, all of them open. None means that
	// values are stored in the clear.
	Keys []EncryptionKey
	// Build pins the runs this client starts to workers of that build. Empty pins
	// none; see WorkerConfig.Build.
	Build string
	// Logger gets what goes wrong where nobody is told, as in WebhookHandler. Nil means
	// that nothing is logged.
	Logger *slog.Logger
}

// NewClient returns a Client of a Backend. Programs rarely call it: what opens a
// Backend returns a Client too.
func NewClient(b Backend, o ClientOptions) *Client {
	c := &Client{backend: b, values: envelopes{codec: o.Codec, keys: o.Keys}, build: o.Build, log: slog.New(slog.DiscardHandler)}
	if o.Logger != nil {
		c.log = o.Logger.With("component", "workflow")
	}
	return c
}

// With returns a Client of the same Backend with other options. Only one of them
// is to be closed.
func (c *Client) With(o ClientOptions) *Client { return NewClient(c.backend, o) }

// Backend returns where the runs live.
func (c *Client) Backend() Backend { return c.backend }

// Close closes the Backend. An engine in this process stops: runs stay as they
// are, and go on when it is opened again.
func (c *Client) Close() error { return c.backend.Close() }

// Page is one page of a list. Cursor, given to the next query, is "" on the last.
type Page[T any] = history.Page[T]

// Get returns what is known of a run. Errors: not_found.
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

// Count says how many of the runs that q selects are in each state. Cursor, Limit and
// the order do not matter. Of a state with very many not all are counted, see
// RunCount. Errors: invalid.
func (c *Client) Count(ctx context.Context, q Query) (RunCounts, error) {
	return c.backend.CountRuns(ctx, q)
}

// Watch iterates over the changes of the list of runs that q selects, until the
// context ends: an error ends it. The first is ChangeReady; List what there is then.
// ChangeReady comes again when a daemon had to be connected to anew, ChangeMissed when
// this was too slow: List again. Errors: quota_exceeded (too many watch already).
func (c *Client) Watch(ctx context.Context, q Query) iter.Seq2[RunChange, error] {
	return func(yield func(RunChange, error) bool) {
		r, err := c.backend.WatchRuns(ctx, q)
		if err != nil {
			yield(RunChange{}, err)
			return
		}
		defer r.Close() // only a reader: nothing can be lost
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

// Cancel asks a run to end, or with Force ends it at once; the last of its chain, if it
// was continued. Cancelling a run twice does nothing. Errors: not_found, conflict (it has ended otherwise), invalid.
func (c *Client) Cancel(ctx context.Context, id string, p CancelParams) (*RunInfo, error) {
	return c.backend.CancelRun(ctx, id, p)
}

// CancelMany cancels the runs that q selects, at most q.Limit of them (500 if it
// is 0), and says what became of each. Errors: invalid.
func (c *Client) CancelMany(ctx context.Context, q Query, p CancelParams) ([]CancelResult, error) {
	return c.backend.CancelRuns(ctx, q, p)
}

// Wake ends sleeps of a run early: those with the given ids, or all; of the last of its
// chain, if it was continued. It returns how many. Errors: not_found, conflict (the run has ended).
func (c *Client) Wake(ctx context.Context, id string, waits ...string) (int, error) {
	return c.backend.WakeRun(ctx, id, waits)
}

// Rerun starts a new run with the input of an old one, and returns it. Errors:
// not_found, conflict (the input is no longer kept).
func (c *Client) Rerun(ctx context.Context, id string, p RerunParams) (*RunInfo, error) {
	return c.backend.RerunRun(ctx, id, p)
}

// Delete forgets a run that has ended. Errors: not_found, conflict (it has not, or it is
// the first of a chain that goes on).
func (c *Client) Delete(ctx context.Context, id string) error {
	return c.backend.DeleteRun(ctx, id)
}

// SetAttributes changes attributes of a run from outside; an empty value removes one. If
// the run was continued, those of the last of its chain are changed. Errors: not_found, invalid, conflict (the run has ended).
func (c *Client) SetAttributes(ctx context.Context, id string, attributes map[string]string) (*RunInfo, error) {
	return c.backend.SetAttributes(ctx, id, attributes)
}

// Events returns at most limit events of a run's log (0: 1000), from a slot on;
// the first is 1. Value reads what is in them. Errors: not_found.
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
		defer r.Close() // only a reader: nothing can be lost
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

// Value stores what a payload of an event, hook or chunk holds in what v points
// to. Errors: invalid if it does not fit, permission_denied if no key opens it.
func (c *Client) Value(payload []byte, v any) error { return c.values.decode(payload, v) }

// Err returns the error that a payload of a run_failed, step_failed or
// step_retrying event holds.
func (c *Client) Err(payload []byte) error { return c.values.decodeError(payload) }

// Hook returns the live hook of a token. Errors: not_found.
func (c *Client) Hook(ctx context.Context, token string) (*Hook, error) {
	return c.backend.GetHook(ctx, token)
}

// Hooks lists live hooks of a run, or of all if run is "".
func (c *Client) Hooks(ctx context.Context, run, cursor string, limit int) (*Page[Hook], error) {
	return c.backend.ListHooks(ctx, run, cursor, limit)
}

// Streams lists the streams of a run. Errors: not_found.
func (c *Client) Streams(ctx context.Context, run string) ([]StreamInfo, error) {
	return c.backend.ListStreams(ctx, run)
}

// Schedules lists what starts runs by the clock.
func (c *Client) Schedules(ctx context.Context) ([]Schedule, error) {
	return c.backend.ListSchedules(ctx)
}

// UpdateSchedule changes a schedule: it can be paused, say. Errors: not_found, invalid.
func (c *Client) UpdateSchedule(ctx context.Context, id string, u ScheduleUpdate) (*Schedule, error) {
	return c.backend.UpdateSchedule(ctx, id, u)
}

// DeleteSchedule removes a schedule. Runs it has started go on. Errors: not_found.
func (c *Client) DeleteSchedule(ctx context.Context, id string) error {
	return c.backend.DeleteSchedule(ctx, id)
}

// Resume gives a payload to the live hook of a token. When it returns without an
// error the payload is durable, and the run, or the run that continues it, does not
// end before its code could receive it, unless others end it or the code disposes of
// the hook. With ResumeKey, a second call of the same key and payload does nothing.
// Errors: not_found, conflict (the key was used with another payload), too_large,
// quota_exceeded (the run has as many values, or events, as it may; see MaxEvents).
// After deadline_exceeded, canceled and unavailable it is not known whether the payload
// was given.
func (c *Client) Resume(ctx context.Context, token string, payload any, opts ...ResumeOption) (*Hook, error) {
	p := ResumeParams{Token: token}
	for _, opt := range opts {
		opt.applyResume(&p)
	}
	scope := ""
	if len(c.values.keys) > 0 {
		// Sealed with the key of the run that waits for it.
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

// ResumeHook is Resume with the type of the hook's payload written out.
func ResumeHook[T any](ctx context.Context, c *Client, token string, payload T, opts ...ResumeOption) error {
	_, err := c.Resume(ctx, token, payload, opts...)
	return err
}

// ResumeOption changes a call of a hook.
type ResumeOption interface{ applyResume(*ResumeParams) }

type resumeOption func(*ResumeParams)

func (o resumeOption) applyResume(p *ResumeParams) { o(p) }

// ResumeKey is an idempotency key of a call of a hook.
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

// errNoClient is what functions return that were given no Client.
var errNoClient = cay.Errorf(cay.Invalid, "no client was given")
