package catalog_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// fixture returns the JSON of a recorded answer.
func fixture(t *testing.T, name string) map[string]any {
	t.Helper()
	dir := os.Getenv("CAY_FIXTURES")
	if dir == "" {
		dir = "../../../../shared/fixtures"
	}
	raw, err := os.ReadFile(filepath.Join(dir, "providers", name))
	if os.IsNotExist(err) {
		t.Skipf("no recorded traffic: %v; set CAY_FIXTURES", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// count reads the number at a path of v; an empty path stands for a count that the
// provider omits.
func count(t *testing.T, v map[string]any, path string) *int64 {
	t.Helper()
	if path == "" {
		return nil
	}
	var at any = v
	for name := range strings.SplitSeq(path, ".") {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	n, ok := at.(float64)
	if !ok {
		t.Fatalf("no number at %s", path)
	}
	return hub.N(int64(n))
}

// The costs of recorded answers, computed by hand from the price list.
func TestCostOf_Recorded(t *testing.T) {
	t.Parallel()
	const chat, responses = "usage.", "usage."
	for _, c := range []struct {
		fixture, model, provider            string
		input, read, write, output, thought string // paths of the counts
		outputExcludesThought               bool
		wantInput, wantOutput, want         string
	}{
		{ // 12 x 3 + 29 x 15 dollars a million
			fixture: "anthropic/__fixtures__-anthropic-text.json", model: "claude-sonnet-4-5-20250929", provider: "anthropic",
			input: "usage.input_tokens", read: "usage.cache_read_input_tokens", write: "usage.cache_creation_input_tokens", output: "usage.output_tokens",
			wantInput: "0.000036", wantOutput: "0.000435", want: "0.000471",
		},
		{ // 950648 x 3 + 13856 x 15
			fixture: "anthropic/__fixtures__-anthropic-code-execution-20250825.pptx-skill.json", model: "claude-sonnet-4-5-20250929", provider: "anthropic",
			input: "usage.input_tokens", read: "usage.cache_read_input_tokens", write: "usage.cache_creation_input_tokens", output: "usage.output_tokens",
			wantInput: "2.851944", wantOutput: "0.20784", want: "3.059784",
		},
		{ // 16 x 0.1 + 363 x 0.4
			fixture: "openai/chat-openai-text.json", model: "gpt-4.1-nano", provider: "openai",
			input: chat + "prompt_tokens", read: chat + "prompt_tokens_details.cached_tokens", output: chat + "completion_tokens", thought: chat + "completion_tokens_details.reasoning_tokens",
			wantInput: "0.0000016", wantOutput: "0.0001452", want: "0.0001468",
		},
		{ // (19681 - 3712) x 0.25 + 3712 x 0.025; 3773 x 2
			fixture: "openai/responses-openai-web-search-tool.1.json", model: "gpt-5-mini", provider: "openai",
			input: responses + "input_tokens", read: responses + "input_tokens_details.cached_tokens", output: responses + "output_tokens", thought: responses + "output_tokens_details.reasoning_tokens",
			wantInput: "0.00408505", wantOutput: "0.007546", want: "0.01163105",
		},
		{ // (7243 - 3072) x 1.75 + 3072 x 0.175; 423 x 14
			fixture: "openai/responses-openai-phase.1.json", model: "gpt-5.3-codex", provider: "openai",
			input: responses + "input_tokens", read: responses + "input_tokens_details.cached_tokens", output: responses + "output_tokens", thought: responses + "output_tokens_details.reasoning_tokens",
			wantInput: "0.00783685", wantOutput: "0.005922", want: "0.01375885",
		},
		{ // 9 x 2; (29 + 258) x 12
			fixture: "google/__fixtures__-google-reasoning-gemini3.json", model: "google/gemini-3-pro-preview", provider: "google",
			input: "usageMetadata.promptTokenCount", output: "usageMetadata.candidatesTokenCount", thought: "usageMetadata.thoughtsTokenCount", outputExcludesThought: true,
			wantInput: "0.000018", wantOutput: "0.003444", want: "0.003462",
		},
		{ // 45 x 0.59 + 607 x 0.79
			fixture: "groq/__fixtures__-groq-text.json", model: "meta/llama-3.3-70b", provider: "groq",
			input: chat + "prompt_tokens", output: chat + "completion_tokens",
			wantInput: "0.00002655", wantOutput: "0.00047953", want: "0.00050608",
		},
		{ // (339 - 320) x 0.14 + 320 x 0.0028; 92 x 0.28
			fixture: "deepseek/chat-deepseek-tool-call.json", model: "deepseek/deepseek-reasoner", provider: "deepseek",
			input: chat + "prompt_tokens", read: chat + "prompt_cache_hit_tokens", output: chat + "completion_tokens", thought: chat + "completion_tokens_details.reasoning_tokens",
			wantInput: "0.000003556", wantOutput: "0.00002576", want: "0.000029316",
		},
		{ // 12 x 0.02
			fixture: "openai/embedding-openai-embedding.json", model: "text-embedding-3-small", provider: "openai",
			input:     chat + "prompt_tokens",
			wantInput: "0.00000024", wantOutput: "0", want: "0.00000024",
		},
		{ // 22 x 0.8 + 57 x 3.2
			fixture: "amazon-bedrock/__fixtures__-amazon-bedrock-text.json", model: "amazon/nova-pro", provider: "bedrock",
			input: "usage.inputTokens", read: "usage.cacheReadInputTokens", write: "usage.cacheWriteInputTokens", output: "usage.outputTokens",
			wantInput: "0.0000176", wantOutput: "0.0001824", want: "0.0002",
		},
	} {
		t.Run(strings.TrimSuffix(filepath.Base(c.fixture), ".json"), func(t *testing.T) {
			t.Parallel()
			v := fixture(t, c.fixture)
			u := hub.Usage{CacheRead: count(t, v, c.read), CacheWrite: count(t, v, c.write), Reasoning: count(t, v, c.thought)}
			if c.write != "" { // this provider's input count excludes cached tokens
				u.NoCache = count(t, v, c.input)
			} else {
				u.Input = count(t, v, c.input)
			}
			if c.outputExcludesThought {
				u.Text = count(t, v, c.output)
			} else {
				u.Output = count(t, v, c.output)
			}
			u.Fill()
			got := catalog.CostOf(price(t, c.model, c.provider), &u)
			if got.Input.String() != c.wantInput || got.Output.String() != c.wantOutput || got.Total.String() != c.want {
				t.Errorf("cost %v + %v = %v, want %s + %s = %s", got.Input, got.Output, got.Total, c.wantInput, c.wantOutput, c.want)
			}
		})
	}
}

func price(t *testing.T, model, provider string) *gateway.Price {
	t.Helper()
	m := catalog.New(catalog.Builtin()).Lookup(model)
	if m == nil {
		t.Fatalf("no model %s", model)
	}
	for _, e := range m.Endpoints {
		if e.Provider == provider {
			return e.Price
		}
	}
	t.Fatalf("%s is not offered by %s", model, provider)
	return nil
}

func TestCostOf(t *testing.T) {
	t.Parallel()
	perMillion := func(p catalog.PricePerMillion) *gateway.Price {
		got, err := p.Price("test")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	claude := perMillion(catalog.PricePerMillion{Input: "3", Output: "15", CacheRead: "0.3", CacheWrite: "3.75", CacheWrite1h: "6"})
	tiered := perMillion(catalog.PricePerMillion{Input: "1.25", Output: "10", CacheRead: "0.125",
		Tiers: []catalog.TierPerMillion{{Above: 100, Input: "2.5", Output: "15", CacheRead: "0.25"}, {Above: 200, Input: "5", Output: "20"}}})
	for _, c := range []struct {
		name  string
		price *gateway.Price
		usage hub.Usage
		want  string
	}{
		{"cached for five minutes and an hour", claude, // 10 x 3 + 1000 x 0.3 + 60 x 3.75 + 40 x 6 + 5 x 15
			hub.Usage{Input: hub.N(1110), CacheRead: hub.N(1000), CacheWrite: hub.N(100), CacheWrite1h: hub.N(40), Output: hub.N(5)}, "0.00087"},
		{"parts without a price of their own cost what input does", perMillion(catalog.PricePerMillion{Input: "2", Output: "8"}),
			hub.Usage{Input: hub.N(100), CacheRead: hub.N(50), CacheWrite: hub.N(20), CacheWrite1h: hub.N(20), Output: hub.N(1), Reasoning: hub.N(1)}, "0.000208"},
		{"reasoning billed apart", perMillion(catalog.PricePerMillion{Input: "1", Output: "2", Reasoning: "3"}),
			hub.Usage{Input: hub.N(1), Output: hub.N(10), Reasoning: hub.N(4)}, "0.000025"},
		{"the longest tier below takes all of the prompt", tiered, hub.Usage{Input: hub.N(150), CacheRead: hub.N(50), Output: hub.N(10)}, "0.0004125"},
		{"a tier begins above its length", tiered, hub.Usage{Input: hub.N(100), Output: hub.N(0)}, "0.000125"},
		{"the last tier", tiered, hub.Usage{Input: hub.N(201), Output: hub.N(1)}, "0.001025"},
		{"flex", perMillion(catalog.PricePerMillion{Input: "2", Output: "8", ServiceTiers: map[string]int{"flex": 50}}),
			hub.Usage{Input: hub.N(100), Output: hub.N(10), Tier: "flex"}, "0.00014"},
		{"another tier", perMillion(catalog.PricePerMillion{Input: "2", Output: "8", ServiceTiers: map[string]int{"flex": 50}}),
			hub.Usage{Input: hub.N(100), Output: hub.N(10), Tier: "default"}, "0.00028"},
		{"searches and the request itself", perMillion(catalog.PricePerMillion{Input: "0", Output: "0", Search: "0.01", Request: "0.005"}),
			hub.Usage{Searches: hub.N(3)}, "0.005"},
		{"nothing counted", claude, hub.Usage{}, "0"},
		{"more cached than there was", claude, hub.Usage{Input: hub.N(1), CacheRead: hub.N(10)}, "0.000003"},
		{"odd halves round down", perMillion(catalog.PricePerMillion{Input: "0.000001", Output: "0", ServiceTiers: map[string]int{"flex": 50}}),
			hub.Usage{Input: hub.N(3), Tier: "flex"}, "0.000000000001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := catalog.CostOf(c.price, &c.usage)
			if got.Total.String() != c.want {
				t.Errorf("cost %v, want %s", got.Total, c.want)
			}
		})
	}
}

func TestPricePerMillion(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]catalog.PricePerMillion{
		"input is missing":                  {Output: "1"},
		"output is missing":                 {Input: "1"},
		"input is -1":                       {Input: "-1", Output: "1"},
		`cache_read: "cheap" is not`:        {Input: "1", Output: "1", CacheRead: "cheap"},
		"less than 10^-12 for one":          {Input: "0.0000001", Output: "1"},
		"tiers[1].above is 5":               {Input: "1", Output: "1", Tiers: []catalog.TierPerMillion{{Above: 5, Input: "1", Output: "1"}, {Above: 5, Input: "1", Output: "1"}}},
		"tiers[0].above is 0":               {Input: "1", Output: "1", Tiers: []catalog.TierPerMillion{{Input: "1", Output: "1"}}},
		"tiers[0].output is missing":        {Input: "1", Output: "1", Tiers: []catalog.TierPerMillion{{Above: 1, Input: "1"}}},
		"service_tiers.flex is -1":          {Input: "1", Output: "1", ServiceTiers: map[string]int{"flex": -1}},
		"request is -2":                     {Input: "1", Output: "1", Request: "-2"},
		`"9e9" is beyond 9 million dollars`: {Input: "9e9", Output: "1"},
	} {
		if _, err := p.Price("v"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
