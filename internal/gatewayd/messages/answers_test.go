package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// write returns events as an encoded stream.
func write(a hub.Answer, events ...hub.Event) []byte {
	w := New().NewWriter(a)
	var stream []byte
	for i := range events {
		stream = w.Append(stream, &events[i])
	}
	return stream
}

// names returns the names of the events of a stream.
func names(stream []byte) string {
	var all []string
	for line := range strings.SplitSeq(string(stream), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			all = append(all, name)
		}
	}
	return strings.Join(all, " ")
}

func TestWriter_Order(t *testing.T) {
	t.Parallel()
	var citations hub.Options
	citations.SetRaw("anthropic", "citations", json.RawMessage(`[{"type":"char_location","cited_text":"x"}]`))
	events := []hub.Event{
		{Kind: hub.Start, Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "seed", Message: "no"}}},
		{Kind: hub.Metadata, Response: hub.Response{ID: "resp_1", Model: "gpt"}},
		{Kind: hub.Raw},
		{Kind: hub.ReasoningStart, ID: "r"}, {Kind: hub.ReasoningDelta, ID: "r", Delta: "hm"}, {Kind: hub.ReasoningEnd, ID: "r"},
		{Kind: hub.TextStart, ID: "t"}, {Kind: hub.TextDelta, ID: "t", Delta: "a\"<b>\n\u2028"},
		{Kind: hub.InputStart, ID: "c1", Name: "f"}, {Kind: hub.InputStart, ID: "c2", Name: "g"}, // at the same time
		{Kind: hub.InputDelta, ID: "c2", Delta: `{"x"`}, {Kind: hub.InputDelta, ID: "c1", Delta: `{}`}, {Kind: hub.InputDelta, ID: "c2", Delta: `:1}`},
		{Kind: hub.InputEnd, ID: "c1"}, {Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c1", Name: "f", Input: "{}"}}},
		{Kind: hub.InputEnd, ID: "c2"}, {Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c2", Name: "g", Input: `{"x":1}`}}},
		{Kind: hub.TextEnd, ID: "t", Options: citations},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c3", Name: "h", Input: `{"y":2}`}}},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: []byte("img")}}},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ApprovalRequestPart, Approval: &hub.Approval{ID: "a"}}},
		{Kind: hub.Ping},
		{
			Kind: hub.Finished, Finish: hub.Finish{Reason: hub.ToolCalls, Raw: "tool_calls"},
			Usage: &hub.Usage{Input: hub.N(100), CacheRead: hub.N(60), Output: hub.N(20), Reasoning: hub.N(5)},
		},
	}
	stream := write(hub.Answer{ID: "gen_1", Model: "openai/gpt", Metadata: func() []byte { return []byte(`{"cost":"0.1"}`) }}, events...)
	want := "message_start " +
		"content_block_start content_block_delta content_block_stop " +
		"content_block_start content_block_delta " +
		"content_block_start content_block_start content_block_delta content_block_delta content_block_delta content_block_stop content_block_stop " +
		"content_block_delta content_block_stop " +
		"content_block_start content_block_delta content_block_stop " +
		"content_block_start content_block_stop " +
		"ping message_delta message_stop"
	if got := names(stream); got != want {
		t.Errorf("events\n%s\nwant\n%s", got, want)
	}
	m := accumulate(t, stream)
	expect(t, m, "id", `"gen_1"`)
	expect(t, m, "model", `"openai/gpt"`)
	expect(t, m, "stop_reason", `"tool_use"`)
	expect(t, m, "content.0", `{"signature":"","thinking":"hm","type":"thinking"}`)
	if got := m.Get("content.1.text").Str; got != "a\"<b>\n\u2028" {
		t.Errorf("text %q", got)
	}
	expect(t, m, "content.1.citations", `[{"cited_text":"x","type":"char_location"}]`)
	expect(t, m, "content.2", `{"id":"c1","input":{},"name":"f","type":"tool_use"}`)
	expect(t, m, "content.3", `{"id":"c2","input":{"x":1},"name":"g","type":"tool_use"}`)
	expect(t, m, "content.4", `{"id":"c3","input":{"y":2},"name":"h","type":"tool_use"}`)
	expect(t, m, "content.5.source.data", `"aW1n"`)
	expect(t, m, "usage.input_tokens", "40")
	expect(t, m, "usage.cache_read_input_tokens", "60")
	expect(t, m, "usage.cache_creation_input_tokens", "null")
	expect(t, m, "usage.output_tokens_details.thinking_tokens", "5")
	if !bytes.Contains(stream, []byte(`"provider_metadata":{"gateway":{"cost":"0.1"},"warnings":[{"feature":"seed","message":"no","type":"unsupported"},{"feature":"tool-approval-request",`)) {
		t.Errorf("metadata: %s", stream)
	}
}

func TestWriter_Failure(t *testing.T) {
	t.Parallel()
	failure := hub.Event{Kind: hub.Failure, Err: &hub.Error{Kind: hub.Overloaded, Message: "busy"}}
	want := "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"},\"request_id\":\"gen_1\"}\n\n"
	if got := string(write(hub.Answer{ID: "gen_1"}, failure)); got != want {
		t.Errorf("%q", got)
	}
	stream := write(hub.Answer{ID: "gen_1"}, hub.Event{Kind: hub.Start}, hub.Event{Kind: hub.TextStart, ID: "t"}, failure, hub.Event{Kind: hub.TextEnd, ID: "t"})
	if !strings.HasSuffix(string(stream), want) || names(stream) != "message_start content_block_start error" {
		t.Errorf("%s", stream)
	}
	_, failed := read(t, anthropic, bytes.NewReader(stream))
	if failed == nil || failed.Kind != hub.Overloaded || failed.Message != "busy" {
		t.Errorf("%+v", failed)
	}
	// A provider's own failure does not look like a complete answer.
	finish := hub.Finish{Reason: hub.Failed, Raw: "MALFORMED_FUNCTION_CALL"}
	stream = write(hub.Answer{}, hub.Event{Kind: hub.Start}, hub.Event{Kind: hub.Finished, Finish: finish})
	if names(stream) != "message_start error" || !bytes.Contains(stream, []byte("MALFORMED_FUNCTION_CALL")) {
		t.Errorf("%s", stream)
	}
	var e *hub.Error
	if _, err := New().WriteResult(hub.Answer{}, &hub.Result{Finish: finish}); !errors.As(err, &e) || e.Kind != hub.UpstreamFailed {
		t.Errorf("%v", err)
	}
}

func TestWriter_KeepAlive(t *testing.T) {
	t.Parallel()
	if got := string(New().NewWriter(hub.Answer{}).KeepAlive(nil)); got != "event: ping\ndata: {\"type\":\"ping\"}\n\n" {
		t.Errorf("%q", got)
	}
}

// Another provider's sources become citations of the text they follow.
func TestWrite_ForeignSources(t *testing.T) {
	t.Parallel()
	source := &hub.Part{Kind: hub.SourcePart, Source: &hub.Source{ID: "s", URL: "https://a.example", Title: "A"}}
	want := `[{"cited_text":"","encrypted_index":"","title":"A","type":"web_search_result_location","url":"https://a.example"}]`
	m := accumulate(t, write(hub.Answer{},
		hub.Event{Kind: hub.Start}, hub.Event{Kind: hub.TextStart, ID: "t"}, hub.Event{Kind: hub.TextDelta, ID: "t", Delta: "x"},
		hub.Event{Kind: hub.Whole, Part: source}, hub.Event{Kind: hub.TextEnd, ID: "t"}, hub.Event{Kind: hub.Whole, Part: source},
		hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Stop}}))
	expect(t, m, "content.0.citations", want)
	expect(t, m, "content.1.citations", want)
	body, err := New().WriteResult(hub.Answer{}, &hub.Result{Content: []hub.Part{{Kind: hub.TextPart, Text: "x"}, *source}, Finish: hub.Finish{Reason: hub.Stop}})
	if err != nil || sorted(t, []byte(gjson.GetBytes(body, "content.0.citations").Raw)) != want {
		t.Errorf("%s, %v", body, err)
	}
}

// A tool run by another provider appears as an MCP server's tool.
func TestWriteResult_ForeignProviderTools(t *testing.T) {
	t.Parallel()
	body, err := New().WriteResult(hub.Answer{ID: "gen_1", Model: "m"}, &hub.Result{
		Content: []hub.Part{
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "ws_1", Name: "file_search", Input: `[1]`, ProviderExecuted: true}},
			{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "ws_1", Name: "file_search", ProviderExecuted: true, Output: hub.ToolOutput{Kind: hub.OutputErrorJSON, JSON: json.RawMessage(`{"a":1}`)}}},
		},
		Finish: hub.Finish{Reason: hub.Length, Raw: "length"},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := gjson.ParseBytes(body)
	expect(t, m, "content.0", `{"type":"mcp_tool_use","id":"ws_1","name":"file_search","server_name":"provider","input":{"input":[1]}}`)
	expect(t, m, "content.1", `{"type":"mcp_tool_result","tool_use_id":"ws_1","content":[{"type":"text","text":"{\"a\":1}"}],"is_error":true}`)
	expect(t, m, "stop_reason", `"max_tokens"`)
	expect(t, m, "usage.input_tokens", "0")
}

func TestReader_AnswerTool(t *testing.T) {
	t.Parallel()
	body := []byte(`{"type":"message","content":[{"type":"text","text":"Here:"},{"type":"tool_use","id":"t1","name":"` + hub.AnswerTool + `","input":{"a":{"b":"c"}}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}`)
	whole, err := New().ReadResult(anthropic, body)
	if err != nil || whole.Finish.Reason != hub.Stop || len(whole.Content) != 2 || whole.Content[1].Kind != hub.TextPart || whole.Content[1].Text != `{"a":{"b":"c"}}` {
		t.Fatalf("%+v, %v", whole, err)
	}
	streamed, failed := read(t, anthropic, bytes.NewReader(asStream(t, body)))
	if failed != nil || canonical(t, streamed) != canonical(t, whole) {
		t.Errorf("%+v, %v", streamed, failed)
	}
	body = bytes.Replace(body, []byte(`"Here:"},`), []byte(`"Here:"},{"type":"tool_use","id":"t2","name":"f","input":{}},`), 1)
	if both, _ := New().ReadResult(anthropic, body); both.Finish.Reason != hub.ToolCalls {
		t.Errorf("with another call: %+v", both.Finish)
	}
}

// Malformed provider streams are failures or are repaired.
func TestReader_Nonsense(t *testing.T) {
	t.Parallel()
	start := `{"type":"message_start","message":{"type":"message","id":"m","model":"x","content":[],"usage":{"input_tokens":5,"output_tokens":1}}}`
	stop := `{"type":"message_stop"}`
	text := `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"a"}}`
	for name, c := range map[string]struct {
		chunks []string
		ok     bool
	}{
		"no JSON":               {[]string{start, `{"type":`, stop}, false},
		"the start twice":       {[]string{start, start, text, start, stop}, true},
		"two answers":           {[]string{start, strings.Replace(start, `"m"`, `"n"`, 1), stop}, false},
		"delta of nothing":      {[]string{start, `{"type":"content_block_delta","index":3,"delta":{"type":"text_delta","text":"x"}}`, stop}, false},
		"stop of nothing":       {[]string{start, `{"type":"content_block_stop","index":0}`, stop}, false},
		"opened twice":          {[]string{start, text, text, stop}, false},
		"a call without an id":  {[]string{start, `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","name":"f","input":{}}}`, stop}, false},
		"two calls of one id":   {[]string{start, `{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f"}}`, `{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"f"}}`, stop}, false},
		"a block is left open":  {[]string{start, text, stop}, true},
		"new events and deltas": {[]string{start, `{"type":"new"}`, text, `{"type":"content_block_delta","index":0,"delta":{"type":"new_delta","x":"y"}}`, `{"type":"content_block_stop","index":0}`, stop}, true},
		"no message_start":      {[]string{text, `{"type":"content_block_stop","index":0}`, stop}, true},
		"CRLF and what follows": {[]string{start, text, stop + "\r", `{"type":"error"}`}, true},
	} {
		var stream string
		for _, c := range c.chunks {
			stream += "event: x\ndata: " + c + "\n\n"
		}
		r, failed := read(t, anthropic, iotest.HalfReader(strings.NewReader(stream)))
		if c.ok != (failed == nil) || failed != nil && failed.Kind != hub.UpstreamFailed {
			t.Errorf("%s: %+v, %v", name, r, failed)
		}
		if c.ok && len(r.Content) > 0 && r.Text() != "a" {
			t.Errorf("%s: %+v", name, r.Content)
		}
	}
	// Unknown blocks are passed on.
	r, failed := read(t, anthropic, strings.NewReader("data: "+start+"\n\n"+
		`data: {"type":"content_block_start","index":0,"content_block":{"type":"hologram","size":3,"beam":"a"}}`+"\n\n"+
		`data: {"type":"content_block_delta","index":0,"delta":{"type":"hologram_delta","beam":"b"}}`+"\n\n"+
		`data: {"type":"content_block_stop","index":0}`+"\n\n"+"data: "+stop+"\n\n"))
	if failed != nil || r.Content[0].CustomKind != "anthropic.hologram" || string(r.Content[0].Custom) != `{"beam":"ab","size":3}` {
		t.Errorf("%+v, %v", r.Content, failed)
	}
	body, err := New().WriteResult(hub.Answer{}, r)
	if err != nil || gjson.GetBytes(body, "content.0").Raw != `{"type":"hologram","beam":"ab","size":3}` {
		t.Errorf("%s, %v", body, err)
	}
}

func TestReader_Limits(t *testing.T) {
	t.Parallel()
	var many []byte
	many = append(many, "data: {\"type\":\"message_start\",\"message\":{}}\n\n"...)
	for i := range maxToolCalls + 1 {
		n := strconv.Itoa(i)
		many = append(many, `data: {"type":"content_block_start","index":`+n+`,"content_block":{"type":"tool_use","id":"t`+n+`","name":"f","input":{}}}`+"\n\n"...)
		many = append(many, `data: {"type":"content_block_stop","index":`+n+`}`+"\n\n"...)
	}
	if _, failed := read(t, anthropic, bytes.NewReader(many)); failed == nil || !strings.Contains(failed.Message, "1024 tools") {
		t.Errorf("many calls: %v", failed)
	}
	large := "data: " + strings.Repeat("x", maxEvent+1) + "\n\n"
	if _, failed := read(t, anthropic, strings.NewReader(large)); failed == nil || !strings.Contains(failed.Message, "16 MiB") {
		t.Errorf("a large event: %v", failed)
	}
	if deep := strings.Repeat(`{"a":`, 20000); true {
		if _, err := New().ReadResult(anthropic, []byte(deep)); err == nil {
			t.Error("deep JSON was read")
		}
		if _, err := New().ReadCall(nil, []byte(deep)); err == nil {
			t.Error("deep JSON was read")
		}
	}
	broken := errors.New("connection reset")
	if _, err := New().NewReader(anthropic, iotest.ErrReader(broken)).Next(); !errors.Is(err, broken) {
		t.Errorf("Next: %v", err)
	}
}

func TestReader_Raw(t *testing.T) {
	t.Parallel()
	target := *anthropic
	target.Call = &hub.Call{IncludeRaw: true}
	chunks := answers(gatewaytest.Named(t, "anthropic/anthropic-text").Chunks)[0]
	r := New().NewReader(&target, bytes.NewReader(gatewaytest.Frames(gatewaytest.Messages, chunks)))
	raw := 0
	var checker hub.Checker
	for {
		events, err := r.Next()
		if err != nil {
			break
		}
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Fatal(err)
			}
			if events[i].Kind == hub.Raw && json.Valid(events[i].Raw) {
				raw++
			}
		}
	}
	pings := bytes.Count(bytes.Join(chunks, nil), []byte(`"ping"`))
	if want := len(chunks) - pings; raw != want {
		t.Errorf("%d raw events, want %d", raw, want)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	start := `data: {"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":100,"cache_creation_input_tokens":50,"cache_creation":{"ephemeral_5m_input_tokens":20,"ephemeral_1h_input_tokens":30},"output_tokens":1,"service_tier":"priority"}}}` + "\n\n"
	delta := `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":null,"output_tokens":42,"output_tokens_details":{"thinking_tokens":12},"server_tool_use":{"web_search_requests":2}}}` + "\n\n"
	stream := start + delta + `data: {"type":"message_stop"}` + "\n\n"
	r, failed := read(t, anthropic, strings.NewReader(stream))
	if failed != nil {
		t.Fatal(failed)
	}
	want := &hub.Usage{
		Input: hub.N(160), NoCache: hub.N(10), CacheRead: hub.N(100), CacheWrite: hub.N(50), CacheWrite1h: hub.N(30),
		Output: hub.N(42), Text: hub.N(30), Reasoning: hub.N(12), Searches: hub.N(2), Tier: "priority", Raw: r.Usage.Raw,
	}
	if !reflect.DeepEqual(r.Usage, want) {
		t.Errorf("%+v", r.Usage)
	}
	tap := New().Tap(anthropic, true)
	tap.Write([]byte(stream))
	if seen := tap.End(); !reflect.DeepEqual(seen.Usage, want) {
		t.Errorf("tap: %+v", seen.Usage)
	}
	// The client left before the end, so only the prompt's tokens are known.
	tap = New().Tap(anthropic, true)
	tap.Write([]byte(start))
	if tap.Begun() {
		t.Error("nothing of the content has come")
	}
	tap.Write([]byte(`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hällo"}}` + "\n\n"))
	if seen := tap.End(); !tap.Begun() || seen.Complete || *seen.Usage.Input != 160 || *seen.Usage.Output != 1 || seen.OutputBytes != 6 {
		t.Errorf("tap: %+v", seen)
	}
	tap = New().Tap(anthropic, true)
	tap.Write([]byte(start + "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"busy\"}}\n\n"))
	if seen := tap.End(); seen.Complete || seen.Err == nil || seen.Err.Kind != hub.Overloaded {
		t.Errorf("tap: %+v", seen)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for kind, want := range map[hub.ErrorKind]string{
		hub.BadRequest: "400 invalid_request_error", hub.Unauthenticated: "401 authentication_error", hub.BudgetExceeded: "402 billing_error",
		hub.Forbidden: "403 permission_error", hub.ModelNotFound: "404 not_found_error", hub.NotFound: "404 not_found_error", hub.TooLarge: "413 request_too_large",
		hub.FailedDependency: "400 invalid_request_error", hub.RateLimited: "429 rate_limit_error", hub.Internal: "500 api_error", hub.UpstreamFailed: "502 api_error",
		hub.Overloaded: "529 overloaded_error", hub.Timeout: "504 timeout_error", hub.Canceled: "499 api_error",
	} {
		head := http.Header{}
		status, body := New().WriteError(hub.Answer{ID: "gen_1"}, &hub.Error{Kind: kind, Message: "why", RetryAfter: 1200 * time.Millisecond}, head)
		code, name, _ := strings.Cut(want, " ")
		if strconv.Itoa(status) != code || string(body) != `{"type":"error","error":{"type":"`+name+`","message":"why"},"request_id":"gen_1"}` || head.Get("Retry-After") != "2" {
			t.Errorf("%s: %d %s %v", kind, status, body, head)
		}
	}
	for _, c := range []struct {
		status        int
		body          string
		want          hub.ErrorKind
		code, message string
	}{
		{400, `{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long"}}`, hub.BadRequest, "invalid_request_error", "prompt is too long"},
		{401, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key sk-ant-api03-abcdefghijk"}}`, hub.UpstreamFailed, "authentication_error", "invalid x-api-key [redacted]"},
		{404, `{"type":"error","error":{"type":"not_found_error","message":"model: x"}}`, hub.ModelNotFound, "not_found_error", "model: x"},
		{413, `{"type":"error","error":{"type":"request_too_large","message":"m"}}`, hub.TooLarge, "request_too_large", "m"},
		{429, `{"type":"error","error":{"type":"rate_limit_error","message":"m"}}`, hub.RateLimited, "rate_limit_error", "m"},
		{500, `{"type":"error","error":{"type":"api_error","message":"m"}}`, hub.UpstreamFailed, "api_error", "m"},
		{500, `{"type":"error","error":{"type":"overloaded_error","message":"m"}}`, hub.Overloaded, "overloaded_error", "m"},
		{529, `{"error":{"message":"m"}}`, hub.Overloaded, "", "m"},
		{504, `<html>`, hub.Timeout, "", "anthropic answered with the status 504"},
		{502, ``, hub.UpstreamFailed, "", "anthropic answered with the status 502"},
	} {
		e := New().ReadError(anthropic, c.status, http.Header{"Retry-After": {"3"}}, []byte(c.body))
		if e.Kind != c.want || e.Code != c.code || e.Message != c.message || e.Status != c.status || e.RetryAfter != 3*time.Second || e.Provider != "anthropic" {
			t.Errorf("%d %s: %+v", c.status, c.body, e)
		}
	}
	var e *hub.Error
	if _, err := New().ReadResult(anthropic, []byte(`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`)); !errors.As(err, &e) || e.Kind != hub.Overloaded {
		t.Errorf("%v", err)
	}
	for _, body := range []string{``, `{}`, `[]`, `"x"`, `{"type":"completion"}`, `{"type":"message","content":[{"type":"tool_use"}]}`} {
		if _, err := New().ReadResult(anthropic, []byte(body)); !errors.As(err, &e) || e.Kind != hub.UpstreamFailed {
			t.Errorf("ReadResult(%s): %v", body, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"a\",\"usage\":{\"input_tokens\":1}}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":{}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Add([]byte("data: {\"type\":\"message_start\",\"message\":{\"content\":[{\"type\":\"thinking\",\"thinking\":\"x\",\"signature\":\"y\"},{\"type\":\"web_search_tool_result\",\"tool_use_id\":\"z\",\"content\":[{\"type\":\"web_search_result\"}]}]}}\n\ndata: {\"type\":\"message_stop\"}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		r, failed := read(t, anthropic, bytes.NewReader(stream))
		tap := New().Tap(anthropic, true)
		tap.Write(stream)
		tap.End()
		if failed != nil || r.Finish.Reason == hub.Failed {
			return
		}
		out := write(hub.Answer{ID: "g"}, r.Events()...)
		again, failed := read(t, anthropic, bytes.NewReader(out))
		if failed != nil {
			t.Fatalf("%v: %s", failed, out)
		}
		if len(again.Content) != len(r.Content) {
			t.Fatalf("%+v became %+v", r.Content, again.Content)
		}
	})
}

func FuzzReadResult(f *testing.F) {
	f.Add([]byte(`{"type":"message","id":"a","content":[{"type":"text","text":"x","citations":[{"type":"page_location"}]},{"type":"mcp_tool_use","id":"a","name":"b"},{"type":"mcp_tool_result","tool_use_id":"a","content":[]},{"type":"redacted_thinking","data":"x"}],"usage":{"iterations":[{"type":"message","input_tokens":1}]},"stop_reason":"tool_use"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		tap := New().Tap(anthropic, false)
		tap.Write(body)
		tap.End()
		r, err := New().ReadResult(anthropic, body)
		if err != nil {
			return
		}
		out, err := New().WriteResult(hub.Answer{ID: "g"}, r)
		if err != nil || !json.Valid(out) {
			t.Fatalf("%s, %v", out, err)
		}
		if _, err := New().ReadResult(anthropic, out); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
}

func FuzzReadError(f *testing.F) {
	f.Add(529, []byte(`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		if e := New().ReadError(anthropic, status, http.Header{}, body); e.Kind == "" || e.Message == "" {
			t.Fatalf("%+v", e)
		}
	})
}

// The Tap runs for every passed event, so it must not allocate.
func TestTap_AllocatesNothingPerDelta(t *testing.T) {
	tap := New().Tap(anthropic, true)
	tap.Write([]byte("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n"))
	delta := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello \\\":\\\" there\"}}\n\n")
	if n := testing.AllocsPerRun(100, func() { tap.Write(delta) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if seen := tap.End(); seen.OutputBytes != 101*int64(len(`Hello \":\" there`)) {
		t.Errorf("%d bytes", seen.OutputBytes)
	}
}
