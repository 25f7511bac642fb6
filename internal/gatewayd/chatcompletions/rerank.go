package chatcompletions

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// WriteRerankCall encodes a reranking call; the path is /rerank. OpenAI has no such API:
// this is Cohere's, which Jina, Voyage, Together, vLLM and llama.cpp adopted.
func WriteRerankCall(c *hub.RerankCall, t *hub.Target) (*hub.Outgoing, []hub.Warning, error) {
	w := &callWriter{c: &hub.Call{}, t: t}
	b := &w.b
	b.add("{")
	b.text("model", t.Model)
	b.text("query", c.Query)
	b.open("documents", '[')
	for _, d := range c.Documents {
		b.next()
		if c.Objects { // today's servers accept only text, which may be JSON
			*b = appendText(*b, string(d))
		} else {
			*b = append(*b, d...)
		}
	}
	b.close(']')
	if c.Objects {
		w.warn(hub.WarnCompatibility, "documents", "objects are sent as JSON in text")
	}
	if c.TopN > 0 {
		b.int("top_n", c.TopN)
	}
	w.extra(c.Options)
	b.close('}')
	return &hub.Outgoing{Path: "/rerank", Body: w.b}, w.warnings, nil
}

// ReadRerankResult decodes a ranking of the given number of documents. Voyage calls the
// member data instead of results.
func ReadRerankResult(t *hub.Target, body []byte, documents int) (*hub.RerankResult, error) {
	root := gjson.ParseBytes(body)
	if err := checkAnswer(t, body, root); err != nil {
		return nil, err
	}
	results := root.Get("results")
	if !results.IsArray() {
		results = root.Get("data")
	}
	if !results.IsArray() {
		return nil, nonsense(t, "its answer has no results")
	}
	r := &hub.RerankResult{Response: hub.Response{ID: root.Get("id").String(), Model: root.Get("model").String()}}
	seen := map[int64]bool{}
	for _, v := range results.Array() {
		index, score := v.Get("index"), v.Get("relevance_score")
		i := index.Int()
		if index.Type != gjson.Number || i < 0 || i >= int64(documents) || seen[i] || score.Type != gjson.Number || math.IsInf(score.Num, 0) {
			return nil, nonsense(t, fmt.Sprintf("its ranking of %d documents is wrong", documents))
		}
		seen[i] = true
		r.Ranking = append(r.Ranking, hub.Ranked{Index: int(i), Score: score.Num})
	}
	u := root.Get("usage")
	if !u.IsObject() {
		u = root.Get("meta.billed_units") // Cohere
	}
	if u.IsObject() {
		r.Usage = &hub.Usage{Input: count(u.Get("total_tokens")), Searches: count(u.Get("search_units")), Raw: json.RawMessage(u.Raw)}
		if r.Usage.Input == nil {
			r.Usage.Input = count(u.Get("input_tokens"))
		}
		r.Usage.Fill()
	}
	return r, nil
}
