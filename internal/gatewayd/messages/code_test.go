package messages

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestTyped(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"a":1}`: `{"type":"bash_code_execution","a":1}`, `{}`: `{"type":"bash_code_execution"}`, ` { "a":1}`: `{"type":"bash_code_execution","a":1}`,
		`[1]`: `[1]`, `"x"`: `"x"`, `{ }`: `{"type":"bash_code_execution"}`,
	} {
		for size := 1; size <= len(in); size++ {
			typed, out := typed{name: "bash_code_execution"}, ""
			for at := 0; at < len(in); at += size {
				out += typed.add(in[at:min(len(in), at+size)])
			}
			if out != want {
				t.Errorf("%s in pieces of %d: %s, want %s", in, size, out, want)
			}
		}
	}
}

// The three code tools have one name for the caller, and three names for Anthropic.
func TestCodeExecution(t *testing.T) {
	t.Parallel()
	c := &hub.Call{
		Prompt: []hub.Message{text(hub.User, "hi")},
		Tools:  []hub.Tool{{Name: "run", ProviderID: "anthropic.code_execution_20250825"}},
	}
	target := *anthropic
	target.Call = c
	f := gatewaytest.Named(t, "anthropic/anthropic-code-execution-20250825.1")
	whole, err := New().ReadResult(&target, f.Whole)
	if err != nil {
		t.Fatal(err)
	}
	streamed, failed := read(t, &target, bytes.NewReader(asStream(t, f.Whole)))
	if failed != nil || canonical(t, streamed) != canonical(t, whole) {
		t.Errorf("streamed: %v %s", failed, differ(canonical(t, streamed), canonical(t, whole)))
	}
	call, result := whole.Content[4], whole.Content[5]
	if call.Call.Name != "run" || call.Call.Input != `{"type":"bash_code_execution","command":"python /tmp/fibonacci.py"}` || result.Result.Name != "run" {
		t.Fatalf("%+v %+v", call.Call, result.Result)
	}
	for _, options := range []bool{true, false} { // a client may drop the options
		parts := append([]hub.Part(nil), whole.Content...)
		if !options {
			for i := range parts {
				parts[i].Options = nil
			}
		}
		again := &hub.Call{Tools: c.Tools, Prompt: append(c.Prompt[:1:1], hub.Message{Role: hub.Assistant, Parts: parts})}
		body, _ := writeCall(t, again, anthropic)
		got, want := body.Get("messages.1.content").Raw, gjson.GetBytes(f.Whole, "content").Raw
		if got, want := sorted(t, []byte(got)), sorted(t, []byte(want)); got != want {
			t.Errorf("%s", differ(got, want))
		}
	}
	// For Anthropic's clients the names are Anthropic's.
	if name, input := codeName(codeExecution, json.RawMessage(`{"type":"programmatic-tool-call","code":"1"}`)); name != codeExecution || string(input) != `{"code":"1"}` {
		t.Errorf("%s %s", name, input)
	}
	if name, input := codeName("f", json.RawMessage(`{"type":"bash_code_execution"}`)); name != "f" || string(input) != `{"type":"bash_code_execution"}` {
		t.Errorf("%s %s", name, input)
	}
}
