// Package upstream is the gateway's HTTP client for providers: an http.RoundTripper that
// makes the usual calls in the caller's goroutine.
//
// A connection of net/http's Transport has two goroutines, and every call is handed from
// its own goroutine to the writing one, to the reading one and back, with a select at
// each step. With a Transport in place of this package a small call through the gateway
// took 1.45 times the CPU time of a reverse proxy beside it, with this package 1.21 times:
// the row plain of cay-bench gateway, median of six samples each, go1.26.8. For streams it
// was 1.44 and 1.34. At a Go upgrade, check with newClient returning newTransport whether
// plain still gains 15 %; otherwise delete the package.
//
// Here the caller's goroutine writes the request and reads the answer itself. Answers are
// still parsed by net/http's ReadResponse; this package only implements the pool of idle
// connections, its limits, and cancellation.
//
// Rare cases and other protocols are left to a Transport: HTTP/2, which most hosted
// providers choose, proxies, and requests of unknown length, or large ones that are not
// in memory. The first answer of a TLS server, which always comes through the Transport,
// shows whether the server chooses HTTP/2.
//
// The package knows nothing of models, providers or the engine.
package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const (
	// maxBody is the maximum size in bytes of a request that is written completely before
	// its answer is read. A socket's buffer takes more than that at once. For larger
	// requests see writing.
	maxBody = 64 << 10
	// maxHosts is the maximum number of remembered hosts.
	maxHosts = 1024
)

// Client is an http.RoundTripper. New creates it. Its methods may be called concurrently.
type Client struct {
	other *http.Transport

	mu    sync.Mutex // guards the following fields, and idle of each host
	hosts map[hostKey]*host
	idle  int         // connections
	timer *time.Timer // set while connections are idle: closes expired ones
}

var _ http.RoundTripper = (*Client)(nil)

type hostKey struct{ scheme, host string }

// host is a server's state.
type host struct {
	hostKey
	address string // to dial
	name    string // name in its certificate
	proxied bool
	plain   atomic.Bool // the server is known to speak HTTP/1.1
	idle    []*conn     // the latest is last
}

// New returns a client with the settings of t: dialing, TLS, proxies, limits, and idle
// timeouts. t.Proxy is called once per host. t handles the requests that the client does
// not send itself, and must have no other users.
func New(t *http.Transport) *Client {
	return &Client{other: t, hosts: make(map[hostKey]*host)}
}

// RoundTrip implements http.RoundTripper. The context of r bounds the whole call, until
// the end of the answer's body. Like a Transport, RoundTrip sends a request a second time
// only if a reused connection turned out to be closed before any byte was written, or if
// the request is a GET or has an Idempotency-Key and no byte of an answer was read.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	h := c.host(r)
	if h == nil || h.proxied || !usual(r) {
		return c.other.RoundTrip(r)
	}
	if !h.plain.Load() {
		resp, err := c.other.RoundTrip(r)
		if err == nil && resp.ProtoMajor == 1 {
			h.plain.Store(true)
		}
		return resp, err
	}
	if err := r.Context().Err(); err != nil {
		closeBody(r)
		return nil, context.Cause(r.Context())
	}
	var request *[]byte
	for {
		cn, err := c.connect(r.Context(), h)
		if err != nil {
			closeBody(r)
			return nil, err
		}
		if request == nil { // only once: encode consumes the body
			if request, err = encode(r); err != nil {
				_ = cn.net.Close()
				return nil, err
			}
			if !large(r) { // otherwise the writing goroutine keeps the buffer
				defer keep(request)
			}
		}
		resp, err := cn.exchange(r, request)
		if err == nil || !cn.again(r) {
			return resp, err
		}
		if large(r) {
			if r.GetBody == nil {
				return nil, err
			}
			anew := *r
			if anew.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
			r, request = &anew, nil
		}
	}
}

// host returns the host of a request, nil if the Transport must handle it.
func (c *Client) host(r *http.Request) *host {
	if r.URL == nil || r.URL.Host == "" || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return nil
	}
	key := hostKey{r.URL.Scheme, r.URL.Host}
	c.mu.Lock()
	h := c.hosts[key]
	c.mu.Unlock()
	if h != nil {
		return h
	}
	h = &host{hostKey: key, name: r.URL.Hostname()}
	for i := range len(h.name) {
		if h.name[i] >= utf8.RuneSelf {
			return nil // the Transport converts the name for DNS
		}
	}
	port := r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[key.scheme]
	}
	h.address = net.JoinHostPort(h.name, port)
	h.plain.Store(key.scheme == "http")
	if c.other.Proxy != nil {
		u, err := c.other.Proxy(r)
		h.proxied = err != nil || u != nil // the Transport reports the error
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.hosts[key]; known != nil {
		return known
	}
	if len(c.hosts) >= maxHosts {
		for key, old := range c.hosts {
			if len(old.idle) == 0 {
				delete(c.hosts, key)
			}
		}
	}
	if len(c.hosts) < maxHosts { // otherwise the host serves only this call, and its connection is not kept
		c.hosts[key] = h
	}
	return h
}

// usual reports whether this client sends a request itself.
func usual(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet:
		if r.ContentLength != 0 || r.Body != nil && r.Body != http.NoBody {
			return false
		}
	case http.MethodPost:
		if r.ContentLength <= 0 || r.Body == nil {
			return false
		}
		if _, ok := r.Body.(io.WriterTo); !ok && large(r) {
			return false
		}
	default:
		return false
	}
	if r.Close || len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 {
		return false
	}
	h := r.Header
	for _, name := range [...]string{"Connection", "Expect", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		if h[name] != nil {
			return false
		}
	}
	return true
}
