package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
)

func catalogueOf(t *testing.T) []gateway.Model {
	t.Helper()
	money := func(s string) gateway.Money {
		m, err := gateway.ParseMoney(s)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	read := money("0.0000003")
	ok := gateway.Health{State: "ok"}
	return []gateway.Model{
		{
			ID: "anthropic/claude-sonnet-4.5", Kind: "language", Context: 200_000, Abilities: []string{"vision"}, Aliases: []string{"claude-sonnet-4-5"},
			Endpoints: []gateway.Endpoint{
				{Provider: "anthropic", Configured: true, Health: ok, Price: &gateway.Price{Input: money("0.000003"), Output: money("0.000015"), CacheRead: &read}},
				{Provider: "bedrock", Health: ok, Context: 1_000_000},
			},
		},
		{ID: "ollama/llama3.2", Kind: "language", Endpoints: []gateway.Endpoint{{Provider: "ollama", Configured: true, Health: ok, Price: &gateway.Price{}}}},
		{ID: "openai/text-embedding-3-small", Kind: "embedding", Endpoints: []gateway.Endpoint{{Provider: "openai", Configured: true, Health: ok, Price: &gateway.Price{Input: money("0.00000002")}}}},
		{ID: "xai/grok-4.3", Kind: "language", Endpoints: []gateway.Endpoint{{Provider: "xai", Health: ok}}},
	}
}

func TestGatewayModels_Filter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		o       gatewayModelsOptions
		pattern string
		want    string // model:providers
	}{
		{"what can be called", gatewayModelsOptions{}, "", "anthropic/claude-sonnet-4.5:anthropic ollama/llama3.2:ollama openai/text-embedding-3-small:openai"},
		{"everything", gatewayModelsOptions{all: true}, "", "anthropic/claude-sonnet-4.5:anthropic,bedrock ollama/llama3.2:ollama openai/text-embedding-3-small:openai xai/grok-4.3:xai"},
		{"a provider", gatewayModelsOptions{all: true, provider: "bedrock"}, "", "anthropic/claude-sonnet-4.5:bedrock"},
		{"a provider that cannot be called", gatewayModelsOptions{provider: "bedrock"}, "", ""},
		{"a kind", gatewayModelsOptions{kind: "embedding"}, "", "openai/text-embedding-3-small:openai"},
		{"a capability", gatewayModelsOptions{capability: "vision"}, "", "anthropic/claude-sonnet-4.5:anthropic"},
		{"a part of the id", gatewayModelsOptions{}, "llama", "ollama/llama3.2:ollama"},
		{"a pattern", gatewayModelsOptions{}, "openai/*", "openai/text-embedding-3-small:openai"},
		{"a pattern in front", gatewayModelsOptions{}, "*small", ""},
		{"an alias", gatewayModelsOptions{}, "claude-sonnet-4-5", "anthropic/claude-sonnet-4.5:anthropic"},
	} {
		var got []string
		for _, m := range c.o.filter(catalogueOf(t), c.pattern) {
			var providers []string
			for _, e := range m.Endpoints {
				providers = append(providers, e.Provider)
			}
			got = append(got, m.ID+":"+strings.Join(providers, ","))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

func TestGatewayModels_Print(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	o := gatewayModelsOptions{all: true}
	o.print(&out, o.filter(catalogueOf(t), ""))
	want := `MODEL                           PROVIDER    KIND        CONTEXT   INPUT   OUTPUT   CACHED   STATE
anthropic/claude-sonnet-4.5     anthropic   language    200k      3       15       0.3      ok
anthropic/claude-sonnet-4.5     bedrock     language    1M        ?       ?        ?        no credential
ollama/llama3.2                 ollama      language    -         0       0        0        ok
openai/text-embedding-3-small   openai      embedding   -         0.02    0        0.02     ok
xai/grok-4.3                    xai         language    -         ?       ?        ?        no credential
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}

func TestGatewayCheck_Print(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printChecks(&out, []gateway.Check{
		{Provider: "openai", OK: true, Latency: 123.4, Models: 42},
		{Provider: "mistral", Latency: 5, Error: "mistral answered with 401 \x1b[31m", Hint: "set MISTRAL_API_KEY"},
	})
	want := `PROVIDER   STATE    LATENCY   MODELS
openai     ok       123 ms    42
mistral    failed   5 ms      -

mistral: mistral answered with 401 \x1b[31m
  set MISTRAL_API_KEY
`
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", &out, want)
	}
}

// updating is the command "cay gateway models update" with an input and without output.
func updating(t *testing.T, from string, stdin *os.File) (*gatewayModelsUpdateOptions, *app) {
	t.Helper()
	null := checktest.Must(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	t.Cleanup(func() { null.Close() })
	if stdin == nil {
		stdin = null
	}
	return &gatewayModelsUpdateOptions{from: from, to: filepath.Join(t.TempDir(), "models.json")}, &app{stdin: stdin, stdout: null, stderr: null}
}

const priceList = `{"gpt-99": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 3e-07, "output_cost_per_token": 1.2e-06}}`

func TestGatewayModelsUpdate_URL(t *testing.T) {
	t.Parallel()
	agent := make(chan string, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/list", func(w http.ResponseWriter, r *http.Request) {
		agent <- r.UserAgent()
		_, _ = io.WriteString(w, priceList)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/list", http.StatusFound) })
	mux.HandleFunc("/short", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(priceList)))
		_, _ = io.WriteString(w, priceList[:10])
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, path := range []string{"/list", "/moved"} {
		o, a := updating(t, server.URL+path, nil)
		o.yes = true
		if err := o.run(t.Context(), a); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got := <-agent; got != "cay/"+cay.Version() {
			t.Errorf("%s: it calls itself %q", path, got)
		}
		if b := checktest.Must(os.ReadFile(o.to))(t); !strings.Contains(string(b), "gpt-99") {
			t.Errorf("%s: written was %s", path, b)
		}
	}
	for from, want := range map[string]cay.Code{
		server.URL + "/missing": cay.Unavailable, server.URL + "/short": cay.Unavailable,
		"http://127.0.0.1:1/": cay.Unavailable, "http://%": cay.Invalid, filepath.Join(t.TempDir(), "missing"): cay.Invalid,
	} {
		o, a := updating(t, from, nil)
		o.yes = true
		checktest.Code(t, o.run(t.Context(), a), want, from)
		if _, err := os.Stat(o.to); !os.IsNotExist(err) {
			t.Errorf("%s: a list was written: %v", from, err)
		}
	}
}

// In a terminal the command asks, and writes only after y or yes.
func TestGatewayModelsUpdate_Asks(t *testing.T) {
	t.Parallel()
	list := filepath.Join(t.TempDir(), "list.json")
	if err := os.WriteFile(list, []byte(priceList), 0o600); err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "yesterday\n": false, "\x04": false} {
		keyboard, terminal := openTerminal(t)
		o, a := updating(t, list, terminal)
		if _, err := io.WriteString(keyboard, answer); err != nil {
			t.Fatal(err)
		}
		err := o.run(t.Context(), a)
		if want != (err == nil) || err != nil && cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: %v", answer, err)
		}
		if _, err := os.Stat(o.to); want != (err == nil) {
			t.Errorf("%q: the list: %v", answer, err)
		}
	}
}

// openTerminal opens a terminal, and returns it with its keyboard.
func openTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		keyboard.Close()
		terminal.Close()
	})
	return keyboard, terminal
}
