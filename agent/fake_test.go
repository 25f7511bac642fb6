package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// model answers the nth call of a model with its nth answer, and repeats the last answer
// for ever.
type model struct {
	// answer makes the parts of the answer to a call, which is the nth from 0. An error
	// comes after them.
	answer func(n int, c *agent.ModelCall) ([]agent.StreamPart, error)

	mu    sync.Mutex
	calls []*agent.ModelCall
}

func (f *model) Stream(ctx context.Context, c *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	f.mu.Lock()
	n := len(f.calls)
	f.calls = append(f.calls, c)
	f.mu.Unlock()
	parts, err := f.answer(n, c)
	for i := range parts {
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	return err
}

// asked are the calls so far.
func (f *model) asked() []*agent.ModelCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*agent.ModelCall(nil), f.calls...)
}

// script answers call by call.
func script(answers ...[]agent.StreamPart) *model {
	return &model{answer: func(n int, _ *agent.ModelCall) ([]agent.StreamPart, error) {
		return answers[min(n, len(answers)-1)], nil
	}}
}

var used = agent.Usage{Calls: 1, Input: 10, Output: 5, Cost: 1000, CostKnown: true}

// says returns an answer with a text, each word a part of its own.
func says(text string) []agent.StreamPart {
	parts := []agent.StreamPart{{Type: agent.StreamStart}, {Type: agent.StreamTextStart, ID: "0"}}
	for _, word := range strings.SplitAfter(text, " ") {
		parts = append(parts, agent.StreamPart{Type: agent.StreamTextDelta, ID: "0", Delta: word})
	}
	return append(parts, agent.StreamPart{Type: agent.StreamTextEnd, ID: "0"},
		agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishStop, Usage: used})
}

// wants is an answer that calls tools: id, name and input of each.
func wants(calls ...[3]string) []agent.StreamPart {
	parts := []agent.StreamPart{{Type: agent.StreamStart}}
	for _, c := range calls {
		parts = append(parts,
			agent.StreamPart{Type: agent.StreamToolInputStart, ID: c[0], ToolName: c[1]},
			agent.StreamPart{Type: agent.StreamToolInputDelta, ID: c[0], Delta: c[2]},
			agent.StreamPart{Type: agent.StreamToolInputEnd, ID: c[0]},
			agent.StreamPart{Type: agent.StreamToolCall, ID: c[0], ToolName: c[1], Input: c[2]})
	}
	return append(parts, agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishToolCalls, Usage: used})
}

// kit runs workflows with models.
func kit(t *testing.T, m agent.Models, definitions ...workflow.Workflow) *workflowtest.Kit {
	t.Helper()
	return workflowtest.New(t, workflowtest.Options{
		Context: func(ctx context.Context) context.Context { return agent.WithModels(ctx, m) },
	}, definitions...)
}

// answered runs an agent and returns its result.
func answered(t *testing.T, m agent.Models, a *agent.Agent, call agent.Call) (*agent.Result, []agent.Chunk, error) {
	t.Helper()
	d := a.Workflow()
	k := kit(t, m, d)
	run, err := d.Start(t.Context(), k.Client, call)
	if err != nil {
		t.Fatal(err)
	}
	r, err := run.Result(t.Context())
	return r, chunks(t, k.Client, run.ID), err
}

// chunks reads the stream of a run to its end.
func chunks(t *testing.T, c *workflow.Client, run string) (all []agent.Chunk) {
	t.Helper()
	for item, err := range workflow.ReadStream[agent.Chunk](t.Context(), c, run, agent.StreamName, 0) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, item.Value)
	}
	return all
}

// undisturbed leaves out the chunks of failed attempts, by the rule of agent.StreamName,
// and the ids of steps.
func undisturbed(all []agent.Chunk) []agent.Chunk {
	var out []agent.Chunk
	begun := make(map[string]int)
	for _, c := range all {
		if c.Type == agent.ChunkStartStep && c.Step != "" {
			if at, ok := begun[c.Step]; ok {
				out = out[:at]
			}
			begun[c.Step] = len(out)
			c.Step = ""
		}
		out = append(out, c)
	}
	return out
}

// lines shows chunks, one a line.
func lines(all []agent.Chunk) string {
	var b strings.Builder
	for _, c := range all {
		c.Step = ""
		if c.Type == agent.ChunkStart {
			c.MessageID = ""
		}
		raw, err := json.Marshal(c)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintf(&b, "%s\n", raw)
	}
	return b.String()
}

// transcript shows a conversation, one part a line.
func transcript(messages []agent.Message) string {
	var b strings.Builder
	for _, m := range messages {
		for _, p := range m.Parts {
			fmt.Fprintf(&b, "%s %s", m.Role, p.Type)
			switch p.Type {
			case agent.Text, agent.Reasoning:
				fmt.Fprintf(&b, " %q", p.Text)
			case agent.ToolCallPart:
				fmt.Fprintf(&b, " %s %s %s", p.CallID, p.ToolName, p.Input)
			case agent.ToolResultPart:
				fmt.Fprintf(&b, " %s %s %s %s%s", p.CallID, p.ToolName, p.Output.Type, p.Output.Text, p.Output.JSON)
			case agent.ApprovalRequest, agent.ApprovalResponse:
				fmt.Fprintf(&b, " %s", p.ApprovalID)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
