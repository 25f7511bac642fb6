package agent

import (
	"reflect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// task is the input of an agent that is called as a tool.
type task struct {
	Prompt string `json:"prompt" jsonschema:"what to do, with all that has to be known for it"`
}

// AsTool makes a tool of the agent: its input is a task in words, and its result is the
// agent's last text, or its output if Config.Output is set. The agent asks people for
// approval at hooks.
//
// While the agent runs, the call has preliminary outputs on the stream (Chunk has
// Preliminary), like tools of the AI SDK that yield: each output is the agent's message
// so far, {id, role, parts} as a UIMessage, with texts, reasoning and calls of tools
// (dynamic-tool), or only the newest parts if the message is long. Preliminary outputs
// are written at most four times a second, and take at most 1 MiB for each call of the
// agent's model. They are not written with the option Quiet, nor if the Call of the
// calling agent is Quiet.
func (a *Agent) AsTool(name, description string, opts ...ToolOption) Tool {
	t := function[task, string](name, description)
	t.out = reflect.TypeFor[string]()
	t.agent = true
	t.code = func(ctx workflow.Context, c calling) (outcome, error) {
		in, err := decode[task](c.Input)
		if err != nil {
			return outcome{}, err
		}
		r, used, err := a.answer(ctx, Call{Prompt: in.Prompt, Quiet: true}, &c)
		if err != nil {
			return outcome{Usage: &used}, err
		}
		if len(r.Pending) > 0 {
			return outcome{Usage: &used}, cay.Errorf(cay.NotSupported, "the agent waits for somebody else to call the tool %s, who is not here", r.Pending[0].Name)
		}
		o := outcome{Value: r.Output}
		if len(r.Output) == 0 {
			if o, err = t.returned(r.Text); err != nil {
				return outcome{Usage: &used}, err
			}
		}
		o.Usage = &used
		return o, nil
	}
	t.apply(opts)
	return *t
}
