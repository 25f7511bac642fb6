package aisdk

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// prompts are one prompt in the form of each version, as far as the version can express
// it.
var prompts = map[string]string{
	"2": `{"prompt":[
		{"role":"system","content":"Be brief.","providerOptions":{"anthropic":{"cacheControl":{"type":"ephemeral"}}}},
		{"role":"user","content":[
			{"type":"text","text":"What is this?","providerOptions":{"gateway":{"generationId":"gen_1"}}},
			{"type":"file","mediaType":"image/png","data":"data:image/png;base64,iVBORw0KGgo="},
			{"type":"file","mediaType":"image/*","data":"https://example.com/a.jpg"},
			{"type":"file","mediaType":"application/pdf","filename":"a.pdf","data":"JVBERi0="},
			{"type":"file","mediaType":"application/pdf","data":"file-abc123"}]},
		{"role":"assistant","content":[
			{"type":"reasoning","text":"Hm.","providerOptions":{"anthropic":{"signature":"s1"}}},
			{"type":"text","text":"Let me look."},
			{"type":"file","mediaType":"image/png","data":"iVBORw0KGgo"},
			{"type":"tool-call","toolCallId":"p1","toolName":"search","input":{"q": "x"},"providerExecuted":true},
			{"type":"tool-result","toolCallId":"p1","toolName":"search","output":{"type":"json","value":[{"url":"u"}]}},
			{"type":"tool-call","toolCallId":"c1","toolName":"look","input":{},"providerOptions":{"google":{"thoughtSignature":"t1"}}},
			{"type":"tool-call","toolCallId":"c2","toolName":"look","input":"{\"broken\":"},
			{"type":"tool-call","toolCallId":"c3","toolName":"look"}]},
		{"role":"tool","content":[
			{"type":"tool-result","toolCallId":"c1","toolName":"look","output":{"type":"content","value":[
				{"type":"text","text":"seen"},{"type":"media","data":"iVBORw0KGgo=","mediaType":"image/png"}]}},
			{"type":"tool-result","toolCallId":"c2","toolName":"look","output":{"type":"error-text","value":"bad input"}},
			{"type":"tool-result","toolCallId":"c3","toolName":"look","output":{"type":"error-json","value":{"code":5}}},
			{"type":"tool-result","toolCallId":"c4","toolName":"look","output":{"type":"text","value":""}},
			{"type":"tool-result","toolCallId":"c5","toolName":"look","output":{"type":"json","value":null}}]}]}`,
	"3": `{"prompt":[
		{"role":"tool","content":[
			{"type":"tool-result","toolCallId":"c1","toolName":"look","output":{"type":"content","value":[
				{"type":"text","text":"seen","providerOptions":{"anthropic":{"cacheControl":{"type":"ephemeral"}}}},
				{"type":"image-data","data":"iVBORw0KGgo=","mediaType":"image/png"},
				{"type":"image-url","url":"https://example.com/a"},
				{"type":"image-file-id","fileId":"file-1"},
				{"type":"file-data","data":"JVBERi0=","mediaType":"application/pdf","filename":"a.pdf"},
				{"type":"file-url","url":"https://example.com/a.csv?x=1"},
				{"type":"file-id","fileId":{"anthropic":"f1","openai":"f2"}},
				{"type":"custom","providerOptions":{"anthropic":{"toolName":"x"}}}]}},
			{"type":"tool-result","toolCallId":"c2","toolName":"look","output":{"type":"execution-denied","reason":"no","providerOptions":{"openai":{"approvalId":"a"}}}},
			{"type":"tool-result","toolCallId":"c3","toolName":"look","output":{"type":"execution-denied"}},
			{"type":"tool-approval-response","approvalId":"a1","approved":false,"reason":"not now"},
			{"type":"tool-approval-response","approvalId":"a2","approved":true,"providerOptions":{"openai":{"x":1}}}]}]}`,
	"4": `{"prompt":[
		{"role":"user","content":[
			{"type":"file","mediaType":"image","data":{"type":"data","data":"iVBORw0KGgo="}},
			{"type":"file","mediaType":"image","data":{"type":"url","url":"https://example.com/a.jpg","originalUrl":"x"}},
			{"type":"file","mediaType":"application/pdf","filename":"a.pdf","data":{"type":"reference","reference":{"anthropic":"f1"}}},
			{"type":"file","mediaType":"text/markdown","data":{"type":"text","text":"# a"}}]},
		{"role":"assistant","content":[
			{"type":"custom","kind":"openai.compaction","blob":{"a": 1},"providerOptions":{"openai":{"itemId":"cmp_1"}}},
			{"type":"custom","kind":"openai.other"},
			{"type":"reasoning-file","mediaType":"image/png","data":{"type":"data","data":"iVBORw0KGgo="},"providerOptions":{"google":{"thoughtSignature":"t"}}}]},
		{"role":"tool","content":[
			{"type":"tool-result","toolCallId":"c1","toolName":"look","output":{"type":"content","value":[
				{"type":"file","data":{"type":"data","data":"iVBORw0KGgo="},"mediaType":"image/png","filename":"a.png"},
				{"type":"file","data":{"type":"url","url":"https://example.com/a.pdf"},"mediaType":"application/pdf"},
				{"type":"custom","providerOptions":{"anthropic":{"toolName":"x"}}}]}}]}]}`,
}

func options(provider, name, value string) hub.Options {
	return hub.Options{provider: {name: json.RawMessage(value)}}
}

var png = []byte("\x89PNG\r\n\x1a\n")

func TestReadCall_Prompts(t *testing.T) {
	t.Parallel()
	ephemeral := options("anthropic", "cacheControl", `{"type":"ephemeral"}`)
	file := func(f hub.File) hub.Part { return hub.Part{Kind: hub.FilePart, File: &f} }
	result := func(id string, o hub.ToolOutput) hub.Part {
		return hub.Part{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: id, Name: "look", Output: o}}
	}
	call := func(id, input string) hub.Part {
		return hub.Part{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: id, Name: "look", Input: input}}
	}
	signed := call("c1", "{}")
	signed.Options = options("google", "thoughtSignature", `"t1"`)
	for version, want := range map[string][]hub.Message{
		"2": {
			{Role: hub.System, Parts: []hub.Part{{Kind: hub.TextPart, Text: "Be brief."}}, Options: ephemeral},
			{Role: hub.User, Parts: []hub.Part{
				{Kind: hub.TextPart, Text: "What is this?"},
				file(hub.File{MediaType: "image/png", Data: png}),
				file(hub.File{MediaType: "image/jpeg", URL: "https://example.com/a.jpg"}),
				file(hub.File{MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF-")}),
				file(hub.File{MediaType: "application/pdf", Reference: map[string]string{"openai": "file-abc123"}}),
			}},
			{Role: hub.Assistant, Parts: []hub.Part{
				{Kind: hub.ReasoningPart, Text: "Hm.", Options: options("anthropic", "signature", `"s1"`)},
				{Kind: hub.TextPart, Text: "Let me look."},
				file(hub.File{MediaType: "image/png", Data: png}),
				{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "p1", Name: "search", Input: `{"q": "x"}`, ProviderExecuted: true}},
				{Kind: hub.ToolResultPart, Result: &hub.ToolResult{CallID: "p1", Name: "search", ProviderExecuted: true, Output: hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`[{"url":"u"}]`)}}},
				signed,
				call("c2", `{"broken":`),
				call("c3", "{}"),
			}},
			{Role: hub.ToolRole, Parts: []hub.Part{
				result("c1", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{{Kind: hub.TextPart, Text: "seen"}, file(hub.File{MediaType: "image/png", Data: png})}}),
				result("c2", hub.ToolOutput{Kind: hub.OutputErrorText, Text: "bad input"}),
				result("c3", hub.ToolOutput{Kind: hub.OutputErrorJSON, JSON: json.RawMessage(`{"code":5}`)}),
				result("c4", hub.ToolOutput{Kind: hub.OutputText}),
				result("c5", hub.ToolOutput{Kind: hub.OutputJSON, JSON: json.RawMessage(`null`)}),
			}},
		},
		"3": {{Role: hub.ToolRole, Parts: []hub.Part{
			result("c1", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{
				{Kind: hub.TextPart, Text: "seen", Options: ephemeral},
				file(hub.File{MediaType: "image/png", Data: png}),
				file(hub.File{MediaType: "image/*", URL: "https://example.com/a"}),
				file(hub.File{MediaType: "image/*", Reference: map[string]string{"openai": "file-1"}}),
				file(hub.File{MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF-")}),
				file(hub.File{MediaType: "text/csv", URL: "https://example.com/a.csv?x=1"}),
				file(hub.File{MediaType: "application/octet-stream", Reference: map[string]string{"anthropic": "f1", "openai": "f2"}}),
				{Kind: hub.CustomPart, Options: options("anthropic", "toolName", `"x"`)},
			}}),
			result("c2", hub.ToolOutput{Kind: hub.OutputDenied, Text: "no", Options: options("openai", "approvalId", `"a"`)}),
			result("c3", hub.ToolOutput{Kind: hub.OutputDenied}),
			{Kind: hub.ApprovalResponsePart, Approval: &hub.Approval{ID: "a1", Reason: "not now"}},
			{Kind: hub.ApprovalResponsePart, Approval: &hub.Approval{ID: "a2", Approved: true}, Options: options("openai", "x", "1")},
		}}},
		"4": {
			{Role: hub.User, Parts: []hub.Part{
				file(hub.File{MediaType: "image/png", Data: png}),
				file(hub.File{MediaType: "image/jpeg", URL: "https://example.com/a.jpg"}),
				file(hub.File{MediaType: "application/pdf", Name: "a.pdf", Reference: map[string]string{"anthropic": "f1"}}),
				file(hub.File{MediaType: "text/markdown", Text: "# a"}),
			}},
			{Role: hub.Assistant, Parts: []hub.Part{
				{Kind: hub.CustomPart, CustomKind: "openai.compaction", Custom: json.RawMessage(`{"blob":{"a":1}}`), Options: options("openai", "itemId", `"cmp_1"`)},
				{Kind: hub.CustomPart, CustomKind: "openai.other"},
				{Kind: hub.ReasoningFilePart, File: &hub.File{MediaType: "image/png", Data: png}, Options: options("google", "thoughtSignature", `"t"`)},
			}},
			{Role: hub.ToolRole, Parts: []hub.Part{
				result("c1", hub.ToolOutput{Kind: hub.OutputContent, Content: []hub.Part{
					file(hub.File{MediaType: "image/png", Name: "a.png", Data: png}),
					file(hub.File{MediaType: "application/pdf", URL: "https://example.com/a.pdf"}),
					{Kind: hub.CustomPart, Options: options("anthropic", "toolName", `"x"`)},
				}}),
			}},
		},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := read(t, version, prompts[version])
			if len(c.Warnings) > 0 {
				t.Errorf("warnings %+v", c.Warnings)
			}
			if len(c.Prompt) != len(want) {
				t.Fatalf("%d messages, want %d", len(c.Prompt), len(want))
			}
			for i := range want {
				if c.Prompt[i].Role != want[i].Role || !reflect.DeepEqual(c.Prompt[i].Options, want[i].Options) || len(c.Prompt[i].Parts) != len(want[i].Parts) {
					t.Fatalf("message %d: %+v, want %+v", i, c.Prompt[i], want[i])
				}
				for j := range want[i].Parts {
					if got, want := c.Prompt[i].Parts[j], want[i].Parts[j]; !reflect.DeepEqual(got, want) {
						t.Errorf("message %d, part %d:\n got %s\nwant %s", i, j, show(got), show(want))
					}
				}
			}
		})
	}
}

// show returns a part as text, with pointers resolved.
func show(p hub.Part) string {
	raw, err := json.Marshal(p)
	if err != nil {
		return fmt.Sprintf("%+v (%v)", p, err)
	}
	return string(raw)
}

// A message of any role may have its text as a string.
func TestReadCall_TextAsString(t *testing.T) {
	t.Parallel()
	c := read(t, "4", `{"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`)
	want := []hub.Message{
		{Role: hub.User, Parts: []hub.Part{{Kind: hub.TextPart, Text: "a"}}},
		{Role: hub.Assistant, Parts: []hub.Part{{Kind: hub.TextPart, Text: "b"}}},
	}
	if !reflect.DeepEqual(c.Prompt, want) {
		t.Errorf("got %+v, want %+v", c.Prompt, want)
	}
}

func TestReadCall_Files(t *testing.T) {
	t.Parallel()
	quoted := func(s string) string { return `"` + s + `"` }
	for _, test := range []struct {
		name, mediaType, data string
		want                  hub.File
		param, message        string
	}{
		{name: "base64 of any", mediaType: "a/b", data: quoted("AAEC"), want: hub.File{MediaType: "a/b", Data: []byte{0, 1, 2}}},
		{name: "base64 of URLs", mediaType: "a/b", data: quoted("-_8"), want: hub.File{MediaType: "a/b", Data: []byte{0xfb, 0xff}}},
		{name: "type from the bytes", mediaType: "image/*", data: quoted("iVBORw0KGgo="), want: hub.File{MediaType: "image/png", Data: png}},
		{name: "bytes of another kind", mediaType: "audio", data: quoted("iVBORw0KGgo="), want: hub.File{MediaType: "audio/*", Data: png}},
		{name: "any type", mediaType: "*/*", data: quoted("JVBERi0="), want: hub.File{MediaType: "application/pdf", Data: []byte("%PDF-")}},
		{name: "data URL's own type", mediaType: "image", data: quoted("data:image/webp;x=y;base64,AAEC"), want: hub.File{MediaType: "image/webp", Data: []byte{0, 1, 2}}},
		{name: "full type stays", mediaType: "image/png", data: quoted("data:image/webp;base64,AAEC"), want: hub.File{MediaType: "image/png", Data: []byte{0, 1, 2}}},
		{name: "data URL of text", mediaType: "", data: quoted("data:text/plain;charset=utf-8,a%20b"), want: hub.File{MediaType: "text/plain", Data: []byte("a b")}},
		{name: "data URL, escaped base64", mediaType: "a/b", data: quoted("data:;base64,AAEC%0A"), want: hub.File{MediaType: "a/b", Data: []byte{0, 1, 2}}},
		{name: "tagged data URL", mediaType: "a/b", data: `{"type":"url","url":"data:x/y;base64,AAEC"}`, want: hub.File{MediaType: "a/b", Data: []byte{0, 1, 2}}},
		{name: "data URL for base64", mediaType: "a/b", data: `{"type":"data","data":"data:x/y;base64,AAEC"}`, want: hub.File{MediaType: "a/b", Data: []byte{0, 1, 2}}},
		{name: "text", mediaType: "", data: `{"type":"text","text":"x"}`, want: hub.File{MediaType: "text/plain", Text: "x"}},
		{name: "URL without a type", mediaType: "", data: quoted("https://example.com/x"), want: hub.File{MediaType: "application/pdf", URL: "https://example.com/x"}},
		{name: "upper case", mediaType: "", data: quoted("HTTP://example.com/x.PNG"), want: hub.File{MediaType: "image/png", URL: "HTTP://example.com/x.PNG"}},

		{name: "no data", mediaType: "a/b", data: "null", param: "prompt[0].content[0].data", message: "missing"},
		{name: "no type", mediaType: "", data: quoted("AAEC"), param: "prompt[0].content[0].mediaType", message: "missing"},
		{name: "not base64", mediaType: "a/b", data: quoted("§§"), param: "prompt[0].content[0].data", message: "base64"},
		{name: "nothing in it", mediaType: "a/b", data: quoted(""), param: "prompt[0].content[0].data", message: "base64"},
		{name: "number", mediaType: "a/b", data: "5", param: "prompt[0].content[0].data", message: "an object"},
		{name: "ftp", mediaType: "a/b", data: quoted("ftp://example.com/x"), param: "prompt[0].content[0].data", message: "http:"},
		{name: "no host", mediaType: "a/b", data: quoted("https:///x"), param: "prompt[0].content[0].data", message: "http:"},
		{name: "local file", mediaType: "a/b", data: `{"type":"url","url":"file:///etc/passwd"}`, param: "prompt[0].content[0].data.url", message: "http:"},
		{name: "data URL cut off", mediaType: "a/b", data: quoted("data:image/png;base64"), param: "prompt[0].content[0].data", message: "comma"},
		{name: "data URL in a data URL", mediaType: "a/b", data: quoted("data:;base64,data:;base64,AAEC"), param: "prompt[0].content[0].data", message: "base64"},
		{name: "data URL badly escaped", mediaType: "a/b", data: quoted("data:,%zz"), param: "prompt[0].content[0].data", message: "escaped"},
		{name: "unknown tag", mediaType: "a/b", data: `{"type":"blob"}`, param: "prompt[0].content[0].data.type", message: "reference"},
		{name: "tag without its member", mediaType: "a/b", data: `{"type":"data","url":"x"}`, param: "prompt[0].content[0].data.data", message: "missing"},
		{name: "empty text", mediaType: "a/b", data: `{"type":"text","text":""}`, param: "prompt[0].content[0].data.text", message: "not empty"},
		{name: "empty reference", mediaType: "a/b", data: `{"type":"reference","reference":{}}`, param: "prompt[0].content[0].data.reference", message: "id of the file"},
		{name: "reference to a number", mediaType: "a/b", data: `{"type":"reference","reference":{"openai":1}}`, param: "prompt[0].content[0].data.reference.openai", message: "a string"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			mediaType := `,"mediaType":"` + test.mediaType + `"`
			if test.mediaType == "" {
				mediaType = ""
			}
			c, err := New().ReadCall(head("4", false), []byte(`{"prompt":[{"role":"user","content":[{"type":"file"`+mediaType+`,"data":`+test.data+`}]}]}`))
			if test.param != "" {
				e, ok := err.(*hub.Error)
				if !ok || e.Param != test.param || !strings.Contains(e.Message, test.message) {
					t.Errorf("error %v, want one of %q with %q", err, test.param, test.message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := *c.Prompt[0].Parts[0].File; !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}
