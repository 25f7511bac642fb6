package gatewaytest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// Asked is the content of a request in a form that is the same for all wire formats. It
// has a JSON form for programs: the model "echo" answers with it.
type Asked struct {
	System string          `json:"system,omitempty"`
	Turns  []Turn          `json:"turns"`
	Tools  []string        `json:"tools,omitempty"`
	Schema json.RawMessage `json:"schema,omitempty"` // of the answer; {} for any JSON
	// Choice is auto, none, required or the name of a tool.
	Choice      string   `json:"choice,omitempty"`
	MaxTokens   int      `json:"maxTokens,omitempty"`
	Temperature *float64 `json:"temperature,omitempty"`
	Stop        []string `json:"stop,omitempty"`
	// Thinking is the thinking setting of the format: an effort, a number of tokens.
	Thinking string `json:"thinking,omitempty"`
	// Cached counts the cache markers.
	Cached int  `json:"cached,omitempty"`
	Stream bool `json:"stream,omitempty"`
}

// Turn is a message. Role is user or assistant; tool results belong to the user.
type Turn struct {
	Role      string   `json:"role"`
	Text      string   `json:"text,omitempty"`
	Files     []Sent   `json:"files,omitempty"`
	Reasoning string   `json:"reasoning,omitempty"`
	Signed    []string `json:"signed,omitempty"` // signatures that the client sent back
	Calls     []Call   `json:"calls,omitempty"`
	Results   []Result `json:"results,omitempty"`
}

// Sent is a file of a message: its media type and either its bytes or its location.
type Sent struct {
	Type  string `json:"type,omitempty"`
	Bytes int    `json:"bytes,omitempty"`
	URL   string `json:"url,omitempty"`
	Name  string `json:"name,omitempty"`
}

// Call is a tool call from an earlier answer.
type Call struct {
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}

// Result is the result of a tool.
type Result struct {
	ID     string `json:"id"`
	Name   string `json:"name,omitempty"` // gemini
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`
	Files  []Sent `json:"files,omitempty"`
}

// value is any JSON.
type value struct{ v any }

func (v value) at(name string) value {
	m, _ := v.v.(map[string]any)
	return value{m[name]}
}

func (v value) has(name string) bool {
	m, _ := v.v.(map[string]any)
	_, ok := m[name]
	return ok
}

func (v value) list() []value {
	l, _ := v.v.([]any)
	all := make([]value, len(l))
	for i := range l {
		all[i] = value{l[i]}
	}
	return all
}

func (v value) text() string {
	s, _ := v.v.(string)
	return s
}

func (v value) number() int {
	n, _ := v.v.(float64)
	return int(n)
}

func (v value) raw() json.RawMessage {
	if v.v == nil {
		return nil
	}
	return encode(v.v)
}

func (v value) float() *float64 {
	if n, ok := v.v.(float64); ok {
		return &n
	}
	return nil
}

func (v value) texts() []string {
	var all []string
	for _, e := range v.list() {
		all = append(all, e.text())
	}
	return all
}

// ask decodes a request of a format. It returns an error for requests that a provider
// would refuse.
func ask(format, model string, body []byte) (*Asked, error) {
	var v value
	if err := json.Unmarshal(body, &v.v); err != nil {
		return nil, fmt.Errorf("the body is no JSON: %v", err)
	}
	if _, ok := v.v.(map[string]any); !ok {
		return nil, fmt.Errorf("the body is no object")
	}
	a := &Asked{Stream: v.at("stream").v == true}
	var err error
	switch format {
	case Chat:
		err = a.chat(v)
	case Responses:
		err = a.responses(v)
	case Messages:
		err = a.messages(v)
	case Gemini:
		err = a.gemini(v)
	case Converse:
		err = a.converse(model, v)
	}
	if err == nil && len(a.Turns) == 0 {
		err = fmt.Errorf("there are no messages")
	}
	if err == nil {
		err = a.paired()
	}
	return a, err
}

// paired returns an error for results without calls, which all providers refuse. Gemini's
// results have no ids.
func (a *Asked) paired() error {
	known := map[string]bool{}
	for _, t := range a.Turns {
		for _, c := range t.Calls {
			known[c.ID] = true
		}
		for _, r := range t.Results {
			if !known[r.ID] && r.ID != "" {
				return fmt.Errorf("a result for the call %q, which is not there", r.ID)
			}
		}
	}
	return nil
}

// turn returns the last turn if it has the role, else a new one.
func (a *Asked) turn(role string) *Turn {
	if n := len(a.Turns); n > 0 && a.Turns[n-1].Role == role {
		return &a.Turns[n-1]
	}
	a.Turns = append(a.Turns, Turn{Role: role})
	return &a.Turns[len(a.Turns)-1]
}

func (a *Asked) cache(v value) {
	if v.has("cache_control") || v.has("cachePoint") {
		a.Cached++
	}
}

// sent reads a URL, which may be a data: URL.
func sent(url, name string) Sent {
	if head, data, ok := strings.Cut(url, ","); ok && strings.HasPrefix(head, "data:") {
		return coded(strings.TrimSuffix(strings.TrimPrefix(head, "data:"), ";base64"), data, name)
	}
	return Sent{URL: url, Name: name}
}

func coded(kind, data, name string) Sent {
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		kind += " (no base64)"
	}
	return Sent{Type: kind, Bytes: len(raw), Name: name}
}

func joined(texts ...string) string { return strings.Join(texts, "") }

func (a *Asked) chat(v value) error {
	if v.at("model").text() == "" {
		return fmt.Errorf("you must provide a model parameter")
	}
	for _, m := range v.at("messages").list() {
		role := m.at("role").text()
		switch role {
		case "system", "developer":
			a.System = joined(a.System, a.chatContent(m.at("content"), &Turn{}))
			continue
		case "tool":
			t := a.turn("user")
			var inside Turn
			text := a.chatContent(m.at("content"), &inside)
			t.Results = append(t.Results, Result{ID: m.at("tool_call_id").text(), Text: text, Files: inside.Files})
			continue
		case "user", "assistant":
		default:
			return fmt.Errorf("the role %q", role)
		}
		t := a.turn(role)
		t.Text = joined(t.Text, a.chatContent(m.at("content"), t))
		t.Reasoning = joined(t.Reasoning, m.at("reasoning_content").text(), m.at("reasoning").text())
		for _, c := range m.at("tool_calls").list() {
			if c.has("custom") {
				input := encode(map[string]string{"input": c.at("custom").at("input").text()})
				t.Calls = append(t.Calls, Call{c.at("id").text(), c.at("custom").at("name").text(), input})
				continue
			}
			arguments := c.at("function").at("arguments").text()
			if !json.Valid([]byte(arguments)) {
				return fmt.Errorf("the arguments of a call are no JSON: %q", arguments)
			}
			t.Calls = append(t.Calls, Call{c.at("id").text(), c.at("function").at("name").text(), json.RawMessage(arguments)})
		}
	}
	for _, t := range v.at("tools").list() {
		a.Tools = append(a.Tools, t.at("function").at("name").text()+t.at("custom").at("name").text())
	}
	a.Choice = v.at("tool_choice").text()
	if name := v.at("tool_choice").at("function").at("name").text() + v.at("tool_choice").at("custom").at("name").text(); name != "" {
		a.Choice = name
	}
	switch f := v.at("response_format"); f.at("type").text() {
	case "json_schema":
		a.Schema = f.at("json_schema").at("schema").raw()
	case "json_object":
		a.Schema = json.RawMessage("{}")
	}
	a.MaxTokens = max(v.at("max_tokens").number(), v.at("max_completion_tokens").number())
	a.Temperature, a.Thinking = v.at("temperature").float(), v.at("reasoning_effort").text()
	if a.Stop = v.at("stop").texts(); len(a.Stop) > 4 && strings.HasPrefix(v.at("model").text(), "gpt-") {
		return fmt.Errorf("'$.stop' is too long: maximum length is 4")
	}
	if s := v.at("stop").text(); s != "" {
		a.Stop = []string{s}
	}
	return nil
}

func (a *Asked) chatContent(v value, t *Turn) string {
	text := v.text()
	for _, p := range v.list() {
		a.cache(p)
		switch p.at("type").text() {
		case "text":
			text = joined(text, p.at("text").text())
		case "image_url":
			t.Files = append(t.Files, sent(p.at("image_url").at("url").text(), ""))
		case "file":
			t.Files = append(t.Files, sent(p.at("file").at("file_data").text(), p.at("file").at("filename").text()))
		}
	}
	return text
}

func (a *Asked) messages(v value) error {
	if v.at("model").text() == "" {
		return fmt.Errorf("model: Field required")
	}
	if v.at("max_tokens").number() < 1 {
		return fmt.Errorf("max_tokens: Field required")
	}
	a.System = v.at("system").text()
	for _, p := range v.at("system").list() {
		a.cache(p)
		a.System = joined(a.System, p.at("text").text())
	}
	if err := blankStops(v.at("stop_sequences"), "stop_sequences: each stop sequence must contain non-whitespace"); err != nil {
		return err
	}
	last := ""
	for _, m := range v.at("messages").list() {
		role := m.at("role").text()
		if role == last {
			return fmt.Errorf("messages: roles must alternate, and there are two of %q", role)
		}
		if last == "" && role == "assistant" {
			return fmt.Errorf("messages: first message must use the \"user\" role")
		}
		last = role
		t := a.turn(role)
		t.Text = joined(t.Text, m.at("content").text())
		for _, p := range m.at("content").list() {
			a.cache(p)
			switch p.at("type").text() {
			case "text":
				if p.at("text").text() == "" {
					return fmt.Errorf("messages: text content blocks must be non-empty")
				}
				t.Text = joined(t.Text, p.at("text").text())
			case "image", "document":
				t.Files = append(t.Files, source(p))
			case "thinking":
				t.Reasoning = joined(t.Reasoning, p.at("thinking").text())
				t.Signed = append(t.Signed, p.at("signature").text())
			case "redacted_thinking":
				t.Signed = append(t.Signed, p.at("data").text())
			case "tool_use":
				if _, ok := p.at("input").v.(map[string]any); !ok {
					return fmt.Errorf("tool_use.input: Input should be an object")
				}
				t.Calls = append(t.Calls, Call{p.at("id").text(), p.at("name").text(), p.at("input").raw()})
			case "tool_result":
				if t.Text != "" {
					return fmt.Errorf("tool_result blocks must come first in a message")
				}
				r := Result{ID: p.at("tool_use_id").text(), Text: p.at("content").text(), Failed: p.at("is_error").v == true}
				for _, c := range p.at("content").list() {
					r.Text = joined(r.Text, c.at("text").text())
					if c.has("source") {
						r.Files = append(r.Files, source(c))
					}
				}
				t.Results = append(t.Results, r)
			default:
				return fmt.Errorf("a block of the type %q", p.at("type").text())
			}
		}
	}
	for _, t := range v.at("tools").list() {
		a.cache(t)
		a.Tools = append(a.Tools, t.at("name").text())
	}
	switch c := v.at("tool_choice"); c.at("type").text() {
	case "any":
		a.Choice = "required"
	case "tool":
		a.Choice = c.at("name").text()
	default:
		a.Choice = c.at("type").text()
	}
	a.Schema = v.at("output_config").at("format").at("schema").raw()
	a.MaxTokens, a.Temperature, a.Stop = v.at("max_tokens").number(), v.at("temperature").float(), v.at("stop_sequences").texts()
	a.Thinking = v.at("output_config").at("effort").text()
	if n := v.at("thinking").at("budget_tokens").number(); n > 0 {
		a.Thinking = fmt.Sprint(n)
	}
	if a.Thinking != "" && a.Temperature != nil && *a.Temperature != 1 {
		return fmt.Errorf("temperature may only be set to 1 when thinking is enabled")
	}
	return nil
}

func source(p value) Sent {
	s := p.at("source")
	if url := s.at("url").text(); url != "" {
		return Sent{URL: url, Name: p.at("title").text()}
	}
	return coded(s.at("media_type").text(), s.at("data").text(), p.at("title").text())
}

func (a *Asked) gemini(v value) error {
	for _, p := range v.at("systemInstruction").at("parts").list() {
		a.System = joined(a.System, p.at("text").text())
	}
	for _, m := range v.at("contents").list() {
		role := m.at("role").text()
		switch role {
		case "user", "function":
			role = "user"
		case "model":
			role = "assistant"
		default:
			return fmt.Errorf("contents: the role %q; use user or model", role)
		}
		t := a.turn(role)
		if len(m.at("parts").list()) == 0 {
			return fmt.Errorf("contents.parts must not be empty")
		}
		for _, p := range m.at("parts").list() {
			if s := p.at("thoughtSignature").text(); s != "" {
				t.Signed = append(t.Signed, s)
			}
			switch {
			case p.at("thought").v == true:
				t.Reasoning = joined(t.Reasoning, p.at("text").text())
			case p.has("text"):
				t.Text = joined(t.Text, p.at("text").text())
			case p.has("inlineData"):
				t.Files = append(t.Files, coded(p.at("inlineData").at("mimeType").text(), p.at("inlineData").at("data").text(), ""))
			case p.has("fileData"):
				t.Files = append(t.Files, Sent{Type: p.at("fileData").at("mimeType").text(), URL: p.at("fileData").at("fileUri").text()})
			case p.has("functionCall"):
				c := p.at("functionCall")
				t.Calls = append(t.Calls, Call{c.at("id").text(), c.at("name").text(), c.at("args").raw()})
			case p.has("functionResponse"):
				r := p.at("functionResponse")
				if _, ok := r.at("response").v.(map[string]any); !ok || r.at("name").text() == "" {
					return fmt.Errorf("function_response.response is an object, and it has a name")
				}
				result := Result{ID: r.at("id").text(), Name: r.at("name").text(), Text: string(r.at("response").raw())}
				for _, inside := range r.at("parts").list() {
					result.Files = append(result.Files, coded(inside.at("inlineData").at("mimeType").text(), inside.at("inlineData").at("data").text(), ""))
				}
				t.Results = append(t.Results, result)
			}
		}
	}
	for _, t := range v.at("tools").list() {
		for _, f := range t.at("functionDeclarations").list() {
			a.Tools = append(a.Tools, f.at("name").text())
		}
	}
	f := v.at("toolConfig").at("functionCallingConfig")
	a.Choice = map[string]string{"AUTO": "auto", "NONE": "none", "ANY": "required", "VALIDATED": "auto"}[f.at("mode").text()]
	if names := f.at("allowedFunctionNames").texts(); len(names) == 1 {
		a.Choice = names[0]
	}
	g := v.at("generationConfig")
	if g.at("responseMimeType").text() == "application/json" {
		a.Schema = json.RawMessage("{}")
		for _, name := range []string{"responseSchema", "responseJsonSchema"} {
			if g.has(name) {
				a.Schema = g.at(name).raw()
			}
		}
	}
	if n := len(g.at("stopSequences").list()); n > 5 {
		return fmt.Errorf("the number of stop_sequences must not exceed 5, and is %d", n)
	}
	a.MaxTokens, a.Temperature, a.Stop = g.at("maxOutputTokens").number(), g.at("temperature").float(), g.at("stopSequences").texts()
	a.Thinking = g.at("thinkingConfig").at("thinkingLevel").text()
	if n := g.at("thinkingConfig").at("thinkingBudget").number(); n > 0 {
		a.Thinking = fmt.Sprint(n)
	}
	return nil
}

// blankStops returns an error for stop sequences that are empty or only white space.
func blankStops(v value, message string) error {
	for _, s := range v.texts() {
		if strings.TrimSpace(s) == "" {
			return fmt.Errorf("%s", message)
		}
	}
	return nil
}

func (a *Asked) converse(model string, v value) error {
	for _, p := range v.at("system").list() {
		a.cache(p)
		a.System = joined(a.System, p.at("text").text())
	}
	last := ""
	for _, m := range v.at("messages").list() {
		role := m.at("role").text()
		if role == last || role != "user" && role != "assistant" {
			return fmt.Errorf("roles must alternate between user and assistant; here is %q after %q", role, last)
		}
		if last == "" && role == "assistant" {
			return fmt.Errorf("a conversation must start with a user message")
		}
		last = role
		t := a.turn(role)
		for _, p := range m.at("content").list() {
			a.cache(p)
			switch {
			case p.has("text"):
				t.Text = joined(t.Text, p.at("text").text())
			case p.has("image"), p.has("document"):
				t.Files = append(t.Files, bedrockFile(p))
			case p.has("reasoningContent"):
				r := p.at("reasoningContent")
				t.Reasoning = joined(t.Reasoning, r.at("reasoningText").at("text").text())
				t.Signed = append(t.Signed, r.at("reasoningText").at("signature").text()+r.at("redactedContent").text())
			case p.has("toolUse"):
				c := p.at("toolUse")
				if _, ok := c.at("input").v.(map[string]any); !ok {
					return fmt.Errorf("toolUse.input is an object")
				}
				t.Calls = append(t.Calls, Call{c.at("toolUseId").text(), c.at("name").text(), c.at("input").raw()})
			case p.has("toolResult"):
				r := p.at("toolResult")
				result := Result{ID: r.at("toolUseId").text(), Failed: r.at("status").text() == "error"}
				for _, c := range r.at("content").list() {
					result.Text = joined(result.Text, c.at("text").text(), string(c.at("json").raw()))
					if c.has("image") || c.has("document") {
						result.Files = append(result.Files, bedrockFile(c))
					}
				}
				t.Results = append(t.Results, result)
			}
		}
	}
	for _, t := range v.at("toolConfig").at("tools").list() {
		a.cache(t)
		if t.has("toolSpec") {
			a.Tools = append(a.Tools, t.at("toolSpec").at("name").text())
		}
	}
	switch c := v.at("toolConfig").at("toolChoice"); {
	case c.has("auto"):
		a.Choice = "auto"
	case c.has("any"):
		a.Choice = "required"
	case c.has("tool"):
		a.Choice = c.at("tool").at("name").text()
	}
	c := v.at("inferenceConfig")
	if strings.Contains(model, "claude") {
		if err := blankStops(c.at("stopSequences"), "stop_sequences: each stop sequence must contain non-whitespace"); err != nil {
			return err
		}
	}
	a.MaxTokens, a.Temperature, a.Stop = c.at("maxTokens").number(), c.at("temperature").float(), c.at("stopSequences").texts()
	more := v.at("additionalModelRequestFields")
	a.Schema = more.at("output_config").at("format").at("schema").raw()
	a.Thinking = more.at("output_config").at("effort").text()
	if n := more.at("thinking").at("budget_tokens").number(); n > 0 {
		a.Thinking = fmt.Sprint(n)
	}
	return nil
}

func bedrockFile(p value) Sent {
	kind, f := "image/", p.at("image")
	if p.has("document") {
		kind, f = "application/", p.at("document")
	}
	return coded(kind+f.at("format").text(), f.at("source").at("bytes").text(), f.at("name").text())
}

func (a *Asked) responses(v value) error {
	if v.at("model").text() == "" {
		return fmt.Errorf("you must provide a model parameter")
	}
	a.System = v.at("instructions").text()
	if text := v.at("input").text(); text != "" {
		a.turn("user").Text = text
	}
	for _, m := range v.at("input").list() {
		switch kind := m.at("type").text(); kind {
		case "", "message":
			role := m.at("role").text()
			if role == "system" || role == "developer" {
				a.System = joined(a.System, a.responsesContent(m.at("content"), &Turn{}))
				continue
			}
			t := a.turn(role)
			t.Text = joined(t.Text, a.responsesContent(m.at("content"), t))
		case "reasoning":
			t := a.turn("assistant")
			for _, s := range m.at("summary").list() {
				t.Reasoning = joined(t.Reasoning, s.at("text").text())
			}
			t.Signed = append(t.Signed, m.at("encrypted_content").text())
		case "function_call":
			arguments := m.at("arguments").text()
			if !json.Valid([]byte(arguments)) {
				return fmt.Errorf("the arguments of a call are no JSON: %q", arguments)
			}
			t := a.turn("assistant")
			t.Calls = append(t.Calls, Call{m.at("call_id").text(), m.at("name").text(), json.RawMessage(arguments)})
		case "function_call_output":
			t := a.turn("user")
			var inside Turn
			text := a.responsesContent(m.at("output"), &inside)
			t.Results = append(t.Results, Result{ID: m.at("call_id").text(), Text: text, Files: inside.Files})
		default:
			return fmt.Errorf("an item of the type %q", kind)
		}
	}
	for _, t := range v.at("tools").list() {
		a.Tools = append(a.Tools, t.at("name").text())
	}
	a.Choice = v.at("tool_choice").text()
	if name := v.at("tool_choice").at("name").text(); name != "" {
		a.Choice = name
	}
	switch f := v.at("text").at("format"); f.at("type").text() {
	case "json_schema":
		a.Schema = f.at("schema").raw()
	case "json_object":
		a.Schema = json.RawMessage("{}")
	}
	a.MaxTokens, a.Temperature = v.at("max_output_tokens").number(), v.at("temperature").float()
	a.Thinking = v.at("reasoning").at("effort").text()
	return nil
}

func (a *Asked) responsesContent(v value, t *Turn) string {
	text := v.text()
	for _, p := range v.list() {
		switch p.at("type").text() {
		case "input_text", "output_text":
			text = joined(text, p.at("text").text())
		case "input_image":
			t.Files = append(t.Files, sent(p.at("image_url").text(), ""))
		case "input_file":
			f := sent(p.at("file_data").text(), p.at("filename").text())
			if p.has("file_url") {
				f.URL = p.at("file_url").text()
			}
			t.Files = append(t.Files, f)
		}
	}
	return text
}
