package gatewayd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Requests that two parsers may read differently are refused: otherwise the gateway would
// reserve for one reading, and the provider might bill for the other.
func TestHostile_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	for _, members := range []string{
		`"Model":"lab/other"`, `"Max_tokens":100000`, `"MAX_COMPLETION_TOKENS":100000`, `"Stream":true`,
		`"stream":1`, `"stream":"true"`, `"n":"5"`, `"n":1.5`, `"n":0`, `"n":129`, `"max_tokens":"5"`, `"max_tokens":-1`,
	} {
		status, body, _ := w.chat("lab/m", members)
		if status != http.StatusBadRequest || !strings.Contains(body, `"error"`) {
			t.Errorf("%s: %d %s", members, status, body)
		}
	}
	if status, body, _ := w.post("/v1/responses", `{"model":"lab/m","input":"x","background":true}`); status != http.StatusBadRequest || !strings.Contains(body, "background") {
		t.Errorf("in the background: %d %s", status, body)
	}
	if n := len(w.up.Requests()); n != 0 {
		t.Errorf("the provider got %d requests", n)
	}
}

// If a request has two limits, the larger one is reserved and checked against the key's
// limit.
func TestHostile_TwoLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	if status, body, _ := w.chat("lab/m", `"max_tokens":1,"max_completion_tokens":900`); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	w.record(1)
	if n := w.ledger.needs[0].Tokens; n < 900 {
		t.Errorf("%d tokens are reserved, want 900 and more", n)
	}
}

// A client that sets include_usage twice cannot prevent the gateway from getting the
// usage.
func TestHostile_UsageTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	for i, options := range []string{
		`{"include_usage":true,"include_usage":false}`, `{"include_usage":false,"include_usage":true}`,
		`{"include_usage":true,"include\u005fusage":false,"other":1}`, `null`, `{}`,
	} {
		if status, body, _ := w.chat("lab/m", `"stream":true,"stream_options":`+options); status != http.StatusOK {
			t.Fatalf("%s: %d %s", options, status, body)
		}
		if r := w.record(i + 1); r.Tokens.Estimated || r.Tokens.Output == 0 {
			t.Errorf("%s: the usage is guessed: %+v", options, r.Tokens)
		}
		sent := string(w.up.Requests()[i].Body)
		if strings.Count(sent, "usage") != 1 || !strings.Contains(sent, `"include_usage":true`) {
			t.Errorf("%s: the provider got %s", options, sent)
		}
	}
}

// Rules apply to every model that a request names.
func TestHostile_RuleOfFallback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("lab/m", gatewaytest.Chat)
	s := *w.settings
	s.Route = func(_ *ledger.Caller, name string) (gatewayd.Preset, error) {
		if name == "lab/m" {
			return gatewayd.Preset{}, &hub.Error{Kind: hub.Forbidden, Message: "lab/m is not for you"}
		}
		return gatewayd.Preset{}, nil
	}
	w.settings = &s
	status, body, _ := w.chat("lab/none", `"models":["lab/m"]`)
	if status != http.StatusForbidden || len(w.up.Requests()) != 0 {
		t.Errorf("%d %s after %d requests", status, body, len(w.up.Requests()))
	}
}

// A fetched file counts each time the request uses it.
func TestHostile_OneFileManyTimes(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		_, _ = w.Write(make([]byte, 4<<20))
	}))
	t.Cleanup(site.Close)
	w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.Fetch = netip.MustParsePrefix("127.0.0.0/8").Contains })
	part := `{"type":"image_url","image_url":{"url":"` + site.URL + `/a.png"}}`
	content := strings.Repeat(part+",", 30) + part
	status, body, _ := w.post("/v1/chat/completions", fmt.Sprintf(`{"model":"gemini/text","messages":[{"role":"user","content":[%s]}]}`, content))
	if status != http.StatusRequestEntityTooLarge || !strings.Contains(body, "files") {
		t.Errorf("%d %.200s", status, body)
	}
}

// Counting tokens is free, but takes a slot of the key's concurrency.
func TestHostile_CountTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("m/counted", gatewaytest.Messages)
	w.model("m/guessed", gatewaytest.Chat)
	for i, model := range []string{"m/counted", "m/guessed"} {
		status, body, _ := w.post("/v1/messages/count_tokens", `{"model":"`+model+`","messages":[{"role":"user","content":"Say hello"}]}`)
		if status != http.StatusOK || !strings.Contains(body, `"input_tokens":`) {
			t.Fatalf("%d %s", status, body)
		}
		r := w.record(i + 1)
		if r.Surface != "count_tokens" || r.Status != gateway.Succeeded || r.Cost == nil || *r.Cost != 0 || r.Tokens != (gateway.Tokens{}) {
			t.Errorf("%s: %+v", model, r)
		}
		if n := w.ledger.needs[i]; n.Cost != 0 || n.Tokens != 0 || n.Unpriced {
			t.Errorf("%s: admitted with %+v", model, n)
		}
	}
	w.ledger.refuse = &hub.Error{Kind: hub.RateLimited, Message: "too many"}
	status, body, _ := w.post("/v1/messages/count_tokens", `{"model":"m/counted","messages":[{"role":"user","content":"Say hello"}]}`)
	if status != http.StatusTooManyRequests || len(w.up.Requests()) != 1 {
		t.Errorf("%d %s", status, body)
	}
	w.ledger.refuse = nil
	w.ledger.caller.Key = &gateway.Key{KeyScope: gateway.KeyScope{Models: []string{"m/guessed"}}}
	status, body, _ = w.post("/v1/messages/count_tokens", `{"model":"m/counted","messages":[{"role":"user","content":"Say hello"}]}`)
	if status != http.StatusForbidden || len(w.up.Requests()) != 1 {
		t.Errorf("another model: %d %s", status, body)
	}
}

// A cost reported by the provider is charged if the gateway knows no price.
func TestHostile_ReportedCost(t *testing.T) {
	t.Parallel()
	said := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":"x","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":10,"completion_tokens":5%s}}`, said)
	}))
	t.Cleanup(srv.Close)
	w := newWorld(t)
	p := w.provider("many", gatewaytest.Chat, srv.URL)
	p.SelfHosted = false
	w.add(p)
	w.model("m/known", "many")
	for i, test := range []struct {
		model, said string
		want        *gateway.Money
	}{
		{"many/any", `,"cost":0.0125`, new(gateway.Dollar / 80)},
		{"many/any", `,"cost":{"total_cost":0.0125}`, new(gateway.Dollar / 80)},
		{"many/any", `,"cost_in_usd_ticks":125000000`, new(gateway.Dollar / 80)},
		{"many/any", `,"cost":-1`, nil},
		{"many/any", ``, nil},
		{"m/known", `,"cost":0.0125`, new(10*price.Input + 5*price.Output)},
	} {
		said = test.said
		if status, body, _ := w.chat(test.model, ""); status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		r := w.record(i + 1)
		if (r.Cost == nil) != (test.want == nil) || test.want != nil && *r.Cost != *test.want {
			t.Errorf("%s: cost %v, want %v", test.said, r.Cost, test.want)
		}
		if unpriced := w.ledger.needs[i].Unpriced; unpriced != (test.model == "many/any") {
			t.Errorf("%s: admitted as unpriced: %v", test.model, unpriced)
		}
	}
}
