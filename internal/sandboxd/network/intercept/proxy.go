package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// Bounds of guests' connections.
const (
	guestIdle  = 2 * time.Minute
	headerTime = 10 * time.Second // for a request's headers to come
	maxStreams = 250              // of an HTTP/2 connection
)

// Config configures a Proxy. All fields but Roots must be set.
type Config struct {
	CA *CA
	// Roots verify the certificates of servers. nil means the system's.
	Roots  *x509.CertPool
	Logger *slog.Logger
}

// Session describes a guest's connection. It must not change while the connection is
// served.
type Session struct {
	// Name is the TLS server name, in the form of policy.CleanName: every request must be
	// for it. Empty for plain HTTP, where every request names its own host.
	Name string
	Port uint16 // that the guest has dialled
	// Address is the address that the guest dialled, for records of requests that Proxy
	// answers itself. May be the zero value.
	Address netip.AddrPort

	// Policy returns today's policy. It is asked once for each request.
	Policy func() *policy.Policy
	// Refusal, if set, answers every request instead of the policy: the decision does not
	// depend on requests, and the guest must be told.
	Refusal *policy.Decision

	// Dial resolves name, which may be an address for a forwarded request, checks the
	// addresses and connects. It is called for Forward targets, too; Forwarded tells them
	// apart, because a request may wait for its turn to dial. Records show the
	// connection's RemoteAddr. The connection belongs to the Upstream: it outlives the
	// session, and serves other sessions of the sandbox.
	//
	// An error of the code permission_denied, or a *Refused, is a denial, which the guest
	// is told; the guest is also told the text of every other error.
	Dial func(ctx context.Context, name string, port uint16) (net.Conn, error)
	// Upstream is the sandbox's.
	Upstream *Upstream
	// Memory is the sandbox's, as for NewUpstream.
	Memory Memory
	// ForwardToken returns the token by which the receiver of a forwarded request
	// recognizes the sandbox; audience is the rule's URL without the path that requests
	// add. Nil: no token is sent.
	ForwardToken func(ctx context.Context, audience string) (string, error)

	// Record gets one Flow for each request when it has ended; the receiver sets Seq. It
	// is called by several goroutines. May be nil.
	Record func(sandbox.Flow)
}

// Memory counts the bytes that the connections of a sandbox may hold. With HTTP/2 the
// daemon reads ahead of a slow receiver, up to the windows' size. So HTTP/2 is used if
// Memory has room for the windows, and otherwise HTTP/1.1, which does not read ahead. A
// nil Memory always has room.
type Memory interface {
	// Take takes n bytes, unless it returns false, until Give.
	Take(n int64) bool
	Give(n int64)
}

func take(m Memory, n int64) bool { return m == nil || m.Take(n) }

func give(m Memory, n int64) {
	if m != nil {
		m.Give(n)
	}
}

// Forwarded reports whether a Session.Dial with ctx is for the target of a Forward rule,
// and not for the host that the guest asks for.
func Forwarded(ctx context.Context) bool {
	x, ok := ctx.Value(exchangeKey{}).(*exchange)
	return ok && x.rule != nil && x.rule.Forward != nil
}

// Refused is an error of Session.Dial: the destination is blocked.
type Refused struct {
	Rule   string // the deciding rule, as in policy.Decision
	Reason string // a sentence for people
}

func (e *Refused) Error() string { return e.Reason }

// Proxy answers the HTTP of guests. A daemon has one Proxy. Its owner must close it.
type Proxy struct {
	cfg     Config
	log     *slog.Logger
	tls     *tls.Config // of HTTP/2 and HTTP/1.1
	tls1    *tls.Config // of HTTP/1.1
	server  *http.Server
	reverse *httputil.ReverseProxy
	feed    *feed

	mu     sync.Mutex // guards what follows
	guests map[*guest]struct{}
	closed bool
	served sync.WaitGroup // guests, and the server
}

// New returns a Proxy that is ready to serve.
func New(cfg Config) *Proxy {
	p := &Proxy{
		cfg:    cfg,
		log:    cfg.Logger.With("component", "intercept"),
		feed:   newFeed(),
		guests: map[*guest]struct{}{},
	}
	p.tls = &tls.Config{
		MinVersion:                  tls.VersionTLS12,
		NextProtos:                  []string{"h2", "http/1.1"},
		DynamicRecordSizingDisabled: true,
		GetCertificate:              p.certificate,
	}
	p.tls1 = p.tls.Clone()
	p.tls1.NextProtos = []string{"http/1.1"}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	p.server = &http.Server{
		Handler:                      http.HandlerFunc(p.handle),
		ReadHeaderTimeout:            headerTime,
		IdleTimeout:                  guestIdle,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		Protocols:                    protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerConnection: guestWindow,
			MaxReceiveBufferPerStream:     guestStreamWindow,
			MaxReadFrameSize:              frameSize,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, guestKey{}, guestBehind(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) { guestBehind(c).setState(state) },
		ErrorLog:  discard, // records have all that matters, and the log must not have a guest's bytes
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        rewrite,
		Transport:      roundTripper{},
		FlushInterval:  -1, // at once
		BufferPool:     buffers{},
		ModifyResponse: modifyResponse,
		ErrorHandler:   handleError,
		ErrorLog:       discard,
	}
	p.served.Go(func() {
		if err := p.server.Serve(p.feed); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("intercepting server ended", "error", err)
		}
	})
	return p
}

var discard = log.New(io.Discard, "", 0)

// Close closes all connections of guests and waits for their goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for g := range p.guests {
		g.Close()
	}
	p.mu.Unlock()
	_ = p.server.Close() // the feed's Close cannot fail
	p.served.Wait()
}

// ServeTLS serves the requests of a guest that begins with a TLS handshake, in place of
// the server. It closes conn and returns when all requests have ended and been recorded,
// or when ctx ends.
func (p *Proxy) ServeTLS(ctx context.Context, conn net.Conn, s *Session) {
	p.serve(ctx, newGuest(conn, s, true))
}

// ServeHTTP1 is ServeTLS for plain HTTP.
func (p *Proxy) ServeHTTP1(ctx context.Context, conn net.Conn, s *Session) {
	p.serve(ctx, newGuest(conn, s, false))
}

func (p *Proxy) serve(ctx context.Context, g *guest) {
	defer g.Close()
	if !p.admit(g) {
		return
	}
	defer p.dismiss(g)
	defer context.AfterFunc(ctx, func() { g.Close() })()

	var conn net.Conn = g
	if g.secure {
		config, room := p.tls, take(g.session.Memory, guestWindow)
		if !room {
			config = p.tls1
		}
		ended, err := p.handshake(ctx, g, config)
		if err == nil && ended.ConnectionState().NegotiatedProtocol == "h2" {
			defer give(g.session.Memory, guestWindow)
			p.await(g, ended)
			return
		}
		if room {
			give(g.session.Memory, guestWindow)
		}
		if err != nil {
			g.recordHandshake(err)
			return
		}
		conn = ended
	}
	g.http1 = newHTTP1Conn(g, conn)
	p.await(g, g.http1)
}

// await lets the server serve conn, and returns when the server has finished.
func (p *Proxy) await(g *guest, conn net.Conn) {
	if !p.feed.give(conn) {
		return
	}
	<-g.released
	g.exchanges.Wait()
}

func (p *Proxy) admit(g *guest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.guests[g] = struct{}{}
	p.served.Add(1)
	return true
}

func (p *Proxy) dismiss(g *guest) {
	p.mu.Lock()
	delete(p.guests, g)
	p.mu.Unlock()
	p.served.Done()
}

// Open answers the TLS handshake of a guest that asks for name, which policy.CleanName
// made, and returns the connection inside TLS. If the guest offers protocols, Open
// selects HTTP/1.1.
func (p *Proxy) Open(ctx context.Context, conn net.Conn, name string) (*tls.Conn, error) {
	return p.handshake(ctx, newGuest(conn, &Session{Name: name}, true), p.tls1)
}

func (p *Proxy) handshake(ctx context.Context, g *guest, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, guestKey{}, g), handshakeTime)
	defer cancel()
	conn := tls.Server(g, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return conn, nil
}

// certificate returns the leaf for the session's name, which is the name that was judged.
func (p *Proxy) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	g := guestOf(hello.Context())
	if name, err := policy.CleanName(hello.ServerName); err != nil || name != g.session.Name {
		return nil, fmt.Errorf("the guest asks for %.253q on a connection to %s", hello.ServerName, g.session.Name)
	}
	return p.cfg.CA.leaf(g.session.Name)
}

// feed is a listener whose connections are given to it by a call.
type feed struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newFeed() *feed {
	return &feed{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give returns false if the feed is closed.
func (f *feed) give(c net.Conn) bool {
	select {
	case f.conns <- c:
		return true
	case <-f.closed:
		return false
	}
}

// Accept implements net.Listener.
func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (f *feed) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

// Addr implements net.Listener.
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }

const bufferSize = 128 << 10

// buffers lends the buffers through which bodies are copied.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([bufferSize]byte) }}

func (buffers) Get() []byte  { return bufferPool.Get().(*[bufferSize]byte)[:] }
func (buffers) Put(b []byte) { bufferPool.Put((*[bufferSize]byte)(b)) }
