package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/fake"
)

// A provider that is configured while the daemon runs is called by the next
// request, with the project's own credential if it has one; also after a
// restart.
func TestGateway_Providers(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Content-Type", "application/json")
		if key == "refused" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"error":{"message":"no","type":"invalid_request_error"}}`) // fails only when the daemon left
			return
		}
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"called with %s"}}],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`, key)
	}))
	t.Cleanup(up.Close)
	data := t.TempDir()
	start := func() (*daemon.Daemon, *gateway.Client) {
		t.Helper()
		listen := func() net.Listener {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		cfg := settings(data)
		runtime, err := fake.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		d, err := daemon.New(t.Context(), cfg, daemon.Options{Runtime: runtime, Listener: listen(), GatewayListener: listen()})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(cfg.AdminTokenFile())
		if err != nil {
			t.Fatal(err)
		}
		return d, &gateway.Client{URL: d.URL(), Token: strings.TrimSpace(string(raw)), HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	}
	d, c := start()
	ctx := t.Context()
	key, err := c.CreateKey(ctx, gateway.CreateKeyParams{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, d.GatewayURL()+"/v1/chat/completions", strings.NewReader(`{"model":"house/m","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key.Secret)
		resp, err := c.HTTPClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	want := func(text string, byok bool) {
		t.Helper()
		if status, body := ask(); status != http.StatusOK || !strings.Contains(body, text) {
			t.Errorf("%d %s, want %s", status, body, text)
		}
		page, err := c.ListRequests(ctx, gateway.RequestFilter{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if r := page.Items[0]; r.BYOK != byok || r.Provider != "house" || (*r.Cost == 0) != byok || *r.MarketCost == 0 {
			t.Errorf("%+v", r)
		}
	}
	if status, body := ask(); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	yes := true
	params := gateway.ProviderParams{Format: []string{"chatcompletions"}, BaseURL: up.URL + "/v1", Key: "operators", SelfHosted: &yes, Price: &gateway.ListPrice{Input: "1", Output: "2"}}
	if _, err := c.SetProvider(ctx, "house", params); err != nil {
		t.Fatal(err)
	}
	want("called with operators", false)
	id := gateway.CredentialID{Provider: "house", Name: "own"}
	if _, err := c.SetCredential(ctx, id, gateway.CredentialParams{Key: "theirs"}); err != nil {
		t.Fatal(err)
	}
	want("called with theirs", true)
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	d, c = start()
	defer func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	}()
	want("called with theirs", true)
	if _, err := c.SetCredential(ctx, id, gateway.CredentialParams{Key: "refused", Fallback: true}); err != nil {
		t.Fatal(err)
	}
	want("called with operators", false)
	if _, err := c.SetCredential(ctx, gateway.CredentialID{ProjectID: account.DefaultProject, Provider: "nobody", Name: "own"}, gateway.CredentialParams{Key: "k"}); cay.CodeOf(err) != cay.NotFound {
		t.Error(err)
	}
	if err := c.DeleteCredential(ctx, id); err != nil {
		t.Fatal(err)
	}
	params.Key = "changed"
	if _, err := c.SetProvider(ctx, "house", params); err != nil {
		t.Fatal(err)
	}
	want("called with changed", false)
	if err := c.DeleteProvider(ctx, "house"); err != nil {
		t.Fatal(err)
	}
	if status, body := ask(); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
}
