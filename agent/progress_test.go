package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// uiMessage is a preliminary output as a page has it.
type uiMessage struct {
	ID    string `json:"id"`
	Role  string `json:"role"`
	Parts []struct {
		Type, Text, State    string
		ToolName, ToolCallID string
		Input, Output        json.RawMessage
		ErrorText            string
		Preliminary          bool
	} `json:"parts"`
}

// shownOf shows a preliminary output in a line.
func shownOf(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var m uiMessage
	if err := json.Unmarshal(raw, &m); err != nil || m.Role != "assistant" || m.ID == "" {
		t.Fatalf("the output so far is %s, %v", raw, err)
	}
	var b strings.Builder
	for _, p := range m.Parts {
		switch {
		case p.Type == "step-start":
			b.WriteString("| ")
		case p.Type == "dynamic-tool" && p.Preliminary:
			fmt.Fprintf(&b, "%s(%s) { %s} ", p.ToolName, p.Input, shownOf(t, p.Output))
		case p.Type == "dynamic-tool":
			fmt.Fprintf(&b, "%s(%s) %s %s%s ", p.ToolName, p.Input, p.State, p.Output, p.ErrorText)
		default:
			fmt.Fprintf(&b, "%s %q %s ", p.Type, p.Text, p.State)
		}
	}
	return b.String()
}

// While an agent runs as a tool, its caller's stream has its texts and calls so far, and
// the progress of the agents that it calls.
func TestAgent_AsTool_Progress(t *testing.T) {
	t.Parallel()
	scout := agent.New(agent.Config{Name: "scout", Model: "scout"})
	expert := agent.New(agent.Config{Name: "expert", Model: "expert", Tools: []agent.Tool{weather, scout.AsTool("ask_scout", "")}})
	boss := agent.New(agent.Config{Name: "boss", Model: "boss", Tools: []agent.Tool{expert.AsTool("ask_expert", "")}})
	models := &model{answer: func(_ int, c *agent.ModelCall) ([]agent.StreamPart, error) {
		turn := strings.Count(transcript(c.Prompt), "tool-call")
		switch fmt.Sprint(c.Model, turn) {
		case "boss0":
			return wants([3]string{"x", "ask_expert", `{"prompt":"Oslo?"}`}), nil
		case "expert0":
			return wants([3]string{"w", "weather", `{"city":"Oslo"}`}, [3]string{"n", "weather", `{"city":"Atlantis"}`}, [3]string{"s", "ask_scout", `{"prompt":"Go."}`}), nil
		}
		return says(c.Model + " is done."), nil
	}}
	for name, quiet := range map[string]bool{"seen": false, "off the stream": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := workflow.Define("work", func(ctx workflow.Context, _ int) (*agent.Result, error) {
				if quiet {
					return boss.Generate(ctx, agent.Call{Prompt: "go"})
				}
				return boss.Stream(ctx, agent.Call{Prompt: "go"})
			})
			k := kit(t, models, d)
			run, err := d.Start(t.Context(), k.Client, 0)
			if err != nil {
				t.Fatal(err)
			}
			r, err := run.Result(t.Context())
			if err != nil || r.Usage.Calls != 5 {
				t.Fatalf("%+v, %v", r, err)
			}
			var seen []string
			final := false
			for _, c := range chunks(t, k.Client, run.ID) {
				switch {
				case c.Preliminary:
					if c.ToolCallID != "x" || final {
						t.Errorf("there is a preliminary output of %s", c.ToolCallID)
					}
					seen = append(seen, shownOf(t, c.Output))
				case c.ToolCallID == "x" && c.Type == agent.ChunkToolOutput:
					final = true
					if string(c.Output) != `"expert is done."` {
						t.Errorf("the output is %s", c.Output)
					}
				}
			}
			if quiet {
				if len(seen) > 0 || final {
					t.Errorf("the stream has %q", seen)
				}
				return
			}
			all := strings.Join(seen, "\n")
			last := `| weather({"city":"Oslo"}) output-available {"city":"Oslo","rain":true} weather({"city":"Atlantis"}) output-error there is no such city ask_scout({"prompt":"Go."}) output-available "scout is done." | text "expert is done." done `
			if len(seen) == 0 || seen[len(seen)-1] != last {
				t.Errorf("people see\n%s\nand not in the end\n%s", all, last)
			}
			for _, want := range []string{
				`ask_scout({"prompt":"Go."}) input-available `,
				`ask_scout({"prompt":"Go."}) { | text "scout is done." done } `,
			} {
				if !strings.Contains(all, want) {
					t.Errorf("people see\n%s\nwithout %s", all, want)
				}
			}
		})
	}
}

// However much an agent writes, its progress is bounded, and has the newest text.
func TestAgent_AsTool_Bounded(t *testing.T) {
	t.Parallel()
	const turns = 12
	note := agent.NewTool("note", "", func(_ context.Context, in struct{ Text string }) (string, error) { return in.Text, nil })
	talker := agent.New(agent.Config{Name: "talker", Model: "talker", MaxSteps: -1, Tools: []agent.Tool{note}})
	boss := agent.New(agent.Config{Name: "boss", Model: "boss", Tools: []agent.Tool{talker.AsTool("talk", "")}})
	long := strings.Repeat("é", 10_000)
	models := &model{answer: func(_ int, c *agent.ModelCall) ([]agent.StreamPart, error) {
		turn := strings.Count(transcript(c.Prompt), "tool-call")
		switch {
		case c.Model == "boss" && turn == 0:
			return wants([3]string{"x", "talk", `{"prompt":"Talk."}`}), nil
		case c.Model == "talker" && turn < turns:
			parts := says(fmt.Sprint(long, " turn ", turn))
			return append(parts[:len(parts)-1], wants([3]string{"n", "note", `{"Text":"` + long + `"}`})[1:]...), nil
		}
		return says("Done."), nil
	}}
	_, stream, err := answered(t, models, boss, agent.Call{Prompt: "go"})
	if err != nil {
		t.Fatal(err)
	}
	n, last := 0, ""
	for _, c := range stream {
		if c.Preliminary {
			if n, last = n+1, shownOf(t, c.Output); len(c.Output) > 34<<10 {
				t.Errorf("an output so far has %d bytes", len(c.Output))
			}
		}
	}
	if n < turns || !strings.HasSuffix(last, `| text "Done." done `) || !strings.Contains(last, fmt.Sprint("turn ", turns-1)) || strings.Contains(last, "turn 0") || !strings.Contains(last, `"20011 bytes"`) {
		t.Errorf("after %d there is %s", n, last)
	}
}

func TestProgress_Budget(t *testing.T) {
	t.Parallel()
	parts, bytes := agent.TellProgress(t, 1000, strings.Repeat("x", 100_000))
	if parts < 100 || bytes > 1<<20+2*(34<<10) {
		t.Errorf("%d outputs have %d bytes", parts, bytes)
	}
}
