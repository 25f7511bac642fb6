package gemini

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// say appends a part to the conversation, in the last turn if that has the same role.
func (w *callWriter) say(role string, part object) {
	n := len(w.body.Contents)
	if n == 0 || w.body.Contents[n-1].Role != role {
		w.body.Contents = append(w.body.Contents, &turn{Role: role})
		n++
	}
	last := w.body.Contents[n-1]
	last.Parts = append(last.Parts, part)
}

func (w *callWriter) message(at int, m *hub.Message) error {
	switch m.Role {
	case hub.System:
		w.system(at, m)
		return nil
	case hub.User:
		if w.early != "" {
			early := w.early
			w.early = ""
			w.say("user", object{"text": early})
		}
		for i := range m.Parts {
			p, err := w.input(&m.Parts[i])
			if err != nil {
				return err
			}
			if p != nil {
				w.say("user", p)
			}
		}
		return nil
	case hub.Assistant:
		return w.assistant(m)
	}
	return w.results(m)
}

func (w *callWriter) system(at int, m *hub.Message) {
	var texts []string
	for _, p := range m.Parts {
		texts = append(texts, p.Text)
	}
	text := strings.Join(texts, "\n")
	if noSystem(w.target) {
		if w.early != "" {
			w.early += "\n\n"
		}
		w.early += text
		w.warn(hub.WarnCompatibility, "system", "the model knows no system messages; it is part of what the user says")
		return
	}
	if len(w.body.Contents) > 0 {
		w.warn(hub.WarnCompatibility, "system", "system messages are sent before all others")
	}
	if w.body.SystemInstruction == nil {
		w.body.SystemInstruction = &turn{}
	}
	w.body.SystemInstruction.Parts = append(w.body.SystemInstruction.Parts, object{"text": text})
}

// input returns a part of a user's or a tool's message.
func (w *callWriter) input(p *hub.Part) (object, error) {
	switch p.Kind {
	case hub.TextPart:
		return object{"text": p.Text}, nil
	case hub.FilePart, hub.ReasoningFilePart:
		return w.file(p.File)
	case hub.CustomPart:
		if part := custom(p); part != nil {
			return part, nil
		}
	}
	w.unsupported(string(p.Kind), "Gemini has no such part here")
	return nil, nil
}

// custom returns the original part of a custom part, nil if it is another provider's.
func custom(p *hub.Part) object {
	var part object
	if !strings.HasPrefix(p.CustomKind, optProvider+".") || json.Unmarshal(p.Custom, &part) != nil {
		return nil
	}
	return part
}

func (w *callWriter) file(f *hub.File) (object, error) {
	mediaType := full(f)
	switch {
	case f.Text != "":
		return object{"text": f.Text}, nil
	case f.Reference != nil:
		uri := f.Reference[optProvider]
		if uri == "" {
			uri = f.Reference[w.target.Provider]
		}
		if uri == "" {
			return nil, invalid("file", "a file was uploaded to another provider than %s", w.target.Provider)
		}
		return object{"fileData": object{"mimeType": mediaType, "fileUri": uri}}, nil
	case f.URL != "":
		return object{"fileData": object{"mimeType": mediaType, "fileUri": f.URL}}, nil
	}
	return object{"inlineData": object{"mimeType": mediaType, "data": f.Data}}, nil
}

// full returns the full media type of a file whose subtype may be missing, because Google
// requires the full type.
func full(f *hub.File) string {
	half, open := strings.CutSuffix(f.MediaType, "*")
	if !open && f.MediaType != "" {
		return f.MediaType
	}
	if len(f.Data) > 0 {
		if found, _, _ := strings.Cut(http.DetectContentType(f.Data), ";"); strings.HasPrefix(found, half) {
			return found
		}
	}
	url, _, _ := strings.Cut(f.URL, "?")
	ext := strings.ToLower(strings.TrimPrefix(filepath.Ext(url+f.Name), "."))
	switch ext {
	case "jpg":
		ext = "jpeg"
	case "mp3":
		ext = "mpeg"
	}
	known := map[string]string{
		"image/": "png jpeg webp heic heif gif", "audio/": "wav mpeg aiff aac ogg flac", "video/": "mp4 mpeg mov avi webm wmv",
	}
	usual := map[string]string{"image/": "image/jpeg", "audio/": "audio/mpeg", "video/": "video/mp4", "text/": "text/plain"}
	for _, e := range strings.Fields(known[half]) {
		if e == ext {
			return half + ext
		}
	}
	if ext == "pdf" {
		return "application/pdf"
	}
	if usual[half] != "" {
		return usual[half]
	}
	return "application/octet-stream"
}

// sign adds the part's signature, if any.
func sign(part object, o hub.Options) object {
	if s := o.String(optProvider, optSignature); s != "" {
		part["thoughtSignature"] = s
	}
	return part
}

func (w *callWriter) assistant(m *hub.Message) error {
	signed := false // a function call has a signature: one is enough for parallel calls
	for i := range m.Parts {
		p := &m.Parts[i]
		switch p.Kind {
		case hub.TextPart:
			if p.Text != "" || p.Options.String(optProvider, optSignature) != "" {
				w.say("model", sign(object{"text": p.Text}, p.Options))
			}
		case hub.ReasoningPart:
			w.reasoning(p)
		case hub.FilePart, hub.ReasoningFilePart:
			part, err := w.file(p.File)
			if err != nil {
				return err
			}
			if p.Kind == hub.ReasoningFilePart {
				part["thought"] = true
			}
			w.say("model", sign(part, p.Options))
		case hub.ToolCallPart:
			w.toolCall(p, !signed)
			signed = signed || !p.Call.ProviderExecuted
		case hub.ToolResultPart:
			w.hostedResult(p)
		case hub.CustomPart:
			if part := custom(p); part != nil {
				w.say("model", part)
			} else {
				w.unsupported(p.CustomKind, "it is of another provider")
			}
		case hub.SourcePart: // sources belong to the text, which is sent back
		default:
			w.unsupported(string(p.Kind), "Gemini has no such part")
		}
	}
	return nil
}

// reasoning sends back only Google's reasoning, because Google cannot verify another
// provider's signatures.
func (w *callWriter) reasoning(p *hub.Part) {
	for provider := range p.Options {
		if provider != optProvider {
			w.unsupported("reasoning", "it is of another provider")
			return
		}
	}
	if p.Text != "" || len(p.Options) > 0 {
		w.say("model", sign(object{"text": p.Text, "thought": true}, p.Options))
	}
}

// toolCall writes a tool call. Models from version 3 on reject a turn whose first call
// has no signature.
func (w *callWriter) toolCall(p *hub.Part, first bool) {
	c := p.Call
	w.names[c.ID] = c.Name
	if c.ProviderExecuted {
		var in struct{ Language, Code *string }
		if json.Unmarshal([]byte(c.Input), &in) == nil && in.Language != nil && in.Code != nil {
			w.ids[c.ID] = "code"
			w.say("model", sign(object{"executableCode": object{"language": in.Language, "code": in.Code}}, p.Options))
			return
		}
		w.foreign[c.ID] = c
		return
	}
	w.call0(c, p.Options, first)
}

func (w *callWriter) call0(c *hub.ToolCall, o hub.Options, first bool) {
	call := object{"name": c.Name, "args": arguments0(c)}
	if id := o.String(optProvider, optID); id != "" {
		w.ids[c.ID] = id
		call["id"] = id
	}
	part := sign(object{"functionCall": call}, o)
	if first && part["thoughtSignature"] == nil && version(w.target.Model) >= 3 {
		part["thoughtSignature"] = noSignature
		if !w.excused {
			w.excused = true
			w.warn(hub.WarnCompatibility, "reasoning", "tool calls of another model have no signature")
		}
	}
	w.say("model", part)
}

// arguments0 returns the arguments as a JSON object, which the format requires.
func arguments0(c *hub.ToolCall) any {
	value := c.InputValue()
	if value[0] == '{' {
		return value
	}
	if value = hub.Compact(value); value[0] == '{' {
		return value
	}
	return object{"input": value}
}

// hostedResult writes the result of a tool that a provider ran: for Google's code
// execution as received; for another provider's tool as a function call with its result.
func (w *callWriter) hostedResult(p *hub.Part) {
	r := p.Result
	if w.ids[r.CallID] == "code" {
		result := object{}
		if json.Unmarshal(r.Output.JSON, &result) != nil || result["outcome"] == nil {
			result = object{"outcome": "OUTCOME_OK", "output": string(r.Output.JSON)}
		}
		w.say("model", sign(object{"codeExecutionResult": result}, p.Options))
		return
	}
	c := w.foreign[r.CallID]
	if c == nil {
		return // not sent: the answer's text contains the information
	}
	delete(w.foreign, r.CallID)
	w.call0(c, nil, true)
	said := "output"
	if r.Output.Failed() {
		said = "error"
	}
	w.say("user", object{"functionResponse": object{"name": c.Name, "response": object{said: orNull(r.Output.JSON)}}})
	w.warn(hub.WarnCompatibility, "tools."+c.Name, "a call that another provider ran is sent as one of a function")
}

// results writes the tool results of one turn, followed by their files for models that do
// not accept files inside results.
func (w *callWriter) results(m *hub.Message) error {
	var files []object
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Kind != hub.ToolResultPart {
			w.unsupported(string(p.Kind), "Gemini has no such part here")
			continue
		}
		r := p.Result
		name := r.Name
		if name == "" {
			name = w.names[r.CallID]
		}
		if name == "" {
			return invalid("prompt", "the result of the tool call %q has no tool name, and there is no such call before it", r.CallID)
		}
		response := object{"name": name}
		if id := w.ids[r.CallID]; id != "" && id != "code" {
			response["id"] = id
		}
		said, inside, err := w.output(&r.Output)
		if err != nil {
			return err
		}
		response["response"] = said
		if version(w.target.Model) >= 3 && len(inside) > 0 {
			response["parts"] = inside
		} else {
			files = append(files, inside...)
		}
		w.say("user", object{"functionResponse": response})
	}
	for _, f := range files {
		w.say("user", f)
	}
	return nil
}

// output returns a function response object with the members that Google documents, and
// the files of the result.
func (w *callWriter) output(o *hub.ToolOutput) (object, []object, error) {
	switch o.Kind {
	case hub.OutputText:
		return object{"output": o.Text}, nil, nil
	case hub.OutputErrorText:
		return object{"error": o.Text}, nil, nil
	case hub.OutputJSON:
		return object{"output": orNull(o.JSON)}, nil, nil
	case hub.OutputErrorJSON:
		return object{"error": orNull(o.JSON)}, nil, nil
	case hub.OutputDenied:
		text := o.Text
		if text == "" {
			text = "The tool was not run: it was denied."
		}
		return object{"error": text}, nil, nil
	}
	var texts []string
	var files []object
	for i := range o.Content {
		p, err := w.input(&o.Content[i])
		if err != nil {
			return nil, nil, err
		}
		if text, ok := p["text"].(string); ok {
			texts = append(texts, text)
		} else if p != nil {
			files = append(files, p)
		}
	}
	return object{"output": strings.Join(texts, "\n")}, files, nil
}

func orNull(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("null")
	}
	return raw
}
