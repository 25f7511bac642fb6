package agent_test

import (
	"errors"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
)

// The usage of a run is the sum of all calls of models: by concurrent agents, by
// agents called as tools, and by agents that fail after a while.
func TestAgent_Totals(t *testing.T) {
	t.Parallel()
	models := &model{answer: func(_ int, c *agent.ModelCall) ([]agent.StreamPart, error) {
		said := c.Prompt[len(c.Prompt)-1].Role == agent.FromTool
		switch {
		case c.Model == "boss" && !said:
			return wants([3]string{"x", "ask", `{"prompt":"Go."}`}, [3]string{"y", "break", `{"prompt":"Go."}`}), nil
		case c.Model == "broken" && !said:
			return wants([3]string{"w", "weather", `{"city":"Oslo"}`}), nil
		case c.Model == "broken":
			return nil, cay.Errorf(cay.NotFound, "no such model")
		}
		return says("Done."), nil
	}}
	broken := agent.New(agent.Config{Name: "broken", Model: "broken", Tools: []agent.Tool{weather}})
	expert := agent.New(agent.Config{Name: "expert", Model: "expert"})
	boss := agent.New(agent.Config{Name: "boss", Model: "boss", Tools: []agent.Tool{expert.AsTool("ask", ""), broken.AsTool("break", "")}})
	d := workflow.Define("beside", func(ctx workflow.Context, _ int) (int64, error) {
		call := func(a *agent.Agent) *workflow.Future[*agent.Result] {
			return workflow.Go(ctx, func(ctx workflow.Context) (*agent.Result, error) {
				return a.Generate(ctx, agent.Call{Prompt: "go"})
			})
		}
		first, second, failing := call(boss), call(boss), call(broken)
		if _, err := failing.Get(ctx); !errors.Is(err, &cay.Error{Code: cay.NotFound}) {
			return 0, err
		}
		var calls int64
		for _, f := range []*workflow.Future[*agent.Result]{first, second} {
			r, err := f.Get(ctx)
			if err != nil {
				return 0, err
			}
			calls += r.Usage.Calls
		}
		return calls, nil
	})
	k := kit(t, models, d)
	run, err := d.Start(t.Context(), k.Client, 0)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := run.Result(t.Context())
	if err != nil || calls != 8 { // of each boss two, and one each of its tools
		t.Fatalf("the results know of %d calls, %v", calls, err)
	}
	info, err := run.Info(t.Context())
	if err != nil || info.Attributes[agent.AttributeTokens] != "135" || info.Attributes[agent.AttributeCost] != "0.000000009" {
		t.Errorf("the run has used %v, %v", info.Attributes, err)
	}
}
