package daemon

import (
	"context"
	"net"
	"strconv"

	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/names"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/preview"
)

// previewTargets adapts the engine to previews.
type previewTargets struct{ *sandboxd.Engine }

func (t previewTargets) Preview(ctx context.Context, label string) (*preview.Target, error) {
	target, err := t.Engine.Preview(ctx, label)
	if err != nil {
		return nil, err
	}
	return (*preview.Target)(target), nil
}

func (t previewTargets) WakePreview(ctx context.Context, label string) (*preview.Target, error) {
	target, err := t.Engine.WakePreview(ctx, label)
	if err != nil {
		return nil, err
	}
	return (*preview.Target)(target), nil
}

func (d *Daemon) newPreviews() *preview.Handler {
	return preview.New(preview.Config{
		Domain: d.cfg.PreviewDomain, Aliases: []string{names.PreviewDomain}, Targets: previewTargets{d.sandboxes}, Logger: d.log,
		Secure: d.cfg.PreviewSecure(), HasSecret: accountd.HasSecret,
	})
}

// previewURLs returns a function that returns the URL of a label, nil if
// previews cannot be reached, as with a daemon on a socket.
func (d *Daemon) previewURLs() func(label string) string {
	if l := d.opts.Listener; l != nil {
		if _, ok := l.Addr().(*net.TCPAddr); !ok {
			return nil
		}
	}
	d.port.Store(int32(listenPort(d.cfg, d.opts.Listener)))
	return func(label string) string { return d.cfg.PreviewURL(label, int(d.port.Load())) }
}

// listenPort returns the port of l, or, if l is nil, the port in the
// configuration; 0 if the port is not known yet.
func listenPort(cfg config.Config, l net.Listener) int {
	if l != nil {
		if addr, ok := l.Addr().(*net.TCPAddr); ok {
			return addr.Port
		}
		return 0
	}
	_, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return 0
	}
	if n, err := strconv.Atoi(port); err == nil {
		return n
	}
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return 0 // listening fails, and says why
	}
	return n
}
