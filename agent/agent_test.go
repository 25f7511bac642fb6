package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

type city struct {
	City string `json:"city"`
}

type forecast struct {
	City string `json:"city"`
	Rain bool   `json:"rain"`
}

var weather = agent.NewTool("weather", "The weather of a city.", weatherOf)

func weatherOf(_ context.Context, in city) (forecast, error) {
	if in.City == "Atlantis" {
		return forecast{}, workflow.Fatal(errors.New("there is no such city"))
	}
	return forecast{in.City, in.City == "Oslo"}, nil
}

func TestAgent_Stream(t *testing.T) {
	t.Parallel()
	models := script(
		wants([3]string{"a", "weather", `{"city":"Oslo"}`}, [3]string{"b", "weather", `{"city": "Rome"}`}),
		says("Take an umbrella."),
	)
	a := agent.New(agent.Config{Name: "assistant", Model: "cay/scripted", Instructions: "Be brief.", Tools: []agent.Tool{weather}})
	r, stream, err := answered(t, models, a, agent.Call{Prompt: "Oslo or Rome?", MessageID: "m"})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "Oslo or Rome?"
assistant tool-call a weather {"city":"Oslo"}
assistant tool-call b weather {"city":"Rome"}
tool tool-result a weather json {"city":"Oslo","rain":true}
tool tool-result b weather json {"city":"Rome","rain":false}
assistant text "Take an umbrella."
`
	if got := transcript(r.Messages); got != want || r.NewMessages != 3 {
		t.Errorf("the conversation is\n%swant\n%s%d are new", got, want, r.NewMessages)
	}
	if r.Text != "Take an umbrella." || r.FinishReason != agent.FinishStop || len(r.Steps) != 2 || len(r.Pending) != 0 {
		t.Errorf("the result is %+v", r)
	}
	if want := (agent.Usage{Calls: 2, Input: 20, Output: 10, Cost: 2000, CostKnown: true}); r.Usage != want {
		t.Errorf("used %+v, want %+v", r.Usage, want)
	}
	if s := r.Steps[0]; len(s.ToolCalls) != 2 || len(s.ToolResults) != 2 || s.ToolResults[1].CallID != "b" || s.Number != 0 || r.Steps[1].Number != 1 {
		t.Errorf("the first step is %+v", s)
	}
	asked := models.asked()
	if len(asked) != 2 {
		t.Fatalf("the model was asked %d times", len(asked))
	}
	if got := transcript(asked[1].Prompt); got != "system text \"Be brief.\"\n"+strings.TrimSuffix(want, "assistant text \"Take an umbrella.\"\n") {
		t.Errorf("the model was told\n%s", got)
	}
	if asked[0].Session == "" || asked[0].Session != asked[1].Session || asked[0].App != "assistant" || len(asked[0].Tools) != 1 {
		t.Errorf("the model was asked %+v", asked[0])
	}

	// Outputs come in the order the tools end.
	got := lines(stream)
	first, second := `{"type":"tool-output-available","toolCallId":"a","output":{"city":"Oslo","rain":true}}
`, `{"type":"tool-output-available","toolCallId":"b","output":{"city":"Rome","rain":false}}
`
	wantStream := `{"type":"start"}
{"type":"start-step"}
{"type":"tool-input-start","toolCallId":"a","toolName":"weather"}
{"type":"tool-input-delta","toolCallId":"a","inputTextDelta":"{\"city\":\"Oslo\"}"}
{"type":"tool-input-available","toolCallId":"a","toolName":"weather","input":{"city":"Oslo"}}
{"type":"tool-input-start","toolCallId":"b","toolName":"weather"}
{"type":"tool-input-delta","toolCallId":"b","inputTextDelta":"{\"city\": \"Rome\"}"}
{"type":"tool-input-available","toolCallId":"b","toolName":"weather","input":{"city":"Rome"}}
{"type":"finish-step"}
` + "%s%s" + `{"type":"start-step"}
{"type":"text-start","id":"0"}
{"type":"text-delta","id":"0","delta":"Take "}
{"type":"text-delta","id":"0","delta":"an "}
{"type":"text-delta","id":"0","delta":"umbrella."}
{"type":"text-end","id":"0"}
{"type":"finish-step"}
{"type":"finish","finishReason":"stop"}
`
	if got != fmt.Sprintf(wantStream, first, second) && got != fmt.Sprintf(wantStream, second, first) {
		t.Errorf("the stream is\n%s", got)
	}
	if stream[0].MessageID != "m" || stream[1].Step == "" {
		t.Errorf("it begins with %+v", stream[:2])
	}
}

// An invalid Call fails, and the stream says so in general words.
func TestAgent_Refused(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Model: "cay/scripted", Tools: []agent.Tool{weather}})
	for name, c := range map[string]struct {
		agent *agent.Agent
		call  agent.Call
		want  string
	}{
		"nothing":         {a, agent.Call{}, "neither a Prompt nor Messages"},
		"both":            {a, agent.Call{Prompt: "x", Messages: []agent.Message{agent.UserMessage("x")}}, "both a Prompt and Messages"},
		"no model":        {agent.New(agent.Config{}), agent.Call{Prompt: "x"}, "has no model"},
		"no such tool":    {a, agent.Call{Prompt: "x", ActiveTools: []string{"moon"}}, `"moon", which is no tool`},
		"empty after all": {agent.New(agent.Config{Model: "m", Prepare: func(_ workflow.Context, p *agent.Preparation) error { p.Messages = nil; return nil }}), agent.Call{Prompt: "x"}, "left no messages"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			models := script(says("hello"))
			_, stream, err := answered(t, models, c.agent, c.call)
			if !errors.Is(err, &cay.Error{Code: cay.Invalid}) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if n := len(models.asked()); n != 0 {
				t.Errorf("the model was asked %d times", n)
			}
			end := lines(stream[max(0, len(stream)-2):])
			if want := "{\"type\":\"error\",\"errorText\":\"The answer failed.\"}\n{\"type\":\"finish\",\"finishReason\":\"error\"}\n"; end != want {
				t.Errorf("the stream ends with\n%s", end)
			}
		})
	}
}

// Errors of tools are for the model; the run goes on.
func TestAgent_ToolErrors(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	flaky := agent.NewTool("flaky", "", func(ctx context.Context, in city) (string, error) {
		if c := agent.CallOf(ctx); c.ID != "f" || c.Name != "flaky" {
			return "", workflow.Fatal(fmt.Errorf("it is called as %+v", c))
		}
		if tries.Add(1) < 3 {
			return "", workflow.Retryable(errors.New("busy"), time.Millisecond)
		}
		return "at last", nil
	})
	panics := agent.NewTool("panics", "", func(context.Context, struct{}) (string, error) { panic("oh") }, agent.StepOptions(workflow.MaxRetries(0)))
	inWorkflow := agent.NewWorkflowTool("code", "", func(ctx workflow.Context, in city) (string, error) {
		if err := workflow.Sleep(ctx, time.Millisecond); err != nil {
			return "", err
		}
		return "", cay.Errorf(cay.NotFound, "nothing in %s", in.City)
	})
	models := script(
		wants([3]string{"1", "weather", `{"city":"Atlantis"}`}, [3]string{"f", "flaky", `{"city":"x"}`}, [3]string{"p", "panics", ``},
			[3]string{"c", "code", `{"city":"y"}`}, [3]string{"no", "moon", `{}`}, [3]string{"bad", "weather", `{"city":`}, [3]string{"unfit", "weather", `{"town":"Oslo"}`}),
		says("Well."),
	)
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{weather, flaky, panics, inWorkflow}})
	r, stream, err := answered(t, models, a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{
		"1 error-text there is no such city", "f text at last", "p error-text the tool failed: oh", "c error-text nothing in y",
		`no error-text there is no tool "moon"; the tools are [code flaky panics weather]`, "bad error-text the input is not JSON: unexpected end of JSON input",
		"unfit error-text the input does not fit the tool's schema: ",
	} {
		res := r.Steps[0].ToolResults[i]
		if got := fmt.Sprintf("%s %s %s", res.CallID, res.Output.Type, res.Output.Text); !strings.HasPrefix(got, want) {
			t.Errorf("result %d is %q, want %q", i, got, want)
		}
	}
	kinds := make(map[string][]agent.ChunkType)
	for _, c := range stream {
		if c.ToolCallID != "" && c.Type != agent.ChunkToolInputStart && c.Type != agent.ChunkToolInputDelta {
			kinds[c.ToolCallID] = append(kinds[c.ToolCallID], c.Type)
		}
	}
	for id, want := range map[string]string{
		"1": "[tool-input-available tool-output-error]", "f": "[tool-input-available tool-output-available]",
		"no": "[tool-input-error]", "bad": "[tool-input-error]", "unfit": "[tool-input-error]",
	} {
		if got := fmt.Sprint(kinds[id]); got != want {
			t.Errorf("call %s is shown as %s, want %s", id, got, want)
		}
	}
	if p := r.Messages[1].Parts[5]; string(p.Input) != `"{\"city\":"` {
		t.Errorf("what was no JSON is kept as %s", p.Input)
	}
}

func TestAgent_Repair(t *testing.T) {
	t.Parallel()
	models := script(wants([3]string{"a", "wether", `{"city":"Oslo"}`}, [3]string{"b", "moon", `{}`}), says("Rain."))
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{weather}, Repair: func(_ workflow.Context, c agent.ToolCall, problem error) (*agent.ToolCall, error) {
		if !strings.Contains(problem.Error(), "there is no tool") {
			return nil, fmt.Errorf("the problem is %w", problem)
		}
		if c.Name != "wether" {
			return nil, nil
		}
		c.Name = "weather"
		return &c, nil
	}})
	r, stream, err := answered(t, models, a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "go"
assistant tool-call a weather {"city":"Oslo"}
assistant tool-call b moon {}
tool tool-result a weather json {"city":"Oslo","rain":true}
tool tool-result b moon error-text there is no tool "moon"; the tools are [weather]
assistant text "Rain."
`
	if got := transcript(r.Messages); got != want {
		t.Errorf("the conversation is\n%swant\n%s", got, want)
	}
	if got := lines(stream); !strings.Contains(got, `{"type":"tool-input-available","toolCallId":"a","toolName":"weather","input":{"city":"Oslo"},"dynamic":true}`+"\n"+`{"type":"tool-input-error","errorText":"there is no tool`) {
		t.Errorf("the stream is\n%s", got)
	}
}

func TestAgent_Ends(t *testing.T) {
	t.Parallel()
	again := wants([3]string{"a", "weather", `{"city":"Oslo"}`})
	tools := []agent.Tool{weather}
	for name, c := range map[string]struct {
		config agent.Config
		call   agent.Call
		steps  int
	}{
		"default":        {agent.Config{}, agent.Call{}, 20},
		"max steps":      {agent.Config{MaxSteps: 3}, agent.Call{}, 3},
		"of the call":    {agent.Config{MaxSteps: 3}, agent.Call{MaxSteps: 2}, 2},
		"step count":     {agent.Config{StopWhen: []agent.StopCondition{agent.StepCount(4)}}, agent.Call{}, 4},
		"tool call":      {agent.Config{StopWhen: []agent.StopCondition{agent.HasToolCall("moon"), agent.HasToolCall("weather")}}, agent.Call{}, 1},
		"cost":           {agent.Config{StopWhen: []agent.StopCondition{agent.CostAbove(4500)}}, agent.Call{}, 5},
		"never but cost": {agent.Config{MaxSteps: -1, StopWhen: []agent.StopCondition{agent.CostAbove(24500)}}, agent.Call{}, 25},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.config.Model, c.config.Tools, c.call.Prompt = "m", tools, "go"
			models := script(again)
			r, _, err := answered(t, models, agent.New(c.config), c.call)
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Steps) != c.steps || len(models.asked()) != c.steps || r.FinishReason != agent.FinishToolCalls {
				t.Errorf("%d steps, %d calls, ended with %s; want %d", len(r.Steps), len(models.asked()), r.FinishReason, c.steps)
			}
			// Calls have unique ids even if the model numbers its calls anew in each
			// answer.
			ids := make(map[string]bool)
			for _, m := range r.Messages {
				for _, p := range m.Parts {
					if p.Type == agent.ToolCallPart && ids[p.CallID] {
						t.Fatalf("two calls have the id %s", p.CallID)
					} else if p.Type == agent.ToolCallPart {
						ids[p.CallID] = true
					} else if p.Type == agent.ToolResultPart && !ids[p.CallID] {
						t.Fatalf("the result of %s is of no call", p.CallID)
					}
				}
			}
		})
	}
}

// Prepare changes one call, fields of Call override Config, and callbacks get the
// results.
func TestAgent_Prepare(t *testing.T) {
	t.Parallel()
	var seen []string // of the first execution and of its replay
	temperature := 0.5
	a := agent.New(agent.Config{
		Model: "one", Instructions: "first", Tools: []agent.Tool{weather, agent.NewClientTool[city]("ask", "")},
		Prepare: func(_ workflow.Context, p *agent.Preparation) error {
			if p.StepNumber == 1 {
				p.Model, p.Instructions, p.ActiveTools = "two", "second", []string{"weather"}
				p.Messages = p.Messages[len(p.Messages)-2:]
				p.Settings.Temperature = &temperature
				p.ToolChoice = &agent.ToolChoice{Type: "required"}
			}
			return nil
		},
		OnStepEnd: func(_ workflow.Context, s *agent.StepResult) error {
			seen = append(seen, fmt.Sprint(s.Number, s.Model, len(s.ToolResults)))
			return nil
		},
		OnEnd: func(_ workflow.Context, r *agent.Result) error { seen = append(seen, r.Text); return nil },
	})
	models := script(wants([3]string{"a", "weather", `{"city":"Oslo"}`}), says("Rain."))
	limit := int64(7)
	r, _, err := answered(t, models, a, agent.Call{Prompt: "go", Model: "zero", Settings: &agent.Settings{MaxOutputTokens: &limit}})
	if err != nil {
		t.Fatal(err)
	}
	asked := models.asked()
	if c := asked[0]; c.Model != "zero" || len(c.Tools) != 2 || c.ToolChoice != nil || *c.MaxOutputTokens != 7 || c.Temperature != nil {
		t.Errorf("first it is asked %+v", c)
	}
	if c := asked[1]; c.Model != "two" || len(c.Tools) != 1 || c.ToolChoice.Type != "required" || *c.Temperature != 0.5 || *c.MaxOutputTokens != 7 || len(c.Prompt) != 3 || c.Prompt[0].Text() != "second" {
		t.Errorf("then it is asked %+v", c)
	}
	if len(r.Messages) != 4 {
		t.Errorf("the conversation is\n%s", transcript(r.Messages))
	}
	if got := strings.Join(seen[:3], " "); got != "0zero1 1two0 Rain." {
		t.Errorf("seen: %s", got)
	}
}

func TestAgent_Compact(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{
		Model: "m", Tools: []agent.Tool{weather}, CompactAbove: 14,
		Compact: func(_ workflow.Context, messages []agent.Message) ([]agent.Message, error) {
			return append([]agent.Message{agent.UserMessage(fmt.Sprintf("summary of %d", len(messages)))}, messages[len(messages)-2:]...), nil
		},
	})
	models := script(wants([3]string{"a", "weather", `{"city":"Oslo"}`}), says("Rain."))
	r, _, err := answered(t, models, a, agent.Call{Prompt: "short"})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "summary of 3"
assistant tool-call a weather {"city":"Oslo"}
tool tool-result a weather json {"city":"Oslo","rain":true}
assistant text "Rain."
`
	if got := transcript(r.Messages); got != want || r.NewMessages != 1 {
		t.Errorf("the conversation is\n%s%d are new", got, r.NewMessages)
	}
	long := script(says("Yes."))
	if _, _, err := answered(t, long, agent.New(agent.Config{Model: "m", CompactAbove: 14, Compact: func(workflow.Context, []agent.Message) ([]agent.Message, error) {
		return []agent.Message{agent.UserMessage("short")}, nil
	}}), agent.Call{Prompt: strings.Repeat("x", 60)}); err != nil {
		t.Fatal(err)
	}
	if got := transcript(long.asked()[0].Prompt); got != "user text \"short\"\n" {
		t.Errorf("before its first call it is told\n%s", got)
	}
}

// A call of a tool that the client runs ends the Call; the next Call has the tool's
// result.
func TestAgent_ClientTool(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{weather, agent.NewClientTool[struct{}]("locate", "Where the user is.")}})
	r, stream, err := answered(t, script(wants([3]string{"l", "locate", ""}, [3]string{"w", "weather", `{"city":"Oslo"}`})), a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Pending) != 1 || r.Pending[0].ID != "l" || r.FinishReason != agent.FinishToolCalls || len(r.Steps) != 1 {
		t.Errorf("the result is %+v", r)
	}
	if end := stream[len(stream)-1]; end.Type != agent.ChunkFinish || end.FinishReason != agent.FinishToolCalls {
		t.Errorf("the stream ends with %+v", end)
	}
	here := agent.Output{Type: agent.OutputJSON, JSON: json.RawMessage(`"Bergen"`)}
	models := script(says("In Bergen."))
	r, _, err = answered(t, models, a, agent.Call{Messages: append(r.Messages, agent.Message{Role: agent.FromTool, Parts: []agent.Part{{Type: agent.ToolResultPart, CallID: "l", ToolName: "locate", Output: &here}}})})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "go"
assistant tool-call l locate {}
assistant tool-call w weather {"city":"Oslo"}
tool tool-result w weather json {"city":"Oslo","rain":true}
tool tool-result l locate json "Bergen"
`
	if got := transcript(models.asked()[0].Prompt); got != want || len(models.asked()[0].Prompt) != 3 {
		t.Errorf("the model is told\n%s", got)
	}
	if r.NewMessages != 1 {
		t.Errorf("%d messages are new", r.NewMessages)
	}
}

// A call without an answer counts as a call that was not made.
func TestAgent_ClientTool_Abandoned(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{agent.NewClientTool[struct{}]("locate", "")}})
	r, _, err := answered(t, script(wants([3]string{"l", "locate", ""})), a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "go"
assistant tool-call l locate {}
tool tool-result l locate error-text This call was not made.
`
	for more, added := range map[string][]agent.Message{"": nil, "user text \"never mind\"\n": {agent.UserMessage("never mind")}} {
		models := script(says("Fine."))
		if _, _, err = answered(t, models, a, agent.Call{Messages: append(r.Messages[:2:2], added...)}); err != nil {
			t.Fatal(err)
		}
		if got := transcript(models.asked()[0].Prompt); got != want+more {
			t.Errorf("the model is told\n%s", got)
		}
	}
}

func TestAgent_AsTool(t *testing.T) {
	t.Parallel()
	expert := agent.New(agent.Config{Name: "expert", Model: "expert", Tools: []agent.Tool{weather}})
	type verdict struct{ Rain bool }
	judge := agent.New(agent.Config{Name: "judge", Model: "judge", Output: agent.OutputOf[verdict]()})
	broken := agent.New(agent.Config{Name: "broken", Model: "broken"})
	a := agent.New(agent.Config{Name: "boss", Model: "boss", Tools: []agent.Tool{
		expert.AsTool("ask_expert", "", agent.Quiet()), judge.AsTool("ask_judge", ""), broken.AsTool("ask_broken", ""),
	}})
	models := &model{answer: func(n int, c *agent.ModelCall) ([]agent.StreamPart, error) {
		last := c.Prompt[len(c.Prompt)-1]
		switch {
		case c.Model == "broken":
			return nil, cay.Errorf(cay.NotFound, "no such model")
		case c.Model == "judge":
			return says(`{"Rain":true}`), nil
		case c.Model == "expert" && last.Role == agent.User:
			return wants([3]string{"a", "weather", `{"city":"Oslo"}`}), nil
		case c.Model == "boss" && last.Role == agent.User:
			return wants([3]string{"x", "ask_expert", `{"prompt":"Oslo?"}`}, [3]string{"y", "ask_judge", `{"prompt":"Well?"}`}, [3]string{"z", "ask_broken", `{"prompt":"Hm?"}`}), nil
		}
		return says(c.Model + " says rain."), nil
	}}
	r, stream, err := answered(t, models, a, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	want := `user text "go"
assistant tool-call x ask_expert {"prompt":"Oslo?"}
assistant tool-call y ask_judge {"prompt":"Well?"}
assistant tool-call z ask_broken {"prompt":"Hm?"}
tool tool-result x ask_expert text expert says rain.
tool tool-result y ask_judge json {"Rain":true}
tool tool-result z ask_broken error-text no such model
assistant text "boss says rain."
`
	if got := transcript(r.Messages); got != want {
		t.Errorf("the conversation is\n%swant\n%s", got, want)
	}
	if r.Usage.Calls != 5 || r.Usage.Cost != 5000 {
		t.Errorf("used %+v", r.Usage)
	}
	for _, c := range stream {
		if c.Preliminary && c.ToolCallID != "y" || c.ToolName == "weather" {
			t.Errorf("the stream has what others said: %s", lines([]agent.Chunk{c}))
		}
	}
}

func TestAgent_Output(t *testing.T) {
	t.Parallel()
	a := agent.New(agent.Config{Model: "m", Output: agent.OutputOf[forecast]()})
	for name, c := range map[string]struct {
		answers []string
		want    string // the error; empty if there is none
		calls   int
	}{
		"fits":         {[]string{`{"city": "Oslo", "rain": true}`}, "", 1},
		"fenced":       {[]string{"```json\n{\"city\":\"Oslo\",\"rain\":true}\n```"}, "", 1},
		"mended":       {[]string{`{"city":"Oslo"}`, `{"city":"Oslo","rain":true}`}, "", 2},
		"never":        {[]string{"It rains.", `{"city":"Oslo","rain":"yes"}`}, "does not fit what was asked for", 2},
		"empty, twice": {[]string{" ", " "}, "it is empty", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var answers [][]agent.StreamPart
			for _, text := range c.answers {
				answers = append(answers, says(text))
			}
			models := script(answers...)
			r, _, err := answered(t, models, a, agent.Call{Prompt: "go"})
			if n := len(models.asked()); n != c.calls {
				t.Errorf("the model was asked %d times, want %d", n, c.calls)
			}
			if f := models.asked()[0].ResponseFormat; f == nil || f.Type != "json" || f.Name != "forecast" || !strings.Contains(string(f.Schema), `"rain"`) {
				t.Errorf("it was asked for %+v", f)
			}
			if c.want != "" {
				if !errors.Is(err, &cay.Error{Code: cay.Invalid}) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := agent.Decode[forecast](r); err != nil || got != (forecast{"Oslo", true}) {
				t.Errorf("the output is %+v, %v", got, err)
			}
			if _, err := agent.Decode[[]int](r); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
				t.Errorf("as something else: %v", err)
			}
		})
	}
	if _, err := agent.Decode[forecast](&agent.Result{}); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
		t.Errorf("of no output: %v", err)
	}
}

// Calls that fail temporarily are retried, and their text is voided by the rule of
// the stream; other failures fail the run at once.
func TestAgent_ModelErrors(t *testing.T) {
	t.Parallel()
	soon := func(err error) error { return workflow.Retryable(err, time.Millisecond) }
	cut := says("Half an answer that is")[:4]
	for name, c := range map[string]struct {
		failure error
		calls   int
		text    string // on the stream, if the run fails
	}{
		"passes":     {soon(cay.Errorf(cay.Unavailable, "overloaded")), 3, ""},
		"no budget":  {workflow.Fatal(cay.Errorf(cay.QuotaExceeded, "no money at 10.0.0.1")), 1, "The limit of what may be asked is reached."},
		"no model":   {cay.Errorf(cay.NotFound, "no such model"), 1, "The answer failed."},
		"bad":        {cay.Errorf(cay.Invalid, "bad"), 1, "The answer failed."},
		"no key":     {cay.Errorf(cay.Unauthenticated, "who?"), 1, "The answer failed."},
		"not yours":  {cay.Errorf(cay.PermissionDenied, "no"), 1, "This is not allowed."},
		"come later": {&cay.Error{Code: cay.QuotaExceeded, Message: "slow down", RetryAfter: time.Hour}, 1, "The limit of what may be asked is reached."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			models := &model{answer: func(n int, _ *agent.ModelCall) ([]agent.StreamPart, error) {
				if n < 2 {
					return cut, c.failure
				}
				return says("All is well."), nil
			}}
			r, stream, err := answered(t, models, agent.New(agent.Config{Model: "m"}), agent.Call{Prompt: "go"})
			if n := len(models.asked()); n != c.calls {
				t.Errorf("the model was asked %d times, want %d", n, c.calls)
			}
			if c.text != "" {
				if err == nil || cay.CodeOf(err) != cay.CodeOf(c.failure) {
					t.Errorf("the error is %v", err)
				}
				if end := stream[len(stream)-2]; end.Type != agent.ChunkError || end.ErrorText != c.text {
					t.Errorf("the stream ends with %+v", end)
				}
				return
			}
			if err != nil || r.Text != "All is well." {
				t.Fatalf("%+v, %v", r, err)
			}
			if n := strings.Count(lines(stream), "Half"); n != 1 {
				t.Errorf("what was begun is on the stream %d times: it is said twice, so once is enough", n)
			}
			whole, _, err := answered(t, script(says("All is well.")), agent.New(agent.Config{Model: "m"}), agent.Call{Prompt: "go"})
			if err != nil || transcript(whole.Messages) != transcript(r.Messages) {
				t.Errorf("the conversation is\n%s", transcript(r.Messages))
			}
			if got := lines(undisturbed(stream)); strings.Contains(got, "Half") || strings.Count(got, "start-step") != 1 {
				t.Errorf("without what was taken back the stream is\n%s", got)
			}
		})
	}
}

// Fields that clients require are on the stream, even if the model or the tool left
// them empty.
func TestAgent_NothingSaid(t *testing.T) {
	t.Parallel()
	silent := agent.NewWorkflowTool("silent", "", func(workflow.Context, struct{}) (string, error) { return "", errors.New("") })
	asked := 0
	models := &model{answer: func(n int, _ *agent.ModelCall) ([]agent.StreamPart, error) {
		if asked = n; n == 0 {
			return append([]agent.StreamPart{{Type: agent.StreamTextStart}, {Type: agent.StreamTextDelta, Delta: "x"}, {Type: agent.StreamTextEnd}}, wants([3]string{"", "silent", ""})...), nil
		}
		return nil, cay.Errorf(cay.Invalid, "secret words")
	}}
	a := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{silent}, ErrorText: func(error) string { return "" }})
	_, stream, err := answered(t, models, a, agent.Call{Prompt: "go"})
	if !errors.Is(err, &cay.Error{Code: cay.Invalid}) || asked != 1 {
		t.Errorf("the error is %v", err)
	}
	for _, c := range stream {
		raw, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		for kind, member := range map[agent.ChunkType]string{
			agent.ChunkTextStart: `"id":"0"`, agent.ChunkTextDelta: `"id":"0"`, agent.ChunkToolInputAvailable: `"toolCallId":"_0"`,
			agent.ChunkToolOutputError: `"errorText":"The tool failed."`, agent.ChunkError: `"errorText":"The answer failed."`,
		} {
			if c.Type == kind && !strings.Contains(string(raw), member) {
				t.Errorf("%s has no %s", raw, member)
			}
		}
	}
	if n := len(stream); n < 3 || stream[n-2].Type != agent.ChunkError {
		t.Errorf("the stream is\n%s", lines(stream))
	}
}

func TestAgent_Timeout(t *testing.T) {
	t.Parallel()
	slow := agent.NewWorkflowTool("slow", "", func(ctx workflow.Context, _ struct{}) (string, error) {
		return "done", workflow.Sleep(ctx, time.Hour)
	})
	a := agent.New(agent.Config{Name: "late", Model: "m", Tools: []agent.Tool{slow}, Timeout: 50 * time.Millisecond})
	_, stream, err := answered(t, script(wants([3]string{"a", "slow", ""})), a, agent.Call{Prompt: "go"})
	if !errors.Is(err, &cay.Error{Code: cay.DeadlineExceeded}) || !strings.Contains(err.Error(), "late took longer than its timeout of 50ms") {
		t.Errorf("the error is %v", err)
	}
	if end := stream[len(stream)-2]; end.Type != agent.ChunkError || end.ErrorText != "The answer took too long." {
		t.Errorf("the stream ends with %+v", end)
	}
}

// A run that is cancelled says so on its stream, and closes it.
func TestAgent_Cancelled(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"model", "tool", "hook"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			entered := make(chan struct{})
			models := &blocking{script(wants([3]string{"a", where, ""})), where == "model", entered}
			tool := agent.NewTool("tool", "", func(ctx context.Context, _ struct{}) (string, error) {
				close(entered)
				<-ctx.Done()
				return "", context.Cause(ctx)
			})
			hook := agent.NewTool("hook", "", func(context.Context, struct{}) (string, error) { return "", nil }, agent.NeedsApproval())
			d := agent.New(agent.Config{Model: "m", Tools: []agent.Tool{tool, hook}}).Workflow()
			k := kit(t, models, d)
			run, err := d.Start(t.Context(), k.Client, agent.Call{Prompt: "go"})
			if err != nil {
				t.Fatal(err)
			}
			if where == "hook" {
				k.WaitForHook(run.ID)
			} else {
				<-entered
			}
			if err := run.Cancel(t.Context(), workflow.CancelParams{}); err != nil {
				t.Fatal(err)
			}
			if _, err := run.Result(t.Context()); !errors.Is(err, workflow.ErrCancelled) {
				t.Errorf("the error is %v", err)
			}
			stream := chunks(t, k.Client, run.ID)
			if got := lines(stream[len(stream)-2:]); !strings.HasPrefix(got, `{"type":"abort","reason":"The answer was stopped."}`+"\n"+`{"type":"finish"`) {
				t.Errorf("the stream ends with\n%s", got)
			}
			if info, err := k.Client.Streams(t.Context(), run.ID); err != nil || len(info) != 1 || !info[0].Closed {
				t.Errorf("the stream is %+v, %v", info, err)
			}
		})
	}
}

// blocking does not answer until its step is cancelled.
type blocking struct {
	*model
	blocks  bool
	entered chan struct{}
}

func (b *blocking) Stream(ctx context.Context, c *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	if !b.blocks {
		return b.model.Stream(ctx, c, emit)
	}
	parts := says("I begin")
	for i := range parts[:3] {
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	close(b.entered)
	<-ctx.Done()
	return context.Cause(ctx)
}

// Several Calls write one answer, or several; the run's usage has all of them.
func TestAgent_Calls(t *testing.T) {
	t.Parallel()
	one := agent.New(agent.Config{Name: "one", Model: "m1"})
	two := agent.New(agent.Config{Name: "two", Model: "m2"})
	d := workflow.Define("both", func(ctx workflow.Context, how string) (string, error) {
		first := agent.Call{Prompt: "a", NoClose: true, NoFinish: how == "joined"}
		second := agent.Call{Prompt: "b", NoStart: how == "joined"}
		if how == "wrong" {
			first.NoClose = false
		}
		if how == "failing" {
			second.Model, second.NoClose = "none", true
		}
		if _, err := one.Stream(ctx, first); err != nil {
			return "", err
		}
		if _, err := one.Generate(ctx, agent.Call{Prompt: "quietly"}); err != nil {
			return "", err
		}
		r, err := two.Stream(ctx, second)
		if err != nil {
			return "", errors.Join(err, agent.Fail(ctx, err))
		}
		return r.Text, errors.Join(agent.Close(ctx), agent.Close(ctx))
	})
	models := func() *model {
		return &model{answer: func(_ int, c *agent.ModelCall) ([]agent.StreamPart, error) {
			if c.Model == "none" {
				return nil, cay.Errorf(cay.NotFound, "none")
			}
			return says(c.Model), nil
		}}
	}
	words := func(stream []agent.Chunk) (s []string) {
		for _, c := range stream {
			switch c.Type {
			case agent.ChunkStart, agent.ChunkFinish, agent.ChunkError, agent.ChunkAbort:
				s = append(s, string(c.Type))
			case agent.ChunkTextDelta:
				s = append(s, *c.Delta)
			}
		}
		return s
	}
	for how, want := range map[string]string{
		"separate": "[start m1 finish start m2 finish]",
		"joined":   "[start m1 m2 finish]",
		"wrong":    "[start m1 finish]",
		"failing":  "[start m1 finish start error finish]",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			m := models()
			k := kit(t, m, d)
			run, err := d.Start(t.Context(), k.Client, how)
			if err != nil {
				t.Fatal(err)
			}
			text, err := run.Result(t.Context())
			if got := fmt.Sprint(words(chunks(t, k.Client, run.ID))); got != want {
				t.Errorf("the stream has %s, want %s", got, want)
			}
			switch how {
			case "wrong":
				if !errors.Is(err, &cay.Error{Code: cay.Conflict}) || !strings.Contains(err.Error(), `the stream "ui" of the run is closed`) || len(m.asked()) != 2 {
					t.Errorf("the error is %v, after %d calls", err, len(m.asked()))
				}
			case "failing":
				if !errors.Is(err, &cay.Error{Code: cay.NotFound}) {
					t.Errorf("the error is %v", err)
				}
			default:
				if err != nil || text != "m2" {
					t.Errorf("%q, %v", text, err)
				}
				info, err := run.Info(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				got := fmt.Sprint(info.Attributes[agent.AttributeAgent], info.Attributes[agent.AttributeModel], info.Attributes[agent.AttributeTokens], " ", info.Attributes[agent.AttributeCost])
				if got != "twom245 0.000000003" {
					t.Errorf("the run's attributes are %q", got)
				}
			}
		})
	}
}

// Invalid configurations of an agent panic when the program starts.
func TestNew_Panics(t *testing.T) {
	t.Parallel()
	type none struct{}
	for name, f := range map[string]func(){
		"two of one name": func() { agent.New(agent.Config{Tools: []agent.Tool{weather, weather}}) },
		"no secret": func() {
			agent.New(agent.Config{Approvals: agent.Approvals{Mode: agent.ApproveByMessage}, Tools: []agent.Tool{agent.NewClientTool[none]("x", "", agent.NeedsApproval())}})
		},
		"bad name":       func() { agent.NewClientTool[none]("a b", "") },
		"no struct":      func() { agent.NewClientTool[string]("a", "") },
		"no schema":      func() { agent.NewClientTool[struct{ F func() }]("a", "") },
		"other approval": func() { agent.NewClientTool[none]("a", "", agent.NeedsApprovalIf(func(city) bool { return true })) },
		"other output": func() {
			agent.NewTool("a", "", func(context.Context, none) (int, error) { return 0, nil }, agent.OutputAs(func(string) agent.Output { return agent.Output{} }))
		},
		"other arguments":  func() { agent.NewProviderTool("a.b", "a", 3) },
		"name of provider": func() { agent.NewProviderTool("a.b", "a.b", nil) },
		"output":           func() { agent.OutputOf[chan int]() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("it does not panic")
				}
			}()
			f()
		})
	}
}
