package gatewayd_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// two returns a world with a model at three providers, the first of which fails with f.
func two(t *testing.T, f gatewaytest.Fault) *world {
	w := newWorld(t)
	for _, name := range []string{"first", "second", "third"} {
		p := w.provider(name, gatewaytest.Chat, w.up.URL)
		p.Country = map[string]string{"first": "US", "second": "FR", "third": "CN"}[name]
		p.ZeroRetention, p.NoTraining = name == "second", name != "third"
		w.add(p)
	}
	w.model("m/a", "first:broken", "second", "third")
	w.model("m/b", "third:other")
	w.up.On("broken", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: strings.Repeat("Hello ", 100)}, Fault: f})
	w.up.On("other", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "From the other model."}})
	return w
}

// impatient sets the first-byte timeout of the first of two's providers.
func (w *world) impatient(wait time.Duration) {
	p := w.settings.Providers.Get("first")
	p.FirstByte, p.Idle = wait, wait
}

// asked returns the providers of a record's attempts.
func asked(r gateway.Request) string {
	var all []string
	for _, a := range r.Attempts {
		all = append(all, a.Provider+map[bool]string{true: "+", false: "-"}[a.OK])
	}
	return strings.Join(all, " ")
}

func TestFallback(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fault gatewaytest.Fault
		want  string
		lost  bool // the first has begun to work
	}{
		{gatewaytest.Fault{Kind: gatewaytest.ServerError}, "first- first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.Overloaded}, "first- first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.Reset}, "first- first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.RateLimited, RetryAfter: time.Minute}, "first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.BadKey}, "first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.NoModel}, "first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.HangInHead}, "first- second+", true},
		{gatewaytest.Fault{Kind: gatewaytest.WrongType}, "first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.Garbage}, "first- second+", true},
		{gatewaytest.Fault{Kind: gatewaytest.Cut, After: 20}, "first- second+", true},
		{gatewaytest.Fault{Kind: gatewaytest.ErrorInStream}, "first- second+", false},
		{gatewaytest.Fault{Kind: gatewaytest.HangInStream}, "first- second+", true},
		{gatewaytest.Fault{Kind: gatewaytest.Rejected}, "first-", false}, // the request is at fault
	} {
		for _, stream := range []bool{true, false} {
			if test.fault.Kind == gatewaytest.ErrorInStream && !stream {
				continue
			}
			t.Run(strings.ReplaceAll(string(test.fault.Kind), " ", "-")+map[bool]string{true: "/stream", false: "/whole"}[stream], func(t *testing.T) {
				t.Parallel()
				judge := func(d dialect, wait time.Duration) bool {
					w := two(t, test.fault)
					w.impatient(wait)
					status, body, head := w.ask(d, "m/a", stream)
					r := w.record(1)
					if len(w.up.Of("broken")) == 0 {
						return false // canceled before the provider was called
					}
					if got := asked(r); got != test.want {
						t.Errorf("%s: asked %s, want %s", d.name, got, test.want)
					}
					if !strings.HasSuffix(test.want, "+") {
						if status != 400 {
							t.Errorf("%s: status %d: %s", d.name, status, body)
						}
						return true
					}
					if status != 200 || !strings.Contains(body, "er.\"") && !strings.Contains(body, "er.\\\"") && !strings.Contains(body, "provider.") || r.Status != gateway.Succeeded || r.Provider != "second" || head.Get("X-Cay-Provider") != "second" {
						t.Errorf("%s: %d %s, record %+v", d.name, status, body, r)
					}
					want := 40*price.Input + 12*price.Output
					for _, a := range r.Attempts {
						if a.Cost != nil {
							want += *a.Cost
						}
					}
					if lost := want > 40*price.Input+12*price.Output; lost != test.lost {
						t.Errorf("%s: attempts are charged %v, want %v", d.name, lost, test.lost)
					}
					if r.Cost == nil || *r.Cost != want || r.Tokens.Estimated {
						t.Errorf("%s: cost %v, want %v", d.name, r.Cost, want)
					}
					return true
				}
				for _, d := range []dialect{dialects[0], dialects[1]} { // passing, and translated
					if test.fault.Kind != gatewaytest.HangInHead && test.fault.Kind != gatewaytest.HangInStream {
						judge(d, time.Minute)
						continue
					}
					patiently(t, time.Second, func(wait time.Duration) bool { return judge(d, wait) })
				}
			})
		}
	}
}

// After the first content there is no fallback.
func TestFallback_NotAfterContent(t *testing.T) {
	t.Parallel()
	patiently(t, time.Second, func(wait time.Duration) bool {
		w := two(t, gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 8})
		w.impatient(wait)
		status, body, _ := w.ask(dialects[0], "m/a", true)
		if !strings.Contains(body, `"model":"broken"`) {
			return false // canceled before content arrived
		}
		if r := w.record(1); status != 200 || asked(r) != "first-" || !strings.Contains(body, `{"error":`) {
			t.Errorf("%d %s, asked %s", status, body, asked(r))
		}
		return true
	})
}

func TestFallback_Models(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.Rejected})
	status, body, _ := w.chat("m/a", `"providerOptions":{"gateway":{"only":["first","third"],"models":["m/none","m/b"]}}`)
	r := w.record(1)
	if status != 200 || asked(r) != "first- third+" || r.Served != "m/b" || !strings.Contains(body, "From the other model.") {
		t.Fatalf("%d %s, asked %s", status, body, asked(r))
	}
	m := gjson.Get(body, "choices.0.message.provider_metadata.gateway")
	for path, want := range map[string]string{
		"generationId": r.ID, "cost": r.Cost.String(), "routing.originalModelId": "m/a", "routing.canonicalSlug": "m/b", "routing.finalProvider": "third",
		"routing.resolvedProviderApiModelId": "other", "routing.attempts.#": "2", "routing.attempts.0.success": "false", "routing.attempts.0.statusCode": "400",
		"routing.attempts.1.success": "true", "routing.attempts.1.credentialType": "system", "routing.modelAttempts.#": "2",
		"routing.modelAttempts.1.providerAttempts.0.provider": "third", "routing.totalProviderAttemptCount": "2",
	} {
		if got := m.Get(path).String(); got != want {
			t.Errorf("%s is %q, want %q in %s", path, got, want, m.Raw)
		}
	}
	status, body, _ = w.chat("m/none", `"models":["m/b"]`)
	if status != 200 || !strings.Contains(body, "From the other model.") {
		t.Errorf("%d %s", status, body)
	}
	for _, q := range w.up.Requests() {
		if strings.Contains(string(q.Body), "models") || strings.Contains(string(q.Body), "providerOptions") {
			t.Errorf("the provider was sent %s", q.Body)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.ServerError})
	for i, test := range []struct {
		options string
		status  int
		want    string // the provider called, or a text in the error
	}{
		{`{"order":["third"]}`, 200, "third+"},
		{`{"order":["second","first"]}`, 200, "second+"},
		{`{"only":["third"]}`, 200, "third+"},
		{`{"only":["nobody"]}`, 400, "first, second, third"},
		{`{"zeroDataRetention":true}`, 200, "second+"},
		{`{"disallowPromptTraining":true,"order":["third","second"]}`, 200, "second+"},
		{`{"headquarters":["FR"]}`, 200, "second+"},
		{`{"headquarters":["!US","!FR"]}`, 200, "third+"},
		{`{"headquarters":["!US","FR"]}`, 400, "headquarters"},
		{`{"has":["teleportation"]}`, 400, "implicit-caching"},
		{`{"has":["vision"]}`, 400, "has vision"},
		{`{"sort":"fame"}`, 400, "sort"},
		{`{"serviceTier":"gold"}`, 400, "serviceTier"},
		{`{"tags":"x"}`, 400, "tags"},
		{`{"providerTimeouts":{"byok":{"first":10}}}`, 400, "1000 to 789000"},
		{`{"byok":{"first":[{"apiKey":"x"}]}}`, 400, "takes no credentials"},
		{`[]`, 400, "must be an object"},
	} {
		status, body, _ := w.chat("m/a", `"providerOptions":{"gateway":`+test.options+`}`)
		r := w.record(i + 1)
		if status != test.status || status == 200 && asked(r) != test.want || status != 200 && !strings.Contains(body, test.want) {
			t.Errorf("%s: %d, asked %q: %s", test.options, status, asked(r), body)
		}
		if status != 200 && (r.Status != gateway.Refused || len(r.Attempts) != 0) {
			t.Errorf("%s: %+v", test.options, r)
		}
	}
}

// A circuit opens after failures in a row; then the endpoint comes last.
func TestCircuit(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.ServerError})
	var got []string
	for i := range 5 {
		w.chat("m/a", `"providerOptions":{"gateway":{"order":["first"]}}`)
		got = append(got, asked(w.record(i+1)))
	}
	if got[1] != "first- first- second+" || got[3] != "second+" || got[4] != "second+" {
		t.Errorf("asked %q", got)
	}
	var state string
	for _, m := range w.engine.Models() {
		if m.ID == "m/a" {
			state = m.Endpoints[0].Health.State
		}
	}
	if state != "open" {
		t.Errorf("the endpoint is %s", state)
	}
}

// A rate-limited credential comes after the others.
func TestCredential_CoolDown(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.RateLimited, RetryAfter: time.Minute})
	w.ask(dialects[0], "m/a", false)
	w.ask(dialects[0], "m/a", false)
	if a, b := asked(w.record(1)), asked(w.record(2)); a != "first- second+" || b != "second+" {
		t.Errorf("asked %s, then %s", a, b)
	}
}

// A session keeps its endpoint.
func TestSession(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.NoModel})
	for i, want := range []string{"first- second+", "second+"} {
		r := w.request(t.Context(), dialects[1], "m/a", false)
		r.Header.Set("X-Claude-Code-Session-Id", "s1")
		r.Header.Set("X-Cay-Workflow-Run", "wrun_1") // the client's session takes precedence
		if status, body, _ := w.do(r); status != 200 {
			t.Fatal(body)
		}
		if got := w.record(i + 1); asked(got) != want || got.Session != "s1" {
			t.Errorf("asked %s, want %s", asked(got), want)
		}
	}
}

// Calls of a workflow's steps form a session.
func TestSession_Workflow(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.NoModel})
	for i, want := range []string{"first- second+", "second+"} {
		r := w.request(t.Context(), dialects[1], "m/a", false)
		r.Header.Set("X-Cay-Workflow-Run", "wrun_1")
		if status, body, _ := w.do(r); status != 200 {
			t.Fatal(body)
		}
		if got := w.record(i + 1); asked(got) != want || got.Session != "wrun_1" {
			t.Errorf("asked %s in session %q, want %s", asked(got), got.Session, want)
		}
	}
}

// The key's scope limits the candidates.
func TestScope(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.ServerError})
	w.ledger.caller.Key = &gateway.Key{ID: "gk_test", KeyScope: gateway.KeyScope{Models: []string{"m/*"}, Providers: []string{"third"}, MaxOutputTokens: 50}}
	status, body, _ := w.chat("m/a", "")
	if r := w.record(1); status != 200 || asked(r) != "third+" {
		t.Errorf("%d %s, asked %s", status, body, asked(r))
	}
	if sent := w.up.Of("text")[0].Body; gjson.GetBytes(sent, "max_tokens").Int() != 50 {
		t.Errorf("the provider was sent %s", sent)
	}
	if status, body, _ = w.chat("m/a", `"max_tokens":51`); status != 403 {
		t.Errorf("%d %s", status, body)
	}
	w.model("x/c", "third")
	if status, body, _ = w.chat("x/c", ""); status != 403 || !strings.Contains(body, "x/c") {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ = w.post("/v1/messages", `{"model":"m/a","max_tokens":20,"messages":[{"role":"user","content":"hi"}]}`); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestRules(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.NoModel})
	w.settings.Route = func(c *ledger.Caller, model string) (gatewayd.Preset, error) {
		switch model {
		case "m/secret":
			return gatewayd.Preset{}, &hub.Error{Kind: hub.Forbidden, Message: "no", Details: []byte(`{"ruleId":"r1"}`)}
		case "m/fast":
			return gatewayd.Preset{Model: "m/a", Only: []string{"second", "third"}, Order: []string{"third"}}, nil
		}
		return gatewayd.Preset{}, nil
	}
	if status, body, _ := w.chat("m/secret", ""); status != 403 {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := w.chat("m/fast", ""); status != 200 || asked(w.record(2)) != "third+" || w.record(2).Model != "m/fast" || w.record(2).Served != "m/a" {
		t.Errorf("%d %s %+v", status, body, w.record(2))
	}
}

// A more expensive fallback raises the need; the need is at least the cost.
func TestNeed(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.NoModel})
	dear := *price
	dear.Output *= 100
	m := gateway.Model{ID: "m/dear", Kind: "language", Context: 1000, MaxOutput: 1000, Endpoints: []gateway.Endpoint{
		{Provider: "first", Model: "broken", Price: price}, {Provider: "second", Model: "text", Price: &dear},
	}}
	w.model(m.ID, "first:broken", "second")
	i := slices.IndexFunc(w.settings.Catalog.List(), func(o gateway.Model) bool { return o.ID == m.ID })
	w.settings.Catalog.List()[i].Endpoints = m.Endpoints
	status, body, _ := w.chat("m/dear", `"max_tokens":100`)
	r := w.record(1)
	if status != 200 || asked(r) != "first- second+" {
		t.Fatalf("%d %s, asked %s", status, body, asked(r))
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	if n := w.ledger.needs; len(n) != 2 || n[0].Cost >= n[1].Cost || n[1].Cost < *r.Cost || n[1].Cost < 100*dear.Output {
		t.Errorf("needs %+v, cost %v", n, *r.Cost)
	}
}

// A provider that exceeds its first-token timeout is abandoned for the next.
func TestTimeout_FirstToken(t *testing.T) {
	t.Parallel()
	w := two(t, gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 1}) // after the role alone
	begun := time.Now()
	r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(
		`{"model":"m/a","stream":true,"messages":[{"role":"user","content":"hi"}],"providerOptions":{"gateway":{"providerTimeouts":{"byok":{"first":3000}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	status, body, _ := w.do(r)
	if got := w.record(1); status != 200 || asked(got) != "first- second+" || time.Since(begun) < 3*time.Second {
		t.Errorf("%d %s, asked %s", status, body, asked(got))
	}
	if last := body[max(0, len(body)-16):]; last != "data: [DONE]\n\n" && !strings.HasSuffix(body, "data: [DONE]\n\n") || !strings.Contains(body, `"provider_metadata":{"gateway":{"generationId"`) {
		t.Errorf("the stream ends with %s", body[max(0, len(body)-600):])
	}
}

// Without any configuration the error lists all providers that offer the model, not only
// the last.
func TestNoCredential(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"first", "second"} {
		p := w.provider(name, gatewaytest.Chat, w.up.URL)
		p.Credentials, p.NeedsCredential = nil, true
		w.add(p)
	}
	w.model("m/a", "first", "second")
	status, body, _ := w.chat("m/a", "")
	if want := "m/a is offered by first and second, and the gateway has no key of theirs"; status != http.StatusNotFound || gjson.Get(body, "error.message").Str != want {
		t.Errorf("answered %d %s; want 404, %q", status, body, want)
	}
}
