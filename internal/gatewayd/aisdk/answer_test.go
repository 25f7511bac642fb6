package aisdk

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var update = flag.Bool("update", false, "write the golden files of testdata anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test -update writes it anew):\n got %s\nwant %s", file, got, want)
	}
}

// everything returns an answer with every kind of part, every kind of warning, and all
// usage counts.
func everything() *hub.Result {
	r := &hub.Result{
		Content: []hub.Part{
			{Kind: hub.ReasoningPart, Text: "Hm.", Options: options("anthropic", "signature", `"s1"`)},
			{Kind: hub.ReasoningPart, Options: options("anthropic", "redactedData", `"r1"`)},
			{Kind: hub.TextPart, Text: "12 °C \"outside\"\u2028\n<b>"},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c1", Name: "look", Input: `{"city": "Oslo"}`}, Options: options("google", "thoughtSignature", `"t1"`)},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c2", Name: "look"}},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "p1", Name: "search", Input: `{}`, ProviderExecuted: true}},
			{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "p1", Name: "search", ProviderExecuted: true, Preliminary: true, Output: hub.ToolOutput{Kind: hub.OutputJSON}}},
			{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "p1", Name: "search", ProviderExecuted: true, Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage("[\n 1]")}}},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "p2", Name: "mcp", Input: `{}`, ProviderExecuted: true, Dynamic: true}},
			{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "p2", Name: "mcp", ProviderExecuted: true, Dynamic: true, Output: hub.ToolOutput{Kind: hub.OutputErrorText, Text: "no"}}},
			{Kind: hub.SourcePart, Source: &hub.Source{ID: "s1", URL: "https://example.com", Title: "Example"}},
			{Kind: hub.SourcePart, Source: &hub.Source{Filename: "a.pdf", MediaType: "application/pdf"}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "image/png", Data: png}},
			{Kind: hub.FilePart, File: &hub.File{URL: "https://example.com/a.png", Name: "a.png"}},
			{Kind: hub.FilePart, File: &hub.File{MediaType: "text/plain", Text: "abc"}},
			{Kind: hub.FilePart, File: &hub.File{Reference: map[string]string{"openai": "file-1"}}},
			{Kind: hub.ReasoningFilePart, File: &hub.File{MediaType: "image/png", Data: png}},
			{Kind: hub.ApprovalRequestPart, Approval: &hub.Approval{ID: "a1", CallID: "p1"}},
			{Kind: hub.CustomPart, CustomKind: "openai.compaction", Custom: json.RawMessage(`{"type":"x","blob":{"a": 1}}`), Options: options("openai", "itemId", `"cmp_1"`)},
		},
		Finish:   hub.Finish{Reason: hub.ToolCalls, Raw: "tool_use"},
		Usage:    &hub.Usage{NoCache: hub.N(10), CacheRead: hub.N(4), CacheWrite: hub.N(1), Output: hub.N(9), Reasoning: hub.N(2), Raw: json.RawMessage("{\"a\":\n1}")},
		Response: hub.Response{ID: "msg_1", Model: "claude-sonnet-4-6", Created: time.UnixMilli(1234567890123)},
		Warnings: []hub.Warning{
			{Kind: hub.WarnUnsupported, Feature: "topK", Message: "left out"},
			{Kind: hub.WarnUnsupported, Feature: "seed"},
			{Kind: hub.WarnUnsupported, Feature: "tools.web_search_20250305", Message: "no such tool"},
			{Kind: hub.WarnUnsupported, Feature: "tools.look"},
			{Kind: hub.WarnCompatibility, Feature: "temperature", Message: "clamped"},
			{Kind: hub.WarnOther, Message: "slow"},
		},
		Options: options("anthropic", "container", "null"),
	}
	r.Options.Set("gateway", "theirs", "is replaced")
	return r
}

// to returns the hub.Answer for a version.
func to(version string) hub.Answer {
	return hub.Answer{
		ID: "gen_01ARZ3NDEKTSV4RRFFQ69G5FAV", Model: "anthropic/claude-sonnet-4.6", Version: version,
		Call: &hub.Call{
			Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "logitBias"}, {Kind: hub.WarnUnsupported, Feature: "seed"}},
			Tools:    []hub.Tool{{Name: "search", ProviderID: "anthropic.web_search_20250305"}, {Name: "look"}},
		},
		Metadata: func() []byte {
			return []byte("{\"generationId\":\"gen_01ARZ3NDEKTSV4RRFFQ69G5FAV\",\n \"cost\":\"0.1\"}")
		},
	}
}

func TestWriteResult(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2", "3", "4"} {
		got, err := New().WriteResult(to(version), everything())
		if err != nil {
			t.Fatal(err)
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, got, "", "\t"); err != nil {
			t.Fatalf("version %s: %v\n%s", version, err, got)
		}
		golden(t, "result."+version+".json", append(indented.Bytes(), '\n'))
	}
}

func TestWriter(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2", "3", "4"} {
		events := everything().Events()
		if version == "2" {
			events[1].Response = hub.Response{}
		}
		w := New().NewWriter(to(version))
		var got []byte
		for i := range events {
			got = w.Append(got, &events[i])
			if i == 1 {
				got = w.KeepAlive(got)
				got = w.Append(got, &hub.Event{Kind: hub.Ping})
				got = w.Append(got, &hub.Event{Kind: hub.Raw, Raw: json.RawMessage(`{}`)}) // not requested
			}
		}
		checkStream(t, got)
		golden(t, "stream."+version+".txt", got)
	}
}

// checkStream checks that each event is one line of JSON.
func checkStream(t *testing.T, stream []byte) (parts []map[string]any) {
	t.Helper()
	for _, e := range strings.SplitAfter(string(stream), "\n\n") {
		data, isData := strings.CutPrefix(e, "data: ")
		switch {
		case e == "" || e == ": ping\n\n":
			continue
		case !isData || strings.Count(e, "\n") != 2 || !strings.HasSuffix(e, "\n\n"):
			t.Fatalf("event %q", e)
		}
		var part map[string]any
		if err := json.Unmarshal([]byte(data), &part); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		parts = append(parts, part)
	}
	return parts
}

// stream writes a start and events, and returns the parts after the start.
func stream(t *testing.T, a hub.Answer, events ...hub.Event) []map[string]any {
	t.Helper()
	w := New().NewWriter(a)
	got := w.Append(nil, &hub.Event{Kind: hub.Start})
	for i := range events {
		got = w.Append(got, &events[i])
	}
	parts := checkStream(t, got)
	if len(parts) == 0 || parts[0]["type"] != "stream-start" {
		t.Fatalf("begins with %v", parts)
	}
	return parts[1:]
}

// decoded returns JSON decoded by encoding/json.
func decoded(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// A client replaces the metadata of a block's earlier part by that of a later part.
func TestWriter_MetadataOfABlockAddsUp(t *testing.T) {
	t.Parallel()
	a := to("3")
	a.Metadata = nil
	parts := stream(t, a,
		hub.Event{Kind: hub.ReasoningStart, ID: "1", Options: options("openai", "itemId", `"rs_1"`)},
		hub.Event{Kind: hub.ReasoningDelta, ID: "1", Delta: "a"},
		hub.Event{Kind: hub.ReasoningDelta, ID: "1"}, // says nothing
		hub.Event{Kind: hub.ReasoningDelta, ID: "1", Options: options("anthropic", "signature", `"s"`)},
		hub.Event{Kind: hub.ReasoningEnd, ID: "1", Options: options("openai", "reasoningEncryptedContent", `"e"`)},
		hub.Event{Kind: hub.ReasoningStart, ID: "2"},
		hub.Event{Kind: hub.ReasoningEnd, ID: "2", Options: options("openai", "itemId", `"rs_2"`)},
	)
	want := decoded(t, `[
		{"type":"reasoning-start","id":"1","providerMetadata":{"openai":{"itemId":"rs_1"}}},
		{"type":"reasoning-delta","id":"1","delta":"a"},
		{"type":"reasoning-delta","id":"1","delta":"","providerMetadata":{"openai":{"itemId":"rs_1"},"anthropic":{"signature":"s"}}},
		{"type":"reasoning-end","id":"1","providerMetadata":{"openai":{"itemId":"rs_1","reasoningEncryptedContent":"e"},"anthropic":{"signature":"s"}}},
		{"type":"reasoning-start","id":"2"},
		{"type":"reasoning-end","id":"2","providerMetadata":{"openai":{"itemId":"rs_2"}}}]`)
	if got := any(toAny(parts)); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func toAny(parts []map[string]any) (list []any) {
	for _, p := range parts {
		list = append(list, p)
	}
	return list
}

// The options in events belong to the Reader that made them.
func TestWriter_LeavesEventsAlone(t *testing.T) {
	t.Parallel()
	first := options("openai", "itemId", `"a"`)
	stream(t, to("4"),
		hub.Event{Kind: hub.TextStart, ID: "1", Options: first},
		hub.Event{Kind: hub.TextEnd, ID: "1", Options: options("openai", "x", "1")})
	if !reflect.DeepEqual(first, options("openai", "itemId", `"a"`)) {
		t.Errorf("the options of an event became %v", first)
	}
}

func TestWriter_Failure(t *testing.T) {
	t.Parallel()
	parts := stream(t, to("4"),
		hub.Event{Kind: hub.TextStart, ID: "1"},
		hub.Event{Kind: hub.Failure, Err: &hub.Error{Kind: hub.Overloaded, Message: "busy", Param: "x"}})
	want := decoded(t, `{"type":"error","error":{"message":"busy","type":"internal_server_error","param":"x","code":"overloaded","statusCode":503,"generationId":"gen_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}`)
	if len(parts) != 2 || !reflect.DeepEqual(any(parts[1]), want) {
		t.Errorf("got %v, want %v last", parts, want)
	}
}

func TestWriter_Raw(t *testing.T) {
	t.Parallel()
	a := to("3")
	a.Call = &hub.Call{IncludeRaw: true}
	parts := stream(t, a, hub.Event{Kind: hub.Raw, Raw: json.RawMessage("{\"a\":\n1}")}, hub.Event{Kind: hub.Raw, Raw: json.RawMessage("{")})
	if want := decoded(t, `[{"type":"raw","rawValue":{"a":1}},{"type":"raw","rawValue":null}]`); !reflect.DeepEqual(any(toAny(parts)), want) {
		t.Errorf("got %v, want %v", parts, want)
	}
}

// The id is in the first content part only, also if an earlier part could not be written,
// and it is omitted if the client gets no metadata.
func TestWriter_GenerationID(t *testing.T) {
	t.Parallel()
	custom := hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.CustomPart, CustomKind: "a.b"}}
	source := hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.SourcePart, Source: &hub.Source{URL: "u"}}}
	parts := stream(t, to("3"), custom, source, source)
	with := map[string]any{"gateway": map[string]any{"generationId": to("3").ID}}
	if len(parts) != 2 || !reflect.DeepEqual(parts[0]["providerMetadata"], any(with)) || parts[1]["providerMetadata"] != nil {
		t.Errorf("got %v", parts)
	}
	a := to("3")
	a.Metadata = nil
	if parts := stream(t, a, source); parts[0]["providerMetadata"] != nil {
		t.Errorf("without metadata: %v", parts)
	}
}

// ai 5 fails at the call of a provider-run tool that is not in its request, but accepts a
// tool that the model invented.
func TestWriter_StrangeTools(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version, name             string
		providerExecuted, dynamic bool
		parts                     int // input, call and result
	}{
		{"2", "search", true, false, 4},
		{"2", "search", true, true, 0},
		{"2", "other", true, false, 0},
		{"2", "other", false, false, 4},
		{"2", "other", false, true, 4},
		{"3", "other", true, true, 4},
		{"4", "other", true, false, 4},
	} {
		parts := stream(t, to(test.version),
			hub.Event{Kind: hub.InputStart, ID: "c", Name: test.name, ProviderExecuted: test.providerExecuted, Dynamic: test.dynamic},
			hub.Event{Kind: hub.InputDelta, ID: "c", Delta: "{}"},
			hub.Event{Kind: hub.InputEnd, ID: "c"},
			hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: test.name, Input: "{}", ProviderExecuted: test.providerExecuted, Dynamic: test.dynamic}}},
			hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Stop}})
		finish, err := json.Marshal(parts[len(parts)-1])
		if err != nil {
			t.Fatal(err)
		}
		if len(parts)-1 != test.parts || strings.Contains(string(finish), "ran the tool") != (test.parts == 0) {
			t.Errorf("%+v: %d parts, and %s", test, len(parts)-1, finish)
		}
	}
}

func TestWriter_LateWarningsWithoutMetadata(t *testing.T) {
	t.Parallel()
	a := to("3")
	a.Metadata, a.Call = nil, nil
	custom := hub.Event{Kind: hub.Whole, Part: &hub.Part{Kind: hub.CustomPart, CustomKind: "a.b"}}
	parts := stream(t, a, custom, custom, hub.Event{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Stop}})
	warnings, _ := parts[0]["providerMetadata"].(map[string]any)["gateway"].(map[string]any)["warnings"].([]any)
	if len(parts) != 1 || len(warnings) != 1 || !strings.Contains(warnings[0].(map[string]any)["message"].(string), `"a.b"`) {
		t.Errorf("got %v, want one warning in the last part", parts)
	}
}

func TestWriter_DeltasDoNotAllocate(t *testing.T) {
	w := New().NewWriter(to("4"))
	dst := w.Append(make([]byte, 0, 4096), &hub.Event{Kind: hub.TextStart, ID: "1"})
	e := &hub.Event{Kind: hub.TextDelta, ID: "1", Delta: "Hello \"world\"\n"}
	if n := testing.AllocsPerRun(100, func() { w.Append(dst[:0], e) }); n != 0 {
		t.Errorf("%v allocations per delta", n)
	}
}

func TestFinishReasonsAndUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ version, reason, raw, finish string }{
		{"2", "", "", `"unknown"`},
		{"2", "stop", "end_turn", `"stop"`},
		{"2", "content-filter", "", `"content-filter"`},
		{"2", "paused", "", `"other"`},
		{"3", "", "", `{"unified":"other"}`},
		{"3", "length", "max_tokens", `{"unified":"length","raw":"max_tokens"}`},
		{"4", "error", "x", `{"unified":"error","raw":"x"}`},
	} {
		r := &hub.Result{Finish: hub.Finish{Reason: hub.Reason(test.reason), Raw: test.raw}}
		body, err := New().WriteResult(hub.Answer{Version: test.version}, r)
		if err != nil {
			t.Fatal(err)
		}
		got := decoded(t, string(body)).(map[string]any)
		usage := `{}`
		if test.version != "2" {
			usage = `{"inputTokens":{},"outputTokens":{}}`
		}
		want := decoded(t, `{"content":[],"finishReason":`+test.finish+`,"usage":`+usage+`,"warnings":[],"response":{}}`)
		if !reflect.DeepEqual(any(got), want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	// This usage is incomplete, and must not be changed.
	u := &hub.Usage{NoCache: hub.N(3), CacheRead: hub.N(4)}
	body, err := New().WriteResult(hub.Answer{Version: "2"}, &hub.Result{Usage: u})
	if err != nil || !strings.Contains(string(body), `"usage":{"inputTokens":7,"cachedInputTokens":4}`) || u.Input != nil {
		t.Errorf("got %s, %v; usage %+v", body, err, u)
	}
}

// An assistant message comes back from the client unchanged: the client turns metadata
// into options, and tool inputs into values.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2", "3", "4"} {
		parts := everything().Content
		body, err := New().WriteResult(hub.Answer{Version: version}, &hub.Result{Content: parts})
		if err != nil {
			t.Fatal(err)
		}
		var result struct{ Content []map[string]json.RawMessage }
		if err := json.Unmarshal(body, &result); err != nil {
			t.Fatal(err)
		}
		var said []map[string]json.RawMessage
		for _, p := range result.Content {
			if o, ok := p["providerMetadata"]; ok {
				p["providerOptions"] = o
				delete(p, "providerMetadata")
			}
			switch string(p["type"]) {
			case `"source"`, `"tool-result"`:
				continue
			case `"tool-call"`:
				var input string
				if err := json.Unmarshal(p["input"], &input); err != nil {
					t.Fatal(err)
				}
				p["input"] = json.RawMessage(input)
			}
			said = append(said, p)
		}
		content, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		c := read(t, version, `{"prompt":[{"role":"assistant","content":`+string(content)+`}]}`)
		got := map[string]hub.Part{}
		for _, p := range c.Prompt[0].Parts {
			got[identity(p)] = p
		}
		for _, p := range parts {
			switch {
			case p.Kind == hub.SourcePart || p.Kind == hub.ToolResultPart || p.File != nil && p.File.Data == nil:
				continue // not sent back, or as something else
			case version == "2" && (p.Kind == hub.ApprovalRequestPart || p.Kind == hub.ToolCallPart && p.Call.Dynamic), version != "4" && (p.Kind == hub.CustomPart || p.Kind == hub.ReasoningFilePart):
				continue // the version has no word for it
			case p.Kind == hub.ToolCallPart:
				call := *p.Call
				call.Input = string(call.InputValue())
				call.Input = strings.ReplaceAll(call.Input, ": ", ":")
				p.Call = &call
			case p.Kind == hub.CustomPart:
				p.Custom = json.RawMessage(`{"blob":{"a":1}}`) // without its type member
			}
			back, ok := got[identity(p)]
			if !ok || !reflect.DeepEqual(back, p) {
				t.Errorf("version %s: %s came back as %s (%v)", version, show(p), show(back), ok)
			}
		}
	}
}

func identity(p hub.Part) string {
	switch p.Kind {
	case hub.ToolCallPart:
		return p.Call.ID
	case hub.FilePart, hub.ReasoningFilePart:
		return string(p.Kind) + p.File.MediaType
	}
	return string(p.Kind) + p.Text + p.CustomKind
}

func TestWriteError(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		e      hub.Error
		status int
		want   string
	}{
		{hub.Error{Kind: hub.BadRequest, Message: "m", Param: "prompt[0]"}, 400, `{"message":"m","type":"invalid_request_error","param":"prompt[0]"}`},
		{hub.Error{Kind: hub.Unauthenticated, Message: "m"}, 401, `{"message":"m","type":"authentication_error"}`},
		{hub.Error{Kind: hub.BudgetExceeded, Message: "m"}, 402, `{"message":"m","type":"insufficient_funds","code":"budget_exceeded"}`},
		{hub.Error{Kind: hub.Forbidden, Message: "m", Details: json.RawMessage(`{"ruleId":"r"}`)}, 403, `{"message":"m","type":"forbidden","param":{"ruleId":"r"}}`},
		{hub.Error{Kind: hub.ModelNotFound, Message: "m"}, 404, `{"message":"m","type":"model_not_found","param":{"modelId":"a/b"}}`},
		{hub.Error{Kind: hub.ModelNotFound, Message: "m", Param: "model"}, 404, `{"message":"m","type":"model_not_found","param":{"modelId":"a/b"}}`},
		{hub.Error{Kind: hub.ModelNotFound, Message: "m", Param: "model", Model: "c/d"}, 404, `{"message":"m","type":"model_not_found","param":{"modelId":"c/d"}}`},
		{hub.Error{Kind: hub.NotFound, Message: "m"}, 404, `{"message":"m","type":"not_found"}`},
		{hub.Error{Kind: hub.TooLarge, Message: "m"}, 413, `{"message":"m","type":"invalid_request_error","code":"too_large"}`},
		{hub.Error{Kind: hub.FailedDependency, Message: "m"}, 424, `{"message":"m","type":"failed_dependency"}`},
		{hub.Error{Kind: hub.RateLimited, Message: "m"}, 429, `{"message":"m","type":"rate_limit_exceeded"}`},
		{hub.Error{Kind: hub.Canceled, Message: "m"}, 499, `{"message":"m","type":"request_canceled"}`},
		{hub.Error{Kind: hub.Internal}, 500, `{"message":"Internal Server Error","type":"internal_server_error"}`},
		{hub.Error{Kind: hub.UpstreamFailed, Message: "m", Code: "bad_key"}, 502, `{"message":"m","type":"internal_server_error","code":"bad_key"}`},
		{hub.Error{Kind: hub.UpstreamFailed, Message: "m", Details: json.RawMessage(`{`)}, 502, `{"message":"m","type":"internal_server_error","code":"upstream_failed"}`},
		{hub.Error{Kind: hub.Overloaded, Message: "m"}, 503, `{"message":"m","type":"internal_server_error","code":"overloaded"}`},
		{hub.Error{Kind: hub.Timeout, Message: "m"}, 504, `{"message":"m","type":"internal_server_error","code":"timeout"}`},
		{hub.Error{Kind: "new", Message: "m"}, 500, `{"message":"m","type":"internal_server_error"}`},
		{hub.Error{Kind: hub.Canceled}, 499, `{"message":"canceled","type":"request_canceled"}`},
	} {
		h := http.Header{}
		status, body := New().WriteError(hub.Answer{ID: "gen_1", Model: "a/b"}, &test.e, h)
		want := decoded(t, `{"error":`+test.want+`,"generationId":"gen_1"}`)
		if status != test.status || !reflect.DeepEqual(decoded(t, string(body)), want) || len(h) != 0 {
			t.Errorf("%s: %d %s %v, want %d %v", test.e.Kind, status, body, h, test.status, want)
		}
	}
	h := http.Header{}
	_, body := New().WriteError(hub.Answer{}, &hub.Error{Kind: hub.RateLimited, Message: "m", RetryAfter: 1500*time.Millisecond + 1}, h)
	if h.Get("Retry-After") != "2" || h.Get("Retry-After-Ms") != "1501" || strings.Contains(string(body), "generationId") {
		t.Errorf("%v %s", h, body)
	}
}

func TestUnserved(t *testing.T) {
	t.Parallel()
	e := Unserved("speech")
	if e.Kind != hub.BadRequest || !strings.Contains(e.Message, "does not serve speech models") {
		t.Errorf("%+v", e)
	}
}
