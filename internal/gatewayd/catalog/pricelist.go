package catalog

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// Offer is a public price list's entry for a model at a provider.
type Offer struct {
	Provider  string // by our name: google, bedrock
	Model     string // the provider's own name
	Name      string // for people; may be empty
	Kind      string // language or embedding
	Context   int64  // 0: unknown
	MaxOutput int64
	Input     []string
	Abilities []string
	Released  string           // a day; may be empty
	Price     *PricePerMillion // nil: unknown
}

// ReadOffers reads a public price list: LiteLLM's model_prices_and_context_window.json,
// or api.json of models.dev. Amounts are exact decimal numbers. skipped describes the
// invalid entries, each with the reason. Providers unknown to the gateway, and kinds of
// models other than language and embedding, are left out. Errors: invalid, if raw is
// neither of the two lists.
func ReadOffers(raw []byte) (offers []Offer, skipped []string, err error) {
	if !json.Valid(raw) {
		return nil, nil, cay.Errorf(cay.Invalid, "the list of prices is no JSON")
	}
	root := gjson.ParseBytes(raw)
	r := offerReader{}
	root.ForEach(func(name, v gjson.Result) bool {
		switch {
		case v.Get("litellm_provider").Type == gjson.String:
			r.lite(name.Str, v)
		case v.Get("models").IsObject():
			r.dev(name.Str, v)
		}
		return true
	})
	if !r.found {
		return nil, nil, cay.Errorf(cay.Invalid, "the list of prices is neither LiteLLM's (model_prices_and_context_window.json) nor models.dev's (api.json)")
	}
	return r.offers, r.skipped, nil
}

type offerReader struct {
	found   bool
	offers  []Offer
	skipped []string
}

// add keeps a valid offer. A price of 0 counts as unknown: lists have zeros for previews,
// subscriptions and missing values.
func (r *offerReader) add(name string, o Offer, err error) {
	if p := o.Price; err == nil && p != nil {
		var price *gateway.Price
		if price, err = p.Price(""); err == nil && (price.Input == 0 || price.Output == 0 && o.Kind == "language") {
			o.Price = nil
		}
	}
	model := o.model("")
	if err == nil {
		err = Validate(&model)
	}
	if err != nil {
		r.skipped = append(r.skipped, name+": "+err.Error())
		return
	}
	r.offers = append(r.offers, o)
}

// model returns the offer as a model of the catalogue with this one endpoint. version is
// the version of the price.
func (o *Offer) model(version string) gateway.Model {
	m := gateway.Model{
		ID: o.Provider + "/" + o.Model, Name: o.Name, Kind: o.Kind, Context: o.Context, MaxOutput: o.MaxOutput,
		Input: o.Input, Output: []string{"text"}, Abilities: o.Abilities, Released: o.Released,
		Endpoints: []gateway.Endpoint{{Provider: o.Provider, Model: o.Model, Health: gateway.Health{State: "unknown"}}},
	}
	if m.Name == "" {
		m.Name = o.Model
	}
	if o.Kind == "embedding" {
		m.Output = []string{"vector"}
	}
	if o.Price != nil {
		if price, err := o.Price.Price(version); err == nil { // it was tried
			m.Endpoints[0].Price = price
		}
	}
	return m
}

// positive returns a token count, 0 if v is none.
func positive(v gjson.Result) int64 {
	if v.Type != gjson.Number || !(v.Num >= 1 && v.Num < 1<<40) {
		return 0
	}
	return int64(v.Num)
}

// liteProviders maps providers in LiteLLM's list to the catalogue's names, and to the
// prefix that the list puts before model names.
var liteProviders = map[string]struct{ provider, prefix string }{
	"openai": {"openai", ""}, "anthropic": {"anthropic", ""}, "gemini": {"google", "gemini/"},
	"vertex_ai-language-models": {"vertex", "vertex_ai/"}, "vertex_ai-anthropic_models": {"vertex", "vertex_ai/"},
	"bedrock": {"bedrock", ""}, "bedrock_converse": {"bedrock", ""}, "azure": {"azure", "azure/"},
	"mistral": {"mistral", "mistral/"}, "xai": {"xai", "xai/"}, "deepseek": {"deepseek", "deepseek/"}, "groq": {"groq", "groq/"},
	"perplexity": {"perplexity", "perplexity/"}, "cohere_chat": {"cohere", ""}, "cohere": {"cohere", ""}, "cerebras": {"cerebras", "cerebras/"},
	"together_ai": {"together", "together_ai/"}, "fireworks_ai": {"fireworks", "fireworks_ai/"}, "deepinfra": {"deepinfra", "deepinfra/"},
	"moonshot": {"moonshotai", "moonshot/"}, "openrouter": {"openrouter", "openrouter/"}, "nvidia_nim": {"nvidia", "nvidia_nim/"},
}

var liteKinds = map[string]string{"chat": "language", "responses": "language", "embedding": "embedding"}

// liteTier matches the key of a price above a number of thousands of tokens.
var liteTier = regexp.MustCompile(`^input_cost_per_token_above_(\d{1,6})k_tokens$`)

// lite reads an entry of LiteLLM's list, whose amounts are dollars per token.
func (r *offerReader) lite(name string, v gjson.Result) {
	r.found = true
	known, ok := liteProviders[v.Get("litellm_provider").Str]
	kind := liteKinds[v.Get("mode").Str]
	if !ok || kind == "" || name == "sample_spec" {
		return
	}
	o := Offer{Provider: known.provider, Model: strings.TrimPrefix(name, known.prefix), Kind: kind, Context: positive(v.Get("max_input_tokens")), MaxOutput: positive(v.Get("max_output_tokens"))}
	if o.Provider == "bedrock" && strings.Contains(o.Model, "/") {
		return // a price of one region, under a name that Bedrock does not know
	}
	if kind == "language" {
		o.Input = []string{"text"}
		for member, has := range map[string]string{"supports_vision": "vision", "supports_function_calling": "tool-use", "supports_reasoning": "reasoning", "supports_response_schema": "structured-output"} {
			if v.Get(member).Bool() {
				o.Abilities = append(o.Abilities, has)
			}
		}
		slices.Sort(o.Abilities)
		if v.Get("supports_vision").Bool() {
			o.Input = append(o.Input, "image")
		}
	}
	a := &perToken{v: v}
	p := &PricePerMillion{
		Input: a.get("input_cost_per_token"), Output: a.get("output_cost_per_token"), CacheRead: a.get("cache_read_input_token_cost"),
		CacheWrite: a.get("cache_creation_input_token_cost"), CacheWrite1h: a.get("cache_creation_input_token_cost_above_1hr"), Reasoning: a.get("output_cost_per_reasoning_token"),
	}
	if kind == "embedding" && p.Output == "" {
		p.Output = "0" // there is none
	}
	v.ForEach(func(key, _ gjson.Result) bool {
		if m := liteTier.FindStringSubmatch(key.Str); m != nil {
			above, _ := strconv.ParseInt(m[1], 10, 64) // six digits at most
			end := "_above_" + m[1] + "k_tokens"
			p.Tiers = append(p.Tiers, TierPerMillion{
				Above: 1000 * above, Input: a.get("input_cost_per_token" + end), Output: a.get("output_cost_per_token" + end),
				CacheRead: a.get("cache_read_input_token_cost" + end), CacheWrite: a.get("cache_creation_input_token_cost" + end),
			})
		}
		return true
	})
	r.add(name, withPrice(o, p), a.err)
}

// withPrice returns o with price p, if p has both input and output. Tiers without an
// output price get the base price's.
func withPrice(o Offer, p *PricePerMillion) Offer {
	if p.Input == "" || p.Output == "" {
		return o
	}
	slices.SortFunc(p.Tiers, func(a, b TierPerMillion) int { return int(a.Above - b.Above) })
	for i := range p.Tiers {
		if p.Tiers[i].Output == "" {
			p.Tiers[i].Output = p.Output
		}
	}
	o.Price = p
	return o
}

// perToken parses amounts per token into amounts per million, and keeps the first error.
type perToken struct {
	v   gjson.Result
	err error
}

func (a *perToken) get(name string) string {
	n := a.v.Get(name)
	if n.Type != gjson.Number {
		return ""
	}
	m, err := gateway.ParseMoney(n.Raw)
	if err == nil && (m < 0 || m > gateway.Dollar) {
		err = cay.Errorf(cay.Invalid, "%s dollars is no price of one token", n.Raw)
	}
	if err != nil {
		if a.err == nil {
			a.err = cay.Errorf(cay.Invalid, "%s: %w", name, err)
		}
		return ""
	}
	return m.Times(million).String()
}

// devProviders maps models.dev's provider names to the catalogue's, where they differ.
var devProviders = map[string]string{
	"openai": "openai", "anthropic": "anthropic", "google": "google", "google-vertex": "vertex", "google-vertex-anthropic": "vertex", "amazon-bedrock": "bedrock",
	"azure": "azure", "mistral": "mistral", "xai": "xai", "deepseek": "deepseek", "groq": "groq", "perplexity": "perplexity", "cohere": "cohere", "cerebras": "cerebras",
	"togetherai": "together", "fireworks-ai": "fireworks", "deepinfra": "deepinfra", "moonshotai": "moonshotai", "openrouter": "openrouter", "nvidia": "nvidia",
}

// dev reads a provider's entry in models.dev, whose amounts are dollars per million
// tokens.
func (r *offerReader) dev(name string, v gjson.Result) {
	r.found = true
	provider := devProviders[name]
	if provider == "" {
		return
	}
	v.Get("models").ForEach(func(id, m gjson.Result) bool {
		if !m.IsObject() {
			r.skipped = append(r.skipped, name+"/"+id.Str+": it is no object")
			return true
		}
		o := Offer{Provider: provider, Model: id.Str, Name: m.Get("name").Str, Kind: guessKind(id.Str), Context: positive(m.Get("limit.context")), MaxOutput: positive(m.Get("limit.output"))}
		if out := m.Get("modalities.output").Array(); o.Kind == "reranking" || len(out) > 0 && !slices.ContainsFunc(out, func(v gjson.Result) bool { return v.Str == "text" }) {
			return true
		}
		for _, in := range m.Get("modalities.input").Array() {
			if slices.Contains([]string{"text", "image", "audio", "video", "pdf"}, in.Str) {
				o.Input = append(o.Input, in.Str)
			}
		}
		for _, has := range []struct{ member, ability string }{{"reasoning", "reasoning"}, {"structured_output", "structured-output"}, {"tool_call", "tool-use"}} {
			if m.Get(has.member).Bool() {
				o.Abilities = append(o.Abilities, has.ability)
			}
		}
		if slices.Contains(o.Input, "image") {
			o.Abilities = append(o.Abilities, "vision")
		}
		o.Released = m.Get("release_date").Str
		r.add(name+"/"+id.Str, withPrice(o, devPrice(m.Get("cost"), o.Kind)), nil)
		return true
	})
}

func devPrice(v gjson.Result, kind string) *PricePerMillion {
	amount := func(v gjson.Result, name string) string {
		if n := v.Get(name); n.Type == gjson.Number {
			return n.Raw
		}
		return ""
	}
	p := &PricePerMillion{Input: amount(v, "input"), Output: amount(v, "output"), CacheRead: amount(v, "cache_read"), CacheWrite: amount(v, "cache_write"), Reasoning: amount(v, "reasoning")}
	if kind == "embedding" && p.Output == "" {
		p.Output = "0"
	}
	tier := func(above int64, v gjson.Result) {
		if above > 0 && v.IsObject() {
			p.Tiers = append(p.Tiers, TierPerMillion{Above: above, Input: amount(v, "input"), Output: amount(v, "output"), CacheRead: amount(v, "cache_read"), CacheWrite: amount(v, "cache_write")})
		}
	}
	if tiers := v.Get("tiers"); tiers.IsArray() {
		for _, t := range tiers.Array() {
			tier(positive(t.Get("tier.size")), t)
		}
	} else {
		tier(200_000, v.Get("context_over_200k"))
	}
	return p
}
