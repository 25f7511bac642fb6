package responses

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

// write encodes an answer as a stream.
func write(a hub.Answer, events []hub.Event) []byte {
	w := New().NewWriter(a)
	var b []byte
	for i := range events {
		b = w.Append(b, &events[i])
	}
	return b
}

// sequence checks the rules of a stream and returns the types of its events, except
// deltas.
func sequence(t *testing.T, b []byte) []string {
	t.Helper()
	r := sse.NewReader(bytes.NewReader(b), 1<<20)
	var types []string
	for n := 0; ; n++ {
		e, err := r.Next()
		if err != nil {
			break
		}
		var m struct {
			Type     string
			Sequence *int `json:"sequence_number"`
		}
		if err := json.Unmarshal(e.Data, &m); err != nil {
			t.Fatalf("%s: %v", e.Data, err)
		}
		if m.Type != string(e.Name) || m.Sequence == nil || *m.Sequence != n {
			t.Errorf("event %d is named %s and is %s", n, e.Name, e.Data)
		}
		if name := strings.TrimPrefix(m.Type, "response."); len(types) == 0 || types[len(types)-1] != name {
			types = append(types, name)
		}
	}
	return types
}

var answer = hub.Answer{ID: "gen_1", Model: "acme/thinker", Metadata: func() []byte { return []byte(`{"cost":"0.1"}`) }}

// TestWriter_sequence checks the order of events of an ordinary answer with all kinds of
// parts.
func TestWriter_sequence(t *testing.T) {
	t.Parallel()
	r := &hub.Result{
		Content: []hub.Part{
			{Kind: hub.ReasoningPart, Text: "So.", Options: hub.Options{"anthropic": {"signature": json.RawMessage(`"s"`)}}},
			{Kind: hub.TextPart, Text: "Hello."},
			{Kind: hub.SourcePart, Source: &hub.Source{ID: "1", URL: "https://example.com", Title: "E"}},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_1", Name: "add", Input: `{"a":1}`}},
		},
		Finish: hub.Finish{Reason: hub.ToolCalls}, Usage: &hub.Usage{Input: hub.N(3), CacheRead: hub.N(1), Output: hub.N(5), Reasoning: hub.N(2)},
	}
	b := write(answer, r.Events())
	got := strings.Join(sequence(t, b), " ")
	want := "created in_progress " +
		"output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.done reasoning_summary_part.done output_item.done " +
		"output_item.added content_part.added output_text.delta output_text.annotation.added output_text.done content_part.done output_item.done " +
		"output_item.added function_call_arguments.delta function_call_arguments.done output_item.done " +
		"completed"
	if got != want {
		t.Errorf(" got %s\nwant %s", got, want)
	}
	last := b[bytes.LastIndex(b, []byte("data: "))+6:]
	var end struct {
		Response struct {
			ID, Object, Model, Status string
			Error                     json.RawMessage
			Usage                     json.RawMessage
			ProviderMetadata          json.RawMessage `json:"providerMetadata"`
			Store                     bool
		}
	}
	if err := json.Unmarshal(last, &end); err != nil {
		t.Fatal(err)
	}
	resp := end.Response
	if resp.ID != "gen_1" || resp.Object != "response" || resp.Model != "acme/thinker" || resp.Status != "completed" || resp.Store ||
		string(resp.Error) != "null" || string(resp.ProviderMetadata) != `{"gateway":{"cost":"0.1"}}` ||
		string(resp.Usage) != `{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":8}` {
		t.Errorf("%s", last)
	}
}

func TestWriter_ends(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end  hub.Event
		want string
	}{
		{hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Stop}}, "created in_progress completed"},
		{hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Length}}, "created in_progress incomplete"},
		{hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.ContentFilter}}, "created in_progress incomplete"},
		{hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Failed, Raw: "MALFORMED"}}, "created in_progress error failed"},
		{hub.Event{Kind: hub.Failure, Err: &hub.Error{Kind: hub.Overloaded, Message: "busy"}}, "created in_progress error failed"},
	} {
		b := write(answer, []hub.Event{{Kind: hub.Start}, c.end})
		if got := strings.Join(sequence(t, b), " "); got != c.want {
			t.Errorf("%+v: %s, want %s", c.end.Finish, got, c.want)
		}
	}
	w := New().NewWriter(answer)
	if got := string(w.KeepAlive(nil)); got != ": keep-alive\n\n" {
		t.Errorf("%q", got)
	}
}

// TestRoundTrip writes answers for clients and reads them back as a provider's answers.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, f := range fixtures(t) {
		if f.Whole == nil {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			r, err := New().ReadResult(target(f), f.Whole)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, target(f), r)
		})
	}
}

// roundTrip fails if an answer does not come back unchanged. Values that come from the
// client's request may differ.
func roundTrip(t *testing.T, target *hub.Target, r *hub.Result) {
	t.Helper()
	want := tidy(t, r)
	whole, err := New().WriteResult(answer, r)
	if err != nil {
		t.Fatal(err)
	}
	back, err := New().ReadResult(target, whole)
	if err != nil {
		t.Fatal(err)
	}
	if got := tidy(t, back); got != want {
		t.Errorf("whole:\n%s\nwant:\n%s", got, want)
	}
	b := write(answer, r.Events())
	sequence(t, b)
	streamed, failed := stream(t, target, bytes.NewReader(b))
	if failed != nil {
		t.Fatal(failed)
	}
	if got := tidy(t, streamed); got != want {
		t.Errorf("streamed:\n%s\nwant:\n%s", got, want)
	}
}

func tidy(t *testing.T, r *hub.Result) string {
	t.Helper()
	out := *r
	out.Content = nil
	for _, p := range r.Content {
		if p.Kind == hub.SourcePart { // sources are ordered like the annotations
			p.Source = &hub.Source{URL: p.Source.URL, Title: p.Source.Title, MediaType: p.Source.MediaType, Filename: p.Source.Filename}
		}
		o := hub.Options{}
		o.Merge(p.Options)
		delete(o[optProvider], optLogprobs)
		delete(o[optProvider], optItemID)
		if p.Kind != hub.TextPart || len(o[optProvider]) == 0 {
			for provider, members := range o {
				if len(members) == 0 {
					delete(o, provider)
				}
			}
		}
		if p.Options = o; len(o) == 0 {
			p.Options = nil
		}
		out.Content = append(out.Content, p)
	}
	out.Response, out.Finish.Raw, out.Options = hub.Response{}, "", nil
	if r.Usage != nil {
		u := *r.Usage
		u.Raw, u.Searches, u.Tier, u.Cost = nil, nil, "", ""
		if u.CacheRead == nil {
			u.CacheRead = hub.N(0)
		}
		out.Usage = &u
	}
	return plain(t, &out)
}

// TestConversation_signatures sends other providers' answers through a client that
// returns items unchanged.
func TestConversation_signatures(t *testing.T) {
	t.Parallel()
	signed := func(provider, name, s string) hub.Options {
		var o hub.Options
		o.Set(provider, name, s)
		return o
	}
	var withID hub.Options
	withID.Set("google", "thoughtSignature", "two")
	parts := []hub.Part{
		{Kind: hub.ReasoningPart, Text: "So.", Options: signed("anthropic", "signature", "one")},
		{Kind: hub.ReasoningPart, Options: signed("anthropic", "redactedData", "hidden")},
		{Kind: hub.TextPart, Text: "Hello.", Options: signed("google", "thoughtSignature", "three")},
		{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_1", Name: "add", Input: `{"a":1}`}, Options: withID},
		{Kind: hub.CustomPart, CustomKind: "anthropic.compaction", Custom: json.RawMessage(`{"content":"c"}`)},
		{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "srv_1", Name: "web_search", Input: `{"query":"q"}`, ProviderExecuted: true}, Options: signed("anthropic", "caller", "x")},
		{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "srv_1", Name: "web_search", ProviderExecuted: true,
			Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`[{"url":"u"}]`)}}, Options: signed("anthropic", "encrypted", "e")},
		{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("png")}, Options: signed("google", "thoughtSignature", "four")},
	}
	r := &hub.Result{Content: parts, Finish: hub.Finish{Reason: hub.ToolCalls}}
	whole, err := New().WriteResult(answer, r)
	if err != nil {
		t.Fatal(err)
	}
	streamed := write(answer, r.Events())
	last := streamed[bytes.LastIndex(streamed, []byte("data: "))+6:]
	var end struct{ Response json.RawMessage }
	if err := json.Unmarshal(last, &end); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{"whole": whole, "streamed": end.Response} {
		var resp struct{ Output []json.RawMessage }
		if err := json.Unmarshal(body, &resp); err != nil {
			t.Fatal(err)
		}
		var callID string
		for _, raw := range resp.Output {
			var it item
			if err := json.Unmarshal(raw, &it); err != nil {
				t.Fatal(err)
			}
			if it.Type == "function_call" {
				callID = it.callID()
			}
		}
		items := append([]json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}, resp.Output...)
		items = append(items, hub.MustEncode(object{"type": "function_call_output", "call_id": callID, "output": "2"}))
		call, err := New().ReadCall(nil, hub.MustEncode(object{"model": "m", "input": items}))
		if err != nil {
			t.Fatal(err)
		}
		if len(call.Prompt) != 3 || call.Prompt[2].Parts[0].Result.CallID != "call_1" {
			t.Fatalf("%s: %s", name, hub.MustEncode(call.Prompt))
		}
		got := call.Prompt[1].Parts
		for i := range got {
			delete(got[i].Options, optProvider)
			if len(got[i].Options) == 0 {
				got[i].Options = nil
			}
		}
		if !reflect.DeepEqual(got, parts) {
			t.Errorf("%s:\n got %s\nwant %s", name, hub.MustEncode(got), hub.MustEncode(parts))
		}
	}
}

// TestWriter_lateSignature writes a call whose signature comes after its input.
func TestWriter_lateSignature(t *testing.T) {
	t.Parallel()
	p := hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "call_1", Name: "add", Input: `{}`}}
	p.Options.Set("google", "thoughtSignature", "s")
	b := write(answer, []hub.Event{
		{Kind: hub.Start}, {Kind: hub.InputStart, ID: "call_1", Name: "add"}, {Kind: hub.InputDelta, ID: "call_1", Delta: "{}"},
		{Kind: hub.InputEnd, ID: "call_1"}, {Kind: hub.Whole, Part: &p}, {Kind: hub.Finished, Finish: hub.Finish{Reason: hub.ToolCalls}},
	})
	var end struct {
		Response struct{ Output []json.RawMessage }
	}
	if err := json.Unmarshal(b[bytes.LastIndex(b, []byte("data: "))+6:], &end); err != nil {
		t.Fatal(err)
	}
	call, err := New().ReadCall(nil, hub.MustEncode(object{"input": end.Response.Output}))
	if err != nil {
		t.Fatal(err)
	}
	if got := call.Prompt[0].Parts; len(got) != 1 || got[0].Options.String("google", "thoughtSignature") != "s" {
		t.Errorf("%s", hub.MustEncode(got))
	}
}

// TestWriter_customTool writes a client's custom tool that a provider without custom
// tools called as a function.
func TestWriter_customTool(t *testing.T) {
	t.Parallel()
	call, err := New().ReadCall(nil, []byte(`{"input":"hi","tools":[{"type":"custom","name":"patch","description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: x"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := call.Tools[0]; !strings.Contains(string(got.InputSchema), `"input"`) || !strings.Contains(got.Description, "start: x") {
		t.Errorf("%+v", got)
	}
	a := answer
	a.Call = call
	r := &hub.Result{Content: []hub.Part{{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "patch", Input: `{"input":"*** <b>"}`}}}, Finish: hub.Finish{Reason: hub.ToolCalls}}
	b := write(a, r.Events())
	if got := strings.Join(sequence(t, b), " "); got != "created in_progress output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done completed" {
		t.Error(got)
	}
	var end struct {
		Response struct{ Output []item }
	}
	if err := json.Unmarshal(b[bytes.LastIndex(b, []byte("data: "))+6:], &end); err != nil {
		t.Fatal(err)
	}
	it := end.Response.Output[0]
	if it.Type != "custom_tool_call" || it.Input != "*** <b>" {
		t.Errorf("%s", it.raw)
	}
	out, _, err := New().WriteCall(&hub.Call{Tools: call.Tools, Prompt: []hub.Message{
		{Role: hub.Assistant, Parts: r.Content},
		{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "c", Output: hub.ToolOutput{Kind: hub.OutputText, Text: "ok"}}}}},
	}}, openai)
	if err != nil {
		t.Fatal(err)
	}
	want := `"input":[{"call_id":"c","input":"*** <b>","name":"patch","type":"custom_tool_call"},{"call_id":"c","output":"ok","type":"custom_tool_call_output"}],` +
		`"tools":[{"description":"d","format":{"type":"grammar","syntax":"lark","definition":"start: x"},"name":"patch","type":"custom"}]`
	if !strings.Contains(string(out.Body), want) {
		t.Errorf("%s", out.Body)
	}
}

func TestWriteResult_echo(t *testing.T) {
	t.Parallel()
	call, err := New().ReadCall(nil, []byte(`{"model":"m","instructions":"Be brief.","input":"hi","store":true,"metadata":{"a":"b"},"temperature":0.5,"max_output_tokens":7,
		"tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}],"tool_choice":"required","reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"json_object"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	a := answer
	a.Call = call
	b, err := New().WriteResult(a, &hub.Result{Finish: hub.Finish{Reason: hub.Stop}, Warnings: call.Warnings})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]json.RawMessage
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"store": "false", "metadata": `{"a":"b"}`, "temperature": "0.5", "max_output_tokens": "7", "tool_choice": `"required"`,
		"instructions": `"Be brief."`, "reasoning": `{"effort":"low","summary":"auto"}`, "text": `{"format":{"type":"json_object"}}`,
		"tools":    `[{"name":"f","parameters":{"type":"object"},"strict":true,"type":"function"}]`,
		"warnings": `[{"feature":"store","message":"the gateway keeps no responses: they cannot be referred to later","type":"unsupported"}]`,
	} {
		if string(got[name]) != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
}

func TestWriteError(t *testing.T) {
	t.Parallel()
	head := http.Header{}
	status, body := New().WriteError(answer, &hub.Error{Kind: hub.RateLimited, Message: "slow down", RetryAfter: 1500 * time.Millisecond}, head)
	if want := `{"error":{"code":"rate_limit_exceeded","message":"slow down","param":null,"type":"rate_limit_error"},"generationId":"gen_1"}`; status != 429 || string(body) != want {
		t.Errorf("%d %s", status, body)
	}
	if head.Get("Retry-After") != "2" || head.Get("Retry-After-Ms") != "1500" {
		t.Errorf("%v", head)
	}
	for _, kind := range []hub.ErrorKind{hub.BadRequest, hub.Unauthenticated, hub.BudgetExceeded, hub.Forbidden, hub.ModelNotFound, hub.NotFound, hub.TooLarge,
		hub.FailedDependency, hub.RateLimited, hub.Internal, hub.UpstreamFailed, hub.Overloaded, hub.Timeout, hub.Canceled, "new"} {
		status, body := New().WriteError(hub.Answer{}, &hub.Error{Kind: kind, Message: "m", Param: "p"}, nil)
		e := New().ReadError(openai, status, nil, body)
		if status < 400 || e.Message != "m" || e.Param != "p" {
			t.Errorf("%s: %d %s", kind, status, body)
		}
	}
}

func TestReadCall_refused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ body, param string }{
		{`[]`, ""},
		{`{}`, "input"},
		{`{"input":5}`, "input"},
		{`{"input":"x","previous_response_id":"resp_1"}`, "previous_response_id"},
		{`{"input":"x","conversation":"c"}`, "conversation"},
		{`{"input":"x","prompt":{"id":"p"}}`, "prompt"},
		{`{"input":"x","background":true}`, "background"},
		{`{"input":"x","temperature":"hot"}`, "temperature"},
		{`{"input":"x","reasoning":{"effort":"huge"}}`, "reasoning.effort"},
		{`{"input":"x","text":{"format":{"type":"xml"}}}`, "text.format.type"},
		{`{"input":"x","text":{"format":{"type":"json_schema"}}}`, "text.format.schema"},
		{`{"input":"x","tools":[{"name":"f"}]}`, "tools[0]"},
		{`{"input":"x","tools":[{"type":"function"}]}`, "tools[0].name"},
		{`{"input":"x","tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]}`, "tools[1].name"},
		{`{"input":"x","tool_choice":"maybe"}`, "tool_choice"},
		{`{"input":"x","tool_choice":{"type":"function","name":"f"}}`, "tool_choice"},
		{`{"input":["x"]}`, "input[0]"},
		{`{"input":[{"type":"item_reference","id":"rs_1"}]}`, "input[0]"},
		{`{"input":[{"role":"robot","content":"x"}]}`, "input[0].role"},
		{`{"input":[{"role":"user"}]}`, "input[0].content"},
		{`{"input":[{"role":"user","content":[{"type":"input_video"}]}]}`, "input[0].content[0].type"},
		{`{"input":[{"role":"user","content":[{"type":"input_image","image_url":"ftp://x"}]}]}`, "input[0].content[0].image_url"},
		{`{"input":[{"role":"user","content":[{"type":"input_file","filename":"a.pdf"}]}]}`, "input[0].content[0]"},
		{`{"input":[{"role":"system","content":[{"type":"input_image","image_url":"https://x"}]}]}`, "input[0].content[0].type"},
		{`{"input":[{"type":"function_call","name":"f"}]}`, "input[0].call_id"},
		{`{"input":[{"type":"function_call_output","output":"x"}]}`, "input[0].call_id"},
		{`{"input":[{"type":"function_call_output","call_id":"c"}]}`, "input[0].output"},
		{`{"input":[{"type":"mcp_approval_response"}]}`, "input[0]"},
	} {
		_, err := New().ReadCall(nil, []byte(c.body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != c.param || e.Message == "" {
			t.Errorf("%s: %+v, want an invalid request about %q", c.body, err, c.param)
		}
	}
}

func TestReadCall_input(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ input, want string }{
		{`"hi"`, `user: text hi`},
		{`[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"input_text","text":"hi"},{"type":"input_image","image_url":"data:image/png;base64,aGk=","detail":"low"}]}]`,
			`system: text be; user: text hi, file image/png hi`},
		{`[{"role":"user","content":[{"type":"input_image","image_url":"https://x/y.png"},{"type":"input_file","file_url":"https://x/y.pdf"},{"type":"input_file","file_id":"file-1"}]}]`,
			`user: file image/* https://x/y.png, file application/pdf https://x/y.pdf, file application/pdf map[openai:file-1]`},
		{`[{"role":"user","content":[{"type":"input_file","filename":"a.txt","file_data":"data:text/plain;base64,aGk="},{"type":"input_audio","input_audio":{"data":"aGk=","format":"mp3"}}]}]`,
			`user: file text/plain hi, file audio/mpeg hi`},
		{`[{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"so"}],"encrypted_content":"e"},{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{}"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"x"},{"type":"refusal","refusal":"no"}]}]`,
			`assistant: reasoning so, call f {}, text x, text no`},
		{`[{"type":"function_call_output","call_id":"c","output":"1"},{"type":"function_call_output","call_id":"d","output":[{"type":"input_text","text":"2"},{"type":"input_image","image_url":"https://i"}]}]`,
			`tool: result c 1, result d [text 2, file image/* https://i]`},
		{`[{"type":"custom_tool_call","call_id":"c","name":"p","input":"a\"b"},{"type":"custom_tool_call_output","call_id":"c","output":"ok"}]`,
			`assistant: call p {"input":"a\"b"}; tool: result c ok`},
		{`[{"type":"mcp_approval_response","approval_request_id":"a","approve":true}]`, `tool: approval a true`},
		{`[{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"open_page","url":"u"}}]`,
			`assistant: call web_search {}, result ws_1 {"action":{"type":"openPage","url":"u"}}`},
		{`[{"type":"local_shell_call","id":"l","call_id":"c","status":"completed","action":{"type":"exec","command":["ls"]}},{"type":"local_shell_call_output","call_id":"c","output":"a"}]`,
			`assistant: call local_shell {"action":{"type":"exec","command":["ls"]}}; tool: result c {"output":"a"}`},
		{`[{"type":"tomorrow","id":"x"}]`, `assistant: custom openai.tomorrow`},
	} {
		call, err := New().ReadCall(nil, []byte(`{"input":`+c.input+`}`))
		if err != nil {
			t.Errorf("%s: %v", c.input, err)
			continue
		}
		var all []string
		for _, m := range call.Prompt {
			all = append(all, string(m.Role)+": "+short(m.Parts))
		}
		if got := strings.Join(all, "; "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.input, got, c.want)
		}
	}
}

// short summarizes parts.
func short(parts []hub.Part) string {
	var all []string
	for _, p := range parts {
		s := string(p.Kind) + " " + p.Text
		switch p.Kind {
		case hub.FilePart:
			s = "file " + p.File.MediaType + " " + string(p.File.Data) + p.File.URL + p.File.Text
			if p.File.Reference != nil {
				s += fmt.Sprint(p.File.Reference)
			}
		case hub.ToolCallPart:
			s = "call " + p.Call.Name + " " + p.Call.Input
		case hub.ToolResultPart:
			s = "result " + p.Result.CallID + " " + p.Result.Output.Text + string(p.Result.Output.JSON)
			if p.Result.Output.Content != nil {
				s += "[" + short(p.Result.Output.Content) + "]"
			}
		case hub.ApprovalResponsePart:
			s = fmt.Sprint("approval ", p.Approval.ID, " ", p.Approval.Approved)
		case hub.CustomPart:
			s = "custom " + p.CustomKind
		}
		all = append(all, s)
	}
	return strings.Join(all, ", ")
}

func TestReadCall_settings(t *testing.T) {
	t.Parallel()
	call, err := New().ReadCall(nil, []byte(`{"model":"m","input":"x","models":["a"],"stream":true,"top_p":0.9,"user":"u","service_tier":"flex","parallel_tool_calls":false,
		"tools":[{"type":"function","name":"f"},{"type":"web_search","search_context_size":"low"},{"type":"mcp","server_label":"s","server_url":"https://m"}],
		"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"web_search"},{"type":"mcp","server_label":"s"}]},
		"providerOptions":{"gateway":{"order":["a"]},"anthropic":{"a":1}},"top_logprobs":3,"include":["file_search_call.results","reasoning.encrypted_content"],
		"text":{"verbosity":"low","format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},"prompt_cache_key":"k"}`))
	if err != nil {
		t.Fatal(err)
	}
	var warned []string
	for _, w := range call.Warnings {
		warned = append(warned, w.Feature)
	}
	if got := strings.Join(warned, " "); got != "include" {
		t.Errorf("warnings %s", got)
	}
	if !call.Stream || *call.TopP != 0.9 || call.User != "u" || call.ServiceTier != "flex" || *call.ParallelTools || call.ToolChoice.Mode != hub.ToolRequired ||
		string(call.Format.Schema) != `{"type":"object"}` || call.Format.Name != "n" || !*call.Format.Strict {
		t.Errorf("%+v", call)
	}
	if got := string(hub.MustEncode(call.Options)); got != `{"anthropic":{"a":1},"openai":{"promptCacheKey":"k","textVerbosity":"low","topLogprobs":3}}` {
		t.Errorf("options %s", got)
	}
	if len(call.Tools) != 2 || call.Tools[0].ProviderID != "openai.web_search" || string(call.Tools[0].Args) != `{"search_context_size":"low"}` || call.Tools[1].Name != "mcp.s" {
		t.Errorf("tools %s", hub.MustEncode(call.Tools))
	}
}

func FuzzReadCall(f *testing.F) {
	f.Add([]byte(`{"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"reasoning","summary":[],"encrypted_content":"cay1.x.e30"}],"tools":[{"type":"custom","name":"a"}]}`))
	f.Add([]byte(`{"input":[{"type":"shell_call","call_id":"c","action":{"commands":["x"]}},{"type":"compaction","encrypted_content":"e"},{"type":"message","role":"user","content":[{"type":"input_image","image_url":"data:,x"}]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		call, err := New().ReadCall(nil, b)
		var e *hub.Error
		if err != nil {
			if !errors.As(err, &e) || e.Kind != hub.BadRequest {
				t.Errorf("%v is no invalid request", err)
			}
			return
		}
		out, _, err := New().WriteCall(call, openai)
		if err == nil && !json.Valid(out.Body) {
			t.Errorf("no JSON: %s", out.Body)
		}
	})
}
