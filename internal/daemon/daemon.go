// Package daemon is the wiring of cay: it opens the database, builds the
// engines, mounts their routes on one server, and starts and stops all of it in
// order. It holds no rule of its own.
//
// A Daemon is a value, so that tests and daemon-less commands can start one: see New
// and Ephemeral.
package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/names"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/flock"
	"github.com/cayhq/cay/internal/host"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/trust"
	"github.com/cayhq/cay/internal/sandboxd/preview"
	"github.com/cayhq/cay/internal/sandboxd/programs"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/sandbox"
)

// errStopping is returned to clients of streams when the daemon stops.
var errStopping = cay.Errorf(cay.Unavailable, "the daemon is stopping").WithHint("try again in a moment")

// drainTimeout is how long requests in progress may take to finish when the daemon
// stops.
const drainTimeout = 10 * time.Second

// visitTimeout is how long visits of previews may take to finish when the daemon stops.
// Programs' answers can last for any time, and no client of the API waits for them.
const visitTimeout = 500 * time.Millisecond

// databaseReserve is the disk space reserved for cay.db, and again for gateway.db:
// room for thousands of changes, such as the ends of sandboxes or records of
// requests, while the disk is full. The index of a database's log has room for as
// many from the start.
const databaseReserve = 15 << 20

// Options are for tests and for Ephemeral. The zero value is the real daemon.
type Options struct {
	Logger *slog.Logger
	// Runtime and Images replace gVisor and the image store.
	Runtime machine.Runtime
	Images  sandboxd.ImageSource
	// Listener replaces listening on Config.Listen.
	Listener net.Listener
	// GatewayListener replaces listening on the configuration's GatewayAddress. With
	// Listener and without GatewayListener, the AI gateway has no origin of its own.
	GatewayListener net.Listener
	// Handover is how Run takes over from another process, and lets others take over.
	Handover Handover
	// RuntimeDir and ImageDir replace <data>/machines and <data>/images.
	RuntimeDir, ImageDir string
	// TrustCallers lets image pulls go to any address, because the caller is the
	// user who runs this process.
	TrustCallers bool
	// DestroyOnStop ends all sandboxes when the daemon stops.
	DestroyOnStop bool
	// NoWorkflows leaves the engine of workflows out.
	NoWorkflows bool
	// NoGateway leaves the AI gateway out.
	NoGateway bool
	// Supervision connects Run to a service manager and to changes of the
	// configuration.
	Supervision Supervision
	// SpareCPU replaces the check for idle CPUs before machines of pools start; see
	// sandboxd.Config.
	SpareCPU func(ctx context.Context, anew bool) error
	// Nameservers ("host:port") resolve names for sandboxes instead of the host's,
	// and DialContext dials their connections, addresses only, instead of a
	// net.Dialer. Roots verify the servers whose TLS a policy opens instead of the
	// authorities that this machine trusts.
	Nameservers []string
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	Roots       *x509.CertPool
}

// Daemon is a running or startable daemon. Make it with New, then Start, then
// Stop, each once.
type Daemon struct {
	cfg  config.Config
	log  *slog.Logger
	opts Options

	lock       *os.File // held for as long as we use the data directory
	fresh      bool     // New has made the data directory, and Start has not succeeded
	db         *db.DB
	flows      *db.DB // of the records of flows
	imageStore *image.Store
	images     *imaged.Engine
	runtime    machine.Runtime
	proxy      *intercept.Proxy
	egress     *network.Egress
	accounts   *accountd.Engine
	sandboxes  *sandboxd.Engine
	workflows  *workflowd.Engine // nil with Options.NoWorkflows
	messages   *messageParts     // nil if workflows is
	gateway    *gatewayParts     // nil with Options.NoGateway
	metrics    *metrics
	host       *host.Reader
	began      time.Time // when it was made
	secrets    *secret.Box
	trust      func() (*trust.Bundle, error) // nil with Options.Runtime
	handler    *api.Mux

	workflowRoutes *workflowd.Routes
	previews       *preview.Handler

	ending context.Context // ends when Stop begins
	end    context.CancelCauseFunc

	port        atomic.Int32 // of listener; 0 until known
	gatewayPort atomic.Int32 // of the AI gateway's; 0 until it is known, or if there is none
	listener    net.Listener
	server      *http.Server
	conns       connections // of server
	served      chan error  // the server's end
}

// New opens the databases and directories of a daemon with cfg, and builds its
// parts; nothing runs yet. Errors: not_supported if this machine or user cannot
// start sandboxes, conflict if another daemon uses the data directory.
func New(ctx context.Context, cfg config.Config, opts Options) (_ *Daemon, err error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{cfg: cfg, log: opts.Logger, opts: opts, metrics: newMetrics(), began: time.Now(), served: make(chan error, 1)}
	d.ending, d.end = context.WithCancelCause(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if opts.Runtime == nil {
		d.trust = loadTrust(d.log)
	}
	_, err = os.Lstat(cfg.Data)
	d.fresh = errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, cay.Errorf(cay.Invalid, "data directory %q cannot be made: %w", cfg.Data, err)
	}
	if d.lock, err = lockFile(filepath.Join(cfg.Data, "daemon.lock")); err != nil {
		return nil, err
	}
	if d.lock == nil {
		return nil, cay.Errorf(cay.Conflict, "another daemon uses the data directory %q", cfg.Data).
			WithHint("stop it, or choose another directory with --data")
	}
	if err := backup.Unfinished(cfg.Data); err != nil {
		return nil, err
	}
	if d.db, err = db.Open(ctx, cfg.DatabaseFile(), db.Options{Reserve: databaseReserve}); err != nil {
		return nil, err
	}
	if d.flows, err = db.Open(ctx, cfg.FlowFile(), db.Options{}); err != nil {
		return nil, err
	}
	if err := d.buildEngines(ctx); err != nil {
		return nil, err
	}
	if !opts.NoWorkflows {
		if err := d.openWorkflows(ctx); err != nil {
			return nil, err
		}
	}
	if !opts.NoGateway {
		if err := d.openGateway(ctx); err != nil {
			return nil, err
		}
	}
	d.host = host.NewReader(cfg.Data)
	d.handler, d.previews = d.routes(), d.newPreviews()
	return d, nil
}

func (d *Daemon) buildEngines(ctx context.Context) error {
	secrets, err := secret.Open(filepath.Join(d.cfg.Data, secretKeyFile))
	if err != nil {
		return err
	}
	d.secrets = secrets
	d.accounts, err = accountd.NewEngine(ctx, accountd.Config{
		DB: d.db, Logger: d.log, Secrets: secrets, PublicURL: d.cfg.PublicURL,
		ListenURL:    func() string { return d.cfg.ListenURL(int(d.port.Load())) },
		DefaultQuota: d.cfg.Quota.Account(), AdminTokenFile: d.cfg.AdminTokenFile(),
		InUse: d.inUse,
	})
	if err != nil {
		return err
	}
	if err := d.openImages(); err != nil {
		return err
	}
	sc := sandboxd.Config{
		DB: d.db, FlowDB: d.flows, Accounts: d.accounts, Secrets: secrets, Logger: d.log, Metrics: d.metrics, PreviewURL: d.previewURLs(),
		Runtime: d.opts.Runtime, Images: d.opts.Images, DestroyOnStop: d.opts.DestroyOnStop,
		Limits: sandboxd.Limits{
			MaxTimeout: d.cfg.Limits.Timeout, MaxVCPUs: d.cfg.Limits.VCPUs,
			MaxMemoryMB: d.cfg.Limits.Memory.MiB(), MaxDiskMB: d.cfg.Limits.Disk.MiB(), Boots: d.cfg.Limits.Starts,
			Network: d.networkLimits(), MaxSnapshotBytes: int64(d.cfg.Limits.Snapshot), SnapshotExpiration: d.cfg.SnapshotExpiration,
		},
		Restricted: d.cfg.GuestPrivileges == string(sandbox.RestrictedPrivileges),
		Pools:      pools(d.cfg), SpareCPU: d.opts.SpareCPU,
		CheckSpace: func() error { return blob.CheckSpace(d.cfg.Data, int64(d.cfg.DiskReserve)) },
	}
	snapshots, err := d.openBlobs(snapshotBlobs)
	if err != nil {
		return err
	}
	sc.Snapshots = snapshot.New(snapshots)
	if sc.Drives, err = d.openBlobs(driveBlobs); err != nil {
		return err
	}
	if sc.Commands, err = d.openBlobs(commandBlobs); err != nil {
		return err
	}
	if sc.Images == nil {
		sc.Images = imageSource{d.images}
	}
	if sc.Runtime == nil {
		dir := d.opts.RuntimeDir
		if dir == "" {
			dir = filepath.Join(d.cfg.Data, "machines")
		}
		if sc.Trust, err = d.openEgress(); err != nil {
			return err
		}
		kept, err := d.openBlobs(programBlobs)
		if err != nil {
			return err
		}
		sc.Programs = programs.New(kept)
		runtime, err := gvisor.New(gvisor.Config{
			StateDir: dir, NoLimits: d.cfg.InsecureNoLimits, Egress: d.egress, Logger: d.log, Programs: sc.Programs,
		})
		if err != nil {
			return err
		}
		d.runtime = runtime // never a nil *gvisor.Runtime
		if err := d.useSentry(ctx); err != nil {
			d.log.WarnContext(ctx, "sandboxes start slower: the program for them cannot be used", "error", err)
		}
		sc.Runtime, sc.Gateway, sc.Nameserver = runtime, network.GatewayAddr, network.GatewayAddr
		if sc.Tool, err = guestTool(ctx, d.imageStore); err != nil {
			return err
		}
	}
	d.sandboxes, err = sandboxd.NewEngine(ctx, sc)
	return err
}

// openBlobs opens the store in a directory of the data directory, migrates it to
// this version's layout, and keeps the reserve free.
func (d *Daemon) openBlobs(name string) (blob.Store, error) {
	return blob.OpenDir(filepath.Join(d.cfg.Data, name), blob.DirOptions{Reserve: int64(d.cfg.DiskReserve)})
}

// pools returns the pools of the configuration.
func pools(cfg config.Config) []sandboxd.PoolConfig {
	all := []sandboxd.PoolConfig{{Size: cfg.Pool}}
	for _, p := range cfg.Pools {
		all = append(all, sandboxd.PoolConfig{
			Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.Memory.MiB(), DiskMB: p.Disk.MiB(), Size: p.Size,
		})
	}
	return all
}

// Start adopts the sandboxes of an earlier daemon and begins to serve.
func (d *Daemon) Start(ctx context.Context) (err error) {
	if err := d.accounts.Start(ctx); err != nil {
		return err
	}
	if err := d.sandboxes.Open(ctx); err != nil {
		return err
	}
	d.listener = d.opts.Listener
	if d.listener == nil {
		if d.listener, err = d.opts.Handover.Sockets.Listen(ctx, apiSocket, d.cfg.Listen); err != nil {
			return cay.Errorf(cay.Unavailable, "cannot listen on %s: %w", d.cfg.Listen, err).
				WithHint("choose another address with --listen")
		}
	}
	d.port.Store(int32(listenPort(d.cfg, d.listener)))
	server := api.NewServer(d.handler, hosts(d.cfg), d.log)
	// Previews come before the API's middleware, because they are not part of the
	// API.
	server.Handler = d.previews.Before(server.Handler)
	d.conns.watch(server)
	server.BaseContext = func(net.Listener) context.Context { return api.WithStopping(context.Background(), d.ending) }
	if d.cfg.TLSCert != "" {
		isPreview := func(host string) bool { _, ok := d.previews.Match(host); return ok }
		if server.TLSConfig, err = tlsConfig(d.cfg, isPreview, d.log); err != nil {
			return errors.Join(err, d.listener.Close())
		}
	}
	if d.gateway != nil {
		if err := d.gateway.serve(ctx, d); err != nil {
			return errors.Join(err, d.listener.Close())
		}
	}
	d.server, d.fresh = server, false
	if d.messages != nil {
		d.messages.begin(d.workflows.Admit)
	}
	go func() {
		var err error
		if d.server.TLSConfig != nil {
			err = d.server.ServeTLS(d.listener, "", "")
		} else {
			err = d.server.Serve(d.listener)
		}
		d.served <- err
	}()
	return nil
}

// URL is where the daemon can be reached once started.
func (d *Daemon) URL() string {
	scheme := "http"
	if d.cfg.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + d.listener.Addr().String()
}

// Stop stops accepting requests, ends requests that only watch, lets other requests
// finish, and stops the parts in the reverse order of their start. Sandboxes keep
// running unless Options.DestroyOnStop.
func (d *Daemon) Stop() error {
	var errs []error
	if d.gateway != nil {
		errs = append(errs, d.gateway.stop())
	}
	if d.server != nil {
		errs = append(errs, stopAccepting(d.listener, d.served))
	}
	d.end(errStopping)
	if d.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
		visits := time.AfterFunc(visitTimeout, d.previews.Close)
		errs = append(errs, d.conns.drain(ctx, d.server, func() {}))
		visits.Stop() // the Close below waits for one under way
		cancel()
	}
	d.previews.Close() // WebSockets, which the server knows nothing of
	if d.workflowRoutes != nil {
		d.workflowRoutes.Close() // as above: the connections of workers
	}
	d.sandboxes.Close()
	d.accounts.Stop()
	return errors.Join(append(errs, d.close())...)
}

// close releases the resources of New.
func (d *Daemon) close() error {
	var errs []error
	if d.gateway != nil {
		errs = append(errs, d.gateway.close())
	}
	if d.messages != nil {
		errs = append(errs, d.messages.close()) // its store is the engine's
	}
	if d.workflows != nil {
		errs = append(errs, d.workflows.Close())
	}
	if d.trust != nil {
		_, _ = d.trust() // only wait: New has returned its error
	}
	if d.runtime != nil {
		errs = append(errs, d.runtime.Close())
	}
	if d.egress != nil {
		d.egress.Close()
	}
	if d.proxy != nil {
		d.proxy.Close()
	}
	for _, database := range []*db.DB{d.flows, d.db} {
		if database != nil {
			errs = append(errs, database.Close())
		}
	}
	if d.lock != nil {
		if d.fresh { // a daemon that never served leaves nothing, and no token to nothing
			errs = append(errs, os.RemoveAll(d.cfg.Data))
		}
		errs = append(errs, flock.Close(d.lock))
	}
	return errors.Join(errs...)
}

// hosts are the names, besides this machine's own, by which clients may address the
// daemon.
func hosts(cfg config.Config) []string {
	all := slices.Concat(cfg.AllowedHosts, names.Hosts)
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil && host != "" {
		all = append(all, host)
	}
	if u, err := url.Parse(cfg.PublicURL); err == nil && u.Host != "" {
		all = append(all, u.Hostname())
	}
	return all
}
