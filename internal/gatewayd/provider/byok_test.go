package provider_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

func kind(t testing.TB, name string) *provider.Provider {
	t.Helper()
	k, ok := provider.KnownKind(name)
	if !ok {
		t.Fatalf("%s is not known", name)
	}
	return k.New(name, provider.Where{})
}

func TestBYOK(t *testing.T) {
	t.Parallel()
	s := newTokens(t, nil)
	b := provider.NewBYOK(s.Client())
	for _, c := range []struct{ kind, raw, url, header, value string }{
		{"openai", `{"apiKey":"mine"}`, "https://api.openai.com/v1/x", "Authorization", "Bearer mine"},
		{"anthropic", `{"apiKey":"mine"}`, "https://api.anthropic.com/v1/x", "X-Api-Key", "mine"},
		{"google", `{"apiKey":"mine"}`, "https://generativelanguage.googleapis.com/v1beta/x", "X-Goog-Api-Key", "mine"},
		{"azure", `{"apiKey":"mine","resourceName":"res-1"}`, "https://res-1.openai.azure.com/openai/v1/x", "Api-Key", "mine"},
		{"bedrock", `{"apiKey":"mine","region":"eu-west-1"}`, "https://bedrock-runtime.eu-west-1.amazonaws.com/x", "Authorization", "Bearer mine"},
		{"bedrock", `{"accessKeyId":"AKIDEXAMPLE","secretAccessKey":"s","sessionToken":"t","region":"eu-west-1"}`, "https://bedrock-runtime.eu-west-1.amazonaws.com/x", "X-Amz-Security-Token", "t"},
	} {
		p := kind(t, c.kind)
		cred, err := b.Credential(p, []byte(c.raw))
		if err != nil {
			t.Errorf("%s: %v", c.kind, err)
			continue
		}
		r, err := authorize(t.Context(), cred, p.BaseURL+"/x")
		if err != nil || r.URL.String() != c.url || r.Header.Get(c.header) != c.value {
			t.Errorf("%s: %v %v %v", c.kind, r.URL, r.Header, err)
		}
		if !cred.BYOK() || !strings.HasPrefix(cred.ID(), "byok-") || strings.Contains(cred.ID(), "mine") {
			t.Errorf("%s: %v", c.kind, cred)
		}
	}
}

func TestBYOK_Vertex(t *testing.T) {
	t.Parallel()
	b := provider.NewBYOK(nil)
	raw, err := json.Marshal(map[string]any{"project": "mine", "location": "us-central1", "googleCredentials": map[string]string{"clientEmail": "a@b", "privateKey": keyPEM(t)}})
	if err != nil {
		t.Fatal(err)
	}
	first, err := b.Credential(kind(t, "vertex"), raw)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.Credential(kind(t, "vertex"), raw)
	if err != nil || first != again {
		t.Errorf("an access token would be asked for twice: %v", err)
	}
	other, err := provider.NewBYOK(nil).Credential(kind(t, "vertex"), raw)
	if err != nil || other.ID() == first.ID() {
		t.Errorf("the ID says something of the credential: %v", err)
	}
}

func TestBYOK_Mappings(t *testing.T) {
	t.Parallel()
	cred, err := provider.NewBYOK(nil).Credential(kind(t, "azure"),
		[]byte(`{"apiKey":"k","resourceName":"r","zeroDataRetention":true,"modelMappings":[{"gatewayModelSlug":"openai/gpt-5","customModelId":"my-deployment"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	m, ok := cred.(provider.Mapped)
	if !ok || m.ModelFor("openai/gpt-5") != "my-deployment" || m.ModelFor("openai/gpt-4.1") != "" || !m.ZeroRetention() {
		t.Errorf("%v %v", m, ok)
	}
}

func TestBYOK_Wrong(t *testing.T) {
	t.Parallel()
	b := provider.NewBYOK(nil)
	for _, c := range []struct{ kind, raw, want string }{
		{"openai", `{}`, "apiKey"},
		{"openai", `{"apiKey":5}`, "apiKey is not of the right type"},
		{"openai", `{"apiKey":"a","baseURL":"http://169.254.169.254"}`, "has the members"},
		{"openai", `{"apiKey":"a"} {}`, "after the credential"},
		{"openai", `{"apiKey":"a\r\nX-Evil: 1"}`, "header cannot have"},
		{"openai", `"sk-secret"`, ""},
		{"openai", `{"apiKey":"` + strings.Repeat("a", 17<<10) + `"}`, "larger"},
		{"openai", `{"apiKey":"a","modelMappings":[{}]}`, "modelMappings"},
		{"azure", `{"apiKey":"sk-secret"}`, "resourceName"},
		{"azure", `{"apiKey":"sk-secret","resourceName":"evil.example/"}`, "no name of an Azure resource"},
		{"bedrock", `{"accessKeyId":"AKIDEXAMPLE"}`, "secretAccessKey"},
		{"bedrock", `{"apiKey":"sk-secret","region":"evil.example#"}`, "none of AWS"},
		{"vertex", `{"apiKey":"sk-secret"}`, "googleCredentials"},
		{"vertex", `{"project":"p","googleCredentials":{"clientEmail":"a","privateKey":"sk-secret"}}`, "not PEM"},
		{"ollama", `{"apiKey":"sk-secret"}`, "takes no credentials"},
	} {
		_, err := b.Credential(kind(t, c.kind), []byte(c.raw))
		var e *hub.Error
		if !asHub(err, &e) || e.Kind != hub.BadRequest || !strings.Contains(e.Message, c.want) || e.Param != "providerOptions.gateway.byok."+c.kind {
			t.Errorf("%s %.60s: %v, want %q", c.kind, c.raw, err, c.want)
		}
		if strings.Contains(fmt.Sprintf("%+v", err), "sk-secret") {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
}

func FuzzBYOK(f *testing.F) {
	f.Add("openai", []byte(`{"apiKey":"a"}`))
	f.Add("bedrock", []byte(`{"accessKeyId":"AKID","secretAccessKey":"s","region":"us-east-1"}`))
	f.Add("azure", []byte(`{"apiKey":"a","resourceName":"x"}`))
	f.Add("vertex", []byte(`{"project":"p","googleCredentials":{"clientEmail":"a","privateKey":"x"}}`))
	b := provider.NewBYOK(nil)
	hosts := []string{"api.openai.com", ".amazonaws.com", ".openai.azure.com"}
	f.Fuzz(func(t *testing.T, name string, raw []byte) {
		k, ok := provider.KnownKind(name)
		if !ok || k.Auth == provider.AuthVertex {
			t.Skip("no known kind, or one that would ask for a token")
		}
		p := k.New(name, provider.Where{})
		c, err := b.Credential(p, raw)
		var e *hub.Error
		if err != nil {
			if !asHub(err, &e) || e.Kind != hub.BadRequest {
				t.Fatalf("%v", err)
			}
			return
		}
		r, err := authorize(t.Context(), c, p.BaseURL+"/chat")
		if err != nil {
			t.Fatal(err)
		}
		ok = r.URL.Host == hostOf(t, p.BaseURL)
		for _, h := range hosts {
			ok = ok || strings.HasSuffix(r.URL.Host, h)
		}
		if !ok || r.URL.Scheme != "https" && !strings.HasPrefix(p.BaseURL, "http:") {
			t.Fatalf("%s goes to %s", raw, r.URL)
		}
	})
}
