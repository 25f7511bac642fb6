package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/cayhq/cay"
)

// Placeholder is the address that guests are told for a name whose own address they
// cannot use: a name that only the host's proxy can resolve, or that is on the host's
// loopback where the operator allows it. The address is in a range that is never routed
// (RFC 2544); a connection to it is read to find its name.
var Placeholder = netip.AddrFrom4([4]byte{198, 18, 53, 80})

const (
	maxProxyHead    = 64 << 10 // bytes of a proxy's answer
	maxProxyAddrs   = 64       // remembered, to keep guests from them
	proxyResolution = 5 * time.Second
)

// upstream is the host's own way out through an HTTP or HTTPS proxy, as described by
// HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
type upstream struct {
	choose func(*url.URL) (*url.URL, error)
	tls    *tls.Config
	dialer net.Dialer

	mu    sync.Mutex // guards addrs
	addrs []netip.AddrPort
}

// newUpstream returns nil if the host has no proxy.
func newUpstream(cfg EgressConfig) (*upstream, error) {
	c := cfg.UpstreamProxy
	if c == nil || c.HTTPProxy == "" && c.HTTPSProxy == "" {
		return nil, nil
	}
	u := &upstream{choose: c.ProxyFunc(), tls: &tls.Config{RootCAs: cfg.Roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}
	for _, v := range []struct{ name, text string }{{"HTTPS_PROXY", c.HTTPSProxy}, {"HTTP_PROXY", c.HTTPProxy}} {
		if v.text == "" {
			continue
		}
		// As the library reads it, without a bypass.
		proxy, err := (&httpproxy.Config{HTTPSProxy: v.text}).ProxyFunc()(&url.URL{Scheme: "https", Host: "example.com"})
		if err != nil || proxy == nil || proxy.Scheme != "http" && proxy.Scheme != "https" || proxy.Hostname() == "" {
			return nil, cay.Errorf(cay.Invalid, "the environment's %s is not the URL of an HTTP or HTTPS proxy", v.name).
				WithHint("write for example http://proxy.example.com:3128, or unset it")
		}
		u.learn(proxy)
	}
	return u, nil
}

// learn resolves the proxy's name once, so that guests can be kept from its address
// before the first use. If the name does not resolve yet, a later use learns it.
func (u *upstream) learn(proxy *url.URL) {
	ctx, cancel := context.WithTimeout(context.Background(), proxyResolution)
	defer cancel()
	port, err := strconv.ParseUint(proxyPort(proxy), 10, 16)
	if err != nil {
		return // dialling it will say so
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", proxy.Hostname())
	if err != nil {
		return
	}
	for _, ip := range ips {
		u.remember(netip.AddrPortFrom(ip.Unmap(), uint16(port)))
	}
}

func (u *upstream) remember(addr netip.AddrPort) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if addr.IsValid() && !slices.Contains(u.addrs, addr) && len(u.addrs) < maxProxyAddrs {
		u.addrs = append(u.addrs, addr)
	}
}

// at reports whether the proxy itself is at dst.
func (u *upstream) at(dst netip.AddrPort) bool {
	if u == nil {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Contains(u.addrs, netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port()))
}

func proxyPort(proxy *url.URL) string {
	if p := proxy.Port(); p != "" {
		return p
	}
	if proxy.Scheme == "https" {
		return "443"
	}
	return "80"
}

// proxyFor returns the proxy for host, a name or an address, or nil if host is reached
// directly. Every port but 80 counts as HTTPS.
func (u *upstream) proxyFor(host string, port uint16) (*url.URL, error) {
	if u == nil {
		return nil, nil
	}
	scheme := "https"
	if port == 80 {
		scheme = "http"
	}
	proxy, err := u.choose(&url.URL{Scheme: scheme, Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
	if err != nil {
		return nil, errors.New("the host's proxy settings are wrong") // the cause may quote a password
	}
	return proxy, nil
}

// mayNameUnresolved reports whether the proxy may resolve a name that the daemon cannot
// resolve. Names that are local by their form may not be passed on, because the proxy
// would resolve them in its own local network.
func mayNameUnresolved(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return false
	}
	for _, suffix := range []string{".localhost", ".local", ".internal", ".home.arpa"} {
		if strings.HasSuffix(name, suffix) {
			return false
		}
	}
	return true
}

// connect asks the proxy for a connection to target, a "host:port". bind prepares the
// connection to the proxy.
func (u *upstream) connect(ctx context.Context, bind func(net.Conn) (net.Conn, error), proxy *url.URL, target string) (_ net.Conn, err error) {
	conn, err := u.dialer.DialContext(ctx, "tcp", net.JoinHostPort(proxy.Hostname(), proxyPort(proxy)))
	if err == nil {
		conn, err = bind(conn)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the host's proxy: %w", err)
	}
	if a, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		u.remember(netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	raw := conn
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			raw.Close()
		}
	}()
	if proxy.Scheme == "https" {
		c := u.tls.Clone()
		c.ServerName = proxy.Hostname()
		conn = tls.Client(conn, c)
	}
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{}}
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return nil, fmt.Errorf("ask the host's proxy: %w", err)
	}
	head := &io.LimitedReader{R: conn, N: maxProxyHead}
	r := bufio.NewReader(head)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the host's proxy: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		return nil, cay.Errorf(cay.Unavailable, "the host's proxy refuses to connect to %s: it says %q", target, resp.Status)
	}
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, fmt.Errorf("read behind the answer of the host's proxy: %w", err)
	}
	return replay(conn, early), nil
}

// replay returns a connection that reads first, then conn.
func replay(conn net.Conn, first []byte) net.Conn {
	if len(first) == 0 {
		return conn
	}
	return &replayed{Conn: conn, first: bytes.NewReader(first)}
}

type replayed struct {
	net.Conn
	first *bytes.Reader
}

func (c *replayed) Read(b []byte) (int, error) {
	if c.first.Len() > 0 {
		return c.first.Read(b)
	}
	return c.Conn.Read(b)
}

func (c *replayed) await(idle func()) {
	if c.first.Len() == 0 {
		await(c.Conn, idle)
	}
}

// CloseWrite half-closes the connection, if it can.
func (c *replayed) CloseWrite() error { return closeWrite(c.Conn) }

func (c *replayed) reset() { reset(c.Conn) }
