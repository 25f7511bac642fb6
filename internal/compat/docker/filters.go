package docker

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// filters are values by the name of a filter.
type filters map[string][]string

// readFilters reads a query's filters, which clients write as an object of lists or
// of objects. Errors: 400 for a filter that is not among known.
func readFilters(text string, known ...string) (filters, error) {
	f := filters{}
	if text == "" {
		return f, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, failf(http.StatusBadRequest, "filters are not a JSON object: %v", err)
	}
	for name, value := range raw {
		if !slices.Contains(known, name) {
			return nil, failf(http.StatusBadRequest, "invalid filter '%.100s': cay filters by %s", name, strings.Join(known, ", "))
		}
		var list []string
		var object map[string]bool
		if json.Unmarshal(value, &list) != nil {
			if err := json.Unmarshal(value, &object); err != nil {
				return nil, failf(http.StatusBadRequest, "filter %q is neither a list of texts nor an object: %v", name, err)
			}
			list = slices.Sorted(maps.Keys(object))
		}
		f[name] = list
	}
	return f, nil
}

// hasLabels reports whether all of wanted are there: "key", or "key=value", exactly.
func hasLabels(labels map[string]string, wanted []string) bool {
	for _, want := range wanted {
		k, v, exact := strings.Cut(want, "=")
		if got, there := labels[k]; !there || exact && got != v {
			return false
		}
	}
	return true
}

// anyOf reports whether nothing is asked, or one of it matches.
func anyOf(wanted []string, match func(string) bool) bool {
	return len(wanted) == 0 || slices.ContainsFunc(wanted, match)
}

// matcher returns what selects containers of a list.
func (s *Server) matcher(r *http.Request, f filters) (func(*container) bool, error) {
	var names []*regexp.Regexp
	for _, n := range f["name"] {
		re, err := regexp.Compile(n)
		if err != nil {
			return nil, failf(http.StatusBadRequest, "invalid filter name %.100q: %v", n, err)
		}
		names = append(names, re)
	}
	ancestors := map[string]string{} // and the digests of these
	for _, a := range f["ancestor"] {
		ancestors[a] = ""
		if img, err := s.image(r.Context(), a); err == nil {
			ancestors[a] = img.Digest
		}
	}
	return func(c *container) bool {
		return hasLabels(c.Spec.Labels, f["label"]) &&
			anyOf(f["ancestor"], func(a string) bool {
				return sameImage(a, c.Spec.Image) || ancestors[a] != "" && ancestors[a] == c.imageID()
			}) &&
			(len(names) == 0 || slices.ContainsFunc(names, func(re *regexp.Regexp) bool { return re.MatchString(c.Name) || re.MatchString("/"+c.Name) })) &&
			anyOf(f["id"], func(id string) bool { return strings.HasPrefix(c.ID, id) }) &&
			anyOf(f["status"], func(st string) bool { return st == c.status() }) &&
			anyOf(f["exited"], func(code string) bool { return c.status() == "exited" && code == strconv.Itoa(c.exitCode()) })
	}, nil
}
