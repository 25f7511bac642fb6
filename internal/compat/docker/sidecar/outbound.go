package sidecar

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/sandbox"
)

// unroutable is dialled by nobody: connecting to the broadcast address fails at once.
// It is in 0.0.0.0/0, the range of workerd's mappings for all addresses.
const unroutable = "255.255.255.255"

// Outbound asks workerd about a connection that the container opens: a CONNECT to the
// port of PUT /egress, with X-Tls-Sni or X-Hostname. By 200 workerd wants the HTTP of
// the connection, inside TLS if there is any. By 202 it wants the bytes, or it has no
// mapping: then it dials the address that it was asked about, from the host and past
// the daemon's policy. So an address is named to workerd only if the policy lets the
// container reach it, or if workerd was told that there is no internet, because it
// dials nothing then. In all other cases Outbound names an address that nobody reaches.
//
// It is a sandbox.OutboundHandler.
func (p *Proxy) Outbound(ctx context.Context, o sandbox.Outbound) (sandbox.Handling, func(net.Conn)) {
	e, port := p.state()
	for _, dst := range destinations(e, o) {
		up, status, err := p.ask(ctx, port, dst, o)
		if err != nil {
			return sandbox.HandleRefuse, nil
		}
		as := sandbox.HandleRaw
		switch {
		case status == http.StatusOK && o.Protocol == "tls":
			as = sandbox.HandlePlain
		case status == http.StatusOK:
		case status == http.StatusAccepted && o.Name == "" && !strings.HasPrefix(dst, unroutable):
		case status == http.StatusAccepted:
			up.Close()
			continue
		default:
			up.Close()
			return sandbox.HandleRefuse, nil
		}
		return as, func(down net.Conn) {
			if down == nil {
				up.Close()
				return
			}
			Join(p.ctx, down, up)
		}
	}
	return sandbox.HandlePass, nil
}

// destinations are the addresses that workerd is asked about, in their order, until it
// wants the connection.
func destinations(e Egress, o sandbox.Outbound) []string {
	addr, err := netip.ParseAddrPort(o.Address)
	if err != nil {
		return nil
	}
	nobody := net.JoinHostPort(unroutable, strconv.Itoa(int(addr.Port())))
	var all []string
	if !e.Offline && o.Protocol != "tcp" {
		all = append(all, nobody)
	}
	// Mappings of addresses have workerd ask for all names.
	if e.Offline || o.Allowed && slices.Contains(e.Names, "*") {
		all = append(all, o.Address)
	}
	return all
}

// ask opens a connection to workerd for one of the container's, and returns the status
// of its answer.
func (p *Proxy) ask(ctx context.Context, port int, dst string, o sandbox.Outbound) (net.Conn, int, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, 0, err
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	var name string
	switch {
	case o.Name == "":
	case o.Protocol == "tls":
		name = "X-Tls-Sni: " + o.Name + "\r\n"
	default:
		name = "X-Hostname: " + o.Name + "\r\n"
	}
	r := bufio.NewReader(conn)
	_, err = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n%s\r\n", dst, name)
	var resp *http.Response
	if err == nil {
		resp, err = http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	}
	if err != nil {
		conn.Close()
		return nil, 0, err
	}
	return &peeked{conn, r}, resp.StatusCode, nil
}
