package gatewayd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// withOwn returns a world whose project has its own keys at the provider chatcompletions.
func withOwn(t *testing.T, fallback bool, keys ...string) *world {
	t.Helper()
	w := newWorld(t, func(w *world, _ *gatewayd.Config) {
		w.settings.Custom = provider.NewBYOK(nil).Credential
		w.settings.Own = func(project, name string) (list []provider.Credential, _ bool) {
			if project != "project" || name != "chatcompletions" {
				return nil, true
			}
			for _, key := range keys {
				s, err := provider.NewSecret(key)
				if err != nil {
					t.Error(err)
				}
				list = append(list, provider.Bearer(provider.Owner{ID: "project/" + key[:8], BYOK: true}, s))
			}
			return list, fallback
		}
	})
	w.model("m/a", "messages", "chatcompletions")
	return w
}

// A project's own credentials are tried first; their calls are not charged, and are
// marked as BYOK. The operator's credentials follow only if the project allows the
// fallback.
func TestOwn(t *testing.T) {
	t.Parallel()
	const wrong = "sk-wrong-one-0123456789"
	for _, test := range []struct {
		name     string
		keys     []string
		fallback bool
		options  string
		want     string
		byok     bool
		status   int
	}{
		{name: "OwnFirst", keys: []string{gatewaytest.Key}, want: "chatcompletions+", byok: true, status: 200},
		{name: "NextOfItsOwn", keys: []string{wrong, gatewaytest.Key}, want: "chatcompletions- chatcompletions+", byok: true, status: 200},
		{name: "Fallback", keys: []string{wrong}, fallback: true, want: "chatcompletions- chatcompletions+", status: 200},
		{name: "OtherProvider", keys: []string{wrong}, want: "chatcompletions- messages+", status: 200},
		{name: "NoFallback", keys: []string{wrong}, options: `"only":["chatcompletions"]`, want: "chatcompletions-", byok: true, status: 502},
		{name: "OrderOfTheRequest", keys: []string{gatewaytest.Key}, options: `"order":["messages"]`, want: "messages+", status: 200},
		{name: "RequestHidesThem", keys: []string{wrong}, options: `"byok":{"chatcompletions":[{"apiKey":"` + gatewaytest.Key + `"}]},"only":["chatcompletions"]`, want: "chatcompletions+", byok: true, status: 200},
		{name: "RequestHidesThemWithoutFallback", keys: []string{gatewaytest.Key}, options: `"byok":{"chatcompletions":[{"apiKey":"` + wrong + `"}]},"only":["chatcompletions"]`, want: "chatcompletions-", byok: true, status: 502},
		{name: "ZeroRetentionIsTheAccounts", keys: []string{gatewaytest.Key}, options: `"zeroDataRetention":true`, want: "", status: 400},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := withOwn(t, test.fallback, test.keys...)
			status, body, _ := w.chat("m/a", `"providerOptions":{"gateway":{`+test.options+`}}`)
			r := w.record(1)
			if status != test.status || asked(r) != test.want {
				t.Fatalf("%d %s, asked %q", status, body, asked(r))
			}
			if strings.Contains(body, wrong) || strings.Contains(w.log.String(), wrong) {
				t.Error("a key is shown")
			}
			if status != 200 {
				return
			}
			if r.BYOK != test.byok || (*r.Cost == 0) != test.byok || *r.MarketCost == 0 {
				t.Errorf("BYOK %v, cost %v, list price %v", r.BYOK, r.Cost, r.MarketCost)
			}
			how := "system"
			if test.byok {
				how = "byok"
			}
			attempts := gjson.Get(body, "choices.0.message.provider_metadata.gateway.routing.attempts").Array()
			if n := len(attempts); n == 0 || attempts[n-1].Get("credentialType").Str != how {
				t.Errorf("the metadata says %v", attempts)
			}
		})
	}
}

// Calls of another project use the operator's credentials.
func TestOwn_OtherProject(t *testing.T) {
	t.Parallel()
	w := withOwn(t, false, "sk-wrong-one-0123456789")
	w.ledger.caller.ProjectID = "another"
	if status, body, _ := w.chat("m/a", `"providerOptions":{"gateway":{"only":["chatcompletions"]}}`); status != 200 || w.record(1).BYOK {
		t.Errorf("%d %s", status, body)
	}
}

// A missing model in the project's account does not count against the operator's.
func TestOwn_ModelOfTheAccount(t *testing.T) {
	t.Parallel()
	w := withOwn(t, true, gatewaytest.Key)
	w.model("m/b", "chatcompletions:ours")
	w.settings.Own = func(string, string) ([]provider.Credential, bool) {
		s, err := provider.NewSecret(gatewaytest.Key)
		if err != nil {
			t.Error(err)
		}
		return []provider.Credential{provider.Bearer(provider.Owner{ID: "project/key", BYOK: true, Models: map[string]string{"m/b": "theirs"}}, s)}, true
	}
	w.up.On("theirs", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.NoModel}})
	w.up.On("ours", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "Hello."}})
	status, body, _ := w.chat("m/b", `"providerOptions":{"gateway":{}}`)
	r := w.record(1)
	if status != 200 || asked(r) != "chatcompletions- chatcompletions+" || r.BYOK || r.Attempts[0].ProviderModel != "theirs" || !r.Attempts[0].BYOK {
		t.Errorf("%d %s: %+v", status, body, r.Attempts)
	}
}

// Models that only the project's credential can reach are listed for the project.
func TestOwn_Models(t *testing.T) {
	t.Parallel()
	w := withOwn(t, false, gatewaytest.Key)
	p := w.provider("chatcompletions", gatewaytest.Chat, w.up.URL)
	p.Credentials = nil
	w.settings.Providers = provider.NewSet(p)
	w.ledger.caller.Key = &gateway.Key{ID: "gk_test"}
	list := func() string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+secret)
		_, body, _ := w.do(r)
		return body
	}
	if got := list(); gjson.Get(got, "data.#").Int() != 1 || gjson.Get(got, "data.0.id").Str != "m/a" {
		t.Error(got)
	}
	w.ledger.caller.ProjectID = "another"
	if got := list(); gjson.Get(got, "data.#").Int() != 0 {
		t.Error(got)
	}
}
