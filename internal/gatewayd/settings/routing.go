package settings

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Preset is the result of resolving a model name. The fields are those of the engine's
// Preset.
type Preset struct {
	Model       string   // to ask for instead; empty: the same
	Models      []string // to try after it
	Order, Only []string
	Sort        string
	ZeroData    bool
	NoTraining  bool
	Has         []string
	AutoCache   bool
	ServiceTier string
}

// maxHops is the maximum length of a chain of names.
const maxHops = 16

// Route resolves a requested model name: it applies the first rule that matches, then
// aliases, splits and virtual models until the name is a model's. Errors: *hub.Error of
// the kind Forbidden for a rule that refuses.
func (s *Snapshot) Route(c *ledger.Caller, model string) (Preset, error) {
	return s.route(c, model, rand.IntN)
}

// route is Route with a given source of random numbers: draw returns a number from 0 to
// n-1.
func (s *Snapshot) route(c *ledger.Caller, model string, draw func(n int) int) (Preset, error) {
	name := model
	for i := range s.rules {
		r := &s.rules[i]
		if !r.matches(c, model) {
			continue
		}
		if r.Deny != "" {
			details, _ := json.Marshal(map[string]string{"ruleId": r.ID}) // texts cannot fail
			return Preset{}, &hub.Error{Kind: hub.Forbidden, Code: "rule", Param: "model", Message: r.Deny, Details: details}
		}
		name = r.Rewrite
		break
	}
	name, v := s.expand(name, draw)
	p := Preset{}
	if v != nil {
		p = Preset{
			Order: v.Order, Only: v.Only, Sort: v.Sort, ZeroData: v.ZeroRetention, NoTraining: v.NoTraining,
			Has: v.Has, AutoCache: v.Caching == "auto", ServiceTier: v.ServiceTier,
		}
		for _, m := range v.Models {
			m, _ = s.expand(m, draw)
			p.Models = append(p.Models, m)
		}
	}
	if name != model {
		p.Model = name
	}
	return p, nil
}

// expand resolves a name to a model, and returns the virtual model on the way, if any.
func (s *Snapshot) expand(name string, draw func(n int) int) (string, *Virtual) {
	var virtual *Virtual
	for range maxHops {
		switch {
		case s.aliases[name] != "":
			name = s.aliases[name]
		case s.splits[name] != nil:
			name = pick(s.splits[name], draw)
		case s.virtual[name] != nil && virtual == nil:
			virtual = s.virtual[name]
			if virtual.Model == name { // a virtual model named like its model
				return name, virtual
			}
			name = virtual.Model
		default:
			return name, virtual
		}
	}
	return name, virtual
}

// pick draws a model at random by weight.
func pick(shares []Share, draw func(n int) int) string {
	sum := 0
	for _, s := range shares {
		sum += s.Weight
	}
	at := draw(sum)
	for _, s := range shares {
		if at -= s.Weight; at < 0 {
			return s.Model
		}
	}
	return shares[len(shares)-1].Model
}

func (r *Rule) matches(c *ledger.Caller, model string) bool {
	if len(r.Projects) > 0 && (c == nil || !slices.Contains(r.Projects, c.ProjectID)) ||
		len(r.Keys) > 0 && (c == nil || !slices.Contains(r.Keys, c.KeyID)) {
		return false
	}
	return matches(r.Model, model)
}

// matches reports whether name matches pattern; a star matches any text.
func matches(pattern, name string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	for {
		part, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], more
	}
}

const maxNames = 10_000

// nameChecker checks rules, aliases, splits and virtual models: whether each name leads to
// a model.
type nameChecker struct {
	byName
	file    *File
	catalog *catalog.Catalog
}

// check checks all of them.
func (b *nameChecker) check() error {
	f := b.file
	if len(f.Rules)+len(f.Aliases)+len(f.Splits)+len(f.Virtual) > maxNames {
		return cay.Errorf(cay.Invalid, "there are more than %d rules, aliases, splits and virtual models", maxNames)
	}
	seen := make(map[string]string) // each name, and the kind of setting that defines it
	for _, kind := range []struct {
		is    string
		names []string
	}{{"aliases", slices.Sorted(maps.Keys(f.Aliases))}, {"splits", slices.Sorted(maps.Keys(f.Splits))}, {"virtual", slices.Sorted(maps.Keys(f.Virtual))}} {
		for _, name := range kind.names {
			if other := seen[name]; other != "" {
				return at(cay.Errorf(cay.Invalid, "%s has the same name", other), kind.is, name)
			}
			if name == "" || len(name) > 256 || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
				return at(cay.Errorf(cay.Invalid, "%.80q is no name of a model", name), kind.is, name)
			}
			seen[name] = kind.is
		}
	}
	for name, target := range f.Aliases {
		if err := b.target(target); err != nil {
			return at(err, "aliases", name)
		}
	}
	for name, shares := range f.Splits {
		if len(shares) == 0 {
			return at(cay.Errorf(cay.Invalid, "there is no model to draw"), "splits", name)
		}
		for i, share := range shares {
			if share.Weight < 1 || share.Weight > 1_000_000 || len(shares) > 100 {
				return at(cay.Errorf(cay.Invalid, "the weight is %d; it is from 1 to 1000000, for at most 100 models", share.Weight), "splits", name, i)
			}
			if err := b.target(share.Model); err != nil {
				return at(err, "splits", name, i, "model")
			}
		}
	}
	for name, v := range f.Virtual {
		if err := b.checkVirtual(name, v); err != nil {
			return at(err, "virtual", name)
		}
	}
	for name, is := range seen {
		if hops := b.cycle(name); hops {
			return at(cay.Errorf(cay.Invalid, "%s stands for itself in the end, or for too many names in turn", name), is, name)
		}
	}
	return b.checkRules()
}

// cycle reports whether resolving a name leads back to the name.
func (b *nameChecker) cycle(name string) bool {
	next := func(n string) []string {
		switch f := b.file; {
		case f.Aliases[n] != "":
			return []string{f.Aliases[n]}
		case f.Splits[n] != nil:
			var all []string
			for _, s := range f.Splits[n] {
				all = append(all, s.Model)
			}
			return all
		case f.Virtual[n] != nil && f.Virtual[n].Model != n:
			return []string{f.Virtual[n].Model}
		}
		return nil
	}
	level := []string{name}
	for range maxHops {
		found := make(map[string]bool)
		for _, n := range level {
			for _, m := range next(n) {
				found[m] = true
			}
		}
		if len(found) == 0 {
			return false
		}
		level = slices.Collect(maps.Keys(found))
	}
	return true
}

// target checks that a name can be called.
func (b *nameChecker) target(name string) error {
	f := b.file
	if f.Aliases[name] != "" || f.Splits[name] != nil || f.Virtual[name] != nil || b.catalog.Lookup(name) != nil {
		return nil
	}
	first, rest, ok := strings.Cut(name, "/")
	if p := b.all[first]; ok && rest != "" && p != nil && p.Unlisted {
		return nil
	}
	if e := b.entries[first]; ok && e != nil && e.Disabled {
		return nil
	}
	return cay.Errorf(cay.Invalid, "%.200q is no model that is known", name).WithHint("\"cay gateway models\" lists them; others are added under models")
}

func (b *nameChecker) checkVirtual(name string, v *Virtual) error {
	if v == nil || v.Model == "" {
		return at(cay.Errorf(cay.Invalid, "it has a model"), "model")
	}
	if v.Model != name || b.catalog.Lookup(name) == nil {
		if v.Model == name {
			return at(cay.Errorf(cay.Invalid, "%.200q is no model that is known", name), "model")
		}
		if err := b.target(v.Model); err != nil {
			return at(err, "model")
		}
	}
	if other := b.file.Virtual[v.Model]; other != nil && v.Model != name {
		return at(cay.Errorf(cay.Invalid, "%s is a virtual model itself", v.Model), "model")
	}
	for i, m := range v.Models {
		if err := b.target(m); err != nil {
			return at(err, "models", i)
		}
	}
	for list, names := range map[string][]string{"order": v.Order, "only": v.Only} {
		for i, n := range names {
			if !b.known(n) {
				return at(cay.Errorf(cay.Invalid, "there is no provider %.80q", n), list, i)
			}
		}
	}
	for member, value := range map[string]struct {
		v    string
		have []string
	}{"sort": {v.Sort, []string{"cost", "ttft", "tps"}}, "caching": {v.Caching, []string{"auto"}}, "service_tier": {v.ServiceTier, []string{"flex", "priority"}}} {
		if value.v != "" && !slices.Contains(value.have, value.v) {
			return at(cay.Errorf(cay.Invalid, "%q is none of %s", value.v, strings.Join(value.have, ", ")), member)
		}
	}
	for i, h := range v.Has {
		if !slices.Contains([]string{"implicit-caching", "reasoning", "structured-output", "tool-use", "vision"}, h) && !strings.HasPrefix(strings.TrimPrefix(h, "!"), "quantization:") {
			return at(cay.Errorf(cay.Invalid, "%q is none of implicit-caching, reasoning, structured-output, tool-use, vision, quantization:x, !quantization:x", h), "has", i)
		}
	}
	return nil
}

func (b *nameChecker) checkRules() error {
	for i := range b.file.Rules {
		r := &b.file.Rules[i]
		switch {
		case r.Model == "" || len(r.Model) > 256:
			return at(cay.Errorf(cay.Invalid, "a rule has a model, which may have stars: openai/*"), "rules", i)
		case (r.Rewrite == "") == (r.Deny == ""):
			return at(cay.Errorf(cay.Invalid, "a rule has either rewrite, a model to call instead, or deny, the words of a refusal"), "rules", i)
		case r.Deny != "" && r.ID == "":
			return at(cay.Errorf(cay.Invalid, "a rule that denies has an id, which clients are told"), "rules", i)
		case r.Rewrite != "":
			if err := b.target(r.Rewrite); err != nil {
				return at(err, "rules", i, "rewrite")
			}
		}
	}
	return nil
}
