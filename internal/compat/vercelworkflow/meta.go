package vercelworkflow

import (
	"strings"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// meta holds the fields of a posted frame: the event's, and the parts that the client
// wants in the answer.
type meta struct {
	EventType     string    `cbor:"eventType"`
	SpecVersion   int       `cbor:"specVersion"`
	CorrelationID string    `cbor:"correlationId"`
	OccurredAt    time.Time `cbor:"occurredAt"`

	RemoteRefBehavior string `cbor:"remoteRefBehavior"` // lazy: without payloads
	SinceCursor       string `cbor:"sinceCursor"`
	SkipPreload       bool   `cbor:"skipPreload"`

	runMeta
	stepMeta
	hookMeta
	errorMeta
}

type runMeta struct {
	DeploymentID        string            `cbor:"deploymentId"`
	WorkflowName        string            `cbor:"workflowName"`
	ExecutionContext    cbor.RawMessage   `cbor:"executionContext"`
	EncryptionPublicKey string            `cbor:"encryptionPublicKey"`
	Attributes          map[string]string `cbor:"attributes"`
	Changes             []attributeChange `cbor:"changes"`
	Writer              cbor.RawMessage   `cbor:"writer"`
	AllowReserved       bool              `cbor:"allowReservedAttributes"`
	CancelReason        string            `cbor:"cancelReason"`
}

// attributeChange sets an attribute, or removes it if the value is null.
type attributeChange struct {
	Key   string  `cbor:"key" json:"key"`
	Value *string `cbor:"value" json:"value"`
}

type stepMeta struct {
	StepName       string    `cbor:"stepName"`
	ResumeAt       time.Time `cbor:"resumeAt"`
	RetryAfter     time.Time `cbor:"retryAfter"`
	OwnerMessageID string    `cbor:"ownerMessageId"`
}

type hookMeta struct {
	HookToken               string    `cbor:"hookToken"`
	HookTokenRetentionUntil time.Time `cbor:"hookTokenRetentionUntil"`
	HookIsWebhook           *bool     `cbor:"hookIsWebhook"`
	HookIsSystem            *bool     `cbor:"hookIsSystem"`
	ResumeID                string    `cbor:"resumeId"`
}

// errorMeta is how the 4.7 line reports errors: as a text, or {message, stack, code}.
type errorMeta struct {
	ErrorCode string          `cbor:"errorCode"`
	Error     cbor.RawMessage `cbor:"error"`
	Stack     string          `cbor:"stack"`
}

// extra is what the log keeps of an event for the SDK beside the engine's own fields.
type extra struct {
	SpecVersion int             `cbor:"v,omitempty"`
	Owner       string          `cbor:"owner,omitempty"`
	Context     cbor.RawMessage `cbor:"ctx,omitempty"`
	PublicKey   string          `cbor:"pub,omitempty"`
	Reserved    bool            `cbor:"res,omitempty"`
	Writer      cbor.RawMessage `cbor:"writer,omitempty"`
	// Changes are those of attr_set: the engine's map does not tell "" from null.
	Changes   []attributeChange `cbor:"changes,omitempty"`
	System    bool              `cbor:"sys,omitempty"`
	Retention int64             `cbor:"ret,omitempty"` // of a token, Unix milliseconds
	Occurred  bool              `cbor:"at,omitempty"`  // the event's time is the client's
}

// slotted is the first spec version in which the id of an event is its slot, and its
// time the client's.
const slotted = 6

// retentionAttribute is "0" for runs whose payloads are deleted when they end.
const retentionAttribute = "$retention"

// extraOf is what the log keeps of m for the SDK.
func extraOf(m *meta) ([]byte, error) {
	x := extra{
		SpecVersion: m.SpecVersion, Owner: m.OwnerMessageID, Context: m.ExecutionContext,
		PublicKey: m.EncryptionPublicKey, Reserved: m.AllowReserved, Writer: m.Writer, Changes: m.Changes,
		System: m.HookIsSystem != nil && *m.HookIsSystem, Occurred: timeOf(m) != 0,
	}
	if !m.HookTokenRetentionUntil.IsZero() {
		x.Retention = millis(m.HookTokenRetentionUntil)
	}
	return encoding.Marshal(&x)
}

func readExtra(b []byte) (x extra) {
	if b != nil {
		_ = decoding.Unmarshal(b, &x) // it was written here; other bytes say nothing
	}
	return x
}

// millis is a time in Unix milliseconds. Dates come as seconds in floating point, a little
// off what they were.
func millis(t time.Time) int64 { return t.Round(time.Millisecond).UnixMilli() }

// timeOf is when an event was, as its client says, 0 if the commit decides.
func timeOf(m *meta) int64 {
	if m.SpecVersion < slotted || m.OccurredAt.IsZero() {
		return 0
	}
	return millis(m.OccurredAt)
}

// types are the events that clients may post, by their names.
var types = map[string]history.Type{
	"run_created": history.RunCreated, "run_started": history.RunStarted, "run_completed": history.RunCompleted,
	"run_failed": history.RunFailed, "run_cancelled": history.RunCancelled, "attr_set": history.AttrSet,
	"step_created": history.StepCreated, "step_started": history.StepStarted, "step_completed": history.StepCompleted,
	"step_failed": history.StepFailed, "step_retrying": history.StepRetrying,
	"hook_created": history.HookCreated, "hook_received": history.HookReceived, "hook_disposed": history.HookDisposed,
	"wait_created": history.WaitCreated, "wait_completed": history.WaitCompleted,
}

// entryOf returns the events that a frame appends: two for a step that is created and
// started at once, else a single event. Errors: invalid.
func entryOf(m *meta, body []byte) (workflowd.Entry, error) {
	typ, ok := types[m.EventType]
	if !ok || typ == history.RunCreated {
		return nil, cay.Errorf(cay.Invalid, "an event of type %.40q cannot be appended to a run", m.EventType)
	}
	kept, err := extraOf(m)
	if err != nil {
		return nil, err
	}
	ev := history.Event{Type: typ, ID: m.CorrelationID, At: timeOf(m), Extra: kept}
	switch typ {
	case history.RunCompleted, history.StepCompleted:
		ev.Payload = body
	case history.RunFailed, history.StepFailed, history.StepRetrying:
		ev.Code = m.ErrorCode
		if ev.Payload, err = errorPayload(m, body); err != nil {
			return nil, err
		}
		if typ == history.StepRetrying && !m.RetryAfter.IsZero() {
			ev.Until = millis(m.RetryAfter)
		}
	case history.RunCancelled:
		ev.Reason = m.CancelReason
	case history.AttrSet:
		if ev.Attributes, err = changed(m.Changes, m.AllowReserved); err != nil {
			return nil, err
		}
	case history.StepCreated:
		ev.Name, ev.Input = m.StepName, body
	case history.StepStarted:
		if len(body) > 0 {
			created := ev
			created.Type, created.Name, created.Input = history.StepCreated, m.StepName, body
			return workflowd.Entry{created, ev}, nil
		}
	case history.HookCreated:
		ev.Token, ev.Payload, ev.Webhook = m.HookToken, orNil(body), m.HookIsWebhook != nil && *m.HookIsWebhook
	case history.HookReceived:
		ev.Payload, ev.Key = body, m.ResumeID
	case history.WaitCreated:
		if m.ResumeAt.IsZero() {
			return nil, cay.Errorf(cay.Invalid, "wait_created needs resumeAt")
		}
		ev.Until = millis(m.ResumeAt)
	}
	return workflowd.Entry{ev}, nil
}

func orNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}

// errorPayload is the stored form of an error: the bytes of the 5.0 line, or CBOR of
// {message, stack, code} of the 4.7 line.
func errorPayload(m *meta, body []byte) ([]byte, error) {
	if len(body) > 0 {
		return body, nil
	}
	var text string
	if len(m.Error) > 0 && decoding.Unmarshal(m.Error, &text) != nil {
		return m.Error, nil // {message, ...}
	}
	e := map[string]string{"message": text}
	if text == "" {
		e["message"] = "unknown error"
	}
	if m.Stack != "" {
		e["stack"] = m.Stack
	}
	return encoding.Marshal(e)
}

// changed is the attributes that changes set, an empty value removes one. Errors: invalid.
func changed(changes []attributeChange, reserved bool) (map[string]string, error) {
	set := make(map[string]string, len(changes))
	for _, c := range changes {
		if strings.HasPrefix(c.Key, "$") && !reserved {
			return nil, cay.Errorf(cay.Invalid, "attribute %.40q: names that begin with $ are reserved", c.Key)
		}
		set[c.Key] = ""
		if c.Value != nil {
			set[c.Key] = *c.Value
		}
	}
	return set, nil
}
