package upstream

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"
)

// maxHead returns the maximum size in bytes of an answer's head; 1xx answers are
// included.
func (c *Client) maxHead() int64 {
	if n := c.other.MaxResponseHeaderBytes; n > 0 {
		return n
	}
	return 10 << 20
}

// connect returns the most recently used idle connection, or a new one.
func (c *Client) connect(ctx context.Context, h *host) (*conn, error) {
	for {
		c.mu.Lock()
		n := len(h.idle)
		if n == 0 {
			c.mu.Unlock()
			return c.dial(ctx, h)
		}
		cn := h.idle[n-1]
		h.idle[n-1], h.idle = nil, h.idle[:n-1]
		c.idle--
		c.mu.Unlock()
		if cn.open() {
			cn.reused = true
			return cn, nil
		}
		_ = cn.net.Close()
	}
}

func (c *Client) dial(ctx context.Context, h *host) (*conn, error) {
	dial := c.other.DialContext
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	raw, err := dial(ctx, "tcp", h.address)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	if h.scheme == "http" {
		return newConn(c, h, raw, raw), nil
	}
	cfg := new(tls.Config)
	if c.other.TLSClientConfig != nil {
		cfg = c.other.TLSClientConfig.Clone()
	}
	if cfg.ServerName == "" {
		cfg.ServerName = h.name
	}
	cfg.NextProtos = []string{"http/1.1"}
	shaking := ctx
	if d := c.other.TLSHandshakeTimeout; d > 0 {
		var cancel context.CancelFunc
		shaking, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	tc := tls.Client(raw, cfg)
	if err := tc.HandshakeContext(shaking); err != nil {
		_ = raw.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	return newConn(c, h, tc, raw), nil
}

// keep keeps a connection for another call, and reports whether it did.
func (c *Client) keep(cn *conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, h := c.other, cn.host
	if t.DisableKeepAlives || t.MaxIdleConns > 0 && c.idle >= t.MaxIdleConns ||
		len(h.idle) >= max(1, t.MaxIdleConnsPerHost) || c.hosts[h.hostKey] != h {
		return false
	}
	cn.since = time.Now()
	h.idle = append(h.idle, cn)
	c.idle++
	if c.timer == nil && t.IdleConnTimeout > 0 {
		c.timer = time.AfterFunc(t.IdleConnTimeout/2, c.sweep)
	}
	return true
}

// sweep closes connections that were idle too long, or that the other side closed. It
// runs while there are idle connections.
func (c *Client) sweep() {
	old := time.Now().Add(-c.other.IdleConnTimeout)
	c.closeIdle(func(cn *conn) bool { return cn.since.Before(old) || !cn.open() })
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.timer == nil: // stopped meanwhile
	case c.idle > 0:
		c.timer.Reset(c.other.IdleConnTimeout / 2)
	default:
		c.timer = nil
	}
}

// CloseIdleConnections closes all connections that are not in use.
func (c *Client) CloseIdleConnections() {
	c.other.CloseIdleConnections()
	c.closeIdle(func(*conn) bool { return true })
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil && c.idle == 0 {
		c.timer.Stop()
		c.timer = nil
	}
}

func (c *Client) closeIdle(which func(*conn) bool) {
	var gone []*conn
	c.mu.Lock()
	for _, h := range c.hosts {
		n := len(gone)
		h.idle = slices.DeleteFunc(h.idle, func(cn *conn) bool {
			if which(cn) {
				gone = append(gone, cn)
				return true
			}
			return false
		})
		c.idle -= len(gone) - n
	}
	c.mu.Unlock()
	for _, cn := range gone { // closing a TLS connection sends a message, which may take time
		_ = cn.net.Close()
	}
}
