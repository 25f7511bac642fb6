package responses

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// request is the request body with its known members. Unknown members become warnings.
type request struct {
	Instructions *string           `json:"instructions"`
	Input        json.RawMessage   `json:"input"`
	Tools        []json.RawMessage `json:"tools"`
	ToolChoice   json.RawMessage   `json:"tool_choice"`
	Parallel     *bool             `json:"parallel_tool_calls"`
	Text         *struct {
		Format    json.RawMessage `json:"format"`
		Verbosity json.RawMessage `json:"verbosity"`
	} `json:"text"`
	Reasoning *struct {
		Effort  *string         `json:"effort"`
		Summary json.RawMessage `json:"summary"`
	} `json:"reasoning"`
	MaxOutputTokens *int64                                `json:"max_output_tokens"`
	Temperature     *float64                              `json:"temperature"`
	TopP            *float64                              `json:"top_p"`
	Stream          bool                                  `json:"stream"`
	Store           *bool                                 `json:"store"`
	Include         []string                              `json:"include"`
	Metadata        json.RawMessage                       `json:"metadata"`
	User            *string                               `json:"user"`
	SafetyID        *string                               `json:"safety_identifier"`
	ServiceTier     *string                               `json:"service_tier"`
	Truncation      *string                               `json:"truncation"`
	Background      bool                                  `json:"background"`
	PreviousID      *string                               `json:"previous_response_id"`
	Conversation    json.RawMessage                       `json:"conversation"`
	Prompt          json.RawMessage                       `json:"prompt"`
	ProviderOptions map[string]map[string]json.RawMessage `json:"providerOptions"`
}

// known maps the top-level members that are read here to "", and members that only OpenAI
// understands to the option under which they are kept. Members of the gateway itself are
// also mapped to "".
var known = map[string]string{
	"model": "", "models": "", "instructions": "", "input": "", "tools": "", "tool_choice": "", "parallel_tool_calls": "",
	"text": "", "reasoning": "", "max_output_tokens": "", "temperature": "", "top_p": "", "stream": "", "stream_options": "",
	"store": "", "include": "", "user": "", "safety_identifier": "safetyIdentifier", "service_tier": "", "truncation": "",
	"background": "", "previous_response_id": "", "conversation": "", "prompt": "", "providerOptions": "",
	"metadata": "metadata", "prompt_cache_key": "promptCacheKey", "prompt_cache_retention": "promptCacheRetention",
	"max_tool_calls": "maxToolCalls", "top_logprobs": "topLogprobs", "context_management": "contextManagement",
}

// ReadCall decodes a request. Features that need stored state are refused:
// previous_response_id, conversation, prompt, background and item references. store is
// accepted with a warning, because the gateway stores nothing.
func (*Format) ReadCall(_ http.Header, body []byte) (*hub.Call, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return nil, &hub.Error{Kind: hub.BadRequest, Message: "the body is not a JSON object", Cause: err}
	}
	var q request
	if err := decode(members, &q); err != nil {
		return nil, err
	}
	switch {
	case q.PreviousID != nil && *q.PreviousID != "":
		return nil, invalid("previous_response_id", "previous_response_id is not supported for this model: the gateway keeps no responses. Send the whole conversation as input")
	case !hub.IsNull(q.Conversation):
		return nil, invalid("conversation", "conversation is not supported for this model: the gateway keeps no conversations. Send the whole conversation as input")
	case !hub.IsNull(q.Prompt):
		return nil, invalid("prompt", "prompt templates are not supported for this model: send instructions and input")
	case q.Background:
		return nil, invalid("background", "background is not supported for this model: the gateway keeps no responses")
	}
	if n := q.MaxOutputTokens; n != nil && *n < 1 {
		return nil, invalid("max_output_tokens", "max_output_tokens is %d, and must be 1 or more", *n)
	}
	c := &hub.Call{
		MaxOutputTokens: q.MaxOutputTokens, Sampling: hub.Sampling{Temperature: q.Temperature, TopP: q.TopP},
		ParallelTools: q.Parallel, Stream: q.Stream,
	}
	for provider, options := range q.ProviderOptions {
		for name, value := range options {
			if provider != "gateway" {
				c.Options.SetRaw(provider, name, value)
			}
		}
	}
	for _, name := range sorted(members) {
		option, ok := known[name]
		switch {
		case hub.IsNull(members[name]):
		case !ok:
			c.Warnings = append(c.Warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: name, Message: "the gateway does not know it, and does not pass it on to providers of other formats"})
		case name == "safety_identifier" && q.User == nil: // used as the user
			c.Options.SetRaw(optProvider, option, members[name])
		case option != "":
			c.Own(name, optProvider, option, members[name])
		}
	}
	q.plain(c)
	unknown(c, "text", members["text"], "format", "verbosity")
	unknown(c, "reasoning", members["reasoning"], "effort", "summary")
	if err := q.reasoning(c); err != nil {
		return nil, err
	}
	if err := q.format(c); err != nil {
		return nil, err
	}
	r := &callReader{call: c, names: make(map[string]string), hosted: make(map[string]bool), tooled: make(map[string]bool)}
	if err := r.tools(q.Tools); err != nil {
		return nil, err
	}
	if q.Instructions != nil && *q.Instructions != "" {
		m := hub.Message{Role: hub.System, Parts: []hub.Part{{Kind: hub.TextPart, Text: *q.Instructions}}}
		m.Options.Set(optProvider, optInstructions, true)
		c.Prompt = append(c.Prompt, m)
	}
	if err := r.input(q.Input); err != nil {
		return nil, err
	}
	if err := r.toolChoice(q.ToolChoice); err != nil { // tool_choice may name a tool in the input
		return nil, err
	}
	return c, nil
}

// unknown adds warnings about unknown members of an object.
func unknown(c *hub.Call, at string, raw json.RawMessage, known ...string) {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return
	}
	for _, name := range sorted(members) {
		if !slices.Contains(known, name) && !hub.IsNull(members[name]) {
			c.Warnings = append(c.Warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: at + "." + name, Message: "the gateway does not know it"})
		}
	}
}

// optInstructions marks the system message that came from instructions.
const optInstructions = "instructions"

// decode decodes the members one by one, so that an error names the invalid member.
func decode(members map[string]json.RawMessage, q *request) error {
	for name, into := range map[string]any{
		"instructions": &q.Instructions, "input": &q.Input, "tools": &q.Tools, "tool_choice": &q.ToolChoice,
		"parallel_tool_calls": &q.Parallel, "text": &q.Text, "reasoning": &q.Reasoning, "max_output_tokens": &q.MaxOutputTokens,
		"temperature": &q.Temperature, "top_p": &q.TopP, "stream": &q.Stream, "store": &q.Store, "include": &q.Include,
		"metadata": &q.Metadata, "user": &q.User, "safety_identifier": &q.SafetyID, "service_tier": &q.ServiceTier,
		"truncation": &q.Truncation, "background": &q.Background, "previous_response_id": &q.PreviousID,
		"conversation": &q.Conversation, "prompt": &q.Prompt, "providerOptions": &q.ProviderOptions,
	} {
		raw, ok := members[name]
		if !ok || hub.IsNull(raw) {
			continue
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return &hub.Error{Kind: hub.BadRequest, Param: name, Message: name + " has a value of the wrong type", Cause: err}
		}
	}
	return nil
}

func sorted(members map[string]json.RawMessage) []string {
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// plain copies the scalar members.
func (q *request) plain(c *hub.Call) {
	warn := func(feature, message string) {
		c.Warnings = append(c.Warnings, hub.Warning{Kind: hub.WarnUnsupported, Feature: feature, Message: message})
	}
	if q.Store != nil && *q.Store {
		warn("store", "the gateway keeps no responses: they cannot be referred to later")
	}
	for _, what := range q.Include {
		// Encrypted reasoning is always included; sources are included as annotations.
		if what != "reasoning.encrypted_content" && !strings.HasSuffix(what, "_call.action.sources") {
			warn("include", what+" is not supported for this model")
		}
	}
	if q.Truncation != nil && *q.Truncation != "disabled" {
		warn("truncation", "the conversation is sent as it is")
	}
	if q.User != nil {
		c.User = *q.User
	}
	if c.User == "" && q.SafetyID != nil {
		c.User = *q.SafetyID
	}
	if q.ServiceTier != nil && *q.ServiceTier != "auto" && *q.ServiceTier != "default" {
		c.ServiceTier = *q.ServiceTier
	}
}

var efforts = []hub.Effort{hub.EffortNone, hub.EffortMinimal, hub.EffortLow, hub.EffortMedium, hub.EffortHigh, hub.EffortXHigh, hub.EffortMax}

func (q *request) reasoning(c *hub.Call) error {
	if q.Reasoning == nil {
		return nil
	}
	if e := q.Reasoning.Effort; e != nil && *e != "" {
		if !slices.Contains(efforts, hub.Effort(*e)) {
			return invalid("reasoning.effort", "reasoning.effort is %q, and must be one of none, minimal, low, medium, high, xhigh and max", *e)
		}
		c.Effort = hub.Effort(*e)
	}
	if !hub.IsNull(q.Reasoning.Summary) {
		c.Options.SetRaw(optProvider, "reasoningSummary", q.Reasoning.Summary)
	}
	return nil
}

func (q *request) format(c *hub.Call) error {
	if q.Text == nil {
		return nil
	}
	if !hub.IsNull(q.Text.Verbosity) {
		c.Own("text.verbosity", optProvider, "textVerbosity", q.Text.Verbosity)
	}
	if hub.IsNull(q.Text.Format) {
		return nil
	}
	var f struct {
		Type        string          `json:"type"`
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Schema      json.RawMessage `json:"schema"`
		Strict      *bool           `json:"strict"`
	}
	if err := json.Unmarshal(q.Text.Format, &f); err != nil {
		return invalid("text.format", "text.format is not an object with a type")
	}
	unknown(c, "text.format", q.Text.Format, "type", "name", "description", "schema", "strict")
	switch f.Type {
	case "text":
	case "json_object":
		c.Format = &hub.Format{}
	case "json_schema":
		if len(f.Schema) == 0 || f.Schema[0] != '{' {
			return invalid("text.format.schema", "text.format has no schema, which the type json_schema needs")
		}
		c.Format = &hub.Format{Schema: f.Schema, Name: f.Name, Description: f.Description, Strict: f.Strict}
	default:
		return invalid("text.format.type", "text.format.type is %q, and must be text, json_object or json_schema", f.Type)
	}
	return nil
}

// callReader decodes tools and items into a Call.
type callReader struct {
	call   *hub.Call
	names  map[string]string // tool names by call id
	hosted map[string]bool   // calls that the provider ran
	tooled map[string]bool   // names of tools
}

// tool is a tool of any type.
type tool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
	Format      json.RawMessage `json:"format"`
	ServerLabel string          `json:"server_label"`
	// Tools is set for a namespace, and for the choice of one of its tools.
	Tools     []json.RawMessage `json:"tools"`
	Namespace string            `json:"namespace"`
}

func (r *callReader) tools(all []json.RawMessage) error {
	for i, raw := range all {
		if err := r.tool(fmt.Sprintf("tools[%d]", i), raw, namespace{}); err != nil {
			return err
		}
	}
	return nil
}

// additional adds the tools of an item, which are valid from that item on. In the hub,
// and at other providers, tools apply to the whole conversation.
func (r *callReader) additional(it *item, at string) error {
	var all []json.RawMessage
	if json.Unmarshal(it.Tools, &all) != nil {
		return invalid(at+".tools", "%s has no list of tools", at)
	}
	for i, raw := range all {
		var t tool
		if json.Unmarshal(raw, &t) == nil && t.Type != optNamespace && r.tooled[t.key()] {
			r.call.Tools = slices.DeleteFunc(r.call.Tools, func(old hub.Tool) bool { return old.Name == t.key() })
			delete(r.tooled, t.key())
		}
		if err := r.tool(fmt.Sprintf("%s.tools[%d]", at, i), raw, namespace{}); err != nil {
			return err
		}
	}
	r.call.Warnings = append(r.call.Warnings, hub.Warning{Kind: hub.WarnCompatibility, Feature: "additional_tools", Message: "the tools of " + at + " are there from the beginning of the conversation"})
	return nil
}

// tool decodes a tool, or a namespace with its tools.
func (r *callReader) tool(at string, raw json.RawMessage, of namespace) error {
	var t tool
	if err := json.Unmarshal(raw, &t); err != nil || t.Type == "" {
		return invalid(at, "%s is not an object with a type", at)
	}
	out := hub.Tool{Name: t.Name, Description: t.Description}
	switch {
	case t.Type == "function":
		unknown(r.call, "tools."+t.Name, raw, "type", "name", "description", "parameters", "strict")
		out.InputSchema, out.Strict = t.Parameters, t.Strict
		if hub.IsNull(t.Parameters) {
			out.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
	case t.Type == "custom":
		out = hub.CustomTool(t.Name, t.Description, t.Format)
	case of.Name != "":
		return invalid(at+".type", "%s has the type %q, and tools of a namespace are functions or custom tools", at, t.Type)
	case t.Type == optNamespace:
		if t.Name == "" {
			return invalid(at+".name", "%s has no name", at)
		}
		for i, raw := range t.Tools {
			if err := r.tool(fmt.Sprintf("%s.tools[%d]", at, i), raw, namespace{t.Name, t.Description}); err != nil {
				return err
			}
		}
		return nil
	default:
		out = hub.Tool{Name: t.Type, ProviderID: optProvider + "." + t.Type, Args: without(without(raw, "type"), "name")}
		if t.Type == "mcp" && t.ServerLabel != "" {
			out.Name = "mcp." + t.ServerLabel
		}
	}
	if out.Name == "" {
		return invalid(at+".name", "%s has no name", at)
	}
	if of.Name != "" {
		inNamespace(&out, of)
	}
	if r.tooled[out.Name] {
		return invalid(at+".name", "%s has the name %q, as an earlier tool does", at, out.Name)
	}
	r.tooled[out.Name] = true
	r.call.Tools = append(r.call.Tools, out)
	return nil
}

func (r *callReader) toolChoice(raw json.RawMessage) error {
	if hub.IsNull(raw) {
		return nil
	}
	var mode string
	if json.Unmarshal(raw, &mode) == nil {
		switch mode {
		case "auto", "none", "required":
			r.call.ToolChoice.Mode = hub.ToolMode(mode)
			return nil
		}
		return invalid("tool_choice", "tool_choice is %q, and must be auto, none, required or an object", mode)
	}
	var choice struct {
		tool
		Mode  string `json:"mode"`
		Tools []tool `json:"tools"`
	}
	if err := json.Unmarshal(raw, &choice); err != nil || choice.Type == "" {
		return invalid("tool_choice", "tool_choice is neither a string nor an object with a type")
	}
	if choice.Type == "allowed_tools" {
		return r.allowed(choice.Mode, choice.Tools)
	}
	name := choice.key()
	if !slices.ContainsFunc(r.call.Tools, func(t hub.Tool) bool { return t.Name == name }) {
		return invalid("tool_choice", "tool_choice names the tool %q, which is not in tools", name)
	}
	r.call.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: name}
	return nil
}

// key returns the name of a tool in the Call.
func (t *tool) key() string {
	switch {
	case t.Type == "mcp":
		return "mcp." + t.ServerLabel
	case t.Type == "function", t.Type == "custom":
		return joined(t.Namespace, t.Name)
	}
	return t.Type
}

// allowed removes all tools but some from the Call.
func (r *callReader) allowed(mode string, some []tool) error {
	if mode == "" {
		mode = "auto"
	}
	if mode != "auto" && mode != "required" {
		return invalid("tool_choice.mode", "tool_choice.mode is %q, and must be auto or required", mode)
	}
	var left []hub.Tool
	keys, namespaces := make(map[string]bool), make(map[string]bool)
	for i := range some {
		if some[i].Type == optNamespace && some[i].Name != "" {
			namespaces[some[i].Name] = true
		} else {
			keys[some[i].key()] = true
		}
	}
	for _, t := range r.call.Tools {
		if keys[t.Name] || namespaces[namespaceOf(&t).Name] {
			left = append(left, t)
		}
	}
	if len(left) == 0 {
		return invalid("tool_choice.tools", "tool_choice.tools names none of the tools")
	}
	r.call.Tools = left
	r.call.ToolChoice.Mode = hub.ToolMode(mode)
	return nil
}
