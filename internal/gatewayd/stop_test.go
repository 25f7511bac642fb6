package gatewayd_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// A stopping gateway cancels calls that do not end in time, with a record, and refuses
// new calls.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.up.On("hang", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: strings.Repeat("Hello ", 50)}, Fault: gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: 10}})
	resp, err := w.client.Do(w.request(t.Context(), dialects[0], "chatcompletions/hang", true))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.engine.Close(ctx)
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), `{"error":`) || strings.Contains(string(body), "[DONE]") && strings.Contains(string(body), `"finish_reason":"stop"`) {
		t.Errorf("%v: ...%s", err, body[max(0, len(body)-300):])
	}
	if r := w.record(1); r.Status != gateway.Failed || r.Tokens.Output == 0 {
		t.Errorf("%+v", r)
	}
	if status, body, head := w.ask(dialects[1], "messages/text", false); status != 529 || head.Get("Retry-After") == "" {
		t.Errorf("%d %s", status, body)
	}
}

// A request's own credential is tried before the configured ones, and pays.
func TestBYOK(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world, _ *gatewayd.Config) { w.settings.Custom = provider.NewBYOK(nil).Credential })
	w.model("m/a", "chatcompletions")
	for i, test := range []struct{ keys, want string }{
		{`[{"apiKey":"` + gatewaytest.Key + `"}]`, "chatcompletions+"},
		{`[{"apiKey":"sk-wrong-one-0123456789"},{"apiKey":"sk-wrong-two-0123456789"}]`, "chatcompletions- chatcompletions- chatcompletions+"},
	} {
		status, body, _ := w.chat("m/a", `"providerOptions":{"gateway":{"byok":{"chatcompletions":`+test.keys+`}}}`)
		r := w.record(i + 1)
		if status != 200 || asked(r) != test.want || r.BYOK != (i == 0) || (*r.Cost == 0) != (i == 0) || *r.MarketCost == 0 {
			t.Errorf("%d %s, asked %s, BYOK %v, cost %v", status, body, asked(r), r.BYOK, r.Cost)
		}
		if strings.Contains(body, "sk-wrong") || strings.Contains(w.log.String(), "sk-wrong") {
			t.Error("a key is shown")
		}
	}
}

// Gateway extensions of a format are translated to the provider's format.
func TestExtras(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if status, body, _ := w.chat("chatcompletions/echo", `"reasoning":{"effort":"high"}`); status != http.StatusOK {
		t.Fatal(body)
	}
	if sent := string(w.up.Of("echo")[0].Body); strings.Contains(sent, `"reasoning":`) || !strings.Contains(sent, `"reasoning_effort":"high"`) {
		t.Errorf("the provider was sent %s", sent)
	}
}
