package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
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

// imageService is the image store as the API wants it.
type imageService struct{ *image.Store }

var _ sandboxd.Images = imageService{}

// GC implements sandboxd.Images. Images of running sandboxes are leased, so the
// store spares them by itself.
func (s imageService) GC(ctx context.Context) (*sandbox.ImageGC, error) {
	report, err := s.Store.GC(ctx, nil)
	if err != nil {
		return nil, err
	}
	return &sandbox.ImageGC{Removed: len(report.Images), FreedBytes: report.Bytes}, nil
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
