package catalog

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
)

// List is a list of models that the operator has imported, newer than the list in the
// binary. It has the same form.
type List struct {
	Date   string // of the update; also the version of the prices
	Models []gateway.Model
}

// ListFile returns the path of the list for a gateway with the settings file file: the
// list is in the same directory.
func ListFile(file string) string { return filepath.Join(filepath.Dir(file), "gateway-models.json") }

// maxList is the maximum size of a list in bytes.
const maxList = 64 << 20

// ReadList reads a list. ReadList returns nil if there is no such file. Errors: invalid, naming the file.
func ReadList(path string) (*List, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the list of models cannot be read: %w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxList+1))
	if err == nil && len(raw) > maxList {
		err = cay.Errorf(cay.Invalid, "it is larger than %d MiB", maxList>>20)
	}
	var l *list
	if err == nil {
		l, err = parse(raw)
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%s: %w", path, err).WithHint("\"cay gateway models update\" writes the file; without it, the list in the binary counts")
	}
	return &List{Date: l.Date, Models: l.Models}, nil
}

// Append appends the list in the form that ReadList reads.
func (l *List) Append(dst []byte) ([]byte, error) {
	f := fileList{Date: l.Date, Note: "Written by \"cay gateway models update\". Prices are US dollars per million tokens; a price that is missing is unknown."}
	for i := range l.Models {
		f.Models = append(f.Models, modelFile(&l.Models[i]))
	}
	raw, err := json.MarshalIndent(f, "", "  ")
	return append(append(dst, raw...), '\n'), err
}

func modelFile(m *gateway.Model) fileModel {
	f := fileModel{
		ID: m.ID, Name: m.Name, Description: m.Description, Kind: m.Kind, Context: m.Context, MaxOutput: m.MaxOutput,
		Input: m.Input, Output: m.Output, Capabilities: m.Abilities, Released: m.Released, Aliases: m.Aliases,
	}
	for _, e := range m.Endpoints {
		f.Endpoints = append(f.Endpoints, fileEndpoint{
			Provider: e.Provider, Model: e.Model, Price: perMillion(e.Price), Context: e.Context, MaxOutput: e.MaxOutput, Quantization: e.Quantization,
		})
	}
	return f
}

// perMillion converts a price to the form that people write, nil for nil.
func perMillion(p *gateway.Price) *PricePerMillion {
	if p == nil {
		return nil
	}
	tokens := func(m gateway.Money) string { return m.Times(million).String() }
	may := func(m *gateway.Money) string {
		if m == nil {
			return ""
		}
		return tokens(*m)
	}
	one := func(m gateway.Money) string {
		if m == 0 {
			return ""
		}
		return m.String()
	}
	all := func(prices map[string]gateway.Money) map[string]string {
		texts := make(map[string]string, len(prices))
		for name, m := range prices {
			texts[name] = m.String()
		}
		return texts
	}
	f := &PricePerMillion{
		Input: tokens(p.Input), Output: tokens(p.Output), CacheRead: may(p.CacheRead), CacheWrite: may(p.CacheWrite),
		CacheWrite1h: may(p.CacheWrite1h), Reasoning: may(p.Reasoning), Request: one(p.Request), Image: one(p.Image), Search: one(p.Search),
		Character: one(p.Character), Second: one(p.Second), Images: all(p.Images), Tools: all(p.Tools), ServiceTiers: p.ServiceTiers,
	}
	for _, t := range p.Tiers {
		f.Tiers = append(f.Tiers, TierPerMillion{
			Above: t.Above, Input: tokens(t.Input), Output: tokens(t.Output), CacheRead: may(t.CacheRead), CacheWrite: may(t.CacheWrite),
		})
	}
	return f
}

// Overlay returns base, sorted by ID, with the list's changes: new models, new endpoints
// of known models, and changed prices and limits. A price that the list does not have
// stays as in base.
func (l *List) Overlay(base []gateway.Model) []gateway.Model {
	if l == nil {
		return base
	}
	at := make(map[string]int, len(base))
	for i, m := range base {
		at[m.ID] = i
	}
	for _, m := range l.Models {
		i, known := at[m.ID]
		if !known {
			at[m.ID] = len(base)
			base = append(base, m)
			continue
		}
		base[i].Endpoints = slices.Clone(base[i].Endpoints)
		for _, e := range m.Endpoints {
			base[i].Endpoints = withEndpoint(base[i].Endpoints, e)
		}
	}
	slices.SortFunc(base, func(a, b gateway.Model) int { return strings.Compare(a.ID, b.ID) })
	return base
}

func withEndpoint(all []gateway.Endpoint, e gateway.Endpoint) []gateway.Endpoint {
	i := slices.IndexFunc(all, func(o gateway.Endpoint) bool { return o.Provider == e.Provider })
	if i < 0 {
		return append(all, e)
	}
	o := &all[i]
	o.Model = e.Model
	if e.Price != nil {
		o.Price = e.Price
	}
	if e.Context > 0 {
		o.Context = e.Context
	}
	if e.MaxOutput > 0 {
		o.MaxOutput = e.MaxOutput
	}
	return all
}
