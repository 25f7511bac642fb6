package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// Tool is a tool that a model may call. Make it with NewTool, NewWorkflowTool,
// NewClientTool, NewProviderTool, NewRawTool or Agent.AsTool.
type Tool struct {
	spec   ToolSpec
	schema *schema // of its input; nil for tools of providers

	// Either step or code executes the tool; both are nil if the client or the
	// provider does.
	step func(ctx context.Context, input json.RawMessage) (outcome, error)
	code func(ctx workflow.Context, c calling) (outcome, error)

	in, out reflect.Type // the types of its function; nil without a function
	steps   []workflow.StepOption
	asks    func(input json.RawMessage) (bool, error) // whether a person is asked before
	tell    func(value any) Output                    // converts a result for the model; nil: as JSON
	agent   bool                                      // the tool is an agent: see AsTool
	quiet   bool                                      // and nobody sees it at work
}

// calling is a call of a tool that is workflow code.
type calling struct {
	ToolCall
	in       string    // ID of the caller's Span
	progress *progress // of an agent that people see at work; else nil
}

// outcome is the result of a tool as the log keeps it.
type outcome struct {
	Value json.RawMessage `json:"value,omitempty"`
	// ForModel is the output for the model, if it differs from Value.
	ForModel *Output `json:"told,omitempty"`
	// Usage is the usage of an agent that is called as a tool.
	Usage *Usage `json:"-"`
}

// output returns the output for the model.
func (o *outcome) output() Output {
	if o.ForModel != nil {
		return *o.ForModel
	}
	return outputOf(o.Value)
}

// outputOf returns a value as an Output: a string becomes a text.
func outputOf(value json.RawMessage) Output {
	var text string
	if len(value) > 0 && value[0] == '"' && json.Unmarshal(value, &text) == nil {
		return TextOutput(text)
	}
	if len(value) == 0 {
		value = json.RawMessage("null")
	}
	return Output{Type: OutputJSON, JSON: value}
}

// ToolOption is an option of a tool.
type ToolOption interface{ applyTool(*Tool) }

type toolOption func(*Tool)

func (o toolOption) applyTool(t *Tool) { o(t) }

// NewTool makes a tool of a function. Each call is a step: it is retried when it
// fails, and never repeated once it has succeeded. The model gets the result as
// JSON; a string or an Output is passed as it is. An error that is workflow.Fatal,
// or the last one after all retries, is passed to the model too, as text; the run
// goes on. CallOf returns the current call to the function.
//
// In is a struct, or a map, from which the tool's JSON schema is made: properties
// have the names of the JSON tags, a field is optional if it has omitempty or
// omitzero, and a tag jsonschema has the description of a field. The input has been
// validated against the schema when fn is called.
//
// Like all functions that make tools, NewTool panics if the name is not 1 to 64
// letters, digits, _ and -, or In has no schema.
func NewTool[In, Out any](name, description string, fn func(context.Context, In) (Out, error), opts ...ToolOption) Tool {
	t := function[In, Out](name, description)
	t.step = func(ctx context.Context, input json.RawMessage) (outcome, error) {
		in, err := decode[In](input)
		if err != nil {
			return outcome{}, workflow.Fatal(err)
		}
		out, err := fn(ctx, in)
		if err != nil {
			return outcome{}, err
		}
		o, err := t.returned(out)
		if err != nil {
			return outcome{}, workflow.Fatal(err) // it would be the same again
		}
		return o, nil
	}
	t.apply(opts)
	return *t
}

// NewWorkflowTool makes a tool of workflow code, which may sleep, wait for hooks,
// use steps and call agents. cay does not retry the function itself: put work that
// may fail into steps. Calls that a model makes together run concurrently.
func NewWorkflowTool[In, Out any](name, description string, fn func(workflow.Context, In) (Out, error), opts ...ToolOption) Tool {
	t := function[In, Out](name, description)
	t.code = func(ctx workflow.Context, c calling) (outcome, error) {
		in, err := decode[In](c.Input)
		if err != nil {
			return outcome{}, err
		}
		out, err := fn(ctx, in)
		if err != nil {
			return outcome{}, err
		}
		return t.returned(out)
	}
	t.apply(opts)
	return *t
}

// NewClientTool makes a tool that the client, such as a chat page, executes: a call
// of the tool ends the Call of the agent, and is pending in its Result. The client
// passes the tool's result in the messages of the next Call.
func NewClientTool[In any](name, description string, opts ...ToolOption) Tool {
	t := function[In, json.RawMessage](name, description)
	t.apply(opts)
	return *t
}

// NewRawTool makes a tool whose JSON schema is known only at run time. Each call is
// a step, as with NewTool; the input fits the schema. Errors: invalid if inputSchema
// is not a schema, or refers to other schemas.
func NewRawTool(name, description string, inputSchema json.RawMessage, fn func(context.Context, json.RawMessage) (Output, error), opts ...ToolOption) (Tool, error) {
	s, err := readSchema(inputSchema)
	if err == nil {
		_, err = s.resolved()
	}
	if err != nil {
		return Tool{}, cay.Errorf(cay.Invalid, "the schema of the tool %.80s: %w", name, err)
	}
	t := &Tool{
		spec: ToolSpec{Type: "function", Name: name, Description: description, InputSchema: s.raw}, schema: s,
		in: reflect.TypeFor[json.RawMessage](), out: reflect.TypeFor[Output](),
	}
	if !toolName.MatchString(name) {
		return Tool{}, cay.Errorf(cay.Invalid, "%.80q is no name for a tool: 1 to 64 letters, digits, _ and -", name)
	}
	t.step = func(ctx context.Context, input json.RawMessage) (outcome, error) {
		out, err := fn(ctx, input)
		if err != nil {
			return outcome{}, err
		}
		o, err := t.returned(out)
		if err != nil {
			return outcome{}, workflow.Fatal(err)
		}
		return o, nil
	}
	t.apply(opts)
	return *t, nil
}

// NewProviderTool makes a tool that the model's provider executes itself:
// NewProviderTool("anthropic.web_search_20250305", "web_search", nil). args are the
// tool's settings, and must marshal to a JSON object. NewProviderTool panics if args
// cannot be marshaled.
func NewProviderTool(id, name string, args any, opts ...ToolOption) Tool {
	t := &Tool{spec: ToolSpec{Type: "provider", ID: id, Name: name, Args: json.RawMessage("{}")}}
	mustName(name)
	if args != nil {
		b, err := json.Marshal(args)
		if err != nil || len(b) == 0 || b[0] != '{' {
			panic(fmt.Sprintf("agent: the arguments of the tool %s are no JSON object: %v", name, err))
		}
		t.spec.Args = b
	}
	t.apply(opts)
	return *t
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func mustName(name string) {
	if !toolName.MatchString(name) {
		panic(fmt.Sprintf("agent: %.80q is no name for a tool: 1 to 64 letters, digits, _ and -", name))
	}
}

// function returns a tool with the schema of In.
func function[In, Out any](name, description string) *Tool {
	mustName(name)
	t := &Tool{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}
	s, err := schemaOf(t.in)
	if err == nil && !s.object {
		err = fmt.Errorf("the input is a %s, and must be a struct or a map", t.in)
	}
	if err != nil {
		panic(fmt.Sprintf("agent: the tool %s: %v", name, err))
	}
	t.spec = ToolSpec{Type: "function", Name: name, Description: description, InputSchema: s.raw}
	t.schema = s
	return t
}

func decode[In any](input json.RawMessage) (In, error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return in, cay.Errorf(cay.Invalid, "the input does not fit: %w", err)
	}
	return in, nil
}

// returned returns the outcome for a function's result.
func (t *Tool) returned(value any) (outcome, error) {
	var o outcome
	if t.tell != nil {
		told := t.tell(value)
		o.ForModel = &told
	}
	if told, ok := value.(Output); ok {
		if o.ForModel == nil {
			o.ForModel = &told
		}
		if err := o.ForModel.check(); err != nil {
			return outcome{}, err
		}
		var err error
		o.Value, err = told.value()
		return o, err
	}
	b, err := json.Marshal(value)
	if err != nil {
		return outcome{}, cay.Errorf(cay.Invalid, "what the tool returned has no JSON: %w", err)
	}
	o.Value = b
	return o, nil
}

// value returns an output as JSON for people to see.
func (o *Output) value() (json.RawMessage, error) {
	switch o.Type {
	case OutputJSON, OutputErrorJSON:
		if len(o.JSON) == 0 {
			return json.RawMessage("null"), nil
		}
		return o.JSON, nil
	case OutputContent:
		return json.Marshal(o)
	}
	return json.Marshal(o.Text)
}

func (t *Tool) apply(opts []ToolOption) {
	for _, o := range opts {
		o.applyTool(t)
	}
}

// must panics if the function of an option does not take the tool's type.
func (t *Tool) must(option string, want, have reflect.Type) {
	if want != have {
		panic(fmt.Sprintf("agent: the tool %s has the type %v where its option %s takes %v", t.spec.Name, have, option, want))
	}
}

// StepOptions sets the options of the tool's step: retries, timeouts.
func StepOptions(opts ...workflow.StepOption) ToolOption {
	return toolOption(func(t *Tool) { t.steps = append(t.steps, opts...) })
}

// NeedsApproval makes the agent ask a person before each call: see Approvals.
func NeedsApproval() ToolOption {
	return toolOption(func(t *Tool) { t.asks = func(json.RawMessage) (bool, error) { return true, nil } })
}

// NeedsApprovalIf makes the agent ask a person before calls for which f returns
// true. f is workflow code. The tool's maker panics if In is not the tool's.
func NeedsApprovalIf[In any](f func(In) bool) ToolOption {
	return toolOption(func(t *Tool) {
		t.must("NeedsApprovalIf", reflect.TypeFor[In](), t.in)
		t.asks = func(input json.RawMessage) (bool, error) {
			in, err := decode[In](input)
			return err == nil && f(in), err
		}
	})
}

// OutputAs sets the function that converts the tool's result for the model. Other
// readers, such as chat pages, get the result as JSON. The tool's maker panics if
// Out is not the tool's.
func OutputAs[Out any](f func(Out) Output) ToolOption {
	return toolOption(func(t *Tool) {
		t.must("OutputAs", reflect.TypeFor[Out](), t.out)
		t.tell = func(value any) Output {
			out, _ := value.(Out) // else it is a nil of an interface
			return f(out)
		}
	})
}

// Quiet keeps an agent that is called as a tool off the stream until it is done: see
// AsTool.
func Quiet() ToolOption { return toolOption(func(t *Tool) { t.quiet = true }) }

// Strict asks the provider to make the inputs fit the schema, if the provider can.
func Strict() ToolOption {
	return toolOption(func(t *Tool) { yes := true; t.spec.Strict = &yes })
}

// Name is the tool's name for the model.
func (t Tool) Name() string { return t.spec.Name }

// local reports whether this program executes the tool.
func (t *Tool) local() bool { return t.step != nil || t.code != nil }

type callKey struct{}

// CallOf returns the call that the function of NewTool or NewRawTool executes. Its
// ID is the same at each attempt: use it as an idempotency key for requests to other
// services. CallOf returns the zero ToolCall outside of such functions.
func CallOf(ctx context.Context) ToolCall {
	c, _ := ctx.Value(callKey{}).(ToolCall)
	return c
}
