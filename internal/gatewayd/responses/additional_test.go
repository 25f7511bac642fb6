package responses

import (
	"strings"
	"testing"
)

// Tools that an item adds become tools of the call, and tool_choice may name them. A
// second definition of a tool replaces the first.
func TestReadCall_AdditionalTools(t *testing.T) {
	t.Parallel()
	const items = `"input":[{"role":"user","content":"hi"},{"type":"additional_tools","role":"developer","tools":[
		{"type":"function","name":"g","parameters":{"type":"object","properties":{}}},{"type":"function","name":"f","description":"newer","parameters":{"type":"object","properties":{}}}]}]`
	call, err := New().ReadCall(nil, []byte(`{"model":"m","tools":[{"type":"function","name":"f","description":"old"}],"tool_choice":{"type":"function","name":"g"},`+items+`}`))
	if err != nil {
		t.Fatal(err)
	}
	if len(call.Tools) != 2 || call.Tools[0].Name != "g" || call.Tools[1].Description != "newer" || call.ToolChoice.Tool != "g" {
		t.Errorf("%+v, %+v", call.Tools, call.ToolChoice)
	}
	if len(call.Prompt) != 1 || len(call.Warnings) != 1 || call.Warnings[0].Feature != "additional_tools" || !strings.Contains(call.Warnings[0].Message, "input[1]") {
		t.Errorf("%+v, %+v", call.Prompt, call.Warnings)
	}
	if _, err := New().ReadCall(nil, []byte(`{"model":"m","input":[{"type":"additional_tools","tools":{}}]}`)); err == nil || !strings.Contains(err.Error(), "input[0]") {
		t.Errorf("%v", err)
	}
}
