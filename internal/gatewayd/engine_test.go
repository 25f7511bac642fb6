package gatewayd_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/responses"
	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const secret = "cgk_test"

// formats returns all formats.
func formats() []any {
	return []any{chatcompletions.New(), messages.New(), responses.New(), aisdk.New(), gemini.New(), converse.New()}
}

// world is a running engine with a mock upstream and an in-memory ledger.
type world struct {
	t        testing.TB
	engine   *gatewayd.Engine
	url      string
	up       *gatewaytest.Upstream
	ledger   *memory
	log      *checktest.Log
	settings *gatewayd.Settings
	client   *http.Client
}

// price is the price of all models in tests: 1 and 4 millionths of a dollar per token.
var price = &gateway.Price{Version: "2026-11-20", Input: 1_000_000, Output: 4_000_000}

// newWorld has one provider per format at the mock upstream, named like the format, with
// all of the upstream's models: chatcompletions/text.
func newWorld(t testing.TB, change ...func(*world, *gatewayd.Config)) *world {
	t.Helper()
	w := &world{t: t, up: gatewaytest.New(t), ledger: &memory{caller: ledger.Caller{TeamID: "team", ProjectID: "project", KeyID: "gk_test"}}, log: new(checktest.Log)}
	var all []*provider.Provider
	for _, f := range gatewaytest.Formats {
		all = append(all, w.provider(f, f, w.up.URL))
	}
	w.settings = &gatewayd.Settings{Providers: provider.NewSet(all...), Catalog: catalog.New(nil)}
	cfg := gatewayd.Config{
		Ledger: w.ledger, Formats: formats(), Settings: func() *gatewayd.Settings { return w.settings },
		Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(w, &cfg)
	}
	w.engine = gatewayd.New(cfg)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.Addr().String()
	server := w.engine.NewServer()
	// Close does not wait for connections that end half a second after the answer to a
	// partly read request.
	var open sync.WaitGroup
	server.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Done()
		}
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	w.client = &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		server.Close()
		<-done
		open.Wait()
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		cancel()
		w.engine.Close(ctx)
	})
	return w
}

// provider returns a provider that speaks a format at the mock upstream's paths.
func (w *world) provider(name, format, url string) *provider.Provider {
	s, err := provider.NewSecret(gatewaytest.Key)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &provider.Provider{
		Name: name, Formats: []string{format}, BaseURL: url + "/v1", Credentials: []provider.Credential{provider.Bearer(provider.Owner{ID: name + "-key"}, s)},
		NeedsCredential: true, Unlisted: true, SelfHosted: true, FirstByte: time.Minute, Idle: time.Minute,
		Paths: provider.Paths{Embeddings: "/embeddings", Images: "/images/generations", Rerank: "/rerank", Speech: "/audio/speech", Transcription: "/audio/transcriptions"},
	}
	switch format {
	case gatewaytest.Gemini:
		p.BaseURL = url + "/v1beta"
	case gatewaytest.Converse:
		p.BaseURL = url
	}
	return p
}

// model adds a model to the catalogue, with endpoints "provider" or "provider:model".
func (w *world) model(id string, endpoints ...string) { w.modelOf("language", id, endpoints...) }

func (w *world) modelOf(kind, id string, endpoints ...string) {
	m := gateway.Model{ID: id, Kind: kind, Context: 100_000, MaxOutput: 1000}
	for _, ep := range endpoints {
		p, name, ok := strings.Cut(ep, ":")
		if !ok {
			name = "text"
		}
		m.Endpoints = append(m.Endpoints, gateway.Endpoint{Provider: p, Model: name, Price: price})
	}
	s := *w.settings
	s.Catalog = catalog.New(append(slices.Clone(s.Catalog.List()), m))
	w.settings = &s
}

// add adds providers.
func (w *world) add(all ...*provider.Provider) {
	s := *w.settings
	for _, name := range s.Providers.Names() {
		all = append(all, s.Providers.Get(name))
	}
	s.Providers = provider.NewSet(all...)
	w.settings = &s
}

// memory is a ledger in memory.
type memory struct {
	caller ledger.Caller

	mu      sync.Mutex // guards the following fields
	needs   []ledger.Need
	records []gateway.Request
	open    int
	refuse  *hub.Error // returned by Admit
	changed chan struct{}
}

func (m *memory) Authenticate(_ context.Context, s string) (*ledger.Caller, error) {
	if s != secret {
		return nil, &hub.Error{Kind: hub.Unauthenticated, Message: "the key is not valid"}
	}
	return &m.caller, nil
}

func (m *memory) Admit(_ context.Context, _ *ledger.Caller, n ledger.Need) (ledger.Hold, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	m.needs = append(m.needs, n)
	m.open++
	return &held{m: m}, nil
}

// Record stores the record of a refused request.
func (m *memory) Record(r *gateway.Request) error {
	m.keep(r, 0)
	return nil
}

func (m *memory) keep(r *gateway.Request, closed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open -= closed
	m.records = append(m.records, *r)
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// held is a Hold of memory.
type held struct {
	m       *memory
	settled bool
}

func (h *held) Raise(_ context.Context, n ledger.Need) error {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.m.needs = append(h.m.needs, n)
	return nil
}

func (h *held) Limits(head http.Header) { head.Set("X-Ratelimit-Limit-Requests", "100") }

func (h *held) Settle(r *gateway.Request) {
	if h.settled {
		panic("settled twice")
	}
	h.settled = true
	h.m.keep(r, 1)
}

// record waits for the nth record.
func (w *world) record(n int) gateway.Request {
	w.t.Helper()
	for {
		m := w.ledger
		m.mu.Lock()
		if len(m.records) >= n {
			r, open, last := m.records[n-1], m.open, len(m.records) == n
			m.mu.Unlock()
			if open != 0 && last {
				w.t.Errorf("%d calls are still held", open)
			}
			return r
		}
		if m.changed == nil {
			m.changed = make(chan struct{})
		}
		wait := m.changed
		m.mu.Unlock()
		select {
		case <-wait:
		case <-w.t.Context().Done():
			w.t.Fatalf("there is no record %d", n)
		}
	}
}

// dialect describes how a client sends requests and reads answers.
type dialect struct {
	name, path string
	body       func(model string, stream bool) string
	head       map[string]string
	// ends occurs in a complete stream.
	ends string
	// fails occurs in a failed stream.
	fails string
	// wrong occurs in the body of every error.
	wrong string
}

var dialects = []dialect{
	{
		name: "chatcompletions", path: "/v1/chat/completions",
		body: func(model string, stream bool) string {
			return `{"model":"` + model + `","stream":` + yes(stream) + `,"messages":[{"role":"user","content":"Say hello, sesame"}]}`
		},
		ends: "[DONE]", fails: `{"error":`, wrong: `"error":{`,
	},
	{
		name: "messages", path: "/v1/messages",
		body: func(model string, stream bool) string {
			return `{"model":"` + model + `","stream":` + yes(stream) + `,"max_tokens":100,"messages":[{"role":"user","content":"Say hello, sesame"}]}`
		},
		head: map[string]string{"Anthropic-Version": "2023-06-01"},
		ends: "event: message_stop", fails: "event: error", wrong: `"type":"error"`,
	},
	{
		name: "responses", path: "/v1/responses",
		body: func(model string, stream bool) string {
			return `{"model":"` + model + `","stream":` + yes(stream) + `,"input":"Say hello, sesame"}`
		},
		ends: "event: response.completed", fails: `"error"`, wrong: `"error":{`,
	},
	{
		name: "aisdk", path: "/v4/ai/language-model",
		body: func(string, bool) string {
			return `{"prompt":[{"role":"user","content":[{"type":"text","text":"Say hello, sesame"}]}]}`
		},
		ends: `"type":"finish"`, fails: `"type":"error"`, wrong: `"error":{`,
	},
}

func yes(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

func (w *world) request(ctx context.Context, d dialect, model string, stream bool) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+d.path, strings.NewReader(d.body(model, stream)))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	r.Header.Set("Content-Type", "application/json")
	for name, value := range d.head {
		r.Header.Set(name, value)
	}
	if d.name == "aisdk" {
		r.Header.Set("Ai-Language-Model-Id", model)
		r.Header.Set("Ai-Language-Model-Specification-Version", "4")
		r.Header.Set("Ai-Language-Model-Streaming", yes(stream))
	}
	return r
}

// ask sends a request and reads the whole answer.
func (w *world) ask(d dialect, model string, stream bool) (status int, body string, head http.Header) {
	w.t.Helper()
	return w.do(w.request(w.t.Context(), d, model, stream))
}

func (w *world) do(r *http.Request) (status int, body string, head http.Header) {
	w.t.Helper()
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatalf("the answer broke off: %v after %q", err, raw)
	}
	return resp.StatusCode, string(raw), resp.Header
}

// post posts a body with a key.
func (w *world) post(path, body string) (status int, answer string, head http.Header) {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	return w.do(r)
}

// chat sends a chat completions request with additional members.
func (w *world) chat(model, members string) (status int, body string, head http.Header) {
	w.t.Helper()
	if members != "" {
		members = "," + members
	}
	return w.post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"Say hello"}]`+members+`}`)
}
