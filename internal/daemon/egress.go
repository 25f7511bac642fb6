package daemon

import (
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/net/http/httpproxy"

	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/internal/sandboxd/network/trust"
	"github.com/cayhq/cay/sandbox"
)

// authorities is what guests are told to trust.
type authorities struct {
	extra       []byte // that the operator added to this machine's
	intercepted []byte // and ours, for guests whose TLS we open
}

var _ sandboxd.Trust = (*authorities)(nil)

// Certificates implements sandboxd.Trust.
func (a *authorities) Certificates(n sandbox.Network) []byte {
	if intercepts(n) {
		return a.intercepted
	}
	return a.extra
}

// Public implements sandboxd.Trust.
func (a *authorities) Public() []byte { return trust.Public() }

// intercepts reports whether a policy has TLS opened. Unlike the policy itself
// this takes one whose secrets are redacted.
func intercepts(n sandbox.Network) bool {
	return n.WithDefaults().Mode == sandbox.Custom && slices.ContainsFunc(n.Allow, func(d sandbox.Domain) bool {
		return n.Strict || len(d.Rules) > 0
	})
}

// networkLimits are the most a sandbox may have.
func (d *Daemon) networkLimits() sandbox.NetworkLimits {
	l := d.cfg.Limits
	return sandbox.NetworkLimits{
		Connections: l.Connections, ConnectionsPerSecond: l.ConnectionRate,
		BytesPerSecond: int64(l.Bandwidth), TotalBytes: int64(l.Traffic),
	}
}

// openEgress makes guests' way out, and returns what they are to trust on it.
func (d *Daemon) openEgress() (*authorities, error) {
	bundle, err := trust.Load()
	if err != nil {
		return nil, fmt.Errorf("read the authorities this machine trusts: %w", err)
	}
	if w := bundle.Warning(); w != "" {
		d.log.Warn("some of the authorities this machine trusts are left out", "reason", w)
	}
	ca, err := intercept.OpenCA(filepath.Join(d.cfg.Data, "ca"))
	if err != nil {
		return nil, err
	}
	roots := d.opts.Roots
	if roots == nil {
		roots = bundle.Pool()
	}
	d.proxy = intercept.New(intercept.Config{CA: ca, Roots: roots, Logger: d.log})
	cfg := network.EgressConfig{
		Logger: d.log, Nameservers: d.opts.Nameservers, AllowRanges: d.cfg.Ranges(), DialContext: d.opts.DialContext,
		Proxy: d.proxy, Roots: bundle.Pool(), Limits: d.networkLimits(),
	}
	if len(cfg.Nameservers) == 0 {
		cfg.Nameservers = d.cfg.Nameservers
	}
	if cfg.DialContext == nil { // a test's internet is not behind the machine's proxy
		cfg.UpstreamProxy = httpproxy.FromEnvironment()
	}
	if d.egress, err = network.NewEgress(cfg); err != nil {
		return nil, err
	}
	a := &authorities{}
	if d.cfg.GuestTrust {
		a.extra = bundle.Extra()
	}
	a.intercepted = slices.Concat(a.extra, ca.PEM())
	return a, nil
}
