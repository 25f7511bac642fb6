package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/miekg/dns"
	"golang.org/x/sync/singleflight"

	"github.com/cayhq/cay"
)

const (
	lookupTimeout   = 10 * time.Second // for a name, all servers together
	exchangeTimeout = 3 * time.Second  // for an answer of one server
	maxExchanges    = 512              // at the same time, of all sandboxes
	maxLookups      = 32               // part of maxExchanges, of one sandbox
	maxNames        = 4096             // in the cache
	maxAddresses    = 64               // of a name
	maxAliases      = 16               // a chain of CNAMEs

	minTTL      = time.Second
	maxTTL      = 5 * time.Minute
	negativeTTL = 5 * time.Second // of names that do not exist
)

// resolver looks names up for guests and for connections on their behalf. One resolver
// serves all links: an answer is the same for all links, and each link decides which
// parts of an answer its guest may see. The resolver asks the name servers with messages
// of its own, so that only a name and a type come from guests.
type resolver struct {
	servers []string     // "host:port"
	first   atomic.Int32 // index of the server that answered last

	lookupTimeout, exchangeTimeout time.Duration // longer in tests

	slots   chan struct{} // an element for each exchange under way
	cache   *lru.Cache[string, answer]
	lookups singleflight.Group

	ctx    context.Context // ends with the resolver
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// answer is a name server's answer about a name's IPv4 addresses.
type answer struct {
	rcode   int          // NOERROR or NXDOMAIN
	addrs   []netip.Addr // in the order of the server
	expires time.Time
}

// newResolver returns a resolver that asks servers, which are addresses with or without a
// port. If servers is empty, it asks the servers in /etc/resolv.conf.
func newResolver(servers []string) (*resolver, error) {
	var addrs []string
	if len(servers) == 0 {
		conf, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the host's name servers: %w", err)
		}
		if conf != nil {
			for _, s := range conf.Servers {
				addrs = append(addrs, net.JoinHostPort(s, conf.Port))
			}
		}
	}
	for _, s := range servers {
		addr, err := ParseNameserver(s)
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	cache, err := lru.New[string, answer](maxNames)
	if err != nil {
		return nil, fmt.Errorf("make the cache of names: %w", err)
	}
	r := &resolver{
		servers: addrs, lookupTimeout: lookupTimeout, exchangeTimeout: exchangeTimeout,
		cache: cache, slots: make(chan struct{}, maxExchanges),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// ParseNameserver returns the host:port of a name server given as an address,
// with or without a port. Errors: invalid.
func ParseNameserver(s string) (string, error) {
	if ip, err := netip.ParseAddr(s); err == nil {
		return net.JoinHostPort(ip.String(), "53"), nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil && ap.Port() != 0 {
		return ap.String(), nil
	}
	return "", cay.Errorf(cay.Invalid, "name server %q is not an address", s).WithHint("write for example 10.0.0.53 or 10.0.0.53:5353")
}

func (r *resolver) close() {
	r.cancel()
	r.work.Wait()
}

// lookup returns the IPv4 addresses of a name, which is clean and without a final dot. An
// answer may have no addresses; an error means that there is no answer. Concurrent
// lookups of the same name are merged.
func (r *resolver) lookup(ctx context.Context, name string) (answer, error) {
	if a, ok := r.cached(name); ok {
		return a, nil
	}
	if err := r.ctx.Err(); err != nil {
		return answer{}, err
	}
	r.work.Add(1)
	done := r.lookups.DoChan(name, func() (any, error) {
		// The first caller may leave while other callers wait for the same answer.
		ctx, cancel := context.WithTimeout(r.ctx, r.lookupTimeout)
		defer cancel()
		m, err := r.exchange(ctx, name, dns.TypeA)
		if err != nil {
			return answer{}, err
		}
		a := addresses(m)
		r.cache.Add(name, a)
		return a, nil
	})
	// The lookup's goroutine outlives a caller that has left.
	release := func() { r.work.Done() }
	select {
	case res := <-done:
		release()
		if res.Err != nil {
			return answer{}, res.Err
		}
		return res.Val.(answer), nil
	case <-ctx.Done():
		go func() {
			<-done
			release()
		}()
		return answer{}, context.Cause(ctx)
	}
}

// cached returns the unexpired answer for a name.
func (r *resolver) cached(name string) (answer, bool) {
	a, ok := r.cache.Get(name)
	return a, ok && time.Now().Before(a.expires)
}

// addresses reads the answer to a question for IPv4 addresses: the addresses of the name
// itself, or of the last name in its chain of aliases. Records of other names are
// ignored.
func addresses(m *dns.Msg) answer {
	a := answer{rcode: m.Rcode}
	ttl := uint32(maxTTL / time.Second)
	owner := m.Question[0].Name
	aliased := true
	for range maxAliases {
		if !aliased {
			break
		}
		aliased = false
		for _, rr := range m.Answer {
			if c, ok := rr.(*dns.CNAME); ok && strings.EqualFold(c.Hdr.Name, owner) && !strings.EqualFold(c.Target, owner) {
				owner, aliased = c.Target, true
				ttl = min(ttl, c.Hdr.Ttl)
				break
			}
		}
	}
	for _, rr := range m.Answer {
		rec, ok := rr.(*dns.A)
		if !ok || !strings.EqualFold(rec.Hdr.Name, owner) || len(a.addrs) == maxAddresses {
			continue
		}
		if ip, ok := netip.AddrFromSlice(rec.A.To4()); ok && !slices.Contains(a.addrs, ip) {
			a.addrs = append(a.addrs, ip)
			ttl = min(ttl, rec.Hdr.Ttl)
		}
	}
	lives := max(minTTL, time.Duration(ttl)*time.Second)
	if len(a.addrs) == 0 {
		lives = min(lives, negativeTTL)
	}
	a.expires = time.Now().Add(lives)
	return a
}

// errNoServers is returned if no name server is configured.
var errNoServers = errors.New("the host has no name server")

// exchange asks the name servers in turn, beginning with the server that answered last,
// until one answers.
func (r *resolver) exchange(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	err := errNoServers
	first := int(r.first.Load())
	for i := range r.servers {
		n := (first + i) % len(r.servers)
		var m *dns.Msg
		if m, err = r.ask(ctx, r.servers[n], new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)); err == nil {
			r.first.Store(int32(n))
			return m, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("look up %s: %w", name, err)
}

// askBy asks a server by udp or tcp. Package dns would wait for the answer even after ctx
// has ended.
func (r *resolver) askBy(ctx context.Context, network, server string, q *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: r.exchangeTimeout, UDPSize: dns.MaxMsgSize}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	m, _, err := client.ExchangeWithConnContext(ctx, q, conn)
	return m, err
}

// ask asks a server, and again by TCP if the answer does not fit into a datagram.
func (r *resolver) ask(ctx context.Context, server string, q *dns.Msg) (*dns.Msg, error) {
	for _, network := range []string{"udp", "tcp"} {
		m, err := r.askBy(ctx, network, server, q)
		if err != nil {
			return nil, err
		}
		if m.Truncated && network == "udp" {
			continue
		}
		if !m.Response || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, q.Question[0].Name) ||
			m.Question[0].Qtype != q.Question[0].Qtype || m.Question[0].Qclass != q.Question[0].Qclass {
			return nil, fmt.Errorf("name server %s answered another question", server)
		}
		if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
			return nil, fmt.Errorf("name server %s answered %s", server, dns.RcodeToString[m.Rcode])
		}
		return m, nil
	}
	return nil, fmt.Errorf("name server %s sends no whole answer", server)
}
