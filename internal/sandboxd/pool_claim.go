package sandboxd

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
)

// take takes a machine out of a pool for a sandbox whose row is about to be inserted; nil
// if no machine fits. The caller ends the claim with giveBack or released.
func (ps *pools) take(ctx context.Context, r *store.Row) *pooled {
	if !ps.suits(r) {
		return nil
	}
	digest, runtimeDigest, err := ps.e.digests(ctx, r.TeamID, r.Image, r.Runtime)
	if err != nil {
		return nil // a regular start makes the image, or returns the error
	}
	w, useless := ps.takeReady(r, digest, runtimeDigest)
	if len(useless) > 0 && !ps.e.background(func() { ps.destroy(useless) }) {
		ps.destroy(useless)
	}
	return w
}

// takeReady is take with known digests. The machines in useless were taken too, and must
// be destroyed.
func (ps *pools) takeReady(r *store.Row, digest, runtimeDigest string) (_ *pooled, useless []*pooled) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var missed *pool
	for _, p := range ps.all {
		if !p.fits(r) || p.state.Image != r.Image && p.digest != digest {
			continue
		}
		if missed == nil {
			missed = p
		}
		for len(p.ready) > 0 {
			w := p.ready[0]
			p.ready = p.ready[1:]
			close(w.taken)
			ps.tellLocked(p)
			ps.changed()
			if w.r.Digest == digest && w.r.RuntimeDigest == runtimeDigest && !isClosed(w.m.inst.Done()) {
				ps.claiming++
				ps.taken = true
				return w, useless
			}
			useless = append(useless, w)
		}
	}
	if missed != nil {
		missed.state.Misses++
		ps.tellLocked(missed)
	}
	return nil, useless
}

// suits reports whether a pool may have a machine for a sandbox.
func (ps *pools) suits(r *store.Row) bool {
	if r.SnapshotID != "" || len(r.Mounts) > 0 || r.Privileges != "" {
		return false
	}
	for _, p := range ps.all {
		if p.fits(r) {
			return true
		}
	}
	return false
}

// fits reports whether machines of the pool fit a sandbox, apart from their images. A
// machine's CPU and memory limits can be lowered; the sizes that its programs see cannot.
func (p *pool) fits(r *store.Row) bool {
	return p.state.Runtime == r.Runtime && p.state.DiskMB == r.DiskMB &&
		r.VCPUs <= p.state.VCPUs && r.MemoryMB <= p.state.MemoryMB
}

// released ends a claim that take began. claimed says that a sandbox has the machine now.
func (ps *pools) released(w *pooled, claimed bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.releasedLocked(w, claimed)
}

func (ps *pools) releasedLocked(w *pooled, claimed bool) {
	if claimed {
		w.pool.state.Claims++
		ps.tellLocked(w.pool)
	}
	if ps.claiming--; ps.claiming == 0 && ps.lull != nil {
		close(ps.lull)
		ps.lull = nil
	}
}

// giveBack returns a taken machine that was not touched.
func (ps *pools) giveBack(w *pooled) {
	if w == nil {
		return
	}
	ps.mu.Lock()
	back := !ps.closed && len(w.pool.ready) < w.pool.size && !isClosed(w.m.inst.Done())
	if back {
		// A new value, because the old one's watch goroutine may not have seen taken
		// closed yet.
		w = &pooled{pool: w.pool, m: w.m, r: w.r, born: w.born, taken: make(chan struct{})}
		w.pool.ready = append([]*pooled{w}, w.pool.ready...) // oldest first
		ps.tellLocked(w.pool)
	}
	ps.releasedLocked(w, false) // now, so that keep does not start a replacement
	ps.mu.Unlock()
	if !back {
		ps.e.dispose(w)
		return
	}
	ps.e.background(func() { ps.watch(w) }) // if the engine is closing, close destroys the machine
}

// claim turns the machine taken for r into its sandbox's. If the machine is not usable,
// which is never the caller's fault, claim takes the next one. It returns false if no
// machine is left, and the sandbox is to be started without a pool.
func (e *Engine) claim(ctx context.Context, m *session, r *store.Row) (bool, error) {
	begun := e.clock.Mono()
	for w := m.pooled; w != nil; {
		err := e.become(ctx, m, r, w)
		e.pools.released(w, err == nil)
		if err == nil {
			e.cfg.Metrics.CreatePhase("claim", e.clock.Mono()-begun)
			return true, nil
		}
		if ctx.Err() != nil {
			return false, err // the machine is destroyed with the sandbox
		}
		e.log.WarnContext(ctx, "machine of a pool was not usable", "machine", w.m.id, "error", err)
		w.m.leases, m.leases = m.leases, nil
		m.inst, m.guest, m.relay = nil, nil, nil
		m.trusted.Store(nil)
		e.dispose(w)

		w = e.pools.take(ctx, r)
		if err := e.changeSession(ctx, m, r, w); err != nil {
			e.pools.giveBack(w)
			return false, err
		}
	}
	return false, nil
}

// become turns a waiting machine into a sandbox's. The policy is in force before the
// guest gets the sandbox's identity.
func (e *Engine) become(ctx context.Context, m *session, r *store.Row, w *pooled) error {
	m.inst, m.guest, m.leases = w.m.inst, w.m.guest, w.m.leases
	m.trusted.Store(w.m.trusted.Load())

	next := *r
	next.Digest, next.RuntimeDigest, next.ImageEnv = w.r.Digest, w.r.RuntimeDigest, w.r.ImageEnv
	next.User, next.WorkDir = cmp.Or(r.User, w.r.User), cmp.Or(r.WorkDir, w.r.WorkDir)
	network, err := e.network(r)
	if err != nil {
		return err
	}
	if r.VCPUs != w.r.VCPUs || r.MemoryMB != w.r.MemoryMB {
		if err := m.inst.SetLimits(r.VCPUs, r.MemoryMB); err != nil {
			return err
		}
	}
	m.follow()
	if err := m.inst.SetNetwork(network); err != nil {
		return fmt.Errorf("set network: %w", err)
	}
	e.at("claimed")
	patience, cancel := context.WithTimeout(ctx, guestPatience)
	defer cancel()
	if err := e.identify(patience, m, &next); err != nil {
		return err
	}
	*r = next
	e.at("identified")
	e.trustAtStart(ctx, m, r.Network, guest.Trust{})
	return nil
}

// changeSession changes the session of a pending sandbox to w's or, if w is nil, to a new
// one for a machine still to be started.
func (e *Engine) changeSession(ctx context.Context, m *session, r *store.Row, w *pooled) error {
	id := ident.NewSession()
	if w != nil {
		id = w.m.id
	}
	ok, err := e.store.ChangeSession(ctx, r, id)
	if err != nil {
		return err
	}
	if !ok { // Stop or Delete came first; m.ctx ends now or in a moment
		<-m.ctx.Done()
		return context.Cause(m.ctx)
	}
	r.SessionID = id
	e.setSession(m, id)
	return nil
}
