package chat

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

func convert(t *testing.T, messages string, o ConvertOptions) ([]agent.Message, error) {
	t.Helper()
	var ui []UIMessage
	if err := json.Unmarshal([]byte(messages), &ui); err != nil {
		t.Fatal(err)
	}
	return Convert(ui, o)
}

// conformance/chat compares Convert with the AI SDK; this test has the differences, and
// the options of a program.
func TestConvert(t *testing.T) {
	t.Parallel()
	userText := agent.Message{Role: agent.User, Parts: []agent.Part{{Type: agent.Text, Text: "Hi"}}}
	const user = `{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"}]}`
	call := func(state string) string {
		return `{"id":"a","role":"assistant","parts":[{"type":"text","text":"So"},{"type":"tool-f","toolCallId":"k","input":{},` + state + `}]}`
	}
	so := agent.Part{Type: agent.Text, Text: "So"}
	f := agent.Part{Type: agent.ToolCallPart, CallID: "k", ToolName: "f", Input: json.RawMessage("{}")}
	asked := agent.Part{Type: agent.ApprovalRequest, ApprovalID: "approval-k", CallID: "k", Signature: "s"}
	answered := func(yes bool) agent.Part {
		return agent.Part{Type: agent.ApprovalResponse, ApprovalID: "approval-k", Approved: yes, Reason: "r", Signature: "s"}
	}
	const yes = `"state":"approval-responded","approval":{"id":"approval-k","approved":true,"reason":"r","signature":"s"}`
	no := strings.Replace(yes, "true", "false", 1)
	for name, c := range map[string]struct {
		messages string
		o        ConvertOptions
		want     []agent.Message
	}{
		"a call that waits for the page": {
			"[" + user + "," + call(`"state":"input-available"`) + "]", ConvertOptions{},
			[]agent.Message{userText, {Role: agent.Assistant, Parts: []agent.Part{so, f}}},
		},
		"a call that nothing came of": {
			"[" + call(`"state":"input-available"`) + "," + user + "]", ConvertOptions{},
			[]agent.Message{{Role: agent.Assistant, Parts: []agent.Part{so}}, userText},
		},
		"an approval": {
			"[" + user + "," + call(yes) + "]", ConvertOptions{},
			[]agent.Message{userText, {Role: agent.Assistant, Parts: []agent.Part{so, f, asked}}, {Role: agent.FromTool, Parts: []agent.Part{answered(true)}}},
		},
		"an approval that nothing came of": {
			"[" + call(yes) + "," + user + "]", ConvertOptions{},
			[]agent.Message{{Role: agent.Assistant, Parts: []agent.Part{so}}, userText},
		},
		"a denial": {
			"[" + user + "," + call(no) + "]", ConvertOptions{},
			[]agent.Message{userText, {Role: agent.Assistant, Parts: []agent.Part{so, f, asked}}, {Role: agent.FromTool, Parts: []agent.Part{answered(false)}}},
		},
		"a denial before": {
			"[" + call(no) + "," + user + "]", ConvertOptions{},
			[]agent.Message{{Role: agent.Assistant, Parts: []agent.Part{so, f, asked}}, {Role: agent.FromTool, Parts: []agent.Part{
				answered(false),
				{Type: agent.ToolResultPart, CallID: "k", ToolName: "f", Output: &agent.Output{Type: agent.OutputDenied, Text: "r"}},
			}}, userText},
		},
		"what tools say of their output": {
			"[" + call(`"state":"output-available","output":[1]`) + "]",
			ConvertOptions{ToolOutput: func(tool string, output json.RawMessage) (*agent.Output, error) {
				return &agent.Output{Type: agent.OutputText, Text: tool + string(output)}, nil
			}},
			[]agent.Message{{Role: agent.Assistant, Parts: []agent.Part{so, f}}, {Role: agent.FromTool, Parts: []agent.Part{
				{Type: agent.ToolResultPart, CallID: "k", ToolName: "f", Output: &agent.Output{Type: agent.OutputText, Text: "f[1]"}},
			}}},
		},
		"data": {
			`[{"role":"user","parts":[{"type":"data-place","data":{"x":1}},{"type":"data-other","data":2}]}]`,
			ConvertOptions{Data: func(name string, data json.RawMessage) (*agent.Part, error) {
				if name != "place" {
					return nil, nil
				}
				return &agent.Part{Type: agent.Text, Text: name + string(data)}, nil
			}},
			[]agent.Message{{Role: agent.User, Parts: []agent.Part{{Type: agent.Text, Text: `place{"x":1}`}}}},
		},
		"a system message": {
			`[{"role":"system","parts":[{"type":"text","text":"A"},{"type":"text","text":"B","providerMetadata":{"p":{}}}]}]`, ConvertOptions{AllowSystem: true},
			[]agent.Message{{Role: agent.System, Parts: []agent.Part{{Type: agent.Text, Text: "AB"}}, Options: agent.Options{"p": json.RawMessage("{}")}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := convert(t, c.messages, c.o)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestConvert_RefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	tool := func(s string) string {
		return `[{"role":"assistant","parts":[{"type":"step-start"},{` + s + `}]}]`
	}
	for messages, want := range map[string]string{
		tool(`"type":"tool-f","state":"input-available"`):                                                     "messages[0].parts[1] has no toolCallId",
		tool(`"type":"dynamic-tool","toolCallId":"k","state":"input-available"`):                              "messages[0].parts[1] names no tool",
		tool(`"type":"tool-f","toolCallId":"k"`):                                                              `messages[0].parts[1].state is ""`,
		tool(`"type":"tool-f","toolCallId":"k","state":"approval-requested"`):                                 "has no approval.id",
		tool(`"type":"tool-f","toolCallId":"k","state":"approval-responded","approval":{"id":"a"}`):           "has no approval.approved",
		tool(`"type":"text","text":"a","providerMetadata":{"p":1}`):                                           `the metadata of provider "p" is no object`,
		tool(`"type":"file","mediaType":"image/png","url":"data:image/png;base64,?"`):                         "whose base64 is wrong",
		tool(`"type":"file","mediaType":"image/png","url":"data:image/png"`):                                  "without a comma",
		tool(`"type":"file","mediaType":"image/png","url":"data:image/png;base64,"`):                          "messages[0].parts[1] is an empty file",
		tool(`"type":"file","url":"https://example.com/"`):                                                    "has no mediaType",
		tool(`"type":"file","mediaType":"a/b","url":"https:///x"`):                                            "is no URL",
		`[{"role":"user","parts":[{"type":"reasoning","text":"x"}]}]`:                                         "messages[0].parts[0].type is \"reasoning\"",
		`[{"role":"tool","parts":[]}]`:                                                                        `messages[0].role is "tool"`,
		tool(`"type":"tool-f","toolCallId":"k","state":"output-available","resultProviderMetadata":{"p":[]}`): "is no object",
	} {
		_, err := convert(t, messages, ConvertOptions{})
		if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", messages, err, want)
		}
	}
	own := errors.New("not this one")
	_, err := convert(t, `[{"role":"user","parts":[{"type":"data-x","data":1}]}]`, ConvertOptions{Data: func(string, json.RawMessage) (*agent.Part, error) { return nil, own }})
	if !errors.Is(err, own) {
		t.Errorf("an error of Data became %v", err)
	}
}

func TestDecodeDataURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string][2]string{
		"image/png;base64,aGk=":                     {"image/png", "hi"},
		"image/png;base64,aGk":                      {"image/png", "hi"},
		"text/plain;charset=utf-8;BASE64,-_-_":      {"text/plain", "\xfb\xff\xbf"},
		"text/plain;base64,aGk%3D":                  {"text/plain", "hi"},
		"text/plain,h%20i+":                         {"text/plain", "h i+"},
		",":                                         {"", ""},
		"application/octet-stream;base64,AP8=":      {"application/octet-stream", "\x00\xff"},
		"text/html,<script>alert('hi');,</script>?": {"text/html", "<script>alert('hi');,</script>?"},
	} {
		mediaType, data, err := decodeDataURL(url)
		if err != nil || mediaType != want[0] || string(data) != want[1] {
			t.Errorf("%s: %q, %q, %v; want %q", url, mediaType, data, err, want)
		}
	}
}

// Every request is refused, or becomes messages that can be stored and read back
// unchanged.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"id":"c","trigger":"submit-message","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"},{"type":"file","mediaType":"image/png","url":"data:image/png;base64,aGk="}]}]}`))
	f.Add([]byte(`{"messages":[{"id":"a","role":"assistant","parts":[{"type":"step-start"},{"type":"reasoning","text":"Hm","providerMetadata":{"p":{"s":1}}},{"type":"tool-f","toolCallId":"k","state":"approval-responded","input":{"a":1},"approval":{"id":"approval-k","approved":false,"reason":"no","signature":"s"}}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"assistant","parts":[{"type":"dynamic-tool","toolName":"g","toolCallId":"k","state":"output-error","rawInput":"{","errorText":"e","providerExecuted":true},{"type":"steering-message","parts":[{"type":"text","text":"x"}]}]},{"role":"user","parts":[]}]}`))
	f.Add([]byte(`{"messages":[{"role":"user","parts":[{"type":"file","url":"data:text/plain,"}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"system","parts":[{"type":"text","text":"x"}]}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		q, err := parseRequest(body)
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		messages, err := Convert(q.Messages, ConvertOptions{AllowSystem: true})
		if err != nil {
			if cay.CodeOf(err) != cay.Invalid {
				t.Fatalf("%v", err)
			}
			return
		}
		if _, _, err := agent.Answers(messages); err != nil && cay.CodeOf(err) != cay.PermissionDenied {
			t.Fatal(err)
		}
		if all, err := answered(messages, messages); err == nil && len(all) != len(messages)+1 {
			t.Fatalf("%+v became %+v", messages, all)
		}
		stored, err := json.Marshal(agent.Call{Messages: messages})
		if err != nil {
			t.Fatalf("%+v cannot be stored: %v", messages, err)
		}
		var again agent.Call
		if err := json.Unmarshal(stored, &again); err != nil {
			t.Fatalf("%s cannot be read again: %v", stored, err)
		}
		if len(again.Messages) != len(messages) {
			t.Fatalf("%d messages became %d", len(messages), len(again.Messages))
		}
	})
}

// Each chunk of a stream becomes one chunk, without a line break, and without the
// step's id.
func FuzzView(f *testing.F) {
	f.Add(`{"type":"start-step","step":"a"}`, `{"type":"text-delta","id":"0","delta":"x"}`, `{"type":"start-step","step":"a"}`, int64(1), true)
	f.Add(`{"type":"finish"}`, "{\n\"type\":\"tool-output-available\",\"toolCallId\":\"k\"}", `null`, int64(-2), false)
	f.Fuzz(func(t *testing.T, a, b, c string, from int64, reset bool) {
		chunks := []string{a, b, c, a, b, c}
		resumes := from >= 0
		from = min(max(0, from), int64(len(chunks)))
		v := newView(from, resumes, reset)
		for i := range int64(3) {
			v.known(i, []byte(chunks[i]))
		}
		for i := from; i < int64(len(chunks)); i++ {
			got := v.next(i, []byte(chunks[i]))
			if strings.ContainsAny(string(got), "\r\n") || !json.Valid(got) {
				t.Fatalf("chunk %d, %q, became %q", i, chunks[i], got)
			}
			var h head
			if json.Unmarshal(got, &h) != nil || h.Type == agent.ChunkStartStep && h.Step != "" {
				t.Fatalf("chunk %d, %q, became %q", i, chunks[i], got)
			}
		}
		if rest := v.rest("failed"); len(rest) > 2 {
			t.Fatalf("the end is %q", rest)
		}
	})
}
