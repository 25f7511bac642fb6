package network

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
)

const (
	dnsIdle    = 30 * time.Second // a guest's DNS connection without queries ends
	dnsUDPSize = 1232             // bytes of an answer; the common EDNS size that does not fragment
	maxQuery   = 4096             // bytes of a query
	maxQueries = 256              // of a link, under way at the same time

	placeholderTTL = 30 // seconds

	handledLookup = 2 * time.Second // for a name that the egress handler is asked about
)

// qtypes are the types that guests may ask for, besides the types that are answered here.
// Other types serve no lookup of names, but carry other data: zone transfers, ANY, NULL,
// experiments.
var qtypes = []uint16{
	dns.TypeCNAME, dns.TypeDNAME, dns.TypeNS, dns.TypeSOA, dns.TypePTR, dns.TypeMX, dns.TypeTXT, dns.TypeSRV,
	dns.TypeNAPTR, dns.TypeCAA, dns.TypeDS, dns.TypeDNSKEY, dns.TypeTLSA, dns.TypeSSHFP, dns.TypeURI,
}

// answer returns the packed answer to a packed query to dst, or nil if query is no valid
// query. limit is the largest answer in bytes; a larger answer is truncated.
func (l *Link) answer(ctx context.Context, dst netip.AddrPort, query []byte, datagram bool) []byte {
	var q dns.Msg
	if q.Unpack(query) != nil || q.Response {
		return nil
	}
	limit := math.MaxUint16
	if datagram {
		limit = dns.MinMsgSize
	}
	a := new(dns.Msg).SetReply(&q)
	a.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		// Nothing of the guest's options goes any further.
		a.SetEdns0(dnsUDPSize, false)
		if datagram {
			limit = max(limit, min(int(opt.UDPSize()), dnsUDPSize))
		}
		if opt.Version() != 0 {
			a.Rcode = dns.RcodeBadVers
			return pack(a, limit)
		}
	}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		a.Rcode = dns.RcodeNotImplemented
	case len(q.Question) != 1:
		a.Rcode = dns.RcodeFormatError
	default:
		l.fill(ctx, a, dst)
	}
	return pack(a, limit)
}

func pack(a *dns.Msg, limit int) []byte {
	a.Truncate(limit)
	packed, err := a.Pack()
	if err != nil {
		a.Answer, a.Rcode = nil, dns.RcodeServerFailure
		if packed, err = a.Pack(); err != nil {
			return nil
		}
	}
	return packed
}

// fill answers the question in a.
func (l *Link) fill(ctx context.Context, a *dns.Msg, dst netip.AddrPort) {
	question := a.Question[0]
	name, err := policy.CleanName(question.Name)
	if err != nil {
		l.refuseQuery(a, dns.RcodeRefused, dst, "", policy.Decision{Rule: "bad name", Reason: err.Error()})
		return
	}
	if d, rcode := l.byQuery(name, question); d.Verdict != policy.Allow {
		l.refuseQuery(a, rcode, dst, name, d)
		return
	}
	unresolved := l.policy.Load().Query(name).Verdict != policy.Allow // and for the egress handler alone
	switch question.Qtype {
	case dns.TypeAAAA, dns.TypeHTTPS, dns.TypeSVCB:
		// There is no IPv6, and guests are not given the keys for encrypted hellos.
		return
	case dns.TypeA:
		if unresolved {
			a.Answer = append(a.Answer, addressRecord(a, Placeholder, placeholderTTL))
			return
		}
		err = l.fillAddresses(ctx, a, dst, name)
	default:
		if unresolved {
			return
		}
		err = l.forward(ctx, a, name)
	}
	if err != nil {
		l.log.DebugContext(ctx, "DNS query failed", "name", name, "error", err)
		a.Rcode, a.Answer = dns.RcodeServerFailure, nil
		explainDNS(a, dns.ExtendedErrorCodeNetworkError, "the name servers of the host do not answer")
	}
}

// byQuery decides whether a question may be answered, and returns the response code.
// Names that are not allowed get NXDOMAIN, because most programs take REFUSED as
// temporary and try again and again.
func (l *Link) byQuery(name string, q dns.Question) (policy.Decision, int) {
	if l.meter.exhausted() {
		return l.totalDenied(), dns.RcodeRefused
	}
	p := l.policy.Load()
	d := p.Query(name)
	if d.Verdict != policy.Allow && p.HandlesName(name) {
		return policy.Decision{Verdict: policy.Allow, Rule: ruleHandled}, dns.RcodeSuccess
	}
	switch {
	case d.Verdict != policy.Allow && p.Above(name):
		return d, dns.RcodeSuccess // and no address
	case d.Verdict != policy.Allow:
		return d, dns.RcodeNameError
	case q.Qclass != dns.ClassINET:
		return policy.Decision{Rule: "blocked query", Reason: fmt.Sprintf("%q was asked for in a class other than that of the internet", name)}, dns.RcodeRefused
	case q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA || q.Qtype == dns.TypeHTTPS || q.Qtype == dns.TypeSVCB:
	case !slices.Contains(qtypes, q.Qtype):
		return policy.Decision{Rule: "blocked query", Reason: fmt.Sprintf("records of the type %s are not looked up for sandboxes", dns.Type(q.Qtype))}, dns.RcodeRefused
	case q.Qtype == dns.TypePTR:
		// The names of machines in the operator's network are hidden from guests.
		if ip, ok := reverse(name); ok {
			if d := l.egress.blockedAddr(netip.AddrPortFrom(ip, 0)); d.Verdict != policy.Allow {
				return d, dns.RcodeRefused
			}
		}
	}
	return d, dns.RcodeSuccess
}

// reverse returns the address that a name below in-addr.arpa or ip6.arpa encodes.
func reverse(name string) (netip.Addr, bool) {
	if nibbles, ok := strings.CutSuffix(name, ".ip6.arpa"); ok {
		digits := strings.Split(nibbles, ".")
		slices.Reverse(digits)
		raw, err := hex.DecodeString(strings.Join(digits, ""))
		if err != nil || len(raw) != net.IPv6len {
			return netip.Addr{}, false
		}
		return netip.AddrFrom16([net.IPv6len]byte(raw)), true
	}
	labels, ok := strings.CutSuffix(name, ".in-addr.arpa")
	if !ok {
		return netip.Addr{}, false
	}
	parts := strings.Split(labels, ".")
	slices.Reverse(parts)
	ip, err := netip.ParseAddr(strings.Join(parts, "."))
	return ip, err == nil
}

// fillAddresses answers a question for IPv4 addresses with the addresses that a guest may
// reach, whatever its policy: a name that resolves to the host's own network is treated
// as a name without addresses (DNS rebinding).
func (l *Link) fillAddresses(ctx context.Context, a *dns.Msg, dst netip.AddrPort, name string) error {
	handled := l.policy.Load().HandlesName(name)
	if handled { // whether it has an address matters little
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, handledLookup)
		defer cancel()
	}
	got, err := l.lookup(ctx, name)
	if len(got.addrs) == 0 && (handled || l.egress.byProxyAlone(name)) {
		a.Answer = append(a.Answer, addressRecord(a, Placeholder, placeholderTTL))
		return nil
	}
	if err != nil {
		return err
	}
	a.Rcode = got.rcode
	ttl := uint32(math.Ceil(max(1, time.Until(got.expires).Seconds())))
	var blocked policy.Decision
	for _, ip := range got.addrs {
		if d := l.egress.blockedAddr(netip.AddrPortFrom(ip, 0)); d.Verdict != policy.Allow {
			blocked = d
			continue
		}
		if ip.IsLoopback() { // the guest would look for it in itself
			ip = Placeholder
		}
		a.Answer = append(a.Answer, addressRecord(a, ip, ttl))
	}
	if len(a.Answer) == 0 && handled {
		a.Answer = append(a.Answer, addressRecord(a, Placeholder, placeholderTTL))
		return nil
	}
	if blocked.Rule != "" {
		blocked.Reason = fmt.Sprintf("%q resolves to a blocked address: %s", name, blocked.Reason)
		explainDNS(a, dns.ExtendedErrorCodeBlocked, blocked.Reason)
		l.denyQuery(a, dst, name, blocked)
	}
	return nil
}

// lookup is the resolver's, within the sandbox's share of it.
func (l *Link) lookup(ctx context.Context, name string) (answer, error) {
	if a, ok := l.egress.resolver.cached(name); ok {
		return a, nil
	}
	release, err := l.takeLookup(ctx)
	if err != nil {
		return answer{}, err
	}
	defer release()
	return l.egress.resolver.lookup(ctx, name)
}

// takeLookup waits until the sandbox has fewer lookups under way than its share: lookups
// of names whose servers do not answer must not delay the lookups of other sandboxes.
func (l *Link) takeLookup(ctx context.Context) (release func(), err error) {
	select {
	case l.lookups <- struct{}{}:
		return func() { <-l.lookups }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// byProxyAlone reports whether a name that the daemon cannot resolve may be reached
// through the host's proxy.
func (e *Egress) byProxyAlone(name string) bool {
	if e.upstream == nil || !mayNameUnresolved(name) {
		return false
	}
	proxy, err := e.upstream.proxyFor(name, 443)
	return err == nil && proxy != nil
}

func addressRecord(a *dns.Msg, ip netip.Addr, ttl uint32) dns.RR {
	return &dns.A{
		Hdr: dns.RR_Header{Name: a.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: ttl},
		A:   net.IP(ip.AsSlice()),
	}
}

// forward answers a question of another type with the answer section of the name servers'
// answer, without additional records.
func (l *Link) forward(ctx context.Context, a *dns.Msg, name string) error {
	release, err := l.takeLookup(ctx)
	if err != nil {
		return err
	}
	defer release()
	got, err := l.egress.resolver.exchange(ctx, name, a.Question[0].Qtype)
	if err != nil {
		return err
	}
	a.Rcode = got.Rcode
	for _, rr := range got.Answer {
		switch rr.Header().Rrtype {
		case a.Question[0].Qtype, dns.TypeCNAME, dns.TypeDNAME:
			a.Answer = append(a.Answer, rr)
		}
	}
	return nil
}

// refuseQuery refuses a query, with the reason for the guest's programs and the flow log.
func (l *Link) refuseQuery(a *dns.Msg, rcode int, dst netip.AddrPort, name string, d policy.Decision) {
	a.Rcode = rcode
	explainDNS(a, dns.ExtendedErrorCodeProhibited, d.Rule+": "+d.Reason)
	l.denyQuery(a, dst, name, d)
}

func (l *Link) denyQuery(a *dns.Msg, dst netip.AddrPort, name string, d policy.Decision) {
	// Programs ask for a name in several ways and again.
	if !l.records.repeated("dns " + name + " " + d.Rule) {
		l.deny("dns", dst, name, d)
	}
}

// explainDNS adds an extended DNS error (RFC 8914), if the query supports EDNS.
func explainDNS(a *dns.Msg, code uint16, text string) {
	if opt := a.IsEdns0(); opt != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: text})
	}
}

// serveDNSStream answers a TCP connection of the guest to port 53 of any address: each
// message is preceded by its length in two bytes (RFC 1035, 4.2.2).
func (f *flow) serveDNSStream(conn net.Conn) {
	for {
		if conn.SetDeadline(time.Now().Add(dnsIdle)) != nil {
			return
		}
		a, err := f.answerNext(conn)
		if err != nil {
			return
		}
		if _, err := conn.Write(a); err != nil {
			return
		}
	}
}

var errNoQuery = errors.New("not a DNS query")

// answerNext reads a query and returns the answer, preceded by its length.
func (f *flow) answerNext(conn net.Conn) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > maxQuery {
		return nil, errNoQuery
	}
	query := make([]byte, n)
	if _, err := io.ReadFull(conn, query); err != nil {
		return nil, err
	}
	l := f.link
	select {
	case l.queries <- struct{}{}:
		defer func() { <-l.queries }()
	case <-f.ctx.Done():
		return nil, context.Cause(f.ctx)
	}
	a := l.answer(f.ctx, f.dst, query, false)
	if a == nil {
		return nil, errNoQuery
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...), nil
}
