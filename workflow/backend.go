package workflow

import (
	"context"
	"database/sql"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Backend keeps runs: it is the engine in this process (workflow/sqlite,
// workflow/postgres), or a daemon over HTTP (Connect). Programs use it through a Client;
// only this module implements it. Both implementations pass one test suite.
//
// Payloads are envelopes, see history.Event; a Backend never reads their contents. Errors
// are *cay.Error; every method can return unavailable.
type Backend interface {
	// CreateRun starts a run. If a run of the same workflow and key is kept, CreateRun
	// returns that run, with created false. Errors: invalid, too_large, quota_exceeded
	// (too many runs wait to start).
	CreateRun(ctx context.Context, p NewRun) (run *RunInfo, created bool, err error)
	// GetRun: not_found.
	GetRun(ctx context.Context, id string) (*RunInfo, error)
	ListRuns(ctx context.Context, q Query) (*history.Page[RunInfo], error)
	// CountRuns counts the runs that q selects, by status; it ignores cursor, limit and
	// order. It counts about 10,000 runs of each status; see RunCount.
	CountRuns(ctx context.Context, q Query) (RunCounts, error)
	// WatchRuns reports changes of the list of runs that q selects, and of the lists of
	// hooks and schedules, from now on. It ignores cursor, limit and order. Errors:
	// quota_exceeded (the project's runs have too many watches).
	WatchRuns(ctx context.Context, q Query) (ChangeReader, error)
	// WaitRun returns a run when it has ended, without waiting for a run that continues
	// it. As in GetRun, Next of the result is a run that is kept.
	WaitRun(ctx context.Context, id string) (*RunInfo, error)
	// WaitEnd is WaitRun that also returns the event that ended the run. The event is
	// nil if the Backend would have to read it from the log.
	WaitEnd(ctx context.Context, id string) (run *RunInfo, end *Event, err error)
	// Events returns at most limit events of a run from a slot on (1 is the first).
	Events(ctx context.Context, id string, from int64, limit int) ([]Event, error)
	// Follow reports events from a slot on, as they are committed. ReadEvents returns
	// io.EOF after the last event of a run that has ended.
	Follow(ctx context.Context, id string, from int64) (EventReader, error)

	// CancelRun asks a run to end, or with force ends it at once. Cancelling a cancelled
	// run does nothing. If the run was continued, CancelRun acts on the last run of its
	// chain, as do WakeRun and SetAttributes. Errors: not_found, conflict (it has ended
	// otherwise).
	CancelRun(ctx context.Context, id string, p CancelParams) (*RunInfo, error)
	// CancelRuns cancels all runs that q selects, at most q.Limit (500), and returns the
	// outcome for each.
	CancelRuns(ctx context.Context, q Query, p CancelParams) ([]CancelResult, error)
	// WakeRun ends waits of a run early: the given waits, or all. It returns their
	// number.
	WakeRun(ctx context.Context, id string, waits []string) (int, error)
	// RerunRun starts a new run with the input of an old one. Errors: not_found,
	// conflict (its input is no longer kept).
	RerunRun(ctx context.Context, id string, p RerunParams) (*RunInfo, error)
	// DeleteRun deletes an ended run. Errors: not_found, conflict.
	DeleteRun(ctx context.Context, id string) error
	// SetAttributes changes attributes; an empty value removes an attribute. Errors:
	// not_found, conflict, quota_exceeded (the log has 80 % of the events it may have).
	SetAttributes(ctx context.Context, id string, attributes map[string]string) (*RunInfo, error)

	// ResumeHook gives a payload to the live hook of a token. With a key, a second call
	// with the same key and payload does nothing. Errors: not_found, conflict (the key
	// was used with another payload), too_large, quota_exceeded (the run has the maximum
	// number of values or events).
	ResumeHook(ctx context.Context, p ResumeParams) (*Hook, error)
	GetHook(ctx context.Context, token string) (*Hook, error)
	ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[Hook], error)

	// WriteStream appends chunks to a stream of a run, and closes the stream if closeIt
	// is set. Errors: not_found, too_large, conflict (the stream is closed).
	WriteStream(ctx context.Context, run, stream string, chunks [][]byte, closeIt bool) error
	// ReadStream reports chunks from an index on; a negative index counts from the end.
	// ReadChunks returns io.EOF at the end of a closed stream, or when the run has ended.
	ReadStream(ctx context.Context, run, stream string, from int64) (ChunkReader, error)
	ListStreams(ctx context.Context, run string) ([]StreamInfo, error)

	ListSchedules(ctx context.Context) ([]Schedule, error)
	PutSchedule(ctx context.Context, s Schedule) (*Schedule, error)
	// UpdateSchedule changes an existing schedule: not_found, invalid.
	UpdateSchedule(ctx context.Context, id string, u ScheduleUpdate) (*Schedule, error)
	DeleteSchedule(ctx context.Context, id string) error

	// PutLimit sets or replaces the limit of a workflow of an external runtime. Errors:
	// invalid, quota_exceeded, conflict (workers declare the workflow), not_supported (no
	// external runtime).
	PutLimit(ctx context.Context, l Limit) (*Limit, error)
	ListLimits(ctx context.Context) ([]Limit, error)
	// DeleteLimit removes a limit and lets the waiting runs start. Errors: not_found.
	DeleteLimit(ctx context.Context, workflow string) error

	// Attach connects a worker. The session ends with ctx, with Close, or when the
	// connection is lost; then the worker has lost all its runs, and Lost is closed.
	Attach(ctx context.Context, w WorkerInfo, r Runner) (Session, error)

	Close() error
}

// Session is a worker's connection. Its methods may be called concurrently.
type Session interface {
	// Append asks the engine to append events to a run of this session: all of them or
	// none, in order. It returns at once unless too much is queued. Committed events come
	// back through Runner.Deliver, with slots, in the order of the log, like all other
	// events; a worker acts on delivered events only. done, which may be nil, is called
	// after the delivery, or with the error: conflict (the session no longer has the run,
	// the run has ended, or an event is not allowed), too_large, no_space, unavailable.
	// It must not block.
	Append(run string, lease uint64, events []Event, done func(error))
	// Transact calls f in a transaction on the engine's database and appends the event
	// that f returns in the same transaction. Errors: the errors of Append and of f;
	// not_supported by a daemon's session.
	Transact(ctx context.Context, run string, lease uint64, f func(ctx context.Context, tx Tx) (Event, error)) error
	// WriteStream is Backend.WriteStream for a run of this session. If the session no
	// longer has the run, or the run has ended, nothing is written: conflict. Like
	// Append, it returns at once unless too much is queued, and calls done when the write
	// is decided.
	WriteStream(run string, lease uint64, stream string, chunks [][]byte, closeIt bool, done func(error))
	// StartRun is CreateRun for a child of a run; the parent's event child_started is
	// committed with it. An existing child with the same id is left alone.
	StartRun(run string, lease uint64, p NewRun, started Event, done func(error))
	// Release returns a run that only waits for timers, hooks and children, and that the
	// worker has dropped from memory. The engine assigns the run again when an event
	// arrives. slot is the last event that the worker has seen: if the log has newer
	// events, the run is assigned again at once.
	Release(run string, lease uint64, slot int64)
	// Lost is closed when the session has ended.
	Lost() <-chan struct{}
	// Close returns all runs and waits until pending appends are decided.
	Close() error
}

// Runner is the worker's side of a Session. Calls for one run come one at a time,
// in order. They must not block: the engine's writer makes them.
type Runner interface {
	// Assign gives a run to the worker, with its whole log so far, which contains at
	// least run_created and run_started.
	Assign(a Assignment)
	// Deliver reports events that were committed since the assignment.
	Deliver(run string, lease uint64, events []Event)
	// Revoke takes a run back; appends under that lease are refused from now on. The
	// worker must stop the run's code.
	Revoke(run string, lease uint64)
}

// Assignment is a run given to a worker.
type Assignment struct {
	Run RunInfo
	// Lease is a fencing token: it is new for every assignment of the run.
	Lease  uint64
	Events []Event
	// Recovered means that an earlier worker may have died while it had the run. Steps
	// without an end in the log may have been tried: their next attempt is recorded
	// before it begins, so that a step that kills its process is found.
	Recovered bool
}

// WorkerInfo describes a worker and the runs that it accepts.
type WorkerInfo struct {
	Name string // for people: host and process
	// Build names the worker's program. Runs started by definitions of a worker with
	// a build are pinned to it.
	Build string
	// Accept are older builds whose runs the worker accepts.
	Accept      []string
	Definitions []DefinitionInfo
	// MaxRuns bounds the runs that the worker has at a time. 0 means 10000.
	MaxRuns int
	// HeldRuns are the ids of the runs that the worker had when it lost its last session.
	// The worker lives, so the engine suspects none of these runs. Only the first 10000
	// ids count.
	HeldRuns []string
}

// DefinitionInfo is a workflow with the limits of its definition. Zero means no limit.
type DefinitionInfo struct {
	Name string
	// MaxRunning bounds the running runs of the workflow, over all workers;
	// MaxRunningPerGroup the running runs of each group.
	MaxRunning, MaxRunningPerGroup int
	// Rate is how many runs may start per RatePeriod; RatePerGroup is the same for each
	// group.
	Rate, RatePerGroup int
	RatePeriod         time.Duration
	// Retention is how long ended runs are kept. 0: for ever. Negative: the payloads are
	// deleted at the end.
	Retention time.Duration
	Priority  int
	// MaxEvents bounds a run's log. 0 means 25000.
	MaxEvents int
}

// NewRun is a run to create.
type NewRun struct {
	ID string // "wrun_" and a ULID; generated if empty
	// NewID means that ID is a random id generated for this call, so that no run can have
	// it yet. An engine in this process then does not look for an existing run. NewID is
	// not sent to a daemon, because a request may be sent twice.
	NewID      bool
	Workflow   string
	Input      []byte // an envelope
	Key        string // idempotency key
	Group      string
	Priority   int
	Build      string
	Attributes map[string]string
	StartAt    time.Time     // start no earlier; zero is now
	Retention  time.Duration // as DefinitionInfo.Retention; 0 means the definition's
	Parent     string        // set by StartRun
	Root       string
	Previous   string // the run that this one continues
	// ParentCall is the ID of the parent's call if the parent wants to know how the run
	// ends.
	ParentCall string
	// Hooks are the hooks that the run inherits from the run it continues: each live
	// hook's token has one.
	Hooks []NewHookState
}

// NewHookState is a hook that a run begins with: the run has the token, and values are
// kept until the run's code makes a hook of that token.
type NewHookState struct {
	Token    string      `json:"token"`
	Metadata []byte      `json:"metadata,omitempty"` // an envelope
	Values   []HookValue `json:"values,omitempty"`   // values that were sent and not received
}

// HookValue is a value that was sent to a hook.
type HookValue struct {
	Payload []byte `json:"payload,omitempty"` // an envelope
	Key     string `json:"key,omitempty"`     // idempotency key of the call
}

// CancelParams configure a cancellation.
type CancelParams struct {
	// Reason is for people, at most 512 bytes.
	Reason string
	// Force ends the run at once, without running its code any further.
	Force bool
}

// CancelResult is the outcome for one run of a bulk cancel.
type CancelResult struct {
	Run string `json:"run"`
	// Outcome is "cancelled", "requested" (the run's code is cleaning up),
	// "already_cancelled", "not_cancellable" (the run has ended) or "failed".
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// RerunParams override what a rerun copies from the old run.
type RerunParams struct {
	// Build pins the new run. Empty: as for any new run.
	Build string
	Key   string
}

// ResumeParams are a call of a hook.
type ResumeParams struct {
	Token   string
	Payload []byte // an envelope
	Key     string // idempotency key of this call
	// Webhook means that the call came over the public URL: it only finds webhooks.
	Webhook bool
}

// ScheduleUpdate changes the fields of a schedule that are not nil here. A schedule that
// is resumed after a pause is next due at its next regular time: missed times are not
// made up for.
type ScheduleUpdate struct {
	Cron, Zone      *string
	Overlap, Paused *bool
}

// ChangeReader reads the changes of a list of runs.
type ChangeReader interface {
	// ReadChanges waits for changes, at least one. The first change is ChangeReady.
	ReadChanges(ctx context.Context) ([]RunChange, error)
	Close() error
}

// EventReader reads a log.
type EventReader interface {
	// ReadEvents waits for events, at least one.
	ReadEvents(ctx context.Context) ([]Event, error)
	Close() error
}

// ChunkReader reads a stream.
type ChunkReader interface {
	// ReadChunks waits for chunks, at least one.
	ReadChunks(ctx context.Context) ([]Chunk, error)
	Close() error
}

// The types of a log and of its queries; see package internal/history for the fields.
type (
	// RunInfo is a run without its log.
	RunInfo = history.Run
	// Event is an entry of a run's log.
	Event = history.Event
	// Status is the state of a run.
	Status = history.Status
	// Query selects runs.
	Query = history.Query
	// Hook is a live hook in the engine. A workflow's code uses a HookHandle.
	Hook = history.Hook
	// Chunk is one write to a stream.
	Chunk = history.Chunk
	// StreamInfo is the length of a stream, and whether it is closed.
	StreamInfo = history.StreamInfo
	// Schedule starts runs by the clock.
	Schedule = history.Schedule
	// Limit bounds the starts of a workflow of an external runtime.
	Limit = history.Limit
	// RunChange is a change of a list of runs, ChangeType its kind.
	RunChange  = history.Change
	ChangeType = history.ChangeType
	// RunCounts has the number of runs in each state, RunCount the number in one state.
	RunCounts = history.Counts
	RunCount  = history.Count
)

// The kinds of RunChange.
const (
	ChangeReady     = history.Ready
	ChangeRun       = history.Changed
	ChangeDeleted   = history.Deleted
	ChangeMissed    = history.Missed
	ChangeHooks     = history.HooksChanged
	ChangeSchedules = history.SchedulesChanged
)

// EventType is the type of an Event. It determines which fields of the event are set. As
// text it is the name in lower case, such as step_completed.
type EventType = history.Type

// The types of events.
const (
	EventRunCreated      = history.RunCreated   // Name, Payload: input, Attributes
	EventRunStarted      = history.RunStarted   // given to a worker for the first time
	EventRunCompleted    = history.RunCompleted // Payload: output; or Token: the run that continues this one
	EventRunFailed       = history.RunFailed    // Payload: error, Code
	EventRunCancelled    = history.RunCancelled // Reason
	EventAttrSet         = history.AttrSet      // Attributes; ID: the step that set them
	EventStepCreated     = history.StepCreated
	EventStepStarted     = history.StepStarted   // Attempt
	EventStepCompleted   = history.StepCompleted // Payload: result, Attempt, StartedAt
	EventStepFailed      = history.StepFailed    // Payload: error, Attempt, StartedAt
	EventStepRetrying    = history.StepRetrying  // Payload: error; Until: earliest time of the next attempt
	EventHookCreated     = history.HookCreated   // Token; Payload: metadata
	EventHookReceived    = history.HookReceived  // Payload
	EventHookDisposed    = history.HookDisposed
	EventHookConflict    = history.HookConflict // Token; Reason: the run that has the token
	EventWaitCreated     = history.WaitCreated  // Until
	EventWaitCompleted   = history.WaitCompleted
	EventNoop            = history.Noop
	EventCancelRequested = history.CancelRequested // Reason
	EventVersionMarked   = history.VersionMarked   // ID: the change; Attempt: the version
	EventChildStarted    = history.ChildStarted    // Name, Token: the run
	EventChildEnded      = history.ChildEnded      // Token: the run; Code: its status; Payload: output or error
)

// The states of a run.
const (
	StatusPending   = history.Pending
	StatusRunning   = history.Running
	StatusCompleted = history.Completed
	StatusFailed    = history.Failed
	StatusCancelled = history.Cancelled
)

// Tx is the transaction of a transactional step on the engine's own database.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

var _ Tx = (*sql.Tx)(nil)
