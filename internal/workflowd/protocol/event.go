package protocol

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Event is the wire form of an entry of a run's log.
type Event struct {
	Slot       int64             `json:"slot"`
	Type       history.Type      `json:"type"`
	At         time.Time         `json:"at"`
	ID         string            `json:"id,omitempty"`
	Name       string            `json:"name,omitempty"`
	Payload    Payload           `json:"payload,omitempty"`
	Input      Payload           `json:"input,omitempty"`
	Attempt    int               `json:"attempt,omitempty"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	Until      time.Time         `json:"until,omitzero"`
	Token      string            `json:"token,omitempty"`
	Key        string            `json:"key,omitempty"`
	Code       string            `json:"code,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
	Webhook    bool              `json:"webhook,omitempty"`
}

// EventOf returns the wire form of e. It leaves out the idempotency keys that a carried
// hook knows, because they are internal to the engine.
func EventOf(e *history.Event) *Event {
	attributes := e.Attributes
	if e.Type == history.HookCreated {
		attributes = nil
	}
	return &Event{
		Slot: e.Slot, Type: e.Type, At: Time(e.At), ID: e.ID, Name: e.Name, Payload: e.Payload, Input: e.Input,
		Attempt: e.Attempt, StartedAt: Time(e.StartedAt), Until: Time(e.Until), Token: e.Token, Key: e.Key,
		Code: e.Code, Reason: e.Reason, Attributes: attributes, Webhook: e.Webhook,
	}
}

// Event returns the event with the wire form e.
func (e *Event) Event() history.Event {
	return history.Event{
		Slot: e.Slot, Type: e.Type, At: Millis(e.At), ID: e.ID, Name: e.Name, Payload: e.Payload, Input: e.Input,
		Attempt: e.Attempt, StartedAt: Millis(e.StartedAt), Until: Millis(e.Until), Token: e.Token, Key: e.Key,
		Code: e.Code, Reason: e.Reason, Attributes: e.Attributes, Webhook: e.Webhook,
	}
}
