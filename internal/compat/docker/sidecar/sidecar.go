// Package sidecar is the proxy that workerd starts beside each of its containers,
// as a part of this process: it connects workerd to ports of the container. It
// knows no container: whoever serves a Proxy gives it a function that dials.
//
//	PUT /egress  says which of the container's requests workerd wants to answer
//	GET /ca      is the certificate of the authority for TLS that workerd opens
//	CONNECT      with X-Dst-Addr becomes a connection to a port of the container
//
// Requests of the container do not go through a Proxy: the daemon's own policy
// decides about them, and the daemon dials. Egress that workerd wants to answer
// itself is therefore refused, until there is a way to hand it over.
package sidecar

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	"strconv"
	"sync"
	"time"
)

const (
	// maxConnections is how many connections a Proxy has at a time.
	maxConnections = 512
	dialTime       = 10 * time.Second
	maxBody        = 1 << 20
)

// Egress is what workerd says about the container's requests.
type Egress struct {
	Port int `json:"port"` // where workerd listens for them, on 127.0.0.1
	DNS  struct {
		// AllowHostnames are the names that workerd answers for. Those are refused.
		AllowHostnames []string `json:"allowHostnames"`
	} `json:"dns"`
	Internet struct {
		Enabled bool `json:"enabled"`
	} `json:"internet"`
}

// Config is what a Proxy needs.
type Config struct {
	// Dial connects to a port of the container.
	Dial func(ctx context.Context, port int) (net.Conn, error)
	// SetInternet lets the container reach the internet, or not.
	SetInternet func(ctx context.Context, enabled bool) error
}

// Proxy serves workerd on one listener, until Close.
type Proxy struct {
	cfg    Config
	l      net.Listener
	ca     []byte
	http   *http.Server
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	tasks  sync.WaitGroup // Serve, and requests

	mu     sync.Mutex // guards closed
	closed bool
}

// begin counts a request, unless the Proxy is closed. tasks.Done ends it.
func (p *Proxy) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.tasks.Add(1)
	}
	return !p.closed
}

// Listen starts a Proxy on 127.0.0.1, for port 0 on any. ctx bounds the start.
func Listen(ctx context.Context, port int, cfg Config) (*Proxy, error) {
	ca, err := authority()
	if err != nil {
		return nil, err
	}
	l, err := Listener(ctx, port)
	if err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg, l: l, ca: ca, slots: make(chan struct{}, maxConnections)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.http = &http.Server{
		Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: dialTime, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return p.ctx },
	}
	p.tasks.Go(func() { _ = p.http.Serve(l) }) // ends with Close
	return p, nil
}

// Port is where it listens.
func (p *Proxy) Port() int { return p.l.Addr().(*net.TCPAddr).Port }

// Close ends the listener and all connections, and waits for them.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.http.Close() // errors of what ends are of no use
	p.tasks.Wait()
}

// authority makes the certificate of an authority whose key nobody keeps: nothing
// is signed by it, because no TLS of a container is opened for workerd.
func authority() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "cay sidecar"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.begin() {
		http.Error(w, "the proxy ends", http.StatusServiceUnavailable)
		return
	}
	defer p.tasks.Done()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	default:
		http.Error(w, fmt.Sprintf("%d requests are under way", maxConnections), http.StatusServiceUnavailable)
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		p.connect(w, r)
	case r.Method == http.MethodPut && r.URL.Path == "/egress":
		p.egress(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/ca":
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(p.ca) // a client that left is nobody to tell
	default:
		http.Error(w, "not found: "+r.Method+" "+r.URL.Path, http.StatusNotFound)
	}
}

// egress takes what workerd says about the container's requests.
func (p *Proxy) egress(w http.ResponseWriter, r *http.Request) {
	var e Egress
	// Without the member the internet is open, as workerd has it.
	e.Internet.Enabled = true
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&e); err != nil {
		http.Error(w, "the egress mapping cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	if n := e.DNS.AllowHostnames; len(n) > 0 {
		http.Error(w, fmt.Sprintf("cay does not hand requests of a container over to workerd yet: the handlers of outbound requests for %q are refused", n), http.StatusNotImplemented)
		return
	}
	if err := p.cfg.SetInternet(r.Context(), e.Internet.Enabled); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// connect becomes a connection to a port of the container. Clients ask again while
// the status is 400.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	_, port, err := net.SplitHostPort(r.Header.Get("X-Dst-Addr"))
	n, e := strconv.Atoi(port)
	if err != nil || e != nil || n < 1 || n > 65535 {
		http.Error(w, fmt.Sprintf("X-Dst-Addr %.100q is not HOST:PORT", r.Header.Get("X-Dst-Addr")), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTime)
	defer cancel()
	up, err := p.cfg.Dial(ctx, n)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer up.Close()
	down, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the connection cannot be taken over", http.StatusInternalServerError)
		return
	}
	if _, err := io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		down.Close()
		return
	}
	Join(p.ctx, &peeked{down, buffered.Reader}, up)
}

// peeked is a connection whose first bytes are in the buffer r.
type peeked struct {
	net.Conn
	r *bufio.Reader
}

// Read implements net.Conn.
func (c *peeked) Read(b []byte) (int, error) { return c.r.Read(b) }

// CloseWrite ends one direction.
func (c *peeked) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Join copies both ways until both connections have ended, or ctx has, and closes both.
func Join(ctx context.Context, a, b net.Conn) {
	end := func() {
		a.Close() // errors of ends are no news
		b.Close()
	}
	defer context.AfterFunc(ctx, end)()
	defer end()
	var both sync.WaitGroup
	half := func(dst, src net.Conn) {
		_, err := io.Copy(dst, src)
		w, ok := dst.(interface{ CloseWrite() error })
		if err != nil || !ok || w.CloseWrite() != nil {
			end()
		}
	}
	both.Go(func() { half(a, b) })
	both.Go(func() { half(b, a) })
	both.Wait()
}
