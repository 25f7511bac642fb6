package trace_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/agent/trace"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// secret is in all texts of the conversation, and must be in no span.
const secret = "xyzzy"

// models answer by the model's name, and how often a tool was called before.
type models struct{}

func (models) Stream(ctx context.Context, c *agent.ModelCall, emit func(*agent.StreamPart) error) error {
	turn := 0
	for _, m := range c.Prompt {
		if m.Role == agent.FromTool {
			turn++
		}
	}
	if !oteltrace.SpanContextFromContext(ctx).IsValid() {
		return errors.New("there is no span")
	}
	calls := map[string][]string{"boss0": {"ask", "look", "fail", "wait"}, "expert0": {"look"}}[fmt.Sprint(c.Model, turn)]
	parts := []agent.StreamPart{{Type: agent.StreamTextStart, ID: "0"}, {Type: agent.StreamTextDelta, ID: "0", Delta: secret}, {Type: agent.StreamTextEnd, ID: "0"}}
	for _, name := range calls {
		input := fmt.Sprintf(`{"What":%q}`, secret)
		if name == "ask" {
			input = fmt.Sprintf(`{"prompt":%q}`, secret)
		}
		parts = append(parts, agent.StreamPart{Type: agent.StreamToolCall, ID: "call_" + name, ToolName: name, Input: input})
	}
	parts = append(parts, agent.StreamPart{Type: agent.StreamFinish, Reason: agent.FinishStop, GenerationID: "gen_" + c.Model, Usage: agent.Usage{Calls: 1, Input: 3, Output: 2}})
	for i := range parts {
		if err := emit(&parts[i]); err != nil {
			return err
		}
	}
	return nil
}

type in struct{ What string }

func TestObserver(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithIDGenerator(trace.IDs()))
	look := agent.NewTool("look", "", func(ctx context.Context, _ in) (string, error) { return secret, nil })
	fail := agent.NewTool("fail", "", func(context.Context, in) (string, error) { return "", workflow.Fatal(errors.New("no")) })
	wait := agent.NewWorkflowTool("wait", "", func(workflow.Context, in) (string, error) { return secret, nil })
	expert := agent.New(agent.Config{Name: "expert", Model: "expert", Tools: []agent.Tool{look}})
	boss := agent.New(agent.Config{Name: "boss", Model: "boss", Instructions: secret, Tools: []agent.Tool{expert.AsTool("ask", ""), look, fail, wait}}).Workflow()
	k := workflowtest.New(t, workflowtest.Options{
		Worker:  func(c *workflow.WorkerConfig) { c.Observer = trace.New(provider); c.VerifyReplay = true },
		Context: func(ctx context.Context) context.Context { return agent.WithModels(ctx, models{}) },
	}, boss)
	run, err := boss.Start(t.Context(), k.Client, agent.Call{Prompt: secret})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Result(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.Close()

	named := make(map[oteltrace.SpanID]string)
	count := make(map[string]int)
	for _, s := range spans.Ended() {
		named[s.SpanContext().SpanID()] = s.Name()
	}
	for _, s := range spans.Ended() {
		above := named[s.Parent().SpanID()]
		count[above+" > "+s.Name()]++
		if strings.Contains(fmt.Sprint(s.Name(), s.Attributes(), s.Events(), s.Status()), secret) {
			t.Errorf("the span %s has what was said: %v %v", s.Name(), s.Attributes(), s.Events())
		}
		if s.EndTime().Before(s.StartTime()) {
			t.Errorf("%s is over before it begins", s.Name())
		}
		op, _, _ := strings.Cut(s.Name(), " ")
		switch op {
		case "chat", "execute_tool", "invoke_agent":
			if value(s, "gen_ai.operation.name").AsString() != op {
				t.Errorf("%s is %v", s.Name(), s.Attributes())
			}
		}
		if linked := len(s.Links()) == 1; linked != (op == "chat" || op == "execute_tool" && !strings.HasSuffix(s.Name(), "ask") && !strings.HasSuffix(s.Name(), "wait")) {
			t.Errorf("%s has the links %v", s.Name(), s.Links())
		}
		switch s.Name() {
		case "invoke_agent boss":
			if value(s, "gen_ai.usage.input_tokens").AsInt64() != 12 || value(s, "cay.model.calls").AsInt64() != 4 || value(s, "gen_ai.conversation.id").AsString() != run.ID {
				t.Errorf("%s has %v", s.Name(), s.Attributes())
			}
		case "chat expert":
			if value(s, "gen_ai.usage.output_tokens").AsInt64() != 2 || value(s, "cay.generation.id").AsString() != "gen_expert" || value(s, "gen_ai.agent.name").AsString() != "expert" {
				t.Errorf("%s has %v", s.Name(), s.Attributes())
			}
		case "execute_tool fail":
			if s.Status().Code != codes.Error || value(s, "error.type").AsString() != "internal" {
				t.Errorf("%s has %v, %v", s.Name(), s.Status(), s.Attributes())
			}
		}
	}
	for want, n := range map[string]int{
		"boss > invoke_agent boss": 1, "invoke_agent boss > chat boss": 2, "invoke_agent boss > execute_tool look": 1, "invoke_agent boss > execute_tool fail": 1,
		"invoke_agent boss > execute_tool wait": 1, "invoke_agent boss > execute_tool ask": 1, "execute_tool ask > invoke_agent expert": 1,
		"invoke_agent expert > chat expert": 2, "invoke_agent expert > execute_tool look": 1,
	} {
		if count[want] != n {
			t.Errorf("%q is there %d times, want %d: %v", want, count[want], n, count)
		}
	}
}

func value(s sdktrace.ReadOnlySpan, key attribute.Key) attribute.Value {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value
		}
	}
	return attribute.Value{}
}
