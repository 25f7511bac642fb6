package gemini

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// chunk is one grounding source.
type chunk struct {
	Web, Maps, RetrievedContext *struct {
		URI, Title string
	}
}

// grounding collects sources for the end of the answer, because some events repeat them.
type grounding struct {
	sources []hub.Part
	known   map[string]bool // sources already collected
	queries int             // the most that an event names
}

// add processes the groundingMetadata of an event.
func (g *grounding) add(raw json.RawMessage) {
	if hub.IsNull(raw) {
		return
	}
	var m struct {
		GroundingChunks  []chunk
		WebSearchQueries []string
	}
	if json.Unmarshal(raw, &m) != nil {
		return
	}
	queries := 0
	for _, q := range m.WebSearchQueries {
		if q != "" {
			queries++
		}
	}
	g.queries = max(g.queries, queries)
	for _, c := range m.GroundingChunks {
		from := c.Web
		if from == nil {
			from = c.Maps
		}
		if from == nil {
			from = c.RetrievedContext
		}
		if from == nil || from.URI == "" && from.Title == "" || g.known[from.URI+"\n"+from.Title] {
			continue
		}
		if g.known == nil {
			g.known = make(map[string]bool)
		}
		g.known[from.URI+"\n"+from.Title] = true
		s := &hub.Source{ID: "source-" + strconv.Itoa(len(g.sources)), Title: from.Title}
		if strings.HasPrefix(from.URI, "http://") || strings.HasPrefix(from.URI, "https://") {
			s.URL = from.URI
		} else { // gs://bucket/file.pdf, or a file of a store
			s.Filename = from.URI[strings.LastIndexByte(from.URI, '/')+1:]
			s.MediaType = "application/octet-stream"
			if strings.HasSuffix(s.Filename, ".pdf") {
				s.MediaType = "application/pdf"
			}
			if s.Title == "" {
				s.Title = s.Filename
			}
		}
		g.sources = append(g.sources, hub.Part{Kind: hub.SourcePart, Source: s})
	}
}
