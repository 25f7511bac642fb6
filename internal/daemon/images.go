package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest/embedded"
	"github.com/cayhq/cay/internal/sandboxd/image"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// imageSource is the image store as the sandbox engine wants it.
type imageSource struct{ store *image.Store }

func (s imageSource) Ensure(ctx context.Context, ref string) (*sandboxd.Lease, error) {
	l, err := s.store.Ensure(ctx, ref, nil)
	if err != nil {
		return nil, err
	}
	return &sandboxd.Lease{Image: l.Image, Path: l.Path, Release: l.Release}, nil
}

func (s imageSource) Digest(ctx context.Context, ref string) (string, error) {
	return s.store.Digest(ctx, ref)
}

// imageService is the image store as the API wants it.
type imageService struct {
	*image.Store
	sandboxes *sandboxd.Engine
}

var _ sandboxd.Images = imageService{}

// GC implements sandboxd.Images. It spares what snapshots and sandboxes that can
// be resumed need, and all if that cannot be found out. Images of running
// sandboxes are leased as well, in other processes too.
func (s imageService) GC(ctx context.Context) (*sandbox.ImageGC, error) {
	var failed error
	report, err := s.Store.GC(ctx, func(digest string) bool {
		needed, err := s.sandboxes.NeedsImage(ctx, digest)
		if err != nil {
			failed = err
		}
		return needed || err != nil
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return &sandbox.ImageGC{Removed: len(report.Images), FreedBytes: report.Bytes}, nil
}

// FromSnapshot implements sandboxd.Images.
func (s imageService) FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	files, err := s.sandboxes.OpenImageFiles(ctx, p.Snapshot)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	env := maps.Clone(files.Env)
	if env == nil {
		env = make(map[string]string, len(p.Env))
	}
	for _, kv := range p.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	if len(p.Entrypoint)+len(p.Cmd) == 0 {
		base, err := s.Store.Get(ctx, files.Snapshot.Digest)
		if err != nil {
			return nil, err
		}
		p.Entrypoint, p.Cmd = base.Config.Entrypoint, base.Config.Cmd
	}
	config := sandbox.ImageConfig{
		User: cmp.Or(p.User, files.Snapshot.User), WorkDir: cmp.Or(p.WorkDir, files.Snapshot.WorkDir), Entrypoint: p.Entrypoint, Cmd: p.Cmd,
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		config.Env = append(config.Env, k+"="+env[k])
	}
	return s.Store.Compose(ctx, p.Ref, image.Composition{
		Base: files.Snapshot.Digest, Runtime: files.Snapshot.Runtime, RuntimeDigest: files.RuntimeDigest,
		Layer: files.WriteLayer, Config: config, Origin: "snapshot " + files.Snapshot.ID,
	}, progress)
}

// pullTransport makes the requests of image pulls. Callers name the registry, so
// it reaches only what their sandboxes could; nil means no such bound.
func pullTransport(cfg config.Config, opts Options) http.RoundTripper {
	if opts.TrustCallers {
		return nil
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 30 * time.Second, Control: network.Guard(cfg.Ranges())}).DialContext
	t.ResponseHeaderTimeout = time.Minute
	return t
}

const (
	toolDir  = "/.cay" // where machines find the guest program
	toolName = "cay-guest"
)

// guestTool makes the file system with the guest program: the small one if this
// build has it, else this very binary, whose hidden guest command is the same.
func guestTool(ctx context.Context, images *image.Store) (sandboxd.Tool, error) {
	argv := []string{toolDir + "/" + toolName}
	program := embedded.Binary()
	if program == nil {
		var err error
		if program, err = os.ReadFile("/proc/self/exe"); err != nil {
			return sandboxd.Tool{}, fmt.Errorf("read the guest program: %w", err)
		}
		argv = append(argv, "guest")
	}
	path, err := images.Tool(ctx, toolName, map[string][]byte{toolName: program})
	if err != nil {
		return sandboxd.Tool{}, fmt.Errorf("prepare the guest program: %w", err)
	}
	return sandboxd.Tool{Mount: sandboxd.Mount{Source: path, Target: toolDir}, Init: argv}, nil
}
