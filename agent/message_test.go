package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

// prompts are messages in the form of specification 4, which is also the form in
// which they are written.
var prompts = []string{
	`{"role":"system","content":"Be brief.","providerOptions":{"anthropic":{"cacheControl":{"type":"ephemeral"}}}}`,
	`{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"file","mediaType":"image/png","filename":"a.png","data":{"type":"data","data":"iVBORw0K"}}]}`,
	`{"role":"user","content":[{"type":"file","mediaType":"application/pdf","data":{"type":"url","url":"https://example.com/a.pdf"}},{"type":"file","mediaType":"image/*","data":{"type":"reference","reference":{"openai":"file-1"}}}]}`,
	`{"role":"assistant","content":[{"type":"reasoning","text":"","providerOptions":{"anthropic":{"signature":"s"}}},{"type":"text","text":"A cat."},{"type":"tool-call","toolCallId":"1","toolName":"look","input":{"at":[1,2.50]}}]}`,
	`{"role":"assistant","content":[{"type":"tool-call","toolCallId":"1","toolName":"search","input":"no JSON","providerExecuted":true},{"type":"tool-result","toolCallId":"1","toolName":"search","output":{"type":"error-json","value":{"code":3}}}]}`,
	`{"role":"assistant","content":[{"type":"tool-approval-request","toolCallId":"1","approvalId":"approval-1","signature":"v1.1.x"},{"type":"custom","kind":"openai.compaction","providerOptions":{"openai":{"id":"c"}}},{"type":"reasoning-file","mediaType":"image/png","data":{"type":"data","data":"AA=="}}]}`,
	`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"look","output":{"type":"text","value":""}},{"type":"tool-result","toolCallId":"2","toolName":"look","output":{"type":"json","value":null}},{"type":"tool-result","toolCallId":"3","toolName":"look","output":{"type":"error-text","value":"no"}}]}`,
	`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"look","output":{"type":"execution-denied","reason":"no"}},{"type":"tool-approval-response","approvalId":"approval-2","approved":false,"reason":"no"}]}`,
	`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"look","output":{"type":"content","value":[{"type":"text","text":"here"},{"type":"file","mediaType":"image/png","data":{"type":"data","data":"AA=="}}]}}]}`,
}

func TestMessage_JSON(t *testing.T) {
	t.Parallel()
	for _, text := range prompts {
		var m, again Message
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		b, err := json.Marshal(m)
		if err != nil || !sameJSON(t, string(b), text) {
			t.Errorf("%s\nis written as\n%s, %v", text, b, err)
		}
		if err := json.Unmarshal(b, &again); err != nil || !reflect.DeepEqual(m, again) {
			t.Errorf("%s\nis read again as\n%+v, %v", b, again, err)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// The forms of older versions, and those people write by hand.
func TestMessage_UnmarshalJSON(t *testing.T) {
	t.Parallel()
	file := func(f File) Message {
		return Message{Role: User, Parts: []Part{{Type: FilePart, File: &f}}}
	}
	output := func(f File) Message {
		return Message{Role: FromTool, Parts: []Part{{Type: ToolResultPart, CallID: "1", ToolName: "t", Output: &Output{Type: OutputContent, Parts: []Part{{Type: FilePart, File: &f}}}}}}
	}
	content := func(item string) string {
		return `{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t","output":{"type":"content","value":[` + item + `]}}]}`
	}
	for text, want := range map[string]Message{
		`{"role":"user","content":"hello"}`:                                                               UserMessage("hello"),
		`{"role":"system","content":[{"type":"text","text":"a"}]}`:                                        {Role: System, Parts: []Part{{Type: Text, Text: "a"}}},
		`{"role":"user","content":[{"type":"image","image":"data:image/gif;base64,R0lG"}]}`:               file(File{MediaType: "image/gif", Data: []byte("GIF")}),
		`{"role":"user","content":[{"type":"image","image":"https://example.com/a"}]}`:                    file(File{MediaType: "image/*", URL: "https://example.com/a"}),
		`{"role":"user","content":[{"type":"file","mediaType":"text/plain","data":"aGk"}]}`:               file(File{MediaType: "text/plain", Data: []byte("hi")}),
		`{"role":"user","content":[{"type":"file","data":"data:text/csv,a%2Cb"}]}`:                        file(File{MediaType: "text/csv", Data: []byte("a,b")}),
		`{"role":"user","content":[{"type":"file","filename":"n","data":{"type":"text","text":"hi"}}]}`:   file(File{MediaType: "text/plain", Name: "n", Data: []byte("hi")}),
		`{"role":"user","content":[{"type":"file","data":{"type":"data","data":"data:;base64,-_8"}}]}`:    file(File{MediaType: "text/plain", Data: []byte{0xfb, 0xff}}),
		`{"role":"user","content":[{"type":"file","mediaType":"image/*","data":"https://example.com/"}]}`: file(File{MediaType: "image/*", URL: "https://example.com/"}),
		`{"role":"assistant","content":[{"type":"tool-call","toolCallId":"1","toolName":"t"}]}`:           {Role: Assistant, Parts: []Part{{Type: ToolCallPart, CallID: "1", ToolName: "t", Input: json.RawMessage("{}")}}},
		content(`{"type":"media","mediaType":"image/png","data":"AA=="}`):                                 output(File{MediaType: "image/png", Data: []byte{0}}),
		content(`{"type":"image-url","url":"https://example.com/"}`):                                      output(File{MediaType: "image/*", URL: "https://example.com/"}),
		content(`{"type":"file-id","mediaType":"application/pdf","fileId":"f"}`):                          output(File{MediaType: "application/pdf", Reference: map[string]string{"openai": "f"}}),
		content(`{"type":"image-file-id","fileId":{"google":"g"}}`):                                       output(File{MediaType: "image/*", Reference: map[string]string{"google": "g"}}),
	} {
		var got Message
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if got.Parts[0].File != nil && strings.Contains(text, "-_8") {
			got.Parts[0].File.MediaType = want.Parts[0].File.MediaType // guessed
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s\nis read as %+v", text, got.Parts[0].File)
			}
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s\nis read as %+v", text, got)
		}
	}
}

func TestMessage_Invalid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"role":"boss","content":"x"}`: `"boss"`,
		`{"role":"user"}`:               "no content",
		`{"role":"tool","content":"x"}`: "content of a message",
		`{"role":"user","content":[{"type":"tool-call","toolCallId":"1","toolName":"t"}]}`:                                                                         `"tool-call"`,
		`{"role":"user","content":[{"type":"smell"}]}`:                                                                                                             `"smell"`,
		`{"role":"user","content":[{"type":"text"}]}`:                                                                                                              "no text",
		`{"role":"user","content":[{"type":"file","filename":"f"}]}`:                                                                                               `"f" has no data`,
		`{"role":"user","content":[{"type":"file","filename":"f","data":"%%"}]}`:                                                                                   `"f" is no base64`,
		`{"role":"user","content":[{"type":"file","filename":"f","data":"ftp://x/y"}]}`:                                                                            `"f" does not begin with`,
		`{"role":"user","content":[{"type":"file","filename":"f","data":{"type":"url","url":"file:///etc/passwd"}}]}`:                                              `"f" does not begin with`,
		`{"role":"user","content":[{"type":"file","filename":"f","data":{"type":"x"}}]}`:                                                                           `"x", not data`,
		`{"role":"user","content":[{"type":"file","filename":"f","data":"data:text/plain"}]}`:                                                                      "no comma",
		`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t"}]}`:                                                                       "no output",
		`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t","output":{"type":"y"}}]}`:                                                 `"y"`,
		`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t","output":{"type":"text"}}]}`:                                              "the value of an output",
		`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t","output":{"type":"content","value":[{"type":"reasoning","text":"x"}]}}]}`: `"reasoning", not text`,
		`{"role":"tool","content":[{"type":"tool-approval-response","approvalId":"a"}]}`:                                                                           "does not say",
		`{"role":"assistant","content":[{"type":"tool-call","toolName":"t"}]}`:                                                                                     "no id of its call",
	} {
		var m Message
		err := json.Unmarshal([]byte(text), &m)
		if !errors.Is(err, &cay.Error{Code: cay.Invalid}) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for _, m := range []Message{
		{Role: "x"}, {Role: User, Parts: []Part{{Type: ToolCallPart}}}, {Role: User, Parts: []Part{{Type: FilePart}}},
		{Role: User, Parts: []Part{{Type: FilePart, File: &File{URL: "https://x", Data: []byte("x")}}}},
	} {
		if b, err := json.Marshal(m); err == nil {
			t.Errorf("%+v is written as %s", m, b)
		}
	}
}

// A message that was read and written again is read as the same message.
func FuzzMessage(f *testing.F) {
	for _, text := range prompts {
		f.Add([]byte(text))
	}
	f.Add([]byte(`{"role":"user","content":[{"type":"image","image":"data:image/gif;base64,R0lG"}]}`))
	f.Add([]byte(`{"role":"tool","content":[{"type":"tool-result","toolCallId":"1","toolName":"t","output":{"type":"content","value":[{"type":"file-id","fileId":"f"}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var m, again Message
		if json.Unmarshal(text, &m) != nil {
			return
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatalf("%s is read and not written: %v", text, err)
		}
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatalf("%s is written as %s and not read: %v", text, b, err)
		}
		if b2, err := json.Marshal(again); err != nil || !bytes.Equal(b, b2) {
			t.Fatalf("%s is written as %s, and then as %s, %v", text, b, b2, err)
		}
	})
}

func FuzzCanonical(f *testing.F) {
	for _, text := range []string{`{"b":1.0,"a":[1e2,-0,0.1,12345678901234567890]}`, `1e-400000000`, `"<\u2028"`, `0e99999999999`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := canonical(text)
		if err != nil {
			return
		}
		if again, err := canonical(json.RawMessage(c)); err != nil || again != c {
			t.Fatalf("%s is %s, and then %s, %v", text, c, again, err)
		}
	})
}
