package provider_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

func asHub(err error, e **hub.Error) bool { return errors.As(err, e) }

func TestHeaders(t *testing.T) {
	t.Parallel()
	for auth, want := range map[provider.Auth][2]string{
		provider.AuthBearer: {"Authorization", "Bearer the-key"},
		provider.AuthXKey:   {"X-Api-Key", "the-key"},
		provider.AuthGoogle: {"X-Goog-Api-Key", "the-key"},
		provider.AuthAzure:  {"Api-Key", "the-key"},
		provider.AuthAWS:    {"Authorization", "Bearer the-key"},
	} {
		c, err := provider.KeyFor(auth, provider.Owner{ID: "main"}, secretOf(t, " the-key\n"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := authorize(t.Context(), c, "https://api.example/v1/x")
		if err != nil || r.Header.Get(want[0]) != want[1] || len(r.Header) != 1 {
			t.Errorf("%s: %v %v", auth, r.Header, err)
		}
		if c.ID() != "main" || c.BYOK() {
			t.Errorf("%s: %s %v", auth, c.ID(), c.BYOK())
		}
	}
}

func TestNewSecret(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", " \n", "two\nlines", "nul\x00", "schlüssel", "tab\tinside"} {
		if _, err := provider.NewSecret(bad); err == nil || bad != "" && strings.TrimSpace(bad) != "" && strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// Secrets do not appear in printed, logged or encoded values.
func TestSecretsDoNotShow(t *testing.T) {
	t.Parallel()
	const canary = "canary-4b1d"
	secret := secretOf(t, canary)
	google, err := provider.ServiceAccount(provider.Owner{ID: "g"}, provider.Google{Email: "a@b", PrivateKey: secretOf2(t), TokenURL: "http://127.0.0.1:1/" + canary})
	if err != nil {
		t.Fatal(err)
	}
	aws, err := provider.SigV4(provider.Owner{ID: "a"}, provider.AWS{AccessKeyID: accessKey, SecretAccessKey: secret, SessionToken: secret})
	if err != nil {
		t.Fatal(err)
	}
	azure, err := provider.AzureKey(provider.Owner{ID: "z"}, provider.Azure{Key: secret})
	if err != nil {
		t.Fatal(err)
	}
	bedrock, err := provider.BedrockKey(provider.Owner{ID: "b"}, secret, "us-east-1")
	if err != nil {
		t.Fatal(err)
	}
	all := []provider.Credential{provider.Bearer(provider.Owner{ID: "x"}, secret), provider.Header(provider.Owner{ID: "y"}, "k", secret), google, aws, azure, bedrock}
	p := &provider.Provider{Name: "p", Credentials: all}
	values := []any{secret, &secret, provider.AWS{SecretAccessKey: secret}, provider.Azure{Key: secret}, p, *p, provider.NewSet(p), all}
	for _, c := range all {
		values = append(values, c)
	}
	for _, v := range values {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		if raw, err := json.Marshal(v); err == nil {
			out.Write(raw)
		}
		for _, form := range []string{canary, fmt.Sprintf("%x", canary), "BEGIN PRIVATE"} {
			if strings.Contains(out.String(), form) {
				t.Errorf("%T shows %s:\n%s", v, form, &out)
			}
		}
	}
	if got := fmt.Sprint(all[0]); got != "bearer token x" {
		t.Errorf("a credential says %q of itself", got)
	}
	_, err = authorize(t.Context(), google, "https://x/")
	if err == nil || strings.Contains(err.Error(), canary) {
		t.Errorf("an error of the network: %v", err)
	}
}

// secretOf2 returns a secret of several lines; only files contain such secrets.
func secretOf2(t *testing.T) provider.Secret {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"type": "service_account", "client_email": "a@b", "private_key": keyPEM(t)})
	if err != nil {
		t.Fatal(err)
	}
	g, err := provider.ReadGoogle(raw)
	if err != nil {
		t.Fatal(err)
	}
	return g.PrivateKey
}

func TestAzure(t *testing.T) {
	t.Parallel()
	const old = "https://res.openai.azure.com/openai"
	for _, c := range []struct {
		name    string
		account provider.Azure
		base    string
		path    string
		want    string
	}{
		{"the new API", provider.Azure{}, old + "/v1", "/chat/completions", old + "/v1/chat/completions"},
		{"its preview", provider.Azure{APIVersion: "preview"}, old + "/v1", "/responses", old + "/v1/responses?api-version=preview"},
		{"a deployment", provider.Azure{APIVersion: "2024-10-21", Deployments: true}, old, "/chat/completions", old + "/deployments/my%20gpt/chat/completions?api-version=2024-10-21"},
		{"what has no deployment", provider.Azure{APIVersion: "2024-10-21", Deployments: true}, old, "/responses", old + "/responses?api-version=2024-10-21"},
		{"another resource", provider.Azure{Resource: "Mine"}, old + "/v1", "/embeddings", "https://mine.openai.azure.com/openai/v1/embeddings"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.account.Key = secretOf(t, "k")
			cred, err := provider.AzureKey(provider.Owner{}, c.account)
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(c.base + c.path)
			if err != nil {
				t.Fatal(err)
			}
			before := u.String()
			r := &http.Request{URL: u, Header: http.Header{}}
			if err := cred.Authorize(t.Context(), r, []byte(`{"model":"my gpt"}`)); err != nil {
				t.Fatal(err)
			}
			if r.URL.String() != c.want || r.Header.Get("Api-Key") != "k" {
				t.Errorf("%s %v, want %s", r.URL, r.Header, c.want)
			}
			if u.String() != before {
				t.Error("the URL of others was changed")
			}
		})
	}
	for _, bad := range []provider.Azure{{}, {Key: secretOf(t, "k"), Resource: "evil.example/x"}, {Key: secretOf(t, "k"), Deployments: true}} {
		if _, err := provider.AzureKey(provider.Owner{}, bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	cred, err := provider.AzureKey(provider.Owner{}, provider.Azure{Key: secretOf(t, "k"), APIVersion: "2024-10-21", Deployments: true})
	if err != nil {
		t.Fatal(err)
	}
	var e *hub.Error
	if _, err := authorize(t.Context(), cred, old+"/chat/completions"); !asHub(err, &e) || e.Kind != hub.BadRequest {
		t.Errorf("a body without a model: %v", err)
	}
}
