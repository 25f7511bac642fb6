package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/sandbox"
)

const (
	dnsTimeout = 5 * time.Second  // for one answer of one upstream server
	dnsIdle    = 30 * time.Second // a guest's DNS connection without queries ends
	dnsUDPSize = 1232             // bytes; the common EDNS size that does not fragment
)

// Resolver answers guests' DNS queries by asking the host's name servers. One
// serves all links.
type Resolver struct {
	servers []string // "host:port"
}

// NewResolver returns a Resolver that asks servers ("host:port") in turn, or, if
// none are given, those of /etc/resolv.conf.
func NewResolver(servers ...string) (*Resolver, error) {
	if len(servers) == 0 {
		conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the host's name servers: %w", err)
		}
		if conf != nil {
			for _, s := range conf.Servers {
				servers = append(servers, net.JoinHostPort(s, conf.Port))
			}
		}
	}
	return &Resolver{servers: servers}, nil
}

// exchange asks the upstream servers in turn and returns the first answer.
func (r *Resolver) exchange(ctx context.Context, network string, q *dns.Msg) (*dns.Msg, error) {
	err := errors.New("the host has no name server")
	for _, server := range r.servers {
		client := dns.Client{Net: network, Timeout: dnsTimeout, UDPSize: dns.MaxMsgSize}
		var answer *dns.Msg
		answer, _, err = client.ExchangeContext(ctx, q, server)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// answer returns the packed answer to a packed query, or nil for what is not a
// query. limit is the largest answer in bytes; a larger one is truncated.
func (l *Link) answer(ctx context.Context, network string, query []byte, limit int) []byte {
	var q dns.Msg
	if q.Unpack(query) != nil || q.Response || q.Opcode != dns.OpcodeQuery || len(q.Question) != 1 {
		return nil
	}
	reply := func(code int) *dns.Msg { return new(dns.Msg).SetRcode(&q, code) }
	var a *dns.Msg
	switch {
	case l.policy.Load().Mode != sandbox.AllowAll:
		a = reply(dns.RcodeRefused)
	default:
		var err error
		if a, err = l.cfg.Resolver.exchange(ctx, network, &q); err != nil {
			l.log.DebugContext(ctx, "DNS query failed", "name", q.Question[0].Name, "error", err)
			a = reply(dns.RcodeServerFailure)
		}
	}
	a.Id = q.Id
	a.Truncate(limit)
	packed, err := a.Pack()
	if err != nil {
		packed, err = reply(dns.RcodeServerFailure).Pack()
		if err != nil {
			return nil
		}
	}
	return packed
}

// serveDNSPackets answers one UDP flow of the guest to the gateway, in order.
// Guests ask from many source ports, so flows run side by side.
func (l *Link) serveDNSPackets(ctx context.Context, conn net.Conn) {
	buf := make([]byte, dns.MinMsgSize<<3)
	for {
		if conn.SetReadDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		limit := dns.MinMsgSize
		var q dns.Msg
		if q.Unpack(buf[:n]) == nil {
			if opt := q.IsEdns0(); opt != nil {
				limit = max(limit, min(int(opt.UDPSize()), dnsUDPSize))
			}
		}
		if a := l.answer(ctx, "udp", buf[:n], limit); a != nil {
			if _, err := conn.Write(a); err != nil {
				return
			}
		}
	}
}

// serveDNSStream answers one TCP connection of the guest to the gateway: each
// message is preceded by its length in two bytes (RFC 1035, 4.2.2).
func (l *Link) serveDNSStream(ctx context.Context, conn net.Conn) {
	for {
		if conn.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		a := l.answer(ctx, "tcp", query, dns.MaxMsgSize)
		if a == nil {
			return
		}
		binary.BigEndian.PutUint16(size[:], uint16(len(a)))
		if _, err := conn.Write(append(size[:], a...)); err != nil {
			return
		}
	}
}
