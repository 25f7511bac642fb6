package workflow

import (
	"context"
	"database/sql"
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Backend is where runs live: the engine in this process (workflow/sqlite,
// workflow/postgres), or a daemon over HTTP (Connect). Programs use it through a
// Client; only this module implements it. Both pass one suite.
//
// Payloads are envelopes, see history.Event; a Backend never looks into them.
// Errors are *cay.Error; every method can return unavailable.
type Backend interface {
	// CreateRun starts a run. If one of the same workflow and key is kept, that is
	// returned, with created false. Errors: invalid, too_large, quota_exceeded (too
	// many wait to start).
	CreateRun(ctx context.Context, p NewRun) (run *RunInfo, created bool, err error)
	// GetRun: not_found.
	GetRun(ctx context.Context, id string) (*RunInfo, error)
	ListRuns(ctx context.Context, q Query) (*history.Page[RunInfo], error)
	// CountRuns counts the runs that q selects, by status; cursor, limit and order do
	// not matter. Of each status about 10,000 are counted; see RunCount.
	CountRuns(ctx context.Context, q Query) (RunCounts, error)
	// WatchRuns reports how the list of runs that q selects changes from now on, and
	// when the lists of hooks and schedules do. Cursor, limit and order do not matter.
	// Errors: quota_exceeded (too many watch the project's runs).
	WatchRuns(ctx context.Context, q Query) (ChangeReader, error)
	// WaitRun returns a run when it has ended, whatever it was continued by. Next is a
	// run that is there, as that of GetRun.
	WaitRun(ctx context.Context, id string) (*RunInfo, error)
	// WaitEnd is WaitRun that also returns the event that ended the run. The event is
	// nil if the Backend would have to read it from the log.
	WaitEnd(ctx context.Context, id string) (run *RunInfo, end *Event, err error)
	// Events returns at most limit events of a run from a slot on (1 is the first).
	Events(ctx context.Context, id string, from int64, limit int) ([]Event, error)
	// Follow reports events from a slot on, as they are committed. ReadEvents returns
	// io.EOF after the last event of a run that has ended.
	Follow(ctx context.Context, id string, from int64) (EventReader, error)

	// CancelRun asks a run to end, or with force ends it at once. Cancelling what was
	// cancelled does nothing. If the run was continued, this is about the last run of its
	// chain, as WakeRun and SetAttributes are. Errors: not_found, conflict (it has ended otherwise).
	CancelRun(ctx context.Context, id string, p CancelParams) (*RunInfo, error)
	// CancelRuns cancels all runs that q selects, at most q.Limit (500), and says what
	// became of each.
	CancelRuns(ctx context.Context, q Query, p CancelParams) ([]CancelResult, error)
	// WakeRun ends waits of a run early: those named, or all. It returns how many.
	WakeRun(ctx context.Context, id string, waits []string) (int, error)
	// RerunRun starts a new run with the input of an old one. Errors: not_found,
	// conflict (its input is no longer kept).
	RerunRun(ctx context.Context, id string, p RerunParams) (*RunInfo, error)
	// DeleteRun forgets an ended run. Errors: not_found, conflict.
	DeleteRun(ctx context.Context, id string) error
	// SetAttributes changes attributes; an empty value removes. Errors: not_found,
	// conflict, quota_exceeded (the log has four fifths of the events it may have).
	SetAttributes(ctx context.Context, id string, attributes map[string]string) (*RunInfo, error)

	// ResumeHook gives a payload to the live hook of a token. With a key, a second
	// call with the same key and payload does nothing. Errors: not_found, conflict
	// (the key was used with another payload), too_large, quota_exceeded (the run has as
	// many values, or events, as it may).
	ResumeHook(ctx context.Context, p ResumeParams) (*Hook, error)
	GetHook(ctx context.Context, token string) (*Hook, error)
	ListHooks(ctx context.Context, run, cursor string, limit int) (*history.Page[Hook], error)

	// WriteStream appends chunks to a stream of a run, and closes it. A closed stream
	// takes no more: conflict. Errors: not_found, too_large.
	WriteStream(ctx context.Context, run, stream string, chunks [][]byte, closeIt bool) error
	// ReadStream reports chunks from an index on; a negative one counts from the end.
	// ReadChunks returns io.EOF at the end of a closed stream, or when the run has
	// ended.
	ReadStream(ctx context.Context, run, stream string, from int64) (ChunkReader, error)
	ListStreams(ctx context.Context, run string) ([]StreamInfo, error)

	ListSchedules(ctx context.Context) ([]Schedule, error)
	PutSchedule(ctx context.Context, s Schedule) (*Schedule, error)
	// UpdateSchedule changes a schedule that is there: not_found, invalid.
	UpdateSchedule(ctx context.Context, id string, u ScheduleUpdate) (*Schedule, error)
	DeleteSchedule(ctx context.Context, id string) error

	// Attach connects a worker. The session ends with ctx, with Close, or when the
	// connection is lost; then every run assigned to it is somebody else's, and
	// Lost is closed.
	Attach(ctx context.Context, w WorkerInfo, r Runner) (Session, error)

	Close() error
}

// Session is a worker's connection. Its methods may be called concurrently.
type Session interface {
	// Append asks for events to be appended to a run assigned to this session: all of
	// them or none, in order. It returns at once unless too much is queued. What was
	// committed comes back through Runner.Deliver, with slots, in the order of the
	// log, as everything else does; a worker acts on nothing else. done, which may be
	// nil, is called after that, or with the error: conflict (the run is not this
	// session's any more, has ended, or an event is not allowed), too_large, no_space,
	// unavailable. It must not block.
	Append(run string, lease uint64, events []Event, done func(error))
	// Transact calls f in a transaction on the engine's database and appends the event
	// it returns in the same one. Errors: those of Append and of f; not_supported by
	// a daemon's session.
	Transact(ctx context.Context, run string, lease uint64, f func(ctx context.Context, tx Tx) (Event, error)) error
	// WriteStream is Backend.WriteStream for a run assigned to this session: nothing
	// is written once the run is somebody else's, or has ended: conflict. Like Append
	// it returns at once unless too much is queued, and calls done when it is decided.
	WriteStream(run string, lease uint64, stream string, chunks [][]byte, closeIt bool, done func(error))
	// StartRun is CreateRun for a child of a run; the parent's event child_started is
	// committed with it. A child with the same id is left alone.
	StartRun(run string, lease uint64, p NewRun, started Event, done func(error))
	// Release says that a run is waiting for nothing but timers, hooks and children,
	// and forgotten by the worker. It is assigned anew when something happens. slot
	// is the last event the worker has seen: if there are newer ones it is assigned
	// again at once.
	Release(run string, lease uint64, slot int64)
	// Lost is closed when the session has ended.
	Lost() <-chan struct{}
	// Close gives all runs back and waits until appends under way are decided.
	Close() error
}

// Runner is the worker's side of a Session. Calls for one run come one at a time,
// in order. They must not block: the engine's writer makes them.
type Runner interface {
	// Assign gives a run to the worker, with its whole log so far, which has at least
	// run_created and run_started.
	Assign(a Assignment)
	// Deliver reports events that were committed since.
	Deliver(run string, lease uint64, events []Event)
	// Revoke takes a run back; nothing more can be appended under that lease. The
	// worker's code for it is to be stopped.
	Revoke(run string, lease uint64)
}

// Assignment is a run given to a worker.
type Assignment struct {
	Run RunInfo
	// Lease fences: it is new for every assignment of the run.
	Lease  uint64
	Events []Event
	// Recovered says that an earlier worker may have died while it had the run. Steps
	// that are not in the log may have been tried: their next attempt is recorded
	// before it begins, so that a step which ends its process is found.
	Recovered bool
}

// WorkerInfo is what a worker can run.
type WorkerInfo struct {
	Name string // for people: host and process
	// Build names the worker's program. Runs started by definitions of a worker with
	// a build are pinned to it.
	Build string
	// Accept are older builds whose runs it takes over.
	Accept      []string
	Definitions []DefinitionInfo
	// MaxRuns bounds the runs it is given at one time. 0 means 10000.
	MaxRuns int
	// Survived are the ids of the runs that the worker had when it lost its last session.
	// The worker lives, so the engine suspects none of these runs. The first 10000 count.
	Survived []string
}

// DefinitionInfo is a workflow and what its definition limits. Zero is no limit.
type DefinitionInfo struct {
	Name string
	// MaxRunning bounds runs of this workflow that run at one time, over all workers;
	// MaxRunningPerGroup those of one group.
	MaxRunning, MaxRunningPerGroup int
	// Rate lets at most this many runs start per RatePeriod; RatePerGroup for each group.
	Rate, RatePerGroup int
	RatePeriod         time.Duration
	// Retention is how long ended runs are kept. 0: for ever. Negative: payloads are
	// deleted at the end.
	Retention time.Duration
	Priority  int
	// MaxEvents bounds a run's log. 0 means 25000.
	MaxEvents int
}

// NewRun is a run to be created.
type NewRun struct {
	ID string // "wrun_" and a ULID; made if empty
	// NewID says that ID is a random one made for this call, so that no run can have it
	// yet. An engine in this process then does not look for such a run. It does not
	// travel to a daemon, where a request may be sent twice.
	NewID      bool
	Workflow   string
	Input      []byte // an envelope
	Key        string // idempotency key
	Group      string
	Priority   int
	Build      string
	Attributes map[string]string
	StartAt    time.Time     // not before; zero is now
	Retention  time.Duration // as DefinitionInfo.Retention; 0 means the definition's
	Parent     string        // set by StartRun
	Root       string
	Previous   string // the run this one continues
	// ParentCall is the ID of the parent's call if the parent is told how the run ends.
	ParentCall string
	// Hooks are those that a run which continues another one has from it: of each token
	// that the other one has a live hook of.
	Hooks []NewHookState
}

// NewHookState is a hook that a run begins with: its token is the run's, and what is
// sent is kept until its code makes a hook of that token.
type NewHookState struct {
	Token    string      `json:"token"`
	Metadata []byte      `json:"metadata,omitempty"` // an envelope
	Values   []HookValue `json:"values,omitempty"`   // that were sent and not received
}

// HookValue is a value that was sent to a hook.
type HookValue struct {
	Payload []byte `json:"payload,omitempty"` // an envelope
	Key     string `json:"key,omitempty"`     // idempotency key of the call
}

// CancelParams say how a run is cancelled.
type CancelParams struct {
	// Reason is for people, at most 512 bytes.
	Reason string
	// Force ends the run at once: none of its code runs any more.
	Force bool
}

// CancelResult is what became of one run of a bulk cancel.
type CancelResult struct {
	Run string `json:"run"`
	// Outcome is "cancelled", "requested" (its code is undoing what it did),
	// "already_cancelled", "not_cancellable" (it has ended) or "failed".
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// RerunParams change what a rerun takes over from the old run.
type RerunParams struct {
	// Build pins the new run. Empty: as any new run.
	Build string
	Key   string
}

// ResumeParams are a call of a hook.
type ResumeParams struct {
	Token   string
	Payload []byte // an envelope
	Key     string // idempotency key of this call
	// Webhook says that the call came over the public URL: only webhooks are found.
	Webhook bool
}

// ScheduleUpdate says what to change of a schedule: what is not nil. A schedule that
// is not paused any more is due when the clock next meets it: what it has missed is
// not made up for.
type ScheduleUpdate struct {
	Cron, Zone      *string
	Overlap, Paused *bool
}

// ChangeReader follows a list of runs.
type ChangeReader interface {
	// ReadChanges waits for changes, at least one. The very first is ChangeReady.
	ReadChanges(ctx context.Context) ([]RunChange, error)
	Close() error
}

// EventReader follows a log.
type EventReader interface {
	// ReadEvents waits for events, at least one.
	ReadEvents(ctx context.Context) ([]Event, error)
	Close() error
}

// ChunkReader follows a stream.
type ChunkReader interface {
	// ReadChunks waits for chunks, at least one.
	ReadChunks(ctx context.Context) ([]Chunk, error)
	Close() error
}

// What the log is made of; see package internal/history for the fields.
type (
	// RunInfo is what is known of a run without its log.
	RunInfo = history.Run
	// Event is an entry of a run's log.
	Event = history.Event
	// Status is the state of a run.
	Status = history.Status
	// Query selects runs.
	Query = history.Query
	// Hook is a live hook as the engine knows it. A workflow's own is a HookHandle.
	Hook = history.Hook
	// Chunk is one write to a stream.
	Chunk = history.Chunk
	// StreamInfo says how far a stream is.
	StreamInfo = history.StreamInfo
	// Schedule starts runs by the clock.
	Schedule = history.Schedule
	// RunChange is a change of a list of runs, ChangeType what kind it is of.
	RunChange  = history.Change
	ChangeType = history.ChangeType
	// RunCounts says how many runs there are in each state, RunCount in one.
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

// EventType is the type of an Event: what it says, and which of its fields are set. As
// text it is the name in lower case, such as step_completed.
type EventType = history.Type

// The types of events.
const (
	EventRunCreated      = history.RunCreated   // Name, Payload: input, Attributes
	EventRunStarted      = history.RunStarted   // given to a worker for the first time
	EventRunCompleted    = history.RunCompleted // Payload: output; or Token: the run that continues it
	EventRunFailed       = history.RunFailed    // Payload: error, Code
	EventRunCancelled    = history.RunCancelled // Reason
	EventAttrSet         = history.AttrSet      // Attributes; ID: the step that set them
	EventStepCreated     = history.StepCreated
	EventStepStarted     = history.StepStarted   // Attempt
	EventStepCompleted   = history.StepCompleted // Payload: result, Attempt, StartedAt
	EventStepFailed      = history.StepFailed    // Payload: error, Attempt, StartedAt
	EventStepRetrying    = history.StepRetrying  // Payload: error; Until: not before
	EventHookCreated     = history.HookCreated   // Token; Payload: metadata
	EventHookReceived    = history.HookReceived  // Payload
	EventHookDisposed    = history.HookDisposed
	EventHookConflict    = history.HookConflict // Token; Reason: the run that has it
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

// Tx is what a transactional step may do on the engine's own database.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

var _ Tx = (*sql.Tx)(nil)
