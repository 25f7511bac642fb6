package gatewayd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// answering returns a provider that always gives the same answer.
func answering(t *testing.T, body string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(s.Close)
	return s
}

// hosting returns a world with a provider of a kind that runs tools, and the models of
// the catalogue.
func hosting(t *testing.T, kind, format, body string) *world {
	w := newWorld(t)
	p := w.provider(kind, format, answering(t, body).URL)
	p.Kind, p.SelfHosted, p.Unlisted = kind, false, false
	w.add(p)
	s := *w.settings
	s.Catalog = catalog.New(catalog.Builtin())
	w.settings = &s
	return w
}

func dollars(t *testing.T, s string) gateway.Money {
	t.Helper()
	m, err := gateway.ParseMoney(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Provider-run tools are charged at the provider's prices, and reserved for before the
// call.
func TestHosted_Charged(t *testing.T) {
	t.Parallel()
	const response = `{"id":"resp_1","object":"response","status":"completed","model":"m","usage":{"input_tokens":0,"output_tokens":0%s},"output":[%s]%s}`
	const message = `{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"end_turn","content":[%s{"type":"text","text":"Hi"}],"usage":{"input_tokens":0,"output_tokens":0%s}}`
	ask := func(model, members string) string {
		return `{"model":"` + model + `","input":"x","max_output_tokens":16,` + members + `}`
	}
	say := func(model, members string) string {
		return `{"model":"` + model + `","max_tokens":16,"messages":[{"role":"user","content":"x"}],` + members + `}`
	}
	for name, test := range map[string]struct {
		kind, format, path, body, answer string
		cost, held                       string // held is the least that is set aside for the tools
	}{
		"web searches": {
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"web_search"}]`),
			fmt.Sprintf(response, "", `{"type":"web_search_call","id":"a","action":{"type":"search"}},{"type":"web_search_call","id":"b","action":{"type":"open_page"}},{"type":"web_search_call","id":"c"}`, ""), "0.02", "0.1",
		},
		"web searches of the older tool": {
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"web_search_preview_2025_03_11"}],"max_tool_calls":2`),
			fmt.Sprintf(response, "", `{"type":"web_search_call","id":"a"}`, ""), "0.025", "0.05",
		},
		"files": {
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"file_search"}]`),
			fmt.Sprintf(response, "", `{"type":"file_search_call","id":"a"},{"type":"file_search_call","id":"b"}`, ""), "0.005", "0.025",
		},
		"containers": {
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"code_interpreter","container":{"type":"auto"}}]`),
			fmt.Sprintf(response, "", `{"type":"code_interpreter_call","id":"a","container_id":"cntr_1"},{"type":"code_interpreter_call","id":"b","container_id":"cntr_1"},{"type":"code_interpreter_call","id":"c","container_id":"cntr_2"}`, ""), "0.06", "0.3",
		},
		"images that are counted": { // 100 x 5 + 50 once more + 4000 x 40 dollars a million
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"image_generation"}]`),
			fmt.Sprintf(response, "", `{"type":"image_generation_call","id":"a","result":"x"}`, `,"tool_usage":{"image_gen":{"input_tokens":100,"input_tokens_details":{"image_tokens":50},"output_tokens":4000}}`), "0.16075", "0.2496",
		},
		"images that are not": { // uncounted images are charged as the largest ones of the requested model
			"openai", gatewaytest.Responses, "/v1/responses", ask("openai/gpt-5", `"tools":[{"type":"image_generation","model":"gpt-image-1-mini"}]`),
			fmt.Sprintf(response, "", `{"type":"image_generation_call","id":"a","result":"x"}`, ""), "0.04992", "0.04992",
		},
		"xAI's searches": {
			"xai", gatewaytest.Responses, "/v1/responses", ask("xai/grok-4.20-0309-non-reasoning", `"tools":[{"type":"web_search"},{"type":"x_search"}]`),
			fmt.Sprintf(response, `,"server_side_tool_usage_details":{"web_search_calls":2,"x_search_calls":3,"code_interpreter_calls":0}`, `{"type":"web_search_call","id":"a"}`, ""), "0.025", "0.1",
		},
		"xAI's sources": {
			"xai", gatewaytest.Chat, "/v1/chat/completions", say("xai/grok-4.20-0309-non-reasoning", `"search_parameters":{"mode":"on","max_search_results":5}`),
			`{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":0,"completion_tokens":0,"num_sources_used":4}}`, "0.1", "0.125",
		},
		"Anthropic's searches": {
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-opus-4.6", `"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":3}]`),
			fmt.Sprintf(message, "", `,"server_tool_use":{"web_search_requests":2}`), "0.02", "0.03",
		},
		"fewer than no searches": {
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-opus-4.6", `"tools":[{"type":"web_search_20250305","name":"web_search","max_uses":-100000}]`),
			fmt.Sprintf(message, "", `,"server_tool_use":{"web_search_requests":2}`), "0.02", "0.1",
		},
		"Anthropic's code": {
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-opus-4.6", `"tools":[{"type":"code_execution_20250825","name":"code_execution"}]`),
			fmt.Sprintf(message, `{"type":"server_tool_use","id":"a","name":"bash_code_execution","input":{}},`, ""), "0.004167", "0.04167",
		},
		"an advisor": { // 1000 x 5 + 200 x 25
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-sonnet-4.5", `"tools":[{"type":"advisor_20260301","name":"advisor","model":"claude-opus-4-6"}]`),
			fmt.Sprintf(message, "", `,"iterations":[{"type":"message","input_tokens":0,"output_tokens":0},{"type":"advisor_message","model":"claude-opus-4-6","input_tokens":1000,"output_tokens":200}]`), "0.01", "3",
		},
		"a model that takes over": { // 100 x 10 + 10 x 50
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-sonnet-4.5", `"fallbacks":[{"model":"claude-fable-5"}]`),
			fmt.Sprintf(message, "", `,"iterations":[{"type":"message","model":"claude-sonnet-4-5-20250929","input_tokens":50,"output_tokens":0},{"type":"fallback_message","model":"claude-fable-5","input_tokens":100,"output_tokens":10}]`), "0.0015", "6",
		},
		"speed": { // 100 x 30 + 10 x 150
			"anthropic", gatewaytest.Messages, "/v1/messages", say("anthropic/claude-opus-4.6", `"speed":"fast"`),
			`{"id":"msg_1","type":"message","role":"assistant","model":"m","stop_reason":"end_turn","content":[],"usage":{"input_tokens":100,"output_tokens":10,"service_tier":"standard","speed":"fast"}}`, "0.0045", "0.0024",
		},
		"Google's searches": {
			"google", gatewaytest.Gemini, "/v4/ai/language-model", "google/gemini-3-flash-preview",
			`{"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP","groundingMetadata":{"webSearchQueries":["a","b"]}}],"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0}}`, "0.028", "0.14",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := hosting(t, test.kind, test.format, test.answer)
			var status int
			var body string
			if test.path == "/v4/ai/language-model" {
				r := w.request(t.Context(), dialects[3], test.body, false)
				sdk := strings.NewReader(`{"maxOutputTokens":16,"prompt":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[{"type":"provider","id":"google.google_search","name":"google_search","args":{}}]}`)
				r.Body, r.ContentLength = http.NoBody, int64(sdk.Len())
				r2, err := http.NewRequestWithContext(t.Context(), r.Method, r.URL.String(), sdk)
				if err != nil {
					t.Fatal(err)
				}
				r2.Header = r.Header
				status, body, _ = w.do(r2)
			} else {
				status, body, _ = w.post(test.path, test.body)
			}
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			r := w.record(1)
			if want := dollars(t, test.cost); r.Cost == nil || *r.Cost != want || len(r.Unpriced) != 0 {
				t.Errorf("cost %v, want %v; unpriced %v", r.Cost, want, r.Unpriced)
			}
			n := w.ledger.needs[len(w.ledger.needs)-1]
			if n.Unpriced || n.Cost < dollars(t, test.held) {
				t.Errorf("set aside %+v, want %s and more", n, test.held)
			}
		})
	}
}

// Tools without a known price make the call unpriced before it starts; afterwards the
// known part of the cost is charged.
func TestHosted_Unpriced(t *testing.T) {
	t.Parallel()
	w := hosting(t, "openai", gatewaytest.Responses, `{"id":"resp_1","object":"response","status":"completed","model":"m","usage":{"input_tokens":100,"output_tokens":10},"output":[{"type":"x_search_call","id":"a"}]}`)
	for i, test := range []struct {
		tools    string
		unpriced bool
	}{
		{`{"type":"function","name":"f","parameters":{}}`, false},
		{`{"type":"local_shell"}`, false},
		{`{"type":"mcp","server_label":"a","server_url":"https://a.example"}`, false},
		{`{"type":"namespace","name":"files","tools":[{"type":"function","name":"f","parameters":{}}]}`, false},
		{`{"type":"namespace","name":"files","tools":[{"type":"time_travel"}]}`, true},
		{`{"type":"time_travel"}`, true},
		{`{"type":"shell","environment":{"type":"container_auto"}}`, true},
		{`{"type":"image_generation","model":"gpt-image-9"}`, true},
	} {
		status, body, _ := w.post("/v1/responses", `{"model":"openai/gpt-5","input":"x","tools":[`+test.tools+`]}`)
		r := w.record(i + 1)
		if status != http.StatusOK || r.Cost == nil || *r.Cost != dollars(t, "0.000225") || len(r.Unpriced) != 1 || r.Unpriced[0] != "x_search" {
			t.Errorf("%s: %d %s, cost %v, unpriced %v", test.tools, status, body, r.Cost, r.Unpriced)
		}
		if n := w.ledger.needs[i]; n.Unpriced != test.unpriced || n.Cost == 0 || test.unpriced && n.Why == "" {
			t.Errorf("%s: set aside %+v", test.tools, n)
		}
	}
}

// A tool with contradictory members is refused: otherwise the gateway would reserve for
// one meaning and the provider could run the other.
func TestHosted_Twice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tool := range []string{
		`{"type":"namespace","tools":[],"tools":[{"type":"image_generation"}]}`, `{"type":"function","type":"image_generation"}`, `{"type":"function","\u0074ype":"image_generation"}`,
		`{"type":"image_generation","model":"gpt-image-1-mini","model":"gpt-image-1"}`, `{"type":"web_search_20250305","name":"web_search","max_uses":1,"max_uses":100}`,
	} {
		for _, path := range []string{"/v1/responses", "/v1/chat/completions"} {
			status, body, _ := w.post(path, `{"model":"`+map[string]string{"/v1/responses": "responses", "/v1/chat/completions": "chatcompletions"}[path]+`/text","input":"x","messages":[{"role":"user","content":"x"}],"tools":[`+tool+`]}`)
			if status != http.StatusBadRequest || !strings.Contains(body, "twice") {
				t.Errorf("%s: %d %s", tool, status, body)
			}
		}
	}
	if n := len(w.up.Requests()); n != 0 {
		t.Errorf("the provider got %d requests", n)
	}
}

// The key must allow every model that a request names.
func TestHosted_Models(t *testing.T) {
	t.Parallel()
	w := hosting(t, "openai", gatewaytest.Responses, `{"id":"resp_1","object":"response","status":"completed","model":"m","usage":{"input_tokens":1,"output_tokens":1},"output":[]}`)
	p := w.provider("anthropic", gatewaytest.Messages, w.up.URL)
	p.Kind = "anthropic"
	w.add(p)
	w.ledger.caller.Key = &gateway.Key{KeyScope: gateway.KeyScope{Models: []string{"openai/gpt-5", "openai/gpt-image-1", "anthropic/claude-sonnet-4.5"}}}
	for _, test := range []struct {
		path, body string
		status     int
	}{
		{"/v1/responses", `{"model":"openai/gpt-5","input":"x","tools":[{"type":"image_generation"}]}`, 200},
		{"/v1/responses", `{"model":"openai/gpt-5","input":"x","tools":[{"type":"image_generation","model":"gpt-image-1.5"}]}`, 403},
		{"/v1/responses", `{"model":"openai/gpt-5","input":"x","tools":[{"type":"image_generation","model":"unheard-of"}]}`, 403},
		{"/v1/responses", `{"model":"openai/gpt-5","input":"x","tools":[{"type":"image_generation","\u006dodel":"gpt-image-1.5"}]}`, 403},
		{"/v1/messages", `{"model":"anthropic/claude-sonnet-4.5","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"advisor_20260301","name":"advisor","model":"claude-opus-4-6"}]}`, 403},
		{"/v1/messages", `{"model":"anthropic/claude-sonnet-4.5","max_tokens":9,"messages":[{"role":"user","content":"x"}],"fallbacks":[{"model":"claude-opus-4-6"}]}`, 403},
		{"/v1/messages", `{"model":"anthropic/claude-sonnet-4.5","max_tokens":9,"messages":[{"role":"user","content":"x"}],"Fall_backs":[{"model":"claude-opus-4-6"}]}`, 403},
	} {
		if status, body, _ := w.post(test.path, test.body); status != test.status {
			t.Errorf("%s: %d %s", test.body, status, body)
		}
	}
	if n := len(w.up.Requests()); n != 0 {
		t.Errorf("Anthropic got %d requests", n)
	}
}

// An option counts however it reaches the provider: output limits are reserved and
// checked, and no other model may answer.
func TestHostile_Options(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		format, options string
		tokens          int64 // minimum reserved tokens; 0: refused
	}{
		{gatewaytest.Chat, `"lab":{"max_tokens":5000}`, 5000},
		{gatewaytest.Chat, `"lab":{"MAX_TOKENS":5000}`, 5000},
		{gatewaytest.Chat, `"lab":{"max_completion_tokens":5000}`, 5000},
		{gatewaytest.Chat, `"lab":{"maxCompletionTokens":5000}`, 5000},
		{gatewaytest.Chat, `"lab":{"max_new_tokens":5000}`, 5000},
		{gatewaytest.Chat, `"lab":{"options":{"num_predict":5000}}`, 5000},
		{gatewaytest.Chat, `"lab":{"best_of":50}`, 5000},
		{gatewaytest.Chat, `"lab":{"Models":["other/model"]}`, 0},
		{gatewaytest.Chat, `"lab":{"route":"fallback"}`, 0},
		{gatewaytest.Chat, `"lab":{"preset":"dear"}`, 0},
		{gatewaytest.Chat, `"lab":{"extra_body":{"model":"other"}}`, 0},
		{gatewaytest.Converse, `"bedrock":{"additionalModelRequestFields":{"max_tokens":5000}}`, 5000},
		{gatewaytest.Converse, `"bedrock":{"additionalModelRequestFields":{"thinking":{"type":"enabled"},"inferenceConfig":{"maxTokens":5000}}}`, 5000},
		{gatewaytest.Converse, `"bedrock":{"additionalModelRequestFields":{"tools":[{"type":"web_search_20250305"}]}}`, 0},
		{gatewaytest.Converse, `"bedrock":{"additionalModelRequestFields":{"speed":"fast"}}`, 0},
	} {
		t.Run(test.options, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.provider("lab", test.format, w.up.URL)
			w.add(p)
			w.model("m/a", "lab")
			post := func() (int, string) {
				r := w.request(t.Context(), dialects[3], "m/a", false)
				r2, err := http.NewRequestWithContext(t.Context(), r.Method, r.URL.String(),
					strings.NewReader(`{"maxOutputTokens":100,"prompt":[{"role":"user","content":[{"type":"text","text":"x"}]}],"providerOptions":{`+test.options+`}}`))
				if err != nil {
					t.Fatal(err)
				}
				r2.Header = r.Header
				status, body, _ := w.do(r2)
				return status, body
			}
			if test.tokens == 0 {
				if status, body := post(); status != http.StatusBadRequest || len(w.up.Requests()) != 0 {
					t.Errorf("%d %s", status, body)
				}
				return
			}
			status, body := post()
			said := strings.Contains(string(w.sent()), "5000") || strings.Contains(string(w.sent()), "best_of")
			if n := w.ledger.needs[len(w.ledger.needs)-1].Tokens; status != http.StatusOK || said && n < test.tokens {
				t.Fatalf("%d %s: %d tokens are reserved for %s", status, body, n, w.sent())
			}
			if !said { // the option did not reach the provider
				return
			}
			sent := len(w.up.Requests())
			w.ledger.caller.Key = &gateway.Key{KeyScope: gateway.KeyScope{MaxOutputTokens: 1000}}
			if !strings.Contains(test.options, "best_of") {
				if status, body := post(); status != http.StatusForbidden {
					t.Errorf("beyond the key's: %d %s", status, body)
				}
				w.ledger.caller.Key = nil
				g, err := guard.New(guard.Config{MaxOutputTokens: 1000}, nil)
				if err != nil {
					t.Fatal(err)
				}
				s := *w.settings
				s.Guards = g
				w.settings = &s
				if status, body := post(); status != http.StatusBadRequest {
					t.Errorf("beyond the guards': %d %s", status, body)
				}
				if n := len(w.up.Requests()); n != sent {
					t.Errorf("the provider got %d more requests", n-sent)
				}
			}
		})
	}
}

// sent returns the body of the first request to the provider.
func (w *world) sent() []byte {
	all := w.up.Requests()
	if len(all) == 0 {
		return nil
	}
	return all[0].Body
}
