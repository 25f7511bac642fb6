package converse

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/claude"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// WriteCall encodes c as the body of POST /model/{id}/converse, or
// /converse-stream.
func (*Format) WriteCall(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := &callWriter{call: c, target: t, model: modelOf(t), out: request{Inference: new(inference), More: make(map[string]any)}}
	if err := w.write(); err != nil {
		return nil, nil, err
	}
	body, err := hub.Encode(&w.out)
	if err != nil {
		return nil, nil, bad("", "the call has a member that is not JSON: %v", err)
	}
	// Model ids contain colons, and ids of profiles contain slashes. Amazon signs the
	// path in the escaping of its SDKs.
	path := "/model/" + strings.ReplaceAll(url.PathEscape(t.Model), ":", "%3A") + "/converse"
	head := http.Header{}
	if c.Stream {
		path += "-stream"
		head.Set("Accept", "application/vnd.amazon.eventstream")
	}
	return &hub.Outgoing{Path: path, Head: head, Body: body}, w.warnings, nil
}

// callWriter encodes one call.
type callWriter struct {
	call      *hub.Call
	target    *hub.Target
	model     model
	out       request
	warnings  []hub.Warning
	thinking  *claude.Thinking
	byTool    bool // the answer is the input of hub.AnswerTool
	documents int
	marks     int // cache points so far
}

func bad(param, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

func (w *callWriter) warn(kind hub.WarningKind, feature, format string, args ...any) {
	w.warnings = append(w.warnings, hub.Warning{Kind: kind, Feature: feature, Message: fmt.Sprintf(format, args...)})
}

func (w *callWriter) unsupported(feature, format string, args ...any) {
	w.warn(hub.WarnUnsupported, feature, format, args...)
}

func (w *callWriter) otherwise(feature, format string, args ...any) {
	w.warn(hub.WarnCompatibility, feature, format, args...)
}

func (w *callWriter) write() error {
	tools, err := w.tools()
	if err != nil {
		return err
	}
	if err := w.prompt(); err != nil {
		return err
	}
	answer, err := w.format()
	if err != nil {
		return err
	}
	tools = append(tools, answer...)
	w.maxTokens()
	w.think()
	w.sampling()
	w.toolConfig(tools)
	w.rest()
	return nil
}

func (w *callWriter) maxTokens() {
	limit, asked := w.target.MaxOutput, w.call.MaxOutputTokens
	w.out.Inference.MaxTokens = asked
	switch {
	case limit == 0:
	case asked == nil && w.model.Known: // Bedrock's default is below the model's maximum
		w.out.Inference.MaxTokens = &limit
	case asked != nil && *asked > limit:
		w.out.Inference.MaxTokens = &limit
		w.otherwise("maxOutputTokens", "%d is more than the model answers with, which is %d tokens", *asked, limit)
	}
}

func (w *callWriter) sampling() {
	c, in := w.call, w.out.Inference
	stops, warnings := c.Stops(2500, !w.model.Known) // Claude takes no blank ones
	in.StopSequences, w.warnings = stops, append(w.warnings, warnings...)
	for _, p := range []struct {
		name string
		set  bool
	}{{"presencePenalty", c.PresencePenalty != nil}, {"frequencyPenalty", c.FrequencyPenalty != nil}, {"seed", c.Seed != nil}} {
		if p.set {
			w.unsupported(p.name, "Converse has none")
		}
	}
	drop := ""
	switch {
	case w.model.Free:
		drop = "the model does not take it"
	case w.thinking != nil && w.thinking.Type != "disabled":
		drop = "the model does not take it while it thinks"
	}
	set := func(name string, isSet bool) bool {
		if isSet && drop != "" {
			w.unsupported(name, "%s", drop)
			return false
		}
		return isSet
	}
	if set("temperature", c.Temperature != nil) {
		temperature := min(max(*c.Temperature, 0), 1)
		if temperature != *c.Temperature {
			w.otherwise("temperature", "%v is not between 0 and 1: it is %v", *c.Temperature, temperature)
		}
		in.Temperature = &temperature
	}
	if set("topP", c.TopP != nil) {
		if w.model.OneSampling && c.Temperature != nil {
			w.unsupported("topP", "the model takes one of temperature and topP")
		} else {
			in.TopP = c.TopP
		}
	}
	if set("topK", c.TopK != nil) {
		switch k := int64(*c.TopK); {
		case w.model.Known:
			w.out.More["top_k"] = k
		case w.model.nova:
			w.out.More["inferenceConfig"] = map[string]int64{"topK": k}
		default:
			w.unsupported("topK", "Converse has none for this model")
		}
	}
}

// think sets the thinking parameters, which differ between model families.
func (w *callWriter) think() {
	c := w.call
	wish := claude.Wish{Effort: c.Effort, Budget: hub.Count(c.ThinkingBudget), MaxTokens: hub.Count(w.out.Inference.MaxTokens), Hide: c.HideReasoning}
	w.ownWish(&wish)
	if wish.None() {
		return
	}
	if w.byTool && !wish.Off() && w.model.Known {
		w.unsupported("reasoning", "the model cannot think while it is made to answer by a tool, which the response format needs")
		return
	}
	effort := wish.Effort
	if effort == hub.EffortDefault && wish.Budget > 0 {
		effort = hub.BudgetEffort(wish.Budget, max(wish.MaxTokens, wish.Budget))
	}
	switch {
	case w.model.Known:
		if wish.MaxTokens == 0 {
			wish.MaxTokens = 4096
			w.out.Inference.MaxTokens = ptr(wish.MaxTokens)
			w.otherwise("maxOutputTokens", "a budget for thinking needs a limit and the model's is not known: it is %d tokens", wish.MaxTokens)
		}
		thinking, effort, warnings := w.model.Think(wish)
		w.warnings = append(w.warnings, warnings...)
		if w.thinking = thinking; thinking != nil {
			w.out.More["thinking"] = thinking
		}
		if effort != "" {
			w.outputConfig()["effort"] = effort
		}
	case w.model.gptOSS && !wish.Off():
		w.out.More["reasoning_effort"] = string(ofThree(effort))
	case w.model.nova && !wish.Off():
		w.out.More["reasoningConfig"] = map[string]string{"type": "enabled", "maxReasoningEffort": string(ofThree(effort))}
	case w.model.nova:
		w.out.More["reasoningConfig"] = map[string]string{"type": "disabled"}
	case !wish.Off():
		w.unsupported("reasoning", "it is not known how the model %s is asked to think", w.target.Model)
	}
}

// ownWish adds the option bedrock.reasoningConfig.
func (w *callWriter) ownWish(wish *claude.Wish) {
	var own struct {
		Type   string     `json:"type"`
		Budget int64      `json:"budgetTokens"`
		Effort hub.Effort `json:"maxReasoningEffort"`
	}
	if !w.call.Options.Get(self, "reasoningConfig", &own) {
		// Anthropic's options apply to Anthropic's models.
		if !w.model.Known || !w.call.Options.Get("anthropic", "thinking", &own) {
			own.Type, own.Budget, own.Effort = "", 0, ""
		}
		own.Effort = hub.Effort(w.call.Options.String("anthropic", "effort"))
	}
	wish.Mode = own.Type
	if wish.Effort == hub.EffortDefault {
		wish.Effort = own.Effort
	}
	if wish.Budget == 0 && own.Type == "enabled" {
		wish.Budget = own.Budget
	}
}

// ofThree returns the nearest of low, medium and high.
func ofThree(e hub.Effort) hub.Effort {
	switch e {
	case hub.EffortMinimal, hub.EffortLow:
		return hub.EffortLow
	case hub.EffortHigh, hub.EffortXHigh, hub.EffortMax:
		return hub.EffortHigh
	}
	return hub.EffortMedium
}

func (w *callWriter) outputConfig() map[string]any {
	config, ok := w.out.More["output_config"].(map[string]any)
	if !ok {
		config = make(map[string]any)
		w.out.More["output_config"] = config
	}
	return config
}

// format requests JSON: in Anthropic's way if the model supports that, else with a tool
// that the model must call, which format returns.
func (w *callWriter) format() ([]*tool, error) {
	f := w.call.Format
	if f == nil {
		return nil, nil
	}
	t, err := f.AsTool()
	if err != nil {
		return nil, err
	}
	if w.model.Formats && len(f.Schema) > 0 {
		strict := claude.NewStrict()
		format, warnings := strict.Format(f)
		w.warnings = append(w.warnings, warnings...)
		if format != nil {
			w.outputConfig()["format"] = map[string]any{"type": "json_schema", "schema": format}
			return nil, nil
		}
	}
	if len(f.Schema) == 0 {
		w.otherwise("responseFormat", "the model cannot be asked for JSON without a schema: it is made to call a tool")
	}
	w.byTool = true
	spec := &toolSpec{Name: t.Name, Description: t.Description}
	spec.InputSchema.JSON = w.inputSchema(t.InputSchema, "responseFormat")
	return []*tool{{Spec: spec}}, nil
}

// toolName matches the tool names that Converse accepts.
var toolName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
})

func (w *callWriter) tools() ([]*tool, error) {
	var all []*tool
	for i := range w.call.Tools {
		t := &w.call.Tools[i]
		switch {
		case t.ProviderID != "":
			return nil, bad("tools", "the tool %s (%s) is run by its provider, which %s cannot", t.Name, t.ProviderID, w.target.Provider)
		case !toolName().MatchString(t.Name):
			return nil, bad("tools", "the name of the tool %.200q is none for this provider: it takes up to 64 letters, digits, _ and -", t.Name)
		}
		if t.Strict != nil && *t.Strict {
			w.unsupported("tools."+t.Name+".strict", "Converse has none")
		}
		if len(t.Examples) > 0 {
			w.unsupported("tools."+t.Name+".inputExamples", "Converse has none")
		}
		spec := &toolSpec{Name: t.Name, Description: t.Description}
		spec.InputSchema.JSON = t.InputSchema
		if len(t.InputSchema) == 0 || string(t.InputSchema) == "null" {
			spec.InputSchema.JSON = json.RawMessage(`{"type":"object","properties":{}}`)
		} else if !gjson.ParseBytes(t.InputSchema).IsObject() {
			return nil, bad("tools", "the schema of the tool %s is not a JSON object", t.Name)
		}
		spec.InputSchema.JSON = w.inputSchema(spec.InputSchema.JSON, "tools."+t.Name+".inputSchema")
		all = append(all, &tool{Spec: spec})
		if mark := w.cachePoint(t.Options); mark != nil {
			all = append(all, &tool{CachePoint: mark})
		}
	}
	return all, nil
}

// inputSchema returns a schema adapted for a tool without strict.
func (w *callWriter) inputSchema(raw json.RawMessage, feature string) json.RawMessage {
	fitted, warnings := claude.InputSchema(raw, feature)
	w.warnings = append(w.warnings, warnings...)
	return fitted
}

// toolConfig must run after thinking and format, which both restrict it. Converse has no
// choice "none", and requires a declaration of every tool that the conversation calls.
func (w *callWriter) toolConfig(tools []*tool) {
	c := w.call
	used := w.used()
	if c.ToolChoice.Mode == hub.ToolNone && !w.byTool {
		if len(used) == 0 {
			return
		}
		if len(tools) > 0 {
			w.otherwise("toolChoice", "the model cannot be kept from calling the tools of the conversation")
		}
	}
	if len(tools) == 0 && len(used) > 0 {
		for _, name := range used {
			spec := &toolSpec{Name: name, Description: "A tool of an earlier part of the conversation. Do not call it."}
			spec.InputSchema.JSON = json.RawMessage(`{"type":"object","properties":{}}`)
			tools = append(tools, &tool{Spec: spec})
		}
		if len(c.Tools) == 0 {
			w.otherwise("tools", "the conversation has calls of tools that are not given: they were declared without parameters")
		}
	}
	if len(tools) == 0 {
		if c.ToolChoice.Mode == hub.ToolRequired || c.ToolChoice.Mode == hub.ToolNamed {
			w.unsupported("toolChoice", "there are no tools")
		}
		return
	}
	choice := new(toolChoice)
	switch c.ToolChoice.Mode {
	case hub.ToolRequired:
		choice.Any = new(struct{})
	case hub.ToolNamed:
		choice.Tool = &namedChoice{c.ToolChoice.Tool}
	case hub.ToolAuto:
		choice.Auto = new(struct{})
	default:
		choice = nil
	}
	if w.byTool && (choice == nil || choice.Tool == nil) {
		choice = &toolChoice{Any: new(struct{})}
		if len(tools) == 1 || c.ToolChoice.Mode == hub.ToolNone {
			choice = &toolChoice{Tool: &namedChoice{hub.AnswerTool}}
		}
	}
	if w.thinking != nil && w.thinking.Type != "disabled" && choice != nil && choice.Auto == nil {
		w.otherwise("toolChoice", "the model cannot be made to call a tool while it thinks: it may choose")
		choice = nil
	}
	w.out.ToolConfig = &toolConfig{Tools: tools, Choice: choice}
	if c.ParallelTools != nil && !*c.ParallelTools {
		if !w.model.Known {
			w.unsupported("parallelTools", "Converse has no way to forbid several calls in a turn for this model")
			return
		}
		// Anthropic's own member expresses choices that Converse lacks, and replaces
		// Converse's choice.
		own := map[string]any{"type": "auto", "disable_parallel_tool_use": true}
		switch {
		case choice == nil || choice.Auto != nil:
		case choice.Any != nil:
			own["type"] = "any"
		default:
			own["type"], own["name"] = "tool", choice.Tool.Name
		}
		w.out.ToolConfig.Choice = nil
		w.out.More["tool_choice"] = own
	}
}

// used returns the names of tools called in the conversation, in order.
func (w *callWriter) used() []string {
	var names []string
	for _, m := range w.out.Messages {
		for _, b := range m.Content {
			if b.ToolUse != nil && !slices.Contains(names, b.ToolUse.Name) {
				names = append(names, b.ToolUse.Name)
			}
		}
	}
	return names
}

// rest sets the members from Bedrock's options.
func (w *callWriter) rest() {
	c := w.call
	if c.User != "" {
		w.unsupported("user", "Converse has no place for the end user")
	}
	if w.model.Known {
		w.out.MorePaths = []string{"/stop_sequence"}
		if c.Stream {
			w.out.MorePaths[0] = "/delta/stop_sequence"
		}
	}
	switch c.ServiceTier {
	case "":
	case "default", "priority", "flex", "reserved":
		w.out.Tier = &typed{c.ServiceTier}
	default:
		w.unsupported("serviceTier", "Converse has no tier %.40q", c.ServiceTier)
	}
	w.warnings = append(w.warnings, c.Unheard(func(m hub.Member) bool { return m.Provider == self })...)
	if betas, ok := c.Options["anthropic"]["anthropicBeta"]; ok && w.model.Known {
		w.out.More["anthropic_beta"] = betas
	}
	for _, name := range slices.Sorted(maps.Keys(c.Options[self])) {
		raw := c.Options[self][name]
		switch name {
		case "reasoningConfig", "cachePoint":
		case "guardrailConfig":
			w.out.Guardrail = raw
		case "requestMetadata":
			w.out.Metadata = raw
		case "serviceTier":
			var tier typed
			if json.Unmarshal(raw, &tier) == nil && tier.Type != "" || json.Unmarshal(raw, &tier.Type) == nil {
				w.out.Tier = &tier
			}
		case "anthropicBeta":
			w.out.More["anthropic_beta"] = raw
		case "additionalModelRequestFields":
			var fields map[string]json.RawMessage
			if json.Unmarshal(raw, &fields) != nil {
				w.unsupported("providerOptions.bedrock."+name, "it is not an object")
			}
			for name, value := range fields {
				w.out.More[name] = value
			}
		default:
			w.unsupported("providerOptions.bedrock."+name, "the gateway does not know it")
		}
	}
	if in := w.out.Inference; in.MaxTokens == nil && in.Temperature == nil && in.TopP == nil && in.StopSequences == nil {
		w.out.Inference = nil
	}
}

// maxMarks is the maximum number of cache points in a prompt.
const maxMarks = 4

// cachePoint returns the cache point in options, nil if there is none.
func (w *callWriter) cachePoint(o hub.Options) json.RawMessage {
	mark := o[self]["cachePoint"]
	if mark == nil {
		raw, ok := o["anthropic"]["cacheControl"]
		if !ok {
			raw, ok = o["anthropic"]["cache_control"]
		}
		if !ok || !gjson.ParseBytes(raw).IsObject() {
			return nil
		}
		mark = json.RawMessage(`{"type":"default"}`)
		if gjson.GetBytes(raw, "ttl").Str == "1h" {
			mark = json.RawMessage(`{"type":"default","ttl":"1h"}`)
		}
	}
	if !w.model.cache {
		w.unsupported("cachePoint", "the model %s has no prompt cache", w.target.Model)
		return nil
	}
	if w.marks++; w.marks > maxMarks {
		w.otherwise("cachePoint", "there are more than %d; the first ones count", maxMarks)
		return nil
	}
	return mark
}
