package docker

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/docker/sidecar"
	"github.com/cayhq/cay/sandbox"
)

const (
	// handlerPatience is how long a container's command waits for the egress handler.
	handlerPatience = 10 * time.Second
	// The time until a handler whose connection broke connects again.
	againFirst = 100 * time.Millisecond
	againMost  = 5 * time.Second
)

// egressHandler offers the connections of one container to its sidecar.
type egressHandler struct {
	box    string
	cancel context.CancelFunc
	ready  chan struct{} // closed when connections are offered for the first time
	ended  chan struct{} // closed when none are any more
}

// egressPort is where workerd listens for connections of a container, as the command
// of its sidecar says; 0 if that says nothing.
func egressPort(cmd []string) int {
	i := slices.Index(cmd, "--http-egress-port")
	if i < 0 || i+1 == len(cmd) {
		return 0
	}
	port, err := strconv.Atoi(cmd[i+1])
	if err != nil {
		return 0 // PUT /egress says it
	}
	return port
}

// setEgress remembers which connections workerd wants to answer, and tells the daemon
// if the container is there.
func (s *Server) setEgress(ctx context.Context, o *sidecarOf, e sidecar.Egress) error {
	o.mu.Lock()
	changed := o.egress.Offline != e.Offline || !slices.Equal(o.egress.Names, e.Names)
	o.egress = e
	box := o.box
	o.mu.Unlock()
	if box == "" || !changed {
		return nil
	}
	if err := s.handleEgress(o).await(ctx); err != nil {
		return err
	}
	network := o.network()
	if network.Mode == "" {
		network.Mode = sandbox.AllowAll
	}
	_, err := s.cfg.Sandboxes.Update(ctx, box, sandbox.UpdateParams{Network: &network})
	if code := cay.CodeOf(err); code == cay.NotFound || code == cay.Stopped {
		return nil // the container has ended; the next one asks for the network
	}
	return err
}

// attachSidecar tells a sidecar which sandbox shares its network.
func (s *Server) attachSidecar(id, box string) {
	if c := s.sides.find(id); c != nil {
		c.side.mu.Lock()
		c.side.box = box
		c.side.mu.Unlock()
		s.handleEgress(c.side)
	}
}

// handleEgress has the connections that workerd wants to answer offered to its sidecar,
// unless they are already. Nil: it wants none.
func (s *Server) handleEgress(o *sidecarOf) *egressHandler {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.handler; h != nil {
		select {
		case <-h.ended:
		default:
			if h.box == o.box {
				return h
			}
			h.cancel()
		}
		o.handler = nil
	}
	if o.box == "" || o.proxy == nil || len(o.egress.Names) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(s.ctx)
	h := &egressHandler{box: o.box, cancel: cancel, ready: make(chan struct{}), ended: make(chan struct{})}
	proxy := o.proxy
	o.handler = h
	s.tasks.Go(func() {
		defer cancel()
		defer close(h.ended)
		s.offer(ctx, h, proxy)
	})
	return h
}

// await waits until connections are offered.
func (h *egressHandler) await(ctx context.Context) error {
	if h == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handlerPatience)
	defer cancel()
	select {
	case <-h.ready:
	case <-h.ended: // with the sandbox
	case <-ctx.Done():
		return cay.Errorf(cay.Unavailable, "the container's outbound connections cannot be handed to workerd: the daemon does not answer")
	}
	return nil
}

// offer serves connections until the session of the sandbox or ctx ends.
func (s *Server) offer(ctx context.Context, h *egressHandler, proxy *sidecar.Proxy) {
	again := againFirst
	first := true
	for {
		err := s.cfg.Sandboxes.ServeOutbound(ctx, h.box, proxy.Outbound, func() {
			again = againFirst
			if first {
				first = false
				close(h.ready)
			}
		})
		switch cay.CodeOf(err) {
		case "", cay.NotFound, cay.Stopped:
			return
		case cay.AlreadyExists:
			s.cfg.Logger.WarnContext(ctx, "another program handles the outbound connections of a container", "sandbox", h.box)
			return
		}
		wait := time.NewTimer(again)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
		again = min(2*again, againMost)
	}
}
