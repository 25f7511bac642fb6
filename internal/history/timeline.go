package history

// Timeline is a run for people to look at: its steps, hooks, waits and children, with
// times and results. It holds nothing that is not in the log.
type Timeline struct {
	Run Run `json:"run"`
	// Spans are in the order of their first events in the log.
	Spans []Span `json:"spans"`
	// Marks are events of the run as a whole: its start, its attributes, the request to
	// cancel it, its end.
	Marks []TimelineMark `json:"marks"`
}

// SpanKind is the kind of entity that a span shows.
type SpanKind string

// The kinds of spans.
const (
	SpanStep    SpanKind = "step"
	SpanHook    SpanKind = "hook"
	SpanWait    SpanKind = "wait"
	SpanChild   SpanKind = "child"
	SpanVersion SpanKind = "version"
)

// SpanStatus is the state of the entity that a span shows.
type SpanStatus string

// The states of spans. A span of a child has the states of a run.
const (
	SpanPending   SpanStatus = "pending"   // a step between two attempts
	SpanRunning   SpanStatus = "running"   // a step or child
	SpanOpen      SpanStatus = "open"      // a hook or wait
	SpanCompleted SpanStatus = "completed" // a step or wait
	SpanFailed    SpanStatus = "failed"    // a step
	SpanDisposed  SpanStatus = "disposed"  // a hook
	SpanConflict  SpanStatus = "conflict"  // a hook whose token another run has
	SpanAbandoned SpanStatus = "abandoned" // open when the run ended
	SpanMarked    SpanStatus = "marked"    // a version
)

// Span is a step, hook, wait, child or version of a run. Times are Unix
// milliseconds, 0 if not yet; payloads are envelopes, see Event.
type Span struct {
	Kind   SpanKind   `json:"kind"`
	ID     string     `json:"id"`
	Name   string     `json:"name,omitempty"`
	Status SpanStatus `json:"status"`
	Slot   int64      `json:"slot"` // slot of the first event
	// BeginsAt is when the entity was created, or when the first attempt of a step began,
	// whichever the log shows to be earlier.
	BeginsAt int64 `json:"begins_at"`
	EndsAt   int64 `json:"ends_at,omitempty"`

	Input  []byte `json:"input,omitempty"`
	Output []byte `json:"output,omitempty"`
	Error  []byte `json:"error,omitempty"`
	Code   string `json:"code,omitempty"` // of the error

	Attempts []StepAttempt `json:"attempts,omitempty"`
	// Until is when a wait ends, or when a failed step is retried.
	Until int64 `json:"until,omitempty"`

	Token    string        `json:"token,omitempty"` // of a hook
	Webhook  bool          `json:"webhook,omitempty"`
	Metadata []byte        `json:"metadata,omitempty"`
	Received []HookReceipt `json:"received,omitempty"`
	// Run is a child's run, or the run that has the token.
	Run     string `json:"run,omitempty"`
	Version int    `json:"version,omitempty"`
}

// StepAttempt is one attempt of a step.
type StepAttempt struct {
	Number    int        `json:"number"`
	Status    SpanStatus `json:"status"`
	StartedAt int64      `json:"started_at"`
	EndedAt   int64      `json:"ended_at,omitempty"`
	Error     []byte     `json:"error,omitempty"`
	Code      string     `json:"code,omitempty"`
}

// HookReceipt is one payload that a hook received.
type HookReceipt struct {
	Slot    int64  `json:"slot"`
	At      int64  `json:"at"`
	Key     string `json:"key,omitempty"`
	Payload []byte `json:"payload,omitempty"`
}

// TimelineMark is a moment of a run.
type TimelineMark struct {
	Type       Type              `json:"type"`
	Slot       int64             `json:"slot"`
	At         int64             `json:"at"`
	Reason     string            `json:"reason,omitempty"`
	Step       string            `json:"step,omitempty"` // the step that set the attributes
	Attributes map[string]string `json:"attributes,omitempty"`
}

// NewTimeline makes the timeline of a run from its log, or from the first events of the
// log.
func NewTimeline(run Run, events []Event) *Timeline {
	t := timeline{Timeline: &Timeline{Run: run, Spans: []Span{}, Marks: []TimelineMark{}}, at: make(map[string]int)}
	for i := range events {
		t.add(&events[i])
	}
	return t.Timeline
}

// timeline is a Timeline under construction.
type timeline struct {
	*Timeline
	at map[string]int // index in Spans by id
}

func (t *timeline) add(e *Event) {
	switch e.Type {
	case RunCreated, RunStarted, CancelRequested, AttrSet, LimitReached:
		t.mark(e)
	case RunCompleted, RunFailed, RunCancelled:
		t.mark(e)
		t.end(e)

	case StepCreated:
		t.span(SpanStep, SpanPending, e)
	case StepStarted:
		s := t.span(SpanStep, SpanRunning, e)
		s.Status, s.Until = SpanRunning, 0
		s.lost(e.At)
		s.attempt(e)
	case StepRetrying:
		s := t.span(SpanStep, SpanPending, e)
		s.Status, s.Until = SpanPending, e.Until
		s.Error, s.Code = e.Payload, e.Code
		s.attempt(e).fail(e)
	case StepCompleted:
		s := t.span(SpanStep, SpanCompleted, e)
		s.Output, s.Error, s.Code = e.Payload, nil, ""
		a := s.attempt(e)
		a.Status, a.EndedAt = SpanCompleted, e.At
		s.finish(SpanCompleted, e.At)
	case StepFailed:
		s := t.span(SpanStep, SpanFailed, e)
		s.Error, s.Code = e.Payload, e.Code
		s.attempt(e).fail(e)
		s.finish(SpanFailed, e.At)

	case HookCreated:
		s := t.span(SpanHook, SpanOpen, e)
		s.Token, s.Webhook, s.Metadata = e.Token, e.Webhook, e.Payload
	case HookConflict:
		s := t.span(SpanHook, SpanConflict, e)
		s.Token, s.Run = e.Token, e.Reason
		s.finish(SpanConflict, e.At)
	case HookReceived:
		s := t.span(SpanHook, SpanOpen, e)
		s.Received = append(s.Received, HookReceipt{Slot: e.Slot, At: e.At, Key: e.Key, Payload: e.Payload})
	case HookDisposed:
		t.span(SpanHook, SpanOpen, e).finish(SpanDisposed, e.At)

	case WaitCreated:
		t.span(SpanWait, SpanOpen, e).Until = e.Until
	case WaitCompleted:
		t.span(SpanWait, SpanOpen, e).finish(SpanCompleted, e.At)

	case ChildStarted:
		s := t.span(SpanChild, SpanRunning, e)
		s.Run = e.Token
	case ChildEnded:
		s := t.span(SpanChild, SpanRunning, e)
		if e.Code == string(Completed) {
			s.Output = e.Payload
		} else {
			s.Error = e.Payload
		}
		s.finish(SpanStatus(e.Code), e.At)

	case VersionMarked:
		s := t.span(SpanVersion, SpanMarked, e)
		s.Version = e.Attempt
		s.EndsAt = e.At
	}
}

func (t *timeline) mark(e *Event) {
	t.Marks = append(t.Marks, TimelineMark{
		Type: e.Type, Slot: e.Slot, At: e.At, Reason: e.Reason, Step: e.ID, Attributes: e.Attributes,
	})
	if e.Type != AttrSet {
		t.Marks[len(t.Marks)-1].Step = "" // run_created's id is the parent's
	}
}

// span returns the span of an event's id, a new one for the first event of the id.
func (t *timeline) span(kind SpanKind, status SpanStatus, e *Event) *Span {
	i, ok := t.at[e.ID]
	if !ok {
		i = len(t.Spans)
		t.at[e.ID] = i
		t.Spans = append(t.Spans, Span{Kind: kind, ID: e.ID, Status: status, Slot: e.Slot, BeginsAt: e.At})
	}
	s := &t.Spans[i]
	if s.Name == "" {
		s.Name = e.Name
	}
	if s.Input == nil {
		s.Input = e.Input
	}
	if e.StartedAt != 0 {
		s.BeginsAt = min(s.BeginsAt, e.StartedAt)
	}
	return s
}

func (s *Span) finish(status SpanStatus, at int64) {
	s.Status, s.EndsAt = status, at
	if s.Kind == SpanStep {
		s.Until = 0 // it is not retried
	}
}

// attempt returns the attempt that an event belongs to.
func (s *Span) attempt(e *Event) *StepAttempt {
	number := e.Attempt
	if number == 0 {
		number = max(len(s.Attempts), 1)
	}
	for i := range s.Attempts {
		if a := &s.Attempts[i]; a.Number == number {
			return a
		}
	}
	started := e.StartedAt
	if started == 0 {
		started = e.At
	}
	s.Attempts = append(s.Attempts, StepAttempt{Number: number, Status: SpanRunning, StartedAt: started})
	return &s.Attempts[len(s.Attempts)-1]
}

func (a *StepAttempt) fail(e *Event) {
	a.Status, a.EndedAt, a.Error, a.Code = SpanFailed, e.At, e.Payload, e.Code
}

// lost closes attempts that had not ended when the next attempt began: their worker died.
func (s *Span) lost(at int64) {
	for i := range s.Attempts {
		if a := &s.Attempts[i]; a.EndedAt == 0 {
			a.Status, a.EndedAt = SpanAbandoned, at
		}
	}
}

// end closes the spans that are open when the run ends. Running steps may still report
// their results.
func (t *timeline) end(e *Event) {
	for i := range t.Spans {
		if s := &t.Spans[i]; s.EndsAt == 0 {
			s.finish(SpanAbandoned, e.At)
		}
	}
}
