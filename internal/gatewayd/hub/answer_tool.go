package hub

import (
	"encoding/json"
	"fmt"
)

// AnswerTool is the name of a tool that takes the place of a Format at providers without
// structured output: the model must call it, and the input of the call is the answer.
// Readers for such providers turn a call with this name back into text, and the reason
// ToolCalls into Stop if there was no other call.
const AnswerTool = "cay_structured_answer"

// AsTool returns the tool that takes the place of f. It returns an *Error of the kind
// BadRequest if the schema does not describe an object, which the input of a tool must
// be.
func (f *Format) AsTool() (Tool, error) {
	t := Tool{
		Name:        AnswerTool,
		Description: "Give the answer as the input of this tool. Always call it, and say nothing else.",
		InputSchema: f.Schema,
	}
	if f.Description != "" {
		t.Description += " The answer is: " + f.Description
	}
	if len(f.Schema) == 0 {
		t.InputSchema = json.RawMessage(`{"type":"object","additionalProperties":true}`)
		return t, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(f.Schema, &members); err != nil {
		return Tool{}, &Error{Kind: BadRequest, Param: "responseFormat.schema", Message: "the schema of the response format is not a JSON object"}
	}
	switch kind := string(members["type"]); kind {
	case `"object"`:
	case "":
		members["type"] = json.RawMessage(`"object"`)
		raw, err := json.Marshal(members)
		if err != nil {
			return Tool{}, fmt.Errorf("encode a schema: %w", err)
		}
		t.InputSchema = raw
	default:
		return Tool{}, &Error{
			Kind: BadRequest, Param: "responseFormat.schema",
			Message: fmt.Sprintf("the schema of the response format has the type %s; this model answers with objects only: put it into a property of an object", kind),
		}
	}
	return t, nil
}
