package catalog

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

//go:embed models.json
var builtin []byte

// Date returns the date of the list in the binary, which is also the version of its
// prices.
func Date() string { return loadBuiltin().Date }

// Builtin returns the models of the list in the binary, sorted by ID. The caller may
// change the slice, but nothing that its elements point to.
func Builtin() []gateway.Model { return slices.Clone(loadBuiltin().Models) }

// ToolPrice returns a provider kind's price per run of a tool, by the tool's type without
// a date; false if the list has no price. Tools that cost only tokens, and tools that the
// caller runs, cost 0.
func ToolPrice(kind, tool string) (gateway.Money, bool) {
	for _, k := range [...]string{kind, "*"} {
		if m, ok := loadBuiltin().Tools[k][tool]; ok {
			return m, true
		}
	}
	return 0, false
}

// list is a parsed list of models.
type list struct {
	Date   string
	Models []gateway.Model
	Tools  map[string]map[string]gateway.Money
}

var loadBuiltin = sync.OnceValue(func() *list {
	l, err := parse(builtin)
	if err != nil {
		panic("catalog: models.json: " + err.Error()) // a test reads it
	}
	return l
})

// fileModel, fileEndpoint, filePrice and fileTier are the JSON form of a list: amounts
// are decimal strings in dollars per million tokens.
type (
	fileList struct {
		Date   string      `json:"date"`
		Note   string      `json:"note"`
		Models []fileModel `json:"models"`
		// Tools maps provider kinds and tool types to the price of one run in dollars;
		// "*" is for all kinds.
		Tools map[string]map[string]string `json:"tools"`
	}
	fileModel struct {
		ID           string         `json:"id"`
		Name         string         `json:"name"`
		Description  string         `json:"description"`
		Kind         string         `json:"kind"`
		Context      int64          `json:"context"`
		MaxOutput    int64          `json:"max_output"`
		Input        []string       `json:"input"`
		Output       []string       `json:"output"`
		Capabilities []string       `json:"capabilities"`
		Released     string         `json:"released"`
		Aliases      []string       `json:"aliases"`
		Endpoints    []fileEndpoint `json:"endpoints"`
	}
	fileEndpoint struct {
		Provider     string           `json:"provider"`
		Model        string           `json:"model"`
		Price        *PricePerMillion `json:"price"`
		Context      int64            `json:"context"`
		MaxOutput    int64            `json:"max_output"`
		Quantization string           `json:"quantization"`
	}
)

// PricePerMillion is a price in the form that people write: decimal numbers of dollars
// per million tokens, or per unit for images, characters and the like. Input and Output
// are required, the others optional as in gateway.Price.
type PricePerMillion struct {
	Input        string            `json:"input" yaml:"input"`
	Output       string            `json:"output" yaml:"output"`
	CacheRead    string            `json:"cache_read" yaml:"cache_read"`
	CacheWrite   string            `json:"cache_write" yaml:"cache_write"`
	CacheWrite1h string            `json:"cache_write_1h" yaml:"cache_write_1h"`
	Reasoning    string            `json:"reasoning" yaml:"reasoning"`
	Request      string            `json:"request" yaml:"request"`
	Image        string            `json:"image" yaml:"image"`
	Images       map[string]string `json:"images" yaml:"images"`
	Character    string            `json:"character" yaml:"character"`
	Second       string            `json:"second" yaml:"second"`
	Search       string            `json:"search" yaml:"search"`
	Tools        map[string]string `json:"tools" yaml:"tools"`
	Tiers        []TierPerMillion  `json:"tiers" yaml:"tiers"`
	ServiceTiers map[string]int    `json:"service_tiers" yaml:"service_tiers"` // percent
}

// TierPerMillion is a PriceTier in the form that people write.
type TierPerMillion struct {
	Above      int64  `json:"above" yaml:"above"` // tokens of the prompt
	Input      string `json:"input" yaml:"input"`
	Output     string `json:"output" yaml:"output"`
	CacheRead  string `json:"cache_read" yaml:"cache_read"`
	CacheWrite string `json:"cache_write" yaml:"cache_write"`
}

const million = 1_000_000

// Price converts p to prices per token. version is the version of the list that p is
// from. Errors: invalid, naming the member.
func (p *PricePerMillion) Price(version string) (*gateway.Price, error) {
	r := amounts{per: million}
	price := &gateway.Price{
		Version: version,
		Input:   r.required("input", p.Input), Output: r.required("output", p.Output),
		CacheRead: r.optional("cache_read", p.CacheRead), CacheWrite: r.optional("cache_write", p.CacheWrite),
		CacheWrite1h: r.optional("cache_write_1h", p.CacheWrite1h), Reasoning: r.optional("reasoning", p.Reasoning),
	}
	for i, t := range p.Tiers {
		at := fmt.Sprintf("tiers[%d].", i)
		if least := tierAbove(price.Tiers); t.Above <= least {
			return nil, cay.Errorf(cay.Invalid, "%sabove is %d; tiers begin above 0 and ascend, so it is more than %d", at, t.Above, least)
		}
		price.Tiers = append(price.Tiers, gateway.PriceTier{
			Above: t.Above,
			Input: r.required(at+"input", t.Input), Output: r.required(at+"output", t.Output),
			CacheRead: r.optional(at+"cache_read", t.CacheRead), CacheWrite: r.optional(at+"cache_write", t.CacheWrite),
		})
	}
	for name, percent := range p.ServiceTiers {
		if percent < 0 || percent > 10_000 {
			return nil, cay.Errorf(cay.Invalid, "service_tiers.%s is %d; it is a percentage from 0 to 10000", name, percent)
		}
	}
	price.ServiceTiers = p.ServiceTiers
	r.per = 1
	for _, one := range []struct {
		name, text string
		into       *gateway.Money
	}{{"request", p.Request, &price.Request}, {"image", p.Image, &price.Image}, {"search", p.Search, &price.Search}, {"character", p.Character, &price.Character}, {"second", p.Second, &price.Second}} {
		if m := r.optional(one.name, one.text); m != nil {
			*one.into = *m
		}
	}
	for name, text := range p.Images {
		if m := r.optional("images."+name, text); m != nil {
			if price.Images == nil {
				price.Images = make(map[string]gateway.Money, len(p.Images))
			}
			price.Images[name] = *m
		}
	}
	for name, text := range p.Tools {
		if m := r.optional("tools."+name, text); m != nil {
			if price.Tools == nil {
				price.Tools = make(map[string]gateway.Money, len(p.Tools))
			}
			price.Tools[name] = *m
		}
	}
	return price, r.err
}

func tierAbove(tiers []gateway.PriceTier) int64 {
	if len(tiers) == 0 {
		return 0
	}
	return tiers[len(tiers)-1].Above
}

// amounts parses amounts per per tokens and keeps the first error.
type amounts struct {
	per int64
	err error
}

func (a *amounts) required(name, text string) gateway.Money {
	if text == "" && a.err == nil {
		a.err = cay.Errorf(cay.Invalid, "%s is missing; leave the whole price out if it is not known", name)
	}
	if m := a.optional(name, text); m != nil {
		return *m
	}
	return 0
}

func (a *amounts) optional(name, text string) *gateway.Money {
	if text == "" {
		return nil
	}
	m, err := gateway.ParseMoney(text)
	switch {
	case a.err != nil:
	case err != nil:
		a.err = cay.Errorf(cay.Invalid, "%s: %w", name, err)
	case m < 0:
		a.err = cay.Errorf(cay.Invalid, "%s is %s; a price is not negative", name, text)
	case int64(m)%a.per != 0:
		a.err = cay.Errorf(cay.Invalid, "%s: %s dollars for a million tokens is less than 10^-12 for one", name, text)
	}
	m /= gateway.Money(a.per)
	return &m
}

// parse parses a list. Errors: invalid, naming the model and the member.
func parse(raw []byte) (*list, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	var f fileList
	if err := d.Decode(&f); err != nil {
		return nil, cay.Errorf(cay.Invalid, "a list of models: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, cay.Errorf(cay.Invalid, "there is something after the list of models")
	}
	l := &list{Date: f.Date, Models: make([]gateway.Model, 0, len(f.Models))}
	names := make(map[string]string) // names and aliases to models
	for _, m := range f.Models {
		model, err := m.model(f.Date)
		if err != nil {
			return nil, cay.Errorf(cay.Invalid, "model %q: %w", m.ID, err)
		}
		for _, name := range append([]string{m.ID}, m.Aliases...) {
			if other, ok := names[name]; ok {
				return nil, cay.Errorf(cay.Invalid, "model %q: %s has the name %q too", m.ID, other, name)
			}
			names[name] = m.ID
		}
		l.Models = append(l.Models, *model)
	}
	r := amounts{per: 1}
	l.Tools = make(map[string]map[string]gateway.Money, len(f.Tools))
	for kind, tools := range f.Tools {
		l.Tools[kind] = make(map[string]gateway.Money, len(tools))
		for name, text := range tools {
			l.Tools[kind][name] = r.required("tools."+kind+"."+name, text)
		}
	}
	return l, r.err
}

func (m *fileModel) model(version string) (*gateway.Model, error) {
	model := &gateway.Model{
		ID: m.ID, Name: m.Name, Description: m.Description, Kind: m.Kind, Context: m.Context, MaxOutput: m.MaxOutput,
		Input: m.Input, Output: m.Output, Abilities: m.Capabilities, Aliases: m.Aliases, Released: m.Released,
	}
	for _, e := range m.Endpoints {
		endpoint := gateway.Endpoint{
			Provider: e.Provider, Model: e.Model, Context: e.Context, MaxOutput: e.MaxOutput, Quantization: e.Quantization,
			Health: gateway.Health{State: "unknown"},
		}
		if e.Price != nil {
			price, err := e.Price.Price(version)
			if err != nil {
				return nil, cay.Errorf(cay.Invalid, "endpoint %s: price.%w", e.Provider, err)
			}
			endpoint.Price = price
		}
		model.Endpoints = append(model.Endpoints, endpoint)
	}
	return model, Validate(model)
}

// Kinds are all kinds of models.
var Kinds = []string{"language", "embedding", "image", "reranking", "speech", "transcription", "video", "realtime", "decision"}

// Validate returns an error of the code invalid that names the invalid member of m.
func Validate(m *gateway.Model) error {
	creator, name, ok := strings.Cut(m.ID, "/")
	switch {
	case !ok || !ValidName(creator) || name == "" || len(m.ID) > 256 || strings.ContainsFunc(name, notInName):
		return cay.Errorf(cay.Invalid, "id %.80q is not creator/model", m.ID)
	case !slices.Contains(Kinds, m.Kind):
		return cay.Errorf(cay.Invalid, "kind %q is none of %s", m.Kind, strings.Join(Kinds, ", "))
	case m.Context < 0 || m.MaxOutput < 0:
		return cay.Errorf(cay.Invalid, "context and max_output are not negative")
	case len(m.Endpoints) == 0:
		return cay.Errorf(cay.Invalid, "there is no endpoint: nobody offers it")
	}
	for i, e := range m.Endpoints {
		if !ValidName(e.Provider) || e.Model == "" {
			return cay.Errorf(cay.Invalid, "endpoints[%d]: provider %.80q and model %.80q are the provider's name and its name of the model", i, e.Provider, e.Model)
		}
		if slices.ContainsFunc(m.Endpoints[:i], func(o gateway.Endpoint) bool { return o.Provider == e.Provider }) {
			return cay.Errorf(cay.Invalid, "endpoints[%d]: %s is there already", i, e.Provider)
		}
	}
	return nil
}

// ValidName reports whether s is a valid name of a provider or creator: 1 to 64 of a-z,
// 0-9, ".", "_" and "-", beginning with a letter or digit.
func ValidName(s string) bool {
	if s == "" || len(s) > 64 || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			return false
		}
	}
	return true
}

func notInName(r rune) bool { return r <= ' ' || r == 0x7f || r == '"' || r == '\\' }
