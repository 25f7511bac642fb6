package chatcompletions

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// recorded returns the recorded answers of servers with this format.
func recorded(t testing.TB) []gatewaytest.Fixture {
	t.Helper()
	all := slices.DeleteFunc(gatewaytest.Language(t), func(f gatewaytest.Fixture) bool { return f.Format != gatewaytest.Chat })
	if len(all) < 12 {
		t.Fatalf("only %d recorded answers", len(all))
	}
	return all
}

func targetOf(f *gatewaytest.Fixture) *hub.Target {
	return &hub.Target{Provider: f.Provider, Model: "m", Quirks: Known(f.Provider)}
}

func whole(t rapid.TB, target *hub.Target, body []byte) *hub.Result {
	t.Helper()
	r, err := New().ReadResult(target, body)
	if err != nil {
		t.Fatalf("ReadResult: %v", err)
	}
	var check hub.Checker
	for _, e := range r.Events() {
		if err := check.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// stream reads a stream to its end, and checks the order of its events.
func stream(t rapid.TB, target *hub.Target, body io.Reader) (*hub.Result, []hub.Event, *hub.Error) {
	t.Helper()
	var check hub.Checker
	var collect hub.Collector
	var events []hub.Event
	for r := New().NewReader(target, body); ; {
		next, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("reading: %v", err)
		}
		if len(next) == 0 {
			t.Fatal("Next returned no event")
		}
		for i := range next {
			if err := check.Add(&next[i]); err != nil {
				t.Fatal(err)
			}
			collect.Add(&next[i])
			events = append(events, next[i])
		}
	}
	if err := check.End(); err != nil {
		t.Fatal(err)
	}
	res, failed := collect.Result()
	return res, events, failed
}

func streamed(t testing.TB, target *hub.Target, chunks [][]byte) *hub.Result {
	t.Helper()
	frames := gatewaytest.Frames(gatewaytest.Chat, chunks)
	res, _, failed := stream(t, target, bytes.NewReader(frames))
	if failed != nil {
		t.Fatalf("the stream failed: %v", failed)
	}
	slow, _, failed := stream(t, target, iotest.OneByteReader(bytes.NewReader(frames)))
	if failed != nil || !reflect.DeepEqual(res, slow) {
		t.Errorf("byte by byte it is another answer: %v\n%s\nwant\n%s", failed, show(slow), show(res))
	}
	return res
}

func show(v any) string {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// The expected values were read from the recorded answers by a person.
func TestRecorded(t *testing.T) {
	t.Parallel()
	type fact struct {
		kinds                            string // kinds of the parts
		text, call                       string // how the text begins; a tool call
		reason                           hub.Reason
		input, cached, reasoning, output int64
		cost, model                      string
	}
	for name, want := range map[string]struct{ whole, streamed fact }{
		"openai/chat-openai-text": {
			fact{kinds: "text", text: "**Holiday Name:** Galaxy Day", reason: hub.Stop, input: 16, output: 363, model: "gpt-4.1-nano-2025-04-14"},
			fact{kinds: "text", text: "**Holiday Name:** Harmony", reason: hub.Stop, input: 16, output: 300, model: "gpt-4.1-nano-2025-04-14"},
		},
		"openai/chat-azure-model-router.1": {
			fact{},
			fact{kinds: "text", text: "Capital of Denmark.", reason: hub.Stop, input: 15, output: 78, reasoning: 64, model: "gpt-5-nano-2025-08-07"},
		},
		"openai-compatible/chat-xai-text": {
			fact{kinds: "reasoning text", text: "Grok", reason: hub.Stop, input: 12, cached: 2, output: 322, reasoning: 320, cost: "0.0001641500", model: "grok-3-mini"},
			fact{kinds: "reasoning text", text: "Grok", reason: hub.Stop, input: 12, cached: 11, output: 342, reasoning: 340, cost: "0.0001721250", model: "grok-3-mini"},
		},
		"openai-compatible/chat-xai-tool-call": {
			fact{kinds: "reasoning tool-call", call: `call_46427107 weather {"location":"San Francisco"}`, reason: hub.ToolCalls, input: 307, cached: 244, output: 281, reasoning: 255, cost: "0.0001777000", model: "grok-3-mini"},
			fact{kinds: "reasoning tool-call", call: `call_79382389 weather {"location":"San Francisco"}`, reason: hub.ToolCalls, input: 307, cached: 306, output: 253, reasoning: 227, cost: "0.0001497500", model: "grok-3-mini"},
		},
		"xai/xai-text": {
			fact{kinds: "reasoning text", text: "Hello", reason: hub.Stop, input: 12, cached: 2, output: 229, reasoning: 228, cost: "0.0001176500", model: "grok-3-mini"},
			fact{kinds: "reasoning text", text: "Hello", reason: hub.Stop, input: 12, cached: 11, output: 291, reasoning: 290, cost: "0.0001466250", model: "grok-3-mini"},
		},
		"xai/xai-tool-call": {
			fact{kinds: "reasoning tool-call", call: `call_93562515 weather {"location":"San Francisco"}`, reason: hub.ToolCalls, input: 291, cached: 244, output: 215, reasoning: 189, cost: "0.0001399000", model: "grok-3-mini"},
			fact{kinds: "reasoning tool-call", call: `call_55117580 weather {"location":"San Francisco"}`, reason: hub.ToolCalls, input: 291, cached: 290, output: 222, reasoning: 196, cost: "0.0001330500", model: "grok-3-mini"},
		},
		"groq/groq-text": {
			fact{kinds: "text", text: "I'd like to introduce \"Luminaria\"", reason: hub.Stop, input: 45, output: 607, model: "llama-3.3-70b-versatile"},
			fact{kinds: "text", text: "Introducing", reason: hub.Stop, input: 45, output: 662, model: "llama-3.3-70b-versatile"},
		},
		"groq/groq-tool-call": {
			fact{kinds: "tool-call", call: `ax9fskhev weather {}`, reason: hub.ToolCalls, input: 218, output: 15, model: "llama-3.3-70b-versatile"},
			fact{},
		},
		"mistral/mistral-incremental-tool-call": {
			fact{},
			fact{kinds: "tool-call", call: `chatcmpl-tool-9f149c74c42f265b webSearchTool {"query": "current Berlin weather"}`, reason: hub.ToolCalls, input: 171, cached: 128, output: 14, model: "zai-glm-5-2"},
		},
		"mistral/mistral-reasoning": {
			fact{kinds: "reasoning text", text: "2 + 2 = 4", reason: hub.Stop, input: 10, output: 46, model: "magistral-medium-2507"},
			fact{kinds: "reasoning text", text: "2 + 2 = 4", reason: hub.Stop, input: 10, output: 46, model: "magistral-medium-2507"},
		},
		"mistral/mistral-text": {
			fact{},
			fact{kinds: "text", text: "Hello, world! This is a test response.", reason: hub.Stop, input: 13, output: 8, model: "mistral-small-latest"},
		},
		"mistral/mistral-tool-call": {
			fact{},
			fact{kinds: "tool-call", call: `gSIMJiOkT weather {"location": "San Francisco"}`, reason: hub.ToolCalls, input: 124, output: 22, model: "mistral-small-latest"},
		},
		"deepseek/chat-deepseek-reasoning": {
			fact{kinds: "reasoning text", text: "The word \"strawberry\"", reason: hub.Stop, input: 18, output: 345, reasoning: 315, model: "deepseek-reasoner"},
			fact{kinds: "reasoning text", text: `The word "strawberry" contains three "r"s.`, reason: hub.Stop, input: 18, output: 219, reasoning: 205, model: "deepseek-reasoner"},
		},
		"deepseek/chat-deepseek-json": {
			fact{kinds: "reasoning text", text: "{\n  \"location\"", reason: hub.Stop, input: 495, cached: 320, output: 144, reasoning: 118, model: "deepseek-reasoner"},
			fact{},
		},
		"deepseek/chat-deepseek-text": {
			fact{},
			fact{kinds: "text", text: "## **Holiday Name:** Starlight", reason: hub.Length, input: 13, output: 400, model: "deepseek-chat"},
		},
		"deepseek/chat-deepseek-tool-call": {
			fact{kinds: "reasoning tool-call", call: `call_00_9V0vrf86Pc9aelHCJMZqnJBo weather {"location": "San Francisco"}`, reason: hub.ToolCalls, input: 339, cached: 320, output: 92, reasoning: 48, model: "deepseek-reasoner"},
			fact{kinds: "reasoning tool-call", call: `call_00_ioIn7yN9p1ZOMNpDLwd4MgAF weather {"location": "San Francisco"}`, reason: hub.ToolCalls, input: 339, cached: 320, output: 83, reasoning: 39, model: "deepseek-reasoner"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := gatewaytest.Named(t, name)
			check := func(how string, r *hub.Result, want fact) {
				t.Helper()
				var kinds []string
				got := fact{reason: r.Finish.Reason, model: r.Response.Model}
				for _, p := range r.Content {
					kinds = append(kinds, string(p.Kind))
					if p.Kind == hub.ToolCallPart {
						got.call = p.Call.ID + " " + p.Call.Name + " " + p.Call.Input
					}
				}
				got.kinds = strings.Join(kinds, " ")
				got.text = r.Text()
				if strings.HasPrefix(got.text, want.text) {
					got.text = want.text
				}
				if u := r.Usage; u != nil {
					got.input, got.cached, got.output, got.reasoning, got.cost = hub.Count(u.Input), hub.Count(u.CacheRead), hub.Count(u.Output), hub.Count(u.Reasoning), u.Cost
				}
				if got != want {
					t.Errorf("%s:\n%+v, want\n%+v", how, got, want)
				}
			}
			if f.Whole != nil {
				check("whole", whole(t, targetOf(&f), f.Whole), want.whole)
			}
			if f.Chunks != nil {
				check("streamed", streamed(t, targetOf(&f), f.Chunks), want.streamed)
			}
		})
	}
}
