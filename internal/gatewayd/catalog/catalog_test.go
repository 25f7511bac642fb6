package catalog_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

func TestBuiltin(t *testing.T) {
	t.Parallel()
	models := catalog.Builtin()
	if len(models) < 60 {
		t.Errorf("%d models", len(models))
	}
	kinds := map[string]int{}
	for _, m := range models {
		kinds[m.Kind]++
		if err := catalog.Validate(&m); err != nil {
			t.Errorf("%s: %v", m.ID, err)
		}
		for _, e := range m.Endpoints {
			if e.Price == nil {
				continue
			}
			if e.Price.Version != catalog.Date() {
				t.Errorf("%s at %s: price of version %q, the list is of %s", m.ID, e.Provider, e.Price.Version, catalog.Date())
			}
			if e.Price.Input+e.Price.Image+e.Price.Character+e.Price.Second == 0 && m.ID != "cay/scripted" {
				t.Errorf("%s at %s costs nothing: a price that is not known is left out", m.ID, e.Provider)
			}
			if read := e.Price.CacheRead; read != nil && *read > e.Price.Input {
				t.Errorf("%s at %s: reading the cache costs more than not reading it", m.ID, e.Provider)
			}
		}
	}
	for _, kind := range []string{"language", "embedding", "image", "reranking"} {
		if kinds[kind] == 0 {
			t.Errorf("no model of the kind %s", kind)
		}
	}
	// New must not share memory with the caller's list.
	models[0] = gateway.Model{}
	if catalog.Builtin()[0].ID == "" {
		t.Error("what one caller changed, others see")
	}
}

// The list is consistent where nearly all providers order prices and limits in the same
// way.
func TestBuiltin_Consistent(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, k := range provider.KnownKinds() {
		known[k.Kind] = true
	}
	abilities := []string{"file-input", "vision", "implicit-caching", "explicit-caching", "tool-use", "structured-output", "reasoning"}
	if _, err := time.Parse(time.DateOnly, catalog.Date()); err != nil {
		t.Error(err)
	}
	for _, m := range catalog.Builtin() {
		wrong := func(what string, v ...any) {
			t.Helper()
			t.Errorf("%s: "+what, append([]any{m.ID}, v...)...)
		}
		if m.Name == "" || len(m.Input) == 0 || len(m.Output) == 0 {
			wrong("it has no name, or nobody knows what it reads or gives")
		}
		if m.Kind == "language" && m.ID != "cay/scripted" && (m.Context <= 0 || m.MaxOutput <= 0 || m.MaxOutput > m.Context) {
			wrong("context %d, output %d", m.Context, m.MaxOutput)
		}
		if m.Released > catalog.Date() {
			wrong("released on %s, after the list", m.Released)
		}
		for _, a := range m.Abilities {
			if !slices.Contains(abilities, a) {
				wrong("ability %q", a)
			}
		}
		if slices.Contains(m.Abilities, "vision") != slices.Contains(m.Input, "image") && m.Kind == "language" {
			wrong("vision and images do not go together: %v, %v", m.Abilities, m.Input)
		}
		for _, e := range m.Endpoints {
			if !known[e.Provider] {
				wrong("nobody knows the provider %s", e.Provider)
			}
			if e.MaxOutput > cmp.Or(e.Context, m.Context) {
				wrong("%s: output %d of a context of %d", e.Provider, e.MaxOutput, cmp.Or(e.Context, m.Context))
			}
			p := e.Price
			if p == nil {
				continue
			}
			if m.Kind == "language" && p.Output < p.Input || (m.Kind == "embedding" || m.Kind == "reranking") && p.Output != 0 {
				wrong("%s: input %v, output %v", e.Provider, p.Input, p.Output)
			}
			for _, one := range []*gateway.Money{p.CacheWrite, p.CacheWrite1h} {
				if one != nil && *one < p.Input {
					wrong("%s: writing the cache costs %v, not writing it %v", e.Provider, *one, p.Input)
				}
			}
			if p.CacheWrite != nil && p.CacheWrite1h != nil && *p.CacheWrite1h < *p.CacheWrite {
				wrong("%s: an hour in the cache costs less than five minutes", e.Provider)
			}
			input, output := p.Input, p.Output
			for _, tier := range p.Tiers {
				if tier.Input < input || tier.Output < output || tier.Above >= cmp.Or(e.Context, m.Context) {
					wrong("%s: the tier above %d is cheaper, or beyond the context", e.Provider, tier.Above)
				}
				input, output = tier.Input, tier.Output
			}
			for name, percent := range p.ServiceTiers {
				if name == "flex" && percent >= 100 || name != "flex" && percent <= 100 {
					wrong("%s: %s costs %d %%", e.Provider, name, percent)
				}
			}
		}
	}
	for _, k := range []string{"openai", "anthropic", "google", "vertex", "xai"} {
		if _, ok := catalog.ToolPrice(k, "bash"); !ok {
			t.Errorf("%s: tools that clients run have no price", k)
		}
	}
}

func TestCatalog_Lookup(t *testing.T) {
	t.Parallel()
	c := catalog.New(append(catalog.Builtin(),
		gateway.Model{ID: "a/twice"}, gateway.Model{ID: "b/twice"}, gateway.Model{ID: "b/only", Aliases: []string{"fast", "openai/gpt-5"}}))
	for name, want := range map[string]string{
		"anthropic/claude-sonnet-4.5":                 "anthropic/claude-sonnet-4.5",
		"claude-sonnet-4-5-20250929":                  "anthropic/claude-sonnet-4.5",
		"anthropic/claude-sonnet-4-5-20250929":        "anthropic/claude-sonnet-4.5",
		"claude-sonnet-4-5":                           "anthropic/claude-sonnet-4.5",
		"claude-sonnet-4.5":                           "anthropic/claude-sonnet-4.5",
		"claude-sonnet-4-5-latest":                    "anthropic/claude-sonnet-4.5",
		"claude-haiku-4-5@20251001":                   "anthropic/claude-haiku-4.5",
		"claude-opus-4-6-20260205":                    "anthropic/claude-opus-4.6", // a date we have not heard of
		"claude-sonnet-5":                             "anthropic/claude-sonnet-5",
		"claude-sonnet-4-20250514":                    "anthropic/claude-sonnet-4",
		"us.anthropic.claude-haiku-4-5-20251001-v1:0": "anthropic/claude-haiku-4.5",
		"global.anthropic.claude-opus-4-6-v1":         "anthropic/claude-opus-4.6",
		"gpt-5":                                       "openai/gpt-5",
		"openai/gpt-5":                                "openai/gpt-5", // an alias does not take a model's own name
		"only":                                        "b/only",
		"fast":                                        "b/only",
		"twice":                                       "", // ambiguous creator
		"gpt-5-2025-08-07":                            "", // another version is another model
		"claude-":                                     "",
		"my/claude-sonnet-4-5":                        "",
		"x.y/z.anthropic.claude-sonnet-4-5":           "",
		"":                                            "",
		"sonnet-4.5":                                  "",
	} {
		got := ""
		if m := c.Lookup(name); m != nil {
			got = m.ID
		}
		if got != want {
			t.Errorf("Lookup(%q) = %q, want %q", name, got, want)
		}
	}
	if !slices.IsSortedFunc(c.List(), func(a, b gateway.Model) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	}) {
		t.Error("the list is not sorted")
	}
}

func FuzzCatalog_Lookup(f *testing.F) {
	for _, s := range []string{"claude-sonnet-4-5-20250929", "anthropic/claude-", "us.anthropic.claude-@-v1:0", "claude---1-2-3", "gpt-5"} {
		f.Add(s)
	}
	c := catalog.New(catalog.Builtin())
	f.Fuzz(func(t *testing.T, name string) {
		if m := c.Lookup(name); m != nil && c.Lookup(m.ID) != m {
			t.Errorf("%q is %s, which is not itself", name, m.ID)
		}
	})
}

func TestOffered(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{"llama3.2:1b": "language", "nomic-embed-text": "embedding", "bge-reranker-v2": "reranking", "org/model": "language"} {
		m := catalog.Offered("ollama", name, catalog.Free())
		if err := catalog.Validate(&m); err != nil || m.Kind != kind || m.ID != "ollama/"+name || m.Endpoints[0].Model != name {
			t.Errorf("%s: %+v %v", name, m, err)
		}
		if p := m.Endpoints[0].Price; p == nil || p.Input != 0 || p.Version != "self-hosted" {
			t.Errorf("price %+v", p)
		}
	}
	if m := catalog.Offered("x", "y", nil); m.Endpoints[0].Price != nil {
		t.Error("a price from nowhere")
	}
}
