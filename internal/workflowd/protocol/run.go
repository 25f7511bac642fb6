package protocol

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Run is the wire form of a run.
type Run struct {
	ID         string            `json:"id"`
	Project    string            `json:"project,omitempty"`
	Workflow   string            `json:"workflow"`
	Status     history.Status    `json:"status"`
	Build      string            `json:"build,omitempty"`
	Key        string            `json:"key,omitempty"`
	Group      string            `json:"group,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Parent     string            `json:"parent,omitempty"`
	Root       string            `json:"root,omitempty"`
	Previous   string            `json:"previous,omitempty"`
	Next       string            `json:"next,omitempty"`
	First      string            `json:"first,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`

	CreatedAt   time.Time `json:"created_at"`
	NotBefore   time.Time `json:"not_before,omitzero"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	CompletedAt time.Time `json:"completed_at,omitzero"`
	UpdatedAt   time.Time `json:"updated_at"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`

	CancelRequested bool   `json:"cancel_requested,omitempty"`
	CancelReason    string `json:"cancel_reason,omitempty"`
	ErrorCode       string `json:"error_code,omitempty"`
	Recoveries      int    `json:"recoveries,omitempty"`
	Events          int64  `json:"events"`
	// Kind is the runtime that replays the run's code, empty for Go's. Data that the log
	// keeps only for that runtime is not sent.
	Kind history.Kind `json:"kind,omitempty"`
}

// RunOf returns the wire form of r.
func RunOf(r *history.Run) *Run {
	return &Run{
		ID: r.ID, Project: r.Project, Workflow: r.Workflow, Status: r.Status, Build: r.Build, Key: r.Key, Group: r.Group,
		Priority: r.Priority, Parent: r.Parent, Root: r.Root, Previous: r.Previous, Next: r.Next, First: r.First, Attributes: r.Attributes,
		CreatedAt: Time(r.CreatedAt), NotBefore: Time(r.NotBefore), StartedAt: Time(r.StartedAt),
		CompletedAt: Time(r.CompletedAt), UpdatedAt: Time(r.UpdatedAt), ExpiresAt: Time(r.ExpiresAt),
		CancelRequested: r.CancelRequested, CancelReason: r.CancelReason, ErrorCode: r.ErrorCode, Kind: r.Kind,
		Recoveries: r.Recoveries, Events: r.Events,
	}
}

// Run returns the run with the wire form r.
func (r *Run) Run() *history.Run {
	return &history.Run{
		ID: r.ID, Project: r.Project, Workflow: r.Workflow, Status: r.Status, Build: r.Build, Key: r.Key, Group: r.Group,
		Priority: r.Priority, Parent: r.Parent, Root: r.Root, Previous: r.Previous, Next: r.Next, First: r.First, Attributes: r.Attributes,
		CreatedAt: Millis(r.CreatedAt), NotBefore: Millis(r.NotBefore), StartedAt: Millis(r.StartedAt),
		CompletedAt: Millis(r.CompletedAt), UpdatedAt: Millis(r.UpdatedAt), ExpiresAt: Millis(r.ExpiresAt),
		CancelRequested: r.CancelRequested, CancelReason: r.CancelReason, ErrorCode: r.ErrorCode, Kind: r.Kind,
		Recoveries: r.Recoveries, Events: r.Events,
	}
}

// JSON can only represent times in these years.
var (
	firstTime = time.Date(1, 1, 1, 0, 0, 0, 1e6, time.UTC).UnixMilli()
	lastTime  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1
)

// Time returns Unix milliseconds as a time, zero for 0. A time that JSON cannot represent
// becomes the last one that it can: a run may sleep for ever.
func Time(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(min(max(ms, firstTime), lastTime)).UTC()
}

// Millis is the inverse of Time.
func Millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Duration returns milliseconds as a duration.
func Duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

// DurationMillis is the inverse of Duration. It rounds fractions of a millisecond away
// from zero, because zero has a meaning of its own.
func DurationMillis(d time.Duration) int64 {
	ms := d.Milliseconds()
	switch {
	case d > Duration(ms):
		ms++
	case d < Duration(ms):
		ms--
	}
	return ms
}

// Page is one page of a list. Next is the cursor of the next page; it is "" on the last
// page.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Start is the body of a request that starts a run.
type Start struct {
	ID         string            `json:"id,omitempty"`
	Workflow   string            `json:"workflow"`
	Input      Exact             `json:"input,omitempty"`
	Key        string            `json:"key,omitempty"`
	Group      string            `json:"group,omitempty"`
	Priority   int               `json:"priority,omitempty"`
	Build      string            `json:"build,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	StartAt    time.Time         `json:"start_at,omitzero"`
	// RetentionMS is how long the run is kept after its end. 0: the definition's
	// retention. Negative: the payloads are deleted at the end.
	RetentionMS int64 `json:"retention_ms,omitempty"`
}

// Started is the answer to Start.
type Started struct {
	Run *Run `json:"run"`
	// Created is false if a run that was started with the same key exists already.
	Created bool `json:"created"`
}

// Cancel is the body of a request that cancels a run.
type Cancel struct {
	Reason string `json:"reason,omitempty"`
	Force  bool   `json:"force,omitempty"`
}

// CancelMany is the body of a request that cancels the runs that a query selects. Missing
// fields select all runs.
type CancelMany struct {
	Cancel
	Workflow   string            `json:"workflow,omitempty"`
	Status     []history.Status  `json:"status,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	// HasAttributes names attributes that runs must have, with any value.
	HasAttributes []string `json:"has_attributes,omitempty"`

	Key       string    `json:"key,omitempty"`
	Parent    string    `json:"parent,omitempty"`
	Schedule  string    `json:"schedule,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Until     time.Time `json:"until,omitzero"`
	Ascending bool      `json:"ascending,omitempty"`
	Cursor    string    `json:"cursor,omitempty"`
	// Limit is the maximum number of runs, 1 to 500; 0 means 500.
	Limit int `json:"limit,omitempty"`
}

// Query returns the query of c.
func (c *CancelMany) Query() history.Query {
	return history.Query{
		Workflow: c.Workflow, Statuses: c.Status, Attributes: c.Attributes, HasAttributes: c.HasAttributes, Key: c.Key, Parent: c.Parent, Schedule: c.Schedule,
		Since: Millis(c.Since), Until: Millis(c.Until), Ascending: c.Ascending, Cursor: c.Cursor, Limit: c.Limit,
	}
}

// CancelManyOf is the inverse of Query.
func CancelManyOf(q history.Query, c Cancel) CancelMany {
	return CancelMany{
		Cancel: c, Workflow: q.Workflow, Status: q.Statuses, Attributes: q.Attributes, HasAttributes: q.HasAttributes, Key: q.Key, Parent: q.Parent, Schedule: q.Schedule,
		Since: Time(q.Since), Until: Time(q.Until), Ascending: q.Ascending, Cursor: q.Cursor, Limit: q.Limit,
	}
}

// RunChange is the wire form of a change in a watched list of runs.
type RunChange struct {
	Type history.ChangeType `json:"type"`
	ID   string             `json:"id,omitempty"`
	Run  *Run               `json:"run,omitempty"`
}

// RunChangeOf returns the wire form of c.
func RunChangeOf(c *history.Change) *RunChange {
	out := &RunChange{Type: c.Type, ID: c.ID}
	if c.Run != nil {
		out.Run = RunOf(c.Run)
	}
	return out
}

// Change returns the change with the wire form c.
func (c *RunChange) Change() history.Change {
	out := history.Change{Type: c.Type, ID: c.ID}
	if c.Run != nil {
		out.Run = c.Run.Run()
	}
	return out
}

// Counts has the number of runs in each state.
type Counts struct {
	Counts history.Counts `json:"counts"`
}

// Wake is the body of a request that ends waits early: the named waits, or all waits of
// the run.
type Wake struct {
	Waits []string `json:"waits,omitempty"`
}

// Woken is the answer to Wake.
type Woken struct {
	Count int `json:"count"`
}

// Rerun is the body of a request that starts a run with the input of another run.
type Rerun struct {
	Build string `json:"build,omitempty"`
	Key   string `json:"key,omitempty"`
}

// Update is the body of a request that changes a run.
type Update struct {
	// Attributes are set; an attribute with an empty value is removed.
	Attributes map[string]string `json:"attributes"`
}
