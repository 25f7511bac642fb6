package gatewayd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/endpoint"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/intake"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/plan"
	"github.com/cayhq/cay/internal/gatewayd/request"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
)

// Settings is the engine's configuration. Settings are immutable; a new configuration is
// a new Settings.
type Settings = plan.Settings

// Preset is the result of resolving a model name with the operator's rules and virtual
// models.
type Preset = plan.Preset

// Config configures an Engine.
type Config struct {
	Ledger ledger.Ledger
	// Settings returns the current settings. It is called once for each request.
	Settings func() *Settings
	// Formats are the wire formats: *Format values that are a hub.Surface, a hub.Upstream
	// or both.
	Formats []any
	Logger  *slog.Logger
	Metrics Metrics // nil: none
	// Hosts are the names, besides those of this machine, by which clients address the
	// gateway: see api.NewServer.
	Hosts []string
	// MaxBody is the maximum size of a request in bytes; 0 means 32 MiB.
	MaxBody int64
	// Bodies is the maximum total size in bytes of the bodies of all requests under way,
	// of which one caller may use half; RoomTime is how long a request waits for space; 0
	// means 512 MiB and 5 s. Bodies must be at least twice MaxBody.
	Bodies   int64
	RoomTime time.Duration
	// BodyTime is the timeout for each MiB of a request body; 0 means 30 s. Stall is the
	// timeout for a client that reads nothing of its answer; 0 means 60 s.
	BodyTime, Stall time.Duration
	// Fetch says from which addresses files of requests may be fetched; nil: public
	// addresses.
	Fetch func(netip.Addr) bool
	// KeepAlive is the silence after which a streaming client gets a keep-alive, tripled
	// while no provider has begun to answer; 0 means 10 s. Total is the maximum duration
	// of a call; 0 means 1 hour.
	KeepAlive, Total time.Duration
	// Scripted answers for providers of the format scripted.
	Scripted *scripted.Source
	// Tracer creates spans of calls and attempts. Nil means no tracing.
	Tracer trace.Tracer
	// Captured stores bodies of requests and answers. Nil means no capturing.
	Captured *capture.Store
	// Transport replaces the transport to providers.
	Transport http.RoundTripper
}

// Engine is the gateway engine. New creates an Engine; ServeHTTP serves requests, and
// Close waits for running calls.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	metrics   Metrics
	surfaces  map[string]hub.Surface
	upstreams map[string]hub.Upstream
	routes    map[string]*route
	transport http.RoundTripper
	fetcher   *http.Client
	close     func()
	intake    *intake.Intake
	board     endpoint.Board
	sessions  endpoint.Sessions
	origin    http.CrossOriginProtection

	view atomic.Pointer[plan.View]

	strays   atomic.Int64    // calls that continue without their clients
	stopping context.Context // ends when running calls must be canceled
	stop     context.CancelCauseFunc
	calls    sync.WaitGroup
	mu       sync.Mutex // guards closed, and Add of calls
	closed   bool
}

var errStopping = errors.New("the gateway is stopping")

// New returns an engine. The caller must Close it.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg: cfg, log: cfg.Logger, metrics: cfg.Metrics, transport: cfg.Transport, close: func() {},
		surfaces: make(map[string]hub.Surface), upstreams: make(map[string]hub.Upstream), sessions: endpoint.NewSessions(),
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.fetcher = request.NewFetcher(cfg.Fetch)
	e.log = e.log.With("component", "gatewayd")
	if e.metrics == nil {
		e.metrics = noMetrics{}
	}
	e.cfg.MaxBody = orDefault(cfg.MaxBody, 32<<20)
	e.cfg.Bodies = max(orDefault(cfg.Bodies, 512<<20), 2*(e.cfg.MaxBody+1))
	e.intake = intake.New(intake.Config{
		Ledger: cfg.Ledger, MaxBody: e.cfg.MaxBody, Bodies: e.cfg.Bodies, RoomTime: orDefault(cfg.RoomTime, 5*time.Second), BodyTime: orDefault(cfg.BodyTime, 30*time.Second),
	})
	e.cfg.Stall = orDefault(cfg.Stall, 60*time.Second)
	e.cfg.KeepAlive = orDefault(cfg.KeepAlive, 10*time.Second)
	e.cfg.Total = orDefault(cfg.Total, time.Hour)
	if e.transport == nil {
		t := newClient()
		e.transport, e.close = t, t.CloseIdleConnections
	}
	for _, f := range cfg.Formats {
		if s, ok := f.(hub.Surface); ok {
			e.surfaces[s.Name()] = s
		}
		if u, ok := f.(hub.Upstream); ok {
			e.upstreams[u.Name()] = u
		}
	}
	if e.cfg.Scripted == nil {
		e.cfg.Scripted = scripted.NewSource(new(scripted.Script))
	}
	e.routes = e.newRoutes()
	e.stopping, e.stop = context.WithCancelCause(context.Background())
	return e
}

func orDefault[T comparable](v, or T) T {
	var zero T
	if v == zero {
		return or
	}
	return v
}

// Close waits for running calls until ctx ends, then cancels them and waits for them. The
// server must have stopped accepting before.
func (e *Engine) Close(ctx context.Context) {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.calls.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		e.stop(errStopping)
		<-done
	}
	e.stop(errStopping)
	e.close()
}

// base returns the parent context of requests.
func (e *Engine) base(net.Listener) context.Context { return e.stopping }

// enter registers a call, unless the engine is stopping.
func (e *Engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.calls.Add(1)
	return true
}

// now returns the view of the current settings.
func (e *Engine) now() *plan.View {
	s := e.cfg.Settings()
	v := e.view.Load()
	if v == nil || v.Settings != s {
		v = plan.NewView(s, &e.board, e.sessions)
		e.view.Store(v)
	}
	return v
}

// Metrics counts the gateway's work. Methods may be called concurrently.
type Metrics interface {
	// Began and Ended are called for each model call; see gateway.Request.
	Began()
	Ended(r Ended)
	// Attempted is called for each call to a provider.
	Attempted(providerName, model string, status int, ok bool, took time.Duration)
	// CircuitOpened is called when an endpoint's circuit opens.
	CircuitOpened(providerName, model string)
}

// Ended describes a finished call for Metrics.
type Ended struct {
	Surface, Kind, Provider, Model string // Model is the catalogue's name
	Status                         string
	ErrorKind                      string
	Took, FirstToken               time.Duration
	Input, Output                  int64 // tokens
	PerOutputToken                 time.Duration
	Cost                           float64 // dollars
	Priced                         bool
}

type noMetrics struct{}

func (noMetrics) Began()                                             {}
func (noMetrics) Ended(Ended)                                        {}
func (noMetrics) Attempted(string, string, int, bool, time.Duration) {}
func (noMetrics) CircuitOpened(string, string)                       {}
