package gatewayd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// An unlisted model is passed to the provider named before the slash, for every kind of
// call, at an unknown price, which budgets see.
func TestUnlisted_EveryKind(t *testing.T) {
	t.Parallel()
	for _, k := range provider.KnownKinds() {
		if k.Kind == "cay" { // the kind cay answers from scripts
			continue
		}
		t.Run(k.Kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			format := gatewaytest.Chat
			if len(k.Formats) > 0 {
				format = k.Formats[0]
			}
			p := w.provider(k.Kind, format, w.up.URL)
			p.Kind, p.SelfHosted, p.Unlisted = k.Kind, k.SelfHosted, k.New(k.Kind, provider.Where{}).Unlisted
			w.add(p)
			for i, d := range dialects {
				status, body, head := w.ask(d, k.Kind+"/text", false)
				r := w.record(i + 1)
				if status != http.StatusOK || r.Status != gateway.Succeeded || r.Served != k.Kind+"/text" {
					t.Fatalf("%s: %d %s", d.name, status, body)
				}
				if k.SelfHosted {
					if r.Cost == nil || head.Get("X-Cay-Warning") != "" {
						t.Errorf("%s: the cost is %v, with the warning %q", d.name, r.Cost, head.Get("X-Cay-Warning"))
					}
					continue
				}
				if r.Cost != nil || !w.ledger.needs[i].Unpriced {
					t.Errorf("%s: the cost is %v, and what budgets are asked for %+v", d.name, r.Cost, w.ledger.needs[i])
				}
				if !strings.Contains(head.Get("X-Cay-Warning"), "unknown") || head.Get("X-Cay-Cost") != "" {
					t.Errorf("%s: the warning is %q, the cost %q", d.name, head.Get("X-Cay-Warning"), head.Get("X-Cay-Cost"))
				}
				if d.name != format && !strings.Contains(body, "what it costs is unknown") {
					t.Errorf("%s: the translated answer has no warning: %s", d.name, body)
				}
			}
			if n := strings.Count(w.log.String(), "its price is unknown"); n != 1 && !k.SelfHosted {
				t.Errorf("the log has %d warnings", n)
			}
		})
	}
}

// The error for an unknown model says which settings add a model.
func TestUnlisted_Errors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.provider("strict", gatewaytest.Chat, w.up.URL)
	p.Unlisted = false
	w.add(p)
	for name, says := range map[string]string{
		"strict/text": "the provider strict serves the models of the catalogue only",
		"nobody/text": "no provider \"nobody\"",
		"text":        "provider/model",
		"strict/":     "provider/model",
	} {
		for _, d := range dialects {
			status, body, _ := w.ask(d, name, false)
			message := gjson.Get(body, "error.message").Str
			if status != http.StatusNotFound {
				t.Errorf("%s to %s: %d %s", name, d.name, status, body)
			}
			for _, want := range []string{says, "unlisted: true", "models:", name} {
				if !strings.Contains(message, want) {
					t.Errorf("%s to %s: the error has no %s: %s", name, d.name, want, message)
				}
			}
		}
	}
}
