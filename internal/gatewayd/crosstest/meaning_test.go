package crosstest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// meaning is the content of an answer, independent of its blocks. Fields are compared one
// by one.
type meaning struct {
	Text      string
	Reasoning string
	// Calls are the calls that the caller must run: id, name and input.
	Calls []string
	// Signatures must go back to the provider with reasoning and calls, TextSignatures
	// should go back with text. Their place in the answer does not matter.
	Signatures, TextSignatures []string
	// Hosted are provider-run tools: names of calls, results.
	Hosted  []string
	Files   []string
	Sources []string
	Other   []string // kinds of all other parts
	Finish  hub.Reason
	Failure hub.ErrorKind

	Input, CacheRead, CacheWrite, Output, Thought string // tokens, "?" if unknown
}

// fields returns the names of the compared fields.
func fields() []string {
	var names []string
	for f := range reflect.TypeFor[meaning]().Fields() {
		names = append(names, f.Name)
	}
	return names
}

// field returns a field as text.
func (m *meaning) field(name string) string {
	return fmt.Sprintf("%q", reflect.ValueOf(m).Elem().FieldByName(name).Interface())
}

// without returns m without lost content: list elements, or other fields as a whole.
// other fields as a whole.
func (m *meaning) without(lost []loss) *meaning {
	out := *m
	for _, l := range lost {
		values := regexp.MustCompile(l.values)
		switch f := reflect.ValueOf(&out).Elem().FieldByName(l.field).Addr().Interface().(type) {
		case *[]string:
			*f = slices.DeleteFunc(slices.Clone(*f), values.MatchString)
			if len(*f) == 0 {
				*f = nil
			}
		}
	}
	return &out
}

// meant returns the meaning of a result.
func meant(r *hub.Result, err *hub.Error) *meaning {
	m := &meaning{Finish: r.Finish.Reason}
	if err != nil {
		m.Failure, m.Finish = err.Kind, ""
	}
	signed, text := map[string]bool{}, map[string]bool{}
	for i := range r.Content {
		p := &r.Content[i]
		switch p.Kind {
		case hub.TextPart:
			signatures(text, p.Options)
		case hub.ReasoningPart, hub.ToolCallPart:
			signatures(signed, p.Options)
		}
		switch p.Kind {
		case hub.TextPart:
			m.Text += p.Text
		case hub.ReasoningPart:
			m.Reasoning += p.Text
		case hub.ToolCallPart:
			if p.Call.ProviderExecuted {
				m.Hosted = append(m.Hosted, "call "+p.Call.Name)
				continue
			}
			id, packed := hub.UnpackID(p.Call.ID)
			signatures(signed, packed)
			m.Calls = append(m.Calls, id+" "+p.Call.Name+" "+compact(p.Call.Input))
		case hub.ToolResultPart:
			m.Hosted = append(m.Hosted, "result "+p.Result.Name)
		case hub.FilePart:
			m.Files = append(m.Files, fmt.Sprintf("%s, %d bytes", p.File.MediaType, len(p.File.Data)))
		case hub.SourcePart:
			m.Sources = append(m.Sources, p.Source.URL+p.Source.Filename)
		default:
			m.Other = append(m.Other, string(p.Kind)+" "+p.CustomKind)
		}
	}
	slices.Sort(m.Hosted) // formats with the result in the call change the order
	m.Signatures, m.TextSignatures = slices.Sorted(maps.Keys(signed)), slices.Sorted(maps.Keys(text))
	slices.Sort(m.Sources)
	m.Sources = slices.Compact(m.Sources)
	u := r.Usage
	if u == nil {
		u = &hub.Usage{}
	}
	m.Input, m.CacheRead, m.CacheWrite, m.Output, m.Thought = count(u.Input), count(u.CacheRead), count(u.CacheWrite), count(u.Output), count(u.Reasoning)
	return m
}

func count(n *int64) string {
	if n == nil {
		return "?"
	}
	return fmt.Sprint(*n)
}

// sameCount reports whether two counts are equal; a count of 0 equals an unknown one,
// because only the AI SDK's format distinguishes them everywhere.
func sameCount(a, b string) bool {
	return a == b || a == "?" && b == "0" || a == "0" && b == "?"
}

// compact returns JSON in canonical form, with members sorted; other text is unchanged.
func compact(text string) string {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if d.Decode(&v) != nil || d.More() {
		return text
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil {
		return text
	}
	return strings.TrimSpace(b.String())
}

// carried are the options that providers want back.
var carried = []string{"signature", "redactedData", "reasoningEncryptedContent", "thoughtSignature"}

// signatures adds the signatures in o, also wrapped ones.
func signatures(to map[string]bool, o hub.Options) {
	for provider := range o {
		for _, name := range carried {
			s := o.String(provider, name)
			if inside, ok := hub.Unwrap(s); ok {
				signatures(to, inside)
			} else if s != "" {
				to[s] = true
			}
		}
	}
}
