package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxConnections is how many connections the socket has at a time. Each wait,
	// attach and exec of a client holds one.
	maxConnections = 1024
	// sweepEvery is how often leases are extended and abandoned containers are
	// looked for.
	sweepEvery = 30 * time.Second
)

// Server serves the API. It owns the goroutines and listeners of the containers
// that it has started or adopted; Serve ends them all.
type Server struct {
	cfg   Config
	http  *http.Server
	lives lives
	execs execs
	sides sidecars
	feed  feed
	names keyed // held while a name is given

	owners owners
	every  time.Duration // between sweeps
	builds chan struct{} // one for each that is under way

	ctx    context.Context // of all that outlasts a request
	cancel context.CancelFunc
	tasks  sync.WaitGroup // requests, and what they leave in the background

	once   sync.Once  // of Close
	mu     sync.Mutex // guards closed
	closed bool
}

// begin counts a request, unless the server is closed. tasks.Done ends it.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Add(1)
	}
	return !s.closed
}

// New returns a Server that serves nothing yet.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, every: sweepEvery, builds: make(chan struct{}, maxBuilds)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       withPeer,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
	}
	return s
}

// Serve adopts the containers of the project, and serves until ctx ends. Then it
// closes l, all connections and all published ports. Containers go on, for as
// long as their lease lasts; see lease.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if err := s.adopt(ctx); err != nil && ctx.Err() == nil {
		s.Close()
		s.tasks.Wait()
		return errors.Join(err, l.Close())
	}
	s.tasks.Go(s.sweepUntilClosed)
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	err := s.http.Serve(l)
	s.Close()
	s.tasks.Wait()
	for _, id := range s.lives.ids() {
		s.lives.of(id).closePorts()
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends Serve. It returns when no sidecar listens any more, also if it is called
// twice at a time: a server that takes the place of this one listens on the same ports.
func (s *Server) Close() {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.cancel()
		s.http.Close() // the listener's error is of no use: it is gone either way
		s.sides.close()
	})
}

// sweepUntilClosed looks after the containers from time to time.
func (s *Server) sweepUntilClosed() {
	t := time.NewTicker(s.every)
	defer t.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-t.C:
			if err := s.Sweep(s.ctx); err != nil && s.ctx.Err() == nil {
				s.cfg.Logger.WarnContext(s.ctx, "sweep containers", "error", err)
			}
		}
	}
}
