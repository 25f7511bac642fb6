package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func (r *callReader) input(raw json.RawMessage) error {
	if hub.IsNull(raw) {
		if len(r.call.Prompt) == 0 {
			return invalid("input", "input is missing")
		}
		return nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		r.add(hub.User, hub.Part{Kind: hub.TextPart, Text: s})
		return nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return invalid("input", "input is neither a string nor a list of items")
	}
	d := &decoder{}
	for i, raw := range items {
		at := fmt.Sprintf("input[%d]", i)
		var it item
		if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' {
			return invalid(at, "%s is not an object", at)
		}
		if err := json.Unmarshal(raw, &it); err != nil {
			return &hub.Error{Kind: hub.BadRequest, Param: at, Message: at + " has a member of the wrong type", Cause: err}
		}
		if err := r.item(d, &it, at); err != nil {
			return err
		}
	}
	return nil
}

// add appends parts to the last message if its role is the same, assistant or tool, else
// as a new message.
func (r *callReader) add(role hub.Role, parts ...hub.Part) {
	if n := len(r.call.Prompt); n > 0 && r.call.Prompt[n-1].Role == role && (role == hub.Assistant || role == hub.ToolRole) {
		r.call.Prompt[n-1].Parts = append(r.call.Prompt[n-1].Parts, parts...)
		return
	}
	r.call.Prompt = append(r.call.Prompt, hub.Message{Role: role, Parts: parts})
}

func (r *callReader) item(d *decoder, it *item, at string) error {
	switch it.Type {
	case "", "message":
		return r.message(d, it, at)
	case "item_reference":
		return invalid(at, "%s refers to an item: the gateway keeps none. Send the item itself", at)
	case "reasoning":
		r.reasoning(it)
		return nil
	case "function_call", "custom_tool_call":
		return r.functionCall(it, at)
	case "function_call_output", "custom_tool_call_output":
		return r.output(it, at)
	case "mcp_approval_response":
		if it.Approve == nil || it.RequestID == "" {
			return invalid(at, "%s has no approve or no approval_request_id", at)
		}
		r.add(hub.ToolRole, hub.Part{Kind: hub.ApprovalResponsePart, Approval: &hub.Approval{ID: it.RequestID, Approved: *it.Approve, Reason: it.Reason}})
		return nil
	case "local_shell_call_output", "apply_patch_call_output", "computer_call_output":
		return r.toolOutput(it, at)
	case "shell_call_output", "tool_search_output":
		if it.Execution != "server" && !r.hosted[it.callID()] {
			return r.toolOutput(it, at)
		}
	case "image_generation_call":
		if r.image(it) {
			return nil
		}
	case "additional_tools":
		return r.additional(it, at)
	case "compaction":
		if it.EncryptedContent != nil {
			if o, ok := hub.Unwrap(*it.EncryptedContent); ok {
				p := hub.Part{Kind: hub.CustomPart, Custom: o["cay"]["custom"], CustomKind: o.String("cay", "kind")}
				delete(o, "cay")
				p.Options.Merge(o)
				r.add(hub.Assistant, p)
				return nil
			}
		}
	}
	parts := d.parts(it)
	for i := range parts {
		if c := parts[i].Call; c != nil {
			r.hosted[c.ID] = c.ProviderExecuted
		}
	}
	r.add(hub.Assistant, parts...)
	return nil
}

// image decodes an image that another provider generated, which is a file and not a tool
// call; see imageMark.
func (r *callReader) image(it *item) bool {
	packed, ok := strings.CutPrefix(it.ID, imageMark)
	if !ok || it.Result == nil {
		return false
	}
	mediaType := "image/*"
	if it.OutputFormat != "" {
		mediaType = "image/" + it.OutputFormat
	}
	f, ok := file(*it.Result, mediaType, "")
	if !ok {
		return false
	}
	_, o := hub.UnpackID(packed)
	r.add(hub.Assistant, hub.Part{Kind: hub.FilePart, File: f, Options: o})
	return true
}

func (r *callReader) functionCall(it *item, at string) error {
	if it.callID() == "" {
		return invalid(at+".call_id", "%s has no call_id", at)
	}
	if it.Name == "" {
		return invalid(at+".name", "%s has no name", at)
	}
	id, o := hub.UnpackID(it.callID())
	input := text(it.Arguments)
	if it.Type == "custom_tool_call" {
		// The input in the form of the tool's schema, for providers without custom tools.
		input = hub.CustomObject(it.Input)
	}
	p := it.functionCall(input)
	p.Call.ID = id
	p.Options.Merge(o)
	if it.Type == "custom_tool_call" {
		p.Options.Set(optProvider, optCustom, true)
	}
	p.Call.Name = joined(it.Namespace, it.Name)
	r.names[id] = p.Call.Name
	r.add(hub.Assistant, p)
	return nil
}

// reasoning decodes a reasoning item, with the data that the provider must get back.
// Other providers' data is in the encrypted content.
func (r *callReader) reasoning(it *item) {
	parts := it.reasoning()
	var wrapped hub.Options
	ok := false
	if it.EncryptedContent != nil {
		wrapped, ok = hub.Unwrap(*it.EncryptedContent)
	}
	if !ok {
		r.add(hub.Assistant, parts...)
		return
	}
	of := wrapped.String("cay", "of")
	delete(wrapped, "cay")
	if of != "" { // an afterthought, see writer.afterthought
		if n := len(r.call.Prompt); n > 0 && r.call.Prompt[n-1].Role == hub.Assistant {
			all := r.call.Prompt[n-1].Parts
			for i := len(all) - 1; i >= max(0, len(all)-afterReach); i-- {
				if string(all[i].Kind) == of {
					all[i].Options.Merge(wrapped)
					return
				}
			}
		}
		return // the part it belongs to is missing
	}
	for i := range parts {
		parts[i].Options = nil
	}
	parts[len(parts)-1].Options.Merge(wrapped)
	r.add(hub.Assistant, parts...)
}

// afterReach is how many parts back an afterthought may refer.
const afterReach = 32

func (r *callReader) output(it *item, at string) error {
	if it.callID() == "" || it.CallID == nil {
		return invalid(at+".call_id", "%s has no call_id", at)
	}
	id, _ := hub.UnpackID(*it.CallID)
	result := &hub.ToolResult{CallID: id, Name: r.names[id]}
	var s string
	switch {
	case hub.IsNull(it.Output):
		return invalid(at+".output", "%s has no output", at)
	case json.Unmarshal(it.Output, &s) == nil:
		result.Output = hub.ToolOutput{Kind: hub.OutputText, Text: s}
	default:
		var all []content
		if err := json.Unmarshal(it.Output, &all); err != nil {
			return invalid(at+".output", "%s.output is neither a string nor a list", at)
		}
		result.Output.Kind = hub.OutputContent
		for i, c := range all {
			p, err := r.part(&c, fmt.Sprintf("%s.output[%d]", at, i))
			if err != nil {
				return err
			}
			result.Output.Content = append(result.Output.Content, *p)
		}
	}
	r.add(hub.ToolRole, hub.Part{Kind: hub.ToolResultPart, Result: result})
	return nil
}

// toolOutput decodes the output of a client-run tool that is no function. The item is
// kept for its own provider.
func (r *callReader) toolOutput(it *item, at string) error {
	if it.callID() == "" {
		return invalid(at+".call_id", "%s has no call_id", at)
	}
	value := object{"output": null(camel(it.Output))}
	switch it.Type {
	case "tool_search_output":
		value = object{"tools": null(it.Tools)}
	case "apply_patch_call_output":
		value["status"] = it.Status
	}
	p := hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{
		CallID: it.callID(), Name: strings.TrimSuffix(strings.TrimSuffix(it.Type, "_output"), "_call"),
		Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: hub.MustEncode(value)},
	}}
	p.Options.SetRaw(optProvider, optItem, it.raw)
	r.add(hub.ToolRole, p)
	return nil
}

func (r *callReader) message(d *decoder, it *item, at string) error {
	var role hub.Role
	switch it.Role {
	case "user":
		role = hub.User
	case "assistant":
		role = hub.Assistant
	case "system", "developer":
		role = hub.System
	default:
		return invalid(at+".role", "%s.role is %q, and must be user, assistant, system or developer", at, it.Role)
	}
	var all []content
	var s string
	if json.Unmarshal(it.Content, &s) == nil {
		all = []content{{Type: "input_text", Text: s}}
	} else if err := json.Unmarshal(it.Content, &all); err != nil || hub.IsNull(it.Content) {
		return invalid(at+".content", "%s.content is neither a string nor a list of parts", at)
	}
	var parts []hub.Part
	for i, c := range all {
		at := fmt.Sprintf("%s.content[%d]", at, i)
		p, err := r.part(&c, at)
		if err != nil {
			return err
		}
		switch {
		case role == hub.System && p.Kind != hub.TextPart:
			return invalid(at+".type", "%s is a file, which a %s message cannot have", at, it.Role)
		case role == hub.Assistant:
			p.Options.Merge(it.textOptions())
		}
		parts = append(parts, *p)
	}
	r.add(role, parts...)
	return nil
}

// part decodes a part of a message or of a tool's output, and records OpenAI's own
// options of it.
func (r *callReader) part(c *content, at string) (*hub.Part, error) {
	p, err := c.part(at)
	if err == nil && p != nil && p.Options[optProvider]["imageDetail"] != nil {
		r.call.Members = append(r.call.Members, hub.Member{Name: at + ".detail", Provider: optProvider, Option: "imageDetail"})
	}
	return p, err
}

// part returns a part of a message or of a tool's output.
func (c *content) part(at string) (*hub.Part, error) {
	switch c.Type {
	case "input_text", "output_text", "text":
		p := &hub.Part{Kind: hub.TextPart, Text: c.Text}
		if c.Type == "output_text" {
			p.Options.Merge(annotated(c.Annotations, nil))
		}
		return p, nil
	case "refusal":
		p := &hub.Part{Kind: hub.TextPart, Text: c.Refusal}
		p.Options.Set(optProvider, optRefusal, true)
		return p, nil
	case "input_image":
		p, err := c.image(at)
		if err == nil && c.Detail != "" && c.Detail != "auto" {
			p.Options.Set(optProvider, "imageDetail", c.Detail)
		}
		return p, err
	case "input_file":
		return c.file(at)
	case "input_audio":
		if c.InputAudio == nil {
			return nil, invalid(at+".input_audio", "%s has no input_audio", at)
		}
		mediaType := "audio/" + c.InputAudio.Format
		if c.InputAudio.Format == "mp3" {
			mediaType = "audio/mpeg"
		}
		if f, ok := file(c.InputAudio.Data, mediaType, ""); ok {
			return &hub.Part{Kind: hub.FilePart, File: f}, nil
		}
		return nil, invalid(at+".input_audio.data", "%s has data that is not base64", at)
	}
	return nil, invalid(at+".type", "%s has the type %q, which is not known", at, c.Type)
}

func (c *content) image(at string) (*hub.Part, error) {
	url := text(c.ImageURL)
	if strings.HasPrefix(url, "{") { // the form of chat completions
		var inner struct{ URL string }
		if json.Unmarshal([]byte(url), &inner) == nil {
			url = inner.URL
		}
	}
	return c.reference(at, "image_url", url, url, "image/*")
}

func (c *content) file(at string) (*hub.Part, error) {
	mediaType := typeOf(c.Filename)
	if c.FileData != "" {
		return c.reference(at, "file_data", c.FileData, "", mediaType)
	}
	return c.reference(at, "file_url", "", c.FileURL, mediaType)
}

// reference returns a file given as data, as a URL, or as the id of an uploaded file.
func (c *content) reference(at, member, data, url, mediaType string) (*hub.Part, error) {
	switch {
	case strings.HasPrefix(url, "http://"), strings.HasPrefix(url, "https://"):
		return &hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: mediaType, Name: c.Filename, URL: url}}, nil
	case data != "":
		if f, ok := file(data, mediaType, c.Filename); ok {
			return &hub.Part{Kind: hub.FilePart, File: f}, nil
		}
		return nil, invalid(at+"."+member, "%s.%s is neither a URL nor a data: URL of base64", at, member)
	case c.FileID != "":
		return &hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: mediaType, Name: c.Filename, Reference: map[string]string{optProvider: c.FileID}}}, nil
	}
	return nil, invalid(at, "%s has no %s", at, member)
}

// typeOf returns the media type of a document by its name; the default is PDF.
func typeOf(name string) string {
	dot := strings.LastIndexByte(name, '.')
	if dot < 0 {
		return "application/pdf"
	}
	switch ext := strings.ToLower(name[dot+1:]); ext {
	case "txt", "log":
		return "text/plain"
	case "md":
		return "text/markdown"
	case "csv", "html", "xml", "css":
		return "text/" + ext
	case "json":
		return "application/json"
	case "png", "gif", "webp", "jpeg":
		return "image/" + ext
	case "jpg":
		return "image/jpeg"
	case "docx":
		return "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
	case "xlsx":
		return "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
	case "pptx":
		return "application/vnd.openxmlformats-officedocument.presentationml.presentation"
	}
	return "application/pdf"
}
