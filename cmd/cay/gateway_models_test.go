package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
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
