package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/names"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/aisdk"
	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/converse"
	"github.com/cayhq/cay/internal/gatewayd/gemini"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/messages"
	"github.com/cayhq/cay/internal/gatewayd/responses"
	"github.com/cayhq/cay/internal/gatewayd/scripted"
	"github.com/cayhq/cay/internal/gatewayd/settings"
	"github.com/cayhq/cay/internal/gatewayd/socket"
	"github.com/cayhq/cay/internal/otlp"
	"github.com/cayhq/cay/internal/sandboxd/network"
)

// The ledger authenticates the daemon's tokens with the API's authenticator.
var _ api.Authenticator = (*accountd.Engine)(nil)

// gatewayParts are the parts of the AI gateway: its ledger, its engine, and the
// server of its own origin.
type gatewayParts struct {
	db     *db.DB
	book   *ledger.Book
	engine *gatewayd.Engine
	live   *settings.Live
	bodies *capture.Store
	spans  *sdktrace.TracerProvider // nil: none are exported

	settings  atomic.Pointer[gatewayd.Settings] // made from the settings of live
	cache     *cache.Cache                      // for changed alone, as is the next
	cacheSize settings.Cache

	listener net.Listener
	conns    connections // of server
	server   *http.Server
	served   chan error // the server's end
}

// openGateway opens the gateway's database and builds its engine.
func (d *Daemon) openGateway(ctx context.Context) (err error) {
	g := &gatewayParts{served: make(chan error, 1)}
	d.gateway = g
	if g.db, err = db.Open(ctx, d.cfg.GatewayFile(), db.Options{Reserve: databaseReserve}); err != nil {
		return err
	}
	g.book, err = ledger.Open(ctx, g.db, ledger.Options{Accounts: d.accounts, Logger: d.log, Retention: d.cfg.GatewayRetention, Tail: filepath.Join(d.cfg.Data, "gateway.tail")})
	if err != nil {
		return err
	}
	stored, err := settings.NewStore(ctx, g.db, d.secrets)
	if err != nil {
		return err
	}
	file, required := d.cfg.GatewayConfig, true
	if file == "" {
		file, required = filepath.Join(d.cfg.Data, "gateway.yaml"), false
	}
	g.live, err = settings.Open(ctx, settings.Options{
		File: file, Required: required, Env: os.Getenv, Store: stored, Logger: d.log, Changed: g.changed,
	})
	if err != nil {
		return err
	}
	g.bodies, err = capture.Open(ctx, g.db, d.secrets, capture.Options{
		Rules: func() *capture.Rules { return g.settings.Load().Capture }, Logger: d.log,
	})
	if err != nil {
		return err
	}
	d.metrics.registry.MustRegister(bodyMetrics{g.bodies})
	if g.spans, err = otlp.FromEnv(os.Getenv, d.log); err != nil {
		return err
	}
	var tracer trace.Tracer
	if g.spans != nil {
		tracer = g.spans.Tracer("github.com/cayhq/cay/gateway", trace.WithInstrumentationVersion(cay.Version()))
	}
	script, err := scripted.Load(os.Getenv("CAY_SCRIPT"))
	if err != nil {
		return cay.Errorf(cay.Invalid, "CAY_SCRIPT: %w", err)
	}
	g.engine = gatewayd.New(gatewayd.Config{
		Ledger: g.book, Logger: d.log, Hosts: append(hosts(d.cfg), names.Gateway), MaxBody: int64(d.cfg.GatewayMaxBody), Bodies: int64(d.cfg.GatewayBodies),
		Settings: g.settings.Load,
		Formats:  []any{chatcompletions.New(), messages.New(), responses.New(), aisdk.New(), gemini.New(), converse.New()},
		Metrics:  newGatewayMetrics(d.metrics.registry), Fetch: network.Public, Scripted: scripted.NewSource(script), Captured: g.bodies, Tracer: tracer,
	})
	return nil
}

// changed applies new settings to the engine. The cache stays if its size is the
// same.
func (g *gatewayParts) changed(s *settings.Snapshot) {
	next := &gatewayd.Settings{
		Providers: s.Providers, Catalog: s.Catalog, Custom: s.Custom, Own: s.Own, Guards: s.Guards, Capture: s.Capture,
		Route: func(c *ledger.Caller, model string) (gatewayd.Preset, error) {
			p, err := s.Route(c, model)
			return gatewayd.Preset(p), err
		},
	}
	if !s.Cache.Disabled {
		if g.cache == nil || g.cacheSize != s.Cache {
			g.cache, g.cacheSize = cache.New(int64(s.Cache.Size), int64(s.Cache.Entry)), s.Cache
		}
		next.Cache = g.cache
	}
	g.settings.Store(next)
}

// manager returns the service that manages the gateway.
func (d *Daemon) manager() *admin.Manager {
	return &admin.Manager{Book: d.gateway.book, Bodies: d.gateway.bodies, Models: d.gateway.engine, Checker: d.gateway.live, Providers: d.gateway.live, Projects: d.accounts}
}

// serve follows changes of the settings, and begins to serve the gateway's own
// origin.
func (g *gatewayParts) serve(ctx context.Context, d *Daemon) (err error) {
	if err := g.live.Start(ctx); err != nil {
		return err
	}
	g.listener = d.opts.GatewayListener
	if g.listener == nil {
		addr := d.cfg.GatewayAddress()
		if addr == "" || d.opts.Listener != nil {
			return nil
		}
		if g.listener, err = d.opts.Handover.Sockets.Listen(ctx, gatewaySocket, addr); err != nil {
			return cay.Errorf(cay.Unavailable, "the AI gateway cannot listen on %s: %w", addr, err).
				WithHint("choose another address with --gateway-listen, or off")
		}
	}
	if tcp, ok := g.listener.Addr().(*net.TCPAddr); ok {
		d.gatewayPort.Store(int32(tcp.Port))
	}
	g.server = g.engine.NewServer()
	g.conns.watch(g.server)
	if d.cfg.TLSCert != "" {
		if g.server.TLSConfig, err = tlsConfig(d.cfg, func(string) bool { return false }, d.log); err != nil {
			return errors.Join(err, g.listener.Close())
		}
	}
	listener := socket.Listener{Listener: g.listener}
	go func() {
		if g.server.TLSConfig != nil {
			g.served <- g.server.ServeTLS(listener, "", "")
		} else {
			g.served <- g.server.Serve(listener)
		}
	}()
	return nil
}

// stop stops accepting requests, and waits briefly for requests in progress.
func (g *gatewayParts) stop() error {
	var errs []error
	g.book.EndFeeds() // which the API's server would wait for
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if g.server != nil {
		errs = append(errs, stopAccepting(g.listener, g.served), g.conns.drain(ctx, g.server, func() { g.engine.Close(ctx) }))
		g.server = nil
	}
	return errors.Join(errs...)
}

// close releases the resources of openGateway. The ledger is last, because calls
// end with a record.
func (g *gatewayParts) close() error {
	var errs []error
	if g.engine != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		g.engine.Close(ctx)
	}
	if g.live != nil {
		g.live.Stop()
	}
	if g.bodies != nil {
		g.bodies.Close()
	}
	if g.spans != nil { // send the remaining ones
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		errs = append(errs, g.spans.Shutdown(ctx))
	}
	if g.book != nil {
		errs = append(errs, g.book.Close())
	}
	if g.db != nil {
		errs = append(errs, g.db.Close())
	}
	return errors.Join(errs...)
}

// GatewayURL returns the URL of the AI gateway once started, "" if it is off.
func (d *Daemon) GatewayURL() string {
	if d.gateway == nil || d.gateway.listener == nil {
		return ""
	}
	scheme := "http"
	if d.cfg.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + d.gateway.listener.Addr().String()
}
