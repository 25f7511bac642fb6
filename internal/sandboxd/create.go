package sandboxd

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// defaultImage and defaultRuntime are what a sandbox is made of when nothing
// else is asked for.
const (
	defaultImage   = "debian"
	defaultRuntime = "node24"
)

// Create implements Service.
func (e *Engine) Create(ctx context.Context, p sandbox.CreateParams) (*sandbox.Sandbox, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	q, err := e.request(ctx, sc, p)
	if err != nil {
		return nil, err
	}
	for {
		if err := e.seal(&q); err != nil {
			return nil, err
		}
		m := e.newMachine(q.row)
		// Registered before its row can be seen, so that who finds the row
		// pending finds the machine too.
		if err := e.add(m); err != nil {
			return nil, err
		}
		earlier, err := e.store.insert(ctx, q)
		if err != nil || earlier != "" {
			e.drop(m)
			m.cancel(nil)
		}
		switch {
		case err != nil:
			return nil, err
		case earlier == "":
			e.at("inserted")
			return e.boot(ctx, m, q.row)
		}
		s, err := e.await(ctx, sc, earlier)
		if !errors.Is(err, errCreatorLeft) {
			return s, err
		}
		// Whoever was first gave up. It is our turn.
		q.row.ID, q.row.guestToken = newID(), newGuestToken()
	}
}

// request turns checked parameters into a row to insert.
func (e *Engine) request(ctx context.Context, sc scope, p sandbox.CreateParams) (request, error) {
	if err := p.Validate(); err != nil {
		return request{}, err
	}
	asked, err := json.Marshal(p)
	if err != nil {
		return request{}, fmt.Errorf("encode parameters: %w", err)
	}
	hash := e.requestHash(asked, p.Network.HasSecrets())

	p = p.WithDefaults()
	if err := p.Network.Limits.Within(e.cfg.Limits.Network); err != nil {
		return request{}, err
	}
	ports, err := declare(p.Ports)
	if err != nil {
		return request{}, err
	}
	for i := range ports {
		ports[i].Label = newLabel()
	}
	e.store.setURLs(ports)
	limits := e.cfg.Limits
	switch {
	case p.VCPUs > limits.MaxVCPUs:
		return request{}, cay.Errorf(cay.Invalid, "vcpus %g is more than this daemon's maximum of %g", p.VCPUs, limits.MaxVCPUs)
	case p.MemoryMB > limits.MaxMemoryMB:
		return request{}, cay.Errorf(cay.Invalid, "memory_mb %d is more than this daemon's maximum of %d", p.MemoryMB, limits.MaxMemoryMB)
	case p.DiskMB > limits.MaxDiskMB:
		return request{}, cay.Errorf(cay.Invalid, "disk_mb %d is more than this daemon's maximum of %d", p.DiskMB, limits.MaxDiskMB)
	case time.Duration(p.Timeout) > limits.MaxTimeout:
		return request{}, cay.Errorf(cay.Invalid, "timeout %v is more than this daemon's maximum of %v", p.Timeout, limits.MaxTimeout)
	}
	project, err := e.project(ctx, sc, p.ProjectID)
	if err != nil {
		return request{}, err
	}
	quota, err := e.cfg.Accounts.Quota(ctx, sc.team)
	if err != nil {
		return request{}, fmt.Errorf("read quota: %w", err)
	}
	if p.Name == "" {
		p.Name = newName()
	}
	if p.Image == "" {
		p.Image = defaultImage
		if p.Runtime == "" {
			p.Runtime = defaultRuntime
		}
	}
	now := e.now()
	return request{key: p.IdempotencyKey, hash: hash, quota: quota, network: p.Network, row: &row{
		Sandbox: sandbox.Sandbox{
			ID: newID(), Name: p.Name, TeamID: sc.team, ProjectID: project, Status: sandbox.Pending,
			Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, DiskMB: p.DiskMB,
			Env: p.Env, Tags: p.Tags, User: p.User, WorkDir: p.WorkDir, Ports: ports,
			Timeout: sandbox.Duration(time.Duration(p.Timeout).Truncate(time.Millisecond)), IdleTimeout: p.IdleTimeout,
			CreatedAt: now, UpdatedAt: now,
		},
		guestToken: newGuestToken(),
	}}, nil
}

// requestHash tells requests apart. What it is of cannot be found out by trying
// if that holds secrets.
func (e *Engine) requestHash(asked []byte, secrets bool) []byte {
	if !secrets {
		sum := sha256.Sum256(asked)
		return sum[:]
	}
	mac := hmac.New(sha256.New, e.cfg.Secrets.Key("idempotency"))
	mac.Write(asked)
	return mac.Sum(nil)
}

// seal puts the policy of a request into its row.
func (e *Engine) seal(q *request) error {
	kept, err := e.keep(q.row.ID, q.network)
	q.row.Network, q.row.sealed = kept.shown, kept.sealed
	return err
}

// errCreatorLeft is why the creation of a sandbox was given up when its caller left.
var errCreatorLeft = cay.Errorf(cay.Canceled, "the caller gave up while the sandbox was being created")

// await returns the sandbox an earlier request made, once that has ended, or
// the error it ended with.
func (e *Engine) await(ctx context.Context, sc scope, id string) (*sandbox.Sandbox, error) {
	if m := e.machine(id); m != nil {
		select {
		case <-m.created:
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
		if m.createErr != nil {
			return nil, m.createErr
		}
	}
	return e.Get(ctx, id)
}

// boot brings a pending sandbox to running. If it fails, or the caller leaves,
// nothing but the row remains, which says why.
func (e *Engine) boot(ctx context.Context, m *machine, r *row) (*sandbox.Sandbox, error) {
	defer close(m.created)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()

	err := e.start(ctx, m, r)
	if err == nil {
		e.at("running")
		e.log.InfoContext(ctx, "sandbox created", "sandbox", m.id, "team", r.TeamID, "project", r.ProjectID, "image", r.Image, "runtime", r.Runtime)
		return &r.Sandbox, nil
	}
	switch {
	case m.ctx.Err() != nil: // stopped, deleted, or the daemon is stopping
		err = context.Cause(m.ctx)
	case ctx.Err() == context.Canceled:
		err = errCreatorLeft
	case ctx.Err() != nil:
		err = contextError(ctx)
	}
	m.createErr = err
	e.cfg.Metrics.CreateFailed(cay.CodeOf(err))
	e.log.InfoContext(ctx, "sandbox was not created", "sandbox", m.id, "error", err)

	// Clean up whatever happens to the caller.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer done()
	m.failure.Store(&failure{sandbox.Pending, sandbox.ReasonStart, publicMessage(err)})
	m.detach(err)
	if ferr := e.finish(ctx, m); ferr != nil {
		e.log.ErrorContext(ctx, "failed creation was not cleaned up yet", "sandbox", m.id, "error", ferr)
	}
	return nil, err
}

// publicMessage is what of an error a row may show.
func publicMessage(err error) string {
	var e *cay.Error
	if !errors.As(err, &e) || e.Code == cay.Internal {
		return "internal error; see the daemon's log"
	}
	return e.Message
}

// start does the steps of boot.
func (e *Engine) start(ctx context.Context, m *machine, r *row) error {
	spec, err := e.prepare(ctx, m, r)
	if err != nil {
		return err
	}
	e.at("images")

	// No bound of its own on the wait: each boot before it is bounded.
	if err := e.boots.enter(ctx, r.TeamID); err != nil {
		return err
	}
	defer e.boots.leave()
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.StartTimeout,
		cay.Errorf(cay.Unavailable, "the sandbox did not start within %v", e.cfg.Limits.StartTimeout))
	defer cancel()

	begun := e.clock.Mono()
	m.inst, err = e.cfg.Runtime.Start(ctx, spec)
	if err != nil {
		return fmt.Errorf("start machine: %w", startError(ctx, err))
	}
	m.follow()
	e.cfg.Metrics.CreatePhase("start", e.clock.Mono()-begun)
	e.at("started")

	begun = e.clock.Mono()
	m.reach(r.guestToken)
	h, err := m.guest.Health(ctx)
	if err != nil {
		return fmt.Errorf("reach guest: %w", e.healthError(ctx, m, err))
	}
	e.trustAtStart(ctx, m, r.Network, h.Trust)
	e.cfg.Metrics.CreatePhase("guest", e.clock.Mono()-begun)
	e.at("healthy")

	m.imageEnv, m.env = r.imageEnv, r.Env
	now := e.now()
	expires := now.Add(time.Duration(r.Timeout))
	r.Status, r.StartedAt, r.ExpiresAt, r.UpdatedAt = sandbox.Running, &now, &expires, now
	r.startedMono, r.boot = e.clock.Mono(), e.clock.Boot()
	ok, err := e.store.started(ctx, r)
	if err != nil {
		return err
	}
	if !ok {
		// Stop or Delete came first; m.ctx says so in a moment if not yet.
		<-m.ctx.Done()
		return context.Cause(m.ctx)
	}
	e.run(m, r)
	return nil
}

// prepare gets the images of a sandbox and describes its machine.
func (e *Engine) prepare(ctx context.Context, m *machine, r *row) (Spec, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.ImageTimeout,
		cay.Errorf(cay.Unavailable, "the image was not ready within %v", e.cfg.Limits.ImageTimeout))
	defer cancel()
	begun := e.clock.Mono()
	defer func() { e.cfg.Metrics.CreatePhase("image", e.clock.Mono()-begun) }()

	root, err := e.lease(ctx, m, r.Image)
	if err != nil {
		return Spec{}, fmt.Errorf("get image %q: %w", r.Image, err)
	}
	network, err := e.network(r)
	if err != nil {
		return Spec{}, err
	}
	spec := Spec{
		ID: r.ID, Hostname: hostname(r.Name), RootFS: root.Path,
		VCPUs: r.VCPUs, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB, Network: network, Init: e.cfg.Tool.Init,
	}
	if e.cfg.Tool.Mount.Source != "" {
		spec.Mounts = append(spec.Mounts, e.cfg.Tool.Mount)
	}
	var runtimeEnv []string
	if r.Runtime != "" {
		rt, err := e.lease(ctx, m, r.Runtime)
		if err != nil {
			return Spec{}, fmt.Errorf("get runtime %q: %w", r.Runtime, err)
		}
		spec.Mounts = append(spec.Mounts, Mount{Source: rt.Path, Target: runtimeDir + r.Runtime})
		runtimeEnv, r.runtimeDigest = rt.Image.Config.Env, rt.Image.Digest
	}
	r.Digest = root.Image.Digest
	r.imageEnv = baseEnv(root.Image.Config.Env, runtimeEnv, r.Runtime)
	r.User = firstOf(r.User, root.Image.Config.User, "root")
	r.WorkDir = firstOf(r.WorkDir, root.Image.Config.WorkDir, "/")
	spec.GuestConfig, err = json.Marshal(guest.Config{
		Hostname: spec.Hostname, TokenSHA256: guest.HashToken(r.guestToken), User: r.User, WorkDir: r.WorkDir,
		Gateway: e.cfg.Gateway, Nameserver: e.cfg.Nameserver, Certificates: bootCertificates(e.certificates(r.Network)),
	})
	return spec, err
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// lease takes a lease the machine gives back when it is freed.
func (e *Engine) lease(ctx context.Context, m *machine, ref string) (*Lease, error) {
	l, err := e.cfg.Images.Ensure(ctx, ref)
	if err != nil {
		return nil, startError(ctx, err)
	}
	m.leases = append(m.leases, l)
	return l, nil
}

// startError prefers the reason ctx ended for to what it made a step fail with.
func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return contextError(ctx)
	}
	return err
}

// healthError says why a new guest does not answer.
func (e *Engine) healthError(ctx context.Context, m *machine, err error) error {
	select {
	case <-m.inst.Done():
		x := m.inst.Exit()
		return cay.Errorf(cay.Unavailable, "the sandbox ended while it started (%s): %s", x.Reason, x.Message)
	default:
		return startError(ctx, err)
	}
}

// run arms what watches over a machine that runs, unless it is to end already.
func (e *Engine) run(m *machine, r *row) {
	m.lastActive.Store(int64(e.clock.Mono()))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started, m.timeout, m.idle = r.startedMono, time.Duration(r.Timeout), time.Duration(r.IdleTimeout)
	m.usage, m.base, m.saved = r.Usage, r.Usage, r.Usage
	if m.detached {
		return
	}
	m.status = r.Status
	e.armDeadlineLocked(m)
	e.armIdleLocked(m, 0)
	e.background(func() { e.watch(m) })
}
