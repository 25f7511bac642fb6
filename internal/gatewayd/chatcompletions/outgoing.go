package chatcompletions

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

// WriteCall encodes a call according to the quirks of the target.
func (*Format) WriteCall(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := &callWriter{c: c, t: t, reasons: t.Is(OpenAI) && reasons(t.Model), customs: customs(c)}
	b := &w.b
	b.add("{")
	b.text("model", t.Model)
	w.messages()
	w.settings()
	w.thinking()
	w.format()
	w.tools()
	if c.Stream {
		b.bool("stream", true)
		if !t.Is(NoStreamOptions) {
			b.add(`,"stream_options":{"include_usage":true}`)
		}
	}
	w.options()
	b.close('}')
	if w.err != nil {
		return nil, nil, w.err
	}
	return &hub.Outgoing{Path: "/chat/completions", Body: w.b}, w.warnings, nil
}

// callWriter is a request under construction.
type callWriter struct {
	c        *hub.Call
	t        *hub.Target
	reasons  bool // an OpenAI reasoning model
	customs  map[string]bool
	b        buffer
	warnings []hub.Warning
	err      error

	// attached are files of tool results, which go into a user message after the results,
	// because tool messages contain only text and must be consecutive.
	attached []attached
}

type attached struct {
	callID string
	part   *hub.Part
}

func (w *callWriter) warn(kind hub.WarningKind, feature, message string) {
	for _, old := range w.warnings {
		if old.Feature == feature && old.Message == message {
			return
		}
	}
	w.warnings = append(w.warnings, hub.Warning{Kind: kind, Feature: feature, Message: message})
}

func (w *callWriter) unsupported(feature string) {
	w.warn(hub.WarnUnsupported, feature, w.t.Model+" of "+w.t.Provider+" does not take it")
}

func (w *callWriter) fail(param, format string, args ...any) {
	if w.err == nil {
		e := wrong(param, format, args...)
		e.Provider = w.t.Provider
		w.err = e
	}
}

func (w *callWriter) settings() {
	b, c := &w.b, w.c
	if n := c.MaxOutputTokens; n != nil {
		name := "max_tokens"
		if w.reasons {
			name = "max_completion_tokens"
		}
		b.int(name, *n)
	}
	steady := w.reasons && c.Effort != hub.EffortNone // with effort none, newer models accept sampling parameters
	grok := w.t.Is(XAI) && grokReasons(w.t.Model)
	for _, s := range []struct {
		name, feature string
		value         *float64
		refused       bool
	}{
		{"temperature", "temperature", c.Temperature, steady},
		{"top_p", "topP", c.TopP, steady},
		{"top_k", "topK", c.TopK, !w.t.Is(TopK)},
		{"presence_penalty", "presencePenalty", c.PresencePenalty, w.reasons || grok || w.t.Is(NoPenalties)},
		{"frequency_penalty", "frequencyPenalty", c.FrequencyPenalty, w.reasons || grok || w.t.Is(NoPenalties)},
	} {
		switch {
		case s.value == nil:
		case s.refused:
			w.unsupported(s.feature)
		case math.IsNaN(*s.value) || math.IsInf(*s.value, 0):
			w.fail(s.name, "%s is no number", s.name)
		default:
			b.float(s.name, *s.value)
		}
	}
	w.stops(grok)
	if c.Seed != nil {
		name := "seed"
		if w.t.Is(RandomSeed) {
			name = "random_seed"
		}
		b.int(name, *c.Seed)
	}
	for _, s := range []struct{ name, feature, value, quirk string }{
		{"user", "user", c.User, NoUser},
		{"service_tier", "serviceTier", c.ServiceTier, NoServiceTier},
	} {
		switch {
		case s.value == "":
		case w.t.Is(s.quirk):
			w.unsupported(s.feature)
		default:
			b.text(s.name, s.value)
		}
	}
}

// stops writes the stop sequences; OpenAI accepts at most four.
func (w *callWriter) stops(refused bool) {
	if refused {
		if len(w.c.StopSequences) > 0 {
			w.unsupported("stopSequences")
		}
		return
	}
	most := 0
	if w.t.Is(OpenAI) {
		most = 4
	}
	stops, warnings := w.c.Stops(most, true)
	w.warnings = append(w.warnings, warnings...)
	if len(stops) == 0 {
		return
	}
	w.b.open("stop", '[')
	for _, s := range stops {
		w.b.next()
		w.b = appendText(w.b, s)
	}
	w.b.close(']')
}

// thinking writes the reasoning effort.
func (w *callWriter) thinking() {
	c, t, b := w.c, w.t, &w.b
	effort, budget := c.Effort, c.ThinkingBudget
	if t.Is(ReasoningObject) {
		if effort == "" && budget == nil && !c.HideReasoning {
			return
		}
		b.open("reasoning", '{')
		if effort != "" {
			b.text("effort", string(effort))
		} else if budget != nil {
			b.int("max_tokens", *budget)
		}
		if c.HideReasoning {
			b.bool("exclude", true)
		}
		b.close('}')
		return
	}
	if effort == "" && budget != nil && !t.Is(ThinkingSwitch) {
		effort = hub.BudgetEffort(*budget, w.limit())
		w.warn(hub.WarnCompatibility, "reasoning", fmt.Sprintf("the budget of %d tokens is the effort %s for %s", *budget, effort, t.Provider))
	}
	switch {
	case effort == "" && budget == nil:
	case t.Is(ThinkingSwitch):
		kind := "enabled"
		if effort == hub.EffortNone || budget != nil && *budget <= 0 {
			kind = "disabled"
		}
		b.open("thinking", '{')
		b.text("type", kind)
		b.close('}')
	case t.Is(NoReasoningEffort), t.Is(OpenAI) && !w.reasons, t.Is(XAI) && !strings.Contains(t.Model, "mini"):
		if effort != hub.EffortNone {
			w.unsupported("reasoning")
		}
	default:
		known := w.effort(effort)
		if known == "" {
			w.unsupported("reasoning")
			return
		}
		if known != effort {
			w.warn(hub.WarnCompatibility, "reasoning", fmt.Sprintf("the effort %s is %s for %s", effort, known, t.Provider))
		}
		b.text("reasoning_effort", string(known))
	}
}

// limit returns the token limit that a thinking budget is a share of.
func (w *callWriter) limit() int64 {
	const usual = 32000
	switch {
	case w.t.MaxOutput > 0:
		return w.t.MaxOutput
	case w.c.MaxOutputTokens != nil && *w.c.MaxOutputTokens > 0:
		return *w.c.MaxOutputTokens
	}
	return usual
}

// effort returns the nearest effort that the server supports, empty for none.
func (w *callWriter) effort(e hub.Effort) hub.Effort {
	switch {
	case w.t.Is(ThreeEfforts):
		switch e {
		case hub.EffortNone:
			return ""
		case hub.EffortMinimal:
			return hub.EffortLow
		case hub.EffortXHigh, hub.EffortMax:
			return hub.EffortHigh
		}
	case w.t.Is(OpenAI) && e == hub.EffortMax:
		return hub.EffortXHigh
	}
	return e
}

func (w *callWriter) format() {
	f, b := w.c.Format, &w.b
	if f == nil {
		return
	}
	if f.Schema == nil || w.t.Is(NoJSONSchema) {
		b.add(`,"response_format":{"type":"json_object"}`)
		return
	}
	b.add(`,"response_format":{"type":"json_schema","json_schema":{`)
	b.text("name", schemaName(f.Name))
	if f.Description != "" {
		b.text("description", f.Description)
	}
	if w.t.Is(OpenAI) && valid(f.Schema) {
		fitted, strict, warnings := schema.ForOpenAI(f.Schema, "responseFormat", f.Strict)
		w.warnings = append(w.warnings, warnings...)
		b.raw("schema", fitted)
		if strict || f.Strict != nil {
			b.bool("strict", strict)
		}
		b.add("}}")
		return
	}
	b.raw("schema", f.Schema)
	switch {
	case w.t.Is(NoStrict):
	case f.Strict != nil:
		b.bool("strict", *f.Strict)
	case strict(f.Schema):
		b.bool("strict", true)
	}
	b.add("}}")
}

// schemaName returns name in the form that OpenAI accepts: up to 64 letters, digits, _
// and -.
func schemaName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isAlphanumeric(r) || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
	if name == "" {
		return "response"
	}
	return name[:min(len(name), 64)]
}

// strict reports whether OpenAI accepts a schema as strict: each object must have
// additionalProperties false and require all of its properties.
func strict(schema []byte) bool {
	return valid(schema) && strictAt(gjson.ParseBytes(schema))
}

func strictAt(v gjson.Result) bool {
	ok := true
	if p := v.Get("properties"); p.IsObject() || slices.ContainsFunc(orList(v.Get("type")), func(t gjson.Result) bool { return t.Str == "object" }) {
		required := map[string]bool{}
		for _, r := range v.Get("required").Array() {
			required[r.Str] = true
		}
		if v.Get("additionalProperties").Type != gjson.False {
			return false
		}
		p.ForEach(func(name, v gjson.Result) bool {
			ok = required[name.Str] && strictAt(v)
			return ok
		})
	}
	for _, name := range []string{"items", "not", "if", "then", "else"} {
		if s := v.Get(name); ok && s.IsObject() {
			ok = name == "items" && strictAt(s)
		}
	}
	for _, name := range []string{"$defs", "definitions", "anyOf", "oneOf", "allOf"} {
		v.Get(name).ForEach(func(_, v gjson.Result) bool {
			ok = ok && name != "oneOf" && name != "allOf" && strictAt(v)
			return ok
		})
	}
	return ok
}

// orList returns the elements of a list, or the value itself as the only element.
func orList(v gjson.Result) []gjson.Result { return v.Array() }
