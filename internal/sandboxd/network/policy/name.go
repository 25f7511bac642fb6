package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// CleanName returns name in the form that the other functions need: in lower case,
// without a final dot. The name comes from a guest, so CleanName refuses everything that
// some resolver, certificate check or log could misread: all characters except letters,
// digits, hyphens, underscores and dots; addresses in any notation (also 127.1 or
// 0x7f000001); empty labels; labels of more than 63 and names of more than 253 bytes.
func CleanName(name string) (string, error) {
	clean := strings.TrimSuffix(name, ".")
	switch {
	case clean == "":
		return "", errors.New("the name is empty")
	case len(clean) > 253:
		return "", fmt.Errorf("the name %.60q... is longer than 253 bytes", clean)
	}
	label, upper := 0, false // where the label begins; whether a capital was seen
	for i := 0; i <= len(clean); i++ {
		if i < len(clean) && clean[i] != '.' {
			c := clean[i]
			switch {
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			case 'A' <= c && c <= 'Z':
				upper = true
			default:
				return "", fmt.Errorf("the name %.253q has a character in it that no host name has", clean)
			}
			continue
		}
		if n := i - label; n == 0 || n > 63 {
			return "", fmt.Errorf("the name %.253q has a label of %d bytes", clean, n)
		}
		if i < len(clean) {
			label = i + 1
		}
	}
	if upper {
		clean = strings.ToLower(clean)
	}
	if isNumber(clean[label:]) {
		return "", fmt.Errorf("%.253q is an address, not a name", clean)
	}
	return clean, nil
}

// isNumber reports whether a program that knows the old notations reads a name ending in
// this label as an IPv4 address.
func isNumber(label string) bool {
	digits := "0123456789"
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		label, digits = rest, "0123456789abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// table finds the entry of the allow list for a name.
type table struct {
	exact  map[string]*Domain
	below  map[string]*Domain // "*.example.com", by "example.com"
	inner  []*Domain          // with a "*" further in, the most specific first
	any    *Domain            // "*"
	labels int                // of the longest key in below
}

func (t *table) add(d *Domain) {
	pattern := strings.ToLower(d.Pattern)
	d.labels = strings.Split(pattern, ".")
	parent, below := strings.CutPrefix(pattern, "*.")
	switch {
	case pattern == "*":
		t.any = d
	case slices.Contains(d.labels[1:], "*"):
		t.inner = append(t.inner, d)
		d.prefix, _, _ = strings.Cut(pattern, "*")
		d.suffix = pattern[strings.LastIndexByte(pattern, '*')+1:]
	case below:
		if t.below == nil {
			t.below = map[string]*Domain{}
		}
		t.below[parent] = d
		t.labels = max(t.labels, len(d.labels)-1)
	default:
		if t.exact == nil {
			t.exact = map[string]*Domain{}
		}
		t.exact[pattern] = d
	}
}

func (t *table) sort() { slices.SortStableFunc(t.inner, moreSpecific) }

func (t *table) empty() bool {
	return len(t.exact)+len(t.below)+len(t.inner) == 0 && t.any == nil
}

// find returns the most specific entry that matches the name, or nil.
func (t *table) find(name string) *Domain {
	if d := t.exact[name]; d != nil {
		return d
	}
	best := t.parent(name)
	for _, d := range t.inner {
		if strings.HasPrefix(name, d.prefix) && strings.HasSuffix(name, d.suffix) && matchLabels(d.labels, name) {
			if best == nil || moreSpecific(d, best) < 0 {
				return d
			}
			break
		}
	}
	if best == nil {
		return t.any
	}
	return best
}

// parent returns the entry of below with the longest of the name's parents.
func (t *table) parent(name string) *Domain {
	if len(t.below) == 0 {
		return nil
	}
	for n := strings.Count(name, "."); n > 0; n-- { // n labels are behind the next dot
		_, name, _ = strings.Cut(name, ".")
		if n <= t.labels {
			if d := t.below[name]; d != nil {
				return d
			}
		}
	}
	return nil
}

// matchLabels compares from the end. A "*" matches any one label, but at the front one or
// more labels.
func matchLabels(pattern []string, name string) bool {
	for i := len(pattern) - 1; i >= 0; i-- {
		if i == 0 && pattern[0] == "*" {
			return name != ""
		}
		dot := strings.LastIndexByte(name, '.')
		if label := name[dot+1:]; label == "" || pattern[i] != "*" && pattern[i] != label {
			return false
		}
		name = name[:max(dot, 0)]
	}
	return name == ""
}

// moreSpecific orders patterns that can match the same name: more labels first, then
// fewer "*", then the pattern whose first "*" from the end is further to the front, so
// that the pattern of the parent domain's owner decides.
func moreSpecific(a, b *Domain) int {
	if n := len(b.labels) - len(a.labels); n != 0 {
		return n
	}
	if n := stars(a.labels) - stars(b.labels); n != 0 {
		return n
	}
	for i := len(a.labels) - 1; i >= 0; i-- {
		switch {
		case a.labels[i] == b.labels[i]:
		case a.labels[i] == "*":
			return 1
		case b.labels[i] == "*":
			return -1
		}
	}
	return 0
}

func stars(labels []string) int {
	n := 0
	for _, l := range labels {
		if l == "*" {
			n++
		}
	}
	return n
}
