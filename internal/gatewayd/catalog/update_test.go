package catalog

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
)

// lite and dev are lists in the two public forms, with the same content where both can
// express it.
const lite = `{
	"sample_spec": {"litellm_provider": "one of https://docs.litellm.ai/docs/providers", "mode": "one of chat", "input_cost_per_token": 0.0},
	"gpt-5": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1.5e-06, "output_cost_per_token": 1e-05, "cache_read_input_token_cost": 1.25e-07, "max_input_tokens": 400000, "max_output_tokens": 128000},
	"gpt-9": {"litellm_provider": "openai", "mode": "responses", "input_cost_per_token": 3e-07, "output_cost_per_token": 0.0000012, "max_input_tokens": 1000000, "supports_vision": true, "supports_function_calling": true},
	"gemini/gemini-9": {"litellm_provider": "gemini", "mode": "chat", "input_cost_per_token": 1.25e-06, "output_cost_per_token": 1e-05, "input_cost_per_token_above_200k_tokens": 2.5e-06, "output_cost_per_token_above_200k_tokens": 1.5e-05},
	"gpt-9-free": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0.0, "max_input_tokens": 8000},
	"gpt-9-half": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1e-06},
	"gpt-9-fine": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1.00000000000001e-06, "output_cost_per_token": 1e-05},
	"gpt-9-odd": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": -1e-06, "output_cost_per_token": 1e-05},
	"bad name": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-05},
	"text-embedding-9": {"litellm_provider": "openai", "mode": "embedding", "input_cost_per_token": 2e-08},
	"dall-e-9": {"litellm_provider": "openai", "mode": "image_generation", "input_cost_per_pixel": 1e-08},
	"elsewhere": {"litellm_provider": "nobody", "mode": "chat", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-05}
}`

const dev = `{"openai": {"id": "openai", "models": {
	"gpt-5": {"id": "gpt-5", "cost": {"input": 1.5, "output": 10, "cache_read": 0.125}, "limit": {"context": 400000, "output": 128000}},
	"gpt-9": {"id": "gpt-9", "name": "GPT-9", "tool_call": true, "modalities": {"input": ["text", "image"], "output": ["text"]}, "cost": {"input": 0.3, "output": 1.2}, "limit": {"context": 1000000}},
	"gpt-9-free": {"id": "gpt-9-free", "cost": {"input": 0, "output": 0}, "limit": {"context": 8000}},
	"gpt-9-half": {"id": "gpt-9-half", "cost": {"input": 1}},
	"gpt-9-fine": {"id": "gpt-9-fine", "cost": {"input": 1.00000000000001, "output": 10}},
	"gpt-9-odd": {"id": "gpt-9-odd", "cost": {"input": -1, "output": 10}},
	"bad name": {"id": "bad name", "cost": {"input": 1, "output": 10}},
	"text-embedding-9": {"id": "text-embedding-9", "modalities": {"output": ["text"]}, "cost": {"input": 0.02, "output": 0}},
	"dall-e-9": {"id": "dall-e-9", "modalities": {"output": ["image"]}}
}}, "google": {"id": "google", "models": {
	"gemini-9": {"id": "gemini-9", "cost": {"input": 1.25, "output": 10, "context_over_200k": {"input": 2.5, "output": 15}}}
}}, "nobody": {"id": "nobody", "models": {"elsewhere": {"id": "elsewhere", "cost": {"input": 1, "output": 10}}}}}`

func everyone(string) bool { return true }

func known(t *testing.T) []gateway.Model {
	t.Helper()
	cache := gateway.Money(200_000)
	return []gateway.Model{{
		ID: "openai/gpt-5", Kind: "language", Context: 400_000, MaxOutput: 128_000,
		Endpoints: []gateway.Endpoint{
			{Provider: "openai", Model: "gpt-5", Price: &gateway.Price{Version: "old", Input: 1_250_000, Output: 10_000_000, CacheWrite: &cache, ServiceTiers: map[string]int{"flex": 50}}},
			{Provider: "azure", Model: "gpt-5", Price: &gateway.Price{Version: "old", Input: 1_250_000, Output: 10_000_000}},
		},
	}}
}

// Both forms give the same exact prices. A price that is missing, incomplete or zero is
// unknown. Nothing is rounded.
func TestUpdate(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"LiteLLM": lite, "models.dev": dev} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			offers, skipped, err := ReadOffers([]byte(text))
			checktest.OK(t, err)
			if len(skipped) != 3 || !strings.Contains(strings.Join(skipped, "\n"), "finer") && !strings.Contains(strings.Join(skipped, "\n"), "less than 10^-12") {
				t.Errorf("skipped are %q", skipped)
			}
			before := known(t)
			changes, l := Update(before, offers, everyone, "2026-11-26")
			var got []string
			for _, c := range changes {
				sign := "~"
				if c.New {
					sign = "+"
				}
				got = append(got, sign+c.Model+" "+c.Provider+": "+strings.Join(c.Details, ", "))
			}
			want := []string{
				"+google/gemini-9 google: input 1.25, output 10, tiers 2.5/15 above 200000",
				"~openai/gpt-5 openai: input 1.25 -> 1.5, cache read none -> 0.125",
				"+openai/gpt-9 openai: input 0.3, output 1.2, context 1000000",
				"+openai/gpt-9-free openai: input ?, output ?, context 8000",
				"+openai/gpt-9-half openai: input ?, output ?",
				"+openai/text-embedding-9 openai: input 0.02, output 0",
			}
			if !slices.Equal(got, want) {
				t.Errorf("the changes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}

			// A written list reads back the same, and changes nothing else.
			path := filepath.Join(t.TempDir(), "gateway-models.json")
			raw, err := l.Append(nil)
			checktest.OK(t, err)
			checktest.OK(t, os.WriteFile(path, raw, 0o600))
			again, err := ReadList(path)
			checktest.OK(t, err)
			c := New(again.Overlay(known(t)))
			p := c.Lookup("openai/gpt-5").Endpoints[0].Price
			if p.Version != "2026-11-26" || p.Input != 1_500_000 || p.Output != 10_000_000 || *p.CacheRead != 125_000 || *p.CacheWrite != 200_000 || p.ServiceTiers["flex"] != 50 {
				t.Errorf("the price of gpt-5 is %+v", p)
			}
			if p := c.Lookup("openai/gpt-5").Endpoints[1].Price; p.Version != "old" || p.Input != 1_250_000 {
				t.Errorf("the price of another provider is %+v", p)
			}
			if m := c.Lookup("openai/gpt-9"); m.Endpoints[0].Price.Input != 300_000 || m.Endpoints[0].Price.Output != 1_200_000 || m.Context != 1_000_000 || !slices.Equal(m.Input, []string{"text", "image"}) || !slices.Contains(m.Abilities, "tool-use") {
				t.Errorf("gpt-9 is %+v", m)
			}
			for _, id := range []string{"openai/gpt-9-free", "openai/gpt-9-half"} {
				if m := c.Lookup(id); m.Endpoints[0].Price != nil {
					t.Errorf("the price of %s is %+v", id, m.Endpoints[0].Price)
				}
			}
			if c.Lookup("openai/gpt-9-fine") != nil || c.Lookup("openai/dall-e-9") != nil {
				t.Error("models are there that the list cannot say anything of")
			}
			if more, _ := Update(again.Overlay(known(t)), offers, everyone, "2026-11-27"); len(more) != 0 {
				t.Errorf("once more it changes %+v", more)
			}
			if only, _ := Update(before, offers, func(p string) bool { return p == "google" }, "2026-11-26"); len(only) != 1 {
				t.Errorf("of one provider it changes %+v", only)
			}
			if !reflect.DeepEqual(before, known(t)) {
				t.Error("the list before was changed")
			}
		})
	}
}

// A known price stays if a list does not have it.
func TestUpdate_KeepsPrices(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"gpt-5": {"litellm_provider": "openai", "mode": "chat"}}`,
		`{"gpt-5": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 0, "output_cost_per_token": 0}}`,
		`{"gpt-5": {"litellm_provider": "openai", "mode": "chat", "input_cost_per_token": 1.25e-06}}`,
		`{"openai": {"models": {"gpt-5": {"cost": {"output": 10}}}}}`,
	} {
		offers, _, err := ReadOffers([]byte(text))
		checktest.OK(t, err)
		if changes, _ := Update(known(t), offers, everyone, "now"); len(changes) != 0 {
			t.Errorf("%s changes %+v", text, changes)
		}
	}
}

// Input that is no price list is refused.
func TestReadOffers_Wrong(t *testing.T) {
	t.Parallel()
	for _, text := range []string{``, `{`, `[]`, `{}`, `"x"`, `{"a": 1}`, `{"a": {"b": {}}}`} {
		if _, _, err := ReadOffers([]byte(text)); err == nil || !strings.Contains(err.Error(), "list of prices") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every model of the binary survives writing and reading.
func TestList_RoundTrip(t *testing.T) {
	t.Parallel()
	raw, err := (&List{Date: Date(), Models: Builtin()}).Append(nil)
	checktest.OK(t, err)
	path := filepath.Join(t.TempDir(), "list.json")
	checktest.OK(t, os.WriteFile(path, raw, 0o600))
	l, err := ReadList(path)
	checktest.OK(t, err)
	for i, m := range Builtin() {
		for j, e := range m.Endpoints {
			if got := l.Models[i].Endpoints[j].Price; !reflect.DeepEqual(perMillion(got), perMillion(e.Price)) {
				t.Errorf("%s at %s costs %+v, and did %+v", m.ID, e.Provider, got, e.Price)
			}
		}
	}
	checktest.OK(t, os.WriteFile(path, []byte(`{"models": [{"id": "x"}]}`), 0o600))
	if _, err := ReadList(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a wrong list: %v", err)
	}
	if l, err := ReadList(path + "x"); l != nil || err != nil {
		t.Errorf("a list that is not there: %v, %v", l, err)
	}
}
