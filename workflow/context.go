package workflow

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"
)

// Context replaces the clock, random numbers and the logger in a workflow's code: its
// methods return the same values whenever the code is replayed. Context is not a
// context.Context, so that it cannot be passed to functions that do I/O: these belong in
// steps.
//
// A Context is only valid within the function that it was passed to, and there only in
// the function's own flow: not in a goroutine, not in a step. Using it elsewhere panics.
type Context interface {
	// Now is the commit time of the last event that the code has seen, such as the start
	// of the run or the end of the step that the code waited for. Between events Now does
	// not change.
	Now() time.Time
	// Rand returns random numbers that are the same on replay. Every branch and inline
	// child has a source of its own. Anyone who knows the run's id can predict the
	// numbers: do not use them for secrets.
	Rand() *rand.Rand
	// NewID returns an id that is unique and the same on replay: a ULID, 26 characters.
	NewID() string
	// Logger logs when code runs for the first time, and is silent on replay.
	Logger() *slog.Logger
	// Info returns the run's id and properties.
	Info() Info
	// Err is nil, ErrCancelled or ErrTimeout: see WithCancel and WithTimeout.
	Err() error

	flow() *flow
}

// Info is the properties of a run that its code can read.
type Info struct {
	RunID    string
	Workflow string
	// Key is the idempotency key that the run was started with; Group is the group for
	// its workflow's limits per group.
	Key, Group string
	// Parent is the run that started this one, and Root the first run of that line of
	// parents; both are "" if the run was started from outside. Previous is the run that
	// this run continues.
	Parent, Root, Previous string
	Build                  string
	Priority               int
	StartedAt              time.Time
	// Attributes are the current attributes. The map is a copy.
	Attributes map[string]string
	// Events is the current length of the log. A run that goes on for ever returns
	// ContinueAsNew before the log reaches its limit.
	Events int64
}

// flow is the Context of one function: its scope names the function's ops, and its cancel
// ends them.
type flow struct {
	x      *execution
	scope  *scope
	cancel *canceller
}

func (f *flow) flow() *flow { return f }

func (f *flow) Now() time.Time {
	f.x.use()
	return f.x.time()
}

func (f *flow) Rand() *rand.Rand {
	f.x.use()
	if f.scope.rand == nil {
		f.scope.rand = seed(f.x.run.ID, "rand "+f.scope.path)
	}
	return f.scope.rand
}

func (f *flow) NewID() string {
	f.x.use()
	if f.scope.ids == nil {
		f.scope.ids = seed(f.x.run.ID, "ids "+f.scope.path)
	}
	var entropy [10]byte
	binary.BigEndian.PutUint64(entropy[:8], f.scope.ids.Uint64())
	binary.BigEndian.PutUint16(entropy[8:], uint16(f.scope.ids.Uint32()))
	return ulid(f.x.time(), entropy)
}

func (f *flow) Logger() *slog.Logger {
	f.x.use()
	return f.x.logTo()
}

func (f *flow) Info() Info {
	f.x.use()
	x, r := f.x, &f.x.run
	return Info{
		RunID: r.ID, Workflow: r.Workflow, Key: r.Key, Group: r.Group,
		Parent: r.Parent, Root: r.Root, Previous: r.Previous,
		Build: r.Build, Priority: r.Priority,
		StartedAt:  time.UnixMilli(x.startedAt).UTC(),
		Attributes: maps.Clone(x.attributes),
		Events:     x.slot,
	}
}

func (f *flow) Err() error {
	f.x.use()
	return f.cancel.cause()
}
