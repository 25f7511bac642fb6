package gatewayd

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// benchFormat passes bytes almost without parsing them.
type benchFormat struct {
	hub.Surface
	hub.Upstream
}

func (benchFormat) Name() string                  { return formatChat }
func (benchFormat) Tap(*hub.Target, bool) hub.Tap { return &benchTap{} }

type benchTap struct{ n int64 }

func (t *benchTap) Write(p []byte) { t.n += int64(len(p)) }
func (t *benchTap) Begun() bool    { return t.n > 0 }
func (t *benchTap) End() hub.Seen {
	return hub.Seen{Complete: true, OutputBytes: t.n, Usage: &hub.Usage{Input: hub.N(9), Output: hub.N(5)}}
}

type benchLedger struct{}

var benchCaller = &ledger.Caller{TeamID: "t", ProjectID: "p", KeyID: "k"}

func (benchLedger) Authenticate(context.Context, string) (*ledger.Caller, error) {
	return benchCaller, nil
}
func (benchLedger) Admit(context.Context, *ledger.Caller, ledger.Need) (ledger.Hold, error) {
	return benchHold{}, nil
}

type benchHold struct{}

func (benchHold) Raise(context.Context, ledger.Need) error { return nil }
func (benchHold) Limits(http.Header)                       {}
func (benchHold) Settle(*gateway.Request)                  {}

const benchAnswer = `{"id":"chatcmpl-1","object":"chat.completion","created":1795521600,"model":"gpt-5","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I help you today?"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":5,"total_tokens":14}}`

type benchCredential struct{}

func (benchCredential) ID() string { return "c" }
func (benchCredential) BYOK() bool { return false }
func (benchCredential) Authorize(_ context.Context, r *http.Request, _ []byte) error {
	r.Header["Authorization"] = []string{"Bearer sk-x"}
	return nil
}

// benchUpstream answers without much parsing, so that the benchmark measures the gateway.
func benchUpstream(b testing.TB) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, benchAnswer)
	}))
	b.Cleanup(s.Close)
	return s.URL
}

func serve(b testing.TB, s *http.Server) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go s.Serve(l)
	b.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

func benchEngine(b testing.TB, upstream string) *Engine {
	price := &gateway.Price{Version: "1", Input: 1_250_000, Output: 10_000_000}
	s := &Settings{
		Providers: provider.NewSet(&provider.Provider{Name: "openai", Formats: []string{formatChat}, BaseURL: upstream, Credentials: []provider.Credential{benchCredential{}}}),
		Catalog: catalog.New([]gateway.Model{{ID: "openai/gpt-5", Kind: "language", Context: 400_000, MaxOutput: 128_000,
			Endpoints: []gateway.Endpoint{{Provider: "openai", Model: "gpt-5", Price: price}}}}),
	}
	e := New(Config{Ledger: benchLedger{}, Settings: func() *Settings { return s }, Formats: []any{benchFormat{}}})
	b.Cleanup(func() { e.Close(context.Background()) })
	return e
}

func cpu() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkPlain compares a plain call through the gateway with the same call through
// httputil.ReverseProxy and with a direct call. In all three, the CPU time includes
// client and upstream.
func BenchmarkPlain(b *testing.B) {
	upstream := benchUpstream(b)
	target, _ := url.Parse(upstream)
	proxy := httputil.NewSingleHostReverseProxy(target)
	t := newTransport()
	proxy.Transport = t
	for _, way := range []struct{ name, url string }{
		{"direct", upstream},
		{"ReverseProxy", serve(b, &http.Server{Handler: proxy})},
		{"gateway", serve(b, benchEngine(b, upstream).NewServer())},
	} {
		b.Run(way.name, func(b *testing.B) {
			body := []byte(`{"model":"openai/gpt-5","messages":[{"role":"user","content":"` + strings.Repeat("Say hello. ", 20) + `"}]}`)
			client := &http.Client{Transport: newTransport()}
			b.ReportAllocs()
			b.SetParallelism(32)
			before := cpu()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, _ := http.NewRequest("POST", way.url+"/v1/chat/completions", bytes.NewReader(body))
					req.Header.Set("Authorization", "Bearer cgk_x")
					req.Header.Set("Content-Type", "application/json")
					resp, err := client.Do(req)
					if err != nil {
						b.Error(err)
						return
					}
					got, _ := io.ReadAll(resp.Body)
					resp.Body.Close()
					if string(got) != benchAnswer {
						b.Errorf("got %s", got)
						return
					}
				}
			})
			b.ReportMetric(float64(cpu()-before)/float64(b.N)/1000, "cpu-µs/op")
		})
	}
}
