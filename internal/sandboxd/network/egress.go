package network

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/cayhq/cay/internal/sandboxd/network/intercept"
	"github.com/cayhq/cay/sandbox"
)

// EgressConfig describes an Egress. The zero value of each field is usable.
type EgressConfig struct {
	Logger *slog.Logger
	// Nameservers are the addresses of name servers, with or without a port. Empty means
	// the host's name servers.
	Nameservers []string
	// AllowRanges are special-purpose ranges the operator lets guests reach.
	AllowRanges []netip.Prefix
	// DialContext dials destinations; nil means a net.Dialer. It gets addresses, never
	// names.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// OwnPorts returns the TCP ports at which this process serves on the host's
	// addresses. No guest reaches these ports there, whatever the operator allows. Nil:
	// no ports; a port 0 is ignored.
	OwnPorts func() []uint16
	// Proxy serves connections whose requests must be read. With a nil Proxy such
	// connections are refused. It must be closed after the Egress.
	Proxy *intercept.Proxy
	// UpstreamProxy says which destinations are reached through an HTTP or HTTPS proxy of
	// the host. Nil means no proxy. Roots are the authorities that verify an HTTPS
	// proxy's certificate, nil the system's.
	UpstreamProxy *httpproxy.Config
	Roots         *x509.CertPool
	// ForwardToken makes the token by which the receiver of a forwarded request
	// recognizes the machine. Nil: no token is sent.
	ForwardToken func(ctx context.Context, machine, audience string) (string, error)
	// Limits are the highest limits of a sandbox, and the defaults for policies without
	// limits. Zeros are the defaults of this package, or no bound.
	Limits sandbox.NetworkLimits
}

// Egress is the way out that all links of a daemon share. Make it with NewEgress, and
// close it after all its links are closed.
type Egress struct {
	cfg      EgressConfig
	log      *slog.Logger
	resolver *resolver
	upstream *upstream // nil without a proxy
	budget   *budget

	sniffTimeout, silence time.Duration // shorter in tests
}

// NewEgress returns an Egress. Errors: invalid for name servers that are not addresses
// and for a proxy's URL.
func NewEgress(cfg EgressConfig) (*Egress, error) {
	if cfg.DialContext == nil {
		cfg.DialContext = (&net.Dialer{}).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Egress{cfg: cfg, log: cfg.Logger, sniffTimeout: sniffTimeout, silence: silence}
	var err error
	if e.budget, err = newBudget(withDefaults(cfg.Limits).Connections); err != nil {
		return nil, err
	}
	if e.upstream, err = newUpstream(cfg); err != nil {
		return nil, err
	}
	if e.resolver, err = newResolver(cfg.Nameservers); err != nil {
		return nil, err
	}
	return e, nil
}

// Close ends lookups under way and frees the resources shared by the links.
func (e *Egress) Close() { e.resolver.close() }
