// Package upstream is the gateway's client of providers: an http.RoundTripper for
// the usual call, by the goroutine that makes it.
//
// A connection of net/http's Transport has two goroutines, and every call is handed
// from its own to one of them, to the other and back, with a select at each step.
// On the way of a small call through the gateway that is a fifth of all CPU time.
// Here the caller writes the request and reads the answer itself. What reads the
// answer is net/http's ReadResponse; only what is around it is ours: connections
// that are kept, their bounds, and cancellation.
//
// What is rare, or another protocol, goes to a Transport as before: HTTP/2, which
// most hosted providers choose, proxies, and requests that have no length, or are large
// and not in memory. Whether a server with TLS chooses HTTP/2 is seen by the first
// answer, which always comes by the Transport.
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
	// maxBody is how large a request may be, in bytes, to be written before its
	// answer is looked for. What a socket takes at once is more. See writing for
	// larger ones.
	maxBody = 64 << 10
	// maxHosts is how many hosts are remembered.
	maxHosts = 1024
)

// Client is an http.RoundTripper. Make it with New. Its methods may be called
// concurrently.
type Client struct {
	other *http.Transport

	mu    sync.Mutex // guards what follows, and idle of each host
	hosts map[hostKey]*host
	idle  int         // connections
	timer *time.Timer // set while there are some: closes those that were idle for long
}

var _ http.RoundTripper = (*Client)(nil)

type hostKey struct{ scheme, host string }

// host is a server.
type host struct {
	hostKey
	address string // to dial
	name    string // of its certificate
	proxied bool
	plain   atomic.Bool // it is known to speak HTTP/1.1
	idle    []*conn     // the latest is last
}

// New returns a client with a transport's settings: how to dial, TLS, proxies,
// limits, and how long connections are kept. Its Proxy is asked once for each host.
// What the client does not do itself it has t do, which must not be used by others.
func New(t *http.Transport) *Client {
	return &Client{other: t, hosts: make(map[hostKey]*host)}
}

// RoundTrip implements http.RoundTripper. The context of r bounds all of the call,
// until the end of the answer's body. As with a Transport, a request is sent a
// second time only if a kept connection turned out to be closed before anything of it
// was written, or if it may be sent twice.
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
		if request == nil { // a body that is read is on its way
			if request, err = encode(r); err != nil {
				_ = cn.net.Close()
				return nil, err
			}
			if !large(r) { // else it is who writes it that keeps it
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

// host returns that of a request, nil if it is none for us.
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
			return nil // the Transport spells it for DNS
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
		h.proxied = err != nil || u != nil // the Transport says what is wrong
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
	if len(c.hosts) < maxHosts { // else it is only for this call, and its connection not kept
		c.hosts[key] = h
	}
	return h
}

// usual reports whether a request is one that this client sends itself.
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
