package networktest

import (
	"net"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// Query is a question the DNS server was asked.
type Query struct {
	Name string // lower case, without the final dot
	Type string // A, AAAA, ...
}

// answer has the records of a name; a name in place of an address is a CNAME.
type answer struct {
	ttl  uint32
	next func(qtype uint16) []string
}

// SetName makes the DNS server answer with addresses, or with an alias. name may begin
// with "*." for all names below. Without answers the name does not exist.
func (n *Internet) SetName(name string, to ...string) {
	n.setAnswer(name, answer{300, func(uint16) []string { return to }})
}

// Rebind makes the answers to a name change, with a time to live of 0: each query for an
// IPv4 address gets the next answer, and later queries get the last answer.
func (n *Internet) Rebind(name string, answers ...string) {
	i := -1
	n.setAnswer(name, answer{0, func(qtype uint16) []string { // called with mu held
		if qtype != dns.TypeA {
			return nil
		}
		i = min(i+1, len(answers)-1)
		return answers[i : i+1]
	}})
}

func (n *Internet) setAnswer(name string, a answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.names[name] = a
}

// lookup returns the answer to a name.
func (n *Internet) lookupLocked(name string) (answer, bool) {
	if a, ok := n.names[name]; ok {
		return a, true
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			return answer{}, false
		}
		if a, ok := n.names["*."+parent]; ok {
			return a, true
		}
		rest = parent
	}
}

func (n *Internet) serveDNS() {
	udp, tcp := n.listenBoth()
	n.nameserver = tcp.Addr().String()
	for _, s := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		s.Handler = dns.HandlerFunc(n.handleDNS)
		n.wg.Go(func() {
			if err := s.ActivateAndServe(); err != nil {
				n.violate("the DNS server: " + err.Error())
			}
		})
		<-started
		n.t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				n.t.Error(err)
			}
		})
	}
}

// listenBoth takes one port for both protocols.
func (n *Internet) listenBoth() (net.PacketConn, net.Listener) {
	var err error
	for range 20 {
		var tcp net.Listener
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			break
		}
		var udp net.PacketConn
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			return udp, tcp
		}
		tcp.Close() // the port is taken
	}
	n.t.Fatal(err)
	return nil, nil
}

func (n *Internet) handleDNS(w dns.ResponseWriter, q *dns.Msg) {
	a := new(dns.Msg).SetReply(q)
	if len(q.Question) == 1 {
		n.resolve(a, q.Question[0])
	} else {
		a.Rcode = dns.RcodeFormatError
	}
	_ = w.WriteMsg(a) // the client may have left
}

func (n *Internet) resolve(a *dns.Msg, q dns.Question) {
	name := strings.ToLower(strings.TrimSuffix(q.Name, "."))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queries = append(n.queries, Query{name, dns.TypeToString[q.Qtype]})
	owner := q.Name
	for range 8 {
		found, ok := n.lookupLocked(name)
		if !ok {
			a.Rcode = dns.RcodeNameError
			return
		}
		if q.Qtype != dns.TypeA && q.Qtype != dns.TypeAAAA {
			return
		}
		name = ""
		for _, to := range found.next(q.Qtype) {
			head := dns.RR_Header{Name: owner, Class: dns.ClassINET, Ttl: found.ttl}
			ip, err := netip.ParseAddr(to)
			switch {
			case err != nil:
				head.Rrtype = dns.TypeCNAME
				name = to
				a.Answer = append(a.Answer, &dns.CNAME{Hdr: head, Target: dns.Fqdn(to)})
			case ip.Is4() && q.Qtype == dns.TypeA:
				head.Rrtype = dns.TypeA
				a.Answer = append(a.Answer, &dns.A{Hdr: head, A: ip.AsSlice()})
			case ip.Is6() && q.Qtype == dns.TypeAAAA:
				head.Rrtype = dns.TypeAAAA
				a.Answer = append(a.Answer, &dns.AAAA{Hdr: head, AAAA: ip.AsSlice()})
			}
		}
		if name == "" {
			return
		}
		owner = dns.Fqdn(name)
	}
}
