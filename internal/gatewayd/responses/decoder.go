package responses

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// The names of options; see hub.Options. The options of an item are sent back with it.
const (
	optProvider  = "openai"
	optItemID    = "itemId"
	optEncrypted = "reasoningEncryptedContent"
	optPhase     = "phase"
	optRefusal   = "refusal"       // the text is a refusal
	optRawText   = "reasoningText" // the reasoning is text, and no summary
	optItem      = "item"          // the item a tool call was
	optCustom    = "custom"        // the call of a custom tool
	optNamespace = "namespace"
	optCaller    = "caller"
	optAnnotated = "annotations"
	optLogprobs  = "logprobs"
)

// decoder converts items to parts.
type decoder struct {
	hostedCustom func(name string) bool // whether the provider ran a custom tool itself
	names        map[string]string      // the client's names of tools that are no functions, by type
	sources      int                    // number of sources so far
	ran          ran
	lastSearch   string // the id of the last tool_search_call of the provider's
}

// newDecoder returns the decoder for a target's answer.
func newDecoder(t *hub.Target) decoder {
	d := decoder{hostedCustom: func(string) bool { return t.Is(QuirkHostedCustomTools) }}
	if t.Call == nil {
		return d
	}
	d.names = make(map[string]string)
	custom := make(map[string]bool)
	for i := range t.Call.Tools {
		tool := &t.Call.Tools[i]
		_, kind, hosted := strings.Cut(tool.ProviderID, ".")
		switch {
		case !hosted:
			if tool.Options[optProvider][optCustom] != nil {
				custom[tool.Name] = true
			}
		case kind == "custom":
			args := struct{ Name string }{tool.Name}
			_ = json.Unmarshal(tool.Args, &args) // invalid Args were refused before
			custom[args.Name] = true
			d.names["custom."+args.Name] = tool.Name
		case kind != "mcp":
			d.names[strings.TrimSuffix(strings.TrimSuffix(kind, "_preview"), "_use")] = tool.Name // computer_use_preview calls are computer_call items
		}
	}
	d.hostedCustom = func(name string) bool { return !custom[name] }
	return d
}

// name returns the client's name of a tool type.
func (d *decoder) name(kind, otherwise string) string {
	if name := d.names[kind]; name != "" {
		return name
	}
	return otherwise
}

// parts returns the parts for an item of an answer. Unknown items become custom parts.
func (d *decoder) parts(it *item) []hub.Part {
	switch it.Type {
	case "message":
		return d.message(it)
	case "reasoning":
		return it.reasoning()
	case "function_call":
		return []hub.Part{it.functionCall(text(it.Arguments))}
	case "custom_tool_call":
		return d.customCall(it, it.Input)
	}
	if parts := d.tool(it); parts != nil {
		return parts
	}
	return []hub.Part{{Kind: hub.CustomPart, CustomKind: optProvider + "." + it.Type, Custom: it.raw}}
}

func (d *decoder) message(it *item) []hub.Part {
	var parts []hub.Part
	for _, c := range it.contents() {
		p := hub.Part{Kind: hub.TextPart, Text: c.Text, Options: it.textOptions()}
		if c.Type == "refusal" {
			p.Text = c.Refusal
			p.Options.Set(optProvider, optRefusal, true)
		}
		p.Options.Merge(annotated(c.Annotations, c.Logprobs))
		parts = append(parts, p)
		for _, a := range c.Annotations {
			if s := d.source(a); s != nil {
				parts = append(parts, *s)
			}
		}
	}
	return parts
}

// contents returns the parts of a message or of reasoning; malformed ones are skipped.
func (it *item) contents() []content {
	var all []content
	if hub.IsNull(it.Content) || json.Unmarshal(it.Content, &all) == nil {
		return all
	}
	var s string
	if json.Unmarshal(it.Content, &s) == nil {
		return []content{{Type: "output_text", Text: s}}
	}
	return nil
}

func (it *item) textOptions() hub.Options {
	var o hub.Options
	if it.ID != "" {
		o.Set(optProvider, optItemID, it.ID)
	}
	if it.Phase != "" {
		o.Set(optProvider, optPhase, it.Phase)
	}
	return o
}

// annotated returns options with annotations and log probabilities.
func annotated(annotations, logprobs []json.RawMessage) hub.Options {
	var o hub.Options
	if len(annotations) > 0 {
		o.SetRaw(optProvider, optAnnotated, hub.MustEncode(annotations))
	}
	if len(logprobs) > 0 {
		o.SetRaw(optProvider, optLogprobs, hub.MustEncode(logprobs))
	}
	return o
}

// source returns the source of an annotation, nil if its type is unknown.
func (d *decoder) source(raw json.RawMessage) *hub.Part {
	var a annotation
	if json.Unmarshal(raw, &a) != nil {
		return nil
	}
	s := &hub.Source{}
	var o hub.Options
	switch {
	case a.URL != "":
		s.URL, s.Title = a.URL, a.Title
	case a.FileID != "":
		s.Title, s.Filename, s.MediaType = a.Filename, a.Filename, "text/plain"
		if s.Title == "" {
			s.Title = a.FileID
		}
		if s.Filename == "" {
			s.Filename = a.FileID
		}
		o.Set(optProvider, "fileId", a.FileID)
	default:
		return nil
	}
	s.ID = "source-" + strconv.Itoa(d.sources)
	d.sources++
	return &hub.Part{Kind: hub.SourcePart, Source: s, Options: o}
}

// reasoning returns a part for each summary and each text. The last part has the
// encrypted content, because a client that sends back some parts sends back all.
func (it *item) reasoning() []hub.Part {
	var parts []hub.Part
	add := func(text string, raw bool) {
		p := hub.Part{Kind: hub.ReasoningPart, Text: text, Options: it.reasoningOptions(false)}
		if raw {
			p.Options.Set(optProvider, optRawText, true)
		}
		parts = append(parts, p)
	}
	for _, s := range it.Summary {
		add(s.Text, false)
	}
	for _, c := range it.contents() {
		add(c.Text, true)
	}
	if len(parts) == 0 {
		add("", false)
	}
	parts[len(parts)-1].Options.Merge(it.reasoningOptions(true))
	return parts
}

func (it *item) reasoningOptions(last bool) hub.Options {
	var o hub.Options
	if it.ID != "" {
		o.Set(optProvider, optItemID, it.ID)
	}
	if last && it.EncryptedContent != nil && *it.EncryptedContent != "" {
		o.Set(optProvider, optEncrypted, *it.EncryptedContent)
	}
	return o
}

// callOptions returns the options of a function or custom tool call.
func (it *item) callOptions() hub.Options {
	o := it.reasoningOptions(false)
	if it.Namespace != "" {
		o.Set(optProvider, optNamespace, it.Namespace)
	}
	if !hub.IsNull(it.Caller) {
		o.SetRaw(optProvider, optCaller, it.Caller)
	}
	return o
}

// callID returns the hub's id of a tool call.
func (it *item) callID() string {
	if it.CallID != nil && *it.CallID != "" {
		return *it.CallID
	}
	return it.ID
}

func (it *item) functionCall(input string) hub.Part {
	if input == "" {
		input = "{}"
	}
	return hub.Part{
		Kind:    hub.ToolCallPart,
		Call:    &hub.ToolCall{ID: it.callID(), Name: it.Name, Input: input},
		Options: it.callOptions(),
	}
}

func (d *decoder) customCall(it *item, input string) []hub.Part {
	call := hub.Part{
		Kind:    hub.ToolCallPart,
		Call:    &hub.ToolCall{ID: it.callID(), Name: it.Name, Input: string(hub.MustEncode(input))},
		Options: it.callOptions(),
	}
	if d.hostedCustom == nil || !d.hostedCustom(it.Name) {
		call.Call.Name = d.name("custom."+it.Name, it.Name)
		call.Options.Set(optProvider, optCustom, true)
		return []hub.Part{call}
	}
	if json.Valid([]byte(input)) {
		call.Call.Input = input
	}
	d.ran.custom(it.Name)
	if strings.HasPrefix(it.Name, "x_") { // x_keyword_search and others, which are all of xAI's x_search
		call.Call.Name = d.name("x_search", it.Name)
	}
	call.Call.ProviderExecuted = true
	call.Options.SetRaw(optProvider, optItem, it.raw)
	return []hub.Part{call, it.result(call.Call, object{"status": it.Status})}
}

type object = map[string]any

// tool returns the parts of a tool item other than a function call, nil if its type is
// unknown. Names and forms of inputs and results follow the AI SDK's OpenAI provider.
func (d *decoder) tool(it *item) []hub.Part {
	call := &hub.ToolCall{ID: it.callID(), Name: strings.TrimSuffix(it.Type, "_call"), Input: "{}", ProviderExecuted: true}
	if args := text(it.Arguments); args != "" { // xAI: all its tools
		call.Input = args
		if it.Name != "" {
			call.Name = it.Name
		}
	}
	o := it.reasoningOptions(false)
	raw := it.raw
	var result any
	d.ran.item(it.Type, gjson.GetBytes(it.Action, "type").Str, it.ContainerID)
	switch it.Type {
	case "web_search_call":
		result = it.searchResult()
	case "x_search_call":
		result = object{"status": it.Status}
	case "file_search_call":
		result = object{"queries": null(it.Queries), "results": null(camel(it.Results))}
	case "code_interpreter_call":
		if it.Code != nil || it.ContainerID != "" {
			call.Input = string(hub.MustEncode(object{"code": it.Code, "containerId": it.ContainerID}))
		}
		result = object{"outputs": null(it.Outputs)}
	case "image_generation_call":
		call.Input = "{}"
		raw = without(raw, "result") // the result part has it
		result = object{"result": it.Result}
	case "mcp_call":
		return it.mcpCall()
	case "mcp_approval_request":
		call.Name, call.Dynamic = "mcp."+it.Name, true
		o.SetRaw(optProvider, optItem, raw)
		return []hub.Part{
			{Kind: hub.ToolCallPart, Call: call, Options: o},
			{Kind: hub.ApprovalRequestPart, Approval: &hub.Approval{ID: it.ID, CallID: call.ID}},
		}
	case "computer_call":
		call.ProviderExecuted = false
		call.Input = string(hub.MustEncode(object{"action": null(it.Action), "pendingSafetyChecks": null(it.SafetyChecks)}))
	case "local_shell_call":
		call.ProviderExecuted = false
		call.Input = string(hub.MustEncode(object{"action": null(it.Action)}))
	case "shell_call":
		call.ProviderExecuted = it.Environment != nil && strings.HasPrefix(it.Environment.Type, "container")
		call.Input = string(hub.MustEncode(object{"action": null(camel(it.Action))}))
	case "apply_patch_call":
		call.ProviderExecuted = false
		call.Input = string(hub.MustEncode(object{"callId": call.ID, "operation": null(it.Operation)}))
	case "tool_search_call":
		call.ProviderExecuted = it.Execution == "server"
		call.Input = string(hub.MustEncode(object{"arguments": null(it.Arguments), "call_id": it.CallID}))
		if call.ProviderExecuted {
			d.lastSearch = call.ID
		}
	case "shell_call_output", "tool_search_output":
		return d.hostedOutput(it)
	default:
		return nil
	}
	call.Name = d.name(strings.TrimSuffix(it.Type, "_call"), call.Name)
	o.SetRaw(optProvider, optItem, raw)
	parts := []hub.Part{{Kind: hub.ToolCallPart, Call: call, Options: o}}
	if result != nil {
		parts = append(parts, it.result(call, result))
	}
	return parts
}

func (it *item) result(call *hub.ToolCall, result any) hub.Part {
	return hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{
		CallID: call.ID, Name: call.Name, ProviderExecuted: true, Dynamic: call.Dynamic,
		Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: hub.MustEncode(result)},
	}}
}

func (it *item) searchResult() any {
	var action map[string]json.RawMessage
	if json.Unmarshal(it.Action, &action) != nil || action == nil {
		return object{}
	}
	out := object{}
	if sources, ok := action["sources"]; ok {
		out["sources"] = sources
		delete(action, "sources")
	}
	for ours, theirs := range searchActions {
		if string(action["type"]) == `"`+theirs+`"` {
			action["type"] = json.RawMessage(`"` + ours + `"`)
		}
	}
	out["action"] = action
	return out
}

// searchActions maps the AI SDK's names of web search actions to the API's.
var searchActions = map[string]string{"openPage": "open_page", "findInPage": "find_in_page"}

// mcpCall returns the parts of a call to an MCP server that the provider made. Calls with
// the server label ourLabel were made by other providers; see mcpItem.
func (it *item) mcpCall() []hub.Part {
	call := &hub.ToolCall{ID: it.ID, Name: "mcp." + it.Name, Input: text(it.Arguments), ProviderExecuted: true, Dynamic: true}
	if call.Input == "" {
		call.Input = "{}"
	}
	if it.ServerLabel == ourLabel {
		return it.foreignCall(call)
	}
	out := object{"type": "call", "serverLabel": it.ServerLabel, "name": it.Name, "arguments": text(it.Arguments)}
	if !hub.IsNull(it.Output) {
		out["output"] = it.Output
	}
	kind := hub.OutputJSON
	if !hub.IsNull(it.Error) {
		out["error"] = it.Error
		kind = hub.OutputErrorJSON
	}
	o := it.reasoningOptions(false)
	o.SetRaw(optProvider, optItem, it.raw)
	result := it.result(call, out)
	result.Result.Output.Kind = kind
	return []hub.Part{{Kind: hub.ToolCallPart, Call: call, Options: o}, result}
}

// ourLabel is the server_label of calls of tools that another provider ran.
const ourLabel = "cay"

// foreignCall is the inverse of mcpItem.
func (it *item) foreignCall(call *hub.ToolCall) []hub.Part {
	packed := strings.TrimPrefix(it.ID, "mcp_")
	var o hub.Options
	call.ID, o = hub.UnpackID(packed)
	call.Name, call.Dynamic = it.Name, false
	parts := []hub.Part{{Kind: hub.ToolCallPart, Call: call, Options: o}}
	output, failure := text(it.Output), text(it.Error)
	if output == "" && failure == "" {
		return parts
	}
	kind := hub.OutputJSON
	if failure != "" {
		output, kind = failure, hub.OutputErrorJSON
	}
	value := json.RawMessage(output)
	if !json.Valid(value) {
		value = hub.MustEncode(output)
	}
	result := it.result(call, value)
	result.Result.Output.Kind = kind
	return append(parts, result)
}

// hostedOutput returns the result of a hosted call that is in an item of its own.
func (d *decoder) hostedOutput(it *item) []hub.Part {
	call := &hub.ToolCall{ID: it.callID(), Name: "shell"}
	var result any = object{"output": null(camel(it.Output))}
	if it.Type == "tool_search_output" {
		call.Name = "tool_search"
		result = object{"tools": null(it.Tools)}
		if (it.CallID == nil || *it.CallID == "") && d.lastSearch != "" {
			call.ID = d.lastSearch
		}
	}
	call.Name = d.name(call.Name, call.Name)
	part := it.result(call, result)
	part.Options.SetRaw(optProvider, optItem, it.raw)
	return []hub.Part{part}
}

// text returns a string value without quotes, other values as they are, and "" for null.
func text(raw json.RawMessage) string {
	if hub.IsNull(raw) {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// null returns raw, or null if raw is empty.
func null(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}

// without returns an object without a member.
func without(raw json.RawMessage, name string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return raw
	}
	delete(members, name)
	return hub.MustEncode(members)
}

// with returns an object with a member set.
func with(raw json.RawMessage, name string, value any) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil || members == nil {
		return raw
	}
	members[name] = hub.MustEncode(value)
	return hub.MustEncode(members)
}

// camel converts member names to camel case, the AI SDK's form; snake converts them to
// OpenAI's form. The members of attributes, env, headers and parameters are the caller's
// own and stay unchanged.
func camel(raw json.RawMessage) json.RawMessage { return rename(raw, toCamel) }
func snake(raw json.RawMessage) json.RawMessage { return rename(raw, toSnake) }

func rename(raw json.RawMessage, to func(string) string) json.RawMessage {
	if len(raw) == 0 || raw[0] != '{' && raw[0] != '[' {
		return raw
	}
	// rename makes a single pass, because deep values would otherwise be parsed once per
	// level.
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return raw
	}
	return hub.MustEncode(renamed(v, to))
}

func renamed(v any, to func(string) string) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = renamed(v[i], to)
		}
	case object:
		out := make(object, len(v))
		for name, value := range v {
			switch name {
			case "attributes", "env", "headers", "parameters", "schema", "input_schema":
			default:
				value = renamed(value, to)
			}
			out[to(name)] = value
		}
		return out
	}
	return v
}

func toCamel(s string) string {
	var b strings.Builder
	up := false
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '_' && i > 0:
			up = true
			continue
		case up && 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		up = false
		b.WriteByte(c)
	}
	return b.String()
}

func toSnake(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' && i > 0 {
			b.WriteByte('_')
			c += 'a' - 'A'
		}
		b.WriteByte(c)
	}
	return b.String()
}

// file returns the file in a data: URL or base64 string. The media type is detected if it
// is unknown.
func file(data, mediaType, name string) (*hub.File, bool) {
	if rest, ok := strings.CutPrefix(data, "data:"); ok {
		head, body, found := strings.Cut(rest, ",")
		if !found {
			return nil, false
		}
		head, is64 := strings.CutSuffix(head, ";base64")
		if t, _, _ := strings.Cut(head, ";"); t != "" {
			mediaType = t
		}
		if !is64 {
			return &hub.File{MediaType: mediaType, Name: name, Text: body}, body != ""
		}
		data = body
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil || len(raw) == 0 {
		if raw, err = base64.RawStdEncoding.DecodeString(data); err != nil || len(raw) == 0 {
			return nil, false
		}
	}
	if mediaType == "" || strings.HasSuffix(mediaType, "/*") {
		mediaType = sniff(raw, mediaType)
	}
	return &hub.File{MediaType: mediaType, Name: name, Data: raw}, true
}

// sniff returns the full media type of a file whose subtype is unknown.
func sniff(raw []byte, mediaType string) string {
	found, _, _ := strings.Cut(http.DetectContentType(raw), ";")
	half := strings.TrimSuffix(mediaType, "*")
	if mediaType == "" || strings.HasPrefix(found, half) {
		return found
	}
	if half == "image/" {
		return "image/jpeg"
	}
	return mediaType
}

// typed returns the item in a custom part; an item from an answer already has its type.
func typed(raw json.RawMessage, kind string) json.RawMessage {
	var it struct{ Type string }
	if json.Unmarshal(raw, &it) == nil && it.Type == kind {
		return raw
	}
	return with(raw, "type", kind)
}
