package history

import "time"

// Type is the type of an event.
type Type uint8

// The types of events. The numbers are part of the stored format.
const (
	// RunCreated: Name, Payload: input, Attributes; ID: the id of the parent's call, if
	// the parent is to be told how the run ends; Until: retention after the run's end in
	// milliseconds, 0 for the definition's retention, negative to delete the payloads.
	RunCreated Type = 1
	RunStarted Type = 2
	// If the run's code ended the run, the event that ends it has in Attempt the slot of
	// the last event that the code was shown. Attempt is 0 if the run was ended from
	// outside, and in logs of releases that did not record the slot.
	RunCompleted Type = 3 // Payload: output
	RunFailed    Type = 4 // Payload: error; Code
	RunCancelled Type = 5 // Reason
	AttrSet      Type = 6 // Attributes; ID: the step that set them, or ""

	StepCreated   Type = 10 // Name, Input
	StepStarted   Type = 11 // Attempt; Name and Input if it creates the step
	StepCompleted Type = 12 // Payload: result; Attempt, StartedAt; Name and Input if it creates the step
	StepFailed    Type = 13 // Payload: error; as step_completed
	StepRetrying  Type = 14 // Payload: error; Until: earliest time of the next attempt; as step_completed

	HookCreated  Type = 20 // Token; Payload: metadata; Webhook; Attributes of a carried hook: see Log.Keys
	HookReceived Type = 21 // Payload; Key: the resume's idempotency key, or ""
	HookDisposed Type = 22
	HookConflict Type = 23 // Token; Reason: the run that has the token. Replaces hook_created

	WaitCreated   Type = 30 // Until
	WaitCompleted Type = 31

	Noop Type = 40

	// CancelRequested asks a Go run to end: its code sees a cancelled context and cleans
	// up, and then run_cancelled is written. Reason. Go only.
	CancelRequested Type = 100
	// VersionMarked pins the version of a change that a run's code has chosen: ID names
	// the change, Attempt is the version. Go only.
	VersionMarked Type = 101
	// ChildStarted says that the run started another one. ID: the id of the call; Name:
	// the child's workflow; Token: the child's run id. Go only.
	ChildStarted Type = 102
	// ChildEnded records how a child that its parent waits for ended. ID: the id of the
	// call; Code: the child's status; Payload: output or error. Go only.
	ChildEnded Type = 103
	// LimitReached records that the log has reached 90 % of its maximum length: the run's
	// code is told, and may undo its work. Go only.
	LimitReached Type = 104
)

// Event is one entry of a run's log. Which fields are set depends on Type.
type Event struct {
	Slot int64 // position in the run's log, from 1; given by the commit
	Type Type
	// At is when the event was committed, in Unix milliseconds. It never goes back within
	// a run: the workflow's code reads it as the current time.
	At int64
	// ID is the correlation id: the step, hook, wait or child the event is about.
	ID   string
	Name string // name of the workflow or step
	// Payload and Input are envelopes: a tag of four characters, which says how to read
	// the rest, and the rest. "json": JSON. "encr": sealed, see workflow.Encrypt. "blob":
	// too large for the log; the rest is the name of the stored payload.
	Payload []byte
	Input   []byte

	Attempt    int   // number of the step's attempt, from 1; or the version marked; or see RunCompleted
	StartedAt  int64 // when the attempt began, Unix milliseconds
	Until      int64 // when the wait ends, or the step may be tried again, Unix milliseconds
	Token      string
	Key        string
	Code       string            // error code: see the Code constants
	Reason     string            // why the run was cancelled; or the run that has the token
	Attributes map[string]string // attributes that attr_set and run_created set; an empty value removes one
	Webhook    bool
	// Extra is stored for the runtime of a run that is not a Go run (see Kind); no other
	// code reads it. At most 64 KiB.
	Extra []byte
}

// CarriedPrefix begins the ids of hooks that a run inherits from the run it continues.
// When the run's code makes a hook of the same token, that hook replaces the carried one.
const CarriedPrefix = "carried."

// The codes of failed runs, as the JavaScript SDK has them (errorCode).
const (
	CodeUser          = "USER_ERROR"
	CodeRuntime       = "RUNTIME_ERROR"
	CodeMaxEvents     = "MAX_EVENTS_EXCEEDED"
	CodeMaxDeliveries = "MAX_DELIVERIES_EXCEEDED"
	CodeReplayTimeout = "REPLAY_TIMEOUT"
	CodeDivergence    = "REPLAY_DIVERGENCE"
	CodeCorrupted     = "CORRUPTED_EVENT_LOG"
	// CodePoisoned is the code of a step or run whose process died at every attempt. Go
	// only.
	CodePoisoned = "POISONED"
)

// Time is when e was committed.
func (e *Event) Time() time.Time { return time.UnixMilli(e.At) }
