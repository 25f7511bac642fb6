package agent

import (
	"reflect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// task is the input of an agent that is a tool.
type task struct {
	Prompt string `json:"prompt" jsonschema:"what to do, with all that has to be known for it"`
}

// AsTool makes a tool of the agent: it is told what to do, in words, and its last
// words are what the tool gives, or its output if it has one. People it asks are asked
// at hooks.
//
// While it is at work, the call has preliminary outputs on the stream (Chunk has
// Preliminary), as tools of the AI SDK have that yield: each is the message it has
// written so far, {id, role, parts} as a UIMessage, with texts, reasoning and calls of
// tools (dynamic-tool), the newest of them if it is long. They come at most four times a
// second, and take at most 1 MiB for each call of its model. With the option Quiet there
// are none, nor if the Call of the agent above is Quiet.
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
