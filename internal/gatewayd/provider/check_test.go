package provider_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/provider"
)

func hostOf(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

func TestCheck(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		authorized := r.Header.Get("Authorization") == "Bearer good"
		switch {
		case strings.HasPrefix(r.URL.Path, "/status/"):
			var status int
			fmt.Sscanf(r.URL.Path, "/status/%d/", &status)
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"no: sk-abcdefghijklmnop"}}`)
		case strings.HasPrefix(r.URL.Path, "/redirect/"):
			http.Redirect(w, r, "/v1/models", http.StatusFound)
		case !authorized:
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":{"message":"Incorrect API key"}}`)
		case r.URL.Path == "/v1/models":
			fmt.Fprint(w, `{"object":"list","data":[{"id":"a"},{"id":"b/c"}]}`)
		case r.URL.Path == "/html/models":
			fmt.Fprint(w, `<html>`)
		case r.Method == http.MethodPost:
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, `{"detail":"messages is missing"}`)
		}
	}))
	t.Cleanup(server.Close)
	const closed = "127.0.0.1:1" // a port that was closed could be another test's by now
	key := func(s string) provider.Credential {
		return provider.Bearer(provider.Owner{ID: "id-" + s}, secretOf(t, s))
	}
	for _, c := range []struct {
		name        string
		base        string
		noList      bool
		credentials []provider.Credential
		models      int
		err, hint   string // expected parts of the texts; empty err: no error
	}{
		{name: "a list", base: server.URL + "/v1", credentials: []provider.Credential{key("good")}, models: 2},
		{name: "no list", base: server.URL + "/v1", noList: true, credentials: []provider.Credential{key("good")}},
		{name: "one key of two", base: server.URL + "/v1", credentials: []provider.Credential{key("good"), key("bad")}, models: 2, err: "id-bad: p answered with 401 Unauthorized: Incorrect API key", hint: "set OPENAI_API_KEY"},
		{name: "no list and a wrong key", base: server.URL + "/v1", noList: true, credentials: []provider.Credential{key("bad")}, err: "401", hint: "the key is wrong"},
		{name: "no credential", base: server.URL + "/v1", err: "there is no credential", hint: "set OPENAI_API_KEY"},
		{name: "not an API", base: server.URL + "/html", credentials: []provider.Credential{key("good")}, err: "no list of models", hint: "base_url"},
		{name: "wrong path", base: server.URL + "/status/404", credentials: []provider.Credential{key("good")}, err: "404 Not Found: no: [redacted]", hint: "ends in /v1"},
		{name: "no credit", base: server.URL + "/status/429", credentials: []provider.Credential{key("good")}, err: "429", hint: "the key is right"},
		{name: "in trouble", base: server.URL + "/status/503", credentials: []provider.Credential{key("good")}, err: "503", hint: "in trouble"},
		{name: "a redirect is not followed", base: server.URL + "/redirect", credentials: []provider.Credential{key("good")}, err: "302", hint: "base_url"},
		{name: "nobody there", base: "http://" + closed + "/v1", credentials: []provider.Credential{key("good")}, err: "connect: connection refused", hint: "nothing listens at " + closed},
		{name: "no TLS", base: strings.Replace(server.URL, "http:", "https:", 1), credentials: []provider.Credential{key("good")}, err: "HTTP response to HTTPS client", hint: "http://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := kind(t, "openai")
			p.Name, p.BaseURL, p.Credentials = "p", c.base, c.credentials
			if c.noList {
				p.Models = ""
			}
			got := provider.Check(t.Context(), p, server.Client())
			if got.OK != (c.err == "") || got.Models != c.models || !strings.Contains(got.Error, c.err) || !strings.Contains(got.Hint, c.hint) || got.Provider != "p" {
				t.Errorf("%+v", got)
			}
			if strings.Contains(got.Error, server.URL) {
				t.Errorf("the error repeats the address: %s", got.Error)
			}
		})
	}
	if got := provider.Check(t.Context(), kind(t, "cay"), nil); !got.OK {
		t.Errorf("the scripted provider: %+v", got)
	}
}

func TestModelNames(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		`{"data":[{"id":"a"},{"id":""},{"id":"b c"},{}]}`: {"a"},
		`[{"id":"x/y"}]`: {"x/y"},
		`{"models":[{"name":"models/gemini-2"},{"name":"command"}]}`:    {"gemini-2", "command"},
		`{"object":"list","data":null}`:                                 nil,
		`{"models":[{"name":"a"}],"object":"list","data":[{"id":"b"}]}`: {"b"}, // llama.cpp has both
	} {
		if got, ok := provider.ModelNames([]byte(in)); !ok || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", in, got, ok, want)
		}
	}
	for _, bad := range []string{``, `{}`, `"a"`, `{"data":{}}`, `{"error":{}}`, `nonsense`} {
		if got, ok := provider.ModelNames([]byte(bad)); ok {
			t.Errorf("%s is the list %v", bad, got)
		}
	}
}

func FuzzModelNames(f *testing.F) {
	f.Add([]byte(`{"data":[{"id":"a"}]}`))
	f.Add([]byte(`{"models":[{"name":"models/a"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		names, _ := provider.ModelNames(raw)
		for _, n := range names {
			if n == "" || len(n) > 256 || strings.ContainsAny(n, " \n") {
				t.Errorf("name %q", n)
			}
		}
	})
}

func TestKnown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	env := map[string]string{}
	for _, k := range provider.KnownKinds() {
		if seen[k.Kind] || k.Title == "" || len(k.Formats) == 0 {
			t.Errorf("%+v", k)
		}
		seen[k.Kind] = true
		p := k.New("mine", provider.Where{Region: "eu-west-1", Resource: "Res", Project: "proj", Location: "europe-west4"})
		u, err := url.Parse(p.BaseURL)
		if err != nil || strings.ContainsAny(p.BaseURL, "{}") || strings.HasSuffix(p.BaseURL, "/") || u.Host == "" || u.RawQuery != "" {
			t.Errorf("%s: base URL %s", k.Kind, p.BaseURL)
		}
		if !k.SelfHosted && (u.Scheme != "https" || len(k.Country) != 2) {
			t.Errorf("%s: %s in %q", k.Kind, p.BaseURL, k.Country)
		}
		if k.SelfHosted != p.ZeroRetention || p.NeedsCredential == (k.Auth == provider.AuthNone) {
			t.Errorf("%s: %+v", k.Kind, p)
		}
		for _, path := range []string{p.Models, p.Embeddings, p.Images, p.Rerank, p.Speech, p.Transcription} {
			if path != "" && path[0] != '/' && !strings.HasPrefix(path, "https://") {
				t.Errorf("%s: path %q", k.Kind, path)
			}
		}
		for _, name := range append(slices.Clone(k.KeyEnv), k.URLEnv...) {
			if env[name] != "" {
				t.Errorf("%s is of %s and %s", name, env[name], k.Kind)
			}
			env[name] = k.Kind
		}
		// An unknown gap is filled with a host name that does not exist; no braces
		// remain.
		if p := k.New("x", provider.Where{}); strings.ContainsAny(p.BaseURL, "{}") {
			t.Errorf("%s: %s", k.Kind, p.BaseURL)
		}
	}
	for _, want := range []string{"openai", "anthropic", "google", "vertex", "bedrock", "azure", "ollama", "vllm", "llamacpp", "lmstudio", "groq", "mistral",
		"deepseek", "xai", "openrouter", "together", "fireworks", "cerebras", "deepinfra", "cohere", "perplexity"} {
		if !seen[want] {
			t.Errorf("%s is not known", want)
		}
	}
	if got := kind(t, "cohere").URL("/x"); got != "https://api.cohere.ai/compatibility/v1/x" {
		t.Error(got)
	}
	if p := kind(t, "cohere"); p.URL(p.Rerank) != "https://api.cohere.com/v2/rerank" {
		t.Error(p.URL(p.Rerank))
	}
}
