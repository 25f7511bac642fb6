package chatcompletions

import (
	"encoding/json"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func TestRerank(t *testing.T) {
	t.Parallel()
	c := &hub.RerankCall{Query: "q", Documents: []json.RawMessage{raw(`"a"`), raw(`"b"`)}, TopN: 1, Options: hub.Options{"cohere": {"maxTokensPerDoc": raw("5")}}}
	out, warnings, err := WriteRerankCall(c, &hub.Target{Provider: "cohere", Model: "m"})
	if want := `{"model":"m","query":"q","documents":["a","b"],"top_n":1,"max_tokens_per_doc":5}`; err != nil || len(warnings) > 0 || string(out.Body) != want || out.Path != "/rerank" {
		t.Errorf("%v %v %s", err, warnings, out.Body)
	}
	c = &hub.RerankCall{Documents: []json.RawMessage{raw(`{"a":1}`)}, Objects: true}
	out, warnings, err = WriteRerankCall(c, &hub.Target{Model: "m"})
	if want := `{"model":"m","query":"","documents":["{\"a\":1}"]}`; err != nil || len(warnings) != 1 || string(out.Body) != want {
		t.Errorf("%v %v %s", err, warnings, out.Body)
	}
	for name, body := range map[string]string{
		"cohere": `{"id":"x","results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.1}],"meta":{"billed_units":{"search_units":1}}}`,
		"voyage": `{"object":"list","data":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.1}],"usage":{"total_tokens":7}}`,
	} {
		r, err := ReadRerankResult(&hub.Target{}, []byte(body), 2)
		if err != nil || show(r.Ranking) != show([]hub.Ranked{{Index: 1, Score: 0.9}, {Index: 0, Score: 0.1}}) {
			t.Fatalf("%s: %v %s", name, err, show(r))
		}
		if hub.Count(r.Usage.Input) != map[string]int64{"voyage": 7}[name] || hub.Count(r.Usage.Searches) != map[string]int64{"cohere": 1}[name] {
			t.Errorf("%s: usage %s", name, show(r.Usage))
		}
	}
	for _, body := range []string{`[]`, `{}`, `{"error":"no"}`, `{"results":[{"index":2,"relevance_score":1}]}`, `{"results":[{"index":0}]}`, `{"results":[{"index":0,"relevance_score":1},{"index":0,"relevance_score":1}]}`} {
		if r, err := ReadRerankResult(&hub.Target{}, []byte(body), 2); err == nil {
			t.Errorf("%s is taken for %s", body, show(r))
		}
	}
}
