package protocol

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Timeline is the wire form of a history.Timeline.
type Timeline struct {
	Run   *Run           `json:"run"`
	Spans []Span         `json:"spans"`
	Marks []TimelineMark `json:"marks"`
}

// Span is a step, hook, wait, child or version of a run.
type Span struct {
	Kind     history.SpanKind   `json:"kind"`
	ID       string             `json:"id"`
	Name     string             `json:"name,omitempty"`
	Status   history.SpanStatus `json:"status"`
	Slot     int64              `json:"slot"`
	BeginsAt time.Time          `json:"begins_at"`
	EndsAt   time.Time          `json:"ends_at,omitzero"`
	Input    Payload            `json:"input,omitempty"`
	Output   Payload            `json:"output,omitempty"`
	Error    Payload            `json:"error,omitempty"`
	Code     string             `json:"code,omitempty"`
	Attempts []Attempt          `json:"attempts,omitempty"`
	Until    time.Time          `json:"until,omitzero"`
	Token    string             `json:"token,omitempty"`
	Webhook  bool               `json:"webhook,omitempty"`
	Metadata Payload            `json:"metadata,omitempty"`
	Received []Receipt          `json:"received,omitempty"`
	Run      string             `json:"run,omitempty"`
	Version  int                `json:"version,omitempty"`
}

// Attempt is one attempt of a step.
type Attempt struct {
	Number    int                `json:"number"`
	Status    history.SpanStatus `json:"status"`
	StartedAt time.Time          `json:"started_at"`
	EndedAt   time.Time          `json:"ended_at,omitzero"`
	Error     Payload            `json:"error,omitempty"`
	Code      string             `json:"code,omitempty"`
}

// Receipt is a payload that a hook received.
type Receipt struct {
	Slot    int64     `json:"slot"`
	At      time.Time `json:"at"`
	Key     string    `json:"key,omitempty"`
	Payload Payload   `json:"payload,omitempty"`
}

// TimelineMark is a moment of a run.
type TimelineMark struct {
	Type       history.Type      `json:"type"`
	Slot       int64             `json:"slot"`
	At         time.Time         `json:"at"`
	Reason     string            `json:"reason,omitempty"`
	Step       string            `json:"step,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// TimelineOf returns the wire form of t.
func TimelineOf(t *history.Timeline) *Timeline {
	out := &Timeline{Run: RunOf(&t.Run), Spans: make([]Span, len(t.Spans)), Marks: make([]TimelineMark, len(t.Marks))}
	for i := range t.Spans {
		s := &t.Spans[i]
		span := Span{
			Kind: s.Kind, ID: s.ID, Name: s.Name, Status: s.Status, Slot: s.Slot, BeginsAt: Time(s.BeginsAt), EndsAt: Time(s.EndsAt),
			Input: s.Input, Output: s.Output, Error: s.Error, Code: s.Code, Until: Time(s.Until),
			Token: s.Token, Webhook: s.Webhook, Metadata: s.Metadata, Run: s.Run, Version: s.Version,
		}
		for _, a := range s.Attempts {
			span.Attempts = append(span.Attempts, Attempt{a.Number, a.Status, Time(a.StartedAt), Time(a.EndedAt), a.Error, a.Code})
		}
		for _, r := range s.Received {
			span.Received = append(span.Received, Receipt{r.Slot, Time(r.At), r.Key, r.Payload})
		}
		out.Spans[i] = span
	}
	for i, m := range t.Marks {
		out.Marks[i] = TimelineMark{m.Type, m.Slot, Time(m.At), m.Reason, m.Step, m.Attributes}
	}
	return out
}
