package guard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

func guards(t testing.TB, cfg guard.Config) *guard.Guards {
	t.Helper()
	g, err := guard.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// kindOf returns the kind and code of an error as text.
func kindOf(err error) string {
	var e *hub.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return string(e.Kind) + " " + e.Code
	}
	return "not a *hub.Error: " + err.Error()
}

func TestGuards_Limits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		cfg   guard.Config
		model string
		body  string
		want  string
	}{
		{"nothing guarded", guard.Config{}, "a/b", `{"max_tokens":1e9}`, ""},
		{"prompt fits", guard.Config{MaxPrompt: 12}, "a/b", `{"m":"12345"}`[:12] + ``, ""},
		{"prompt too large", guard.Config{MaxPrompt: 12}, "a/b", `{"m":"123456"}`, "too_large guard_max_prompt"},
		{"model allowed", guard.Config{Models: []string{"openai/*", "x/y"}}, "openai/gpt-5", `{}`, ""},
		{"model of a longer name allowed", guard.Config{Models: []string{"openrouter/*"}}, "openrouter/meta/llama", `{}`, ""},
		{"model not allowed", guard.Config{Models: []string{"openai/*", "x/y"}}, "x/yz", `{}`, "forbidden guard_models"},
		{"as many tokens as allowed", guard.Config{MaxOutputTokens: 5}, "a/b", `{"max_tokens":5}`, ""},
		{"too many tokens", guard.Config{MaxOutputTokens: 5}, "a/b", `{"max_tokens":6}`, "invalid_request guard_max_output_tokens"},
		{"too many, as Responses says it", guard.Config{MaxOutputTokens: 5}, "a/b", `{"max_output_tokens":6}`, "invalid_request guard_max_output_tokens"},
		{"too many, as the AI SDK says it", guard.Config{MaxOutputTokens: 5}, "a/b", `{"maxOutputTokens":1e300}`, "invalid_request guard_max_output_tokens"},
		{"too many, as chat says it", guard.Config{MaxOutputTokens: 5}, "a/b", `{"max_completion_tokens":6}`, "invalid_request guard_max_output_tokens"},
		{"tools allowed", guard.Config{Tools: []string{"get_*"}}, "a/b", `{"tools":[{"type":"function","function":{"name":"get_x"}},{"name":"get_y"}]}`, ""},
		{"tool not allowed", guard.Config{Tools: []string{"get_*"}}, "a/b", `{"tools":[{"name":"get_y"},{"type":"function","name":"rm"}]}`, "forbidden guard_tools"},
		{"tool of a namespace denied", guard.Config{DenyTools: []string{"spawn"}}, "a/b", `{"tools":[{"type":"namespace","name":"agents","tools":[{"type":"function","name":"spawn"}]}]}`, "forbidden guard_tools"},
		{"tool of a namespace allowed", guard.Config{Tools: []string{"agents", "spawn"}}, "a/b", `{"tools":[{"type":"namespace","name":"agents","tools":[{"type":"function","name":"spawn"}]}]}`, ""},
		{"tool denied", guard.Config{DenyTools: []string{"web_search*"}}, "a/b", `{"tools":[{"type":"web_search_20250305","name":"search"}]}`, "forbidden guard_tools"},
		{"others not denied", guard.Config{DenyTools: []string{"web_search*"}}, "a/b", `{"tools":[{"type":"function","name":"search"}]}`, ""},
		{"tool of the AI SDK denied", guard.Config{DenyTools: []string{"anthropic.*"}}, "a/b", `{"tools":[{"type":"provider","id":"anthropic.web_search","name":"s"}]}`, "forbidden guard_tools"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			err := guards(t, c.cfg).Check(t.Context(), nil, c.model, []byte(c.body))
			if got := kindOf(err); got != c.want {
				t.Errorf("%q, want %q (%v)", got, c.want, err)
			}
		})
	}
	var none *guard.Guards
	if err := none.Check(t.Context(), nil, "x", []byte(`{}`)); err != nil || none.GuardsAnswers() {
		t.Errorf("no guards: %v", err)
	}
}

func TestGuards_Patterns(t *testing.T) {
	t.Parallel()
	preset := func(names ...string) guard.Config {
		var cfg guard.Config
		for _, n := range names {
			cfg.Requests = append(cfg.Requests, guard.Pattern{Preset: n, Redact: true})
		}
		return cfg
	}
	all := preset("email", "card", "iban", "key")
	for _, c := range []struct {
		name, in, want string
		cfg            guard.Config
	}{
		{"e-mail", `{"a":"write to jo.e+x@mail.example.org."}`, `{"a":"write to [email]."}`, all},
		{"several in one text", `{"a":["a@b.co and c@d.co","e@f.co"]}`, `{"a":["[email] and [email]","[email]"]}`, all},
		{"not an address", `{"a":"@handle a@b x@y"}`, "", all},
		{"card", `{"a":"4111 1111 1111 1111, 5500-0000-0000-0004 378282246310005"}`, `{"a":"[card], [card] [card]"}`, all},
		{"a wrong check digit", `{"a":"4111 1111 1111 1112"}`, "", all},
		{"numbers", `{"a":4111111111111111,"b":"41111111"}`, "", all},
		{"IBAN", `{"a":"DE89 3704 0044 0532 0130 00 and GB82WEST12345698765432"}`, `{"a":"[iban] and [iban]"}`, all},
		{"a wrong IBAN", `{"a":"DE88 3704 0044 0532 0130 00"}`, "", all},
		{"keys", `{"a":"sk-proj-abcdefghijklmnop1234 AKIAIOSFODNN7EXAMPLE"}`, `{"a":"[key] [key]"}`, all},
		{"not a key", `{"a":"sk-short, risk-assessment-of-everything"}`, "", all},
		{"escapes", `{"a":"\u006ae@b.co <\"ü\n>"}`, `{"a":"[email] <\"ü\n>"}`, all},
		{"what is opaque stays", `{"signature":"a@b.co","thinking":"a@b.co","tool_call_id":"a@b.co"}`, `{"signature":"a@b.co","thinking":"[email]","tool_call_id":"a@b.co"}`, all},
		{"names of members stay", `{"a@b.co":1}`, "", all},
		{"files stay", `{"url":"data:text/plain;base64,YUBiLmNv"}`, "", all},
		{"space stays", " {\"x\" : [ 1 , {\"a\" :\t\"a@b.co\"} ] , \"y\":null}\n", " {\"x\" : [ 1 , {\"a\" :\t\"[email]\"} ] , \"y\":null}\n", all},
		{"arguments of tools", `{"arguments":"{\"to\":\"a@b.co\"}"}`, `{"arguments":"{\"to\":\"[email]\"}"}`, all},
		{"words", `{"a":"Classic CLASS class_ Über über"}`, `{"a":"Classic [w] class_ [w] [w]"}`,
			guard.Config{Requests: []guard.Pattern{{Name: "w", Words: []string{"class", "über"}, Redact: true}}}},
		{"words side by side", `{"a":"foo foo"}`, `{"a":"[pattern] [pattern]"}`, guard.Config{Requests: []guard.Pattern{{Words: []string{"foo"}, Redact: true}}}},
		{"a regular expression", `{"a":"id 123-45"}`, `{"a":"id [ssn]"}`, guard.Config{Requests: []guard.Pattern{{Name: "ssn", Regex: `\d{3}-\d{2}`, Redact: true}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := guards(t, c.cfg)
			got, err := g.Request(t.Context(), nil, "m/m", []byte(c.in))
			want := c.want
			if want == "" {
				want = c.in
			}
			if err != nil || string(got) != want {
				t.Errorf("%s %v, want %s", got, err, want)
			}
			// Check refuses what Request would redact.
			if err := g.Check(t.Context(), nil, "m/m", []byte(c.in)); (err != nil) != (c.want != "") {
				t.Errorf("check: %v", err)
			}
		})
	}
}

func TestGuards_Block(t *testing.T) {
	t.Parallel()
	g := guards(t, guard.Config{
		Requests: []guard.Pattern{{Preset: "card", Redact: true}, {Name: "project", Words: []string{"Manhattan"}}},
		Answers:  []guard.Pattern{{Preset: "key"}, {Preset: "email", Redact: true}}, BufferStreams: true,
	})
	_, err := g.Request(t.Context(), nil, "m/m", []byte(`{"a":"4111111111111111 and manhattan"}`))
	if kindOf(err) != "invalid_request guard_blocked" || !strings.Contains(err.Error(), "the request has something") || !strings.Contains(err.Error(), "project") || strings.Contains(err.Error(), "anhattan") {
		t.Errorf("%v", err)
	}
	if !g.GuardsAnswers() {
		t.Error("answers are not guarded")
	}
	if got, err := g.Answer(t.Context(), nil, "m/m", []byte(`{"a":"a@b.co"}`)); err != nil || string(got) != `{"a":"[email]"}` {
		t.Errorf("%s %v", got, err)
	}
	result := func(text string) *hub.Result {
		return &hub.Result{Content: []hub.Part{
			{Kind: hub.ReasoningPart, Text: "thought of a@b.co"},
			{Kind: hub.TextPart, Text: text},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "1", Name: "mail", Input: `{"to":"a@b.co"}`}},
			{Kind: hub.ToolCallPart, Call: &hub.ToolCall{ID: "2", Name: "mail", Input: `to a@b.co`}},
		}}
	}
	r := result("hello a@b.co")
	if err := g.Result(r); err != nil {
		t.Fatal(err)
	}
	got := []string{r.Content[0].Text, r.Content[1].Text, r.Content[2].Call.Input, r.Content[3].Call.Input}
	if want := "thought of [email]|hello [email]|" + `{"to":"[email]"}` + "|to [email]"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := g.Result(result("AKIAIOSFODNN7EXAMPLE")); kindOf(err) != "invalid_request guard_blocked" {
		t.Errorf("%v", err)
	}
}

func TestNew_Wrong(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]guard.Config{
		"streams would pass unguarded":         {Answers: []guard.Pattern{{Preset: "email"}}},
		"answers are guarded":                  {Webhook: &guard.Webhook{URL: "http://x/", Answers: true}},
		"requests[0]: it has one of":           {Requests: []guard.Pattern{{}}},
		"requests[1]: preset \"e\" is none":    {Requests: []guard.Pattern{{Preset: "card"}, {Preset: "e"}}},
		"requests[0]: regex: error parsing":    {Requests: []guard.Pattern{{Regex: "("}}},
		`regex "x*" matches the empty text`:    {Requests: []guard.Pattern{{Regex: "x*"}}},
		"words: one is empty":                  {Requests: []guard.Pattern{{Words: []string{"a", " "}}}},
		"models: \"[\" is no pattern":          {Models: []string{"["}},
		"webhook.url is not":                   {Webhook: &guard.Webhook{URL: "file:///etc/passwd"}},
		"webhook.timeout is 2m0s":              {Webhook: &guard.Webhook{URL: "http://x/", Timeout: 2 * time.Minute}},
		"max_prompt and max_output_tokens are": {MaxPrompt: -1},
	} {
		if _, err := guard.New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		var q struct {
			Stage, Model string
			KeyID        string `json:"key_id"`
			Body         json.RawMessage
		}
		if json.Unmarshal(raw, &q) != nil || q.KeyID != "gk_1" || r.Header.Get("Authorization") != "Bearer hook" {
			http.Error(w, "?", http.StatusTeapot)
			return
		}
		switch q.Model {
		case "allow":
			fmt.Fprint(w, `{"action":"allow"}`)
		case "block":
			fmt.Fprintf(w, `{"action":"block","message":"no %s please"}`, q.Stage)
		case "replace":
			fmt.Fprint(w, `{"action":"replace","body":{"new":true}}`)
		case "replace with nothing":
			fmt.Fprint(w, `{"action":"replace"}`)
		case "nonsense":
			fmt.Fprint(w, `<html>`)
		case "500":
			w.WriteHeader(500)
		case "hang":
			<-hang
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(hang) })
	caller := &ledger.Caller{KeyID: "gk_1"}
	const closed = "overloaded guard_webhook"
	for _, c := range []struct{ model, body, err, open string }{
		{model: "allow", body: `{"old":1}`},
		{model: "block", err: "forbidden guard_webhook", open: "forbidden guard_webhook"},
		{model: "replace", body: `{"new":true}`},
		{model: "replace with nothing", body: `{"old":1}`, err: closed},
		{model: "nonsense", body: `{"old":1}`, err: closed},
		{model: "500", body: `{"old":1}`, err: closed},
		{model: "hang", body: `{"old":1}`, err: closed},
		{model: "unknown", body: `{"old":1}`, err: closed},
	} {
		for _, failOpen := range []bool{false, true} {
			hook := &guard.Webhook{URL: server.URL, Timeout: time.Minute, Header: http.Header{"Authorization": {"Bearer hook"}}, FailOpen: failOpen, Answers: true}
			if c.model == "hang" {
				hook.Timeout = 50 * time.Millisecond
			}
			g := guards(t, guard.Config{Webhook: hook, BufferStreams: true})
			want := c.err
			if failOpen {
				want = c.open
			}
			got, err := g.Request(t.Context(), caller, c.model, []byte(`{"old":1}`))
			if kindOf(err) != want || want == "" && string(got) != c.body {
				t.Errorf("%s, open %v: %s %v, want %q", c.model, failOpen, got, err, want)
			}
			if _, err := g.Answer(t.Context(), caller, c.model, []byte(`{"old":1}`)); kindOf(err) != want || c.model == "block" && !strings.Contains(err.Error(), "no answer please") {
				t.Errorf("%s, open %v: answer: %v", c.model, failOpen, err)
			}
		}
	}
}

func FuzzGuards(f *testing.F) {
	f.Add([]byte(`{"a":"a@b.co","b":[1,"4111111111111111",{"c":null}]}`))
	f.Add([]byte(` ["\ud83d\ude00 a@b.co"] `))
	f.Add([]byte(`"a@b.co"`))
	g := guards(f, guard.Config{Requests: []guard.Pattern{{Preset: "email", Redact: true}, {Preset: "card", Redact: true}, {Preset: "iban", Redact: true}, {Preset: "key", Redact: true}, {Words: []string{"x"}, Redact: true}}})
	f.Fuzz(func(t *testing.T, body []byte) {
		if !json.Valid(body) {
			t.Skip("the engine refuses what is no JSON before the guards see it")
		}
		got, err := g.Request(t.Context(), nil, "m", body)
		if err != nil {
			t.Skip("it is refused, as what nests too deep is")
		}
		if !json.Valid(got) {
			t.Fatalf("%q became %q", body, got)
		}
		var before, after any
		if json.Unmarshal(body, &before) != nil || json.Unmarshal(got, &after) != nil {
			t.Skip("encoding/json reads less than gjson: numbers out of range")
		}
		if shape(before) != shape(after) {
			t.Fatalf("%q became %q", body, got)
		}
	})
}

// shape returns a value without its texts.
func shape(v any) string {
	switch v := v.(type) {
	case string:
		return "s"
	case []any:
		var b strings.Builder
		for _, item := range v {
			b.WriteString(shape(item))
		}
		return "[" + b.String() + "]"
	case map[string]any:
		n := 0
		for _, item := range v {
			n += len(shape(item))
		}
		return fmt.Sprint("{", len(v), n)
	}
	return fmt.Sprint(v)
}

// The texts of a form are guarded like those of JSON; texts that cannot be changed are
// refused.
func TestGuards_Form(t *testing.T) {
	t.Parallel()
	secret := guard.Pattern{Name: "secret", Regex: "hunter2", Redact: true}
	for _, test := range []struct {
		name   string
		cfg    guard.Config
		fields []guard.Field
		want   string // the error, or the texts
	}{
		{"nothing guarded", guard.Config{}, []guard.Field{{Name: "prompt", Text: "hunter2"}}, "hunter2;"},
		{"redacted", guard.Config{Requests: []guard.Pattern{secret}}, []guard.Field{{Name: "type", Text: "say hunter2!"}, {Name: "file", Text: "a.mp3", File: true}}, "say [secret]!;a.mp3;"},
		{"name of a file", guard.Config{Requests: []guard.Pattern{secret}}, []guard.Field{{Name: "file", Text: "hunter2.mp3", File: true}}, "invalid_request guard_redact"},
		{"name of a field", guard.Config{Requests: []guard.Pattern{secret}}, []guard.Field{{Name: "hunter2", Text: "x"}}, "invalid_request guard_redact"},
		{"blocked", guard.Config{Requests: []guard.Pattern{{Name: "secret", Regex: "hunter2"}}}, []guard.Field{{Name: "prompt", Text: "hunter2"}}, "invalid_request guard_blocked"},
		{"no text", guard.Config{}, []guard.Field{{Name: "prompt", Text: "\xff"}}, "invalid_request guard_form"},
		{"too large", guard.Config{MaxPrompt: 9}, nil, "too_large guard_max_prompt"},
		{"small enough", guard.Config{MaxPrompt: 10}, []guard.Field{{Name: "prompt", Text: "longer than ten in JSON"}}, "longer than ten in JSON;"},
		{"model", guard.Config{Models: []string{"a/c"}}, nil, "forbidden guard_models"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			fields, err := guards(t, test.cfg).Form(t.Context(), nil, "a/b", 10, test.fields)
			got := kindOf(err)
			for _, f := range fields {
				got += f.Text + ";"
			}
			if got != test.want {
				t.Errorf("%s (%v), want %s", got, err, test.want)
			}
		})
	}
}
