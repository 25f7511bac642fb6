package responses

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (w *callWriter) add(item any) { w.body.Input = append(w.body.Input, item) }

func (w *callWriter) message(at int, m *hub.Message) error {
	switch m.Role {
	case hub.System:
		w.system(at, m)
		return nil
	case hub.User:
		w.flushImages()
		var parts []any
		for i := range m.Parts {
			p, err := w.input(&m.Parts[i])
			if err != nil {
				return err
			}
			if p != nil {
				parts = append(parts, p)
			}
		}
		if parts == nil {
			parts = []any{}
		}
		w.add(object{"role": "user", "content": parts})
		return nil
	case hub.Assistant:
		return w.assistant(m)
	}
	for i := range m.Parts {
		if err := w.toolPart(&m.Parts[i]); err != nil {
			return err
		}
	}
	w.flushImages()
	return nil
}

func (w *callWriter) system(at int, m *hub.Message) {
	var texts []string
	for _, p := range m.Parts {
		texts = append(texts, p.Text)
	}
	all := strings.Join(texts, "\n")
	var instructions bool
	if m.Options.Get(optProvider, optInstructions, &instructions); instructions && at == 0 && w.body.Instructions == "" {
		w.body.Instructions = all
		return
	}
	role := "developer"
	if w.target.Is(QuirkSystemRole) {
		role = "system"
	}
	w.add(object{"role": role, "content": all})
}

// flushImages sends the collected images of the assistant as a user message.
func (w *callWriter) flushImages() {
	if w.images != nil {
		w.add(object{"role": "user", "content": w.images})
		w.images = nil
	}
}

// input returns a part of a user's or a tool's message.
func (w *callWriter) input(p *hub.Part) (any, error) {
	switch p.Kind {
	case hub.TextPart:
		return object{"type": "input_text", "text": p.Text}, nil
	case hub.FilePart, hub.ReasoningFilePart:
		return w.file(p)
	case hub.CustomPart:
		if kind, ok := strings.CutPrefix(p.CustomKind, optProvider+"."); ok && p.Custom != nil {
			return typed(p.Custom, kind), nil
		}
	}
	w.unsupported(string(p.Kind), "the Responses API has no such part here")
	return nil, nil
}

func (w *callWriter) file(p *hub.Part) (any, error) {
	f := p.File
	mediaType := f.MediaType
	if len(f.Data) > 0 && (mediaType == "" || strings.HasSuffix(mediaType, "/*")) {
		mediaType = sniff(f.Data, mediaType)
	}
	half, _, _ := strings.Cut(mediaType, "/")
	id := f.Reference[optProvider]
	if id == "" {
		id = f.Reference[w.target.Provider]
	}
	switch {
	case f.Text != "":
		return object{"type": "input_text", "text": f.Text}, nil
	case len(f.Reference) > 0 && id == "":
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "file", Message: "a file was uploaded to another provider than " + w.target.Provider}
	case half == "audio" || half == "video":
		return nil, &hub.Error{Kind: hub.BadRequest, Param: "file", Message: "the model takes no file of the type " + mediaType}
	case half == "image":
		part := object{"type": "input_image"}
		switch {
		case id != "":
			part["file_id"] = id
		case f.URL != "":
			part["image_url"] = f.URL
		default:
			part["image_url"] = dataURL(mediaType, f.Data)
		}
		if detail := p.Options[optProvider]["imageDetail"]; detail != nil {
			part["detail"] = detail
		}
		return part, nil
	}
	part := object{"type": "input_file"}
	switch {
	case id != "":
		part["file_id"] = id
	case f.URL != "":
		part["file_url"] = f.URL
	default:
		part["file_data"] = dataURL(mediaType, f.Data)
		part["filename"] = f.Name
		if f.Name == "" { // required with data
			part["filename"] = "file." + extension(mediaType)
		}
	}
	return part, nil
}

func dataURL(mediaType string, data []byte) string {
	return "data:" + mediaType + ";base64," + base64.StdEncoding.EncodeToString(data)
}

// extension returns the file name extension for a media type.
func extension(mediaType string) string {
	_, sub, _ := strings.Cut(mediaType, "/")
	switch {
	case sub == "plain" || sub == "":
		return "txt"
	case sub == "markdown":
		return "md"
	case strings.HasSuffix(sub, "wordprocessingml.document"):
		return "docx"
	case strings.HasSuffix(sub, "spreadsheetml.sheet"):
		return "xlsx"
	case strings.HasSuffix(sub, "presentationml.presentation"):
		return "pptx"
	}
	return sub
}

// assistant writes the parts of an answer as items in the original order: reasoning stays
// directly before the call that followed it.
func (w *callWriter) assistant(m *hub.Message) error {
	w.results = make(map[string]*hub.ToolResult)
	for i := range m.Parts {
		if r := m.Parts[i].Result; r != nil {
			w.results[r.CallID] = r
		}
	}
	keepIDs := true // an item with reasoning must not be sent without its reasoning
	for i := 0; i < len(m.Parts); i++ {
		p := &m.Parts[i]
		switch p.Kind {
		case hub.TextPart:
			i = w.texts(m.Parts, i, keepIDs) - 1
		case hub.ReasoningPart:
			next, ok := w.reasoning(m.Parts, i)
			i, keepIDs = next-1, keepIDs && ok
		case hub.ToolCallPart:
			w.toolCall(p, keepIDs)
		case hub.ToolResultPart:
			w.hostedResult(p)
		case hub.FilePart:
			image, err := w.file(p)
			if err != nil {
				return err
			}
			w.images = append(w.images, image)
			w.warn(hub.WarnCompatibility, "file", "files of the assistant's are sent as the user's")
		case hub.CustomPart:
			if kind, ok := strings.CutPrefix(p.CustomKind, optProvider+"."); ok && p.Custom != nil {
				w.add(typed(p.Custom, kind))
			} else {
				w.unsupported(p.CustomKind, "it is of another provider")
			}
		case hub.SourcePart, hub.ApprovalRequestPart: // contained in the text, or in the call, that is sent back
		default:
			w.unsupported(string(p.Kind), "the Responses API has no such part here")
		}
	}
	for i := range m.Parts {
		if c := m.Parts[i].Call; c != nil && w.kinds[c.ID] == "foreign" {
			w.unsupported("tools."+c.Name, "it is a tool of another provider, and what came of the call is missing")
		}
	}
	return nil
}

// texts writes consecutive texts of one message and returns the position after them.
func (w *callWriter) texts(parts []hub.Part, i int, keepIDs bool) int {
	id, phase := parts[i].Options.String(optProvider, optItemID), parts[i].Options.String(optProvider, optPhase)
	var all []any
	for ; i < len(parts); i++ {
		p := &parts[i]
		if p.Kind == hub.SourcePart {
			continue
		}
		if p.Kind != hub.TextPart || p.Options.String(optProvider, optItemID) != id {
			break
		}
		c := object{"type": "output_text", "text": p.Text}
		var refusal bool
		if p.Options.Get(optProvider, optRefusal, &refusal); refusal {
			c = object{"type": "refusal", "refusal": p.Text}
		}
		all = append(all, c)
	}
	m := object{"type": "message", "role": "assistant", "content": all}
	if keepIDs && strings.HasPrefix(id, "msg") {
		m["id"], m["status"] = id, "completed"
	}
	if phase != "" {
		m["phase"] = phase
	}
	w.add(m)
	return i
}

// reasoning writes consecutive parts of one reasoning item, and returns the position
// after them and whether an item was written. Reasoning of another provider, or without
// encrypted content, cannot be sent.
func (w *callWriter) reasoning(parts []hub.Part, i int) (int, bool) {
	id := parts[i].Options.String(optProvider, optItemID)
	encrypted, first := "", i
	summaries, contents := []any{}, []any{}
	for ; i < len(parts) && parts[i].Kind == hub.ReasoningPart && (i == first || id != "" && parts[i].Options.String(optProvider, optItemID) == id); i++ {
		p := &parts[i]
		var raw bool
		if p.Options.Get(optProvider, optRawText, &raw); raw {
			contents = append(contents, object{"type": "reasoning_text", "text": p.Text})
		} else if p.Text != "" {
			summaries = append(summaries, object{"type": "summary_text", "text": p.Text})
		}
		if s := p.Options.String(optProvider, optEncrypted); s != "" {
			encrypted = s
		}
	}
	if encrypted == "" && len(contents) == 0 {
		message := "it is not encrypted, so that " + w.target.Provider + " cannot have it back"
		if id == "" {
			message = "it is of another provider"
		}
		w.unsupported("reasoning", message)
		return i, false
	}
	item := object{"type": "reasoning", "summary": summaries}
	if id != "" {
		item["id"] = id
	}
	if encrypted != "" {
		item["encrypted_content"] = encrypted
	}
	if len(contents) > 0 {
		item["content"] = contents
	}
	w.add(item)
	return i, true
}

func (w *callWriter) toolCall(p *hub.Part, keepIDs bool) {
	c := p.Call
	if raw := p.Options[optProvider][optItem]; raw != nil {
		var it item
		if json.Unmarshal(raw, &it) == nil && it.Type != "" {
			if it.Type == "image_generation_call" { // without, see decoder.tool
				it.raw = with(it.raw, "result", imageResult(w.results[c.ID]))
			}
			w.kinds[c.ID] = it.Type
			w.add(it.raw)
			return
		}
	}
	if c.ProviderExecuted { // ran at another provider: see hostedResult
		w.kinds[c.ID] = "foreign"
		w.foreign[c.ID] = c
		return
	}
	name, namespace := w.namespaces.callOf(c.Name, p.Options)
	item := object{"type": "function_call", "call_id": c.ID, "name": name, "arguments": c.Input}
	if c.Input == "" {
		item["arguments"] = "{}"
	}
	var custom bool
	if p.Options.Get(optProvider, optCustom, &custom); custom || w.custom[c.Name] {
		item = object{"type": "custom_tool_call", "call_id": c.ID, "name": name, "input": hub.CustomInput(c.Input)}
	}
	if namespace != nil {
		item[optNamespace] = namespace
	}
	w.kinds[c.ID] = item["type"].(string)
	if id := p.Options.String(optProvider, optItemID); id != "" && keepIDs {
		item["id"] = id
	}
	if v := p.Options[optProvider][optCaller]; v != nil {
		item[optCaller] = v
	}
	w.add(item)
}

// imageResult returns the image generated by a hosted call, null if there is none.
func imageResult(r *hub.ToolResult) any {
	var out struct{ Result *string }
	if r == nil || json.Unmarshal(r.Output.JSON, &out) != nil {
		return nil
	}
	return out.Result
}

// hostedResult writes the result of a tool that a provider ran. The result is in the
// call's item, or in an item of its own; the result of another provider's tool becomes a
// function's result, with its call.
func (w *callWriter) hostedResult(p *hub.Part) {
	r := p.Result
	if raw := p.Options[optProvider][optItem]; raw != nil {
		w.add(raw)
		return
	}
	c := w.foreign[r.CallID]
	if c == nil || w.kinds[r.CallID] != "foreign" {
		return
	}
	w.add(object{"type": "function_call", "call_id": c.ID, "name": c.Name, "arguments": string(c.InputValue())})
	w.add(object{"type": "function_call_output", "call_id": c.ID, "output": string(null(r.Output.JSON))})
	w.warn(hub.WarnCompatibility, "tools."+c.Name, "a call that another provider ran is sent as one of a function")
	w.kinds[r.CallID] = "function_call"
}

func (w *callWriter) toolPart(p *hub.Part) error {
	switch p.Kind {
	case hub.ApprovalResponsePart:
		item := object{"type": "mcp_approval_response", "approval_request_id": p.Approval.ID, "approve": p.Approval.Approved}
		if p.Approval.Reason != "" {
			item["reason"] = p.Approval.Reason
		}
		w.add(item)
		return nil
	case hub.ToolResultPart:
	default:
		w.unsupported(string(p.Kind), "the Responses API has no such part here")
		return nil
	}
	r := p.Result
	if raw := p.Options[optProvider][optItem]; raw != nil {
		w.add(raw)
		return nil
	}
	kind := w.kinds[r.CallID]
	switch kind {
	case "foreign":
		w.unsupported("tools."+r.Name, "it is a tool of another provider")
		return nil
	case "", "function_call", "custom_tool_call":
	default:
		if r.Output.Kind == hub.OutputJSON {
			w.add(toolOutput(kind, r))
			return nil
		}
	}
	output, err := w.output(&r.Output)
	if err != nil {
		return err
	}
	if kind != "custom_tool_call" {
		kind = "function_call"
	}
	w.add(object{"type": kind + "_output", "call_id": r.CallID, "output": output})
	return nil
}

// toolOutput returns the result of a client-run tool that is no function, in the form of
// the AI SDK's OpenAI provider.
func toolOutput(kind string, r *hub.ToolResult) object {
	item := object{"type": strings.TrimSuffix(kind, "_call") + "_call_output", "call_id": r.CallID}
	var members map[string]json.RawMessage
	if json.Unmarshal(r.Output.JSON, &members) != nil {
		item["output"] = r.Output.JSON
		return item
	}
	for name, v := range members {
		item[name] = snake(v)
	}
	if kind == "tool_search_call" {
		item["type"], item["execution"], item["status"] = "tool_search_output", "client", "completed"
	}
	return item
}

func (w *callWriter) output(o *hub.ToolOutput) (any, error) {
	switch o.Kind {
	case hub.OutputText, hub.OutputErrorText:
		return o.Text, nil
	case hub.OutputJSON, hub.OutputErrorJSON:
		return string(null(o.JSON)), nil
	case hub.OutputDenied:
		return first(o.Text, "The tool was not run: it was denied."), nil
	}
	parts := []any{}
	for i := range o.Content {
		p, err := w.input(&o.Content[i])
		if err != nil {
			return nil, err
		}
		if p != nil {
			parts = append(parts, p)
		}
	}
	return parts, nil
}
