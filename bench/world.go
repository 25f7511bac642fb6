package bench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/network/sniff"
)

// World is a simulated internet for sandboxes: servers on loopback that have
// one address outside, and a name server that resolves all names below
// worldDomain to that address. Opponents get the servers' real addresses.
type World struct {
	routes map[string]string // the address and port outside, to what listens for it
	names  *dns.Server
	dns    net.PacketConn
	root   []byte // PEM of the authority of its certificate
	rally  rally

	servers []*http.Server
	raw     net.Listener
	wg      sync.WaitGroup // of all that serves

	mu     sync.Mutex // guards what follows
	conns  map[net.Conn]struct{}
	closed bool
}

// The names and the address of a World, both set aside for documentation.
const worldDomain = "bench.example"

var worldAddr = netip.MustParseAddr("198.51.100.10")

// Ports of its servers.
const (
	httpPort  = 80   // GET /N answers with N bytes
	httpsPort = 443  // the same, in TLS
	helloPort = 8443 // reads a TLS hello, and what follows is not TLS; see serveHello
)

// NewWorld starts one.
func NewWorld() (_ *World, err error) {
	w := &World{routes: map[string]string{}, conns: map[net.Conn]struct{}{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	cert, err := w.makeCertificate()
	if err != nil {
		return nil, err
	}
	if err := w.serveNames(); err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	for port, config := range map[int]*tls.Config{httpPort: nil, httpsPort: config} {
		l, err := w.listen(port)
		if err != nil {
			return nil, err
		}
		s := &http.Server{Handler: http.HandlerFunc(serveBytes), TLSConfig: config}
		w.servers = append(w.servers, s)
		w.wg.Go(func() {
			// Ends by being closed.
			if config != nil {
				_ = s.ServeTLS(l, "", "")
			} else {
				_ = s.Serve(l)
			}
		})
	}
	if w.raw, err = w.listen(helloPort); err != nil {
		return nil, err
	}
	w.wg.Go(w.serveHellos)
	return w, nil
}

// Close ends all servers and their connections.
func (w *World) Close() error {
	var errs []error
	for _, s := range w.servers {
		errs = append(errs, s.Close())
	}
	if w.raw != nil {
		errs = append(errs, w.raw.Close())
	}
	if w.names != nil {
		errs = append(errs, w.names.Shutdown())
	}
	w.mu.Lock()
	w.closed = true
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.wg.Wait()
	return errors.Join(errs...)
}

func (w *World) listen(port int) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a bench: %w", err)
	}
	w.routes[netip.AddrPortFrom(worldAddr, uint16(port)).String()] = l.Addr().String()
	return l, nil
}

// at returns the real address of a server.
func (w *World) at(port int) (host, realPort string) {
	host, realPort, _ = net.SplitHostPort(w.routes[netip.AddrPortFrom(worldAddr, uint16(port)).String()])
	return host, realPort
}

func (w *World) makeCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: worldDomain},
		DNSNames:  []string{"*." + worldDomain},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make certificate: %w", err)
	}
	w.root = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// serveNames answers for all names alike.
func (w *World) serveNames() (err error) {
	if w.dns, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		return fmt.Errorf("listen for a bench: %w", err)
	}
	started := make(chan struct{})
	w.names = &dns.Server{PacketConn: w.dns, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(to dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   worldAddr.AsSlice(),
			}}
		}
		_ = to.WriteMsg(m) // who asked asks again
	})}
	failed := make(chan error, 1)
	w.wg.Go(func() { failed <- w.names.ActivateAndServe() })
	select {
	case <-started:
		return nil
	case err := <-failed:
		return fmt.Errorf("serve names for a bench: %w", err)
	}
}

// serveBytes answers GET /N with N bytes.
func serveBytes(to http.ResponseWriter, r *http.Request) {
	size, err := strconv.ParseInt(strings.Trim(r.URL.Path, "/"), 10, 64)
	if err != nil {
		size = 0
	}
	to.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	_ = writeZeros(to, size) // the client has left
}

var zeros [256 << 10]byte

func writeZeros(to io.Writer, size int64) error {
	for size > 0 {
		n, err := to.Write(zeros[:min(size, int64(len(zeros)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return nil
}

func (w *World) serveHellos() {
	for {
		conn, err := w.raw.Accept()
		if err != nil {
			return // closed
		}
		w.mu.Lock()
		closed := w.closed
		w.conns[conn] = struct{}{}
		w.mu.Unlock()
		if closed {
			conn.Close()
			continue
		}
		w.wg.Go(func() {
			w.serveHello(conn)
			conn.Close()
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.conns, conn)
		})
	}
}

// serveHello reads the TLS hello with which a firewall decides about a
// connection, and then does what the hello's server name says, without TLS:
// encryption at both ends would cost much more than a firewall that passes the
// connection on, and hide the firewall's cost.
func (w *World) serveHello(conn net.Conn) {
	hello, _, err := sniff.ReadClientHello(conn)
	if err != nil {
		return
	}
	what, _, _ := strings.Cut(hello.ServerName, ".")
	switch size, isSize := strings.CutPrefix(what, "stream-"); {
	case isSize:
		if n, err := strconv.ParseInt(size, 10, 64); err == nil {
			_ = writeZeros(conn, n) // the client sees how much there was
		}
	case what == "echo":
		_, _ = io.Copy(conn, conn) // until the client ends it
	case what == "rally":
		w.rally.join(conn)
	}
}

// rally starts programs at the same time, and records when they are done: each
// program has a connection to it, on which it receives a byte at the start, and
// sends a byte at the end.
type rally struct {
	mu      sync.Mutex // guards what follows
	current *race
}

// race is a common start of several programs.
type race struct {
	size    int
	joined  int
	started chan struct{} // closed when all have joined
	done    chan error    // one for each program
}

// expect begins a race of size programs.
func (r *rally) expect(size int) *race {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = &race{size: size, started: make(chan struct{}), done: make(chan error, size)}
	return r.current
}

func (r *rally) join(conn net.Conn) {
	r.mu.Lock()
	race := r.current
	if race == nil || race.joined == race.size {
		r.mu.Unlock()
		return
	}
	race.joined++
	if race.joined == race.size {
		close(race.started)
	}
	r.mu.Unlock()
	// A program that gives up before the start ends its race.
	left := make(chan error, 1)
	one := make([]byte, 1)
	var reader sync.WaitGroup
	defer reader.Wait()
	defer conn.Close()
	reader.Go(func() {
		_, err := io.ReadFull(conn, one)
		left <- err
	})
	select {
	case <-race.started:
		if _, err := conn.Write([]byte{0}); err != nil {
			race.done <- err
			return
		}
		race.done <- <-left
	case err := <-left:
		race.done <- errors.Join(errors.New("a program ended before all were there"), err)
	}
}

// wait returns how long all programs took from the start.
func (r *race) wait(ctx context.Context) (time.Duration, error) {
	var begun time.Time
	started := r.started
	for done := 0; done < r.size; {
		select {
		case <-started:
			begun, started = time.Now(), nil
		case err := <-r.done:
			if err != nil {
				return 0, fmt.Errorf("a program in a race: %w", err)
			}
			done++
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return time.Since(begun), nil
}

// worldMap has the data that a daemon in another process needs of a World.
type worldMap struct {
	Routes     map[string]string `json:"routes"`
	Nameserver string            `json:"nameserver"`
	Root       string            `json:"root"`
}

// Map describes w to ServeDaemon.
func (w *World) Map() string {
	b, err := json.Marshal(worldMap{w.routes, w.dns.LocalAddr().String(), string(w.root)})
	if err != nil {
		panic(err) // of strings
	}
	return string(b)
}

// enter makes the World of a map the only internet of the sandboxes.
func enter(text string, cfg *config.Config) (daemon.Options, error) {
	var m worldMap
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return daemon.Options{}, fmt.Errorf("read the map of the world: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(m.Root)) {
		return daemon.Options{}, errors.New("read the map of the world: there is no certificate in it")
	}
	cfg.AllowRanges = append(cfg.AllowRanges, netip.PrefixFrom(worldAddr, 32).String())
	return daemon.Options{
		Nameservers: []string{m.Nameserver}, Roots: roots,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			to, ok := m.Routes[address]
			if !ok {
				return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
			}
			return new(net.Dialer).DialContext(ctx, network, to)
		},
	}, nil
}
