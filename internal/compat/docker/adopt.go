package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sessionLabel is on every container of workerd.
const sessionLabel = "dev.workerd.session"

// adopt takes over the containers that a server before this one has left.
func (s *Server) adopt(ctx context.Context) error {
	all, err := s.listed(ctx, map[string]string{tagKind: kindContainer})
	if err != nil {
		return err
	}
	for _, c := range all {
		if r := c.Spec.Sidecar; r != nil {
			if err := s.sides.restore(s, r, c); err != nil {
				s.cfg.Logger.WarnContext(ctx, "a sidecar cannot be served again", "container", r.Name, "error", err)
			}
		}
	}
	// A container that cannot be looked after now is looked after by the next sweep.
	if err := s.Sweep(ctx); err != nil {
		s.cfg.Logger.WarnContext(ctx, "sweep containers", "error", err)
	}
	return nil
}

// Sweep extends the leases of containers, and removes those of workerds that have
// ended without doing so.
func (s *Server) Sweep(ctx context.Context) error {
	known := s.lives.ids() // before the list: what is made after it is not gone
	all, err := s.all(ctx)
	if err != nil {
		return err
	}
	var failed []error
	exists := map[string]bool{}
	for _, c := range all {
		exists[c.ID] = true
		if c.Spec.Labels[sessionLabel] != "" && c.Spec.Owner.ended() {
			s.cfg.Logger.InfoContext(ctx, "remove a container whose workerd has ended", "container", c.Name)
			err := s.changing(ctx, c, func(v *live, c *container) error { return s.remove(ctx, v, c) })
			if status, _ := shape(err); err != nil && status != http.StatusNotFound {
				failed = append(failed, fmt.Errorf("remove %s: %w", c.Name, err))
			}
			continue
		}
		s.attend(c)
		if c.unfinished() {
			s.watch(s.lives.of(c.ID), c)
			if err := s.republish(ctx, c); err != nil {
				failed = append(failed, fmt.Errorf("publish ports of %s again: %w", c.Name, err))
			}
		}
		if c.box == nil || c.box.Status.Final() {
			continue
		}
		if err := s.extend(ctx, c.box); err != nil {
			failed = append(failed, fmt.Errorf("extend the time of %s: %w", c.Name, err))
		}
	}
	s.lives.keep(known, exists)
	return errors.Join(failed...)
}

// republish listens on the ports of a running container that this server does not
// listen on: a server before it did, or the port was taken when it tried before.
func (s *Server) republish(ctx context.Context, c *container) error {
	missing := func(v *live, c *container) (ports []string) {
		v.mu.Lock()
		defer v.mu.Unlock()
		for port := range c.State.Ports {
			if !slices.ContainsFunc(v.ports, func(p *published) bool { return p.port == port }) {
				ports = append(ports, port)
			}
		}
		return ports
	}
	if len(missing(s.lives.of(c.ID), c)) == 0 {
		return nil
	}
	return s.changing(ctx, c, func(v *live, c *container) error {
		if !c.running() {
			return nil
		}
		var failed []error
		for _, port := range missing(v, c) {
			p, err := s.publish(c, port, c.State.Ports[port])
			if err != nil {
				failed = append(failed, err)
				continue
			}
			v.set(func() { v.ports = append(v.ports, p) })
		}
		return errors.Join(failed...)
	})
}

// RemoveSessions removes the containers that the server has created for workerds,
// whether those workerds have ended or not.
func (s *Server) RemoveSessions(ctx context.Context) error {
	var failed []error
	for _, id := range s.lives.sessions() {
		c, err := s.find(ctx, id)
		if err == nil {
			err = s.changing(ctx, c, func(v *live, c *container) error { return s.remove(ctx, v, c) })
		}
		if status, _ := shape(err); err != nil && status != http.StatusNotFound {
			failed = append(failed, fmt.Errorf("remove container %s: %w", id, err))
		}
	}
	return errors.Join(failed...)
}

// extend gives a sandbox more time when less than half of its lease is left. At the
// daemon's maximum its time ends all the same.
func (s *Server) extend(ctx context.Context, box *sandbox.Sandbox) error {
	if box.ExpiresAt == nil || time.Until(*box.ExpiresAt) > lease/2 {
		return nil
	}
	_, err := s.cfg.Sandboxes.Extend(ctx, box.ID, sandbox.Duration(lease/2))
	switch cay.CodeOf(err) {
	case cay.Invalid, cay.Stopped, cay.NotFound, cay.Conflict:
		return nil
	}
	return err
}
