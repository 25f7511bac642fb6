package agent_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/agent"
	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

var approvers = []byte(strings.Repeat("k", 32))

// treasurer pays when a signed approval allows it, twice for each prompt: its model calls
// the tool with the same id each time.
func treasurer(paid *atomic.Int64, approvals agent.Approvals) *workflow.Definition[string, []string] {
	a := agent.New(agent.Config{Name: "treasurer", Model: "m", Tools: []agent.Tool{pay(paid)}, Approvals: approvals})
	return workflow.Define("treasurer", func(ctx workflow.Context, prompt string) ([]string, error) {
		var told []string
		for range 2 {
			r, err := a.Generate(ctx, agent.Call{Prompt: prompt})
			if err != nil {
				return nil, err
			}
			for _, res := range r.Steps[0].ToolResults {
				told = append(told, fmt.Sprintf("%s %s", res.Output.Type, res.Output.Text))
			}
		}
		return told, nil
	})
}

func treasurerModel() *model {
	return &model{answer: func(_ int, c *agent.ModelCall) ([]agent.StreamPart, error) {
		if c.Prompt[len(c.Prompt)-1].Role == agent.FromTool {
			return says("Done."), nil
		}
		return wants([3]string{"a", "pay", `{"to":"bob","amount":50}`}, [3]string{"b", "pay", `{"to":"eve","amount":90}`}), nil
	}}
}

// questions waits until a run asks two questions that are not among those before.
func questions(t *testing.T, k *workflowtest.Kit, run string, before map[string]agent.ApprovalQuestion) map[string]agent.ApprovalQuestion {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		all, err := agent.Questions(t.Context(), k.Client, run)
		if err != nil {
			t.Fatal(err)
		}
		by := make(map[string]agent.ApprovalQuestion)
		for _, q := range all {
			if q.Token != before[q.CallID].Token {
				by[q.CallID] = q
			}
		}
		if len(by) == 2 {
			return by
		}
	}
	t.Fatal("the run does not ask")
	return nil
}

func signed(t *testing.T, q agent.ApprovalQuestion, a agent.Approval) agent.Approval {
	t.Helper()
	s, err := q.Sign(approvers, a)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// With RequireSignature an answer is accepted only at the hook, and for the call, that it
// was signed for. Other answers leave the question open.
func TestApproval_Signed(t *testing.T) {
	t.Setenv(secretEnv, string(approvers))
	yes := agent.Approval{Approved: true, By: "ann"}
	for name, forge := range map[string]func(q, other, elsewhere agent.ApprovalQuestion) agent.Approval{
		"not signed": func(_, _, _ agent.ApprovalQuestion) agent.Approval { return yes },
		"of another run": func(_, _, elsewhere agent.ApprovalQuestion) agent.Approval {
			return signed(t, elsewhere, yes)
		},
		"of another run, in the name of this one": func(q, _, elsewhere agent.ApprovalQuestion) agent.Approval {
			elsewhere.Run = q.Run
			return signed(t, elsewhere, yes)
		},
		"of another call": func(_, other, _ agent.ApprovalQuestion) agent.Approval { return signed(t, other, yes) },
		"of another tool": func(q, _, _ agent.ApprovalQuestion) agent.Approval { q.Tool = "look"; return signed(t, q, yes) },
		"of other arguments": func(q, _, _ agent.ApprovalQuestion) agent.Approval {
			q.Input = []byte(`{"to":"bob","amount":5}`)
			return signed(t, q, yes)
		},
		"of another hook": func(q, _, _ agent.ApprovalQuestion) agent.Approval {
			q.Token += "x"
			return signed(t, q, yes)
		},
		"a denial turned": func(q, _, _ agent.ApprovalQuestion) agent.Approval {
			a := signed(t, q, agent.Approval{By: "ann"})
			a.Approved = true
			return a
		},
		"of somebody else": func(q, _, _ agent.ApprovalQuestion) agent.Approval {
			a := signed(t, q, yes)
			a.By = "eve"
			return a
		},
		"with another secret": func(q, _, _ agent.ApprovalQuestion) agent.Approval {
			a, err := q.Sign([]byte(strings.Repeat("x", 32)), yes)
			if err != nil {
				t.Fatal(err)
			}
			return a
		},
		"made up": func(_, _, _ agent.ApprovalQuestion) agent.Approval {
			return agent.Approval{Approved: true, Signature: "h1.AAAA"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var paid atomic.Int64
			d := treasurer(&paid, agent.Approvals{SecretEnv: secretEnv, RequireSignature: true})
			k := kit(t, treasurerModel(), d)
			var runs [2]*workflow.Run[[]string]
			var asked [2]map[string]agent.ApprovalQuestion
			for i := range runs {
				var err error
				if runs[i], err = d.Start(t.Context(), k.Client, "go"); err != nil {
					t.Fatal(err)
				}
				asked[i] = questions(t, k, runs[i].ID, nil)
			}
			q, other := asked[0]["a"], asked[0]["b"]
			if !q.Signed || q.Run != runs[0].ID {
				t.Errorf("the question is %+v", q)
			}
			answer := func(q agent.ApprovalQuestion, a agent.Approval) {
				t.Helper()
				if err := agent.Approve(t.Context(), k.Client, q.Token, a); err != nil {
					t.Fatal(err)
				}
			}
			answer(q, forge(q, other, asked[1]["a"]))
			answer(q, signed(t, q, agent.Approval{Reason: "no", By: "ann"})) // had the other counted, this came too late
			used := signed(t, other, yes)
			answer(other, used)
			// The same calls again, in the same run: earlier signatures are not valid for
			// them.
			again := questions(t, k, runs[0].ID, asked[0])
			answer(again["b"], used)
			answer(again["b"], signed(t, again["b"], agent.Approval{Reason: "not twice"}))
			answer(again["a"], signed(t, again["a"], yes))
			told, err := runs[0].Result(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want := "[execution-denied no text paid 90 to eve text paid 50 to bob execution-denied not twice]"
			if got := fmt.Sprint(told); got != want || paid.Load() != 2 {
				t.Errorf("the model is told %s, want %s; paid %d times", got, want, paid.Load())
			}
			if err := agent.Approve(t.Context(), k.Client, other.Token, used); !errors.Is(err, &cay.Error{Code: cay.NotFound}) && !errors.Is(err, &cay.Error{Code: cay.Conflict}) {
				t.Errorf("a hook that has been answered: %v", err)
			}
		})
	}
}

// Without RequireSignature everyone who may resume hooks may answer, but a wrong
// signature is refused.
func TestApproval_SignedIfWanted(t *testing.T) {
	t.Setenv(secretEnv, string(approvers))
	var paid atomic.Int64
	d := treasurer(&paid, agent.Approvals{SecretEnv: secretEnv})
	k := kit(t, treasurerModel(), d)
	run, err := d.Start(t.Context(), k.Client, "go")
	if err != nil {
		t.Fatal(err)
	}
	var asked map[string]agent.ApprovalQuestion
	for range 2 {
		asked = questions(t, k, run.ID, asked)
		wrong := signed(t, asked["a"], agent.Approval{Approved: true})
		for _, answer := range []struct {
			q agent.ApprovalQuestion
			a agent.Approval
		}{
			{asked["b"], wrong}, {asked["b"], agent.Approval{Reason: "no"}}, {asked["a"], agent.Approval{Approved: true}},
		} {
			if answer.q.Signed {
				t.Errorf("the question is %+v", answer.q)
			}
			if err := agent.Approve(t.Context(), k.Client, answer.q.Token, answer.a); err != nil {
				t.Fatal(err)
			}
		}
	}
	told, err := run.Result(t.Context())
	if want := "[text paid 50 to bob execution-denied no text paid 50 to bob execution-denied no]"; err != nil || fmt.Sprint(told) != want || paid.Load() != 2 {
		t.Errorf("the model is told %s, %v; paid %d times", told, err, paid.Load())
	}
}

// A missing secret is found when the question is asked, not when it is answered.
func TestApproval_NoSecret(t *testing.T) {
	t.Setenv(secretEnv, "short")
	var paid atomic.Int64
	d := treasurer(&paid, agent.Approvals{SecretEnv: secretEnv, RequireSignature: true})
	k := kit(t, treasurerModel(), d)
	run, err := d.Start(t.Context(), k.Client, "go")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := run.Result(t.Context()); !errors.Is(err, &cay.Error{Code: cay.Invalid}) || !strings.Contains(err.Error(), secretEnv+", which approvals are signed with, has 5 bytes") || paid.Load() != 0 {
		t.Errorf("the error is %v, paid %d times", err, paid.Load())
	}
	q := agent.ApprovalQuestion{Run: "r", Token: "t", CallID: "c", Input: []byte(`{}`)}
	if _, err := q.Sign([]byte("short"), agent.Approval{}); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
		t.Errorf("signed with a short secret: %v", err)
	}
	q.Token = ""
	if _, err := q.Sign(approvers, agent.Approval{}); !errors.Is(err, &cay.Error{Code: cay.Invalid}) {
		t.Errorf("signed without a hook: %v", err)
	}
}
