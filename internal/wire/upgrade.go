package wire

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"

	"github.com/cayhq/cay"
)

// Upgrade sends r, a GET without a body, and upgrades its connection to
// UpgradeStream. ctx bounds the upgrade, not the connection's life. Errors:
// those of Do; unavailable if an intermediary does not let the upgrade through.
func (c *Conn) Upgrade(ctx context.Context, r Request) (*FrameConn, error) {
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", UpgradeStream)
	r.Accept = append(r.Accept, http.StatusSwitchingProtocols)

	var mu sync.Mutex // a second attempt has another connection
	var conn net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		mu.Lock()
		defer mu.Unlock()
		conn = got.Conn
	}})
	hc := upgradable(c.http)
	resp, err := (&Conn{base: c.base, token: c.token, team: c.team, http: hc}).Do(traced, r)
	if err != nil {
		return nil, err
	}
	body := resp.Body
	if b, ok := body.(releasing); ok {
		b.src.release()
		body = b.ReadCloser
	}
	rw, ok := body.(io.ReadWriteCloser)
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != UpgradeStream || !ok {
		resp.Body.Close() // of no use
		return nil, cay.Errorf(cay.Unavailable, "%s answered %q instead of an upgrade of the connection", c.base, resp.Status).
			WithHint("connect to the daemon directly; a proxy in between may not let upgrades through")
	}
	mu.Lock()
	defer mu.Unlock()
	return NewFrameConn(rw, conn), nil
}

// upgradable returns a client like hc with HTTP/1.1, the only version whose
// connections can be upgraded, and a connection for each request.
func upgradable(hc *http.Client) *http.Client {
	out := *hc
	out.Timeout = 0 // it would end the connection
	rt := hc.Transport
	if rt == nil {
		rt = http.DefaultTransport
	}
	t, ok := rt.(*http.Transport)
	if !ok {
		return &out
	}
	t = t.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.ForceAttemptHTTP2 = false
	t.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	if t.TLSClientConfig != nil {
		t.TLSClientConfig.NextProtos = nil
	}
	t.DisableKeepAlives = true // nothing stays behind of a request that failed
	out.Transport = t
	return &out
}
