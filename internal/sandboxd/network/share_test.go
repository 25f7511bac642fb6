package network

import (
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// Lookups by one guest of names whose servers do not answer do not keep other sandboxes
// from the name servers.
func TestDNS_share(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	nameserver := server(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if strings.HasPrefix(q.Question[0].Name, "silent") {
			<-gate
		}
		w.WriteMsg(reply(t, q, q.Question[0].Name+" 60 IN A 93.184.0.10"))
	})
	defer close(gate) // before the end of the goroutines that wait for answers
	e := openEgress(t, EgressConfig{Nameservers: []string{nameserver}})
	e.resolver.lookupTimeout, e.resolver.exchangeTimeout = 2*patience, 2*patience
	greedy, guest := join(t, e, allowAll())
	conn := guest.udp(t, "100.64.0.1:53")
	for i := range maxQueries {
		qtype := []uint16{dns.TypeA, dns.TypeTXT}[i%2]
		query, err := new(dns.Msg).SetQuestion("silent"+strconv.Itoa(i)+".example.", qtype).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(query); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); len(greedy.queries) < maxQueries || len(e.resolver.slots) < maxLookups; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d queries, %d exchanges", len(greedy.queries), len(e.resolver.slots))
		}
	}
	if n := len(e.resolver.slots); n != maxLookups {
		t.Errorf("one guest has %d of %d exchanges", n, maxExchanges)
	}
	_, other := join(t, e, allowAll())
	if a := ask(t, other.udp(t, "100.64.0.1:53"), "api.example", dns.TypeA); len(addrsOf(a)) != 1 {
		t.Errorf("another guest is answered %v", a)
	}
}

// A guest that waits for an answer does not delay the end of its sandbox or of the
// daemon.
func TestDNS_end(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	defer close(gate)
	e := openEgress(t, EgressConfig{Nameservers: []string{server(t, func(dns.ResponseWriter, *dns.Msg) { <-gate })}})
	e.resolver.lookupTimeout, e.resolver.exchangeTimeout = 2*patience, 2*patience
	l, guest := join(t, e, allowAll())
	conn := guest.udp(t, "100.64.0.1:53")
	for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT} {
		query, err := new(dns.Msg).SetQuestion("silent.example.", qtype).Pack()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(query); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); len(e.resolver.slots) < 2; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("%d exchanges", len(e.resolver.slots))
		}
	}
	ended := make(chan error, 1)
	go func() {
		err := l.Close()
		e.Close()
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the end waits for name servers")
	}
}
