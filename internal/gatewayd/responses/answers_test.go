package responses

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var openai = &hub.Target{Provider: "openai", Model: "gpt-5.1"}

// target returns the target that a fixture was recorded from.
func target(f gatewaytest.Fixture) *hub.Target {
	return &hub.Target{Provider: f.Provider, Model: "m", Quirks: map[string]bool{QuirkHostedCustomTools: f.Provider == "xai"}}
}

func fixtures(t *testing.T) []gatewaytest.Fixture {
	t.Helper()
	var all []gatewaytest.Fixture
	for _, provider := range []string{"openai", "xai"} {
		for _, f := range gatewaytest.Fixtures(t, provider) {
			if f.Format != gatewaytest.Responses {
				continue
			}
			// A recording may contain several answers, one after the other.
			chunks := f.Chunks
			f.Chunks = nil
			for _, c := range chunks {
				if bytes.Contains(c, []byte(`"response.created"`)) && f.Chunks != nil {
					all = append(all, f)
					f.Name, f.Whole, f.Chunks = f.Name+"+", nil, nil
				}
				f.Chunks = append(f.Chunks, c)
			}
			all = append(all, f)
		}
	}
	if len(all) < 30 {
		t.Fatalf("there are %d fixtures of the format, and should be more than 30", len(all))
	}
	return all
}

// stream reads and checks all events, and returns the collected result.
func stream(t *testing.T, target *hub.Target, r io.Reader) (*hub.Result, *hub.Error) {
	t.Helper()
	reader := New().NewReader(target, r)
	var check hub.Checker
	var collect hub.Collector
	for {
		events, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(events) == 0 {
			t.Fatal("Next returned no events")
		}
		for i := range events {
			if err := check.Add(&events[i]); err != nil {
				t.Fatalf("event %+v: %v", events[i], err)
			}
			collect.Add(&events[i])
		}
	}
	if err := check.End(); err != nil {
		t.Fatal(err)
	}
	return collect.Result()
}

// plain returns an answer in a comparable form: JSON without the members that differ from
// call to call.
func plain(t *testing.T, r *hub.Result) string {
	t.Helper()
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestFixtures decodes every recorded answer. A stream ends with the whole answer, so the
// whole and the streamed answer must be equal.
func TestFixtures(t *testing.T) {
	t.Parallel()
	for _, f := range fixtures(t) {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			target := target(f)
			if f.Whole != nil {
				r, err := New().ReadResult(target, f.Whole)
				if err != nil {
					t.Fatal(err)
				}
				meaningful(t, r)
			}
			if f.Chunks == nil {
				return
			}
			streamed, failed := stream(t, target, bytes.NewReader(gatewaytest.Frames(gatewaytest.Responses, f.Chunks)))
			if failed != nil {
				t.Fatal(failed)
			}
			meaningful(t, streamed)
			slow, _ := stream(t, target, iotest.OneByteReader(bytes.NewReader(gatewaytest.Frames(gatewaytest.Responses, f.Chunks))))
			if plain(t, slow) != plain(t, streamed) {
				t.Error("byte by byte the stream is another")
			}
			last := f.Chunks[len(f.Chunks)-1]
			var end struct{ Response json.RawMessage }
			if err := json.Unmarshal(last, &end); err != nil {
				t.Fatal(err)
			}
			whole, err := New().ReadResult(target, end.Response)
			if err != nil {
				t.Fatal(err)
			}
			same(t, f.Name, whole, streamed)
		})
	}
}

// apart lists the recordings whose last event differs from the events before.
var apart = map[string]string{
	"openai/responses-parallel-tool-call-wrapper.1": "the last event has no output",
	"openai/responses-openai-shell-container.1":     "the text was edited in one of the two places",
	"openai/responses-github-copilot-id-rotation.1": "every event has ids of its own",
	"xai/responses-xai-x-search-tool":               "the last event has the items in another order, and the text only in it",
}

func same(t *testing.T, name string, whole, streamed *hub.Result) {
	t.Helper()
	for _, r := range []*hub.Result{whole, streamed} {
		for i := range r.Content {
			p := &r.Content[i]
			// Text events contain only part of the log probabilities.
			delete(p.Options[optProvider], optLogprobs)
			// Encrypted content differs in each event.
			if p.Options.String(optProvider, optEncrypted) != "" {
				p.Options.Set(optProvider, optEncrypted, "something")
			}
			if apart[name] != "" {
				p.Options = nil
			}
			if name == "openai/responses-openai-shell-container.1" {
				p.Text = strings.ReplaceAll(p.Text, "successfully.in", "successfully in")
			}
		}
	}
	if apart[name] != "" {
		whole.Response, streamed.Response = hub.Response{}, hub.Response{}
	}
	if name == "openai/responses-parallel-tool-call-wrapper.1" {
		whole.Content = streamed.Content
		whole.Finish = streamed.Finish
	}
	if apart[name] != "" {
		for _, r := range []*hub.Result{whole, streamed} {
			slices.SortFunc(r.Content, func(a, b hub.Part) int { return bytes.Compare(hub.MustEncode(a), hub.MustEncode(b)) })
		}
	}
	if a, b := plain(t, whole), plain(t, streamed); a != b {
		t.Errorf("whole:\n%s\nstreamed:\n%s", a, b)
	}
}

// meaningful fails for answers that no provider gives.
func meaningful(t *testing.T, r *hub.Result) {
	t.Helper()
	if r.Finish.Reason == "" || r.Finish.Reason == hub.OtherReason {
		t.Errorf("finish %+v", r.Finish)
	}
	if r.HasToolCalls() != (r.Finish.Reason == hub.ToolCalls) {
		t.Errorf("finish %+v, and tool calls: %v", r.Finish, r.HasToolCalls())
	}
	if len(r.Content) == 0 || r.Response.ID == "" || r.Response.Model == "" {
		t.Errorf("the answer is empty: %+v", r.Response)
	}
	if u := r.Usage; u == nil || hub.Count(u.Input) == 0 && hub.Count(u.Output) != 0 {
		t.Errorf("usage %+v", u)
	}
	calls := make(map[string]bool)
	for _, p := range r.Content {
		switch p.Kind {
		case hub.ToolCallPart:
			calls[p.Call.ID] = true
			if !json.Valid([]byte(p.Call.Input)) {
				t.Errorf("input of %s is no JSON: %s", p.Call.Name, p.Call.Input)
			}
		case hub.ToolResultPart:
			if !json.Valid(p.Result.Output.JSON) {
				t.Errorf("output of %s is no JSON: %s", p.Result.Name, p.Result.Output.JSON)
			}
		}
	}
}

func named(t *testing.T, name string) *hub.Result {
	t.Helper()
	f := gatewaytest.Named(t, name)
	r, err := New().ReadResult(target(f), f.Whole)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kinds summarizes the parts of an answer.
func kinds(r *hub.Result) string {
	var all []string
	for _, p := range r.Content {
		s := string(p.Kind)
		switch p.Kind {
		case hub.ToolCallPart:
			s = "call " + p.Call.Name
			if p.Call.ProviderExecuted {
				s = "hosted " + p.Call.Name
			}
		case hub.ToolResultPart:
			s = "result " + p.Result.Name
		case hub.CustomPart:
			s = p.CustomKind
		}
		if n := len(all); n == 0 || all[n-1] != s {
			all = append(all, s)
		}
	}
	return strings.Join(all, ", ")
}

func TestFixtures_items(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"openai/responses-openai-file-search-tool.1", "reasoning, hosted file_search, result file_search, reasoning, text, source"},
		{"openai/responses-openai-web-search-tool.1", "reasoning, hosted web_search, result web_search, reasoning, hosted web_search, result web_search, reasoning, hosted web_search, result web_search, reasoning, text, source"},
		{"openai/responses-openai-image-generation-tool.1", "reasoning, hosted image_generation, result image_generation, reasoning, text"},
		{"openai/responses-openai-local-shell-tool.1", "reasoning, call local_shell"},
		{"openai/responses-openai-mcp-tool-approval.3", "openai.mcp_list_tools, reasoning, hosted mcp.create_short_url, tool-approval-request"},
		{"openai/responses-openai-mcp-tool-approval.4", "openai.mcp_list_tools, hosted mcp.create_short_url, result mcp.create_short_url, text"},
		{"openai/responses-openai-client-tool-search.1", "call tool_search"},
		{"openai/responses-openai-shell-skills.1", "hosted shell, result shell, hosted shell, result shell, text"},
		{"openai/responses-openai-shell-tool.1", "call shell"},
		{"openai/responses-programmatic-tool-calling.1", "reasoning, openai.program, call getInventory"},
		{"openai/responses-programmatic-tool-calling.3", "openai.program_output, text"},
		{"openai/responses-parallel-tool-call-wrapper.1", "call parallel"},
		{"xai/responses-xai-code-execution-tool.1", "hosted code_execution, result code_execution, text"},
		{"xai/responses-xai-x-search-tool.1", "hosted x_semantic_search, result x_semantic_search, text, source"},
	} {
		if got := kinds(named(t, c.name)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestFixtures_usage(t *testing.T) {
	t.Parallel()
	u := named(t, "xai/responses-xai-web-search-tool.1").Usage
	want := hub.Usage{Input: hub.N(1941), NoCache: hub.N(994), CacheRead: hub.N(947), Output: hub.N(583), Text: hub.N(203), Reasoning: hub.N(380), Searches: hub.N(1)}
	want.Raw = u.Raw
	if !reflect.DeepEqual(*u, want) {
		t.Errorf("usage %s, want %s", hub.MustEncode(u), hub.MustEncode(want))
	}
}

func TestReadResult_oddUsage(t *testing.T) {
	t.Parallel()
	r, err := New().ReadResult(openai, []byte(`{"status":"completed","usage":{"input_tokens":5.0,"output_tokens":-1,"output_tokens_details":null,"input_tokens_details":{"cached_tokens":1e300},"cost_in_usd_ticks":12300000001}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := hub.Usage{Input: hub.N(5), NoCache: hub.N(5), Cost: "1.2300000001", Raw: r.Usage.Raw}
	if !reflect.DeepEqual(*r.Usage, want) {
		t.Errorf("%s", hub.MustEncode(r.Usage))
	}
}

// TestReader_sameAsWhole compares both forms of an answer of our own.
func TestReader_sameAsWhole(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Reply{Reasoning: "Let me think of it.", Signature: "c2ln", Text: "Here you are: some text.", Calls: []gatewaytest.ReplyCall{{ID: "call_1", Name: "add", Input: `{"a":1,"b":2}`}}}.
		Render(gatewaytest.Responses, "gpt-5.1")
	whole, err := New().ReadResult(openai, f.Whole)
	if err != nil {
		t.Fatal(err)
	}
	streamed, failed := stream(t, openai, bytes.NewReader(gatewaytest.Frames(gatewaytest.Responses, f.Chunks)))
	if failed != nil {
		t.Fatal(failed)
	}
	encrypted := streamed.Content[0].Options.String(optProvider, optEncrypted)
	same(t, "", whole, streamed)
	if got := kinds(whole); got != "reasoning, text, call add" {
		t.Error(got)
	}
	if s := encrypted; s != "c2ln" {
		t.Errorf("the encrypted content is %q", s)
	}
}

// TestReader_cut cuts a stream at every byte: the result is always a failure, never a
// clean end.
func TestReader_cut(t *testing.T) {
	t.Parallel()
	all := rendered()
	for n := range all {
		_, failed := stream(t, openai, bytes.NewReader(all[:n]))
		if failed == nil || failed.Kind != hub.UpstreamFailed {
			t.Fatalf("cut at %d of %d: %+v", n, len(all), failed)
		}
	}
}

func rendered() []byte {
	f := gatewaytest.Reply{Reasoning: "So.", Signature: "c2ln", Text: "Some text.", Calls: []gatewaytest.ReplyCall{{ID: "call_1", Name: "add", Input: `{"a":1}`}}}.
		Render(gatewaytest.Responses, "gpt-5.1")
	return gatewaytest.Frames(gatewaytest.Responses, f.Chunks)
}

func TestReader_readError(t *testing.T) {
	t.Parallel()
	broken := errors.New("connection reset")
	r := New().NewReader(openai, io.MultiReader(bytes.NewReader(rendered()[:300]), iotest.ErrReader(broken)))
	for {
		_, err := r.Next()
		if err == nil {
			continue
		}
		if !errors.Is(err, broken) {
			t.Fatalf("%v, want the error of the reader", err)
		}
		return
	}
}

func TestReader_failures(t *testing.T) {
	t.Parallel()
	const created = `data: {"type":"response.created","response":{"id":"r","status":"in_progress"}}` + "\n\n"
	for _, c := range []struct {
		name, in string
		kind     hub.ErrorKind
		message  string
	}{
		{"nested error", created + `data: {"type":"error","error":{"type":"insufficient_quota","code":"insufficient_quota","message":"no money"}}`, hub.RateLimited, "no money"},
		{"flat error", created + `data: {"type":"error","code":"server_error","message":"oh"}`, hub.UpstreamFailed, "oh"},
		{"failed", created + `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"oh"}}}`, hub.UpstreamFailed, "oh"},
		{"no JSON", created + `data: {"type"`, hub.UpstreamFailed, "openai: an event of the stream makes no sense"},
		{"no response", created + `data: {"type":"response.completed"}`, hub.UpstreamFailed, "openai: the stream ended without its response"},
		{"a call without a name", created + `data: {"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c"}}`, hub.UpstreamFailed, "openai: the answer has a tool call without id or name, or too many"},
		{"a secret", created + `data: {"type":"error","message":"bad key sk-abcdefgh12345"}`, hub.UpstreamFailed, "bad key [redacted]"},
		{"nothing", "", hub.UpstreamFailed, "openai: the stream broke off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, e := stream(t, openai, strings.NewReader(c.in+"\n\n"))
			if e == nil || e.Kind != c.kind || e.Message != c.message {
				t.Errorf("%+v, want %s %q", e, c.kind, c.message)
			}
		})
	}
}

func TestReadResult_failures(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{`:                      "openai: the answer makes no sense",
		`{}`:                     "openai: the answer is no response",
		`{"status":"queued"}`:    "openai: the response is queued",
		`{"status":"cancelled"}`: "openai: the response is cancelled",
		`{"status":"failed","error":{"code":"server_error","message":"oh"}}`:       "oh",
		`{"status":"completed","output":[{"type":"function_call","call_id":"c"}]}`: "openai: the answer has a tool call without id or name, or too many",
	} {
		_, err := New().ReadResult(openai, []byte(body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Message != want || e.Kind != hub.UpstreamFailed {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
}

func TestReadResult_finish(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]hub.Finish{
		`{"status":"completed","output":[]}`:                                                                 {Reason: hub.Stop, Raw: "completed"},
		`{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}`:                        {Reason: hub.Length, Raw: "max_output_tokens"},
		`{"status":"incomplete","incomplete_details":{"reason":"content_filter"}}`:                           {Reason: hub.ContentFilter, Raw: "content_filter"},
		`{"status":"incomplete"}`:                                                                            {Reason: hub.OtherReason, Raw: "incomplete"},
		`{"status":"completed","output":[{"type":"function_call","call_id":"c","name":"f"}]}`:                {Reason: hub.ToolCalls, Raw: "completed"},
		`{"status":"completed","output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}`: {Reason: hub.ContentFilter, Raw: "completed"},
		`{"status":"completed","output":[{"type":"mcp_call","id":"m","name":"f","server_label":"s"}]}`:       {Reason: hub.Stop, Raw: "completed"},
	} {
		r, err := New().ReadResult(openai, []byte(body))
		if err != nil || r.Finish != want {
			t.Errorf("%s: %+v, %v; want %+v", body, r, err, want)
		}
	}
}

func TestReadError(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status        int
		body          string
		kind          hub.ErrorKind
		code, message string
	}{
		{429, string(fixture(t, "openai/responses-openai-error.1")), hub.RateLimited, "insufficient_quota",
			"You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors."},
		{400, string(fixture(t, "openai/responses-reasoning-model-temperature-error")), hub.BadRequest, "invalid_request_error",
			"Unsupported parameter: 'temperature' is not supported with this model."},
		{404, `{"error":{"message":"no such model","code":"model_not_found"}}`, hub.ModelNotFound, "model_not_found", "no such model"},
		{400, `{"code":"Client specified an invalid argument","error":"bad"}`, hub.BadRequest, "Client specified an invalid argument", "bad"},
		{401, `{"error":{"message":"Incorrect API key provided: sk-abc***xyz12"}}`, hub.UpstreamFailed, "", "Incorrect API key provided: [redacted]"},
		{502, "<html>Bad gateway</html>", hub.UpstreamFailed, "", "openai answered with status 502"},
		{503, "busy", hub.Overloaded, "", "busy"},
		{500, "", hub.UpstreamFailed, "", "openai answered with status 500"},
	} {
		e := New().ReadError(openai, c.status, nil, []byte(c.body))
		if e.Kind != c.kind || e.Code != c.code || e.Message != c.message || e.Status != c.status || e.Provider != "openai" {
			t.Errorf("%d %s: %+v", c.status, c.body, e)
		}
	}
}

func fixture(t *testing.T, name string) []byte { return gatewaytest.Named(t, name).Whole }

// TestTap compares the Tap's result with the decoder's.
func TestTap(t *testing.T) {
	t.Parallel()
	for _, f := range fixtures(t) {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			target := target(f)
			compare := func(seen hub.Seen, r *hub.Result) {
				t.Helper()
				if !seen.Complete || seen.Err != nil || seen.Finish != r.Finish || !reflect.DeepEqual(seen.Usage, r.Usage) || seen.Response != r.Response {
					t.Errorf("seen %+v %s\nread %+v %s %+v", seen, hub.MustEncode(seen.Usage), r.Finish, hub.MustEncode(r.Usage), r.Response)
				}
			}
			if f.Whole != nil {
				r, err := New().ReadResult(target, f.Whole)
				if err != nil {
					t.Fatal(err)
				}
				tap := New().Tap(target, false)
				for chunk := range bytes.SplitAfterSeq(f.Whole, []byte("\n")) {
					tap.Write(chunk)
				}
				compare(tap.End(), r)
			}
			if f.Chunks != nil {
				all := gatewaytest.Frames(gatewaytest.Responses, f.Chunks)
				r, failed := stream(t, target, bytes.NewReader(all))
				if failed != nil {
					t.Fatal(failed)
				}
				tap := New().Tap(target, true)
				tap.Write(all)
				compare(tap.End(), r)
			}
		})
	}
}

func TestTap_cut(t *testing.T) {
	t.Parallel()
	all := rendered()
	content := bytes.Index(all, []byte("response.output_item.added"))
	for n := range len(all) + 1 {
		tap := New().Tap(openai, true)
		for _, b := range all[:n] {
			tap.Write([]byte{b})
		}
		seen := tap.End()
		if complete := n == len(all); seen.Complete != complete || (seen.Usage != nil) != complete {
			t.Fatalf("cut at %d of %d: %+v", n, len(all), seen)
		}
		if n < content && tap.Begun() {
			t.Fatalf("cut at %d: begun before the content at %d", n, content)
		}
	}
	whole := gatewaytest.Reply{Text: "Some text."}.Render(gatewaytest.Responses, "gpt-5.1").Whole
	for n := range len(whole) + 1 {
		tap := New().Tap(openai, false)
		tap.Write(whole[:n])
		if seen := tap.End(); seen.Complete != (n == len(whole)) {
			t.Fatalf("whole cut at %d: %+v", n, seen)
		}
	}
}

func TestTap_failed(t *testing.T) {
	t.Parallel()
	tap := New().Tap(openai, true)
	tap.Write([]byte(`data: {"type":"error","code":"server_error","message":"oh"}` + "\n\n"))
	if seen := tap.End(); seen.Err == nil || seen.Err.Message != "oh" || seen.Complete {
		t.Errorf("%+v", seen)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(rendered())
	f.Add([]byte("data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"custom_tool_call\",\"call_id\":\"a\",\"name\":\"b\",\"input\":\"c\"}}\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		stream(t, openai, bytes.NewReader(b))
		tap := New().Tap(openai, true)
		tap.Write(b)
		tap.End()
		if r, err := New().ReadResult(openai, b); err == nil {
			if _, err := New().WriteResult(hub.Answer{ID: "gen_1", Model: "m"}, r); err != nil {
				t.Error(err)
			}
		}
		if e := New().ReadError(openai, 400, nil, b); e.Message == "" || e.Kind == "" {
			t.Errorf("%+v", e)
		}
	})
}
