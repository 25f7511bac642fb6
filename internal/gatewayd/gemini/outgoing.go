package gemini

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/schema"
)

// The options of parts; see hub.Options.
const (
	optProvider  = "google"
	optSignature = "thoughtSignature"
	optID        = "id" // Google gave the tool call its id
)

// noSignature is the placeholder that Google documents for calls without a signature that
// its models did not make.
const noSignature = "skip_thought_signature_validator"

// body is the request body.
type body struct {
	Contents          []*turn         `json:"contents"`
	SystemInstruction *turn           `json:"systemInstruction,omitempty"`
	GenerationConfig  object          `json:"generationConfig,omitempty"`
	Tools             []any           `json:"tools,omitempty"`
	ToolConfig        object          `json:"toolConfig,omitempty"`
	SafetySettings    json.RawMessage `json:"safetySettings,omitempty"`
	CachedContent     json.RawMessage `json:"cachedContent,omitempty"`
	Labels            json.RawMessage `json:"labels,omitempty"`
	ServiceTier       string          `json:"serviceTier,omitempty"`
}

type turn struct {
	Role  string `json:"role,omitempty"` // user, model
	Parts []any  `json:"parts"`
}

// WriteCall encodes a call for generateContent, or for streamGenerateContent with
// server-sent events.
//
// The format has no place for the following, which become warnings: the end user, and
// parallel tool calls. Provider tools of other providers are refused.
func (*Format) WriteCall(c *hub.Call, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := newCallWriter(c, t)
	if err := w.write(); err != nil {
		return nil, nil, err
	}
	method := "generateContent"
	if c.Stream {
		method = "streamGenerateContent?alt=sse"
	}
	return &hub.Outgoing{Path: path(t, method), Head: w.head, Body: hub.MustEncode(w.body)}, w.warnings, nil
}

func newCallWriter(c *hub.Call, t *hub.Target) *callWriter {
	w := &callWriter{call: c, target: t, names: make(map[string]string), ids: make(map[string]string), foreign: make(map[string]*hub.ToolCall), options: make(map[string]json.RawMessage)}
	for _, name := range []string{optProvider, "vertex", t.Provider} {
		for k, v := range c.Options[name] {
			if !hub.IsNull(v) {
				w.options[k] = v
			}
		}
	}
	return w
}

type callWriter struct {
	call     *hub.Call
	target   *hub.Target
	options  map[string]json.RawMessage // the provider's options
	body     body
	head     http.Header
	warnings []hub.Warning
	names    map[string]string        // tool names by call id
	ids      map[string]string        // Google's call ids by ours
	foreign  map[string]*hub.ToolCall // calls that another provider ran and whose results are still to come
	excused  bool                     // the warning about noSignature was added
	early    string                   // system text of a model that knows none
}

func (w *callWriter) warn(kind hub.WarningKind, feature, message string) {
	w.warnings = append(w.warnings, hub.Warning{Kind: kind, Feature: feature, Message: message})
}

func (w *callWriter) unsupported(feature, message string) {
	w.warn(hub.WarnUnsupported, feature, message)
}

func (w *callWriter) write() error {
	if err := w.settings(); err != nil {
		return err
	}
	if err := w.tools(); err != nil {
		return err
	}
	w.given()
	for i := range w.call.Prompt {
		if err := w.message(i, &w.call.Prompt[i]); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.foreign)) {
		w.unsupported("tools."+w.foreign[id].Name, "it is a tool of another provider, and what came of the call is missing")
	}
	if w.early != "" {
		w.say("user", object{"text": w.early})
	}
	if w.body.Contents == nil {
		w.body.Contents = []*turn{}
	}
	return nil
}

// set sets a member of generationConfig.
func (w *callWriter) set(name string, v any) {
	if w.body.GenerationConfig == nil {
		w.body.GenerationConfig = object{}
	}
	w.body.GenerationConfig[name] = v
}

func (w *callWriter) settings() error {
	c := w.call
	if c.MaxOutputTokens != nil {
		w.set("maxOutputTokens", *c.MaxOutputTokens)
	}
	for _, s := range []struct {
		name string
		v    *float64
	}{
		{"temperature", c.Temperature}, {"topP", c.TopP}, {"topK", c.TopK},
		{"presencePenalty", c.PresencePenalty}, {"frequencyPenalty", c.FrequencyPenalty},
	} {
		if s.v != nil {
			w.set(s.name, *s.v)
		}
	}
	stops, warnings := c.Stops(5, true)
	w.warnings = append(w.warnings, warnings...)
	if len(stops) > 0 {
		w.set("stopSequences", stops)
	}
	if c.Seed != nil {
		w.set("seed", *c.Seed)
	}
	if c.ParallelTools != nil && !*c.ParallelTools {
		w.unsupported("parallelToolCalls", "Gemini models may always call several tools in one turn")
	}
	if c.User != "" {
		w.unsupported("user", "Google is not told who the end user is")
	}
	if tier := c.ServiceTier; tier != "" {
		if w.target.Is(QuirkVertex) {
			w.head = http.Header{"X-Vertex-Ai-Llm-Shared-Request-Type": {tier}}
		} else {
			w.body.ServiceTier = tier
		}
	}
	w.thinking()
	return w.format()
}

func (w *callWriter) format() error {
	f := w.call.Format
	if f == nil {
		return nil
	}
	w.set("responseMimeType", "application/json")
	if f.Schema == nil || string(w.options["structuredOutputs"]) == "false" {
		return nil
	}
	name, convert := "responseJsonSchema", w.jsonSchema
	if w.target.Is(QuirkOpenAPISchema) {
		name, convert = "responseSchema", w.openAPISchema
	}
	schema, err := convert(schema.Describe(f.Schema, f.Description), "responseFormat.schema")
	if err != nil {
		return err
	}
	w.set(name, schema)
	return nil
}

// given copies the caller's options for Google, whose names in the AI SDK are mostly
// Google's own.
func (w *callWriter) given() {
	for _, name := range sorted(w.options) {
		v := w.options[name]
		switch name {
		case "thinkingConfig":
			var given object
			if json.Unmarshal(v, &given) != nil {
				w.unsupported("providerOptions.google.thinkingConfig", "it is no object")
				continue
			}
			config, _ := w.body.GenerationConfig["thinkingConfig"].(object)
			if config == nil {
				config = object{}
			}
			if given["thinkingBudget"] != nil || given["thinkingLevel"] != nil { // Google accepts only one of them
				delete(config, "thinkingBudget")
				delete(config, "thinkingLevel")
			}
			for k, x := range given {
				config[k] = x
			}
			w.set("thinkingConfig", config)
		case "responseModalities", "mediaResolution", "imageConfig", "audioTimestamp", "speechConfig", "responseLogprobs", "logprobs", "enableAffectiveDialog":
			w.set(name, v)
		case "safetySettings":
			w.body.SafetySettings = v
		case "cachedContent":
			w.body.CachedContent = v
		case "labels":
			w.body.Labels = v
		case "serviceTier":
			var tier string
			if json.Unmarshal(v, &tier) == nil && w.body.ServiceTier == "" && !w.target.Is(QuirkVertex) {
				w.body.ServiceTier = tier
			}
		case "retrievalConfig":
			w.toolConfig()["retrievalConfig"] = v
		case "streamFunctionCallArguments":
			if len(w.call.Tools) > 0 {
				w.calling()["streamFunctionCallArguments"] = v
			}
		case "structuredOutputs": // see format
		default:
			w.unsupported("providerOptions.google."+name, "Gemini has no such setting")
		}
	}
	w.warnings = append(w.warnings, w.call.Unheard(func(m hub.Member) bool {
		return w.options[m.Option] != nil && m.Provider != "openai" && m.Provider != "anthropic"
	})...)
}

func sorted(m map[string]json.RawMessage) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *callWriter) toolConfig() object {
	if w.body.ToolConfig == nil {
		w.body.ToolConfig = object{}
	}
	return w.body.ToolConfig
}

func (w *callWriter) calling() object {
	config := w.toolConfig()
	if config["functionCallingConfig"] == nil {
		config["functionCallingConfig"] = object{}
	}
	return config["functionCallingConfig"].(object)
}

func (w *callWriter) tools() error {
	var functions []any
	strict := false
	for i := range w.call.Tools {
		t := &w.call.Tools[i]
		if t.ProviderID != "" {
			tool, err := w.hosted(t)
			if err != nil {
				return err
			}
			w.body.Tools = append(w.body.Tools, tool)
			continue
		}
		f, err := w.function(t)
		if err != nil {
			return err
		}
		functions = append(functions, f)
		strict = strict || t.Strict != nil && *t.Strict
	}
	if functions != nil {
		w.body.Tools = append(w.body.Tools, object{"functionDeclarations": functions})
	}
	if functions == nil {
		if w.call.ToolChoice.Mode == hub.ToolNamed {
			w.unsupported("toolChoice", "Gemini models cannot be made to use a tool of Google's")
		}
		return nil
	}
	switch choice := w.call.ToolChoice; choice.Mode {
	case hub.ToolDefault, hub.ToolAuto:
		if strict {
			w.calling()["mode"] = "VALIDATED"
		} else if choice.Mode == hub.ToolAuto {
			w.calling()["mode"] = "AUTO"
		}
	case hub.ToolNone:
		w.calling()["mode"] = "NONE"
	case hub.ToolRequired:
		w.calling()["mode"] = "ANY"
	case hub.ToolNamed:
		w.calling()["mode"] = "ANY"
		w.calling()["allowedFunctionNames"] = []string{choice.Tool}
	}
	return nil
}

func (w *callWriter) function(t *hub.Tool) (object, error) {
	f := object{"name": t.Name, "description": t.Description}
	if len(t.Examples) > 0 {
		w.unsupported("tools."+t.Name+".inputExamples", "Gemini's tools have none")
	}
	name, convert := "parametersJsonSchema", w.jsonSchema
	if w.target.Is(QuirkOpenAPISchema) {
		name, convert = "parameters", w.openAPISchema
	}
	schema, err := convert(t.InputSchema, "tools."+t.Name+".inputSchema")
	if err != nil {
		return nil, err
	}
	// An object schema without members is not valid for parameters, and is left out.
	if name != "parameters" || len(gjson.GetBytes(schema, "properties").Map()) > 0 || gjson.GetBytes(schema, "description").Exists() {
		f[name] = schema
	}
	return f, nil
}

// hosted writes a Google tool: google.google_search becomes googleSearch, with its
// settings.
func (w *callWriter) hosted(t *hub.Tool) (object, error) {
	provider, kind, _ := strings.Cut(t.ProviderID, ".")
	if kind == "" || provider != optProvider && provider != "vertex" && provider != w.target.Provider {
		return nil, invalid("tools", "the tool %s is not one that %s has", t.ProviderID, w.target.Provider)
	}
	args := object{}
	if !hub.IsNull(t.Args) {
		if err := json.Unmarshal(t.Args, &args); err != nil {
			return nil, invalid("tools", "the settings of the tool %s are not an object", t.Name)
		}
	}
	if kind == "vertex_rag_store" {
		store := object{"ragResources": []any{object{"ragCorpus": args["ragCorpus"]}}}
		if args["topK"] != nil {
			store["similarityTopK"] = args["topK"]
		}
		return object{"retrieval": object{"vertexRagStore": store}}, nil
	}
	return object{camel(kind): args}, nil
}

func camel(s string) string {
	var b strings.Builder
	for i, word := range strings.Split(s, "_") {
		if i > 0 && word != "" {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		b.WriteString(word)
	}
	return b.String()
}
