package gatewayd

import (
	"net"
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/socket"
	"github.com/cayhq/cay/internal/gatewayd/upstream"
)

// newClient returns what calls providers.
func newClient() *upstream.Client { return upstream.New(newTransport()) }

// newTransport returns what calls providers over HTTP/2 and through proxies, and has
// the settings of all others. It holds many idle connections,
// because what a new one costs is more than a call; and it does not ask for
// compression, which would hold streams back.
func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            socket.Dialer(dialer.DialContext),
		ForceAttemptHTTP2:      true,
		MaxIdleConns:           4096,
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        90 * time.Second,
		TLSHandshakeTimeout:    10 * time.Second,
		ExpectContinueTimeout:  time.Second,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        16 << 10,
		ReadBufferSize:         16 << 10,
	}
}
