package aisdk

import (
	"encoding/json"
	"math"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// callReader decodes calls of language models.
type callReader struct{ fileReader }

// ReadCall implements hub.Surface. It needs the headers for the version and for
// streaming, because the body contains neither.
func (*Format) ReadCall(head http.Header, body []byte) (*hub.Call, error) {
	if _, err := Version(head); err != nil {
		return nil, err
	}
	c := &hub.Call{Stream: strings.EqualFold(head.Get(headerStreaming), "true")}
	r := new(callReader)
	prompt := false
	r.members(r.open(body), "", func(name, path string, v gjson.Result) {
		prompt = prompt || name == "prompt"
		r.setting(c, name, path, v)
	})
	if !prompt {
		r.missing("", "prompt")
	}
	if r.err != nil {
		return nil, r.err
	}
	if len(c.Prompt) == 0 {
		r.want("prompt", "an array of at least one message")
		return nil, r.err
	}
	if len(c.Tools) == 0 && c.ToolChoice.Mode != hub.ToolNamed && c.ToolChoice.Mode != hub.ToolRequired {
		c.ToolChoice = hub.ToolChoice{} // AI SDK 7 says auto without tools, which providers refuse
	}
	c.Warnings = r.warnings
	return c, nil
}

// setting decodes one member of the body.
func (r *callReader) setting(c *hub.Call, name, path string, v gjson.Result) {
	switch name {
	case "prompt":
		c.Prompt = r.prompt(v, path)
	case "maxOutputTokens":
		c.MaxOutputTokens = r.integer(v, path, 1)
	case "temperature":
		c.Temperature = r.number(v, path)
	case "topP":
		c.TopP = r.number(v, path)
	case "topK":
		c.TopK = r.number(v, path)
	case "presencePenalty":
		c.PresencePenalty = r.number(v, path)
	case "frequencyPenalty":
		c.FrequencyPenalty = r.number(v, path)
	case "stopSequences":
		c.StopSequences = r.texts(v, path)
	case "seed":
		c.Seed = r.integer(v, path, math.MinInt64)
	case "responseFormat":
		c.Format = r.format(v, path)
	case "tools":
		c.Tools = r.tools(v, path)
	case "toolChoice":
		c.ToolChoice = r.toolChoice(v, path)
	case "reasoning":
		c.Effort = r.effort(v, path)
	case "includeRawChunks":
		c.IncludeRaw = r.flag(v, path)
	case "providerOptions":
		c.Options = r.options(v, path)
	case "headers":
		// headers: the caller's headers, which the HTTP request has as well.
	default:
		r.unknown(path)
	}
}

func (r *callReader) format(v gjson.Result, path string) *hub.Format {
	f := new(hub.Format)
	kind := ""
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
			kind = r.text(v, path)
		case "schema":
			f.Schema = r.schema(v, path)
		case "name":
			f.Name = r.text(v, path)
		case "description":
			f.Description = r.text(v, path)
		default:
			r.unknown(path)
		}
	})
	switch kind {
	case "text":
		return nil
	case "json":
		return f
	}
	r.want(join(path, "type"), `"text" or "json"`)
	return nil
}

// schema decodes a JSON Schema, which may be true or false instead of an object.
func (r *callReader) schema(v gjson.Result, path string) json.RawMessage {
	if v.IsBool() {
		return json.RawMessage(v.Raw)
	}
	return r.object(v, path)
}

func (r *callReader) tools(v gjson.Result, path string) (tools []hub.Tool) {
	names := make(map[string]bool)
	r.items(v, path, func(path string, v gjson.Result) {
		t := r.tool(v, path)
		if r.err == nil && names[t.Name] {
			r.fail(join(path, "name"), "%s: there is another tool with the name %s", join(path, "name"), clip(t.Name))
		}
		names[t.Name] = true
		tools = append(tools, t)
	})
	return tools
}

func (r *callReader) tool(v gjson.Result, path string) (t hub.Tool) {
	kind := ""
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
			kind = r.text(v, path)
		case "name":
			t.Name = r.name(v, path)
		case "description":
			t.Description = r.text(v, path)
		case "inputSchema":
			t.InputSchema = r.schema(v, path)
		case "strict":
			strict := r.flag(v, path)
			t.Strict = &strict
		case "inputExamples":
			t.Examples = r.examples(v, path)
		case "id":
			t.ProviderID = r.name(v, path)
		case "args":
			t.Args = r.object(v, path)
		case "providerOptions":
			t.Options = r.options(v, path)
		default:
			r.unknown(path)
		}
	})
	switch {
	case r.err != nil:
	case t.Name == "":
		r.missing(path, "name")
	case kind == "function":
		t.ProviderID, t.Args = "", nil
		if t.InputSchema == nil {
			t.InputSchema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
	case kind != "provider" && kind != "provider-defined":
		r.want(join(path, "type"), `"function", "provider" or "provider-defined"`)
	case !strings.Contains(t.ProviderID, "."):
		r.want(join(path, "id"), "the name of a provider's tool, as in anthropic.web_search_20250305")
	case strings.HasPrefix(t.ProviderID, us+"."):
		r.fail(path, "the tool %s is not one this gateway runs; use a tool of your own, or of the model's provider", clip(t.ProviderID))
	default:
		t.InputSchema = nil
	}
	return t
}

// examples decodes [{"input": ...}, ...].
func (r *callReader) examples(v gjson.Result, path string) (examples []json.RawMessage) {
	r.items(v, path, func(path string, v gjson.Result) {
		input := r.object(v.Get("input"), join(path, "input"))
		examples = append(examples, input)
	})
	return examples
}

func (r *callReader) toolChoice(v gjson.Result, path string) (c hub.ToolChoice) {
	r.members(v, path, func(name, path string, v gjson.Result) {
		switch name {
		case "type":
			c.Mode = hub.ToolMode(r.text(v, path))
		case "toolName":
			c.Tool = r.name(v, path)
		default:
			r.unknown(path)
		}
	})
	switch c.Mode {
	case hub.ToolAuto, hub.ToolNone, hub.ToolRequired:
		c.Tool = ""
	case hub.ToolNamed:
		if c.Tool == "" {
			r.missing(path, "toolName")
		}
	default:
		r.want(join(path, "type"), `"auto", "none", "required" or "tool"`)
	}
	return c
}

func (r *callReader) effort(v gjson.Result, path string) hub.Effort {
	switch e := hub.Effort(r.text(v, path)); e {
	case hub.EffortNone, hub.EffortMinimal, hub.EffortLow, hub.EffortMedium, hub.EffortHigh, hub.EffortXHigh, hub.EffortMax:
		return e
	case "provider-default":
		return hub.EffortDefault
	}
	r.want(path, `"provider-default", "none", "minimal", "low", "medium", "high", "xhigh" or "max"`)
	return hub.EffortDefault
}
