package history

import "time"

// Type is the type of an event.
type Type uint8

// The types of events. The numbers are part of the stored format.
const (
	// RunCreated: Name, Payload: input, Attributes; ID: of the parent's call, if the
	// parent is to be told how the run ends; Until: how long the run is kept after its
	// end, in milliseconds, 0 for as its definition says, negative for no payloads.
	RunCreated Type = 1
	RunStarted Type = 2
	// What ends a run has, if the run's code says so, in Attempt the slot of the last
	// event that the code was shown. It is 0 if the run was ended from outside, and in
	// logs of versions that did not say it.
	RunCompleted Type = 3 // Payload: output
	RunFailed    Type = 4 // Payload: error; Code
	RunCancelled Type = 5 // Reason
	AttrSet      Type = 6 // Attributes; ID: the step that set them, or ""

	StepCreated   Type = 10 // Name, Input
	StepStarted   Type = 11 // Attempt; Name and Input if it creates the step
	StepCompleted Type = 12 // Payload: result; Attempt, StartedAt; Name and Input if it creates the step
	StepFailed    Type = 13 // Payload: error; as step_completed
	StepRetrying  Type = 14 // Payload: error; Until: not before; as step_completed

	HookCreated  Type = 20 // Token; Payload: metadata; Webhook; Attributes of a carried one: see Log.Keys
	HookReceived Type = 21 // Payload; Key: the resume's idempotency key, or ""
	HookDisposed Type = 22
	HookConflict Type = 23 // Token; Reason: the run that has it. Instead of hook_created

	WaitCreated   Type = 30 // Until
	WaitCompleted Type = 31

	Noop Type = 40

	// CancelRequested asks a run in Go to end: its code sees a cancelled context,
	// undoes what it did, and then run_cancelled is written. Reason. Ours alone.
	CancelRequested Type = 100
	// VersionMarked pins the version of a change that a run's code has chosen:
	// ID names the change, Attempt is the version. Ours alone.
	VersionMarked Type = 101
	// ChildStarted says that the run started another one. ID: of the call; Name:
	// the child's workflow; Token: the child's run id. Ours alone.
	ChildStarted Type = 102
	// ChildEnded is how a child that its parent waits for ended. ID: of the call;
	// Code: its status; Payload: output or error. Ours alone.
	ChildEnded Type = 103
	// LimitReached says that the log has nine tenths of the events it may have: the
	// run's code is told, and may undo what it did. Ours alone.
	LimitReached Type = 104
)

// Event is one entry of a run's log. Which fields are set depends on Type.
type Event struct {
	Slot int64 // position in the run's log, from 1; given by the commit
	Type Type
	// At is when the event was committed, in Unix milliseconds. It never goes back
	// within a run: it is what the workflow's code sees as now.
	At int64
	// ID is the correlation id: the step, hook, wait or child the event is about.
	ID   string
	Name string // of the workflow or step
	// Payload and Input are envelopes: four characters that say how to read the
	// rest, then the rest. "json": JSON. "encr": sealed, see workflow.Encrypt.
	// "blob": too large for the log; the rest names where it is.
	Payload []byte
	Input   []byte

	Attempt    int   // of the step, from 1; or the version marked; or see RunCompleted
	StartedAt  int64 // when the attempt began, Unix milliseconds
	Until      int64 // when the wait ends, or the step may be tried again, Unix milliseconds
	Token      string
	Key        string
	Code       string            // of the error: see the Code constants
	Reason     string            // why the run was cancelled; who has the token
	Attributes map[string]string // what attr_set and run_created set; an empty value removes
	Webhook    bool
	// Extra is kept for the runtime of a run that is not Go's, which alone reads it: see
	// Kind. At most 64 KiB.
	Extra []byte
}

// CarriedPrefix begins the ids of hooks that a run has from the one it continues.
// When its code makes a hook of that token, it takes the place of the carried one.
const CarriedPrefix = "carried."

// Why a run failed, as the JavaScript SDK says it (errorCode).
const (
	CodeUser          = "USER_ERROR"
	CodeRuntime       = "RUNTIME_ERROR"
	CodeMaxEvents     = "MAX_EVENTS_EXCEEDED"
	CodeMaxDeliveries = "MAX_DELIVERIES_EXCEEDED"
	CodeReplayTimeout = "REPLAY_TIMEOUT"
	CodeDivergence    = "REPLAY_DIVERGENCE"
	CodeCorrupted     = "CORRUPTED_EVENT_LOG"
	// CodePoisoned is that of a step, or of a run, that ended its process each time it
	// was tried. Ours alone.
	CodePoisoned = "POISONED"
)

// Time is when e was committed.
func (e *Event) Time() time.Time { return time.UnixMilli(e.At) }
