package daemon

import (
	"path/filepath"

	"golang.org/x/net/http/httpproxy"

	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/sandbox"
)

// networkLimits are the maxima for a sandbox.
func (d *Daemon) networkLimits() sandbox.NetworkLimits {
	l := d.cfg.Limits
	return sandbox.NetworkLimits{
		Connections: l.Connections, ConnectionsPerSecond: l.ConnectionRate,
		BytesPerSecond: int64(l.Bandwidth), TotalBytes: int64(l.Traffic),
	}
}

// openEgress creates the guests' egress, and returns the authorities that
// guests have to trust for it.
func (d *Daemon) openEgress() (*authorities, error) {
	bundle, err := d.trust()
	if err != nil {
		return nil, err
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
		OwnPorts:     func() []uint16 { return []uint16{uint16(d.port.Load()), uint16(d.gatewayPort.Load())} },
		ForwardToken: d.forwardTokens().Token,
		Proxy:        d.proxy, Roots: bundle.Pool(), Limits: d.networkLimits(),
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
	var extra []byte
	if d.cfg.GuestTrust {
		extra = bundle.Extra()
	}
	return newAuthorities(extra, ca.PEM(), d.log), nil
}
