package scripted

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// documented returns the script in the package comment.
func documented(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "up to 4 MiB:\n//\n")
	text, _, ok2 := strings.Cut(rest, "//\n// The first reply")
	if !ok || !ok2 {
		t.Fatal("doc.go has no script")
	}
	return strings.ReplaceAll(text, "//\t", "")
}

func script(t *testing.T, text string) *Script {
	t.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return s
}

// ask returns a call with one message.
func ask(text string) *hub.Call {
	return &hub.Call{Prompt: []hub.Message{{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: text}}}}}
}

// returned returns c with a tool call and its result added.
func returned(c *hub.Call, value string) *hub.Call {
	next := *c
	next.Prompt = append(append([]hub.Message{}, c.Prompt...),
		hub.Message{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "c", Name: "weather", Input: "{}"}}}},
		hub.Message{Role: hub.ToolRole, Parts: []hub.Part{{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "c", Name: "weather", Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(value)}}}}})
	return &next
}

func TestScript_Documented(t *testing.T) {
	t.Parallel()
	source := NewSource(script(t, documented(t)))
	question := ask("What is the weather in Oslo?")

	r, delay, failed := source.Answer(question)
	if failed != nil || delay != 0 || r.Finish.Reason != hub.ToolCalls || len(r.Content) != 2 {
		t.Fatalf("%+v, %v, %v", r, delay, failed)
	}
	if p := r.Content[0]; p.Kind != hub.ReasoningPart || p.Text != "They want the weather." {
		t.Errorf("reasoning %+v", p)
	}
	if call := r.Content[1].Call; call.Name != "weather" || call.Input != `{"city":"Oslo"}` || !strings.HasPrefix(call.ID, "call_") {
		t.Errorf("call %+v", call)
	}

	r, delay, failed = source.Answer(returned(question, `"12 °C"`))
	if failed != nil || delay != 200*time.Millisecond || r.Text() != `It is "12 °C".` || r.Finish.Reason != hub.Length {
		t.Errorf("%+v, %v, %v", r, delay, failed)
	}
	want := &hub.Usage{Input: hub.N(20), NoCache: hub.N(10), CacheRead: hub.N(10), CacheWrite: hub.N(0), Output: hub.N(5), Text: hub.N(3), Reasoning: hub.N(2)}
	if !reflect.DeepEqual(r.Usage, want) {
		t.Errorf("usage %+v", r.Usage)
	}

	for i, fails := range []bool{true, false, false} {
		r, _, failed := source.Answer(ask("FLAKY thing"))
		if (failed != nil) != fails || !fails && r.Text() != "Now it works." {
			t.Fatalf("call %d: %+v, %v", i+1, r, failed)
		}
		if fails && (r != nil || failed.Kind != hub.Overloaded || failed.Status != 503 || failed.Code != "overloaded" || failed.RetryAfter != 2*time.Second || failed.Message != "Overloaded.") {
			t.Errorf("%+v, %+v", r, failed)
		}
	}

	r, _, failed = source.Answer(ask("it breaks off"))
	if failed == nil || failed.Kind != hub.UpstreamFailed || failed.Message != "the script says that this fails: Internal Server Error" || r.Text() != "This is where" {
		t.Errorf("%+v, %v", r, failed)
	}

	if r, _, _ := source.Answer(ask("Hi!")); r.Text() != "You said: Hi!" {
		t.Errorf("%q", r.Text())
	}
	if e, err := source.Embed(&hub.EmbedCall{Values: []string{"a"}}); err != nil || len(e.Vectors[0]) != 64 {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestScript_IsDeterministic(t *testing.T) {
	t.Parallel()
	s := script(t, documented(t))
	c := ask("weather in Rome")
	first, _, _ := s.Answer(c, 3)
	again, _, _ := script(t, documented(t)).Answer(ask("weather in Rome"), 3)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("%+v and %+v", first, again)
	}
	// Ids within a conversation are unique.
	next, _, _ := s.Answer(c, 4)
	if next.Content[1].Call.ID == first.Content[1].Call.ID || next.Response.ID == first.Response.ID {
		t.Errorf("the next call has the same ids: %+v", next.Content[1].Call)
	}
}

func TestScript_NothingMatches(t *testing.T) {
	t.Parallel()
	s := script(t, `{"replies": [{"match": "^yes$", "text": "ok"}, {"turn": 2, "text": "two"}]}`)
	if r, _, _ := s.Answer(ask("yes"), 0); r.Text() != "ok" {
		t.Errorf("%+v", r)
	}
	if r, _, _ := s.Answer(returned(ask("x"), "1"), 0); r.Text() != "two" {
		t.Errorf("%+v", r)
	}
	r, _, failed := s.Answer(ask("secret"), 0)
	if r != nil || failed == nil || failed.Kind != hub.BadRequest || strings.Contains(failed.Message, "secret") {
		t.Errorf("%+v, %v", r, failed)
	}
}

func TestSource_CountsByRule(t *testing.T) {
	t.Parallel()
	s := NewSource(script(t, `
replies:
  - match: a
    sequence: [{text: a1}, {text: a2}]
  - sequence: [{text: b1}, {text: b2}, {text: b3}]
`))
	var got []string
	for _, q := range []string{"a", "b", "a", "a", "b", "b", "b"} {
		r, _, _ := s.Answer(ask(q))
		got = append(got, r.Text())
	}
	if want := "a1 b1 a2 a2 b2 b3 b3"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { s.Answer(ask("a")) })
	}
	all.Wait()
	if s.counts[0] != 11 {
		t.Errorf("%d calls counted, want 11", s.counts[0])
	}
}

func TestMadeUp(t *testing.T) {
	t.Parallel()
	s, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	answer := func(c *hub.Call) *hub.Result {
		t.Helper()
		r, delay, failed := s.Answer(c, 0)
		if failed != nil || delay != 0 {
			t.Fatalf("%v, %v", delay, failed)
		}
		return r
	}

	r := answer(ask("What is cay?"))
	if !strings.HasPrefix(r.Text(), "You said: What is cay?\n\nThis is cay/scripted") || r.Finish.Reason != hub.Stop {
		t.Errorf("%+v", r)
	}
	n := int64(len(strings.Fields(r.Text())))
	if want := (&hub.Usage{Input: hub.N(3), NoCache: hub.N(3), Output: &n, Text: &n, Reasoning: hub.N(0)}); !reflect.DeepEqual(r.Usage, want) {
		t.Errorf("usage %+v", r.Usage)
	}

	c := ask("x")
	c.Effort = hub.EffortHigh
	if r := answer(c); len(r.Content) != 2 || r.Content[0].Kind != hub.ReasoningPart || *r.Usage.Reasoning == 0 {
		t.Errorf("thinking: %+v", r)
	}
	c.HideReasoning = true
	if r := answer(c); len(r.Content) != 1 || *r.Usage.Reasoning == 0 {
		t.Errorf("thinking behind the scenes: %+v", r)
	}

	c = ask("x")
	c.Tools = []hub.Tool{{Name: "search", ProviderID: "a.b"}, {Name: "one"}, {Name: "two", InputSchema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)}}
	if r := answer(c); r.HasToolCalls() {
		t.Errorf("tools that need not be called: %+v", r)
	}
	c.ToolChoice = hub.ToolChoice{Mode: hub.ToolNamed, Tool: "two"}
	if r := answer(c); len(r.Content) != 1 || r.Content[0].Call.Name != "two" || r.Content[0].Call.Input != `{"city":"scripted"}` || r.Finish.Reason != hub.ToolCalls {
		t.Errorf("a tool: %+v", r)
	}
	c.ToolChoice = hub.ToolChoice{Mode: hub.ToolRequired}
	if r := answer(c); len(r.Content) != 1 || r.Content[0].Call.Name != "one" {
		t.Errorf("any tool: %+v", r)
	}
	if r := answer(returned(c, `{"c":12}`)); r.HasToolCalls() || !strings.HasPrefix(r.Text(), `The tool returned: {"c":12}`) {
		t.Errorf("after the tool: %+v", r)
	}

	c = ask("")
	c.Prompt[0].Parts = []hub.Part{{Kind: hub.FilePart, File: &hub.File{}}, {Kind: hub.FilePart, File: &hub.File{}}}
	if r := answer(c); !strings.HasPrefix(r.Text(), "You said nothing that is text.\n\nThere are files in what you sent: 2.") || *r.Usage.Input != 2 {
		t.Errorf("files: %+v", r)
	}
	if r := answer(&hub.Call{}); r.Text() == "" {
		t.Errorf("a call without a prompt: %+v", r)
	}
	if r := answer(ask(strings.Repeat("é", 10_000))); len(r.Text()) > maxQuoted+500 || !strings.Contains(r.Text(), "é…\n") {
		t.Errorf("a long question: %d bytes", len(r.Text()))
	}
}

func TestMaxOutputTokens(t *testing.T) {
	t.Parallel()
	s := script(t, `replies: [{text: "one  two\nthree"}]`)
	for limit, want := range map[int64]string{1: "one", 2: "one  two", 3: "one  two\nthree", 9: "one  two\nthree"} {
		c := ask("x")
		c.MaxOutputTokens = &limit
		r, _, _ := s.Answer(c, 0)
		reason := hub.Length
		if limit >= 3 {
			reason = hub.Stop
		}
		if r.Text() != want || r.Finish.Reason != reason || *r.Usage.Output != min(limit, 3) {
			t.Errorf("%d: %q, %s, %d", limit, r.Text(), r.Finish.Reason, *r.Usage.Output)
		}
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	for schema, want := range map[string]string{
		``:                               `{"answer":"scripted"}`,
		`{`:                              `{"answer":"scripted"}`,
		`true`:                           `null`,
		`{}`:                             `null`,
		`{"type":"null"}`:                `null`,
		`{"type":["null","integer"]}`:    `1`,
		`{"type":["null"]}`:              `null`,
		`{"type":"number","minimum":-2}`: `-2`,
		`{"type":"integer","maximum":0}`: `0`,
		`{"type":"integer","exclusiveMinimum":7}`:                                        `8`,
		`{"type":"string","maxLength":3}`:                                                `"scr"`,
		`{"type":"string","minLength":10}`:                                               `"scripted.."`,
		`{"type":"string","format":"date"}`:                                              `"2026-01-01"`,
		`{"enum":["a","b"]}`:                                                             `"a"`,
		`{"const":5}`:                                                                    `5`,
		`{"type":"array","items":{"type":"boolean"},"minItems":2}`:                       `[true,true]`,
		`{"properties":{"b":{"type":"string"},"a":{"type":"object"}}}`:                   `{"a":{},"b":"scripted"}`,
		`{"anyOf":[{"type":"string"},{"type":"null"}]}`:                                  `"scripted"`,
		`{"type":"array","items":{"$ref":"#/$defs/a~1b"},"$defs":{"a/b":{"const":"x"}}}`: `["x"]`,
		`{"$ref":"https://example.com/x"}`:                                               `null`,
		`{"$ref":"#/$defs/missing"}`:                                                     `null`,
		`{"type":"object","properties":{"self":{"$ref":"#"}}}`:                           "",
		`{"type":"object","properties":{"a":{"$ref":"#"},"b":{"$ref":"#"},"c":{"$ref":"#"},"d":{"$ref":"#"}}}`: "",
	} {
		got := example(json.RawMessage(schema))
		if !json.Valid([]byte(got)) || want != "" && got != want {
			t.Errorf("%s: %.200s, want %s", schema, got, want)
		}
	}
	c := ask("x")
	c.Format = &hub.Format{Schema: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)}
	if r, _, _ := new(Script).Answer(c, 0); r.Text() != `{"city":"scripted"}` {
		t.Errorf("%q", r.Text())
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := script(t, `
replies:
  - reasoning: "think  of it"
    text: " Hello, wörld\n and all "
    tool_calls: [{name: f, input: {text: "äöüäöüäöüäöüäöüäöü"}}, {name: g, input: "{broken"}, {name: h}]
`)
	r, _, failed := s.Answer(ask("x"), 0)
	check := func(events []hub.Event) (*hub.Result, *hub.Error, []string) {
		t.Helper()
		var checker hub.Checker
		var collector hub.Collector
		var deltas []string
		for i := range events {
			if err := checker.Add(&events[i]); err != nil {
				t.Fatalf("event %d: %v", i, err)
			}
			collector.Add(&events[i])
			if events[i].Kind == hub.TextDelta {
				deltas = append(deltas, events[i].Delta)
			}
		}
		if err := checker.End(); err != nil {
			t.Fatal(err)
		}
		got, failure := collector.Result()
		return got, failure, deltas
	}
	got, failure, deltas := check(Events(r, failed))
	if failure != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got  %+v, %v\nwant %+v", got, failure, r)
	}
	if want := []string{" Hello, ", "wörld\n ", "and ", "all "}; !reflect.DeepEqual(deltas, want) {
		t.Errorf("deltas %q, want %q", deltas, want)
	}
	if got := []string{r.Content[2].Call.Input, r.Content[3].Call.Input, r.Content[4].Call.Input}; !reflect.DeepEqual(got, []string{`{"text":"äöüäöüäöüäöüäöüäöü"}`, "{broken", "{}"}) {
		t.Errorf("inputs %q", got)
	}
	broken := &hub.Error{Kind: hub.UpstreamFailed}
	if got, failure, _ := check(Events(r, broken)); failure != broken || got.Text() != r.Text() {
		t.Errorf("%+v, %v", got, failure)
	}
	if got, failure, _ := check(Events(nil, broken)); failure != broken || len(got.Content) != 0 {
		t.Errorf("%+v, %v", got, failure)
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	s := script(t, "embeddings: {dimensions: 16}")
	r, err := s.Embed(&hub.EmbedCall{Values: []string{"the quick brown fox", "The quick, brown fox!", "the quick brown dog", "completely other words here", ""}})
	if err != nil || len(r.Vectors) != 5 || *r.Usage.Input != 16 {
		t.Fatalf("%+v, %v", r, err)
	}
	dot := func(a, b []float64) (sum float64) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	for i, v := range r.Vectors {
		if len(v) != 16 || math.Abs(dot(v, v)-1) > 1e-9 {
			t.Errorf("vector %d: %d long, length %v", i, len(v), dot(v, v))
		}
	}
	if !reflect.DeepEqual(r.Vectors[0], r.Vectors[1]) {
		t.Error("the same words have other vectors")
	}
	if near, far := dot(r.Vectors[0], r.Vectors[2]), dot(r.Vectors[0], r.Vectors[3]); near <= far+0.2 {
		t.Errorf("texts with the same words are at %v, with others at %v", near, far)
	}
	again, _ := new(Script).Embed(&hub.EmbedCall{Values: []string{"the quick brown fox"}, Dimensions: 16})
	if !reflect.DeepEqual(again.Vectors[0], r.Vectors[0]) {
		t.Error("a vector changes")
	}
	if r, err := new(Script).Embed(&hub.EmbedCall{Values: []string{"a"}, Dimensions: 1 << 20}); err != nil || len(r.Vectors[0]) != maxDimensions || len(r.Warnings) != 1 {
		t.Errorf("too many dimensions: %v, %v", r.Warnings, err)
	}
	if _, err := new(Script).Embed(&hub.EmbedCall{Values: []string{strings.Repeat("a ", 1<<18)}, Dimensions: 4096}); err == nil || err.Kind != hub.TooLarge {
		t.Errorf("too many words: %v", err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	for name, text := range map[string]string{good: "replies: [{text: hi}]", bad: "replies: [{text: hi, delay: 1h}]"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(good)
	if err != nil {
		t.Fatal(err)
	}
	if r, _, _ := s.Answer(ask("x"), 0); r.Text() != "hi" {
		t.Errorf("%+v", r)
	}
	if _, err := Load(bad); err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "reply 1: delay") {
		t.Errorf("%v", err)
	}
	if _, err := Load(filepath.Join(dir, "missing.yaml")); err == nil || !strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("%v", err)
	}
}

func TestParse_Errors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"replies: 5": "", "replies: [": "", "answers: []": "answers", "replies: [{txt: x}]": "txt", "replies: [{text: [x]}]": "",
		"replies: [{match: '('}]":                                              "reply 1: match",
		"replies: [{text: a}, {turn: -1}]":                                     "reply 2: turn is -1",
		"replies: [{delay: -1s}]":                                              "delay",
		"replies: [{finish: done}]":                                            `finish is "done"`,
		"replies: [{tool_calls: [{input: {}}]}]":                               "tool call 1: it has no name",
		"replies: [{usage: {input: -1}}]":                                      "below 0",
		"replies: [{usage: {input: 1, cache_read: 2}}]":                        "more in a part",
		"replies: [{usage: {output: 1, reasoning: 2}}]":                        "more in a part",
		"replies: [{error: {status: 200}}]":                                    "error.status is 200",
		"replies: [{error: {message: x}}]":                                     "error.status is 0",
		"replies: [{error: {status: 500, retry_after: -1s}}]":                  "retry_after",
		"replies: [{text: a, sequence: [{text: b}]}]":                          "a sequence and an answer",
		"replies: [{sequence: [{text: b}, {finish: done}]}]":                   "sequence 2: finish",
		"embeddings: {dimensions: 5000}":                                       "dimensions is 5000",
		"replies: [{tool_calls: [" + strings.Repeat("{name: f},", 200) + "]}]": "200 tool calls",
		"replies: [" + strings.Repeat("{},", maxReplies+1) + "]":               "10001 replies",
		"# " + strings.Repeat("x", maxFile):                                    "4 MiB",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
	for _, text := range []string{"", "# nothing", "{}", "replies: []"} {
		s, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if r, _, _ := s.Answer(ask("hi"), 0); !strings.HasPrefix(r.Text(), "You said: hi") {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

func FuzzExample(f *testing.F) {
	f.Add(`{"type":"object","properties":{"a":{"$ref":"#"}}}`)
	f.Add(`{"anyOf":[{"$ref":"#/anyOf/0"}]}`)
	f.Fuzz(func(t *testing.T, schema string) {
		if got := example(json.RawMessage(schema)); !json.Valid([]byte(got)) {
			t.Fatalf("%s became %s", schema, got)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("replies: [{text: a, delay: 1s, error: {status: 500}}]")
	f.Add("replies: [{match: a, sequence: [{tool_calls: [{name: f, input: {a: [1, x]}}]}]}]")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse([]byte(text))
		if err != nil {
			return
		}
		r, _, failed := s.Answer(ask("a"), 0)
		if r == nil && failed == nil {
			t.Fatal("no answer and no error")
		}
		var checker hub.Checker
		for _, e := range Events(r, failed) {
			if err := checker.Add(&e); err != nil {
				t.Fatal(err)
			}
		}
		if err := checker.End(); err != nil {
			t.Fatal(err)
		}
	})
}
