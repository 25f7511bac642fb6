// Package sidecar is the proxy that workerd starts beside each of its containers, as a
// part of this process. A Proxy connects workerd to ports of the container, by a function
// that its owner gives it; the package knows no container.
//
//	PUT /egress  says which of the container's connections workerd wants to answer
//	GET /ca      is the certificate of the authority for TLS that is opened for workerd
//	CONNECT      with X-Dst-Addr becomes a connection to a port of the container
//
// Connections of the container do not go through a Proxy: the daemon's own policy
// decides about them, and the daemon dials. Connections with names that workerd wants
// to answer are offered to Outbound, which asks workerd about each.
package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Egress is which connections workerd wants to answer.
type Egress struct {
	// Names are patterns of names that workerd may answer for; "*": for every
	// connection.
	Names []string
	// Offline reports that the container is to reach nothing else.
	Offline bool
}

// Config is what a Proxy needs.
type Config struct {
	// Dial connects to a port of the container.
	Dial func(ctx context.Context, port int) (net.Conn, error)
	// SetEgress has the daemon offer connections of the container to Outbound.
	SetEgress func(ctx context.Context, e Egress) error
	// Authority returns the certificate of the authority that TLS is opened with, as PEM.
	Authority func(ctx context.Context) ([]byte, error)
	// Egress is that of a Proxy before this one, and EgressPort where workerd listened
	// then, on 127.0.0.1.
	Egress     Egress
	EgressPort int
}

// Proxy serves workerd on one listener, until Close.
type Proxy struct {
	cfg    Config
	l      net.Listener
	http   *http.Server
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	tasks  sync.WaitGroup // Serve, and requests

	changing sync.Mutex // held while workerd changes egress

	mu         sync.Mutex // guards what follows
	closed     bool
	egress     Egress
	egressPort int
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
	l, err := Listener(ctx, port)
	if err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg, l: l, egress: cfg.Egress, egressPort: cfg.EgressPort, slots: make(chan struct{}, maxConnections)}
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
		p.setEgress(w, r)
	case r.Method == http.MethodGet && r.URL.Path == "/ca":
		pem, err := p.cfg.Authority(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(pem) // a client that left needs no answer
	default:
		http.Error(w, "not found: "+r.Method+" "+r.URL.Path, http.StatusNotFound)
	}
}

// setEgress takes what workerd says about the container's connections. A missing member
// changes nothing.
func (p *Proxy) setEgress(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Port *int
		DNS  *struct{ AllowHostnames []string }
		// Without the member the internet is open, as workerd has it.
		Internet *struct{ Enabled *bool }
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&body); err != nil {
		http.Error(w, "the egress mapping cannot be read: "+err.Error(), http.StatusBadRequest)
		return
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	e, port := p.state()
	if body.Port != nil {
		if port = *body.Port; port < 1 || port > 65535 {
			http.Error(w, fmt.Sprintf("the port %d is not 1 to 65535", port), http.StatusBadRequest)
			return
		}
	}
	if body.DNS != nil && body.DNS.AllowHostnames != nil {
		e.Names = body.DNS.AllowHostnames
	}
	if body.Internet != nil && body.Internet.Enabled != nil {
		e.Offline = !*body.Internet.Enabled
	}
	p.mu.Lock()
	p.egress, p.egressPort = e, port
	p.mu.Unlock()
	if err := p.cfg.SetEgress(r.Context(), e); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// state returns which connections workerd answers, and at which port.
func (p *Proxy) state() (Egress, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.egress, p.egressPort
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
