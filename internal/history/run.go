package history

// Status is the state of a run.
type Status string

// The states of a run; the last three are terminal.
const (
	Pending   Status = "pending"
	Running   Status = "running"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Terminal reports whether a run in this state has ended.
func (s Status) Terminal() bool { return s == Completed || s == Failed || s == Cancelled }

// Run is a run without its log: what lists and filters know. Times are Unix
// milliseconds, 0 if not yet.
type Run struct {
	ID       string `json:"id"` // "wrun_" and a ULID, made by who starts it
	Project  string `json:"project,omitempty"`
	Workflow string `json:"workflow"`
	Status   Status `json:"status"`
	// Build is the build of the worker the run is pinned to, "" for any.
	Build string `json:"build,omitempty"`
	// Key is the idempotency key it was started with. While the run is kept there is
	// no other of the same project, workflow and key.
	Key string `json:"key,omitempty"`
	// Group is what its workflow's limits per key count: see workflow.StartParams.
	Group    string `json:"group,omitempty"`
	Priority int    `json:"priority,omitempty"` // higher goes first
	// Parent and Root are the run that started this one, and the first of that line.
	Parent string `json:"parent,omitempty"`
	Root   string `json:"root,omitempty"`
	// Previous and Next are the runs this one continues, and is continued by.
	Previous string `json:"previous,omitempty"`
	Next     string `json:"next,omitempty"`
	// First is the run that the chain of this one began with, "" if that is this one: runs
	// that continue each other are a chain.
	First string `json:"first,omitempty"`

	Attributes map[string]string `json:"attributes,omitempty"`

	CreatedAt   int64 `json:"created_at"`
	NotBefore   int64 `json:"not_before,omitempty"` // it was asked to start no earlier
	StartedAt   int64 `json:"started_at,omitempty"`
	CompletedAt int64 `json:"completed_at,omitempty"`
	UpdatedAt   int64 `json:"updated_at"`
	// ExpiresAt is when an ended run is deleted, 0 for never. The first of a chain is kept
	// for as long as any later one is.
	ExpiresAt int64 `json:"expires_at,omitempty"`

	// CancelRequested and CancelReason: see Event CancelRequested.
	CancelRequested bool   `json:"cancel_requested,omitempty"`
	CancelReason    string `json:"cancel_reason,omitempty"`
	ErrorCode       string `json:"error_code,omitempty"`
	// Recoveries counts how often the run was given to a worker after an earlier one
	// had died, since it last made progress. A try that ended in good order, or in which
	// the process died later than the run was under suspicion for, does not count.
	Recoveries int `json:"recoveries,omitempty"`
	// Events is the slot of the last event.
	Events int64 `json:"events"`

	Kind Kind `json:"kind,omitempty"`
	// Extra is kept for the runtime of a Kind that is not Go's, which alone reads it.
	Extra []byte `json:"-"`
}

// Kind says which runtime replays the code of a run.
type Kind string

// The kinds of runs.
const (
	// Go runs are given to workers of the Go SDK. The engine starts them, keeps their
	// timers, and tells their code what to do.
	Go Kind = ""
	// JavaScript runs are replayed by the runtime of the Workflow SDK, in the user's app.
	// The engine keeps their log and decides what may follow in it; the runtime writes all
	// else: that a run starts, that a wait is over. It is woken through a queue.
	JavaScript Kind = "javascript"
)

// External reports whether the runtime of a kind keeps its own timers and asks for no
// worker.
func (k Kind) External() bool { return k != Go }

// SuspectAfter is how many Recoveries make a run a suspect: it may be what ends its
// workers, so that it, and each of its steps, is tried apart from other suspects.
const SuspectAfter = 3

// Hook is a live hook: one whose token can be resumed.
type Hook struct {
	Run     string `json:"run"`
	ID      string `json:"id"`
	Project string `json:"project,omitempty"`
	Token   string `json:"token"`
	Webhook bool   `json:"webhook,omitempty"`
	// Metadata is an envelope.
	Metadata  []byte `json:"metadata,omitempty"`
	CreatedAt int64  `json:"created_at"`
}

// Chunk is one write to a stream of a run.
type Chunk struct {
	Index int64  `json:"index"` // from 0, dense, in order of arrival
	Data  []byte `json:"data"`  // an envelope, or raw bytes for a stream of bytes
}

// StreamInfo says how far a stream is.
type StreamInfo struct {
	Name   string `json:"name"`
	Chunks int64  `json:"chunks"`
	Closed bool   `json:"closed"`
}

// Schedule starts runs by the clock.
type Schedule struct {
	ID       string `json:"id"`
	Project  string `json:"project,omitempty"`
	Workflow string `json:"workflow"`
	// Cron has five fields, or is "@every <duration>"; Zone is an IANA name, UTC if empty.
	Cron  string `json:"cron"`
	Zone  string `json:"zone,omitempty"`
	Input []byte `json:"input,omitempty"` // an envelope
	// Overlap lets a run start while an earlier one of this schedule has not ended.
	Overlap   bool  `json:"overlap,omitempty"`
	Paused    bool  `json:"paused,omitempty"`
	NextAt    int64 `json:"next_at,omitempty"`
	LastAt    int64 `json:"last_at,omitempty"`
	CreatedAt int64 `json:"created_at"`
	// LastRun is the run it started last.
	LastRun string `json:"last_run,omitempty"`
}

// Query selects runs, newest first. Zero fields select all.
type Query struct {
	Project    string
	Workflow   string
	Statuses   []Status
	Attributes map[string]string // all must match
	// HasAttributes are attributes that a run must have, whatever their values.
	HasAttributes []string
	Key           string
	Parent        string
	Schedule      string
	// Since and Until bound CreatedAt, in Unix milliseconds.
	Since, Until int64
	// Ascending lists the oldest first.
	Ascending bool
	Cursor    string
	Limit     int // 0 means 100; at most 1000
}

// Page is one page of a list. Cursor is "" on the last one.
type Page[T any] struct {
	Items  []T    `json:"items"`
	Cursor string `json:"cursor,omitempty"`
}
