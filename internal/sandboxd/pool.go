package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/clock"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// PoolConfig configures a pool. Zero fields get the defaults of sandbox.CreateParams.
type PoolConfig struct {
	Image, Runtime   string
	VCPUs            float64
	MemoryMB, DiskMB int64
	Size             int // how many machines to keep waiting
}

const (
	// poolAge is the age at which a waiting machine is replaced, because its settings,
	// such as the certificates that it trusts, may be outdated.
	poolAge = 6 * time.Hour
	// poolRetry is the delay before the first retry of a failed start. It doubles up to
	// maxPoolRetry.
	poolRetry    = time.Second
	maxPoolRetry = 5 * time.Minute
)

// pools holds the machines that have booted and were never used. They belong to no team,
// have no row, are in no list, and end with the engine.
//
// A pool owns a machine until take. From then on the taker owns it: it turns the machine
// into a sandbox's, gives it back untouched, or destroys it. A machine never goes back to
// its pool after its guest got an identity.
//
// A single goroutine, keep, starts machines, one at a time and only while nothing else
// needs the CPU. It wakes when a machine was taken or has died, when an image has
// changed, and when a retry is due.
type pools struct {
	e    *Engine
	wake chan struct{} // one token: something changed

	mu       sync.Mutex // guards the fields below, and the fields of each pool marked so
	all      []*pool    // the slice is never changed
	closed   bool
	taken    bool          // a machine was taken since the last pause
	claiming int           // machines taken whose claim has not ended
	lull     chan struct{} // closed when claiming is 0; nil unless keep waits for it
	timer    clock.Timer   // wakes keep
}

// pool holds the waiting machines of one kind.
type pool struct {
	size int

	// Guarded by pools.mu.
	state                 sandbox.Pool
	ready                 []*pooled // oldest first
	digest, runtimeDigest string    // of the images that its references name now; "" if not known yet
	failures              int       // consecutive failures
	retryAt               time.Duration
}

// pooled is a waiting machine. Its session and row belong to no sandbox.
type pooled struct {
	pool *pool
	m    *session
	r    *store.Row
	born time.Duration // Clock.Mono
	// taken is closed when the pool stops watching the machine.
	taken chan struct{}
}

// newPools returns the pools of an engine. Pools of size 0 are left out.
func newPools(e *Engine, configs []PoolConfig) *pools {
	ps := &pools{e: e, wake: make(chan struct{}, 1)}
	for _, c := range configs {
		p := sandbox.CreateParams{Image: c.Image, Runtime: c.Runtime, VCPUs: c.VCPUs, MemoryMB: c.MemoryMB, DiskMB: c.DiskMB}.WithDefaults()
		imageDefaults(&p)
		if c.Size > 0 {
			ps.all = append(ps.all, &pool{size: c.Size, state: sandbox.Pool{
				Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, DiskMB: p.DiskMB, Target: c.Size,
			}})
		}
	}
	// The smallest pool first: a request takes from the first pool that fits.
	slices.SortStableFunc(ps.all, func(a, b *pool) int {
		if d := a.state.MemoryMB - b.state.MemoryMB; d != 0 {
			return int(d)
		}
		return int(100 * (a.state.VCPUs - b.state.VCPUs))
	})
	return ps
}

// Pools implements Pools.
func (e *Engine) Pools(ctx context.Context) ([]sandbox.Pool, error) {
	if err := api.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	e.pools.mu.Lock()
	defer e.pools.mu.Unlock()
	states := make([]sandbox.Pool, 0, len(e.pools.all))
	for _, p := range e.pools.all {
		states = append(states, p.state)
	}
	return states, nil
}

// ImagesChanged tells the pools that references may name other images now: machines of
// the old images are replaced.
func (e *Engine) ImagesChanged() { e.pools.changed() }

// changed wakes keep.
func (ps *pools) changed() {
	select {
	case ps.wake <- struct{}{}:
	default:
	}
}

// tellLocked updates the pool's state, and reports it to the metrics.
func (ps *pools) tellLocked(p *pool) {
	p.state.Ready = len(p.ready)
	ps.e.cfg.Metrics.Pool(p.state)
}

// refill fills the pools until the engine closes, and then destroys the waiting machines.
func (ps *pools) refill() {
	ctx := ps.e.ctx
	defer ps.close()
	for ctx.Err() == nil {
		p, _ := ps.next(ctx)
		if p == nil {
			select {
			case <-ps.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := ps.pause(ctx)
		if err == nil {
			// A taken machine may have been given back meanwhile, or may still be.
			lacking, certain := ps.next(ctx)
			if lacking == nil || !certain {
				continue
			}
			p = lacking
			err = ps.add(ctx, p)
		}
		if err != nil && ctx.Err() == nil {
			ps.failed(ctx, p, err)
		}
	}
}

// pause waits until a start would delay nobody.
func (ps *pools) pause(ctx context.Context) error {
	for {
		ps.mu.Lock()
		taken := ps.taken
		ps.taken = false
		ps.mu.Unlock()
		if err := ps.e.cfg.SpareCPU(ctx, taken); err != nil {
			return err
		}
		if err := ps.e.boots.Quiet(ctx); err != nil {
			return err
		}
		ps.mu.Lock()
		if ps.claiming == 0 {
			ps.mu.Unlock()
			return nil
		}
		if ps.lull == nil {
			ps.lull = make(chan struct{})
		}
		lull := ps.lull
		ps.mu.Unlock()
		select {
		case <-lull:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next destroys machines that are no longer wanted, and returns the pool that most needs
// a machine; nil if no pool does, or none may retry yet. certain is false while taken
// machines may still be given back.
func (ps *pools) next(ctx context.Context) (_ *pool, certain bool) {
	digests := make([][2]string, len(ps.all))
	for i, p := range ps.all {
		var err error
		digests[i][0], digests[i][1], err = ps.e.digests(ctx, "", p.state.Image, p.state.Runtime)
		if err != nil && cay.CodeOf(err) != cay.NotFound { // the next start builds or pulls a missing image
			ps.e.log.WarnContext(ctx, "image of a pool cannot be looked up", "image", p.state.Image, "runtime", p.state.Runtime, "error", err)
		}
	}
	var (
		unwanted []*pooled
		next     *pool
		need     float64 // the missing share of next
	)
	now := ps.e.clock.Mono()
	look := now + poolAge // when to run again
	ps.mu.Lock()
	for i, p := range ps.all {
		p.digest, p.runtimeDigest = digests[i][0], digests[i][1]
		fresh, renewAt := 0, now+poolAge
		p.ready = slices.DeleteFunc(p.ready, func(w *pooled) bool {
			stale := w.r.Digest != p.digest || w.r.RuntimeDigest != p.runtimeDigest
			if stale {
				unwanted = append(unwanted, w)
			} else if at := w.born + poolAge; at > now {
				fresh++
				renewAt = min(renewAt, at)
			}
			return stale
		})
		// An aged machine stays in the pool until its replacement is ready.
		for len(p.ready) > p.size {
			unwanted = append(unwanted, p.ready[0])
			p.ready = p.ready[1:]
		}
		ps.tellLocked(p)
		missing := float64(p.size-fresh) / float64(p.size)
		switch {
		case missing <= 0:
			look = min(look, renewAt)
		case p.retryAt > now:
			look = min(look, p.retryAt)
		case missing > need:
			next, need = p, missing
		}
	}
	clock.Stop(&ps.timer)
	if next == nil && !ps.closed {
		ps.timer = ps.e.clock.At(look, ps.changed)
	}
	for _, w := range unwanted {
		close(w.taken)
	}
	certain = ps.claiming == 0
	ps.mu.Unlock()
	ps.destroy(unwanted)
	return next, certain
}

// add starts a machine for a pool.
func (ps *pools) add(ctx context.Context, p *pool) error {
	var waiting int64
	ps.mu.Lock()
	for _, p := range ps.all {
		waiting += int64(len(p.ready))
	}
	p.state.Starting = 1
	ps.tellLocked(p)
	ps.mu.Unlock()

	var w *pooled
	err := checkRoom(waiting)
	if err == nil {
		w, err = ps.e.startPooled(ctx, p)
	}
	ps.mu.Lock()
	p.state.Starting = 0
	if err == nil {
		p.state.Problem, p.failures, p.retryAt = "", 0, 0
		p.digest, p.runtimeDigest = w.r.Digest, w.r.RuntimeDigest
		p.ready = append(p.ready, w)
	}
	ps.tellLocked(p)
	ps.mu.Unlock()
	if err != nil {
		return err
	}
	ps.e.at("pooled")
	ps.e.background(func() { ps.watch(w) }) // if the engine is closing, close destroys the machine
	return nil
}

// failed schedules a retry of a failed start.
func (ps *pools) failed(ctx context.Context, p *pool, err error) {
	ps.e.log.WarnContext(ctx, "machine of a pool was not started", "image", p.state.Image, "runtime", p.state.Runtime, "error", err)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.state.Problem = publicMessage(err)
	p.retryAt = ps.e.clock.Mono() + min(poolRetry<<min(p.failures, 16), maxPoolRetry)
	p.failures++
	ps.tellLocked(p)
}

// startPooled starts a machine for no sandbox. Its policy denies all traffic, and only
// this engine has its token.
func (e *Engine) startPooled(ctx context.Context, p *pool) (_ *pooled, err error) {
	r := &store.Row{Run: store.Run{GuestToken: ident.NewToken()}}
	r.SessionID, r.Network = ident.NewSession(), sandbox.Network{Mode: sandbox.DenyAll}
	r.Image, r.Runtime, r.VCPUs, r.MemoryMB, r.DiskMB = p.state.Image, p.state.Runtime, p.state.VCPUs, p.state.MemoryMB, p.state.DiskMB
	m := e.newSession(r)
	defer func() {
		if err != nil {
			e.dispose(&pooled{m: m, r: r})
		}
	}()
	spec, done, err := e.prepare(ctx, m, r)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.StartTimeout,
		cay.Errorf(cay.Unavailable, "it did not start within %v", e.cfg.Limits.StartTimeout))
	defer cancel()
	if m.inst, err = e.cfg.Runtime.Start(ctx, spec); err != nil {
		return nil, startError(ctx, err)
	}
	e.at("pool-started")
	if err := e.handshake(ctx, m, r, nil); err != nil {
		return nil, err
	}
	if err := e.warm(ctx, m, r); err != nil {
		return nil, err
	}
	return &pooled{pool: p, m: m, r: r, born: e.clock.Mono(), taken: make(chan struct{})}, nil
}

// warm runs a program in a machine that is to wait, the program that its sandbox probably
// runs first. The work that the guest and gVisor do only once takes a fifth of that
// program's time. Identify removes all traces of the command; see guest.Client.Identify.
func (e *Engine) warm(ctx context.Context, m *session, r *store.Row) error {
	p := sandbox.CommandParams{Argv: []string{"true"}}
	if r.Runtime != "" {
		p.Argv = []string{strings.TrimRight(r.Runtime, ".0123456789"), "--version"}
	}
	p.Env = r.ImageEnv
	c, err := m.guest.Start(ctx, p)
	if cay.CodeOf(err) == cay.ExecutableMissing {
		return nil // the image has no such program, and needs no warming
	}
	if err == nil {
		_, err = m.guest.Wait(ctx, c.ID)
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", p.Argv[0], e.healthError(ctx, m, err))
	}
	return nil
}

// watch removes a machine from its pool if it ends while it waits.
func (ps *pools) watch(w *pooled) {
	select {
	case <-w.taken:
		return
	case <-ps.e.ctx.Done(): // close destroys the machine
		return
	case <-w.m.inst.Done():
	}
	ps.mu.Lock()
	at := slices.Index(w.pool.ready, w)
	if at < 0 { // the machine was taken; its taker notices
		ps.mu.Unlock()
		return
	}
	w.pool.ready = slices.Delete(w.pool.ready, at, at+1)
	close(w.taken)
	ps.tellLocked(w.pool)
	ps.mu.Unlock()
	ps.e.log.Warn("machine ended while it waited in a pool", "machine", w.m.id, "reason", w.m.inst.Exit().Message)
	ps.e.dispose(w)
	ps.changed()
}

// close destroys all waiting machines.
func (ps *pools) close() {
	ps.mu.Lock()
	ps.closed = true
	clock.Stop(&ps.timer)
	var all []*pooled
	for _, p := range ps.all {
		all = append(all, p.ready...)
		p.ready = nil
		ps.tellLocked(p)
	}
	ps.mu.Unlock()
	ps.destroy(all)
}

func (ps *pools) destroy(all []*pooled) {
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, w := range all {
		g.Go(func() error {
			ps.e.dispose(w)
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// dispose destroys a machine that belongs to no sandbox. The sampler retries what cannot
// be removed now.
func (e *Engine) dispose(w *pooled) {
	ctx, cancel := context.WithTimeout(context.Background(), teardownTimeout)
	defer cancel()
	w.m.cancel(nil)
	w.m.free()
	if w.m.inst == nil {
		return
	}
	if err := w.m.inst.Destroy(ctx); err != nil {
		e.log.Error("machine of a pool was not ended yet", "machine", w.m.id, "error", err)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.leftover[w.m.id] = nil
	}
}

// digests returns the digests that an image and a runtime reference name for a team. The
// runtime may be empty.
func (e *Engine) digests(ctx context.Context, teamID, image, runtime string) (digest, runtimeDigest string, err error) {
	digest, err = e.cfg.Images.Digest(ctx, teamID, image)
	if runtime != "" {
		var rerr error
		runtimeDigest, rerr = e.cfg.Images.Digest(ctx, teamID, runtime)
		err = errors.Join(err, rerr)
	}
	return digest, runtimeDigest, err
}
