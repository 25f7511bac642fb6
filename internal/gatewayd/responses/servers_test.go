package responses

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// events returns the bytes of a stream of events without names.
func events(all ...string) []byte {
	return []byte("data: " + strings.Join(all, "\n\ndata: ") + "\n\n")
}

// TestReader_servers reads streams without some of OpenAI's events: later events contain
// the missing data.
func TestReader_servers(t *testing.T) {
	t.Parallel()
	const (
		created   = `{"type":"response.created","response":{"id":"r","status":"in_progress","model":"m"}}`
		message   = `{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"Hello.","annotations":[{"type":"url_citation","url":"https://a","title":"A"}]}]}`
		reasoning = `{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"so"}],"content":[{"type":"reasoning_text","text":"raw"}],"encrypted_content":"e"}`
		function  = `{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":"{\"a\":1}"}`
		custom    = `{"type":"custom_tool_call","id":"ct_1","call_id":"d","name":"p","input":"a\"b"}`
		completed = `{"type":"response.completed","response":{"id":"r","status":"completed","usage":{"input_tokens":1,"output_tokens":2}}}`
	)
	output := reasoning + "," + message + "," + function + "," + custom
	want, err := New().ReadResult(openai, []byte(`{"id":"r","model":"m","status":"completed","output":[`+output+`],"usage":{"input_tokens":1,"output_tokens":2}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := kinds(want); got != "reasoning, text, source, call f, call p" {
		t.Fatal(got)
	}
	added := func(at, item string) string {
		return `{"type":"response.output_item.added","output_index":` + at + `,"item":` + item + `}`
	}
	done := func(at, item string) string {
		return `{"type":"response.output_item.done","output_index":` + at + `,"item":` + item + `}`
	}
	for _, c := range []struct {
		name   string
		stream []byte
	}{
		{"all in the last event", events(created, `{"type":"response.completed","response":{"id":"r","status":"completed","output":[`+output+`],"usage":{"input_tokens":1,"output_tokens":2}}}`)},
		{"items that are done only", events(created, done("0", reasoning), done("1", message), done("2", function), done("3", custom), completed)},
		{"pieces of what they are", events(created,
			added("0", `{"type":"reasoning","id":"rs_1","summary":[]}`),
			`{"type":"response.reasoning_summary_text.delta","output_index":0,"summary_index":0,"delta":"s"}`,
			`{"type":"response.reasoning_summary_text.done","output_index":0,"summary_index":0,"text":"so"}`,
			`{"type":"response.reasoning_text.delta","output_index":0,"content_index":0,"delta":"raw"}`, done("0", reasoning),
			added("1", `{"type":"message","id":"msg_1","role":"assistant","content":[]}`),
			`{"type":"response.output_text.delta","output_index":1,"content_index":0,"delta":"Hel"}`, done("1", message),
			added("2", `{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":""}`),
			`{"type":"response.function_call_arguments.delta","output_index":2,"delta":"{\"a\""}`, done("2", function),
			added("3", `{"type":"custom_tool_call","id":"ct_1","call_id":"d","name":"p","input":""}`),
			`{"type":"response.custom_tool_call_input.delta","output_index":3,"delta":"a\""}`, done("3", custom), completed)},
		{"by id and without an end of their own", events(created,
			`{"type":"response.output_item.added","item":{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"e"}}`,
			`{"type":"response.reasoning_summary_text.delta","item_id":"rs_1","delta":"so"}`, `{"type":"response.reasoning_text.delta","item_id":"rs_1","delta":"raw"}`,
			`{"type":"response.output_item.added","item":{"type":"message","id":"msg_1","role":"assistant","content":[]}}`,
			`{"type":"response.output_text.delta","item_id":"msg_1","delta":"Hello."}`,
			`{"type":"response.output_text.annotation.added","item_id":"msg_1","annotation":{"type":"url_citation","url":"https://a","title":"A"}}`,
			`{"type":"response.output_item.added","item":{"type":"function_call","id":"fc_1","call_id":"c","name":"f","arguments":""}}`,
			`{"type":"response.function_call_arguments.delta","item_id":"fc_1","delta":"{\"a\":1}"}`,
			`{"type":"response.output_item.added","item":{"type":"custom_tool_call","id":"ct_1","call_id":"d","name":"p","input":""}}`,
			`{"type":"response.custom_tool_call_input.delta","item_id":"ct_1","delta":"a\"b"}`, `{"type":"response.future.event","item_id":"ct_1"}`, completed, `[DONE]`)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			target := *openai
			target.Call = &hub.Call{Tools: []hub.Tool{{Name: "p", ProviderID: "openai.custom"}}}
			got, failed := stream(t, &target, bytes.NewReader(c.stream))
			if failed != nil {
				t.Fatal(failed)
			}
			if a, b := plain(t, want), plain(t, got); a != b {
				t.Errorf("whole:\n%s\nstreamed:\n%s", a, b)
			}
		})
	}
}

// TestReader_customTools checks who ran a custom tool: the client if it has a tool with
// the name, else the provider.
func TestReader_customTools(t *testing.T) {
	t.Parallel()
	const body = `{"status":"completed","output":[{"type":"custom_tool_call","id":"x","call_id":"c","name":"x_search","input":"{\"q\":1}"}]}`
	for _, c := range []struct {
		tools []hub.Tool
		want  string
	}{
		{[]hub.Tool{{Name: "search", ProviderID: "xai.x_search"}}, "hosted search, result search"},
		{nil, "hosted x_search, result x_search"},
		{[]hub.Tool{{Name: "mine", ProviderID: "openai.custom", Args: []byte(`{"name":"x_search"}`)}}, "call mine"},
		{[]hub.Tool{{Name: "x_search", Options: hub.Options{"openai": {"custom": []byte(`{}`)}}}}, "call x_search"},
	} {
		r, err := New().ReadResult(&hub.Target{Provider: "xai", Call: &hub.Call{Tools: c.tools}}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		if got := kinds(r); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

// TestReader_noArguments checks that the input of a function without arguments is
// streamed as well.
func TestReader_noArguments(t *testing.T) {
	t.Parallel()
	reader := New().NewReader(openai, bytes.NewReader(events(
		`{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}`,
		`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"c","name":"f","arguments":""}}`,
		`{"type":"response.completed","response":{"status":"completed"}}`)))
	input := ""
	for {
		events, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == hub.InputDelta {
				input += e.Delta
			}
		}
	}
	if input != "{}" {
		t.Errorf("the input came as %q", input)
	}
}

// TestReader_raw checks that the provider's own events are emitted if requested.
func TestReader_raw(t *testing.T) {
	t.Parallel()
	in := rendered()
	target := *openai
	target.Call = &hub.Call{IncludeRaw: true}
	reader := New().NewReader(&target, bytes.NewReader(in))
	var check hub.Checker
	raw := 0
	for {
		events, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range events {
			if err := check.Add(&events[i]); err != nil {
				t.Fatal(err)
			}
			if events[i].Kind == hub.Raw {
				raw++
			}
		}
	}
	if want := bytes.Count(in, []byte("data: ")); raw != want {
		t.Errorf("%d raw events of %d", raw, want)
	}
}
