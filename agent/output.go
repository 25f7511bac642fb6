package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/cayhq/cay"
)

// OutputOf returns the format of an answer of type T: JSON that fits the schema of
// T, as with NewTool. It panics if T has no schema. See Decode.
func OutputOf[T any]() *ResponseFormat {
	t := reflect.TypeFor[T]()
	s, err := schemaOf(t)
	if err != nil {
		panic("agent: OutputOf: " + err.Error())
	}
	return &ResponseFormat{Type: "json", Schema: s.raw, Name: toolSafe(t.Name())}
}

// toolSafe returns a name in the form that providers accept.
func toolSafe(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < 0x80 && toolName.MatchString(string(r)) {
			return r
		}
		return -1
	}, name)
	return name[:min(len(name), 64)]
}

// Decode reads the answer to a Call of an agent whose Output is OutputOf[T]. Errors:
// invalid if r has no output, as when the Call ended before the last answer.
func Decode[T any](r *Result) (T, error) {
	var v T
	if len(r.Output) == 0 {
		return v, cay.Errorf(cay.Invalid, "the agent's answer has no output: it ended with %q", r.FinishReason)
	}
	if err := json.Unmarshal(r.Output, &v); err != nil {
		return v, cay.Errorf(cay.Invalid, "the agent's output does not fit: %w", err)
	}
	return v, nil
}

// unfenced returns a text without the fences of a block around it.
func unfenced(text string) []byte {
	raw := bytes.TrimSpace([]byte(text))
	if rest, ok := bytes.CutPrefix(raw, []byte("```")); ok {
		_, rest, _ = bytes.Cut(rest, []byte("\n")) // the name of a language
		raw = bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("```")))
	}
	return raw
}

// fitOutput returns an error if a text does not fit the format.
func fitOutput(f *ResponseFormat, text string) error {
	raw := unfenced(text)
	if len(raw) == 0 {
		return errors.New("it is empty")
	}
	var s *schema
	if len(f.Schema) > 0 {
		var err error
		if s, err = readSchema(f.Schema); err != nil {
			return err
		}
	}
	return s.fit(raw)
}

// outputIn returns the output in a text that fits.
func outputIn(text string) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, unfenced(text)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// mendOutput is the message to the model about an answer that does not fit the
// schema.
func mendOutput(problem string) string {
	return "This answer does not fit the JSON schema that was asked for: " + problem +
		". Answer again, with nothing but JSON that fits the schema."
}
