package policy

import "strings"

// globs are patterns in small letters, in which * stands for any characters.
type globs []string

func newGlobs(patterns []string) globs {
	var g globs
	for _, p := range patterns {
		g = append(g, strings.ToLower(p))
	}
	return g
}

func (g globs) match(name string) bool {
	for _, pattern := range g {
		if matchGlob(pattern, name) {
			return true
		}
	}
	return false
}

// matchGlob takes time in proportion to the product of both lengths at most.
func matchGlob(pattern, name string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return name == pattern
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, last)
}
