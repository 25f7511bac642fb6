// Package catalog knows models: who offers them, what they can do, and what they
// cost. What it knows is a dated file in the binary, and what the operator's
// configuration adds to it or says otherwise.
//
// Nothing in the file is guessed. A price that is missing is unknown, and so is
// what a request for such a model costs; it is never zero.
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

// New returns the catalogue of models. A later one of the same ID replaces an
// earlier one.
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

// Lookup returns the model of a name, nil if there is none. The caller does not
// change it. A name is, in this order, an ID or an alias; an ID without its
// creator, if only one creator has such a model; a name Anthropic's API or Amazon
// Bedrock knows a Claude model by, dated or not: claude-sonnet-4-5-20250929.
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

// List returns all models, sorted by ID. The caller does not change them.
func (c *Catalog) List() []gateway.Model { return c.models }

// claudeID returns the ID that a provider's name of a Claude model means, "" if
// it is not like one.
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
