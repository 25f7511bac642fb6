package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/imaged"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
)

// imageSource adapts the slice of images to the sandbox engine.
type imageSource struct{ *imaged.Engine }

func (s imageSource) Ensure(ctx context.Context, teamID, ref string) (*sandboxd.Lease, error) {
	return leased(s.Engine.Ensure(ctx, teamID, ref))
}

func (s imageSource) Lease(ctx context.Context, digest string) (*sandboxd.Lease, error) {
	return leased(s.Engine.Lease(ctx, digest))
}

func leased(l *image.Lease, err error) (*sandboxd.Lease, error) {
	if err != nil {
		return nil, err
	}
	return &sandboxd.Lease{Image: l.Image, Path: l.Path, Release: l.Release}, nil
}

// openImages opens the image store, and the slice on it.
func (d *Daemon) openImages() (err error) {
	dir := d.opts.ImageDir
	if dir == "" {
		dir = d.cfg.ImageDir()
	}
	d.imageStore, err = image.Open(dir, image.Options{
		Logger: d.log, DebianMirror: d.cfg.DebianMirror, NPMRegistry: d.cfg.NPMRegistry, PullTransport: pullTransport(d.cfg, d.opts),
		// No image changes, and none is removed, before the engine exists.
		Changed: func() { d.sandboxes.ImagesChanged() },
		Needed:  func(ctx context.Context, digest string) (bool, error) { return d.sandboxes.NeedsImage(ctx, digest) },
	})
	if err != nil {
		return err
	}
	d.images = imaged.NewEngine(imaged.Config{
		Store: d.imageStore, Accounts: d.accounts,
		Snapshots: func(ctx context.Context, ref string) (*imaged.SnapshotFiles, error) {
			files, err := d.sandboxes.OpenImageFiles(ctx, ref)
			return (*imaged.SnapshotFiles)(files), err
		},
	})
	return nil
}

// pullTransport makes the requests of image pulls. Callers name the registry, so
// it reaches only addresses that their sandboxes could reach; nil means no
// restriction.
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

// guestTool makes the file system with the guest program: the small program if
// this build has it, else this binary, whose hidden guest command does the same.
func guestTool(ctx context.Context, images *image.Store) (sandboxd.Tool, error) {
	argv := []string{toolDir + "/" + toolName}
	program := embedded.Guest()
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
	return sandboxd.Tool{Mount: machine.Mount{Source: path, Target: toolDir}, Init: argv}, nil
}

// useSentry makes sandboxes run the program cay-sentry that is embedded in this
// build. If it is not embedded, sandboxes run this program itself.
func (d *Daemon) useSentry(ctx context.Context) error {
	program := embedded.Sentry()
	if program == nil {
		return nil
	}
	id, err := gvisor.ProgramID(bytes.NewReader(program))
	if err != nil {
		return err
	}
	path, err := d.imageStore.Program(ctx, "cay-sentry", id, program)
	if err != nil {
		return err
	}
	return gvisor.UseProgram(path)
}
