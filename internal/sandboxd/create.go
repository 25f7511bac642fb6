package sandboxd

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/limit"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// defaultImage and defaultRuntime apply when a request names neither an image nor a
// snapshot.
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
		pooled := e.pools.take(ctx, q.Row)
		if pooled != nil {
			q.Row.SessionID = pooled.m.id
		}
		m := e.newSession(q.Row)
		m.pooled = pooled
		// Register the session before its row is visible, so that a caller that finds the
		// row pending also finds the session.
		if _, err := e.add(m); err != nil {
			e.pools.giveBack(pooled)
			return nil, err
		}
		earlier, err := e.store.Insert(ctx, q)
		if err != nil || earlier != "" {
			e.pools.giveBack(pooled)
			e.discardSession(m, err)
		}
		switch {
		case err != nil:
			return nil, err
		case earlier == "":
			e.at("inserted")
			return e.boot(ctx, m, q.Row)
		}
		s, err := e.await(ctx, sc, earlier)
		if !errors.Is(err, errCreatorLeft) {
			return s, err
		}
		// The first request's caller left. Create the sandbox for this request.
		q.Row.ID, q.Row.SessionID, q.Row.GuestToken = ident.NewSandbox(), ident.NewSession(), ident.NewToken()
	}
}

// discardSession drops a registered session for which no row was inserted. Only Close may
// have seen the session.
func (e *Engine) discardSession(m *session, err error) {
	if err == nil {
		err = errRaced
	}
	m.createErr = err
	m.detach(err)
	e.drop(m)
	close(m.created)
	close(m.gone)
}

// request validates parameters and builds the row to insert.
func (e *Engine) request(ctx context.Context, sc store.Scope, p sandbox.CreateParams) (store.Request, error) {
	if err := p.Validate(); err != nil {
		return store.Request{}, err
	}
	asked, err := json.Marshal(p)
	if err != nil {
		return store.Request{}, fmt.Errorf("encode parameters: %w", err)
	}
	hash := e.requestHash(asked, p.Network.HasSecrets() || p.Source != nil)

	given := p
	p = p.WithDefaults()
	if err := p.Network.Limits.Within(e.cfg.Limits.Network); err != nil {
		return store.Request{}, err
	}
	ports, err := declare(p.Ports)
	if err != nil {
		return store.Request{}, err
	}
	for i := range ports {
		ports[i].Label = ident.NewLabel()
	}
	e.store.SetURLs(ports)
	limits := e.cfg.Limits
	switch {
	case p.VCPUs > limits.MaxVCPUs:
		return store.Request{}, cay.Errorf(cay.Invalid, "vcpus %g is more than this daemon's maximum of %g", p.VCPUs, limits.MaxVCPUs)
	case p.MemoryMB > limits.MaxMemoryMB:
		return store.Request{}, cay.Errorf(cay.Invalid, "memory_mb %d is more than this daemon's maximum of %d", p.MemoryMB, limits.MaxMemoryMB)
	case p.DiskMB > limits.MaxDiskMB:
		return store.Request{}, cay.Errorf(cay.Invalid, "disk_mb %d is more than this daemon's maximum of %d", p.DiskMB, limits.MaxDiskMB)
	case time.Duration(p.Timeout) > limits.MaxTimeout:
		return store.Request{}, cay.Errorf(cay.Invalid, "timeout %v is more than this daemon's maximum of %v", p.Timeout, limits.MaxTimeout)
	}
	if p.Privileges == sandbox.FullPrivileges {
		if e.cfg.Restricted {
			return store.Request{}, cay.Errorf(cay.Invalid, "privileges %q are more than this daemon allows", p.Privileges).
				WithHint("leave them out: its sandboxes are %s", sandbox.RestrictedPrivileges)
		}
		p.Privileges = "" // of an unrestricted daemon, the same
	}
	project, err := e.project(ctx, sc, p.ProjectID)
	if err != nil {
		return store.Request{}, err
	}
	quota, err := e.cfg.Accounts.Quota(ctx, sc.Team)
	if err != nil {
		return store.Request{}, fmt.Errorf("read quota: %w", err)
	}
	if err := e.cfg.CheckSpace(); err != nil {
		return store.Request{}, fmt.Errorf("create sandbox: %w", err)
	}
	persistent := p.Name != ""
	if p.Persistent != nil {
		persistent = *p.Persistent
	}
	if persistent && e.cfg.Snapshots == nil {
		if p.Persistent != nil {
			return store.Request{}, errNoSnapshots
		}
		persistent = false
	}
	if p.Name == "" {
		p.Name = ident.NewName()
	}
	if p.SaveEvery != 0 && !persistent {
		return store.Request{}, cay.Errorf(cay.Invalid, "save_every %v is for persistent sandboxes, and this one would not be", p.SaveEvery).
			WithHint("set persistent, or give the sandbox a name")
	}
	imageDefaults(&p)
	expiration := sandbox.Duration(e.cfg.Limits.SnapshotExpiration)
	if p.SnapshotExpiration != nil {
		expiration = *p.SnapshotExpiration
	}
	now := e.now()
	r := &store.Row{
		Sandbox: sandbox.Sandbox{
			ID: ident.NewSandbox(), Name: p.Name, TeamID: sc.Team, ProjectID: project, Status: sandbox.Pending,
			Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, DiskMB: p.DiskMB,
			Env: p.Env, Tags: p.Tags, Annotations: p.Annotations, User: p.User, WorkDir: p.WorkDir, Ports: ports, Mounts: p.Mounts,
			Privileges: p.Privileges, Persistent: persistent, SessionID: ident.NewSession(), SnapshotExpiration: expiration, Retention: p.Retention, SaveEvery: p.SaveEvery,
			Timeout: sandbox.Duration(time.Duration(p.Timeout).Truncate(time.Millisecond)), IdleTimeout: p.IdleTimeout,
			CreatedAt: now, UpdatedAt: now, StatusAt: now,
		},
		Run: store.Run{GuestToken: ident.NewToken(), FilesOnly: p.FilesOnly, Source: p.Source},
	}
	r.SessionTimeout = r.Timeout
	if p.Snapshot != "" {
		snap, err := e.startFromSnapshot(ctx, store.Scope{Team: sc.Team, Project: project}, r, given, p.Snapshot)
		if err != nil {
			return store.Request{}, err
		}
		if p.Network, err = e.inherited(snap, given.Network); err != nil {
			return store.Request{}, err
		}
	}
	return store.Request{Key: p.IdempotencyKey, Hash: hash, Quota: quota, Network: p.Network, Row: r}, nil
}

// imageDefaults fills in the default image and runtime.
func imageDefaults(p *sandbox.CreateParams) {
	if p.Image == "" && p.Snapshot == "" {
		p.Image = defaultImage
		if p.Runtime == "" {
			p.Runtime = defaultRuntime
		}
	}
}

// startFromSnapshot makes r start from a snapshot. Resources missing in the request are
// taken from the snapshot.
func (e *Engine) startFromSnapshot(ctx context.Context, sc store.Scope, r *store.Row, asked sandbox.CreateParams, ref string) (*store.SnapshotRow, error) {
	snap, err := e.store.FindSnapshot(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	if snap.Status == sandbox.SnapshotDeleted {
		return nil, cay.Errorf(cay.NotFound, "snapshot %q was deleted", ref)
	}
	if asked.DiskMB == 0 {
		r.DiskMB = snap.DiskMB
	}
	if r.DiskMB < snap.DiskMB {
		return nil, cay.Errorf(cay.Invalid, "disk_mb %d is less than the %d of snapshot %q", r.DiskMB, snap.DiskMB, ref)
	}
	if snap.Kind == sandbox.MemorySnapshot && !r.FilesOnly {
		if r.DiskMB != snap.DiskMB {
			return nil, cay.Errorf(cay.Invalid, "disk_mb %d is not the %d that the processes in snapshot %q were saved with", r.DiskMB, snap.DiskMB, ref).
				WithHint("leave it out, or start from the files alone")
		}
		if len(r.Mounts) > 0 {
			return nil, cay.Errorf(cay.NotSupported, "drives cannot be mounted into the processes of a memory snapshot").
				WithHint("start from its files alone")
		}
		r.Mounts = snap.Extra.Mounts // the processes in the snapshot have these mounted
	}
	if asked.VCPUs == 0 {
		r.VCPUs = snap.VCPUs
	}
	if asked.MemoryMB == 0 {
		r.MemoryMB = snap.MemoryMB
	}
	limits := e.cfg.Limits
	r.VCPUs, r.MemoryMB = min(r.VCPUs, limits.MaxVCPUs), min(r.MemoryMB, limits.MaxMemoryMB)
	if r.DiskMB > limits.MaxDiskMB {
		return nil, cay.Errorf(cay.Invalid, "the snapshot's disk_mb %d is more than this daemon's maximum of %d", r.DiskMB, limits.MaxDiskMB)
	}
	r.SnapshotID, r.Image, r.Digest, r.Runtime, r.RuntimeDigest = snap.ID, snap.Image, snap.Digest, snap.Runtime, snap.RuntimeDigest
	r.User, r.WorkDir = cmp.Or(r.User, snap.User), cmp.Or(r.WorkDir, snap.WorkDir)
	return snap, nil
}

// requestHash returns a hash that tells requests apart. Requests that hold secrets are
// HMACed, so that the hash cannot be brute-forced.
func (e *Engine) requestHash(asked []byte, secrets bool) []byte {
	if !secrets {
		sum := sha256.Sum256(asked)
		return sum[:]
	}
	mac := hmac.New(sha256.New, e.cfg.Secrets.Key("idempotency"))
	mac.Write(asked)
	return mac.Sum(nil)
}

// seal puts the sealed policy of a request into its row.
func (e *Engine) seal(q *store.Request) error {
	kept, err := e.sealPolicy(q.Row.ID, q.Network)
	q.Row.Network, q.Row.Sealed = kept.Shown, kept.Sealed
	return err
}

// errCreatorLeft is the error of a creation that was canceled because its caller left.
var errCreatorLeft = cay.Errorf(cay.Canceled, "the caller gave up while the sandbox was being created")

// await waits for the creation that an earlier request began, and returns its sandbox or
// its error.
func (e *Engine) await(ctx context.Context, sc store.Scope, id string) (*sandbox.Sandbox, error) {
	if m := e.live(id); m != nil {
		select {
		case <-m.created:
		case <-ctx.Done():
			return nil, wire.ContextError(ctx)
		}
		if m.createErr != nil {
			return nil, m.createErr
		}
	}
	return e.Get(ctx, id)
}

// boot brings a pending or resuming sandbox to running. If the boot fails, or the caller
// leaves, only the row remains, with the reason.
func (e *Engine) boot(ctx context.Context, m *session, r *store.Row) (*sandbox.Sandbox, error) {
	defer close(m.created)
	ctx, end := m.bound(ctx)
	defer end()

	from := r.Status
	err := e.start(ctx, m, r)
	if err == nil {
		e.at("running")
		e.log.InfoContext(ctx, "sandbox started", "sandbox", m.sandboxID, "session", m.id, "team", r.TeamID, "project", r.ProjectID,
			"image", r.Image, "runtime", r.Runtime, "resumed", from == sandbox.Resuming)
		return &r.Sandbox, nil
	}
	switch {
	case m.ctx.Err() != nil: // the sandbox was stopped or deleted, or the daemon is stopping
		err = context.Cause(m.ctx)
	case ctx.Err() == context.Canceled:
		err = errCreatorLeft
	case ctx.Err() != nil:
		err = wire.ContextError(ctx)
	}
	m.createErr = err
	e.cfg.Metrics.CreateFailed(cay.CodeOf(err))
	e.log.InfoContext(ctx, "sandbox was not started", "sandbox", m.sandboxID, "session", m.id, "error", err)

	// Clean up even if the caller has left.
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer done()
	m.failure.Store(&store.Failure{From: from, Reason: sandbox.ReasonStartFailed, Message: publicMessage(err)})
	m.detach(err)
	if ferr := e.finish(ctx, m); ferr != nil {
		e.log.ErrorContext(ctx, "failed creation was not cleaned up yet", "sandbox", m.sandboxID, "error", ferr)
	} else if errors.Is(err, errSourceMissing) {
		if err := e.store.DeleteFailed(ctx, m.sandboxID, e.now()); err != nil {
			e.log.ErrorContext(ctx, "sandbox without its source was not removed", "sandbox", m.sandboxID, "error", err)
		}
	}
	return nil, err
}

// publicMessage returns the message of an error that the row may show.
func publicMessage(err error) string {
	var e *cay.Error
	if !errors.As(err, &e) || e.Code == cay.Internal {
		return "internal error; see the daemon's log"
	}
	return e.Message
}

// start takes a machine from a pool or boots one, fetches the source, and records that
// the sandbox is running.
func (e *Engine) start(ctx context.Context, m *session, r *store.Row) error {
	claimed, err := e.claim(ctx, m, r)
	if err == nil && !claimed {
		err = e.bootMachine(ctx, m, r)
	}
	if err == nil {
		err = e.fetchSource(ctx, m, r)
	}
	if err != nil {
		return err
	}
	return e.recordRunning(ctx, m, r)
}

// bootMachine boots the machine of r from the origin that r names. A hibernated sandbox
// whose memory no program on this host continues starts from its files, and says so.
func (e *Engine) bootMachine(ctx context.Context, m *session, r *store.Row) error {
	err := e.bootOnce(ctx, m, r)
	if cay.CodeOf(err) != cay.NotSupported || r.Hibernation == "" || r.FilesOnly || m.inst != nil || ctx.Err() != nil {
		return err
	}
	e.log.WarnContext(ctx, "hibernated sandbox starts from its files alone", "sandbox", r.ID, "error", err)
	r.FilesOnly, r.Notice = true, "it was hibernated, and started from its files, without its processes: "+publicMessage(err)
	return e.bootOnce(ctx, m, r)
}

func (e *Engine) bootOnce(ctx context.Context, m *session, r *store.Row) error {
	from, err := e.openOrigin(ctx, r)
	if err != nil {
		return e.wakeError(ctx, r, err)
	}
	defer from.close()
	return e.wakeError(ctx, r, e.bootFrom(ctx, m, r, from))
}

// bootFrom starts the machine of r from an origin, and returns when its guest answers and
// has accepted the engine's token.
func (e *Engine) bootFrom(ctx context.Context, m *session, r *store.Row, from *origin) error {
	spec, done, err := e.prepare(ctx, m, r)
	if err != nil {
		return err
	}
	defer done()
	switch {
	case from == nil:
	case from.row.Runtime == r.Runtime:
		r.ImageEnv = from.row.ImageEnv // the image's environment, with the snapshot's additions
	default:
		r.ImageEnv = mergeEnv(from.row.ImageEnv, r.ImageEnv)
	}
	if r.Status == sandbox.Resuming {
		if err := m.flows.GoOn(ctx); err != nil {
			return err
		}
	}
	e.at("images")

	// The wait for a place has no timeout of its own: each earlier boot is bounded.
	if err := e.enterBoots(ctx, r.TeamID); err != nil {
		return err
	}
	defer e.boots.Leave(r.TeamID)
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.StartTimeout,
		cay.Errorf(cay.Unavailable, "the sandbox did not start within %v", e.cfg.Limits.StartTimeout))
	defer cancel()

	begun := e.clock.Mono()
	m.inst, err = e.launch(ctx, spec, from)
	if err != nil {
		return fmt.Errorf("start machine: %w", startError(ctx, err))
	}
	m.follow()
	m.ran = e.clock.Mono()
	e.cfg.Metrics.CreatePhase("start", m.ran-begun)
	e.at("started")
	if from != nil {
		if err := e.store.TouchSnapshot(ctx, from.row.ID, e.now()); err != nil {
			e.log.WarnContext(ctx, "use of a snapshot was not recorded", "snapshot", from.row.ID, "error", err)
		}
	}

	begun = e.clock.Mono()
	if err := e.handshake(ctx, m, r, from); err != nil {
		return err
	}
	e.cfg.Metrics.CreatePhase("guest", e.clock.Mono()-begun)
	e.at("healthy")
	return nil
}

// handshake connects to the guest of a machine that has just started, and gives the guest its
// identity if the machine is a copy.
func (e *Engine) handshake(ctx context.Context, m *session, r *store.Row, from *origin) error {
	token := r.GuestToken
	if from != nil && from.memory {
		token = from.row.GuestToken // the guest's token since before it was saved
	}
	e.reach(m, token)
	if from != nil && from.memory {
		m.commands.Store(true) // the commands of the restored processes
	}
	if from != nil && from.memory && from.row.SandboxID != r.ID || token != r.GuestToken {
		if err := e.identify(ctx, m, r); err != nil {
			return err
		}
	}
	h, err := m.guest.Health(ctx)
	if err != nil {
		return fmt.Errorf("reach guest: %w", e.healthError(ctx, m, err))
	}
	if h.Problem != "" {
		e.log.WarnContext(ctx, "sandbox is set up in part", "sandbox", m.sandboxID, "problem", h.Problem)
	}
	e.trustAtStart(ctx, m, r.Network, h.Trust)
	return nil
}

// identify gives a new identity to the guest of a machine that started as a copy of
// another one. Until then only the engine has reached this guest.
func (e *Engine) identify(ctx context.Context, m *session, r *store.Row) error {
	id, err := m.guest.Identify(ctx, guest.IdentityRequest{
		Sandbox: r.ID, Hostname: ident.Hostname(r.Name), User: r.User, WorkDir: r.WorkDir, MemoryBytes: r.MemoryMB << 20,
	}, r.GuestToken)
	if err != nil {
		return fmt.Errorf("identify guest: %w", e.healthError(ctx, m, err))
	}
	if id.Problem != "" {
		e.log.WarnContext(ctx, "sandbox is set up in part", "sandbox", m.sandboxID, "problem", id.Problem)
	}
	m.relayAs(r.GuestToken)
	return nil
}

// setRunning fills in the fields of a sandbox and its session that are known once the
// guest answers.
func (e *Engine) setRunning(m *session, r *store.Row) {
	m.imageEnv, m.env = r.ImageEnv, r.Env
	m.drives = store.WritesDrives(r.Mounts)
	now := e.now()
	expires := now.Add(time.Duration(r.Timeout))
	r.Status, r.StartedAt, r.ExpiresAt, r.UpdatedAt, r.StatusAt = sandbox.Running, &now, &expires, now, now
	r.StartedMono, r.Boot, r.Message = e.clock.Mono(), e.clock.Boot(), r.Notice
}

// recordRunning records that a sandbox whose guest answers is running.
func (e *Engine) recordRunning(ctx context.Context, m *session, r *store.Row) error {
	e.setRunning(m, r)
	ok, err := e.store.Started(ctx, r)
	if err != nil {
		return err
	}
	if !ok {
		// Stop or Delete came first. m.ctx ends now or in a moment.
		<-m.ctx.Done()
		return context.Cause(m.ctx)
	}
	e.run(m, r)
	if r.Hibernation != "" {
		r.Hibernation = ""
		e.snapshotMade(r.ID) // the snapshot of files that a persistent sandbox's hibernation becomes
		e.freeSnapshots()
	}
	return nil
}

// enterBoots waits for a place among the booting machines, alternating between teams.
// Errors: quota_exceeded if too many wait.
func (e *Engine) enterBoots(ctx context.Context, teamID string) error {
	err := e.boots.Enter(ctx, teamID)
	if errors.Is(err, limit.ErrFull) {
		full := cay.Errorf(cay.QuotaExceeded, "%d sandboxes are waiting to be started already", e.cfg.Limits.BootQueue)
		full.RetryAfter = time.Second
		return full
	}
	return err
}

// prepare leases the images of a sandbox and describes its machine.
//
// The caller calls done when the machine has started or has failed to start.
func (e *Engine) prepare(ctx context.Context, m *session, r *store.Row) (spec machine.Spec, done func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.cfg.Limits.ImageTimeout,
		cay.Errorf(cay.Unavailable, "the image was not ready within %v", e.cfg.Limits.ImageTimeout))
	defer cancel()
	begun := e.clock.Mono()
	defer func() { e.cfg.Metrics.CreatePhase("image", e.clock.Mono()-begun) }()

	root, err := e.leaseSame(ctx, m, r, r.Digest, r.Image)
	if err != nil {
		return machine.Spec{}, nil, fmt.Errorf("get image %q: %w", r.Image, err)
	}
	network, err := e.network(r)
	if err != nil {
		return machine.Spec{}, nil, err
	}
	drives, release, err := e.driveMounts(ctx, r)
	if err != nil {
		return machine.Spec{}, nil, err
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	spec = machine.Spec{
		ID: r.MachineID(), Hostname: ident.Hostname(r.Name), RootFS: root.Path,
		VCPUs: r.VCPUs, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB, Network: network, Init: e.cfg.Tool.Init,
		Restricted: e.cfg.Restricted || r.Privileges == sandbox.RestrictedPrivileges,
	}
	if e.cfg.Tool.Mount.Source != "" {
		spec.Mounts = append(spec.Mounts, e.cfg.Tool.Mount)
	}
	spec.Mounts = append(spec.Mounts, drives...)
	var runtimeEnv []string
	if r.Runtime != "" {
		rt, err := e.leaseSame(ctx, m, r, r.RuntimeDigest, r.Runtime)
		if err != nil {
			return machine.Spec{}, nil, fmt.Errorf("get runtime %q: %w", r.Runtime, err)
		}
		spec.Mounts = append(spec.Mounts, machine.Mount{Source: rt.Path, Target: runtimeDir + r.Runtime})
		runtimeEnv, r.RuntimeDigest = rt.Image.Config.Env, rt.Image.Digest
	}
	r.Digest = root.Image.Digest
	r.ImageEnv = baseEnv(root.Image.Config.Env, runtimeEnv, r.Runtime)
	r.User = cmp.Or(r.User, root.Image.Config.User, "root")
	r.WorkDir = cmp.Or(r.WorkDir, root.Image.Config.WorkDir, "/")
	spec.GuestConfig, err = json.Marshal(guest.Config{
		Sandbox: r.ID, Hostname: spec.Hostname, TokenSHA256: guest.HashToken(r.GuestToken), User: r.User, WorkDir: r.WorkDir,
		Gateway: e.cfg.Gateway, Nameserver: e.cfg.Nameserver, Certificates: bootCertificates(e.certificates(r.Network)),
		Owned: newDrives(drives),
	})
	return spec, release, err
}

// lease leases an image by its digest. The machine releases the lease when it is freed.
func (e *Engine) lease(ctx context.Context, m *session, digest string) (*Lease, error) {
	l, err := e.cfg.Images.Lease(ctx, digest)
	return m.holdImage(ctx, l, err)
}

// leaseRef leases the image that a reference names for a team.
func (e *Engine) leaseRef(ctx context.Context, m *session, teamID, ref string) (*Lease, error) {
	l, err := e.cfg.Images.Ensure(ctx, teamID, ref)
	return m.holdImage(ctx, l, err)
}

func (m *session) holdImage(ctx context.Context, l *Lease, err error) (*Lease, error) {
	if err != nil {
		return nil, startError(ctx, err)
	}
	m.leases = append(m.leases, l)
	return l, nil
}

// leaseSame leases the image that r had in its previous session, if any. If that image is
// gone, a sandbox without a snapshot that is not persistent takes the image that its
// reference names now: images are not retained for such a sandbox.
func (e *Engine) leaseSame(ctx context.Context, m *session, r *store.Row, digest, ref string) (*Lease, error) {
	if digest == "" {
		return e.leaseRef(ctx, m, r.TeamID, ref)
	}
	l, err := e.lease(ctx, m, digest)
	anew := r.Status == sandbox.Resuming && !r.Persistent && cmp.Or(r.Hibernation, r.SnapshotID) == ""
	if anew && cay.CodeOf(err) == cay.NotFound {
		return e.leaseRef(ctx, m, r.TeamID, ref)
	}
	return l, err
}

// startError returns the reason why ctx ended, or err if ctx has not ended.
func startError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return wire.ContextError(ctx)
	}
	return err
}

// healthError returns the reason why a new guest does not answer.
func (e *Engine) healthError(ctx context.Context, m *session, err error) error {
	select {
	case <-m.inst.Done():
		x := m.inst.Exit()
		if x.Damaged {
			return cay.Errorf(cay.Conflict, "the sandbox ended while it started: %s", x.Message)
		}
		return cay.Errorf(cay.Unavailable, "the sandbox ended while it started (%s): %s", x.Reason, x.Message)
	default:
		return startError(ctx, err)
	}
}

// run starts the timers and the watcher of a running machine, unless its end has already
// begun.
func (e *Engine) run(m *session, r *store.Row) {
	m.idle.Touch()
	m.idle.Set(time.Duration(r.IdleTimeout))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started, m.timeout = r.StartedMono, time.Duration(r.Timeout)
	m.meter.Begin(r.StartedMono, r.Usage)
	if m.detached {
		return
	}
	m.status = r.Status
	e.armDeadlineLocked(m)
	m.autosave.every = time.Duration(r.SaveEvery)
	e.armSaveLocked(m, 0)
	m.armIdleLocked(0)
	e.background(func() { e.watch(m) })
}
