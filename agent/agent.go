package agent

import (
	"fmt"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/workflow"
)

// Agent is a model with instructions and tools. Any number of runs can use an Agent at
// the same time.
type Agent struct {
	config Config
	tools  map[string]*Tool // of config.Tools
}

// New makes an agent. It panics if two tools have the same name, or if SecretEnv is
// empty although approvals must be signed: with RequireSignature, or if a tool needs an
// approval ApproveByMessage.
func New(c Config) *Agent {
	if c.Name == "" {
		c.Name = "agent"
	}
	if c.Approvals.Mode == "" {
		c.Approvals.Mode = ApproveByHook
	}
	if c.Approvals.RequireSignature && c.Approvals.SecretEnv == "" {
		panic(fmt.Sprintf("agent: approvals of %s are to be signed: Approvals has no SecretEnv", c.Name))
	}
	a := &Agent{config: c, tools: make(map[string]*Tool, len(c.Tools))}
	for i := range c.Tools {
		t := &c.Tools[i]
		if a.tools[t.spec.Name] != nil {
			panic(fmt.Sprintf("agent: %s has two tools of the name %s", c.Name, t.spec.Name))
		}
		if t.asks != nil && c.Approvals.Mode == ApproveByMessage && c.Approvals.SecretEnv == "" {
			panic(fmt.Sprintf("agent: the tool %s of %s is approved by messages, which are to be signed: Approvals has no SecretEnv", t.spec.Name, c.Name))
		}
		a.tools[t.spec.Name] = t
	}
	return a
}

// Name is Config.Name.
func (a *Agent) Name() string { return a.config.Name }

// The attributes of runs of agents, for finding the runs in lists.
const (
	AttributeAgent  = "$agent"        // Config.Name of the last that was called
	AttributeModel  = "$agent.model"  // what it asks
	AttributeTokens = "$agent.tokens" // input and output of all that were called
	AttributeCost   = "$agent.cost"   // dollars, as a decimal number; absent if a price is not known
)

// The names of an agent's steps in the run's log. A tool's step is named StepTool
// followed by the tool's name.
const (
	StepStart  = "agent.start"  // writes the chunk start
	StepModel  = "agent.model"  // asks the model, and writes what it says; its result is the answer
	StepInput  = "agent.input"  // writes what became of calls that did not fit
	StepAsk    = "agent.ask"    // writes the question whether a tool may be called
	StepVerify = "agent.verify" // checks the signatures of answers to that
	StepTool   = "tool."
	StepOutput = "agent.output" // writes what a tool returned
	StepFinish = "agent.finish" // writes the chunk finish, and closes the stream
	StepFail   = "agent.fail"   // writes why there is no answer
	StepClose  = "agent.close"
)

// Workflow returns a workflow with the agent's name that calls Stream. It panics for a
// name that workflow.Define would not accept.
func (a *Agent) Workflow(opts ...workflow.DefineOption) *workflow.Definition[Call, *Result] {
	return workflow.Define(a.config.Name, a.Stream, opts...)
}

// StepCount ends a loop after n calls of the model.
func StepCount(n int) StopCondition {
	return func(steps []StepResult) bool { return len(steps) >= n }
}

// HasToolCall ends a loop after a step in which the model called the tool.
func HasToolCall(name string) StopCondition {
	return func(steps []StepResult) bool {
		for _, c := range steps[len(steps)-1].ToolCalls {
			if c.Name == name {
				return true
			}
		}
		return false
	}
}

// CostAbove ends a loop when its calls of the model have cost more than m. Calls
// whose price is unknown count as free.
func CostAbove(m gateway.Money) StopCondition {
	return func(steps []StepResult) bool {
		var u Usage
		for i := range steps {
			u.Add(steps[i].Usage)
		}
		return u.Cost > m
	}
}
