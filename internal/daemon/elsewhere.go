package daemon

import (
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/config"
)

// atGateway returns an error with the AI gateway's address for requests to the API for
// one of the gateway's routes: a wrong port in a base URL is an easy mistake.
func (d *Daemon) atGateway(r *http.Request) error {
	if !d.gateway.engine.Serves(r) {
		return nil
	}
	at := d.gatewayAt(r)
	if at == "" {
		return cay.Errorf(cay.NotFound, "%s is a route of the AI gateway, which is off", r.URL.Path).
			WithHint("start the daemon with --gateway-listen")
	}
	return cay.Errorf(cay.NotFound, "%s is a route of the AI gateway, which is at %s; this is the daemon's API", r.URL.Path, at).
		WithHint("use %s in the client's base URL", at)
}

// gatewayAt returns the URL of the AI gateway for the sender of a request, "" if the
// gateway is off.
func (d *Daemon) gatewayAt(r *http.Request) string {
	at := d.GatewayURL()
	if u, err := url.Parse(at); err == nil && net.ParseIP(u.Hostname()).IsUnspecified() { // all addresses: the one it was called by is among them
		if host, _, err := net.SplitHostPort(r.Host); err == nil {
			u.Host = net.JoinHostPort(host, u.Port())
			at = u.String()
		}
	}
	return at
}

// gatewayFor is gatewayAt, with an error if the sender cannot use the address.
func (d *Daemon) gatewayFor(r *http.Request) (string, error) {
	at := d.gatewayAt(r)
	if at == "" {
		return "", cay.Errorf(cay.NotFound, "the AI gateway of this daemon is off").WithHint("start the daemon with --gateway-listen")
	}
	if u, err := url.Parse(at); err == nil && config.IsLoopback(u.Hostname()) && !config.IsLoopback(hostOf(r)) {
		return "", cay.Errorf(cay.Invalid, "the AI gateway listens on %s, which the daemon's own machine alone reaches", at).
			WithHint("set CAY_GATEWAY_URL to the address at which this machine reaches it")
	}
	return at, nil
}

// hostOf returns the host in a request, without its port.
func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.Trim(r.Host, "[]")
}

// handleGateway returns the URL of the AI gateway.
func (d *Daemon) handleGateway(w http.ResponseWriter, r *http.Request) error {
	if err := api.ParseQuery(r).Err(); err != nil {
		return err
	}
	at, err := d.gatewayFor(r)
	if err != nil {
		return err
	}
	return api.WriteJSON(w, http.StatusOK, map[string]string{"url": at})
}
