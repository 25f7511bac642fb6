package chatcompletions

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// joined interprets a stream like OpenAI's client: it joins the pieces of tool calls by
// index, and takes the last finish_reason. Ids invented by the gateway are replaced by
// "new".
func joined(t *testing.T, stream string) string {
	t.Helper()
	type call struct{ id, kind, name, args string }
	var text, reason string
	var calls []*call
	ended := false
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if ended = ended || data == "[DONE]"; !ok || ended {
			continue
		}
		c := gjson.Get(data, "choices.0")
		if r := c.Get("finish_reason").Str; r != "" {
			reason += " | " + r
		}
		text += c.Get("delta.content").Str
		for _, p := range c.Get("delta.tool_calls").Array() {
			i := p.Get("index")
			if i.Type != gjson.Number || i.Int() < 0 || i.Int() > 100 {
				t.Fatalf("a piece has no index: %s", p.Raw)
			}
			for int64(len(calls)) <= i.Int() {
				calls = append(calls, &call{})
			}
			c := calls[i.Int()]
			if id := p.Get("id").Str; id != "" {
				c.id = id
			}
			if kind := p.Get("type").Str; kind != "" {
				c.kind = kind
			}
			c.name += p.Get("function.name").Str
			if a := p.Get("function.arguments"); a.Type == gjson.String {
				c.args += a.Str
			} else if a.Exists() {
				t.Fatalf("arguments are no text: %s", p.Raw)
			}
		}
	}
	ids := map[string]bool{}
	for _, c := range calls {
		if c.id == "" || ids[c.id] || c.kind != "function" {
			t.Errorf("a call has the id %q and the type %q", c.id, c.kind)
		}
		ids[c.id] = true
		if len(c.id) == 29 {
			c.id = "new"
		}
		text += fmt.Sprintf(" | %s:%s%s", c.id, c.name, c.args)
	}
	return strings.TrimPrefix(text+reason, " | ")
}

// mend reads a stream through Mend, in reads of all sizes.
func mend(t *testing.T, target *hub.Target, stream string) string {
	t.Helper()
	var first []byte
	for i, r := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream)), iotest.HalfReader(strings.NewReader(stream))} {
		out, err := io.ReadAll(New().Mend(target, io.NopCloser(r)))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = out
		} else if len(out) != len(first) { // invented ids differ, in nothing but their letters
			t.Errorf("read in way %d the stream is %s, else %s", i, out, first)
		}
	}
	return string(first)
}

const (
	called  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\n"
	lengthy = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}` + "\n\n"
)

// Tool calls as servers send them, and the client's result after the repairs.
func TestMend_ToolCalls(t *testing.T) {
	t.Parallel()
	const whole = WholeToolCalls
	piece := func(members ...string) string { return `{"tool_calls":[{` + strings.Join(members, `},{`) + `}]}` }
	for _, tt := range []struct{ name, quirk, stream, want string }{
		{"index 0 for all, in chunks", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), piece(`"index":0,"id":"2","type":"function","function":{"name":"f","arguments":"{}"}`), called, done), "1:f{} | 2:f{} | tool_calls"},
		{"index 0 for all, in one chunk", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`, `"index":0,"id":"2","type":"function","function":{"name":"g","arguments":"{}"}`), called, done), "1:f{} | 2:g{} | tool_calls"},
		{"index 0 for all, in pieces", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":""}`), piece(`"index":0,"function":{"arguments":"{\"a\""}`), piece(`"index":0,"function":{"arguments":":1}"}`), piece(`"index":0,"id":"2","type":"function","function":{"name":"g","arguments":""}`), piece(`"index":0,"function":{"arguments":"{\"b\":2}"}`), called, done), `1:f{"a":1} | 2:g{"b":2} | tool_calls`},
		{"index 0 for all, no ids", "", chunks(piece(`"index":0,"function":{"name":"f","arguments":"{}"}`), piece(`"index":0,"function":{"name":"f","arguments":"{}"}`), called, done), "new:f{} | new:f{} | tool_calls"},
		{"index 0 for all, no ids, no input", "", chunks(piece(`"index":0,"function":{"name":"f","arguments":""}`), piece(`"index":0,"function":{"name":"g","arguments":""}`), called, done), "new:f | new:g | tool_calls"},
		{"index 0 for all, empty ids", "", chunks(piece(`"index":0,"id":"","type":"function","function":{"name":"f","arguments":"{}"}`, `"index":0,"id":"","type":"function","function":{"name":"g","arguments":"{\"a\":1}"}`), called, done), `new:f{} | new:g{"a":1} | tool_calls`},
		{"index 0, 0, 1", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), piece(`"index":0,"id":"2","type":"function","function":{"name":"f","arguments":"{}"}`), piece(`"index":1,"id":"3","type":"function","function":{"name":"f","arguments":"{\"c\""}`), piece(`"index":1,"function":{"arguments":":3}"}`), called, done), `1:f{} | 2:f{} | 3:f{"c":3} | tool_calls`},
		{"no index", "", chunks(piece(`"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`, `"id":"2","type":"function","function":{"name":"g","arguments":"{}"}`), called, done), "1:f{} | 2:g{} | tool_calls"},
		{"no index, in pieces", "", chunks(piece(`"id":"1","type":"function","function":{"name":"f","arguments":"{"}`), piece(`"id":"1","function":{"arguments":"}"}`), piece(`"id":"2","type":"function","function":{"name":"g","arguments":"{"}`), piece(`"function":{"arguments":"}"}`), called, done), "1:f{} | 2:g{} | tool_calls"},
		{"no index, no ids", "", chunks(piece(`"function":{"name":"f","arguments":"{}"}`, `"function":{"name":"f","arguments":"{}"}`), called, done), "new:f{} | new:f{} | tool_calls"},
		{"no index, no ids, in pieces", "", chunks(piece(`"function":{"name":"f","arguments":"{\"a\""}`), piece(`"function":{"arguments":":1}"}`), piece(`"function":{"name":"f","arguments":"{}"}`), called, done), `new:f{"a":1} | new:f{} | tool_calls`},
		{"an index of null", "", chunks(piece(`"index":null,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`, `"index":null,"id":"2","type":"function","function":{"name":"g","arguments":"{}"}`), called, done), "1:f{} | 2:g{} | tool_calls"},
		{"an index that is a text", "", chunks(piece(`"index":"0","id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), called, done), "1:f{} | tool_calls"},
		{"one id for all", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), piece(`"index":1,"id":"1","type":"function","function":{"name":"g","arguments":"{}"}`), called, done), "1:f{} | new:g{} | tool_calls"},
		{"one id and index for all", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), called, done), "1:f{} | new:f{} | tool_calls"},
		{"no id, and one that comes late", "", chunks(piece(`"index":0,"type":"function","function":{"name":"f","arguments":"{"}`), piece(`"index":0,"id":"1","function":{"arguments":"}"}`), called, done), "new:f{} | tool_calls"},
		{"no type", "", chunks(piece(`"index":0,"id":"1","function":{"name":"f","arguments":"{}"}`), called, done), "1:f{} | tool_calls"},
		{"an object for arguments", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":{"a":"<\"b\">"}}`), called, done), `1:f{"a":"<\"b\">"} | tool_calls`},
		{"stop after a call", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), stopped, done), "1:f{} | tool_calls"},
		{"STOP after a call", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), strings.ReplaceAll(stopped, "stop", "STOP"), done), "1:f{} | tool_calls"},
		{"stop with a call", "", `data: {"choices":[{"index":0,"delta":` + piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`) + `,"finish_reason":"stop"}]}` + "\n\n" + done, "1:f{} | tool_calls"},
		{"length after a call", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), lengthy, done), "1:f{} | length"},
		{"stop after text", "", chunks(`{"content":"a","tool_calls":[]}`, stopped, done), "a | stop"},
		{"stop after a call of OpenAI's", OpenAI, chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), stopped, done), "1:f{} | stop"},
		{"[DONE] after a call", "", chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`), done), "1:f{} | tool_calls"},
		{"whole, twice the same", whole, chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":""}`), piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":""}`), called, done), "1:f | new:f | tool_calls"},
		{"whole, index 0 for all", whole, chunks(piece(`"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`, `"index":0,"id":"2","type":"function","function":{"name":"f","arguments":"{}"}`), stopped, done), "1:f{} | 2:f{} | tool_calls"},
		{"CRLF", "", strings.ReplaceAll(chunks(piece(`"id":"1","type":"function","function":{"name":"f","arguments":"{}"}`, `"id":"2","type":"function","function":{"name":"g","arguments":"{}"}`), stopped, done), "\n", "\r\n"), "1:f{} | 2:g{} | tool_calls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			target := &hub.Target{Provider: "p", Quirks: map[string]bool{tt.quirk: true}}
			out := mend(t, target, tt.stream)
			if got := joined(t, out); got != tt.want {
				t.Errorf("a client gets %s, want %s:\n%s", got, tt.want, out)
			}
			// Clients of other formats get the same calls.
			res, _, failed := stream(t, target, strings.NewReader(tt.stream))
			if failed != nil || len(res.Content) == 0 {
				t.Fatalf("translated: %v", failed)
			}
			var calls []string
			for _, p := range strings.Split(outline(res), " | ") {
				if p, ok := strings.CutPrefix(p, "call:"); ok {
					calls = append(calls, p)
				}
			}
			ofClient := strings.Split(tt.want, " | ")
			for i, c := range ofClient[:len(ofClient)-1] {
				if strings.Contains(c, ":") && (i >= len(calls) || strings.TrimSuffix(calls[i], "{}") != strings.TrimSuffix(c, "{}")) {
					t.Errorf("translated, the calls are %q, passed %s", calls, tt.want)
				}
			}
		})
	}
}

// mistralCall is the only recorded answer that needs a repair: its call has no index.
const mistralCall = "mistral/mistral-tool-call"

func TestMend_Recorded(t *testing.T) {
	t.Parallel()
	f := gatewaytest.Named(t, mistralCall)
	out := mend(t, targetOf(&f), string(gatewaytest.Frames(gatewaytest.Chat, f.Chunks)))
	if got := joined(t, out); got != `gSIMJiOkT:weather{"location": "San Francisco"} | tool_calls` {
		t.Errorf("a client gets %s of %s", got, out)
	}
}

// Correct streams are unchanged, whatever the quirks say.
func TestMend_Right(t *testing.T) {
	t.Parallel()
	right := map[string]string{
		"text":           chunks(`{"role":"assistant","content":""}`, `{"content":"a"}`, stopped, done),
		"no [DONE]":      chunks(`{"content":"a"}`, stopped),
		"side by side":   chunks(`{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{"}},{"index":1,"id":"2","type":"function","function":{"name":"g","arguments":"{"}}]}`, `{"tool_calls":[{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":"}"}}]}`, called, done),
		"from 1 on":      chunks(`{"tool_calls":[{"index":1,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`, called, done),
		"the same id":    chunks(`{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{"}}]}`, `{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"arguments":"}"}}]}`, called, done),
		"custom":         chunks(`{"tool_calls":[{"index":0,"id":"1","type":"custom","custom":{"name":"f","input":"x"}}]}`, called, done),
		"two answers":    `data: {"choices":[{"index":0,"delta":{"content":"a"}},{"index":1,"delta":{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}}]}` + "\n\n" + `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\n" + done,
		"an error":       chunks(`{"content":"a"}`, `data: {"error":{"message":"no"}}`+"\n\n", done),
		"an error event": chunks(`{"content":"a"}`, "event: error\ndata: {\"message\":\"no\"}\n\n", done),
		"no JSON":        chunks(`{"content":"a"}`, "data: {oops\n\n", done),
		"in lines":       "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\"},\ndata: \"finish_reason\":\"stop\"}]}\n\n" + done,
		"comments":       ": hello\n\n" + chunks(`{"content":"a"}`, stopped, ": bye\n\n", done),
		"broken off":     chunks(`{"content":"a"}`, `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"in`),
	}
	for _, f := range recorded(t) {
		if len(f.Chunks) > 0 && f.Name != mistralCall {
			right[f.Name] = string(gatewaytest.Frames(gatewaytest.Chat, f.Chunks))
		}
	}
	for name, s := range right {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, quirk := range []string{"", OpenAI, ThinkTags} {
				if got := mend(t, &hub.Target{Provider: "p", Quirks: map[string]bool{quirk: true}}, s); got != s {
					t.Errorf("with %q it is\n%s\nand was\n%s", quirk, got, s)
				}
			}
		})
	}
}

// Whole answers get the same repairs as streams.
func TestMendWhole(t *testing.T) {
	t.Parallel()
	answer := func(message, reason string) string {
		return `{"id":"x","choices":[{"index":0,"message":` + message + `,"finish_reason":` + reason + `}],"usage":{"prompt_tokens":1}}`
	}
	const call = `{"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}`
	for name, tt := range map[string]struct{ body, reason, calls string }{
		"right":                   {answer(call, `"tool_calls"`), "tool_calls", "1 function {}"},
		"stop":                    {answer(call, `"stop"`), "tool_calls", "1 function {}"},
		"no reason":               {answer(call, `null`), "tool_calls", "1 function {}"},
		"no reason, text":         {answer(`{"content":"a"}`, `null`), "stop", ""},
		"no reason and no answer": {answer(`{"content":""}`, `null`), "", ""},
		"length":                  {answer(call, `"length"`), "length", "1 function {}"},
		"no id":                   {answer(`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`, `"stop"`), "tool_calls", "new function {}"},
		"one id":                  {answer(`{"tool_calls":[{"id":"1","function":{"name":"f","arguments":"{}"}},{"id":"1","function":{"name":"f","arguments":{"a":1}}}]}`, `"stop"`), "tool_calls", `1 function {} | new function {"a":1}`},
		"an index":                {answer(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":"{}"}},{"index":0,"id":"2","function":{"name":"f","arguments":"{}"}}]}`, `"stop"`), "tool_calls", `1 function {} | 2 function {}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := New().MendWhole(&hub.Target{Provider: "p"}, []byte(tt.body))
			c := gjson.GetBytes(out, "choices.0")
			var calls []string
			for _, call := range c.Get("message.tool_calls").Array() {
				id := call.Get("id").Str
				if len(id) == 29 {
					id = "new"
				}
				calls = append(calls, id+" "+call.Get("type").Str+" "+call.Get("function.arguments").Str)
			}
			if got := strings.Join(calls, " | "); got != tt.calls || c.Get("finish_reason").Str != tt.reason || !gjson.ValidBytes(out) || gjson.GetBytes(out, "usage.prompt_tokens").Int() != 1 {
				t.Errorf("%s", out)
			}
			if name == "right" && !bytes.Equal(out, []byte(tt.body)) {
				t.Errorf("%s became %s", tt.body, out)
			}
			if again := New().MendWhole(&hub.Target{Provider: "p"}, out); !bytes.Equal(again, out) {
				t.Errorf("mended again it is %s", again)
			}
		})
	}
}
