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

	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
)

// Settings are what an engine is configured to do. They do not change; a new
// configuration is new Settings.
type Settings struct {
	Providers *provider.Set
	Catalog   *catalog.Catalog
	// Route says what is to be done with a model that was asked for. Nil: what its
	// name says.
	Route func(c *ledger.Caller, model string) (Preset, error)
	// Custom returns the credential a request brings for a provider itself. Nil: it
	// may bring none. Errors: *hub.Error of the kind BadRequest.
	Custom func(p *provider.Provider, raw []byte) (provider.Credential, error)
	// Own returns the credentials a project has of its own at a provider, in the order
	// to try them, and whether the operator's may be tried after them: true if there
	// are none. Nil: projects have none.
	Own func(project, provider string) (list []provider.Credential, fallback bool)
	// Guards look at requests before any provider does, and perhaps at answers. Nil:
	// none.
	Guards *guard.Guards
	// Cache keeps answers for keys that ask for it. Nil: none.
	Cache *cache.Cache
	// Capture says of which calls bodies are kept, in Config.Captured. Nil: of none.
	Capture *capture.Rules
}

// Preset is what becomes of a model's name: rules and virtual models of the
// operator's are behind it. What the request itself asks for wins, except where it
// may not be had.
type Preset struct {
	Model       string   // to ask for instead; empty: the same
	Models      []string // to try after it
	Order, Only []string
	Sort        string
	ZeroData    bool
	NoTraining  bool
	Has         []string
	AutoCache   bool
	ServiceTier string
}

// Config is what an Engine is made of.
type Config struct {
	Ledger ledger.Ledger
	// Settings returns the current ones. It is called once for each request.
	Settings func() *Settings
	// Formats are those of the packages below this one: *Format values that are a
	// hub.Surface, a hub.Upstream or both.
	Formats []any
	Logger  *slog.Logger
	Metrics Metrics // nil: none
	// Hosts are the names, besides those of this machine, that clients address the
	// gateway by: as for api.NewServer.
	Hosts []string
	// MaxBody is how large a request may be; 0 means 32 MiB.
	MaxBody int64
	// Bodies is how many bytes the bodies of all requests under way may have, of
	// which one caller may have half, and RoomTime how long a request waits for its
	// part of them; 0 means 512 MiB and 5 s. Bodies is at least twice MaxBody.
	Bodies   int64
	RoomTime time.Duration
	// BodyTime is how long a client has to send each MiB of its request; 0 means
	// 30 s. Stall is how long it may take nothing of its answer; 0 means 60 s.
	BodyTime, Stall time.Duration
	// Fetch says which addresses files of requests may be fetched from; nil: public
	// ones.
	Fetch func(netip.Addr) bool
	// KeepAlive is after how long of silence clients of a stream hear from us, and three
	// times as long if no provider has begun to answer; 0 means 10 s. Total is how long any call may last; 0 means an hour.
	KeepAlive, Total time.Duration
	// Scripted answers for providers of the format scripted.
	Scripted *scripted.Source
	// Tracer makes spans of calls and attempts. Nil: there are none.
	Tracer trace.Tracer
	// Captured keeps bodies of requests and answers. Nil: nobody does.
	Captured *capture.Store
	// Transport replaces the one that calls providers.
	Transport http.RoundTripper
}

// Engine is the gateway. Make it with New; it serves by ServeHTTP, and Close waits
// for what is under way.
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
	room      *room
	board     board
	sessions  sessions
	origin    http.CrossOriginProtection

	view atomic.Pointer[view]

	strays   atomic.Int64    // calls whose clients have left
	stopping context.Context // ends when calls under way are to be given up
	stop     context.CancelCauseFunc
	calls    sync.WaitGroup
	mu       sync.Mutex // guards closed, and Add of calls
	closed   bool
}

var errStopping = errors.New("the gateway is stopping")

// New returns an engine. Close it.
func New(cfg Config) *Engine {
	e := &Engine{
		cfg: cfg, log: cfg.Logger, metrics: cfg.Metrics, transport: cfg.Transport, close: func() {},
		surfaces: make(map[string]hub.Surface), upstreams: make(map[string]hub.Upstream), sessions: newSessions(),
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.fetcher = newFetcher(cfg.Fetch)
	e.log = e.log.With("component", "gatewayd")
	if e.metrics == nil {
		e.metrics = noMetrics{}
	}
	e.cfg.MaxBody = orDefault(cfg.MaxBody, 32<<20)
	e.cfg.Bodies = max(orDefault(cfg.Bodies, 512<<20), 2*(e.cfg.MaxBody+1))
	e.room = newRoom(e.cfg.Bodies, orDefault(cfg.RoomTime, 5*time.Second))
	e.cfg.BodyTime = orDefault(cfg.BodyTime, 30*time.Second)
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

// Close lets calls under way finish until ctx ends, then gives them up, and waits
// for them. The server has stopped to accept by then.
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

// base is what the contexts of requests are made of.
func (e *Engine) base(net.Listener) context.Context { return e.stopping }

// enter counts a call, unless the engine is stopping.
func (e *Engine) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.calls.Add(1)
	return true
}

// view is what an engine has worked out of its Settings.
type view struct {
	*Settings
	offers sync.Map // *gateway.Model to []offer
}

// now returns the view of the current settings.
func (e *Engine) now() *view {
	s := e.cfg.Settings()
	v := e.view.Load()
	if v == nil || v.Settings != s {
		v = &view{Settings: s}
		e.view.Store(v)
	}
	return v
}

// Metrics counts what the gateway does. Methods may be called concurrently.
type Metrics interface {
	// Began and Ended are called for each call of a model; see gateway.Request.
	Began()
	Ended(r Ended)
	// Attempted is called for each call of a provider.
	Attempted(providerName, model string, status int, ok bool, took time.Duration)
	// CircuitOpened is called when an endpoint is left alone from now on.
	CircuitOpened(providerName, model string)
}

// Ended is what Metrics are told of a call that ended.
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
