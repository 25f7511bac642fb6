package gatewayd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A client that leaves cancels the provider's call at once, and pays for the work done,
// at each stage.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, stage := range []string{"before the head", "before the content", "in the middle"} {
			t.Run(d.name+"/"+strings.ReplaceAll(stage, " ", "-"), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				p := w.provider("mock", gatewaytest.Chat, w.up.URL)
				w.add(p)
				w.model("m/a", "mock:a")
				reply := gatewaytest.Reply{Text: strings.Repeat("Hello from the provider. ", 20)}
				f := gatewaytest.Fault{Kind: gatewaytest.HangInStream, After: map[string]int{"before the content": 0, "in the middle": 20}[stage]}
				if stage == "before the head" {
					f = gatewaytest.Fault{Kind: gatewaytest.HangInHead}
				}
				w.up.On("a", gatewaytest.Answer{Reply: reply, Fault: f})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					resp, err := w.client.Do(w.request(ctx, d, "m/a", true))
					if err != nil {
						return
					}
					defer resp.Body.Close()
					_, _ = bufio.NewReader(resp.Body).ReadString('\n')
					cancel()
				}()
				q := w.up.Await(t, "a", 1)
				if stage != "in the middle" {
					cancel()
				}
				<-done
				if !q.Canceled(t) {
					t.Error("the provider goes on")
				}
				r := w.record(1)
				if r.Status != gateway.Cancelled || r.ErrorKind != string(hub.Canceled) || len(r.Attempts) != 1 || r.Attempts[0].OK {
					t.Errorf("%+v", r)
				}
				if !r.Tokens.Estimated || r.Tokens.Input == 0 || r.Cost == nil || *r.Cost <= 0 || (stage == "in the middle") != (r.Tokens.Output > 0) {
					t.Errorf("cost %v, tokens %+v", r.Cost, r.Tokens)
				}
			})
		}
	}
}

// Invalid requests are refused with the dialect's errors, before a provider is called.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *world, cfg *gatewayd.Config) { cfg.MaxBody = 1 << 20 })
	for _, d := range dialects {
		ok := d.body("chatcompletions/text", false)
		for _, test := range []struct {
			name, body string
			head       map[string]string
			status     int
		}{
			{"too large", ok + strings.Repeat(" ", 1<<20), nil, 413},
			{"not JSON", ok[:len(ok)-1], nil, 400},
			{"not UTF-8", strings.Replace(ok, "sesame", "\xff\xfe", 1), nil, 400},
			{"too deep", strings.Replace(ok, `{`, `{"x":`+strings.Repeat("[", 1000)+strings.Repeat("]", 1000)+`,`, 1), nil, 400},
			{"a member twice", strings.Replace(ok, `{`, `{"x":1,"x":2,`, 1), nil, 400},
			{"wrong key", ok, map[string]string{"Authorization": "Bearer wrong"}, 401},
			{"no key", ok, map[string]string{"Authorization": ""}, 401},
			{"not bearer", ok, map[string]string{"Authorization": "Basic eDp5"}, 401},
			{"large headers", ok, map[string]string{"X-Large": strings.Repeat("x", 70<<10)}, 413},
			{"compressed", ok, map[string]string{"Content-Encoding": "gzip"}, 400},
			{"another site", ok, map[string]string{"Sec-Fetch-Site": "cross-site"}, 403},
			{"another host", ok, map[string]string{"Host": "evil.example.com"}, 403},
		} {
			r := w.request(t.Context(), d, "chatcompletions/text", false)
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader(test.body)), int64(len(test.body))
			for name, v := range test.head {
				if r.Header.Set(name, v); v == "" {
					r.Header.Del(name)
				}
				if name == "Host" {
					r.Host = v
				}
			}
			status, body, head := w.do(r)
			if status != test.status || !json.Valid([]byte(body)) || !strings.Contains(body, d.wrong) || head.Get("Request-Id") == "" {
				t.Errorf("%s, %s: %d %s, want %d", d.name, test.name, status, body, test.status)
			}
		}
	}
	if n := len(w.up.Requests()); n != 0 {
		t.Errorf("the provider was asked %d times", n)
	}
}

// A large prompt passes, also chunked, without Content-Length.
func TestLargePrompt(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	w := newWorld(t)
	large := `{"model":"chatcompletions/text","messages":[{"role":"user","content":"` + strings.Repeat("sesame ", 3<<20) + `"}]}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+"/v1/chat/completions", io.MultiReader(strings.NewReader(large)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", secret)
	if status, body, _ := w.do(r); status != 200 || w.record(1).BytesIn != int64(len(large)) {
		t.Errorf("%d %.300s", status, body)
	}
}

// The log never contains keys, prompts or answers.
func TestLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, d := range dialects {
		for _, model := range []string{"text", "fail-secret-in-errors", "fail-server-error", "fail-garbage"} {
			w.ask(d, "chatcompletions/"+model, true)
			w.ask(d, "messages/"+model, false)
		}
	}
	w.record(len(dialects) * 8)
	log := w.log.String()
	for _, not := range []string{secret, gatewaytest.Key, "sesame", "Hello"} {
		if strings.Contains(log, not) {
			t.Errorf("%q is in the log", not)
		}
	}
	if !strings.Contains(log, "request") {
		t.Errorf("the log is empty: %q", log)
	}
}

// The key may be in one of three headers; the caller's own token goes only to the
// provider it is for.
func TestSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.add(w.provider("anthropic", gatewaytest.Messages, w.up.URL), w.provider("other", gatewaytest.Messages, w.up.URL))
	w.model("m/anthropic", "anthropic")
	w.model("m/other", "other")
	for i, test := range []struct{ model, authorization, key, own, want string }{
		{"m/anthropic", "Bearer " + secret, "", "", "Bearer " + gatewaytest.Key},
		{"m/anthropic", "", secret, "", "Bearer " + gatewaytest.Key},
		{"m/anthropic", "Bearer " + gatewaytest.Key, "", "Bearer " + secret, "Bearer " + gatewaytest.Key},
		{"m/anthropic", "Bearer wrong-token", "", secret, "Bearer wrong-token"},
		{"m/other", "Bearer wrong-token", "", secret, "Bearer " + gatewaytest.Key},
	} {
		r := w.request(t.Context(), dialects[1], test.model, false)
		r.Header.Del("Authorization")
		for name, v := range map[string]string{"Authorization": test.authorization, "X-Api-Key": test.key, "X-Ai-Gateway-Api-Key": test.own} {
			if v != "" {
				r.Header.Set(name, v)
			}
		}
		w.do(r)
		got := w.record(i + 1)
		first := w.up.Of("text")[len(w.up.Of("text"))-len(got.Attempts)]
		if a := first.Head.Get("Authorization"); a != test.want || first.Head.Get("X-Ai-Gateway-Api-Key") != "" || first.Head.Get("X-Api-Key") != "" {
			t.Errorf("%d: the provider got %q, want %q", i, a, test.want)
		}
	}
	if r := w.record(3); !r.BYOK || *r.Cost != 0 || *r.MarketCost == 0 {
		t.Errorf("BYOK %v, cost %v, market %v", r.BYOK, r.Cost, r.MarketCost)
	}
}

// The usage chunk that the gateway requests is hidden from clients that did not ask for
// it, and the bytes of requests and answers are unchanged except for the model's name.
func TestPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, plain, _ := w.chat("chatcompletions/text", `"stream":true,"unknown":{"a":[1,2.50,"ü"]}`)
	_, asked, _ := w.chat("chatcompletions/text", `"stream":true,"stream_options":{"include_usage":true}`)
	if strings.Contains(plain, `"prompt_tokens"`) || !strings.Contains(asked, `"prompt_tokens"`) || !strings.HasSuffix(plain, "data: [DONE]\n\n") {
		t.Errorf("not asked: %s\nasked: %s", plain, asked)
	}
	sent := string(w.up.Of("text")[0].Body)
	if want := `{"model":"text","messages":[{"role":"user","content":"Say hello"}],"stream":true,"unknown":{"a":[1,2.50,"ü"]},"stream_options":{"include_usage":true}}`; sent != want {
		t.Errorf("the provider was sent %s, want %s", sent, want)
	}
	for i := range 2 {
		if r := w.record(i + 1); r.Tokens.Input != 40 || r.Tokens.CacheRead != 16 || r.Tokens.Output != 12 || r.Tokens.Estimated || !r.Streamed || r.FirstToken <= 0 {
			t.Errorf("%+v", r)
		}
	}
	f := gatewaytest.Reply{Text: "Exactly this."}.Render(gatewaytest.Messages, "x")
	w.up.On("exact", gatewaytest.Answer{Fixture: &f})
	if _, body, _ := w.ask(dialects[1], "messages/exact", false); body != string(f.Whole) {
		t.Errorf("got %s, want %s", body, f.Whole)
	}
	if _, body, _ := w.ask(dialects[1], "messages/exact", true); body != string(gatewaytest.Frames(gatewaytest.Messages, f.Chunks))+string(gatewaytest.End(gatewaytest.Messages)) {
		t.Errorf("got %s", body)
	}
}

// Unknown paths and models give errors in the client's format.
func TestUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v4/ai/speech-model", `{}`, 400, "speech"},
		{"/v4/ai/video-model/start", `{}`, 400, "video"},
		{"/v1/nothing", `{}`, 404, `"error"`},
		{"/v1/messages/nothing", `{}`, 404, `"type":"error"`},
		{"/v1/chat/completions", `{"model":"gpt-5","messages":[]}`, 404, "gpt-5"},
		{"/v1/chat/completions", `{"messages":[]}`, 400, "model is missing"},
		{"/v1/chat/completions", `{"model":5,"messages":[]}`, 400, "model is no text"},
		{"/v1/messages", `{"model":"chatcompletions/text","max_tokens":9,"messages":[{"role":"user","content":[{"type":"video"}]}]}`, 400, "type anthropic.video"},
		{"/claude-code/v1/messages", `{"model":"messages/text","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}`, 200, "Hello"},
		{"/codex/v1/responses", `{"model":"responses/text","input":"hi"}`, 200, "Hello"},
		{"/v1/messages/count_tokens", `{"model":"messages/text","messages":[{"role":"user","content":"hi"}]}`, 200, `"input_tokens":42`},
		{"/v1/messages/count_tokens", `{"model":"chatcompletions/text","messages":[{"role":"user","content":"hi"}]}`, 200, `"input_tokens":`},
	} {
		status, body, _ := w.post(test.path, test.body)
		if status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s", test.path, status, body)
		}
	}
}

// Models of other kinds work with and without translation.
func TestKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, test := range []struct{ path, body, want string }{
		{"/v1/embeddings", `{"model":"chatcompletions/e","input":["a","bb"],"encoding_format":"base64"}`, `"data":[`},
		{"/v1/images/generations", `{"model":"chatcompletions/i","prompt":"x"}`, `b64_json`},
		{"/v1/rerank", `{"model":"chatcompletions/r","query":"x","documents":["a","b"]}`, `relevance_score`},
		{"/v1/audio/speech", `{"model":"chatcompletions/s","input":"x"}`, `ID3`},
		{"/v4/ai/embedding-model", `{"values":["a","bb"]}`, `"embeddings":[[1,0.25,0.5,-0.75],[2,`},
		{"/v3/ai/image-model", `{"prompt":"x","n":1}`, `"images":["`},
		{"/v4/ai/reranking-model", `{"query":"x","documents":{"type":"text","values":["a","b"]}}`, `"relevanceScore":`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+secret)
		r.Header.Set("Ai-Model-Id", "chatcompletions/x")
		status, body, _ := w.do(r)
		if status != 200 || !strings.Contains(body, test.want) {
			t.Errorf("%s: %d %s", test.path, status, body)
		}
	}
	if r := w.record(1); r.Tokens.Input != 6 || r.Kind != "embedding" {
		t.Errorf("%+v", r)
	}
}

// A key may enable the cache.
func TestCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world, _ *gatewayd.Config) { w.settings.Cache = cache.New(0, 0) })
	w.ledger.caller.Key = &gateway.Key{ID: "gk_test", KeyScope: gateway.KeyScope{Cache: gateway.Duration(time.Hour)}}
	for _, d := range dialects {
		for _, stream := range []bool{true, false} {
			_, first, head := w.ask(d, "chatcompletions/text", stream)
			_, second, again := w.ask(d, "chatcompletions/text", stream)
			if first != second || head.Get(cache.Header) != cache.Miss || again.Get(cache.Header) != cache.Hit || again.Get("Content-Type") != head.Get("Content-Type") {
				t.Errorf("%s: %q, then %q (%s, %s)", d.name, first, second, head.Get(cache.Header), again.Get(cache.Header))
			}
		}
	}
	if n := len(w.up.Of("text")); n != 8 {
		t.Errorf("the provider was asked %d times", n)
	}
	if r := w.record(2); !r.Cached || *r.Cost != 0 || r.Status != gateway.Succeeded || r.Provider != "chatcompletions" {
		t.Errorf("%+v", r)
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.model("anthropic/claude-x", "messages")
	get := func(path string, head ...string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+secret)
		if len(head) > 0 {
			r.Header.Set(head[0], head[1])
		}
		_, body, _ := w.do(r)
		return body
	}
	for path, want := range map[string]string{
		"data.0.id": "anthropic/claude-x", "data.0.object": "model", "data.0.pricing.input": "0.000001", "data.0.context_window": "100000",
	} {
		if got := gjson.Get(get("/v1/models"), path).String(); got != want {
			t.Errorf("%s is %q", path, got)
		}
	}
	if got := get("/v1/models", "Anthropic-Version", "2023-06-01"); gjson.Get(got, "data.0.type").Str != "model" || gjson.Get(got, "first_id").Str != "anthropic/claude-x" {
		t.Error(got)
	}
	if got := get("/v1/models/anthropic/claude-x"); gjson.Get(got, "id").Str != "anthropic/claude-x" {
		t.Error(got)
	}
	if got := get("/v1/models/anthropic/claude-x/endpoints"); gjson.Get(got, "data.endpoints.0.provider_name").Str != "messages" {
		t.Error(got)
	}
	for _, v := range []string{"1", "3", "4"} {
		spec := map[string]string{"1": "v2", "3": "v3", "4": "v4"}[v]
		if got := get("/v" + v + "/ai/config"); gjson.Get(got, "models.0.specification.specificationVersion").Str != spec {
			t.Error(got)
		}
	}
}
