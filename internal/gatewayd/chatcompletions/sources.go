package chatcompletions

import (
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// sources collects the sources of an answer: annotations (OpenAI, OpenRouter),
// search_results (Perplexity) and citations (xAI, Perplexity).
type sources struct {
	citations gjson.Result // the latest; servers repeat them in each chunk
	results   gjson.Result // the same
	notes     []hub.Source
}

func (s *sources) annotation(note gjson.Result) {
	c := note.Get("url_citation")
	if c.Get("url").Str != "" && len(s.notes) < maxCalls {
		s.notes = append(s.notes, hub.Source{URL: c.Get("url").Str, Title: c.Get("title").Str})
	}
}

// all returns the sources with their ids, each URL once.
func (s *sources) all() []hub.Source {
	list(s.results).ForEach(func(_, v gjson.Result) bool {
		s.notes = append(s.notes, hub.Source{URL: v.Get("url").Str, Title: v.Get("title").Str})
		return len(s.notes) < maxCalls
	})
	list(s.citations).ForEach(func(_, v gjson.Result) bool {
		s.notes = append(s.notes, hub.Source{URL: orText(v, "url").Str, Title: v.Get("title").Str})
		return len(s.notes) < maxCalls
	})
	seen := map[string]bool{"": true}
	var all []hub.Source
	for _, source := range s.notes {
		if seen[source.URL] {
			continue
		}
		seen[source.URL] = true
		source.ID = "source-" + strconv.Itoa(len(seen)-2)
		all = append(all, source)
	}
	return all
}
