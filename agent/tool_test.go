package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
)

type search struct {
	Words []string `json:"words" jsonschema:"what to look for"`
	Limit *int     `json:"limit,omitempty"`
}

// A tool's schema is made of its Go type, and its result reaches the model in
// the form that the tool chose.
func TestTool(t *testing.T) {
	t.Parallel()
	raw, err := agent.NewRawTool("raw", "dynamic", json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer","minimum":3}},"required":["n"]}`),
		func(_ context.Context, input json.RawMessage) (agent.Output, error) {
			return agent.Output{Type: agent.OutputContent, Parts: []agent.Part{{Type: agent.Text, Text: "got " + string(input)}}}, nil
		})
	if err != nil {
		t.Fatal(err)
	}
	told := agent.NewTool("told", "", func(_ context.Context, s search) ([]string, error) { return s.Words, nil },
		agent.Strict(), agent.OutputAs(func(found []string) agent.Output { return agent.TextOutput(strings.Join(found, "+")) }))
	none := agent.NewTool("none", "", func(context.Context, struct{}) (any, error) { return nil, nil })
	wrong := agent.NewTool("wrong", "", func(context.Context, struct{}) (agent.Output, error) { return agent.Output{Type: "smell"}, nil })
	models := script(wants(
		[3]string{"a", "raw", `{"n":3}`}, [3]string{"b", "raw", `{"n":2}`}, [3]string{"c", "told", `{"words":["x","y"]}`}, [3]string{"d", "told", `{"words":["x"],"limit":"1"}`},
		[3]string{"e", "none", `{}`}, [3]string{"f", "wrong", `{}`}, [3]string{"g", "told", `{"words":null}`},
	), says("ok"))
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{raw, told, none, wrong}})
	r, stream, err := answered(t, models, a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"type":"content","value":[{"type":"text","text":"got {\"n\":3}"}]}`, "2 < 3", `{"type":"text","value":"x+y"}`, "limit", `{"type":"json","value":null}`,
		`smell`, `{"type":"text","value":""}`,
	}
	for i, res := range r.Steps[0].ToolResults {
		b, err := json.Marshal(res.Output)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b); !strings.Contains(got, strings.ReplaceAll(want[i], "2 < 3", "minimum")) {
			t.Errorf("%s is told %s, want %s", res.CallID, got, want[i])
		}
	}
	if got := lines(stream); !strings.Contains(got, `"toolCallId":"c","output":["x","y"]}`) {
		t.Errorf("people see\n%s", got)
	}
	tools := models.asked()[0].Tools
	if got, want := string(tools[1].InputSchema), `{"type":"object","properties":{"words":{"type":"array","items":{"type":"string"},"description":"what to look for"},"limit":{"type":["null","integer"]}},"required":["words"],"additionalProperties":false}`; got != want {
		t.Errorf("the schema is\n%s\nwant\n%s", got, want)
	}
	if !*tools[1].Strict || tools[0].Strict != nil || string(tools[2].InputSchema) != `{"type":"object","properties":{},"additionalProperties":false}` {
		t.Errorf("the tools are %+v", tools)
	}
	for name, schema := range map[string]string{"no JSON": "{", "no schema": `{"type":3}`, "another document": `{"$ref":"https://example.com/schema"}`} {
		if _, err := agent.NewRawTool("raw", "", json.RawMessage(schema), nil); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := agent.NewRawTool("a b", "", json.RawMessage(`{}`), nil); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
		t.Errorf("a bad name: %v", err)
	}
}
