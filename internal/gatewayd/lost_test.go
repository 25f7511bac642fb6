package gatewayd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// slow is a provider that answers when the test lets it.
type slow struct {
	*httptest.Server
	asked chan struct{} // a request has come
	left  chan struct{} // closed when the gateway has canceled the request
	let   chan struct{} // closed: it answers
}

// counted is slow's answer, with a usage.
const counted = `{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"Hi"}}],
	"usage":{"prompt_tokens":1000,"completion_tokens":5000,"total_tokens":6000}}`

func newSlow(t *testing.T) *slow {
	s := &slow{asked: make(chan struct{}, 1000), left: make(chan struct{}, 1000), let: make(chan struct{})}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = http.MaxBytesReader(w, r.Body, 1<<20).Read(make([]byte, 1<<20))
		s.asked <- struct{}{}
		select {
		case <-s.let:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(counted))
		case <-r.Context().Done():
			s.left <- struct{}{}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// serve makes the engine serve a request, and returns a channel that is closed when the
// request ends.
func (w *world) serve(ctx context.Context, path, body string) <-chan struct{} {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+path, strings.NewReader(body))
	checktest.OK(w.t, err)
	r.Header.Set("Authorization", "Bearer "+secret)
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.engine.ServeHTTP(httptest.NewRecorder(), r)
	}()
	return done
}

// leave sends a request, and leaves once the provider has received it. The returned
// channel is closed when the gateway has finished the call. It is nil if the gateway
// finished before the provider received the request.
func (s *slow) leave(t *testing.T, w *world, model string) <-chan struct{} {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := w.serve(ctx, dialects[0].path, dialects[0].body(model, false))
	select {
	case <-s.asked:
		return done
	case <-done:
		return nil
	}
}

// A client that leaves before a whole answer is complete cancels the provider's call, and
// pays for its prompt and for the estimated output until then, which never exceeds the
// reservation.
func TestLost_Whole(t *testing.T) {
	t.Parallel()
	for kind, test := range map[string]struct {
		path, body string
		atLeast    gateway.Money
	}{
		"language":  {"/v1/chat/completions", `{"model":"m/language","max_tokens":50,"messages":[{"role":"user","content":"What a question this is!"}]}`, 20 * price.Input},
		"embedding": {"/v1/embeddings", `{"model":"m/embedding","input":"What a text this is!"}`, 10 * price.Input},
		"image":     {"/v1/images/generations", `{"model":"m/image","n":3,"prompt":"What a picture this is!"}`, 3 * 6240 * price.Output},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSlow(t)
			w := newWorld(t)
			w.add(w.provider("slow", gatewaytest.Chat, s.URL))
			w.modelOf(kind, "m/"+kind, "slow")
			ctx, cancel := context.WithCancel(t.Context())
			done := w.serve(ctx, test.path, test.body)
			<-s.asked
			cancel()
			<-s.left
			<-done
			r := w.record(1)
			most := w.ledger.needs[len(w.ledger.needs)-1].Cost
			if r.Status != gateway.Cancelled || r.HTTPStatus != 499 || !r.Tokens.Estimated || *r.Cost < test.atLeast || *r.Cost > most {
				t.Errorf("%s %d, tokens %+v, cost %v, want from %v to %v", r.Status, r.HTTPStatus, r.Tokens, r.Cost, test.atLeast, most)
			}
		})
	}
}

// The estimate grows with the time that a provider worked unseen, for whole answers, and
// for streams of models that think first, at the endpoint's known speed, up to the
// reservation.
func TestLost_Reckoned(t *testing.T) {
	t.Parallel()
	const silence = 200 * time.Millisecond
	for name, test := range map[string]struct {
		stream, thinks bool
		maxTokens      int
		least, most    int64 // tokens of output
	}{
		"whole":                 {maxTokens: 1000, least: 20, most: 1000},
		"whole, bounded":        {maxTokens: 3, least: 3, most: 3},
		"stream":                {stream: true, maxTokens: 1000},
		"stream of a reasoning": {stream: true, thinks: true, maxTokens: 1000, least: 20, most: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlow(t)
			w := newWorld(t)
			w.add(w.provider("slow", gatewaytest.Chat, s.URL))
			w.model("m/a", "slow")
			if test.thinks {
				all := w.settings.Catalog.List()
				m := all[len(all)-1]
				m.Abilities = []string{"reasoning"}
				copied := *w.settings
				copied.Catalog = catalog.New([]gateway.Model{m})
				w.settings = &copied
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := w.serve(ctx, "/v1/chat/completions",
				fmt.Sprintf(`{"model":"m/a","stream":%t,"max_tokens":%d,"messages":[{"role":"user","content":"Hi"}]}`, test.stream, test.maxTokens))
			<-s.asked
			time.AfterFunc(silence, cancel)
			<-done
			if r := w.record(1); r.Status != gateway.Cancelled || r.Tokens.Output < test.least || r.Tokens.Output > test.most {
				t.Errorf("%s, tokens %+v, want from %d to %d of output", r.Status, r.Tokens, test.least, test.most)
			}
		})
	}
}

// With Provider.Finish the gateway waits for the answer, and charges the provider's
// count.
func TestLost_Finished(t *testing.T) {
	t.Parallel()
	for kind, test := range map[string]struct{ path, body string }{
		"language":  {"/v1/chat/completions", `{"model":"m/language","messages":[{"role":"user","content":"What a question this is!"}]}`},
		"embedding": {"/v1/embeddings", `{"model":"m/embedding","input":"What a text this is!"}`},
		"image":     {"/v1/images/generations", `{"model":"m/image","n":3,"prompt":"What a picture this is!"}`},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSlow(t)
			w := newWorld(t)
			w.add(finishing(w.provider("slow", gatewaytest.Chat, s.URL)))
			w.modelOf(kind, "m/"+kind, "slow")
			ctx, cancel := context.WithCancel(t.Context())
			done := w.serve(ctx, test.path, test.body)
			<-s.asked
			cancel()
			close(s.let)
			<-done
			r := w.record(1)
			if r.Status != gateway.Cancelled || r.HTTPStatus != 499 || r.Tokens.Estimated || *r.Cost != 1000*price.Input+5000*price.Output {
				t.Errorf("%s %d, tokens %+v, cost %v", r.Status, r.HTTPStatus, r.Tokens, r.Cost)
			}
		})
	}
}

// finishing returns p with Finish set.
func finishing(p *provider.Provider) *provider.Provider {
	p.Finish = true
	return p
}

// The number of calls without clients is bounded; calls beyond it are canceled and
// charged for their prompt.
func TestLost_ManyLeave(t *testing.T) {
	t.Parallel()
	const most = 64
	s := newSlow(t)
	w := newWorld(t)
	p := finishing(w.provider("slow", gatewaytest.Chat, s.URL))
	p.FirstByte = time.Minute
	w.add(p)
	w.model("m/a", "slow")
	var all []<-chan struct{}
	for range most + 3 {
		all = append(all, s.leave(t, w, "m/a"))
	}
	for range 3 {
		<-s.left
	}
	close(s.let)
	for _, done := range all {
		<-done
	}
	known := 0
	for i := range most + 3 {
		r := w.record(i + 1)
		if r.Status != gateway.Cancelled || r.Cost == nil || *r.Cost == 0 {
			t.Errorf("%s, cost %v", r.Status, r.Cost)
		}
		if !r.Tokens.Estimated {
			known++
		}
	}
	if known != most {
		t.Errorf("%d were finished, want %d", known, most)
	}
}

// The gateway waits for an answer without a client no longer than FirstByte, and a
// stopping gateway does not wait at all.
func TestLost_NotForEver(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]time.Duration{"first byte": 200 * time.Millisecond, "stop": time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patiently(t, first, func(wait time.Duration) bool {
				s := newSlow(t)
				w := newWorld(t)
				p := finishing(w.provider("slow", gatewaytest.Chat, s.URL))
				p.FirstByte = wait
				w.add(p)
				w.model("m/a", "slow")
				done := s.leave(t, w, "m/a")
				if done == nil {
					return false
				}
				if name == "stop" {
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					w.engine.Close(ctx)
				}
				<-s.left
				<-done
				if r := w.record(1); r.Cost == nil || *r.Cost == 0 {
					t.Errorf("%s: tokens %+v, cost %v", r.Status, r.Tokens, r.Cost)
				}
				return true
			})
		})
	}
}

// A caller whose short timeouts cancel a provider repeatedly pays for each attempt, and
// the ledger admits the total.
func TestLost_ProviderTimeouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"first", "second"} {
		w.add(w.provider(name, gatewaytest.Chat, w.up.URL))
	}
	w.model("m/a", "first:hangs", "second")
	w.up.On("hangs", gatewaytest.Answer{Fault: gatewaytest.Fault{Kind: gatewaytest.HangInHead}})
	long := strings.Repeat("What a long question this is! ", 1000)
	status, body, head := w.post("/v1/chat/completions", fmt.Sprintf(
		`{"model":"m/a","messages":[{"role":"user","content":%q}],"max_tokens":10,"providerOptions":{"gateway":{"providerTimeouts":{"byok":{"first":1000}}}}}`, long))
	r := w.record(1)
	if status != http.StatusOK || asked(r) != "first- second+" {
		t.Fatalf("%d %s %s", status, asked(r), body)
	}
	lost := r.Attempts[0].Cost
	if lost == nil || *lost < gateway.Money(len(long)/4)*price.Input || *r.Cost <= *lost || head.Get("X-Cay-Cost") != r.Cost.String() || *r.MarketCost != *r.Cost {
		t.Errorf("lost %v, cost %v, market %v, in the header %s", lost, r.Cost, r.MarketCost, head.Get("X-Cay-Cost"))
	}
	if !strings.Contains(body, `"cost":"`+r.Cost.String()+`"`) {
		t.Errorf("the metadata says another cost: %s", body)
	}
	if n := w.ledger.needs; len(n) != 2 || n[0].Spent != 0 || n[1].Spent != *lost {
		t.Errorf("admitted with %+v", n)
	}
}

// An answer that a guard holds back is charged, whatever its kind.
func TestLost_HeldBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g, err := guard.New(guard.Config{Answers: []guard.Pattern{{Name: "all", Regex: "."}}, BufferStreams: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.settings.Guards = g
	for i, test := range []struct{ path, body string }{
		{"/v1/chat/completions", `{"model":"m/language","messages":[{"role":"user","content":"Say hello"}]}`},
		{"/v1/messages", `{"model":"m/language","max_tokens":9,"messages":[{"role":"user","content":"Say hello"}]}`},
		{"/v1/embeddings", `{"model":"m/embedding","input":"Say hello"}`},
	} {
		if i == 0 {
			w.model("m/language", gatewaytest.Chat)
			w.modelOf("embedding", "m/embedding", gatewaytest.Chat)
		}
		status, body, _ := w.post(test.path, test.body)
		r := w.record(i + 1)
		if status != http.StatusForbidden || r.Cost == nil || *r.Cost == 0 {
			t.Errorf("%s: %d %s: cost %v", test.path, status, body, r.Cost)
		}
	}
}
