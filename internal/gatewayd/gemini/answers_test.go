package gemini

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var (
	studio = &hub.Target{Provider: "google", Model: "gemini-2.5-pro"}
	third  = &hub.Target{Provider: "google", Model: "gemini-3-pro-preview"}
	vertex = &hub.Target{Provider: "vertex", Model: "gemini-2.5-flash", Quirks: map[string]bool{QuirkVertex: true}}
)

// stream reads and checks all events of a stream, and returns the collected result.
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

// plain returns a result as JSON, with invented ids replaced by numbers in order.
func plain(t *testing.T, r *hub.Result) string {
	t.Helper()
	out := *r
	if r.Usage != nil {
		u := *r.Usage
		u.Raw = nil
		out.Usage = &u
	}
	b, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	s := string(b)
	for i := range r.Content {
		if c := r.Content[i].Call; c != nil && strings.HasPrefix(c.ID, "call_") {
			s = strings.ReplaceAll(s, c.ID, "call-"+string(rune('a'+i)))
		}
	}
	return s
}

func frames(chunks ...string) []byte {
	var all [][]byte
	for _, c := range chunks {
		all = append(all, []byte(c))
	}
	return gatewaytest.Frames(gatewaytest.Gemini, all)
}

// TestFixtures decodes every recorded answer. Fixtures of Google's other API,
// "interactions", are not covered, and embeddings have tests of their own.
func TestFixtures(t *testing.T) {
	t.Parallel()
	n := 0
	for _, f := range gatewaytest.Fixtures(t, "google") {
		t.Run(f.Name, func(t *testing.T) {
			if strings.HasPrefix(f.Name, "google/interactions-") {
				t.Skip("it is of Google's Interactions API, which the gateway does not speak")
			}
			if f.Name == "google/google-429-retry-info" {
				t.Skip("it is an error, see TestReadError")
			}
			n++
			if f.Whole != nil {
				r, err := New().ReadResult(third, f.Whole)
				if err != nil {
					t.Fatal(err)
				}
				meaningful(t, r)
			}
			if f.Chunks == nil {
				return
			}
			all := gatewaytest.Frames(gatewaytest.Gemini, f.Chunks)
			streamed, failed := stream(t, third, bytes.NewReader(all))
			if failed != nil {
				t.Fatal(failed)
			}
			meaningful(t, streamed)
			slow, _ := stream(t, third, iotest.OneByteReader(bytes.NewReader(all)))
			if a, b := plain(t, streamed), plain(t, slow); a != b {
				t.Errorf("byte by byte the stream is another:\n%s\n%s", a, b)
			}
			// All events joined into one answer decode to the same result.
			whole, err := New().ReadResult(third, joined(t, f.Chunks))
			if err != nil {
				t.Fatal(err)
			}
			if a, b := plain(t, whole), plain(t, streamed); a != b {
				t.Errorf("whole:\n%s\nstreamed:\n%s", a, b)
			}
		})
	}
	if n < 7 {
		t.Errorf("there are %d fixtures of the format, and should be 7", n)
	}
}

// joined returns one answer with the parts of all events.
func joined(t *testing.T, chunks [][]byte) []byte {
	t.Helper()
	var parts []any
	var last map[string]any
	for _, c := range chunks {
		last = nil
		if err := json.Unmarshal(c, &last); err != nil {
			t.Fatal(err)
		}
		for _, candidate := range last["candidates"].([]any) {
			parts = append(parts, candidate.(object)["content"].(object)["parts"].([]any)...)
		}
	}
	last["candidates"].([]any)[0].(object)["content"].(object)["parts"] = parts
	return hub.MustEncode(last)
}

func meaningful(t *testing.T, r *hub.Result) {
	t.Helper()
	if r.HasToolCalls() != (r.Finish.Reason == hub.ToolCalls) || r.Finish.Reason != hub.ToolCalls && r.Finish.Reason != hub.Stop {
		t.Errorf("finish %+v, and tool calls: %v", r.Finish, r.HasToolCalls())
	}
	if len(r.Content) == 0 || r.Response.ID == "" || r.Response.Model == "" {
		t.Errorf("the answer is empty: %+v", r.Response)
	}
	if u := r.Usage; u == nil || hub.Count(u.Input) == 0 || *u.Output != *u.Text+*u.Reasoning {
		t.Errorf("usage %+v", u)
	}
	signed := false
	for _, p := range r.Content {
		signed = signed || p.Options.String(optProvider, optSignature) != ""
		if p.Kind == hub.ToolCallPart && !json.Valid([]byte(p.Call.Input)) {
			t.Errorf("the input of %s is %s", p.Call.Name, p.Call.Input)
		}
	}
	if !signed {
		t.Error("there is no signature")
	}
}

// TestFixtures_content checks the content of some recorded answers.
func TestFixtures_content(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, want string }{
		{"google/google-text", "text, signed"},
		{"google/google-tool-call", `call weather {"location":"San Francisco"}, signed`},
		{"google/google-tool-call-gemini3", `call weather {"location":"San Francisco"}, signed`},
		{"google/google-stream-no-args-tool-call", `reasoning | call read_theme {}, signed | call read_screen {"id":"A"} | call read_screen {"id":"B"} | call read_screen {"id":"C"}`},
		{"google/google-stream-tool-call-array-arguments-missing-terminal-function-call",
			`call writeItems {"operations":[{"action":"add","description":"Fresh red apple","itemid":"apple_001","price":0.5},` +
				`{"action":"add","description":"Ripe yellow banana","itemid":"banana_001","price":0.3}]}, signed`},
	} {
		f := gatewaytest.Named(t, c.name)
		r, failed := stream(t, third, bytes.NewReader(gatewaytest.Frames(gatewaytest.Gemini, f.Chunks)))
		if failed != nil {
			t.Errorf("%s: %v", c.name, failed)
			continue
		}
		var all []string
		for _, p := range r.Content {
			s := string(p.Kind)
			if p.Call != nil {
				s = "call " + p.Call.Name + " " + p.Call.Input
			}
			if p.Options.String(optProvider, optSignature) != "" {
				s += ", signed"
			}
			all = append(all, s)
		}
		if got := strings.Join(all, " | "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestReader_sameAsWhole(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Reply{Reasoning: "Let me think.", Signature: "c2ln", Text: "Here you are.", Calls: []gatewaytest.ReplyCall{{ID: "x", Name: "add", Input: `{"a":1}`}, {ID: "y", Name: "add", Input: `{}`}}}.
		Render(gatewaytest.Gemini, "gemini-3-pro")
	whole, err := New().ReadResult(third, f.Whole)
	if err != nil {
		t.Fatal(err)
	}
	streamed, failed := stream(t, third, bytes.NewReader(gatewaytest.Frames(gatewaytest.Gemini, f.Chunks)))
	if failed != nil {
		t.Fatal(failed)
	}
	if a, b := plain(t, whole), plain(t, streamed); a != b {
		t.Errorf("whole:\n%s\nstreamed:\n%s", a, b)
	}
	if len(whole.Content) != 4 || whole.Content[2].Options.String(optProvider, optSignature) != "c2ln" || whole.Content[2].Call.ID == whole.Content[3].Call.ID {
		t.Error(plain(t, whole))
	}
}

// TestReader_noArguments checks that a function call without arguments has an input as
// well.
func TestReader_noArguments(t *testing.T) {
	t.Parallel()
	for _, calls := range []string{`{"functionCall":{"name":"f"}}`, `{"functionCall":{"name":"f","args":{}}}`, `{"functionCall":{"name":"f","willContinue":true}},{"functionCall":{}}`} {
		reader := New().NewReader(third, bytes.NewReader(frames(`{"candidates":[{"content":{"parts":[`+calls+`]},"finishReason":"STOP"}]}`)))
		input := ""
		for {
			events, err := reader.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				if e.Kind == hub.InputDelta {
					input += e.Delta
				}
			}
		}
		if input != "{}" {
			t.Errorf("the input of %s came as %q", calls, input)
		}
	}
}

// TestReader_signatures checks all the places where signatures can appear.
func TestReader_signatures(t *testing.T) {
	t.Parallel()
	part := func(p string) string { return `{"candidates":[{"content":{"parts":[` + p + `]}}]}` }
	r, failed := stream(t, third, bytes.NewReader(frames(
		part(`{"text":"think","thought":true}`), part(`{"text":"","thought":true,"thoughtSignature":"cQ=="}`), // the signature belongs to the thought before
		part(`{"text":"a"}`), part(`{"text":"b","thoughtSignature":"cg=="}`), // the signature belongs to both parts
		part(`{"text":"c"}`), part(`{"thoughtSignature":"cw=="}`), // a part with nothing else
		part(`{"functionCall":{"name":"f","args":{},"id":"given"},"thoughtSignature":"dA=="}`),
		part(`{"inlineData":{"mimeType":"image/png","data":"cG5n"},"thoughtSignature":"dQ=="}`),
		part(`{"text":"","thoughtSignature":"dg=="}`), // no text before: the signature gets a part of its own
		`{"candidates":[{"finishReason":"STOP"}]}`)))
	if failed != nil {
		t.Fatal(failed)
	}
	var all []string
	for _, p := range r.Content {
		all = append(all, string(p.Kind)+" "+p.Text+" "+p.Options.String(optProvider, optSignature))
	}
	want := "reasoning think cQ==, text ab cg==, text c cw==, tool-call  dA==, file  dQ==, text  dg=="
	if got := strings.Join(all, ", "); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	// The signatures go back on the same parts.
	out, warnings, err := New().WriteCall(&hub.Call{Prompt: []hub.Message{{Role: hub.Assistant, Parts: r.Content}}}, third)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	wantBody := `{"contents":[{"role":"model","parts":[{"text":"think","thought":true,"thoughtSignature":"cQ=="},{"text":"ab","thoughtSignature":"cg=="},{"text":"c","thoughtSignature":"cw=="},` +
		`{"functionCall":{"args":{},"id":"given","name":"f"},"thoughtSignature":"dA=="},{"inlineData":{"data":"cG5n","mimeType":"image/png"},"thoughtSignature":"dQ=="},{"text":"","thoughtSignature":"dg=="}]}]}`
	if string(out.Body) != wantBody {
		t.Errorf("\n got %s\nwant %s", out.Body, wantBody)
	}
}

// TestReader_cut cuts a stream at every byte. The result is complete only with the event
// that has the finish reason.
func TestReader_cut(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Reply{Reasoning: "So.", Text: "Some text.", Calls: []gatewaytest.ReplyCall{{Name: "add", Input: `{"a":1}`}}}.Render(gatewaytest.Gemini, "gemini-3-pro")
	all := gatewaytest.Frames(gatewaytest.Gemini, f.Chunks)
	for n := range len(all) + 1 {
		r, failed := stream(t, third, bytes.NewReader(all[:n]))
		// CR alone may end a line, so the last LF is not needed.
		if complete := n >= len(all)-1; complete != (failed == nil) {
			t.Fatalf("cut at %d of %d: %+v %+v", n, len(all), r, failed)
		}
		if failed != nil && failed.Kind != hub.UpstreamFailed {
			t.Fatalf("cut at %d: %+v", n, failed)
		}
	}
}

func TestReader_readError(t *testing.T) {
	t.Parallel()
	reset := errors.New("connection reset")
	for _, c := range []struct {
		before string
		want   error
	}{
		{`{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}`, reset},
		{`{"candidates":[{"content":{"parts":[{"text":"a"}]},"finishReason":"STOP"}]}`, io.EOF}, // complete
	} {
		r := New().NewReader(third, io.MultiReader(bytes.NewReader(frames(c.before)), iotest.ErrReader(reset)))
		for {
			if _, err := r.Next(); err != nil {
				if err != c.want {
					t.Errorf("%v, want %v", err, c.want)
				}
				break
			}
		}
	}
}

func TestReader_failures(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		chunk   string
		kind    hub.ErrorKind
		message string
	}{
		{"error", `{"error":{"code":503,"message":"The model is overloaded.","status":"UNAVAILABLE"}}`, hub.Overloaded, "The model is overloaded."},
		{"no JSON", `{`, hub.UpstreamFailed, "google: an event of the stream makes no sense"},
		{"arguments in disorder", `{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","willContinue":true,"partialArgs":[{"jsonPath":"$.a[1]","numberValue":1}]}}]}}]}`,
			hub.UpstreamFailed, "google: " + errOrder.Error()},
		{"arguments of nothing", `{"candidates":[{"content":{"parts":[{"functionCall":{"partialArgs":[{"jsonPath":"$.a"}]}}]}}]}`,
			hub.UpstreamFailed, "google: the answer has a tool call without a name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, e := stream(t, studio, bytes.NewReader(frames(c.chunk)))
			if e == nil || e.Kind != c.kind || e.Message != c.message {
				t.Errorf("%+v, want %s %q", e, c.kind, c.message)
			}
		})
	}
}

func TestReadResult_finish(t *testing.T) {
	t.Parallel()
	text := `"content":{"parts":[{"text":"a"}]},`
	for body, want := range map[string]hub.Finish{
		`{"candidates":[{` + text + `"finishReason":"STOP"}]}`:                                                               {Reason: hub.Stop, Raw: "STOP"},
		`{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]},"finishReason":"STOP"}]}`:                       {Reason: hub.ToolCalls, Raw: "STOP"},
		`{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f"}}]},"finishReason":"MAX_TOKENS"}]}`:                 {Reason: hub.Length, Raw: "MAX_TOKENS"},
		`{"candidates":[{"content":{"parts":[{"executableCode":{"language":"PYTHON","code":"1"}}]},"finishReason":"STOP"}]}`: {Reason: hub.Stop, Raw: "STOP"},
		`{"candidates":[{"finishReason":"SAFETY"}]}`:                                                                         {Reason: hub.ContentFilter, Raw: "SAFETY"},
		`{"candidates":[{"finishReason":"IMAGE_SAFETY"}]}`:                                                                   {Reason: hub.ContentFilter, Raw: "IMAGE_SAFETY"},
		`{"candidates":[{"finishReason":"MALFORMED_FUNCTION_CALL"}]}`:                                                        {Reason: hub.Failed, Raw: "MALFORMED_FUNCTION_CALL"},
		`{"candidates":[{"finishReason":"LANGUAGE"}]}`:                                                                       {Reason: hub.OtherReason, Raw: "LANGUAGE"},
		`{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"}}`:                                                            {Reason: hub.ContentFilter, Raw: "PROHIBITED_CONTENT"},
	} {
		r, err := New().ReadResult(studio, []byte(body))
		if err != nil || r.Finish != want {
			t.Errorf("%s: %+v, %v; want %+v", body, r, err, want)
		}
	}
	for _, body := range []string{`{`, `{}`, `{"candidates":[]}`, `{"candidates":[{` + text + `"index":0}]}`, `{"error":{"code":500,"message":"oh"}}`} {
		_, err := New().ReadResult(studio, []byte(body))
		var e *hub.Error
		if !errors.As(err, &e) || e.Kind != hub.UpstreamFailed {
			t.Errorf("%s: %v, want that the upstream failed", body, err)
		}
	}
}

func TestReadResult_usage(t *testing.T) {
	t.Parallel()
	r, err := New().ReadResult(studio, []byte(`{"candidates":[{"finishReason":"STOP","groundingMetadata":{"webSearchQueries":["a","b",""]}}],"usageMetadata":{"promptTokenCount":100,"toolUsePromptTokenCount":11,
		"cachedContentTokenCount":40,"candidatesTokenCount":20,"thoughtsTokenCount":5,"totalTokenCount":136,"trafficType":"ON_DEMAND"}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := hub.Usage{Input: hub.N(111), NoCache: hub.N(71), CacheRead: hub.N(40), Output: hub.N(25), Text: hub.N(20), Reasoning: hub.N(5), Searches: hub.N(1), SearchTool: "google_search", Tier: "ON_DEMAND", Raw: r.Usage.Raw}
	if !reflect.DeepEqual(*r.Usage, want) {
		t.Errorf("%s", hub.MustEncode(r.Usage))
	}
}

// TestReadResult_tools checks tools that Google runs, and grounding.
func TestReadResult_tools(t *testing.T) {
	t.Parallel()
	target := *studio
	target.Call = &hub.Call{Tools: []hub.Tool{{Name: "python", ProviderID: "google.code_execution"}}}
	r, err := New().ReadResult(&target, []byte(`{"candidates":[{"content":{"parts":[{"executableCode":{"language":"PYTHON","code":"print(1)"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1\n"}},
		{"text":"It is 1."},{"toolCall":{"toolType":"GOOGLE_SEARCH_WEB"}},{"fileData":{"mimeType":"video/mp4","fileUri":"gs://b/v.mp4"}}]},"finishReason":"STOP",
		"groundingMetadata":{"groundingChunks":[{"web":{"uri":"https://a","title":"A"}},{"web":{"uri":"https://a","title":"A"}},{"retrievedContext":{"uri":"gs://b/c.pdf","title":"C"}}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	call, result := r.Content[0].Call, r.Content[1].Result
	if call.Name != "python" || !call.ProviderExecuted || call.Input != `{"code":"print(1)","language":"PYTHON"}` ||
		result.CallID != call.ID || string(result.Output.JSON) != `{"outcome":"OUTCOME_OK","output":"1\n"}` {
		t.Errorf("%s", hub.MustEncode(r.Content))
	}
	if c := r.Content[3]; c.CustomKind != "google.toolCall" || string(c.Custom) != `{"toolCall":{"toolType":"GOOGLE_SEARCH_WEB"}}` {
		t.Errorf("%s", hub.MustEncode(c))
	}
	if len(r.Content) != 7 || r.Content[5].Source.URL != "https://a" || r.Content[6].Source.Filename != "c.pdf" || r.Content[6].Source.MediaType != "application/pdf" {
		t.Errorf("%s", hub.MustEncode(r.Content[5:]))
	}
	if r.Options["google"]["groundingMetadata"] == nil {
		t.Error("the grounding metadata is gone")
	}
	out, warnings, err := New().WriteCall(&hub.Call{Prompt: []hub.Message{{Role: hub.Assistant, Parts: r.Content}}}, studio)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := `{"contents":[{"role":"model","parts":[{"executableCode":{"code":"print(1)","language":"PYTHON"}},{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1\n"}},` +
		`{"text":"It is 1."},{"toolCall":{"toolType":"GOOGLE_SEARCH_WEB"}},{"fileData":{"fileUri":"gs://b/v.mp4","mimeType":"video/mp4"}}]}]}`
	if string(out.Body) != want {
		t.Errorf("\n got %s\nwant %s", out.Body, want)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in, want string
	}{
		{"all kinds", `[{"jsonPath":"$.s","stringValue":"a\"b"},{"jsonPath":"$.n","numberValue":1.50},{"jsonPath":"$.b","boolValue":true},{"jsonPath":"$.z","nullValue":"NULL_VALUE"}]`,
			`{"s":"a\"b","n":1.50,"b":true,"z":null}`},
		{"text in pieces", `[{"jsonPath":"$.s","stringValue":"a","willContinue":true},{"jsonPath":"$.s","stringValue":"b","willContinue":true},{"jsonPath":"$.s","stringValue":""},{"jsonPath":"$.t","stringValue":"c"}]`,
			`{"s":"ab","t":"c"}`},
		{"text without an end", `[{"jsonPath":"$.s","stringValue":"a","willContinue":true},{"jsonPath":"$.t","stringValue":"b","willContinue":true}]`, `{"s":"a","t":"b"}`},
		{"nested", `[{"jsonPath":"$.a.b[0].c","numberValue":1},{"jsonPath":"$.a.b[0].d","numberValue":2},{"jsonPath":"$.a.b[1]","numberValue":3},{"jsonPath":"$.a.e","numberValue":4},{"jsonPath":"$.f[0][0]","numberValue":5}]`,
			`{"a":{"b":[{"c":1,"d":2},3],"e":4},"f":[[5]]}`},
		{"quoted names", `[{"jsonPath":"$['a b']","numberValue":1},{"jsonPath":"$[\"c\\\"d\"][0]","numberValue":2}]`, `{"a b":1,"c\"d":[2]}`},
		{"nothing", `[]`, ``},
		{"a place again", `[{"jsonPath":"$.a","numberValue":1},{"jsonPath":"$.a","numberValue":2}]`, "error"},
		{"back to a place", `[{"jsonPath":"$.a.b","numberValue":1},{"jsonPath":"$.c","numberValue":2},{"jsonPath":"$.a.d","numberValue":2}]`, "error"},
		{"an index left out", `[{"jsonPath":"$.a[0]","numberValue":1},{"jsonPath":"$.a[2]","numberValue":2}]`, "error"},
		{"an object that is a list", `[{"jsonPath":"$.a[0].b","numberValue":1},{"jsonPath":"$.a.c","numberValue":2}]`, "error"},
		{"a path of nothing", `[{"jsonPath":"$","numberValue":1}]`, "error"},
		{"a list", `[{"jsonPath":"$[0]","numberValue":1}]`, "error"},
		{"no path", `[{"jsonPath":"a..b","numberValue":1}]`, "error"},
		{"an open bracket", `[{"jsonPath":"$.a[1","numberValue":1}]`, "error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var pieces []partialArg
			if err := json.Unmarshal([]byte(c.in), &pieces); err != nil {
				t.Fatal(err)
			}
			var a arguments
			var got strings.Builder
			for i := range pieces {
				s, err := a.add(&pieces[i])
				if err != nil {
					if c.want != "error" {
						t.Error(err)
					}
					return
				}
				got.WriteString(s)
			}
			got.WriteString(a.end())
			if got.String() != c.want {
				t.Errorf("%s, want %s", got.String(), c.want)
			}
		})
	}
}

func TestReadError(t *testing.T) {
	t.Parallel()
	e := New().ReadError(studio, 429, nil, gatewaytest.Named(t, "google/google-429-retry-info").Whole)
	if e.Kind != hub.RateLimited || e.RetryAfter != 34400*time.Millisecond || e.Code != "RESOURCE_EXHAUSTED" || !strings.HasPrefix(e.Message, "You exceeded your current quota") {
		t.Errorf("%+v", e)
	}
	for _, c := range []struct {
		status, seen int
		body         string
		kind         hub.ErrorKind
		message      string
	}{
		{400, 400, `{"error":{"code":400,"message":"bad field","status":"INVALID_ARGUMENT","details":[{"@type":"x","fieldViolations":[{"field":"contents"}]}]}}`, hub.BadRequest, "bad field"},
		{400, 401, `{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}`, hub.UpstreamFailed, "API key not valid."},
		{400, 400, `{"error":{"code":400,"message":"User location is not supported","status":"FAILED_PRECONDITION"}}`, hub.UpstreamFailed, "User location is not supported"},
		{403, 403, `{"error":{"code":403,"message":"denied for key AIzaSy0123456789","status":"PERMISSION_DENIED"}}`, hub.UpstreamFailed, "denied for key [redacted]"},
		{404, 404, `[{"error":{"code":404,"message":"models/x is not found","status":"NOT_FOUND"}}]`, hub.ModelNotFound, "models/x is not found"},
		{503, 503, `{"error":{"code":503,"message":"overloaded"}}`, hub.Overloaded, "overloaded"},
		{504, 504, `{}`, hub.Timeout, "google answered with status 504"},
		{502, 502, `<html>`, hub.UpstreamFailed, "google answered with status 502"},
		{500, 500, `{"error":"text"}`, hub.UpstreamFailed, "text"},
	} {
		e := New().ReadError(studio, c.status, http.Header{}, []byte(c.body))
		if e.Kind != c.kind || e.Message != c.message || e.Status != c.seen {
			t.Errorf("%s: %+v", c.body, e)
		}
	}
}

func FuzzReader(f *testing.F) {
	reply := gatewaytest.Reply{Reasoning: "So.", Text: "Some text.", Signature: "c2ln", Calls: []gatewaytest.ReplyCall{{Name: "add", Input: `{"a":1}`}}}.Render(gatewaytest.Gemini, "gemini-3-pro")
	f.Add(gatewaytest.Frames(gatewaytest.Gemini, reply.Chunks))
	f.Add(frames(`{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","willContinue":true,"partialArgs":[{"jsonPath":"$.a[0]","stringValue":"x","willContinue":true}]}},{"functionCall":{}}]},"finishReason":"STOP"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		stream(t, third, bytes.NewReader(b))
		if r, err := New().ReadResult(third, b); err == nil {
			if out, _, err := New().WriteCall(&hub.Call{Prompt: []hub.Message{{Role: hub.Assistant, Parts: r.Content}}}, third); err == nil && !json.Valid(out.Body) {
				t.Errorf("no JSON: %s", out.Body)
			}
		}
		if e := New().ReadError(studio, 400, nil, b); e.Message == "" || e.Kind == "" {
			t.Errorf("%+v", e)
		}
	})
}

func FuzzArguments(f *testing.F) {
	f.Add([]byte(`[{"jsonPath":"$.a.b[0].c","stringValue":"x","willContinue":true},{"jsonPath":"$['d e']","numberValue":1}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var pieces []partialArg
		if json.Unmarshal(b, &pieces) != nil {
			return
		}
		var a arguments
		var got strings.Builder
		for i := range pieces {
			s, err := a.add(&pieces[i])
			if err != nil {
				return
			}
			got.WriteString(s)
		}
		got.WriteString(a.end())
		if s := got.String(); s != "" && !json.Valid([]byte(s)) {
			t.Errorf("no JSON: %s", s)
		}
	})
}
