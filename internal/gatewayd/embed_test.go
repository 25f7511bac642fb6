package gatewayd_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// Texts beyond a provider's limit per call are split into several calls with one answer.
func TestEmbeddings_Split(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.provider("small", gatewaytest.Chat, w.up.URL)
	p.EmbedBatch = 2
	w.add(p)
	sent := func() (n []int64) {
		for _, r := range w.up.Of("e") {
			n = append(n, gjson.GetBytes(r.Body, "input.#").Int())
		}
		return n
	}
	status, body, _ := w.post("/v1/embeddings", `{"model":"small/e","input":["a","bb","ccc","dddd","eeeee"]}`)
	var first, index []int64
	for _, v := range gjson.Get(body, "data").Array() {
		first, index = append(first, v.Get("embedding.0").Int()), append(index, v.Get("index").Int())
	}
	if status != http.StatusOK || !slices.Equal(first, []int64{1, 2, 3, 4, 5}) || !slices.Equal(index, []int64{0, 1, 2, 3, 4}) || !slices.Equal(sent(), []int64{2, 2, 1}) {
		t.Errorf("%d %s, sent %v", status, body, sent())
	}
	var whole int64
	for _, r := range []string{`["a","bb"]`, `["ccc","dddd"]`, `["eeeee"]`} {
		_, body, _ := w.post("/v1/embeddings", `{"model":"small/e","input":`+r+`}`)
		whole += gjson.Get(body, "usage.prompt_tokens").Int()
	}
	if got := w.record(1).Tokens.Input; got != whole || got == 0 {
		t.Errorf("%d tokens were charged, want %d", got, whole)
	}
	if want := []int64{2, 2, 1, 2, 2, 1}; !slices.Equal(sent(), want) { // a request within the limit passes
		t.Errorf("sent %v, want %v", sent(), want)
	}
}
