package sandboxtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// MaxTimeout is the maximal timeout in a Harness's engine.
const MaxTimeout = 48 * time.Hour

// networkLimits are the limits of a Harness's engine.
var networkLimits = sandbox.NetworkLimits{Connections: 500, ConnectionsPerSecond: 500, BytesPerSecond: 1 << 30, TotalBytes: 1 << 40}

// Harness is an engine with its dependencies, for tests of the engine and of layers above
// it.
type Harness struct {
	*sandboxd.Engine
	Config   sandboxd.Config // the Config of Engine; Restart uses it again
	Clock    *Clock
	Accounts *Accounts
	Images   *Images
}

// Start starts an engine on rt, with a fresh database, images that are empty directories,
// and a clock that stands still. It is closed when the test ends. change may modify the
// Config.
func Start(t testing.TB, rt machine.Runtime, change ...func(*sandboxd.Config)) *Harness {
	t.Helper()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	images, err := NewImages(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	secrets, err := secret.Open(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	drives, err := blob.OpenDir(filepath.Join(t.TempDir(), "drives"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	snapshots, err := blob.OpenDir(filepath.Join(t.TempDir(), "snapshots"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	commands, err := blob.OpenDir(filepath.Join(t.TempDir(), "commands"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := &Harness{Clock: NewClock(), Accounts: NewAccounts(), Images: images}
	h.Config = sandboxd.Config{
		DB: d, Runtime: rt, Images: h.Images, Accounts: h.Accounts, Secrets: secrets, Clock: h.Clock,
		Snapshots: snapshot.New(snapshots), Drives: drives, Commands: commands,
		PreviewURL: func(label string) string { return "http://" + label + ".preview.test" },
		Limits:     sandboxd.Limits{MaxTimeout: MaxTimeout, Network: networkLimits}, Logger: slog.New(slog.NewTextHandler(logWriter{t}, nil)),
	}
	h.Config.CPUWait = func() time.Duration { return 0 } // independent of the host's load
	h.Config.SpareCPU = func(ctx context.Context, _ bool) error { return ctx.Err() }
	for _, f := range change {
		f(&h.Config)
	}
	h.open(t)
	t.Cleanup(func() {
		h.Config.DestroyOnStop = true
		// Adopt the remaining machines once more, to destroy them.
		h.Restart(t)
		h.Engine.Close()
		if err := d.Close(); err != nil {
			t.Errorf("close database: %v", err)
		}
		if n := h.Images.Leased(); n != 0 {
			t.Errorf("%d leases of images were not given back", n)
		}
	})
	return h
}

func (h *Harness) open(t testing.TB) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // also called from a cleanup
	e, err := sandboxd.NewEngine(ctx, h.Config)
	if err != nil {
		t.Fatalf("new engine: %v", err)
	}
	if err := e.Open(ctx); err != nil {
		t.Fatalf("open engine: %v", err)
	}
	h.Engine = e
}

// Restart closes the engine and opens another one over the same state.
func (h *Harness) Restart(t testing.TB) {
	t.Helper()
	h.Engine.Close()
	h.open(t)
}

// As returns a context whose caller is p.
func As(ctx context.Context, p api.Principal) context.Context {
	if p == Nobody {
		return ctx
	}
	return api.WithPrincipal(ctx, p)
}

// Env returns the engine as a service under test. Its time is real if the Config was
// changed to have another Clock, or none.
func (h *Harness) Env() *Env {
	env := &Env{
		As: func(_ *testing.T, p api.Principal) Caller {
			return Caller{h.Engine, func(ctx context.Context) context.Context { return As(ctx, p) }}
		},
		SetQuota: h.Accounts.Set, MaxTimeout: MaxTimeout, NetworkLimits: h.Config.Limits.Network,
	}
	if h.Config.Clock == clock.Clock(h.Clock) {
		env.Clock = h.Clock
	}
	return env
}

// logWriter writes to the test's log.
type logWriter struct{ t testing.TB }

func (w logWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// Accounts implements sandboxd.Accounts for this package's callers.
type Accounts struct {
	mu     sync.Mutex
	quotas map[string]account.Quota
}

// NewAccounts returns accounts without quotas.
func NewAccounts() *Accounts { return &Accounts{quotas: make(map[string]account.Quota)} }

// Set sets a team's quota.
func (a *Accounts) Set(team string, q account.Quota) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quotas[team] = q
}

// Quota implements sandboxd.Accounts.
func (a *Accounts) Quota(_ context.Context, team string) (account.Quota, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.quotas[team], nil
}

// CheckProject implements sandboxd.Accounts.
func (a *Accounts) CheckProject(_ context.Context, team, project string) error {
	if !slices.Contains(Projects[team], project) {
		return cay.Errorf(cay.NotFound, "project %q not found", project)
	}
	return nil
}

// Images is an ImageSource that has every image but "missing". The images are empty.
type Images struct {
	dir    string
	mu     sync.Mutex
	leased int
	block  chan struct{}
	made   int // incremented by Rebuild
}

// NewImages returns images whose content is the empty directory dir, which it creates if
// it is missing.
func NewImages(dir string) (*Images, error) { return &Images{dir: dir}, os.MkdirAll(dir, 0o700) }

// Leased returns how many leases are held.
func (i *Images) Leased() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.leased
}

// Block makes Ensure wait until the returned function is called.
func (i *Images) Block() (unblock func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	c := make(chan struct{})
	i.block = c
	return sync.OnceFunc(func() { close(c) })
}

// Ensure implements sandboxd.ImageSource.
func (i *Images) Ensure(ctx context.Context, _, ref string) (*sandboxd.Lease, error) {
	if ref == "missing" {
		return nil, cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	i.mu.Lock()
	block := i.block
	i.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.leased++
	return &sandboxd.Lease{
		Image: sandbox.Image{
			Digest: i.digestLocked(ref), Refs: []string{ref},
			Config: sandbox.ImageConfig{
				Env:  []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "FROM_IMAGE=yes"},
				User: "root", WorkDir: "/workspace",
			},
		},
		Path: i.dir,
		Release: sync.OnceFunc(func() {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.leased--
		}),
	}, nil
}

// Lease implements sandboxd.ImageSource.
func (i *Images) Lease(ctx context.Context, digest string) (*sandboxd.Lease, error) {
	return i.Ensure(ctx, "", digest)
}

// Digest implements sandboxd.ImageSource.
func (i *Images) Digest(_ context.Context, _, ref string) (string, error) {
	if ref == "missing" {
		return "", cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.digestLocked(ref), nil
}

// Rebuild makes all references name new images.
func (i *Images) Rebuild() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.made++
}

func (i *Images) digestLocked(ref string) string {
	if strings.HasPrefix(ref, "sha256:") {
		return ref
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append([]byte(ref), i.made)))
}
