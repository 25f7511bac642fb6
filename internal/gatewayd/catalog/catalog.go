// Package catalog knows models: their providers, abilities and prices. Its data is a
// dated file in the binary, with additions and changes from the operator's configuration.
//
// The file contains no guesses. A missing price is unknown, and so is the cost of a
// request for such a model; an unknown price is never zero.
package catalog

import (
	"slices"
	"strings"

	"github.com/cayhq/cay/gateway"
)

// Catalog is an immutable list of models.
type Catalog struct {
	models []gateway.Model // sorted by ID
	byName map[string]*gateway.Model
	bare   map[string]*gateway.Model // by ID without its creator; nil if there are several
}

// New returns a catalogue of models. A later model replaces an earlier one with the same
// ID.
func New(models []gateway.Model) *Catalog {
	c := &Catalog{byName: make(map[string]*gateway.Model), bare: make(map[string]*gateway.Model)}
	seen := make(map[string]int)
	for _, m := range models {
		if i, ok := seen[m.ID]; ok {
			c.models[i] = m
			continue
		}
		seen[m.ID] = len(c.models)
		c.models = append(c.models, m)
	}
	slices.SortFunc(c.models, func(a, b gateway.Model) int { return strings.Compare(a.ID, b.ID) })
	for i := range c.models {
		m := &c.models[i]
		for _, alias := range m.Aliases {
			c.byName[alias] = m
		}
		_, name, _ := strings.Cut(m.ID, "/")
		if _, taken := c.bare[name]; taken {
			c.bare[name] = nil
		} else {
			c.bare[name] = m
		}
	}
	for i := range c.models {
		c.byName[c.models[i].ID] = &c.models[i]
	}
	return c
}

// Lookup returns the model with a name, nil if there is none. The caller must not change
// it. A name is, in this order, an ID or an alias; an ID without its creator, if only one
// creator has a model with that ID; a name that Anthropic's API or Amazon Bedrock uses
// for a Claude model, with or without a date: claude-sonnet-4-5-20250929.
func (c *Catalog) Lookup(name string) *gateway.Model {
	if m := c.byName[name]; m != nil {
		return m
	}
	if m := c.bare[name]; m != nil {
		return m
	}
	if id := claudeID(name); id != "" {
		return c.byName[id]
	}
	return nil
}

// List returns all models, sorted by ID. The caller must not change them.
func (c *Catalog) List() []gateway.Model { return c.models }

// claudeID returns the ID for a provider's name of a Claude model, "" if the name is not
// of that form.
func claudeID(name string) string {
	i := strings.Index(name, "claude-")
	if i < 0 {
		return ""
	}
	switch prefix := name[:i]; { // anthropic/, anthropic., us.anthropic., global.anthropic.
	case prefix == "", prefix == "anthropic/", prefix == "anthropic.", strings.HasSuffix(prefix, ".anthropic.") && !strings.Contains(prefix, "/"):
	default:
		return ""
	}
	name = strings.TrimSuffix(name[i:], "-latest")
	if rest, _, ok := strings.Cut(name, ":"); ok { // -v1:0
		name = rest
	}
	words := strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '@' }) // Vertex has @20250929
	if last := words[len(words)-1]; len(last) == 2 && last[0] == 'v' && digits(last[1:]) {
		words = words[:len(words)-1]
	}
	if last := words[len(words)-1]; len(last) == 8 && digits(last) {
		words = words[:len(words)-1]
	}
	for i := 1; i < len(words); i++ { // 4-5 is 4.5
		if short(words[i-1]) && short(words[i]) {
			words[i-1] += "." + words[i]
			words = slices.Delete(words, i, i+1)
		}
	}
	return "anthropic/" + strings.Join(words, "-")
}

func short(s string) bool { return len(s) <= 2 && digits(s) }

func digits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}
