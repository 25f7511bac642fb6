package history

import (
	"fmt"
	"strings"
	"time"
)

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

// Run is a run without its log: the fields that lists show and filters use. Times are
// Unix milliseconds, 0 if not yet.
type Run struct {
	ID       string `json:"id"` // "wrun_" and a ULID, made by the caller that starts the run
	Project  string `json:"project,omitempty"`
	Workflow string `json:"workflow"`
	Status   Status `json:"status"`
	// Build is the build of the worker the run is pinned to, "" for any.
	Build string `json:"build,omitempty"`
	// Key is the idempotency key that the run was started with. While the run is kept, no
	// other run has the same project, workflow and key.
	Key string `json:"key,omitempty"`
	// Group is the group by which the workflow's limits per key count runs: see
	// workflow.StartParams.
	Group    string `json:"group,omitempty"`
	Priority int    `json:"priority,omitempty"` // higher goes first
	// Parent is the run that started the run; Root is the first ancestor in the line of
	// parents.
	Parent string `json:"parent,omitempty"`
	Root   string `json:"root,omitempty"`
	// Previous is the run that the run continues; Next is the run that continues the run.
	Previous string `json:"previous,omitempty"`
	Next     string `json:"next,omitempty"`
	// First is the first run of this run's chain, "" if this run is the first. Runs that
	// continue each other are a chain.
	First string `json:"first,omitempty"`

	Attributes map[string]string `json:"attributes,omitempty"`

	CreatedAt   int64 `json:"created_at"`
	NotBefore   int64 `json:"not_before,omitempty"` // the run must not start earlier
	StartedAt   int64 `json:"started_at,omitempty"`
	CompletedAt int64 `json:"completed_at,omitempty"`
	UpdatedAt   int64 `json:"updated_at"`
	// ExpiresAt is when an ended run is deleted, 0 for never. The first run of a chain is
	// kept as long as any later one.
	ExpiresAt int64 `json:"expires_at,omitempty"`

	// CancelRequested and CancelReason: see the event type CancelRequested.
	CancelRequested bool   `json:"cancel_requested,omitempty"`
	CancelReason    string `json:"cancel_reason,omitempty"`
	ErrorCode       string `json:"error_code,omitempty"`
	// Recoveries counts how often the run was given to a worker after an earlier one had
	// died, since it last made progress. Recoveries does not count an attempt that the
	// worker ended in good order, or whose process died after the run's time under
	// suspicion was over.
	Recoveries int `json:"recoveries,omitempty"`
	// Events is the slot of the last event.
	Events int64 `json:"events"`

	Kind Kind `json:"kind,omitempty"`
	// Extra is stored for the runtime of a Kind other than Go; no other code reads it.
	Extra []byte `json:"-"`
}

// Kind is the runtime that replays the code of a run.
type Kind string

// The kinds of runs.
const (
	// Go runs are given to workers of the Go SDK. The engine starts them, keeps their
	// timers, and drives their code.
	Go Kind = ""
	// JavaScript runs are replayed by the runtime of the Workflow SDK, in the user's app.
	// The engine keeps their log and decides which events may follow; the runtime writes
	// all other events, such as the start of the run and the end of a wait. A queue wakes
	// the runtime.
	JavaScript Kind = "javascript"
)

// External reports whether the runtime of a kind keeps its own timers and asks for no
// worker.
func (k Kind) External() bool { return k != Go }

// SuspectAfter is the number of Recoveries that makes a run a suspect: the run may be
// killing its workers, so the run, and each of its steps, is executed apart from other
// suspects.
const SuspectAfter = 3

// Hook is a live hook: its token can be resumed.
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

// StreamInfo is the length of a stream, and whether it is closed.
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
	// LastRun is the last run that the schedule started.
	LastRun string `json:"last_run,omitempty"`
}

// Limit bounds when runs of a workflow start whose code an external runtime runs, such as
// Vercel's Workflow SDK, and says which of them go first. Runs that have started are never
// held up by its bounds.
type Limit struct {
	Project  string `json:"project,omitempty"`
	Workflow string `json:"workflow"`
	// Concurrency is how many runs may be running at one time, 0 for any number.
	Concurrency int `json:"concurrency,omitempty"`
	// Rate is how many runs may start within Period, 0 for any number.
	Rate   int           `json:"rate,omitempty"`
	Period time.Duration `json:"period,omitempty"`
	// Priority orders the messages of runs for which their app has no room: higher goes
	// first. 0 to 100.
	Priority int `json:"priority,omitempty"`
}

// Free reports whether the limit never holds a run up.
func (l *Limit) Free() bool { return l.Concurrency == 0 && l.Rate == 0 }

// Reason says why a run waits for the limit, for people.
func (l *Limit) Reason() string {
	var bounds []string
	if l.Concurrency > 0 {
		bounds = append(bounds, fmt.Sprintf("%d at a time", l.Concurrency))
	}
	if l.Rate > 0 {
		bounds = append(bounds, fmt.Sprintf("%d in %s", l.Rate, l.Period))
	}
	return fmt.Sprintf("the run waits for the limit of workflow %s: %s", l.Workflow, strings.Join(bounds, ", "))
}

// Query selects runs, newest first. Zero fields select all.
type Query struct {
	Project    string
	Workflow   string
	Statuses   []Status
	Attributes map[string]string // all must match
	// HasAttributes names attributes that a run must have, with any value.
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

// Page is one page of a list. Cursor is "" on the last page.
type Page[T any] struct {
	Items  []T    `json:"items"`
	Cursor string `json:"cursor,omitempty"`
}
