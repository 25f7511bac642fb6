package chatcompletions

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// outline summarizes an answer: its parts by kind and content.
func outline(r *hub.Result) string {
	var s []string
	for _, p := range r.Content {
		switch p.Kind {
		case hub.TextPart:
			s = append(s, "text:"+p.Text)
		case hub.ReasoningPart:
			s = append(s, "thought:"+p.Text)
		case hub.ToolCallPart:
			id := p.Call.ID
			if len(id) == 29 {
				id = "new"
			}
			s = append(s, "call:"+id+":"+p.Call.Name+p.Call.Input)
		case hub.SourcePart:
			s = append(s, "source:"+p.Source.URL+" "+p.Source.Title)
		case hub.FilePart:
			s = append(s, "file:"+p.File.MediaType+":"+string(p.File.Data)+p.File.URL)
		default:
			s = append(s, string(p.Kind))
		}
	}
	if r.Finish.Reason != "" {
		s = append(s, string(r.Finish.Reason))
	}
	return strings.Join(s, " | ")
}

// chunks returns a stream of deltas with a proper end.
func chunks(deltas ...string) string {
	var b strings.Builder
	for _, d := range deltas {
		if strings.HasPrefix(d, "{") {
			d = `data: {"id":"x","model":"m","choices":[{"index":0,"delta":` + d + `}]}` + "\n\n"
		}
		b.WriteString(d)
	}
	return b.String()
}

const (
	stopped = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	done    = "data: [DONE]\n\n"
)

// Deviations of servers, and the decoder's result.
func TestReader_Tolerance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, quirk, stream, want string }{
		{"no [DONE]", "", chunks(`{"content":"a"}`, stopped), "text:a | stop"},
		{"no finish_reason", "", chunks(`{"content":"a"}`, done), "text:a | stop"},
		{"no finish_reason of a call", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{\"a\":\"}\"}"}}]}`, done), `call:1:f{"a":"}"} | tool-calls`},
		{"no finish_reason of a thought", ThinkTags, chunks(`{"content":"<th"}`, done), "text:<th | stop"},
		{"comments and CRLF", "", ": OPENROUTER PROCESSING\r\n\r\n" + strings.ReplaceAll(chunks(`{"content":"a"}`, stopped, done), "\n", "\r\n"), "text:a | stop"},
		{"data in lines", "", "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n", "text:a | stop"},
		{"unknown events", "", "event: ping\ndata: {\"type\":\"ping\"}\n\n" + chunks(`{"content":"a"}`, stopped), "text:a | stop"},
		{"nulls", "", chunks(`{"content":null,"refusal":null,"tool_calls":null,"reasoning":null,"reasoning_details":null,"annotations":null,"images":null}`, `{"content":"a"}`, stopped), "text:a | stop"},
		{"no index of choices", "", `data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}` + "\n\n", "text:a | stop"},
		{"a second choice", "", chunks(`{"content":"a"}`, `data: {"choices":[{"index":1,"delta":{"content":"b"}}]}`+"\n\n", stopped), "text:a | stop"},
		{"a message for a delta", "", `data: {"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}` + "\n\n", "text:a | stop"},
		{"a whole answer", "", " \n" + `{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}`, "text:a | stop"},
		{"after the end", "", chunks(`{"content":"a"}`, stopped, done, `{"content":"b"}`), "text:a | stop"},

		{"reasoning", "", chunks(`{"reasoning":"a"}`, `{"reasoning":"b","content":""}`, `{"content":"c"}`, stopped), "thought:ab | text:c | stop"},
		{"reasoning_content", "", chunks(`{"reasoning_content":"a"}`, `{"content":"c","reasoning_content":null}`, stopped), "thought:a | text:c | stop"},
		{"both of them", "", chunks(`{"reasoning_content":"a","reasoning":"a"}`, `{"content":"c"}`, stopped), "thought:a | text:c | stop"},
		{"both with details", "", chunks(`{"reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}`, `{"content":"c"}`, stopped), "thought:a | text:c | stop"},
		{"refusal", "", chunks(`{"refusal":"I "}`, `{"refusal":"won't"}`, stopped), "text:I won't | content-filter"},
		{"thinking after text", "", chunks(`{"content":"a"}`, `{"reasoning":"b"}`, `{"content":"c"}`, stopped), "text:a | thought:b | text:c | stop"},

		{"think tags", ThinkTags, chunks(`{"content":"<th"}`, `{"content":"ink>a</"}`, `{"content":"b</thi"}`, `{"content":"nk>\n"}`, `{"content":"\nc<think>"}`, stopped), "thought:a</b | text:c<think> | stop"},
		{"think tags without an end", ThinkTags, chunks(`{"content":"\n<think>a</thin"}`, stopped), "thought:a</thin | stop"},
		{"no think tags", ThinkTags, chunks(`{"content":" <"}`, `{"content":"b>"}`, stopped), "text: <b> | stop"},
		{"think tags and a call", ThinkTags, chunks(`{"content":"<think>a</think>"}`, `{"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}}]}`, stopped), "thought:a | call:1:f{} | tool-calls"},
		{"think tags elsewhere", "", chunks(`{"content":"<think>a</think>"}`, stopped), "text:<think>a</think> | stop"},

		{"a call in pieces", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":""}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`, stopped), `call:1:f{"a":1} | tool-calls`},
		{"calls side by side", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{"}},{"index":1,"id":"2","function":{"name":"g","arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"}"}},{"index":1,"function":{"arguments":"}"}}]}`, stopped), "call:1:f{} | call:2:g{} | tool-calls"},
		{"no index", "", chunks(`{"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{"}}]}`, `{"tool_calls":[{"function":{"arguments":"}"}}]}`, `{"tool_calls":[{"id":"2","function":{"name":"g","arguments":"{}"}}]}`, stopped), "call:1:f{} | call:2:g{} | tool-calls"},
		{"no id", "", chunks(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"g","arguments":"{}"}}]}`, stopped), "call:new:f{} | call:new:g{} | tool-calls"},
		{"the id again and again", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"}"}}]}`, stopped), "call:1:f{} | tool-calls"},
		{"index 0 for all", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}}]}`, `{"tool_calls":[{"index":0,"id":"2","function":{"name":"g","arguments":"{}"}}]}`, stopped), "call:1:f{} | call:2:g{} | tool-calls"},
		{"one id for all", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}}]}`, `{"tool_calls":[{"index":1,"id":"1","function":{"name":"g","arguments":"{}"}}]}`, stopped), "call:1:f{} | call:new:g{} | tool-calls"},
		{"null for an id", "", chunks(`{"tool_calls":[{"id":"null","function":{"name":"f","arguments":"{}"}}]}`, stopped), "call:new:f{} | tool-calls"},
		{"an object for arguments", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":{"a":1}}}]}`, stopped), `call:1:f{"a":1} | tool-calls`},
		{"no arguments", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f"}}]}`, stopped), `call:1:f{} | tool-calls`},
		{"blank arguments", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":" "}}]}`, stopped), `call:1:f{} | tool-calls`},
		{"the name comes late", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"}"}}]}`, stopped), `call:1:f{} | tool-calls`},
		{"arguments that are no JSON", "", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{oops"}}]}`, stopped), `call:1:f{oops | tool-calls`},

		{"annotations", "", chunks(`{"content":"a","annotations":[{"type":"url_citation","url_citation":{"url":"https://a","title":"A"}}]}`, stopped), "text:a | source:https://a A | stop"},
		{"citations", "", `data: {"citations":["https://a"],"choices":[{"delta":{"content":"a"}}]}` + "\n\n" + `data: {"citations":["https://a","https://b"],"search_results":[{"url":"https://b","title":"B"}],"choices":[{"delta":{},"finish_reason":"stop"}]}` + "\n\n", "text:a | source:https://b B | source:https://a  | stop"},
		{"images", "", chunks(`{"images":[{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk="}}]}`, stopped), "file:image/png:hi | stop"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			target := &hub.Target{Provider: "p", Quirks: map[string]bool{tt.quirk: true}}
			for _, r := range []io.Reader{strings.NewReader(tt.stream), iotest.OneByteReader(strings.NewReader(tt.stream)), iotest.DataErrReader(strings.NewReader(tt.stream))} {
				res, _, failed := stream(t, target, r)
				if got := outline(res); failed != nil || got != tt.want {
					t.Errorf("%s, %v; want %s", got, failed, tt.want)
				}
			}
		})
	}
}

func TestReader_Failures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stream, outline string
		kind                  hub.ErrorKind
		message               string
	}{
		{"nothing", "", "", hub.UpstreamFailed, "the provider p failed: its answer broke off"},
		{"breaks off", chunks(`{"content":"a"}`), "text:a", hub.UpstreamFailed, "the provider p failed: its answer broke off"},
		{"no content", chunks(`{"role":"assistant","content":""}`, done), "", hub.UpstreamFailed, "the provider p failed: its answer is empty"},
		{"half a call", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{\"a}"}}]}`, done), "", hub.UpstreamFailed, "the provider p failed: its answer ended within the input of a tool call"},
		{"breaks off within an event", chunks(`{"content":"a"}`) + stopped[:30], "text:a", hub.UpstreamFailed, "the provider p failed: its answer broke off"},
		{"empty", done, "", hub.UpstreamFailed, "the provider p failed: its answer is empty"},
		{"no JSON", chunks(`{"content":"a"}`, "data: oops\n\n"), "text:a", hub.UpstreamFailed, "the provider p failed: a part of its answer is no JSON"},
		{"no object", "data: [1]\n\n", "", hub.UpstreamFailed, "the provider p failed: a part of its answer is no JSON object"},
		{"an error", chunks(`{"content":"a"}`, `data: {"error":{"message":"too busy","type":"overloaded_error","code":null}}`+"\n\n"), "text:a", hub.Overloaded, "too busy"},
		{"an error with a status", chunks(`data: {"id":"x","choices":[{"delta":{"content":""},"finish_reason":"error"}],"error":{"code":429,"message":"slow"}}` + "\n\n"), "", hub.RateLimited, "slow"},
		{"an error in a choice", chunks(`data: {"id":"x","choices":[{"delta":{"content":""},"finish_reason":"error","error":{"code":502,"message":"gone"}}]}` + "\n\n"), "", hub.UpstreamFailed, "gone"},
		{"an event of that name", "event: error\ndata: {\"message\":\"no\"}\n\n", "", hub.UpstreamFailed, "no"},
		{"an error as a whole", `{"error":"no"}`, "", hub.UpstreamFailed, "no"},
		{"a whole answer that breaks off", `{"choices":[`, "", hub.UpstreamFailed, "the provider p failed: its answer broke off, or is no JSON"},
		{"a call without a name", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"arguments":"{}"}}]}`, stopped), "", hub.UpstreamFailed, "the provider p failed: a tool call has no name"},
		{"input after its end", chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"2","function":{"name":"f","arguments":"{}"}},{"index":0,"function":{"arguments":"x"}}]}`, stopped), "call:1:f{}", hub.UpstreamFailed, "the provider p failed: the input of a tool call went on after its end"},
		{"deep", "data: " + strings.Repeat("[", 600) + strings.Repeat("]", 600) + "\n\n", "", hub.UpstreamFailed, "the provider p failed: a part of its answer is no JSON"},
		{"a large event", "data: " + strings.Repeat("x", maxEvent+1), "", hub.UpstreamFailed, "the provider p failed: a part of its answer is too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res, _, failed := stream(t, &hub.Target{Provider: "p"}, strings.NewReader(tt.stream))
			if failed == nil || failed.Kind != tt.kind || failed.Message != tt.message || failed.Provider != "p" {
				t.Fatalf("failed with %+v", failed)
			}
			if got := outline(res); got != tt.outline {
				t.Errorf("before that: %q, want %q", got, tt.outline)
			}
		})
	}
}

func TestReader_TooManyCalls(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range maxCalls + 1 {
		b.WriteString(chunks(`{"tool_calls":[{"index":` + strconv.Itoa(i) + `,"id":"c` + strconv.Itoa(i) + `","function":{"name":"f","arguments":"{}"}}]}`))
	}
	_, _, failed := stream(t, &hub.Target{Provider: "p"}, strings.NewReader(b.String()+stopped))
	if failed == nil || !strings.Contains(failed.Message, "more than 1024 tool calls") {
		t.Errorf("failed with %v", failed)
	}
}

// Endless tool input is not buffered without limit.
func TestReader_LargeInput(t *testing.T) {
	t.Parallel()
	piece := chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"` + strings.Repeat("x", 14<<20) + `"}}]}`)
	var all []io.Reader
	for range maxAnswer/(14<<20) + 1 {
		all = append(all, strings.NewReader(piece))
	}
	r := New().NewReader(&hub.Target{Provider: "p"}, io.MultiReader(all...))
	for {
		events, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if last := &events[len(events)-1]; last.Kind == hub.Failure {
			if last.Err.Message != "the provider p failed: its answer is too large" {
				t.Errorf("failed with %v", last.Err)
			}
			return
		}
	}
}

// A read error is returned to the caller unchanged, after the events already read.
func TestReader_ReadError(t *testing.T) {
	t.Parallel()
	broken := errors.New("reset")
	r := New().NewReader(&hub.Target{}, io.MultiReader(strings.NewReader(chunks(`{"content":"a"}`)), iotest.ErrReader(broken)))
	if events, err := r.Next(); err != nil || len(events) != 4 {
		t.Fatalf("%v, %v", events, err)
	}
	for range 2 {
		if _, err := r.Next(); err != broken {
			t.Errorf("then %v", err)
		}
	}
	if _, err := New().NewReader(&hub.Target{}, iotest.ErrReader(broken)).Next(); err != broken {
		t.Errorf("at once: %v", err)
	}
}

// All events of one read are one batch, so that the writer flushes once.
func TestReader_Batches(t *testing.T) {
	t.Parallel()
	r := New().NewReader(&hub.Target{}, io.MultiReader(strings.NewReader(chunks(`{"content":"a"}`, `{"content":"b"}`)), strings.NewReader(chunks(`{"content":"c"}`, stopped))))
	var sizes []int
	for {
		events, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(events))
	}
	if len(sizes) != 3 || sizes[0] != 5 || sizes[1] != 1 || sizes[2] != 2 {
		t.Errorf("batches of %v events", sizes)
	}
}

func TestReader_Raw(t *testing.T) {
	t.Parallel()
	_, events, _ := stream(t, &hub.Target{Call: &hub.Call{IncludeRaw: true}}, strings.NewReader(chunks(`{"content":"a"}`, stopped)))
	var raw []string
	for _, e := range events {
		if e.Kind == hub.Raw {
			raw = append(raw, string(e.Raw))
		}
	}
	if len(raw) != 2 || raw[0] != `{"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}` {
		t.Errorf("raw: %q", raw)
	}
}

// Signatures of all providers, in OpenRouter's and this gateway's form.
func TestReasoningDetails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		deltas []string
		want   []hub.Part
	}{
		{
			"anthropic",
			[]string{`{"reasoning":"a","reasoning_details":[{"type":"reasoning.text","text":"a","format":"anthropic-claude-v1","index":0}]}`, `{"reasoning":"b","reasoning_details":[{"type":"reasoning.text","text":"b","format":"anthropic-claude-v1","index":0}]}`, `{"reasoning_details":[{"type":"reasoning.text","signature":"S","format":"anthropic-claude-v1","index":0}]}`, `{"reasoning_details":[{"type":"reasoning.encrypted","data":"R","format":"anthropic-claude-v1","index":1}]}`},
			[]hub.Part{{Kind: hub.ReasoningPart, Text: "ab", Options: hub.Options{"anthropic": {"signature": rawText("S")}}}, {Kind: hub.ReasoningPart, Options: hub.Options{"anthropic": {"redactedData": rawText("R")}}}},
		},
		{
			"openai",
			[]string{`{"reasoning_details":[{"type":"reasoning.summary","summary":"a","id":"rs_1","format":"openai-responses-v1","index":0}]}`, `{"reasoning_details":[{"type":"reasoning.encrypted","data":"E","id":"rs_1","format":"openai-responses-v1","index":0}]}`},
			[]hub.Part{{Kind: hub.ReasoningPart, Text: "a", Options: hub.Options{"openai": {"itemId": rawText("rs_1"), "reasoningEncryptedContent": rawText("E")}}}},
		},
		{
			"google",
			[]string{`{"reasoning_details":[{"type":"reasoning.text","text":"a","index":0}]}`, `{"reasoning_details":[{"type":"reasoning.encrypted","data":"G","format":"google-gemini-v1","index":0}]}`},
			[]hub.Part{{Kind: hub.ReasoningPart, Text: "a", Options: hub.Options{"google": {"thoughtSignature": rawText("G")}}}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			res, _, failed := stream(t, &hub.Target{}, strings.NewReader(chunks(append(tt.deltas, stopped)...)))
			if failed != nil || show(res.Content) != show(tt.want) {
				t.Errorf("%v\n%s\nwant\n%s", failed, show(res.Content), show(tt.want))
			}
			// A client that collected the deltas sends them back unchanged.
			var all []json.RawMessage
			for _, d := range tt.deltas {
				var v struct {
					Details []json.RawMessage `json:"reasoning_details"`
				}
				if err := json.Unmarshal([]byte(d), &v); err != nil {
					t.Fatal(err)
				}
				all = append(all, v.Details...)
			}
			details, err := json.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			c, err := New().ReadCall(nil, []byte(`{"messages":[{"role":"assistant","content":null,"reasoning_details":`+string(details)+`}]}`))
			if err != nil || show(c.Prompt[0].Parts) != show(tt.want) {
				t.Errorf("sent back: %v\n%s", err, show(c))
			}
		})
	}
}

// The bytes that an OpenAI client gets.
func TestWriter(t *testing.T) {
	t.Parallel()
	call := new(hub.Call)
	call.Options.Set(own, "includeUsage", true)
	text := hub.Options{}
	text.SetRaw("openai", "logprobs", json.RawMessage(`[{"token":"hi"}]`))
	signed := hub.Options{}
	signed.Set("anthropic", "signature", "S")
	usage := &hub.Usage{Input: hub.N(5), CacheRead: hub.N(2), Output: hub.N(7), Reasoning: hub.N(3), Tier: "flex"}
	usage.Fill()
	events := []hub.Event{
		{Kind: hub.Start},
		{Kind: hub.Metadata, Response: hub.Response{ID: "theirs", Model: "theirs", Created: timeOf(1700000000)}},
		{Kind: hub.ReasoningStart, ID: "r"}, {Kind: hub.ReasoningDelta, ID: "r", Delta: "hm"}, {Kind: hub.ReasoningEnd, ID: "r", Options: signed},
		{Kind: hub.TextStart, ID: "t"}, {Kind: hub.TextDelta, ID: "t", Delta: "hi"}, {Kind: hub.TextEnd, ID: "t", Options: text},
		{Kind: hub.InputStart, ID: "s", Name: "web_search", ProviderExecuted: true}, {Kind: hub.InputDelta, ID: "s", Delta: "{}"}, {Kind: hub.InputEnd, ID: "s"},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "s", Name: "web_search", Input: "{}", ProviderExecuted: true}}},
		{Kind: hub.InputStart, ID: "1", Name: "f"}, {Kind: hub.InputDelta, ID: "1", Delta: "{}"}, {Kind: hub.InputEnd, ID: "1"},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "f", Input: "{}"}}},
		{Kind: hub.Whole, Part: &hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "2", Name: "g", Input: `{"a":1}`}}},
		{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.ToolCalls}, Usage: usage},
	}
	sealed := hub.Wrap("all", hub.Options{"": {"blocks": raw(`[{"text":"hm","options":{"anthropic":{"signature":"S"}}}]`)}})
	const head = `data: {"id":"gen_1","object":"chat.completion.chunk","created":1700000000,"model":"creator/model","choices":[{"index":0,"delta":`
	const tail = `,"finish_reason":null}],"usage":null}`
	want := strings.Join([]string{
		head + `{"role":"assistant"}` + tail,
		head + `{"reasoning":"hm","reasoning_details":[{"type":"reasoning.text","text":"hm","format":"unknown","index":0}]}` + tail,
		head + `{"reasoning_details":[{"type":"reasoning.text","signature":"` + sealed + `","format":"anthropic-claude-v1","index":0}]}` + tail,
		head + `{"content":"hi"}` + tail,
		head + `{},"logprobs":{"content":[{"token":"hi"}],"refusal":null}` + tail,
		head + `{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":""}}]}` + tail,
		head + `{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}` + tail,
		head + `{"tool_calls":[{"index":1,"id":"2","type":"function","function":{"name":"g","arguments":""}}]}` + tail,
		head + `{"tool_calls":[{"index":1,"function":{"arguments":"{\"a\":1}"}}]}` + tail,
		head + `{"provider_metadata":{"gateway":{"generationId":"gen_1","cost":"0.5"}}},"finish_reason":"tool_calls"}],"usage":null}`,
		`data: {"id":"gen_1","object":"chat.completion.chunk","created":1700000000,"model":"creator/model","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":3},"cost":0.5},"service_tier":"flex"}`,
		"data: [DONE]", "",
	}, "\n\n")
	w := New().NewWriter(answerTo(call))
	var got []byte
	for i := range events {
		got = w.Append(got, &events[i])
	}
	if string(got) != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// A client that did not ask for usage and reasoning gets neither, and a failure is a
// chunk with an error, which clients throw.
func TestWriter_LeavesOut(t *testing.T) {
	t.Parallel()
	w := New().NewWriter(hub.Answer{ID: "gen_1", Call: &hub.Call{HideReasoning: true}})
	var got []byte
	for _, e := range []hub.Event{
		{Kind: hub.Start}, {Kind: hub.ReasoningStart, ID: "r"}, {Kind: hub.ReasoningDelta, ID: "r", Delta: "hm"}, {Kind: hub.ReasoningEnd, ID: "r"},
		{Kind: hub.Finished, Finish: hub.Finish{Reason: hub.Failed}, Usage: &hub.Usage{}},
	} {
		got = w.Append(got, &e)
	}
	if s := string(got); strings.Contains(s, "hm") || strings.Contains(s, "usage") || strings.Contains(s, "metadata") || !strings.HasSuffix(s, `{},"finish_reason":"error"}]}`+"\n\ndata: [DONE]\n\n") {
		t.Errorf("%s", s)
	}
	got = New().NewWriter(answerTo(nil)).Append(nil, &hub.Event{Kind: hub.Failure, Err: &hub.Error{Kind: hub.Overloaded, Message: "no \"more\""}})
	if want := `data: {"error":{"message":"no \"more\"","type":"overloaded_error","param":null,"code":"overloaded"},"generationId":"gen_1"}` + "\n\n"; string(got) != want {
		t.Errorf("%s", got)
	}
}

// Tap and reader agree on whether a stream is complete, wherever it breaks off, and the
// tap finds the same usage and ids.
func TestTap_EveryOffset(t *testing.T) {
	t.Parallel()
	streams := map[string][]byte{
		"an error":    []byte(chunks(`{"content":"a"}`, `data: {"error":{"message":"m","code":503}}`+"\n\n", done)),
		"a usage":     []byte(chunks(`{"content":"say \"usage\":{} or \"error\":1"}`, stopped, `data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`+"\n\n", done)),
		"nothing":     []byte(done + done),
		"a whole one": []byte(`{"id":"x","choices":[{"message":{"content":"a \"}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`),
		"a call":      []byte(chunks(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}}]}`, stopped)),
	}
	for _, f := range recorded(t) {
		if f.Chunks != nil {
			var some [][]byte
			for i, c := range f.Chunks { // skip the similar chunks in the middle
				if i < 2 || i >= len(f.Chunks)-3 || bytes.Contains(c, []byte(`"tool_calls":[`)) {
					some = append(some, c)
				}
			}
			streams[f.Name] = gatewaytest.Frames(gatewaytest.Chat, some)
		}
	}
	for name, full := range streams {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := &hub.Target{Provider: "p"}
			for n := range len(full) + 1 {
				tap := New().Tap(target, true)
				for i, p := 0, full[:n]; len(p) > 0; i++ { // in pieces
					k := min(len(p), 1+i%97)
					tap.Write(p[:k])
					p = p[k:]
				}
				seen := tap.End()
				r, _, failed := stream(t, target, bytes.NewReader(full[:n]))
				if seen.Complete != (failed == nil) {
					t.Fatalf("after %d of %d bytes the tap has complete %v, the reader %v\n%s", n, len(full), seen.Complete, failed, full[:n])
				}
				if (seen.Err != nil) != (failed != nil && !strings.Contains(failed.Message, "its answer")) {
					t.Fatalf("after %d bytes the tap has the error %v, the reader %v", n, seen.Err, failed)
				}
				if failed == nil && (show(seen.Usage) != show(r.Usage) || seen.Finish != r.Finish || seen.Response != r.Response || !tap.Begun() && len(r.Content) > 0) {
					t.Fatalf("after %d bytes the tap has seen %s, begun %v, the reader %s", n, show(seen), tap.Begun(), show(r))
				}
			}
		})
	}
}

func TestTap_Whole(t *testing.T) {
	t.Parallel()
	for _, f := range recorded(t) {
		if f.Whole == nil {
			continue
		}
		r := whole(t, targetOf(&f), f.Whole)
		for _, n := range []int{0, 1, len(f.Whole) / 2, bytes.LastIndexByte(f.Whole, '}'), len(f.Whole)} {
			tap := New().Tap(targetOf(&f), false)
			tap.Write(f.Whole[:n/2])
			tap.Write(f.Whole[n/2 : n])
			seen := tap.End()
			if complete := n == len(f.Whole); seen.Complete != complete || complete && (show(seen.Usage) != show(r.Usage) || seen.Finish != r.Finish || seen.Response != r.Response) {
				t.Errorf("%s, %d of %d bytes: %s", f.Name, n, len(f.Whole), show(seen))
			}
		}
	}
	tap := New().Tap(&hub.Target{}, false)
	tap.Write([]byte(`{"error":{"message":"no"}}`))
	if seen := tap.End(); seen.Complete || seen.Err == nil || seen.Err.Message != "no" {
		t.Errorf("an error: %s", show(seen))
	}
}

// The output of a client that leaves before the usage arrives is estimated.
func TestTap_OutputBytes(t *testing.T) {
	t.Parallel()
	tap := New().Tap(&hub.Target{}, true)
	tap.Write([]byte(chunks(`{"role":"assistant","content":""}`)))
	if tap.Begun() {
		t.Error("the role alone is no content")
	}
	tap.Write([]byte(chunks(`{"content":"12345"}`, `{"reasoning_content" : "6"}`, `{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\":1}"}}]}`)))
	if seen := tap.End(); seen.OutputBytes != 5+1+9 || !tap.Begun() || seen.Complete {
		t.Errorf("%d bytes, begun %v", seen.OutputBytes, tap.Begun())
	}
}

func BenchmarkTap(b *testing.B) {
	f := gatewaytest.Named(b, "openai/chat-openai-text")
	frames := gatewaytest.Frames(gatewaytest.Chat, append(f.Chunks[:22:22], f.Chunks[len(f.Chunks)-2:]...))
	b.Run("24 events", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tap := New().Tap(&hub.Target{}, true)
			tap.Write(frames)
			tap.End()
		}
	})
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tap := New().Tap(&hub.Target{}, false)
			tap.Write(f.Whole)
			tap.End()
		}
	})
}

func BenchmarkReader(b *testing.B) {
	f := gatewaytest.Named(b, "openai/chat-openai-text")
	frames := gatewaytest.Frames(gatewaytest.Chat, append(f.Chunks[:22:22], f.Chunks[len(f.Chunks)-2:]...))
	b.ReportAllocs()
	for b.Loop() {
		r := New().NewReader(&hub.Target{}, bytes.NewReader(frames))
		w := New().NewWriter(hub.Answer{ID: "gen_1"})
		var out []byte
		for {
			events, err := r.Next()
			if err != nil {
				break
			}
			out = out[:0]
			for i := range events {
				out = w.Append(out, &events[i])
			}
		}
	}
}

func timeOf(unix int64) time.Time { return time.Unix(unix, 0).UTC() }
