package agent_test

import (
	"flag"
	"testing"

	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow/workflowtest"
)

var makeStored = flag.Bool("make-stored", false, "write testdata/assistant.json, which is done once: runs of it are to go on for ever")

// A run of the first release continues in all later releases: the steps of
// agents keep their names and their order.
func TestStored(t *testing.T) {
	t.Parallel()
	judge := agent.New(agent.Config{Name: "judge", Model: "judge", Output: agent.OutputOf[forecast]()})
	d := agent.New(agent.Config{
		Name: "assistant", Model: "m", Tools: []agent.Tool{
			weather, judge.AsTool("judge", ""),
			agent.NewTool("remove", "", weatherOf, agent.NeedsApproval()),
		},
	}).Workflow()
	const file = "testdata/assistant.json"
	if *makeStored {
		models := &model{answer: func(n int, c *agent.ModelCall) ([]agent.StreamPart, error) {
			switch {
			case c.Model == "judge" && n%2 == 0:
				return says("Hm."), nil
			case c.Model == "judge":
				return says(`{"city":"Oslo","rain":true}`), nil
			case n == 0:
				return wants([3]string{"a", "weather", `{"city":"Oslo"}`}, [3]string{"b", "judge", `{"prompt":"Well?"}`}, [3]string{"c", "remove", `{"city":"Rome"}`},
					[3]string{"d", "moon", `{}`}, [3]string{"e", "weather", `{"city":"Atlantis"}`}), nil
			}
			return says("All is well."), nil
		}}
		k := kit(t, models, d)
		run, err := d.Start(t.Context(), k.Client, agent.Call{Prompt: "go", MessageID: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Approve(t.Context(), k.Client, k.WaitForHook(run.ID).Token, agent.Approval{Approved: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := run.Result(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.SaveHistory(run.ID, file)
	}
	workflowtest.Replay(t, file, d)
}
