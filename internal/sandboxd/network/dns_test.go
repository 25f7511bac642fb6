package network

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/sandbox"
)

// ede returns the extended DNS error of an answer.
func ede(a *dns.Msg) (code uint16, text string) {
	opt := a.IsEdns0()
	if opt == nil {
		return 0, ""
	}
	for _, o := range opt.Option {
		if e, ok := o.(*dns.EDNS0_EDE); ok {
			return e.InfoCode, e.ExtraText
		}
	}
	return 0, ""
}

func withEDNS(q *dns.Msg) { q.SetEdns0(1232, false) }

func TestDNS(t *testing.T) {
	t.Parallel()
	allowed := custom("*.example.com")
	open := sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"93.184.0.0/24"}}
	for _, tt := range []struct {
		name   string
		policy sandbox.Network
		server string
		ask    string
		qtype  uint16
		rcode  int
		addrs  []string
		rule   string // of the denial, if the query is denied
		says   string // the extended error
		silent bool   // nothing may go to the name servers
	}{
		{"allowed", allowed, "100.64.0.1:53", "api.example.com", dns.TypeA, dns.RcodeSuccess, []string{"93.184.0.10"}, "", "", false},
		{"the case is kept", allowed, "100.64.0.1:53", "aPi.eXample.com", dns.TypeA, dns.RcodeSuccess, []string{"93.184.0.10"}, "", "", false},
		{"any server is ours", allowed, "8.8.8.8:53", "api.example.com", dns.TypeA, dns.RcodeSuccess, []string{"93.184.0.10"}, "", "", false},
		{"a blocked server is ours", allowed, "10.0.0.53:53", "alias.example.com", dns.TypeA, dns.RcodeSuccess, []string{"93.184.0.10"}, "", "", false},
		{"N5 other name", allowed, "100.64.0.1:53", "mfrggzdfmztwq2lk.exfil.example.net", dns.TypeA, dns.RcodeNameError, nil, "not in allow", "not in allow", true},
		{"N5 other name, text", allowed, "1.1.1.1:53", "mfrggzdfmztwq2lk.exfil.example.net", dns.TypeTXT, dns.RcodeNameError, nil, "not in allow", "not in allow", true},
		{"N5 other name, IPv6", allowed, "1.1.1.1:53", "a.exfil.example.net", dns.TypeAAAA, dns.RcodeNameError, nil, "not in allow", "not in allow", true},
		{"above an allowed name", allowed, "100.64.0.1:53", "example.com", dns.TypeA, dns.RcodeSuccess, nil, "not in allow", "not in allow", true},
		{"deny-all", denyAll(), "100.64.0.1:53", "api.example.com", dns.TypeA, dns.RcodeNameError, nil, "mode deny-all", "deny-all", true},
		{"ranges open all names", open, "100.64.0.1:53", "other.example.org", dns.TypeA, dns.RcodeSuccess, []string{"93.185.0.40"}, "", "", false},
		{"allow-all", allowAll(), "100.64.0.1:53", "other.example.org", dns.TypeA, dns.RcodeSuccess, []string{"93.185.0.40"}, "", "", false},
		{"nothing there", allowAll(), "100.64.0.1:53", "nothing.example.com", dns.TypeA, dns.RcodeNameError, nil, "", "", false},
		{"no IPv6", allowAll(), "100.64.0.1:53", "both.example.com", dns.TypeAAAA, dns.RcodeSuccess, nil, "", "", true},
		{"no keys for encrypted hellos", allowAll(), "100.64.0.1:53", "api.example.com", dns.TypeHTTPS, dns.RcodeSuccess, nil, "", "", true},
		{"nor by SVCB", allowAll(), "100.64.0.1:53", "api.example.com", dns.TypeSVCB, dns.RcodeSuccess, nil, "", "", true},
		{"rebinding", allowAll(), "100.64.0.1:53", "internal.example.com", dns.TypeA, dns.RcodeSuccess, nil, "blocked range 10.0.0.0/8", "10.77.0.5", false},
		{"rebinding by an alias", allowAll(), "100.64.0.1:53", "cname.example.com", dns.TypeA, dns.RcodeSuccess, nil, "blocked range 10.0.0.0/8", "10.77.0.5", false},
		{"metadata", allowAll(), "100.64.0.1:53", "metadata.example.com", dns.TypeA, dns.RcodeSuccess, nil, "blocked range 169.254.0.0/16", "169.254.169.254", false},
		{"the public one of two", allowAll(), "100.64.0.1:53", "mixed-first.example.com", dns.TypeA, dns.RcodeSuccess, []string{"93.184.0.10"}, "blocked range 10.0.0.0/8", "10.77.0.5", false},
		{"another type", allowAll(), "100.64.0.1:53", "api.example.com", dns.TypeMX, dns.RcodeSuccess, nil, "", "", false},
		{"ANY", allowAll(), "100.64.0.1:53", "api.example.com", dns.TypeANY, dns.RcodeRefused, nil, "blocked query", "ANY", true},
		{"AXFR", allowAll(), "100.64.0.1:53", "example.com", dns.TypeAXFR, dns.RcodeRefused, nil, "blocked query", "AXFR", true},
		{"NULL", allowAll(), "100.64.0.1:53", "x.exfil.example.net", dns.TypeNULL, dns.RcodeRefused, nil, "blocked query", "NULL", true},
		{"the host's own names by address", allowAll(), "100.64.0.1:53", "5.0.77.10.in-addr.arpa", dns.TypePTR, dns.RcodeRefused, nil, "blocked range 10.0.0.0/8", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := openWorld(t, tt.policy)
			tcp, err := w.dial(t, tt.server)
			if err != nil {
				t.Fatal(err)
			}
			defer tcp.Close()
			for transport, conn := range map[string]net.Conn{"udp": w.udp(t, tt.server), "tcp": tcp} {
				a := ask(t, conn, tt.ask, tt.qtype, withEDNS)
				if a.Rcode != tt.rcode || !slices.Equal(addrsOf(a), tt.addrs) || len(a.Answer) != len(tt.addrs) {
					t.Errorf("%s: %s %v, want %s %v", transport, dns.RcodeToString[a.Rcode], a.Answer, dns.RcodeToString[tt.rcode], tt.addrs)
				}
				if _, text := ede(a); !strings.Contains(text, tt.says) || (tt.says == "") != (text == "") && tt.rule == "" {
					t.Errorf("%s: extended error %q, want %q", transport, text, tt.says)
				}
				if a.Question[0].Name != dns.Fqdn(tt.ask) || len(a.Answer) > 0 && a.Answer[0].Header().Name != dns.Fqdn(tt.ask) {
					t.Errorf("%s: the answer is about %v", transport, a)
				}
			}
			if tt.rule != "" {
				if f := w.awaitDenied(t, tt.rule); f.Protocol != "dns" || f.Name != tt.ask {
					t.Errorf("record %+v", f)
				}
			}
			if q := w.net.Queries(networktest.Mark{}); tt.silent && len(q) > 0 || len(q) > 1 && tt.qtype == dns.TypeA {
				t.Errorf("the name server was asked %v", q)
			}
			if d := w.dialled(); len(d) != 0 {
				t.Errorf("dialled %v", d)
			}
		})
	}
}

// Malformed queries get the error code of the protocol, or no answer.
func TestDNS_odd(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	conn := w.udp(t, "100.64.0.1:53")
	for name, tt := range map[string]struct {
		change func(*dns.Msg)
		rcode  int
	}{
		"two questions":  {func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) }, dns.RcodeFormatError},
		"no question":    {func(q *dns.Msg) { q.Question = nil }, dns.RcodeFormatError},
		"update":         {func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"chaos":          {func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"EDNS of future": {func(q *dns.Msg) { q.SetEdns0(1232, false); q.IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		"bad name":       {func(q *dns.Msg) { q.Question[0].Name = `a\000b.example.com.` }, dns.RcodeRefused},
		"address":        {func(q *dns.Msg) { q.Question[0].Name = "169.254.169.254." }, dns.RcodeRefused},
	} {
		if a := ask(t, conn, "api.example.com", dns.TypeA, tt.change); a.Rcode != tt.rcode || len(a.Answer) != 0 {
			t.Errorf("%s: %s, want %s", name, dns.RcodeToString[a.Rcode], dns.RcodeToString[tt.rcode])
		}
	}
	response := new(dns.Msg).SetQuestion("api.example.com.", dns.TypeA)
	response.Response = true
	for _, noise := range [][]byte{{}, {1}, []byte(strings.Repeat("x", 300)), checktest.Must(response.Pack())(t), make([]byte, 8000)} {
		conn.Write(noise)
	}
	// The next query is answered, so the noise was read; and only this query was
	// forwarded.
	if a := ask(t, conn, "api.example.com", dns.TypeA); a.Rcode != dns.RcodeSuccess {
		t.Errorf("after noise: %v", a)
	}
	if q := w.net.Queries(networktest.Mark{}); len(q) != 1 {
		t.Errorf("the name server was asked %v", q)
	}
	stream, err := w.dial(t, "100.64.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	stream.SetDeadline(time.Now().Add(patience))
	stream.Write([]byte{0, 2, 1, 1})
	if _, err := stream.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("noise by TCP: %v, want the end", err)
	}
}

// Large answers are truncated to the size that the guest accepts in a datagram.
func TestDNS_truncation(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll())
	var all []string
	for i := range 60 {
		all = append(all, fmt.Sprintf("93.186.0.%d", i+1))
	}
	w.net.SetName("large.example.com", all...)
	a := ask(t, w.udp(t, "100.64.0.1:53"), "large.example.com", dns.TypeA)
	a.Compress = true
	if !a.Truncated || len(a.Answer) == 0 || a.Len() > dns.MinMsgSize {
		t.Errorf("by UDP: truncated %t, %d bytes with %d answers", a.Truncated, a.Len(), len(a.Answer))
	}
	conn, err := w.dial(t, "100.64.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 2 {
		if a := ask(t, conn, "large.example.com", dns.TypeA); len(a.Answer) != len(all) {
			t.Errorf("by TCP: %d answers of %d", len(a.Answer), len(all))
		}
	}
}

// server starts a name server that answers by handle.
func server(t *testing.T, handle dns.HandlerFunc) string {
	t.Helper()
	var pc net.PacketConn
	var ln net.Listener
	for ln == nil {
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if ln, err = net.Listen("tcp", pc.LocalAddr().String()); err != nil { // the TCP port is taken
			ln = nil
			pc.Close()
		}
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: handle}, {Listener: ln, Handler: handle}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go s.ActivateAndServe()
		<-started
		t.Cleanup(func() { s.Shutdown() })
	}
	return pc.LocalAddr().String()
}

func reply(t *testing.T, q *dns.Msg, rrs ...string) *dns.Msg {
	a := new(dns.Msg).SetReply(q)
	for _, text := range rrs {
		rr, err := dns.NewRR(text)
		if err != nil {
			t.Error(err)
		}
		a.Answer = append(a.Answer, rr)
	}
	return a
}

func TestResolver(t *testing.T) {
	t.Parallel()
	var asked, broken atomic.Int32
	slow, gate := make(chan struct{}, 8), make(chan struct{})
	works := server(t, func(w dns.ResponseWriter, q *dns.Msg) {
		asked.Add(1)
		switch q.Question[0].Name {
		case "slow.example.":
			slow <- struct{}{}
			<-gate
			w.WriteMsg(reply(t, q, "slow.example. 60 IN A 192.0.2.1"))
		case "chain.example.":
			w.WriteMsg(reply(t, q, "b.example. 200 IN CNAME c.example.", "chain.example. 260 IN CNAME b.example.", "c.example. 260 IN A 192.0.2.2", "other.example. 60 IN A 192.0.2.9"))
		case "loop.example.":
			w.WriteMsg(reply(t, q, "loop.example. 60 IN CNAME l2.example.", "l2.example. 60 IN CNAME loop.example.", "x.example. 60 IN A 192.0.2.9"))
		case "foreign.example.":
			w.WriteMsg(reply(t, q, "else.example. 60 IN A 192.0.2.9"))
		case "long.example.":
			w.WriteMsg(reply(t, q, "long.example. 86400 IN A 192.0.2.3"))
		case "short.example.":
			w.WriteMsg(reply(t, q, "short.example. 0 IN A 192.0.2.4"))
		case "liar.example.":
			a := reply(t, q, "liar.example. 60 IN A 192.0.2.5")
			a.Question[0].Name = "truth.example."
			w.WriteMsg(a)
		case "large.example.":
			a := reply(t, q, "large.example. 60 IN A 192.0.2.6")
			if w.RemoteAddr().Network() == "udp" {
				a.Answer, a.Truncated = nil, true
			}
			w.WriteMsg(a)
		default:
			w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeNameError))
		}
	})
	fails := server(t, func(w dns.ResponseWriter, q *dns.Msg) {
		broken.Add(1)
		w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	})
	r, err := newResolver([]string{fails, works})
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	look := func(name string) answer {
		t.Helper()
		a, err := r.lookup(t.Context(), name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return a
	}
	// lives checks how long an answer that came between from and now is cached.
	lives := func(a answer, from time.Time, ttl time.Duration) {
		t.Helper()
		if a.expires.Before(from.Add(ttl)) || a.expires.After(time.Now().Add(ttl)) {
			t.Errorf("it is kept for %s, want %s", a.expires.Sub(from), ttl)
		}
	}

	from := time.Now()
	a := look("chain.example")
	lives(a, from, 200*time.Second)
	if len(a.addrs) != 1 || a.addrs[0].String() != "192.0.2.2" {
		t.Errorf("chain: %v", a.addrs)
	}
	for range 3 {
		look("chain.example")
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("four lookups asked %d times", n)
	}
	for _, name := range []string{"loop.example", "foreign.example", "nothing.example"} {
		if a := look(name); len(a.addrs) != 0 {
			t.Errorf("%s: %v", name, a.addrs)
		}
	}
	from = time.Now()
	lives(look("long.example"), from, maxTTL)
	from = time.Now()
	lives(look("short.example"), from, minTTL)
	if a := look("large.example"); len(a.addrs) != 1 {
		t.Errorf("large: %v", a.addrs)
	}
	if n := broken.Load(); n != 1 {
		t.Errorf("a server that fails was asked %d times, want once", n)
	}
	if _, err := r.lookup(t.Context(), "liar.example"); err == nil {
		t.Error("the answer to another question was taken")
	}
	before := asked.Load()
	results := make(chan answer)
	for range 8 {
		go func() { results <- look("slow.example") }()
	}
	<-slow
	close(gate)
	for range 8 {
		if a := <-results; len(a.addrs) != 1 {
			t.Errorf("slow: %v", a.addrs)
		}
	}
	if n := asked.Load() - before; n != 1 {
		t.Errorf("eight lookups at a time asked %d times", n)
	}
}

func TestResolver_noServer(t *testing.T) {
	t.Parallel()
	w := openWorld(t, allowAll(), func(_ *world, cfg *EgressConfig) { cfg.Nameservers = noServer })
	a := ask(t, w.udp(t, "100.64.0.1:53"), "api.example.com", dns.TypeA, withEDNS)
	if code, text := ede(a); a.Rcode != dns.RcodeServerFailure || code != dns.ExtendedErrorCodeNetworkError || text == "" {
		t.Errorf("%s, extended error %d %q", dns.RcodeToString[a.Rcode], code, text)
	}
	if _, err := NewEgress(EgressConfig{Nameservers: []string{"dns.example.com"}}); err == nil {
		t.Error("a name server by name was taken")
	}
}

// For any bytes that a guest sends as a query, the answer is valid DNS, or there is no
// answer.
func FuzzAnswer(f *testing.F) {
	l, _ := setup(f, custom("*.example.com"), EgressConfig{})
	dst := netip.AddrPortFrom(GatewayAddr, dnsPort)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeANY, dns.TypeAXFR, dns.TypePTR} {
		q := new(dns.Msg).SetQuestion("a.exfil.example.net.", qtype)
		f.Add(checktest.Must(q.Pack())(f), true)
		withEDNS(q)
		f.Add(checktest.Must(q.Pack())(f), false)
	}
	f.Fuzz(func(t *testing.T, query []byte, datagram bool) {
		answer := l.answer(t.Context(), dst, query, datagram)
		if answer == nil {
			return
		}
		var q, a dns.Msg
		if err := a.Unpack(answer); err != nil {
			t.Fatalf("%x: %v", answer, err)
		}
		if err := q.Unpack(query); err != nil || !a.Response || a.Id != q.Id || datagram && len(answer) > dnsUDPSize {
			t.Errorf("%d bytes: %v", len(answer), &a)
		}
	})
}
