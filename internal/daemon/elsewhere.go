package daemon

import (
	"net"
	"net/http"
	"net/url"

	"github.com/cayhq/cay"
)

// atGateway says where the AI gateway is to who asks the API for one of its routes:
// a base URL with the wrong port is easily written.
func (d *Daemon) atGateway(r *http.Request) error {
	if !d.gateway.engine.Serves(r) {
		return nil
	}
	at := d.GatewayURL()
	if at == "" {
		return cay.Errorf(cay.NotFound, "%s is a route of the AI gateway, which is off", r.URL.Path).
			WithHint("start the daemon with --gateway-listen")
	}
	if u, err := url.Parse(at); err == nil && net.ParseIP(u.Hostname()).IsUnspecified() { // all addresses: the one it was called by is among them
		if host, _, err := net.SplitHostPort(r.Host); err == nil {
			u.Host = net.JoinHostPort(host, u.Port())
			at = u.String()
		}
	}
	return cay.Errorf(cay.NotFound, "%s is a route of the AI gateway, which is at %s; this is the daemon's API", r.URL.Path, at).
		WithHint("use %s in the client's base URL", at)
}
