package aisdk

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

func dollars(t *testing.T, s string) gateway.Money {
	t.Helper()
	m, err := gateway.ParseMoney(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestModels(t *testing.T) {
	t.Parallel()
	price := func(in, out string) *gateway.Price {
		return &gateway.Price{Input: dollars(t, in), Output: dollars(t, out)}
	}
	cached := price("0.0000002", "0.000001")
	read, write := dollars(t, "0.00000002"), dollars(t, "0.00000025")
	cached.CacheRead, cached.CacheWrite = &read, &write
	models := []gateway.Model{
		{ID: "openai/gpt-5", Name: "GPT-5", Description: "d", Kind: "language", Endpoints: []gateway.Endpoint{
			{Price: price("0.0000001", "0.0000005")}, // cheaper, but not configured
			{Price: price("0.0000003", "0.000002"), Configured: true},
			{Price: cached, Configured: true},
			{Configured: true}}},
		{ID: "my/local", Kind: "language", Endpoints: []gateway.Endpoint{{Price: price("0", "0"), Configured: true}}},
		{ID: "openai/dall-e", Name: "D", Kind: "image", Endpoints: []gateway.Endpoint{{Price: &gateway.Price{Image: gateway.Dollar}}}},
		{ID: "openai/embed", Name: "E", Kind: "embedding", Endpoints: []gateway.Endpoint{{Price: price("0.00000002", "0")}}},
		{ID: "cohere/rerank", Name: "R", Kind: "reranking"},
		{ID: "x/moderation", Name: "M", Kind: "moderation"},
	}
	entry := func(version, id, creator, rest, kind string) string {
		return `{"id":"` + id + `",` + rest + `,"specification":{"specificationVersion":"v` + version + `","provider":"` + creator + `","modelId":"` + id + `"},"modelType":"` + kind + `"}`
	}
	for _, version := range []string{"2", "3", "4"} {
		want := `{"models":[` +
			entry(version, "openai/gpt-5", "openai", `"name":"GPT-5","description":"d","pricing":{"input":"0.0000002","output":"0.000001","input_cache_read":"0.00000002","input_cache_write":"0.00000025"}`, "language") + "," +
			entry(version, "my/local", "my", `"name":"my/local","pricing":{"input":"0","output":"0"}`, "language") + "," +
			entry(version, "openai/dall-e", "openai", `"name":"D"`, "image") + "," +
			entry(version, "openai/embed", "openai", `"name":"E","pricing":{"input":"0.00000002","output":"0"}`, "embedding")
		if version != "2" {
			want += "," + entry(version, "cohere/rerank", "cohere", `"name":"R"`, "reranking")
		}
		want += "]}"
		if got := string(Models(version, models)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if got := string(Models("4", nil)); got != `{"models":[]}` {
		t.Errorf("of none: %s", got)
	}
}

func TestCredits(t *testing.T) {
	t.Parallel()
	if got, want := string(Credits(dollars(t, "95.5"), dollars(t, "0.0000015"))), `{"balance":"95.5","total_used":"0.0000015"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestGeneration(t *testing.T) {
	t.Parallel()
	cost, market := dollars(t, "0.001275000001"), dollars(t, "0.0025")
	r := &gateway.Request{
		ID: "gen_1", CreatedAt: time.Date(2026, 11, 20, 1, 2, 3, 4e6, time.UTC), Model: "openai/gpt", Served: "openai/gpt-5", Provider: "openai",
		Streamed: true, FinishReason: "stop", Status: gateway.Succeeded, Cost: &cost, MarketCost: &market, BYOK: true, Searches: 2,
		Tokens: gateway.Tokens{Input: 10, CacheRead: 4, CacheWrite: 3, Output: 9, Reasoning: 2}, Latency: 1500.25, FirstToken: 200,
	}
	want := `{"data":{"id":"gen_1","total_cost":0.001275000001,"upstream_inference_cost":0.0025,"usage":0.001275000001,"market_cost":0.0025,"gateway_cost":0.001275000001,` +
		`"created_at":"2026-11-20T01:02:03.004Z","model":"openai/gpt-5","is_byok":true,"provider_name":"openai","streamed":true,"finish_reason":"stop","latency":200,"generation_time":1500.25,` +
		`"native_tokens_prompt":10,"native_tokens_completion":9,"native_tokens_reasoning":2,"native_tokens_cached":4,"native_tokens_cache_creation":3,"billable_web_search_calls":2}}`
	if got := string(Generation(r)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r.BYOK = false
	if got := string(Generation(r)); !strings.Contains(got, `"upstream_inference_cost":0,`) {
		t.Errorf("with a key of ours: %s", got)
	}
	// All members that clients require are present even if nothing is known.
	required := []string{"id", "total_cost", "upstream_inference_cost", "usage", "created_at", "model", "is_byok", "provider_name", "streamed", "finish_reason", "latency", "generation_time",
		"native_tokens_prompt", "native_tokens_completion", "native_tokens_reasoning", "native_tokens_cached", "native_tokens_cache_creation", "billable_web_search_calls"}
	for status, reason := range map[gateway.RequestStatus]string{gateway.Failed: "error", gateway.Refused: "error", gateway.Cancelled: "other"} {
		body := Generation(&gateway.Request{Model: "a/b", Status: status, Latency: 5})
		data := decoded(t, string(body)).(map[string]any)["data"].(map[string]any)
		for _, name := range required {
			if data[name] == nil {
				t.Errorf("%s: %s is missing in %s", status, name, body)
			}
		}
		if data["unpriced"] != true || data["finish_reason"] != reason || data["model"] != "a/b" || data["latency"] != 5.0 {
			t.Errorf("%s: %s", status, body)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	query := url.Values{
		"start_date": {"2026-11-01"}, "end_date": {"2026-11-20"}, "group_by": {"model"}, "credential_type": {"byok"},
		"user_id": {"u"}, "model": {"m"}, "provider": {"p"}, "tags": {"t, u,", "v"},
	}
	r, err := ReadReport(query)
	if err != nil {
		t.Fatal(err)
	}
	want := gateway.SpendParams{
		Since: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC),
		By: []string{"model", "credential"}, User: "u", Tags: []string{"t", "u", "v"}, Model: "m", Provider: "p",
	}
	if !reflect.DeepEqual(r.Spend, want) {
		t.Errorf("got %+v, want %+v", r.Spend, want)
	}
	rows := []gateway.Spend{
		{Group: map[string]string{"model": "a", "credential": "byok"}, Cost: 5, MarketCost: gateway.Dollar, Requests: 3, Unpriced: 1,
			Tokens: gateway.Tokens{Input: 1, CacheRead: 2, CacheWrite: 3, Output: 4, Reasoning: 5}},
		{Group: map[string]string{"model": "a", "credential": "system"}},
	}
	body := `{"results":[{"model":"a","total_cost":0.000000000005,"market_cost":1,"input_tokens":1,"output_tokens":4,"cached_input_tokens":2,"cache_creation_input_tokens":3,"reasoning_tokens":5,"request_count":3,"unpriced_count":1}]}`
	if got := string(r.Write(rows)); got != body {
		t.Errorf("got  %s\nwant %s", got, body)
	}
	if got := string(r.Write(nil)); got != `{"results":[]}` {
		t.Errorf("of nothing: %s", got)
	}
	for by, group := range map[string]string{"": "day", "day": "day", "user": "user", "tag": "tag", "provider": "provider", "credential_type": "credential"} {
		r, err := ReadReport(url.Values{"start_date": {"2026-11-01"}, "end_date": {"2026-11-01"}, "group_by": {by}})
		if err != nil || !reflect.DeepEqual(r.Spend.By, []string{group}) {
			t.Errorf("group_by %q: %+v, %v", by, r, err)
			continue
		}
		member := by
		if by == "" {
			member = "day"
		}
		if got := string(r.Write([]gateway.Spend{{Group: map[string]string{group: "g"}}})); !strings.HasPrefix(got, `{"results":[{"`+member+`":"g",`) {
			t.Errorf("group_by %q: %s", by, got)
		}
	}
	r, err = ReadReport(url.Values{"start_date": {"2026-11-01"}, "end_date": {"2026-11-01"}, "date_part": {"hour"}})
	if err != nil || !reflect.DeepEqual(r.Spend.By, []string{"hour"}) {
		t.Errorf("by the hour: %+v, %v", r, err)
	}
}

func TestReadReport_Errors(t *testing.T) {
	t.Parallel()
	for param, values := range map[string][]string{
		"start_date": {"", "yesterday", "2026-13-01"}, "end_date": {"", "2026-10-31", "2028-01-01"},
		"group_by": {"key"}, "date_part": {"minute"}, "credential_type": {"own"}, "tags": {strings.Repeat("a,", 32) + "a"},
	} {
		for _, v := range values {
			query := url.Values{"start_date": {"2026-11-01"}, "end_date": {"2026-11-20"}}
			query.Set(param, v)
			_, err := ReadReport(query)
			var e *hub.Error
			if !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param {
				t.Errorf("%s=%s: %v", param, v, err)
			}
		}
	}
}

// kindHead returns the headers of a request for a model other than a language model.
func kindHead(kind, version string) http.Header {
	h := http.Header{}
	h.Set("ai-"+kind+"-model-specification-version", version)
	h.Set("ai-model-id", "a/b")
	return h
}

func TestReadEmbed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version, body string
		want          hub.EmbedCall
	}{
		{"2", `{"input":"a"}`, hub.EmbedCall{Values: []string{"a"}}},
		{"2", `{"input":["a","b"]}`, hub.EmbedCall{Values: []string{"a", "b"}}},
		{"3", `{"values":["a",""],"providerOptions":{"gateway":{"only":[]},"openai":{"dimensions":5}}}`, hub.EmbedCall{Values: []string{"a", ""}, Options: options("openai", "dimensions", "5")}},
		{"4", `{"values":["a"],"dimensions":256}`, hub.EmbedCall{Values: []string{"a"}, Dimensions: 256}},
	} {
		got, err := New().ReadEmbed(kindHead("embedding", test.version), []byte(test.body))
		if err != nil || !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s: %+v, %v; want %+v", test.body, got, err, test.want)
		}
	}
	checkErrors(t, "embedding", func(h http.Header, body []byte) error { _, err := New().ReadEmbed(h, body); return err }, map[string]string{
		`{}`: "values", `{"values":[]}`: "values", `{"values":[1]}`: "values[0]", `{"values":{}}`: "values",
		`{"values":["a"],"dimensions":0}`: "dimensions", `{"values":["a"],"dimensions":2000000}`: "dimensions",
	})
}

// checkErrors checks the errors for invalid bodies, given by the member that the error
// must name.
func checkErrors(t *testing.T, kind string, read func(http.Header, []byte) error, bodies map[string]string) {
	t.Helper()
	bodies[`[]`], bodies[``] = "", ""
	for body, param := range bodies {
		var e *hub.Error
		if err := read(kindHead(kind, "4"), []byte(body)); !errors.As(err, &e) || e.Kind != hub.BadRequest || e.Param != param {
			t.Errorf("%s: %v (%+v), want an error of %q", body, err, e, param)
		}
	}
	var e *hub.Error
	if err := read(kindHead(kind, "9"), []byte(`{}`)); !errors.As(err, &e) || !strings.Contains(e.Message, `"9"`) {
		t.Errorf("version 9: %v", err)
	}
}

func TestWriteEmbed(t *testing.T) {
	t.Parallel()
	r := &hub.EmbedResult{
		Vectors: [][]float64{{0, -0.1, 1e-9}, {1, 123456789, 1e21}}, Usage: &hub.Usage{Input: hub.N(7)},
		Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "dimensions"}},
	}
	vectors := `{"embeddings":[[0,-0.1,1e-09],[1,123456789,1e+21]],"usage":{"tokens":7},`
	for version, want := range map[string]string{
		"2": vectors + `"providerMetadata":{"gateway":{"a":1}}}`,
		"3": vectors + `"warnings":[{"type":"unsupported","feature":"dimensions"}],"providerMetadata":{"gateway":{"a":1}}}`,
		"4": vectors + `"warnings":[{"type":"unsupported","feature":"dimensions"}],"providerMetadata":{"gateway":{"a":1}}}`,
	} {
		got, err := New().WriteEmbed(hub.Answer{Version: version, Metadata: func() []byte { return []byte(`{"a":1}`) }}, r)
		if err != nil || string(got) != want {
			t.Errorf("version %s: %s, %v\nwant %s", version, got, err, want)
		}
		var into struct{ Embeddings [][]float64 }
		if err := json.Unmarshal(got, &into); err != nil || !reflect.DeepEqual(into.Embeddings, r.Vectors) {
			t.Errorf("read back: %v, %v", into, err)
		}
	}
	if got, err := New().WriteEmbed(hub.Answer{}, &hub.EmbedResult{}); err != nil || string(got) != `{"embeddings":[],"warnings":[]}` {
		t.Errorf("of nothing: %s, %v", got, err)
	}
	nan := 0.0
	if _, err := New().WriteEmbed(hub.Answer{}, &hub.EmbedResult{Vectors: [][]float64{{nan / nan}}}); err == nil {
		t.Error("NaN became JSON")
	}
}

func TestReadImage(t *testing.T) {
	t.Parallel()
	body := `{"prompt":"a cat","n":2,"size":"1024x1024","aspectRatio":"16:9","seed":7,
		"files":[{"type":"file","mediaType":"image/png","data":"iVBORw0KGgo="},{"type":"url","url":"https://example.com/a"}],
		"mask":{"type":"url","url":"https://example.com/a.webp","providerOptions":{"x":{"y":1}}},
		"providerOptions":{"openai":{"quality":"high"}},"style":"vivid"}`
	got, err := New().ReadImage(kindHead("image", "4"), []byte(body))
	want := &hub.ImageCall{
		Prompt: "a cat", N: 2, Size: "1024x1024", AspectRatio: "16:9", Seed: hub.N(7),
		Files:   []hub.File{{MediaType: "image/png", Data: png}, {MediaType: "image/*", URL: "https://example.com/a"}},
		Mask:    &hub.File{MediaType: "image/webp", URL: "https://example.com/a.webp"},
		Options: options("openai", "quality", `"high"`),
		Warnings: []hub.Warning{
			{Kind: hub.WarnUnsupported, Feature: "mask.providerOptions", Message: "the gateway does not know it and left it out"},
			{Kind: hub.WarnUnsupported, Feature: "style", Message: "the gateway does not know it and left it out"},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	checkErrors(t, "image", func(h http.Header, body []byte) error { _, err := New().ReadImage(h, body); return err }, map[string]string{
		`{}`: "prompt", `{"prompt":""}`: "prompt", `{"prompt":1}`: "prompt", `{"prompt":"x","n":0}`: "n", `{"prompt":"x","n":300}`: "n",
		`{"prompt":"x","size":"big"}`: "size", `{"prompt":"x","size":"0x5"}`: "size", `{"prompt":"x","aspectRatio":"16x9"}`: "aspectRatio",
		`{"prompt":"x","files":[{"type":"file","data":"§"}]}`: "files[0].data", `{"prompt":"x","mask":"y"}`: "mask", `{"prompt":"x","mask":{"type":"blob"}}`: "mask.type",
	})
}

func TestWriteImage(t *testing.T) {
	t.Parallel()
	r := &hub.ImageResult{
		Images: []hub.Image{{Data: []byte{0, 1, 2}, RevisedPrompt: "a \"cat\""}, {Data: []byte{3}}}, Usage: &hub.Usage{Input: hub.N(1), Output: hub.N(2)},
		Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "seed", Message: "no"}},
		Options:  hub.Options{"openai": {"x": json.RawMessage("1"), "images": json.RawMessage(`"odd"`)}, "google": {"images": json.RawMessage(`[{"a":1}]`)}},
	}
	for version, warnings := range map[string]string{
		"2": `[{"type":"other","message":"seed: no"}]`, "3": `[{"type":"unsupported","feature":"seed","details":"no"}]`, "4": `[{"type":"unsupported","feature":"seed","details":"no"}]`,
	} {
		want := `{"images":["AAEC","Aw=="],"usage":{"inputTokens":1,"outputTokens":2,"totalTokens":3},"warnings":` + warnings +
			`,"providerMetadata":{"google":{"images":[{"a":1}]},"openai":{"images":[],"x":1},"gateway":{"cost":"1","images":[{"revisedPrompt":"a \"cat\""},{}]}}}`
		got, err := New().WriteImage(hub.Answer{Version: version, Metadata: func() []byte { return []byte(`{"cost":"1"}`) }}, r)
		if err != nil || string(got) != want {
			t.Errorf("version %s: %s, %v\nwant %s", version, got, err, want)
		}
	}
	if got, err := New().WriteImage(hub.Answer{}, &hub.ImageResult{Images: []hub.Image{{Data: []byte{3}}}}); err != nil || string(got) != `{"images":["Aw=="],"warnings":[]}` {
		t.Errorf("plain: %s, %v", got, err)
	}
	var e *hub.Error
	if _, err := New().WriteImage(hub.Answer{}, &hub.ImageResult{Images: []hub.Image{{URL: "https://x"}}}); !errors.As(err, &e) || e.Kind != hub.UpstreamFailed {
		t.Errorf("of a URL: %v", err)
	}
}

func TestReadRerank(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]hub.RerankCall{
		`{"query":"q","documents":{"type":"text","values":["a","b"]},"topN":1}`:                                      {Query: "q", Documents: []json.RawMessage{json.RawMessage(`"a"`), json.RawMessage(`"b"`)}, TopN: 1},
		`{"query":"q","documents":{"values":[{"a":1}],"type":"object"},"providerOptions":{"cohere":{"priority":1}}}`: {Query: "q", Objects: true, Documents: []json.RawMessage{json.RawMessage(`{"a":1}`)}, Options: options("cohere", "priority", "1")},
	} {
		got, err := New().ReadRerank(kindHead("reranking", "3"), []byte(body))
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v; want %+v", body, got, err, want)
		}
	}
	checkErrors(t, "reranking", func(h http.Header, body []byte) error { _, err := New().ReadRerank(h, body); return err }, map[string]string{
		`{"documents":{"type":"text","values":["a"]}}`: "query", `{"query":"q"}`: "documents.values", `{"query":"q","documents":["a"]}`: "documents",
		`{"query":"q","documents":{"type":"pdf","values":[]}}`: "documents.type", `{"query":"q","documents":{"type":"text","values":[1]}}`: "documents.values[0]",
		`{"query":"q","documents":{"type":"object","values":["a"]}}`: "documents.values[0]", `{"query":"q","documents":{"type":"text","values":["a"]},"topN":0}`: "topN",
	})
}

func TestWriteRerank(t *testing.T) {
	t.Parallel()
	r := &hub.RerankResult{Ranking: []hub.Ranked{{Index: 2, Score: 0.75}, {Index: 0, Score: 0}}, Warnings: []hub.Warning{{Kind: hub.WarnOther, Message: "m"}}, Options: options("cohere", "id", `"x"`)}
	want := `{"ranking":[{"index":2,"relevanceScore":0.75},{"index":0,"relevanceScore":0}],"warnings":[{"type":"other","message":"m"}],"providerMetadata":{"cohere":{"id":"x"}}}`
	if got, err := New().WriteRerank(hub.Answer{Version: "3"}, r); err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
	inf := 1e308
	if _, err := New().WriteRerank(hub.Answer{}, &hub.RerankResult{Ranking: []hub.Ranked{{Score: inf * 10}}}); err == nil {
		t.Error("infinity became JSON")
	}
}

func FuzzReadOthers(f *testing.F) {
	f.Add(`{"values":["a"],"dimensions":5}`)
	f.Add(`{"prompt":"x","n":1,"files":[{"type":"file","data":"AAEC","mediaType":"image/png"}]}`)
	f.Add(`{"query":"q","documents":{"type":"object","values":[{}]}}`)
	f.Fuzz(func(t *testing.T, body string) {
		if c, err := New().ReadEmbed(http.Header{}, []byte(body)); err == nil && len(c.Values) == 0 {
			t.Error("an embedding of nothing")
		}
		if c, err := New().ReadImage(http.Header{}, []byte(body)); err == nil && c.Prompt == "" && len(c.Files) == 0 {
			t.Error("an image of nothing")
		}
		if c, err := New().ReadRerank(http.Header{}, []byte(body)); err == nil && (len(c.Documents) == 0 || c.Query == "") {
			t.Error("a ranking of nothing")
		}
	})
}
