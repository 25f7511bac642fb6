package protocol

import (
	"time"

	"github.com/cayhq/cay/internal/history"
)

// Hook is the wire form of a live hook.
type Hook struct {
	Run       string    `json:"run"`
	ID        string    `json:"id"`
	Project   string    `json:"project,omitempty"`
	Token     string    `json:"token"`
	Webhook   bool      `json:"webhook,omitempty"`
	Metadata  Payload   `json:"metadata,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// HookOf returns the wire form of h.
func HookOf(h *history.Hook) *Hook {
	return &Hook{h.Run, h.ID, h.Project, h.Token, h.Webhook, h.Metadata, Time(h.CreatedAt)}
}

// Hook returns the hook with the wire form h.
func (h *Hook) Hook() *history.Hook {
	return &history.Hook{
		Run: h.Run, ID: h.ID, Project: h.Project, Token: h.Token, Webhook: h.Webhook, Metadata: h.Metadata, CreatedAt: Millis(h.CreatedAt),
	}
}

// CarriedHook is a hook that a run inherits from the run it continues. Payloads are
// envelopes, in base64.
type CarriedHook struct {
	Token    string         `json:"token"`
	Metadata []byte         `json:"metadata,omitempty"`
	Values   []CarriedValue `json:"values,omitempty"`
}

// CarriedValue is a value that was sent to a hook and not received yet.
type CarriedValue struct {
	Payload []byte `json:"payload,omitempty"`
	Key     string `json:"key,omitempty"`
}

// Resume is the body of a request that gives a payload to a hook.
type Resume struct {
	Token   string `json:"token"`
	Payload Exact  `json:"payload,omitempty"`
	Key     string `json:"key,omitempty"`
	// Webhook restricts the request to webhooks.
	Webhook bool `json:"webhook,omitempty"`
}

// Schedule is the wire form of a schedule.
type Schedule struct {
	ID        string    `json:"id"`
	Project   string    `json:"project,omitempty"`
	Workflow  string    `json:"workflow"`
	Cron      string    `json:"cron"`
	Zone      string    `json:"zone,omitempty"`
	Input     Payload   `json:"input,omitempty"`
	Overlap   bool      `json:"overlap,omitempty"`
	Paused    bool      `json:"paused,omitempty"`
	NextAt    time.Time `json:"next_at,omitzero"`
	LastAt    time.Time `json:"last_at,omitzero"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	LastRun   string    `json:"last_run,omitempty"`
}

// ScheduleOf returns the wire form of s.
func ScheduleOf(s *history.Schedule) *Schedule {
	return &Schedule{
		s.ID, s.Project, s.Workflow, s.Cron, s.Zone, s.Input, s.Overlap, s.Paused,
		Time(s.NextAt), Time(s.LastAt), Time(s.CreatedAt), s.LastRun,
	}
}

// Schedule returns the schedule with the wire form s.
func (s *Schedule) Schedule() *history.Schedule {
	return &history.Schedule{
		ID: s.ID, Project: s.Project, Workflow: s.Workflow, Cron: s.Cron, Zone: s.Zone, Input: s.Input, Overlap: s.Overlap, Paused: s.Paused,
		NextAt: Millis(s.NextAt), LastAt: Millis(s.LastAt), CreatedAt: Millis(s.CreatedAt), LastRun: s.LastRun,
	}
}

// PutSchedule is the body of a request that sets a schedule.
type PutSchedule struct {
	Workflow string `json:"workflow"`
	Cron     string `json:"cron"`
	Zone     string `json:"zone,omitempty"`
	Input    Exact  `json:"input,omitempty"`
	Overlap  bool   `json:"overlap,omitempty"`
	Paused   bool   `json:"paused,omitempty"`
}

// UpdateSchedule is the body of a request that changes a schedule. Missing fields stay
// unchanged.
type UpdateSchedule struct {
	Cron    *string `json:"cron,omitempty"`
	Zone    *string `json:"zone,omitempty"`
	Overlap *bool   `json:"overlap,omitempty"`
	Paused  *bool   `json:"paused,omitempty"`
}

// Limit is the wire form of a limit on the starts of a workflow, and the body of a request
// that sets one.
type Limit struct {
	Project     string `json:"project,omitempty"`
	Workflow    string `json:"workflow"`
	Concurrency int    `json:"concurrency,omitempty"`
	Rate        int    `json:"rate,omitempty"`
	PeriodMS    int64  `json:"period_ms,omitempty"`
	Priority    int    `json:"priority,omitempty"`
}

// LimitOf returns the wire form of l.
func LimitOf(l *history.Limit) *Limit {
	return &Limit{l.Project, l.Workflow, l.Concurrency, l.Rate, DurationMillis(l.Period), l.Priority}
}

// Limit returns the limit with the wire form l.
func (l *Limit) Limit() *history.Limit {
	return &history.Limit{
		Project: l.Project, Workflow: l.Workflow, Concurrency: l.Concurrency, Rate: l.Rate, Period: Duration(l.PeriodMS), Priority: l.Priority,
	}
}

// Chunk is a chunk of a stream. Its data is an envelope, or bytes in streams of
// bytes.
type Chunk struct {
	Index int64   `json:"index"`
	Data  Payload `json:"data"`
}

// WriteStream is the body of a request that appends to a stream.
type WriteStream struct {
	Chunks []Exact `json:"chunks,omitempty"`
	Close  bool    `json:"close,omitempty"`
}
