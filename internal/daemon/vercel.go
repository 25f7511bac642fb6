package daemon

import (
	"context"
	"encoding/base64"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/accountd"
	"github.com/cayhq/cay/internal/compat/vercelsandbox"
	"github.com/cayhq/cay/internal/sandboxd"
)

// The engines implement the facade's interfaces.
var (
	_ vercelsandbox.Sandboxes = (*sandboxd.Engine)(nil)
	_ vercelsandbox.Accounts  = (*accountd.Engine)(nil)
)

// vercel returns the dependencies of the protocol of Vercel Sandbox.
func (d *Daemon) vercel() vercelsandbox.Config {
	return vercelsandbox.Config{
		Sandboxes: d.sandboxes, Accounts: d.accounts, Logger: d.log,
		PublicURL: d.cfg.PublicURL, Gateway: d.gatewayFor, MaxTimeout: d.cfg.Limits.Timeout, HeaderDelay: d.cfg.VercelHeaderDelay,
		HasImage: func(ctx context.Context, reference string) (bool, error) {
			_, err := d.images.Get(ctx, reference)
			if cay.CodeOf(err) == cay.NotFound {
				return false, nil
			}
			return err == nil, err
		},
		Sign: func(purpose string, text []byte) string {
			return base64.RawURLEncoding.EncodeToString(d.secrets.Seal(text, purpose))
		},
		Open: func(purpose, signed string) ([]byte, error) {
			b, err := base64.RawURLEncoding.DecodeString(signed)
			if err != nil {
				return nil, err
			}
			return d.secrets.Open(b, purpose)
		},
	}
}
