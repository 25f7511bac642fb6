package networktest

import (
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
)

// serveWorld starts the servers of world.go.
func (n *Internet) serveWorld() {
	a := theAuthority()
	n.ServeWeb(API, "api", a.issue(sound, "api.example.com", "alias.example.com", "pinned.example.com", "many.example.com",
		"dead-first.example.com", "both.example.com", "rebind.example.com", "mixed.example.com"))
	n.ServeWeb(Files, "files", a.issue(sound, "files.example.com", "many.example.com"))
	n.ServeWeb(CDN, "cdn", a.issue(sound, "cdn.example.com", "evil.example.net"))
	n.ServeWeb(Other, "other", a.issue(sound, "other.example.org", "*.exfil.example.net", "www.xn--exmple-cua.com"))
	n.ServeWeb(SelfSigned, "selfsigned", a.issue(selfSigned, "selfsigned.example.com"))
	n.ServeWeb(Expired, "expired", a.issue(expired, "expired.example.com"))
	n.ServeWeb(WrongName, "wrongname", a.issue(sound, "another.example.com"))
	n.ServeWeb(DNS, "dns", a.issue(sound, "dns.example.net"))
	n.ServeHTTP(netip.AddrPortFrom(Private, 80), "internal")
	metadata := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, Credentials) })
	n.serveHTTP(netip.AddrPortFrom(Metadata, 80), &http.Server{Handler: metadata}, nil)

	misc := &tls.Config{Certificates: []tls.Certificate{a.issue(sound, "misc.example.com")}}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(Misc, port) }
	n.ServeTCP(at(7), echo)
	n.ServeUDP(at(7))
	n.ServeUDP(at(443))
	n.ServeTCP(at(2222), banner("SSH-2.0-networktest\r\n"))
	n.ServeTCP(at(25), banner("220 misc.example.com ESMTP\r\n"))
	for _, port := range []uint16{465, 8443} {
		n.ServeTCP(at(port), func(c net.Conn) { echo(tls.Server(c, misc)) })
	}
	n.ServeTCP(at(5432), func(c net.Conn) { postgres(c, misc) })
	n.ServeTCP(netip.AddrPortFrom(DNS, 53), echo)
	n.ServeUDP(netip.AddrPortFrom(DNS, 53))
	n.ServeTCP(netip.AddrPortFrom(DNS, 853), echo)
}

func (n *Internet) listen(addr netip.AddrPort) net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.route("tcp", addr, ln.Addr().String())
	return ln
}

func (n *Internet) route(network string, addr netip.AddrPort, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.routes[route{network, addr}] = to
}

// ServeTCP serves connections to addr with handle, which need not close them.
func (n *Internet) ServeTCP(addr netip.AddrPort, handle func(net.Conn)) {
	ln := n.listen(addr)
	n.t.Cleanup(func() { ln.Close() })
	n.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if !n.own(c) {
				return
			}
			n.wg.Go(func() {
				handle(c)
				c.Close()
				n.disown(c)
			})
		}
	})
}

// own makes c end with the Internet.
func (n *Internet) own(c net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		c.Close()
		return false
	}
	n.conns[c] = struct{}{}
	return true
}

func (n *Internet) disown(c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c)
}

// ServeUDP sends each datagram to addr back.
func (n *Internet) ServeUDP(addr netip.AddrPort) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		n.t.Fatal(err)
	}
	n.route("udp", addr, pc.LocalAddr().String())
	n.t.Cleanup(func() { pc.Close() })
	n.wg.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			k, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:k], from) // datagrams may be lost
		}
	})
}

// ServeWeb serves HTTP on port 80 and HTTPS on port 443 of ip: see Handler.
func (n *Internet) ServeWeb(ip netip.Addr, server string, cert tls.Certificate) {
	n.ServeHTTP(netip.AddrPortFrom(ip, 80), server)
	n.serveHTTP(netip.AddrPortFrom(ip, 443), &http.Server{Handler: n.Handler(server)}, &tls.Config{Certificates: []tls.Certificate{cert}})
}

// Serve makes h the server of a new address: HTTP on port 80, HTTPS on port 443 with a
// certificate for names, which the DNS server knows from then on. Requests to h are not
// recorded.
func (n *Internet) Serve(ip netip.Addr, h http.Handler, names ...string) {
	for _, name := range names {
		n.SetName(name, ip.String())
	}
	n.serveHTTP(netip.AddrPortFrom(ip, 80), &http.Server{Handler: h}, nil)
	cert := theAuthority().issue(sound, names...)
	n.serveHTTP(netip.AddrPortFrom(ip, 443), &http.Server{Handler: h}, &tls.Config{Certificates: []tls.Certificate{cert}})
}

// ServeHTTP serves plain HTTP: see Handler.
func (n *Internet) ServeHTTP(addr netip.AddrPort, server string) {
	n.serveHTTP(addr, &http.Server{Handler: n.Handler(server)}, nil)
}

func (n *Internet) serveHTTP(addr netip.AddrPort, s *http.Server, config *tls.Config) {
	ln := n.listen(addr)
	s.ErrorLog = log.New(io.Discard, "", 0) // of clients that leave
	s.TLSConfig = config
	n.t.Cleanup(func() { s.Close() })
	n.wg.Go(func() {
		if config == nil {
			_ = s.Serve(ln) // it ends by Close
		} else {
			_ = s.ServeTLS(ln, "", "")
		}
	})
}

// echo sends back all bytes, and then the end.
func echo(c net.Conn) {
	_, _ = io.Copy(c, c) // however it ends, it ends
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// banner is a server that speaks first and then echoes.
func banner(greeting string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.WriteString(c, greeting); err == nil {
			echo(c)
		}
	}
}

// postgres begins as Postgres does: an SSLRequest, its answer, then TLS.
func postgres(c net.Conn, config *tls.Config) {
	var request [8]byte
	if _, err := io.ReadFull(c, request[:]); err != nil {
		return
	}
	if binary.BigEndian.Uint64(request[:]) != 8<<32|80877103 {
		fmt.Fprintf(c, "Eno SSLRequest: %x", request)
		return
	}
	if _, err := c.Write([]byte{'S'}); err == nil {
		echo(tls.Server(c, config))
	}
}
