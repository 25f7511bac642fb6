package workflow

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"
)

// Context is what a workflow's code has instead of a clock, a source of
// randomness and a logger: what it returns is the same whenever the code is
// replayed. It is no context.Context, so that it cannot be given to what does
// I/O: that belongs into a step.
//
// A Context is only good within the function it was given to, and there only in
// the function's own flow: not in a goroutine, not in a step. Using it elsewhere
// panics.
type Context interface {
	// Now is when the last event was committed that the code has seen: the start of
	// the run, the end of the step it waited for. It does not move between them.
	Now() time.Time
	// Rand returns random numbers that are the same on replay. Every branch and inline
	// child has a source of its own. They can be guessed by who knows the run's id: no
	// source of secrets.
	Rand() *rand.Rand
	// NewID returns an id that is unique and the same on replay: a ULID, 26 characters.
	NewID() string
	// Logger logs what the code does for the first time, and nothing on replay.
	Logger() *slog.Logger
	// Info says which run this is.
	Info() Info
	// Err is nil, ErrCancelled or ErrTimeout: see WithCancel and WithTimeout.
	Err() error

	flow() *flow
}

// Info is what a workflow's code may know of its run.
type Info struct {
	RunID    string
	Workflow string
	// Key is the idempotency key the run was started with, Group what its workflow's
	// limits per group count.
	Key, Group string
	// Parent and Root are the run that started this one and the first of that line, ""
	// if it was started from outside. Previous is the run this one continues.
	Parent, Root, Previous string
	Build                  string
	Priority               int
	StartedAt              time.Time
	// Attributes are those of this moment. The map is a copy.
	Attributes map[string]string
	// Events is how long the log is by now. A run that goes on for ever returns
	// ContinueAsNew before it reaches its limit.
	Events int64
}

// flow is the Context of one function: whose scope names what it asks for, and
// whose cancel ends it.
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
