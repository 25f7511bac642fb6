package daemon

import (
	"github.com/cayhq/cay/internal/compat/cloudflare"
	"github.com/cayhq/cay/internal/sandboxd"
)

var _ cloudflare.Sandboxes = (*sandboxd.Engine)(nil)

// bridge configures the bridge of Cloudflare's Sandbox SDK.
func (d *Daemon) bridge() cloudflare.Config {
	return cloudflare.Config{Sandboxes: d.sandboxes, Image: d.cfg.CloudflareImage, MaxTimeout: d.cfg.Limits.Timeout, Logger: d.log}
}
