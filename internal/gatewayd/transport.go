package gatewayd

import (
	"net"
	"net/http"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/socket"
	"github.com/cayhq/cay/internal/gatewayd/upstream"
)

// newClient returns the client for providers.
func newClient() *upstream.Client { return upstream.New(newTransport()) }

// newTransport returns the transport for providers over HTTP/2 and through proxies; other
// connections use its settings. It keeps many idle connections, because a new connection
// costs more than a call, and it does not request compression, which would delay streams.
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
