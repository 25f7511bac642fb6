package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/compat/vercelworkflow"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/admin"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/settings"
	"github.com/cayhq/cay/internal/history"
	hostload "github.com/cayhq/cay/internal/host"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/route"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/sandbox"
)

// testbed is a daemon whose sandboxes are host processes.
type testbed struct {
	url   string
	token string
	book  *ledger.Book
	stop  func() error
}

// startTestbed runs a daemon in cfg.Data.
func startTestbed(ctx context.Context, cfg config.Config) (_ *testbed, err error) {
	var undo []func() error
	stop := func() error {
		var errs []error
		for _, f := range slices.Backward(undo) {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	logger := slog.New(slog.DiscardHandler)
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, err
	}
	d, err := db.Open(ctx, cfg.DatabaseFile(), db.Options{})
	if err != nil {
		return nil, err
	}
	undo = append(undo, d.Close)
	secrets, err := secret.Open(filepath.Join(cfg.Data, "secret.key"))
	if err != nil {
		return nil, err
	}
	accounts, err := accountd.NewEngine(ctx, accountd.Config{
		DB: d, Logger: logger, DefaultQuota: cfg.Quota.Account(), AdminTokenFile: cfg.AdminTokenFile(),
		Secrets: secrets, ListenURL: func() string { return cfg.ListenURL(7070) },
	})
	if err != nil {
		return nil, err
	}
	if err := accounts.Start(ctx); err != nil {
		return nil, err
	}
	undo = append(undo, func() error { accounts.Stop(); return nil })
	rt, err := fake.New(filepath.Join(cfg.Data, "machines"))
	if err != nil {
		return nil, err
	}
	undo = append(undo, rt.Close)
	images := newTestImages(filepath.Join(cfg.Data, "rootfs"))
	if err := os.MkdirAll(filepath.Join(images.dir, "work"), 0o755); err != nil {
		return nil, err
	}
	snapshots, err := blob.OpenDir(filepath.Join(cfg.Data, "snapshots"), blob.DirOptions{})
	if err != nil {
		return nil, err
	}
	drives, err := blob.OpenDir(filepath.Join(cfg.Data, "drives"), blob.DirOptions{})
	if err != nil {
		return nil, err
	}
	commands, err := blob.OpenDir(filepath.Join(cfg.Data, "commands"), blob.DirOptions{})
	if err != nil {
		return nil, err
	}
	engine, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		Snapshots: snapshot.New(snapshots), Drives: drives, Commands: commands,
		DB: d, Runtime: rt, Images: images, Accounts: accounts, Secrets: secrets, DestroyOnStop: true, Logger: logger,
		PreviewURL: func(label string) string { return "http://" + label + ".localhost" },
	})
	if err != nil {
		return nil, err
	}
	if err := engine.Open(ctx); err != nil {
		return nil, err
	}
	undo = append(undo, func() error { engine.Close(); return nil })

	store, err := sqlstore.OpenSQLite(ctx, cfg.WorkflowFile(), sqlstore.SQLiteOptions{})
	if err != nil {
		return nil, err
	}
	messages, err := queue.Open(ctx, queue.Config{Store: store.Queue()})
	if err != nil {
		return nil, err
	}
	workflows, err := workflowd.Open(ctx, workflowd.Config{Store: store, Messages: messages})
	if err != nil {
		return nil, err
	}
	undo = append(undo, workflows.Close, messages.Close)

	books, err := db.Open(ctx, cfg.GatewayFile(), db.Options{})
	if err != nil {
		return nil, err
	}
	undo = append(undo, books.Close)
	book, err := ledger.Open(ctx, books, ledger.Options{Accounts: accounts, Logger: logger})
	if err != nil {
		return nil, err
	}
	undo = append(undo, book.Close)

	mux := api.NewMux(accounts)
	stored, err := settings.NewStore(ctx, books, secrets)
	if err != nil {
		return nil, err
	}
	live, err := settings.Open(ctx, settings.Options{File: filepath.Join(cfg.Data, "gateway.yaml"), Store: stored})
	if err != nil {
		return nil, err
	}
	admin.Routes(mux, &admin.Manager{Book: book, Providers: live, Projects: accounts})
	workflowRoutes := workflowd.NewRoutes(mux, workflows, accounts)
	vercelworkflow.Routes(mux, vercelworkflow.Config{
		Runs:  func(project string) vercelworkflow.Runs { return workflows.External(project, history.JavaScript) },
		Queue: messages, Project: workflowRoutes.Project,
	})
	route.Mount(mux, engine, context.Background())
	imaged.Routes(mux, images)
	accountd.Routes(mux, accounts)
	accountd.PublicRoutes(mux, accounts)
	reader := hostload.NewReader(cfg.Data)
	mux.Handle("GET /v1/host", func(w http.ResponseWriter, r *http.Request) error {
		if err := api.RequireAdmin(r.Context()); err != nil {
			return err
		}
		h, err := reader.Read(r.Context())
		if err != nil {
			return err
		}
		h.Version, h.StartedAt = cay.Version(), time.Now()
		for _, d := range cfg.Databases() {
			h.Databases = append(h.Databases, account.Database{Name: d.Name, SizeBytes: 4096})
		}
		return api.WriteJSON(w, http.StatusOK, h)
	})
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, err
	}
	srv := api.NewServer(mux, nil, logger)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	undo = append(undo, func() error {
		err := srv.Close()
		workflowRoutes.Close()
		<-served
		return err
	})
	token, err := os.ReadFile(cfg.AdminTokenFile())
	if err != nil {
		return nil, err
	}
	return &testbed{"http://" + l.Addr().String(), string(token[:len(token)-1]), book, stop}, nil
}

// testImages is a store of empty images, which lacks only the image "missing".
type testImages struct {
	dir string

	mu     sync.Mutex
	images []sandbox.Image // guarded by mu
}

func newTestImages(dir string) *testImages { return &testImages{dir: dir} }

func (i *testImages) add(ref, source string) (*sandbox.Image, error) {
	if ref == "missing" {
		return nil, cay.Errorf(cay.NotFound, "image %q not found in its registry", ref)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	img := sandbox.Image{
		Digest: fmt.Sprintf("sha256:%064x", len(i.images)+1), Refs: []string{ref}, Source: source, Arch: "amd64", SizeBytes: 3 << 20,
		CreatedAt: time.Now(), UsedAt: time.Now(),
		Config: sandbox.ImageConfig{Env: []string{"PATH=" + os.Getenv("PATH")}, User: "root", WorkDir: "/work"},
	}
	i.images = append(i.images, img)
	return &img, nil
}

func (i *testImages) Ensure(ctx context.Context, _, ref string) (*sandboxd.Lease, error) {
	img, err := i.Get(ctx, ref)
	if err != nil {
		img, err = i.add(ref, "oci")
	}
	if err != nil {
		return nil, err
	}
	return &sandboxd.Lease{Image: *img, Path: i.dir, Release: func() {}}, nil
}

// Lease implements sandboxd.ImageSource.
func (i *testImages) Lease(ctx context.Context, digest string) (*sandboxd.Lease, error) {
	return i.Ensure(ctx, "", digest)
}

// Digest implements sandboxd.ImageSource.
func (i *testImages) Digest(ctx context.Context, _, ref string) (string, error) {
	img, err := i.Get(ctx, ref)
	if err != nil {
		return "", err
	}
	return img.Digest, nil
}

func (i *testImages) List(context.Context) ([]sandbox.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.images), nil
}

func (i *testImages) Get(_ context.Context, ref string) (*sandbox.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, img := range i.images {
		if img.Digest == ref || slices.Contains(img.Refs, ref) {
			return &img, nil
		}
	}
	return nil, cay.Errorf(cay.NotFound, "image %q not found", ref)
}

func (i *testImages) Pull(_ context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "download", Item: "layer", Current: 1, Total: 2})
	return i.add(ref, "oci")
}

func (i *testImages) Build(_ context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "build", Item: name})
	return i.add(name, "debian")
}

func (i *testImages) BuildDefault(ctx context.Context, packages []string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	img, err := i.Build(ctx, "debian", progress)
	if err == nil {
		img.Packages = packages
	}
	return img, err
}

func (i *testImages) Import(_ context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if ref == "" {
		ref = "of-the-archive"
		progress(sandbox.ImageProgress{Phase: "imported", Item: ref})
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	return i.add(ref, "import")
}

func (i *testImages) FromSnapshot(_ context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	progress(sandbox.ImageProgress{Phase: "build", Item: p.Ref})
	return i.add(p.Ref, "snapshot")
}

// Export writes the digests of the images.
func (i *testImages) Export(ctx context.Context, refs []string) (io.ReadCloser, error) {
	var all strings.Builder
	for _, ref := range refs {
		img, err := i.Get(ctx, ref)
		if err != nil {
			return nil, err
		}
		fmt.Fprintln(&all, ref, img.Digest)
	}
	return io.NopCloser(strings.NewReader(all.String())), nil
}

// Push takes images of the registry registry.example.com, whose user is "me".
func (i *testImages) Push(ctx context.Context, p sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	img, err := i.Get(ctx, p.Ref)
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(p.Ref, "registry.example.com/") || p.Auth.Username != "me" {
		return nil, cay.Errorf(cay.PermissionDenied, "the registry does not take %s of %q", p.Ref, p.Auth.Username)
	}
	progress(sandbox.ImageProgress{Phase: "upload", Item: "layer", Current: 1, Total: 2})
	progress(sandbox.ImageProgress{Phase: "pushed", Item: "sha256:" + strings.Repeat("a", 64), Total: 2})
	return img, nil
}

func (i *testImages) Tag(_ context.Context, ref, name string) (*sandbox.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.images, func(img sandbox.Image) bool { return img.Digest == ref || slices.Contains(img.Refs, ref) })
	if n < 0 {
		return nil, cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	img := i.images[n]
	img.Refs = append(slices.Clone(img.Refs), name)
	i.images[n] = img
	return &img, nil
}

func (i *testImages) Remove(_ context.Context, ref string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := slices.IndexFunc(i.images, func(img sandbox.Image) bool { return slices.Contains(img.Refs, ref) })
	if n < 0 {
		return cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	left := slices.DeleteFunc(slices.Clone(i.images[n].Refs), func(name string) bool { return name == ref })
	if i.images[n].Refs = left; len(left) == 0 {
		i.images = slices.Delete(i.images, n, n+1)
	}
	return nil
}

func (i *testImages) GC(context.Context, sandbox.ImageGCParams) (*sandbox.ImageGC, error) {
	now := time.Now()
	return &sandbox.ImageGC{Removed: 1, FreedBytes: 5 << 20, Images: []sandbox.Image{
		{Digest: fmt.Sprintf("sha256:%064x", 9), Source: "oci", SizeBytes: 4 << 20, CreatedAt: now, UsedAt: now},
	}}, nil
}

// testMain is the command line with a testbed in place of a daemon, both for
// serve and for commands that start their own engine.
func testMain() {
	reexec()
	a := newApp()
	a.serve = func(ctx context.Context, cfg config.Config, _ <-chan func() (config.Config, error), ready func(string, string)) error {
		b, err := startTestbed(ctx, cfg)
		if err != nil {
			return err
		}
		ready(b.url, "")
		<-ctx.Done()
		return b.stop()
	}
	a.ephemeral = func(ctx context.Context, cfg config.Config) (*sandbox.Client, func() error, error) {
		cfg.Listen = "127.0.0.1:0"
		b, err := startTestbed(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		tr := &http.Transport{}
		c := sandbox.NewClient(sandbox.ClientOptions{URL: b.url, Token: b.token, HTTPClient: &http.Client{Transport: tr}})
		return c, func() error { tr.CloseIdleConnections(); return b.stop() }, nil
	}
	os.Exit(a.main(os.Args[1:]))
}
