package messages

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// fallbackMaxTokens is the value of max_tokens, which the format requires, if neither the
// caller nor the catalogue has a limit.
const fallbackMaxTokens = 4096

// WriteCall encodes c as the body of POST /messages. max_tokens is the caller's limit,
// else Target.MaxOutput, else 4096 with a warning; it includes the thinking budget.
func (*Format) WriteCall(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := newCallWriter(c, t)
	if err := w.write(); err != nil {
		return nil, nil, err
	}
	return w.outgoing("/messages")
}

// callWriter encodes one call.
type callWriter struct {
	call     *hub.Call
	target   *hub.Target
	model    claude.Model
	out      request
	strict   claude.Strict
	betas    []string
	warnings []hub.Warning
	marks    []*json.RawMessage // the places where a cache ends, in the order of the prefix
}

func newCallWriter(c *hub.Call, t *hub.Target) *callWriter {
	return &callWriter{call: c, target: t, model: modelOf(t), strict: claude.NewStrict()}
}

func (w *callWriter) write() error {
	c := w.call
	w.out.Model, w.out.Stream = w.target.Model, c.Stream
	w.maxTokens()
	if mark := cacheControl(c.Options); mark != nil {
		w.out.CacheControl = mark
	}
	if err := w.tools(); err != nil {
		return err
	}
	if err := w.prompt(); err != nil {
		return err
	}
	if err := w.format(); err != nil {
		return err
	}
	w.thinking()
	w.sampling()
	w.toolChoice()
	w.rest()
	w.limitMarks()
	return nil
}

func (w *callWriter) outgoing(path string) (*hub.Outgoing, []hub.Warning, error) {
	body, err := hub.Encode(&w.out)
	if err != nil {
		return nil, nil, bad("", "the call has a member that is not JSON: %v", err)
	}
	head := http.Header{"Anthropic-Version": {Version20230601}}
	if w.target.Is(QuirkVersion2026) {
		head.Set("Anthropic-Version", Version20261021)
	}
	if len(w.betas) > 0 {
		head.Set("Anthropic-Beta", strings.Join(w.betas, ","))
	}
	return Address(w.target, &hub.Outgoing{Path: path, Head: head, Body: body}, nil, w.call.Stream), w.warnings, nil
}

func (w *callWriter) unsupported(feature, format string, args ...any) {
	w.warnings = append(w.warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: feature, Message: fmt.Sprintf(format, args...)})
}

func (w *callWriter) otherwise(feature, format string, args ...any) {
	w.warnings = append(w.warnings, hub.Warning{Kind: hub.WarnCompatibility, Feature: feature, Message: fmt.Sprintf(format, args...)})
}

func (w *callWriter) beta(names ...string) {
	for _, name := range names {
		if !slices.Contains(w.betas, name) {
			w.betas = append(w.betas, name)
		}
	}
}

func (w *callWriter) maxTokens() {
	c, limit := w.call, w.target.MaxOutput
	switch {
	case c.MaxOutputTokens == nil && limit > 0:
		w.out.MaxTokens = limit
	case c.MaxOutputTokens == nil:
		w.out.MaxTokens = fallbackMaxTokens
		w.otherwise("maxOutputTokens", "the provider wants a limit and the model's is not known: it is %d tokens", fallbackMaxTokens)
	case limit > 0 && *c.MaxOutputTokens > limit:
		w.out.MaxTokens = limit
		w.otherwise("maxOutputTokens", "%d is more than the model answers with, which is %d tokens", *c.MaxOutputTokens, limit)
	default:
		w.out.MaxTokens = *c.MaxOutputTokens
	}
}

// sampling sets the sampling parameters that the model accepts in combination with
// thinking.
func (w *callWriter) sampling() {
	c := w.call
	stops, warnings := c.Stops(0, false)
	w.out.StopSequences, w.warnings = stops, append(w.warnings, warnings...)
	if c.PresencePenalty != nil {
		w.unsupported("presencePenalty", "Anthropic's format has none")
	}
	if c.FrequencyPenalty != nil {
		w.unsupported("frequencyPenalty", "Anthropic's format has none")
	}
	if c.Seed != nil {
		w.unsupported("seed", "Anthropic's format has none")
	}
	drop := ""
	switch {
	case noSampling(w.model, w.target):
		drop = "the model does not take it"
	case w.thinks():
		drop = "the model does not take it while it thinks"
	}
	if drop != "" {
		for _, p := range []struct {
			name string
			set  bool
		}{{"temperature", c.Temperature != nil}, {"topP", c.TopP != nil}, {"topK", c.TopK != nil}} {
			if p.set {
				w.unsupported(p.name, "%s", drop)
			}
		}
		return
	}
	if n := c.Temperature; n != nil {
		temperature := min(max(*n, 0), 1)
		if temperature != *n {
			w.otherwise("temperature", "%v is not between 0 and 1: it is %v", *n, temperature)
		}
		w.out.Temperature = &temperature
	}
	switch {
	case c.TopP == nil:
	case w.model.OneSampling && c.Temperature != nil:
		w.unsupported("topP", "the model takes one of temperature and topP")
	default:
		w.out.TopP = c.TopP
	}
	if c.TopK != nil {
		k := int64(*c.TopK)
		if float64(k) != *c.TopK {
			w.otherwise("topK", "%v is no whole number: it is %d", *c.TopK, k)
		}
		w.out.TopK = &k
	}
}

// format requests JSON: with output_config if the model supports it, else with a tool
// that the model must call.
func (w *callWriter) format() error {
	f := w.call.Format
	if f == nil {
		return nil
	}
	t, err := f.AsTool() // output_config.format wants an object as well
	if err != nil {
		return err
	}
	if w.model.Formats && len(f.Schema) > 0 && w.structuredOutputMode() != "jsonTool" {
		format, warning := w.strict.Format(f)
		w.warnings = append(w.warnings, warning...)
		if format != nil {
			w.config().Format = &outputFormat{Type: "json_schema", Schema: format}
			return nil
		}
	}
	t.InputSchema = w.inputSchema(t.InputSchema, "responseFormat")
	if len(f.Schema) == 0 {
		w.otherwise("responseFormat", "the model cannot be asked for JSON without a schema: it is made to call a tool")
	}
	w.out.Tools = append(w.out.Tools, &tool{Name: t.Name, Description: t.Description, InputSchema: t.InputSchema})
	return nil
}

// structuredOutputMode returns the AI SDK's option: outputFormat, jsonTool or auto.
func (w *callWriter) structuredOutputMode() string {
	return w.call.Options.String(self, "structuredOutputMode")
}

// answersByTool reports whether an answer is the input of hub.AnswerTool.
func (w *callWriter) answersByTool() bool {
	return slices.ContainsFunc(w.out.Tools, func(t *tool) bool { return t.Name == hub.AnswerTool })
}

func (w *callWriter) config() *outputConfig {
	if w.out.OutputConfig == nil {
		w.out.OutputConfig = new(outputConfig)
	}
	return w.out.OutputConfig
}

// rest sets the remaining members, and the members from Anthropic's options.
func (w *callWriter) rest() {
	c := w.call
	if c.User != "" {
		w.out.Metadata = &metadata{c.User}
	}
	switch c.ServiceTier {
	case "":
	case "auto", "standard_only":
		w.out.ServiceTier = c.ServiceTier
	case "priority":
		w.out.ServiceTier = "auto" // use priority capacity if available
	default:
		w.unsupported("serviceTier", "Anthropic's format has no tier %q", c.ServiceTier)
	}
	w.warnings = append(w.warnings, c.Unheard(func(m hub.Member) bool { return m.Provider == self })...)
	for _, name := range slices.Sorted(maps.Keys(c.Options[self])) {
		raw := c.Options[self][name]
		switch name {
		case "cacheControl", "cache_control", "thinking", "effort", "disableParallelToolUse", "structuredOutputMode", "sendReasoning":
		case "toolStreaming": // how the AI SDK asks for finer streams, which are the default now
		case "anthropicBeta":
			var betas []string
			if json.Unmarshal(raw, &betas) == nil {
				w.beta(betas...)
			}
		case "container":
			w.out.Container = snakes(raw)
			if strings.Contains(string(raw), `"skills"`) {
				w.beta("code-execution-2025-08-25", "skills-2025-10-02", "files-api-2025-04-14")
			}
		case "contextManagement":
			w.out.ContextManagement = snakes(raw)
			w.beta("context-management-2025-06-27")
			if strings.Contains(string(raw), `"compact_20260112"`) {
				w.beta("compact-2026-01-12")
			}
		case "mcpServers":
			w.out.MCPServers = snakes(raw)
			w.beta("mcp-client-2025-04-04")
		case "speed":
			w.out.Speed = raw
			w.beta("fast-mode-2026-02-01")
		case "inferenceGeo":
			w.out.InferenceGeo = raw
		case "metadata":
			var m struct {
				UserID string `json:"userId"`
			}
			if json.Unmarshal(raw, &m) == nil && m.UserID != "" && c.User == "" {
				w.out.Metadata = &metadata{m.UserID}
			}
		default:
			w.unsupported("providerOptions.anthropic."+name, "the gateway does not know it")
		}
	}
}

// maxMarks is the maximum number of cache markers in a prompt.
const maxMarks = 4

// cacheControl returns the cache marker in options, nil if there is none.
func cacheControl(o hub.Options) json.RawMessage {
	for _, name := range []string{"cacheControl", "cache_control"} {
		if raw := o[self][name]; len(raw) > 0 && raw[0] == '{' {
			return raw
		}
	}
	return nil
}

// mark sets the marker of o at a place, and records the place.
func (w *callWriter) mark(place *json.RawMessage, o hub.Options) {
	raw := cacheControl(o)
	if raw == nil {
		return
	}
	if *place == nil {
		w.marks = append(w.marks, place)
	}
	*place = raw
}

// limitMarks keeps the last markers, which mark the longest prefixes.
func (w *callWriter) limitMarks() {
	limit := maxMarks
	if w.out.CacheControl != nil {
		limit--
	}
	if n := len(w.marks); n > limit {
		for _, place := range w.marks[:n-limit] {
			*place = nil
		}
		w.otherwise("cacheControl", "there are %d markers and the provider takes %d: the last ones count", n+maxMarks-limit, maxMarks)
	}
}
