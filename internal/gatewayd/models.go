package gatewayd

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/plan"
)

// Models returns the catalogue with the configured models, and the recent health of
// endpoints. It includes endpoints of unconfigured providers.
func (e *Engine) Models() []gateway.Model {
	v, now := e.now(), time.Now()
	all := slices.Clone(v.Catalog.List())
	for i := range all {
		m := &all[i]
		m.Endpoints = slices.Clone(m.Endpoints)
		for j := range m.Endpoints {
			ep := &m.Endpoints[j]
			p := v.Providers.Get(ep.Provider)
			ep.Configured = p != nil && (len(p.Credentials) > 0 || !p.NeedsCredential)
			ep.Health = gateway.Health{State: "unknown"}
			if p != nil {
				ep.Health = e.board.Of(p.Name, ep.Model).State(now)
				ep.ZeroRetention = ep.ZeroRetention || p.ZeroRetention
				ep.NoTraining = ep.NoTraining || p.NoTraining
				if ep.Region == "" {
					ep.Region = p.Region
				}
			}
		}
	}
	return all
}

// callable returns the models that a caller may call: models with a configured endpoint,
// within the scope of the key.
func (l *lookup) callable() []gateway.Model {
	var list []gateway.Model
	for _, m := range l.e.Models() {
		ok := l.caller.Key == nil || plan.Allows(l.caller.Key.Models, m.ID)
		m.Endpoints = slices.DeleteFunc(m.Endpoints, func(ep gateway.Endpoint) bool {
			if own, _ := l.v.OwnOf(l.caller, ep.Provider); len(own) > 0 {
				ep.Configured = true
			}
			return !ep.Configured || l.caller.Key != nil && len(l.caller.Key.Providers) > 0 && !slices.Contains(l.caller.Key.Providers, ep.Provider)
		})
		if ok && len(m.Endpoints) > 0 {
			list = append(list, m)
		}
	}
	return list
}

// listed is a model as GET /v1/models shows it: OpenAI's members, plus the members that
// Vercel's hosted gateway adds.
type listed struct {
	ID             string         `json:"id"`
	Object         string         `json:"object"`
	Created        int64          `json:"created"`
	Released       int64          `json:"released"`
	OwnedBy        string         `json:"owned_by"`
	Name           string         `json:"name"`
	Description    string         `json:"description"`
	Type           string         `json:"type"`
	Specifications []string       `json:"supported_specifications"`
	Modalities     modalities     `json:"modalities"`
	Pricing        map[string]any `json:"pricing"`
	ContextWindow  int64          `json:"context_window,omitempty"`
	MaxTokens      int64          `json:"max_tokens,omitempty"`
	Tags           []string       `json:"tags,omitempty"`
}

type modalities struct {
	Input  []string `json:"input"`
	Output []string `json:"output"`
}

func list(m *gateway.Model) listed {
	creator, _, _ := strings.Cut(m.ID, "/")
	l := listed{
		ID: m.ID, Object: "model", OwnedBy: creator, Name: orDefault(m.Name, m.ID), Description: m.Description, Type: m.Kind,
		Specifications: []string{"v2", "v3", "v4"}, Modalities: modalities{m.Input, m.Output}, Pricing: map[string]any{},
		ContextWindow: m.Context, MaxTokens: m.MaxOutput, Tags: m.Abilities,
	}
	if l.Modalities.Input == nil {
		l.Modalities.Input = []string{"text"}
	}
	if l.Modalities.Output == nil {
		l.Modalities.Output = []string{"text"}
	}
	if day, err := time.Parse(time.DateOnly, m.Released); err == nil {
		l.Created, l.Released = day.Unix(), day.Unix()
	}
	for i := range m.Endpoints {
		if p := m.Endpoints[i].Price; p != nil {
			l.Pricing = pricing(p)
			break
		}
	}
	return l
}

func pricing(p *gateway.Price) map[string]any {
	all := map[string]any{"input": p.Input.String(), "output": p.Output.String()}
	for name, m := range map[string]*gateway.Money{"input_cache_read": p.CacheRead, "input_cache_write": p.CacheWrite} {
		if m != nil {
			all[name] = m.String()
		}
	}
	for name, m := range map[string]gateway.Money{"web_search": p.Search, "image": p.Image, "request": p.Request} {
		if m != 0 {
			all[name] = m.String()
		}
	}
	if len(p.Tiers) > 0 {
		type tier struct {
			Cost string `json:"cost"`
			Min  int64  `json:"min"`
		}
		in, out := []tier{{p.Input.String(), 0}}, []tier{{p.Output.String(), 0}}
		for _, t := range p.Tiers {
			in, out = append(in, tier{t.Input.String(), t.Above}), append(out, tier{t.Output.String(), t.Above})
		}
		all["input_tiers"], all["output_tiers"] = in, out
	}
	return all
}

// listModels serves GET /v1/models, in Anthropic's form for Anthropic's clients.
func (l *lookup) listModels() ([]byte, *hub.Error) {
	models := l.callable()
	if l.http.Header.Get("Anthropic-Version") != "" {
		return encoded(anthropicList(models))
	}
	all := struct {
		Object string   `json:"object"`
		Data   []listed `json:"data"`
	}{"list", []listed{}}
	for i := range models {
		all.Data = append(all.Data, list(&models[i]))
	}
	return encoded(all)
}

// anthropicModel is a model as Anthropic's API lists it.
type anthropicModel struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
}

// anthropicList returns the page that Anthropic's clients expect, with all models.
func anthropicList(models []gateway.Model) any {
	page := struct {
		Data    []anthropicModel `json:"data"`
		HasMore bool             `json:"has_more"`
		FirstID *string          `json:"first_id"`
		LastID  *string          `json:"last_id"`
	}{Data: []anthropicModel{}}
	for i := range models {
		if models[i].Kind == kindLanguage {
			page.Data = append(page.Data, anthropicEntry(&models[i]))
		}
	}
	if n := len(page.Data); n > 0 {
		page.FirstID, page.LastID = &page.Data[0].ID, &page.Data[n-1].ID
	}
	return page
}

func anthropicEntry(m *gateway.Model) anthropicModel {
	created := m.Released
	if created == "" {
		created = "1970-01-01" // the API's value for an unknown date
	}
	return anthropicModel{"model", m.ID, orDefault(m.Name, m.ID), created + "T00:00:00Z"}
}

// showModel serves GET /v1/models/{creator}/{model}, and its endpoints.
func (l *lookup) showModel() ([]byte, *hub.Error) {
	name := strings.TrimPrefix(path(l.http), "/v1/models/")
	id, endpoints := strings.CutSuffix(name, "/endpoints")
	models := l.callable()
	known := l.e.now().Catalog.Lookup(id)
	i := slices.IndexFunc(models, func(m gateway.Model) bool { return known != nil && m.ID == known.ID })
	if i < 0 {
		return nil, l.e.now().NoModel(id)
	}
	m := &models[i]
	switch {
	case endpoints:
		return encoded(map[string]any{"data": endpointsOf(m)})
	case l.http.Header.Get("Anthropic-Version") != "":
		return encoded(anthropicEntry(m))
	}
	return encoded(list(m))
}

// shownEndpoint is an endpoint as GET /v1/models/{creator}/{model}/endpoints shows
// it.
type shownEndpoint struct {
	Name          string         `json:"name"`
	Provider      string         `json:"provider_name"`
	Context       int64          `json:"context_length,omitempty"`
	MaxTokens     int64          `json:"max_completion_tokens,omitempty"`
	Quantization  *string        `json:"quantization"`
	Parameters    []string       `json:"supported_parameters"`
	Tags          []string       `json:"tags,omitempty"`
	Pricing       map[string]any `json:"pricing"`
	Status        int            `json:"status"` // 0: usable; -1: failing recently
	ImplicitCache bool           `json:"supports_implicit_caching"`
	Latency       *percentiles   `json:"latency_last_1h,omitempty"`    // milliseconds to the first token
	Throughput    *percentiles   `json:"throughput_last_1h,omitempty"` // tokens a second
}

// percentiles are the percentiles of recent calls; the gateway keeps only the median.
type percentiles struct {
	P50 float64 `json:"p50"`
}

func endpointsOf(m *gateway.Model) any {
	type architecture struct {
		Input    []string `json:"input_modalities"`
		Output   []string `json:"output_modalities"`
		Modality string   `json:"modality"`
	}
	l := list(m)
	all := []shownEndpoint{}
	for i := range m.Endpoints {
		ep := &m.Endpoints[i]
		s := shownEndpoint{
			Name: ep.Provider + " | " + m.ID, Provider: ep.Provider, Context: orDefault(ep.Context, m.Context), MaxTokens: orDefault(ep.MaxOutput, m.MaxOutput),
			Parameters: []string{}, Tags: m.Abilities, Pricing: map[string]any{}, ImplicitCache: slices.Contains(m.Abilities, "implicit-caching"),
		}
		if ep.Quantization != "" {
			s.Quantization = &ep.Quantization
		}
		if p := ep.Price; p != nil {
			s.Pricing = pricing(p)
			s.Pricing["prompt"], s.Pricing["completion"], s.Pricing["request"] = p.Input.String(), p.Output.String(), p.Request.String()
		}
		if ep.Health.State == "open" {
			s.Status = -1
		}
		if ep.Health.FirstToken > 0 {
			s.Latency = &percentiles{float64(ep.Health.FirstToken)}
		}
		if ep.Health.Throughput > 0 {
			s.Throughput = &percentiles{ep.Health.Throughput}
		}
		all = append(all, s)
	}
	return map[string]any{
		"id": m.ID, "name": l.Name, "created": l.Created, "description": m.Description, "endpoints": all,
		"architecture": architecture{l.Modalities.Input, l.Modalities.Output, strings.Join(l.Modalities.Input, "+") + "->" + strings.Join(l.Modalities.Output, "+")},
	}
}

// configOf returns the lookup of GET {base}/config, the models for AI SDK clients of a
// version.
func configOf(version string) func(*lookup) ([]byte, *hub.Error) {
	return func(l *lookup) ([]byte, *hub.Error) { return aisdk.Models(version, l.callable()), nil }
}

// encoded returns the JSON of v.
func encoded(v any) ([]byte, *hub.Error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, hub.AsError(err)
	}
	return body, nil
}
