package sandboxd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/patch"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// A fork is several creations that all succeed or all fail. The first transaction inserts
// the rows of the copies as pending and deleting. A second one makes them running and
// clears deleting, once all guests answer and have their new identities. After any
// failure in between, including a crash of the daemon, the copies are removed like
// deleted sandboxes: nothing is left.

// forkTimeout bounds a fork, excluding image work.
const forkTimeout = saveTimeout

// forking is a fork that is under way.
type forking struct {
	store.Copies
	kind sandbox.SnapshotKind
	// network is the whole policy before Row's is sealed.
	network sandbox.Network

	// The copies start from live, with its op held, else from from; if both are nil, from
	// the image.
	from   *origin
	live   *session
	unlock func() // releases live's op; may be called again

	machines []*session
	paused   sandbox.Duration
	copied   int64
}

func (f *forking) close() {
	f.from.close()
	if f.unlock != nil {
		f.unlock()
	}
}

// Fork implements Service.
func (e *Engine) Fork(ctx context.Context, ref string, p sandbox.ForkParams) (*sandbox.Fork, error) {
	began := e.clock.Mono()
	if err := p.Validate(); err != nil {
		return nil, err
	}
	plan := e.forkSandbox
	if strings.HasPrefix(ref, ident.SnapshotPrefix) {
		plan = e.forkSnapshot
	}
	f, err := plan(ctx, ref, p)
	if err != nil {
		return nil, err
	}
	defer f.close()
	if err := e.makeCopies(ctx, f); err != nil {
		return nil, err
	}
	result := &sandbox.Fork{Kind: f.kind, CopiedBytes: f.copied, SharedBytes: e.sharedBytes(f.machines[0])}
	if f.from != nil && !f.from.row.Hibernated {
		result.SnapshotID = f.from.row.ID
	}
	result.Phases = sandbox.ForkPhases{Paused: f.paused, Ready: usage.Millis(e.clock.Mono() - began)}
	for i, r := range f.Rows {
		result.Sandboxes = append(result.Sandboxes, r.Sandbox)
		result.Phases.Start = max(result.Phases.Start, usage.Millis(f.machines[i].ran-began))
	}
	e.log.InfoContext(ctx, "sandbox forked", "source", ref, "kind", f.kind, "count", f.Count, "copied", f.copied,
		"paused", time.Duration(f.paused), "took", time.Duration(result.Phases.Ready))
	return result, nil
}

// forkSnapshot plans copies of a snapshot. A property that p leaves out is as in a create
// from this snapshot.
func (e *Engine) forkSnapshot(ctx context.Context, ref string, p sandbox.ForkParams) (*forking, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	snap, err := e.store.FindSnapshot(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	f := newForking(p)
	f.Base = cmp.Or(snap.SandboxName, snap.Name)
	if (sandbox.CreateParams{Name: f.Base}).Validate() != nil {
		f.Base = "" // an imported snapshot may have a name that no sandbox can have
	}
	switch hasMemory := snap.Kind == sandbox.MemorySnapshot; {
	case p.Kind == sandbox.MemorySnapshot && !hasMemory:
		return nil, cay.Errorf(cay.Conflict, "snapshot %q is one of files, and has no processes to copy", ref).
			WithHint("leave the kind out")
	case p.Kind == "" && hasMemory && e.cfg.Runtime.SavesMemory() && len(p.Mounts) == 0:
		f.kind = sandbox.MemorySnapshot
	case p.Kind == "":
		f.kind = sandbox.FilesystemSnapshot
	}
	persistent := p.Persistent
	if persistent == nil {
		persistent = new(len(p.Names) > 0)
	}
	c := sandbox.CreateParams{
		ProjectID: snap.ProjectID, Snapshot: snap.ID, FilesOnly: f.kind == sandbox.FilesystemSnapshot,
		Env: p.Env, Tags: p.Tags, Annotations: p.Annotations, Ports: p.Ports, Mounts: p.Mounts, Persistent: persistent,
		SnapshotExpiration: p.SnapshotExpiration, Retention: p.Retention,
	}
	if c.Annotations == nil {
		c.Annotations = snap.Annotations
	}
	if p.Network != nil { // set, so that the snapshot's policy is not inherited
		c.Network = p.Network.WithDefaults()
	}
	patch.Set(&c.VCPUs, p.VCPUs)
	patch.Set(&c.MemoryMB, p.MemoryMB)
	patch.Set(&c.Timeout, p.Timeout)
	patch.Set(&c.IdleTimeout, p.IdleTimeout)
	q, err := e.request(ctx, sc, c)
	if err != nil {
		return nil, err
	}
	f.Row, f.network, f.Quota = *q.Row, q.Network, q.Quota
	f.from, err = e.openOrigin(ctx, &f.Row)
	return f, err
}

func newForking(p sandbox.ForkParams) *forking {
	return &forking{kind: p.Kind, Copies: store.Copies{Count: max(p.Count, len(p.Names), 1), Names: p.Names}}
}

// forkSandbox plans copies of a sandbox's processes, or of its files as last saved.
func (e *Engine) forkSandbox(ctx context.Context, ref string, p sandbox.ForkParams) (*forking, error) {
	r, _, err := e.lookupCurrent(ctx, ref)
	if err != nil {
		return nil, err
	}
	for {
		f, err := e.planFork(ctx, r, p)
		if !errors.Is(err, errRaced) {
			return f, err
		}
		if r, err = e.store.Reread(ctx, r); err == nil {
			err = r.Over()
		}
		if err != nil {
			return nil, err
		}
	}
}

// planFork plans copies of a sandbox whose row is r. If the sandbox has changed since r
// was read, planFork waits for the transition under way and returns errRaced.
func (e *Engine) planFork(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	m := e.live(r.ID)
	if m != nil && r.Only != "" && m.sessionID() != r.Only {
		return nil, errRaced // the session has ended since r was read
	}
	if m == nil {
		if !r.Status.Final() && r.Status != sandbox.Hibernated {
			return nil, e.missingMachineError(ctx, r)
		}
		return e.planResting(ctx, r, p)
	}
	switch m.state() {
	case sandbox.Running, sandbox.Paused:
		return e.planLive(ctx, r, p)
	case sandbox.Pending:
		if r.Status == sandbox.Pending {
			return nil, e.statusError(r)
		}
		fallthrough // the row is running; the creating call is about to set the session's state
	case sandbox.Resuming:
		if err := m.awaitCreated(ctx); ctx.Err() != nil {
			return nil, err
		}
	case sandbox.Hibernated:
		if err := m.awaitHibernation(ctx); err != nil {
			return nil, err
		}
	default:
		if err := e.awaitCleanup(ctx, m); err != nil {
			return nil, err
		}
	}
	return nil, errRaced
}

// missingMachineError returns the error for a sandbox without a machine whose row says that it has
// one.
func (e *Engine) missingMachineError(ctx context.Context, r *store.Row) error {
	now, err := e.store.Get(ctx, r.ID)
	switch {
	case err != nil:
		return err
	case now.Status != r.Status || now.SessionID != r.SessionID || e.live(r.ID) != nil:
		return errRaced
	}
	return notRecovered(r.Name)
}

// planLive plans copies of a running or paused sandbox.
func (e *Engine) planLive(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	if p.Kind == sandbox.FilesystemSnapshot || p.Kind == "" && e.memoryOf(r, p) != nil {
		return e.planFiles(ctx, r, p)
	}
	r, m, err := e.lookupLocked(ctx, r.Ref())
	if cay.CodeOf(err) == cay.Stopped || cay.CodeOf(err) == cay.Conflict {
		return nil, errRaced
	}
	if err != nil {
		return nil, err
	}
	unlock := sync.OnceFunc(m.unlock)
	f, err := e.planMemory(ctx, r, p)
	if err != nil {
		unlock()
		return nil, err
	}
	f.live, f.unlock = m, unlock
	return f, nil
}

// planResting plans copies of a sandbox without a machine.
func (e *Engine) planResting(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	hibernated := r.Status == sandbox.Hibernated
	switch {
	case p.Kind == sandbox.MemorySnapshot && !hibernated:
		return nil, cay.Errorf(cay.Conflict, "sandbox %q does not run, and has no processes to copy", r.Name).
			WithHint("copy its files, or resume it first")
	case !hibernated || p.Kind == sandbox.FilesystemSnapshot || p.Kind == "" && e.memoryOf(r, p) != nil:
		return e.planFiles(ctx, r, p)
	}
	f, err := e.planMemory(ctx, r, p)
	if err != nil {
		return nil, err
	}
	asleep := store.Row{Sandbox: sandbox.Sandbox{Runtime: r.Runtime}, Hibernation: r.Hibernation}
	if f.from, err = e.openOrigin(ctx, &asleep); cay.CodeOf(err) == cay.NotFound {
		now, err := e.store.Get(ctx, r.ID)
		if err == nil && now.Hibernation != r.Hibernation {
			err = errRaced
		}
		if err != nil {
			return nil, err
		}
	}
	return f, err
}

// memoryOf returns the reason why the processes of a sandbox cannot be copied as p asks,
// nil if they can.
func (e *Engine) memoryOf(r *store.Row, p sandbox.ForkParams) error {
	switch {
	case !e.cfg.Runtime.SavesMemory():
		return cay.Errorf(cay.NotSupported, "this runtime cannot copy the processes of sandboxes").WithHint("copy the files")
	case p.Mounts != nil:
		return cay.Errorf(cay.NotSupported, "drives cannot be mounted into the copies of processes").
			WithHint("copy the files, or leave the mounts out")
	case slices.ContainsFunc(r.Mounts, func(m sandbox.Mount) bool { return m.Mode != sandbox.MountReadOnly }):
		return cay.Errorf(cay.NotSupported, "the processes of sandbox %q, which has a drive that it writes to, cannot be copied", r.Name).
			WithHint("copy its files")
	}
	return nil
}

// planMemory plans copies of the processes of a sandbox.
func (e *Engine) planMemory(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	if err := e.memoryOf(r, p); err != nil {
		return nil, err
	}
	next := *r
	next.ApplyNext()
	next.Mounts, next.Runtime, next.RuntimeDigest = r.Mounts, r.Runtime, r.RuntimeDigest // the processes have these mounted
	f, err := e.planCopies(ctx, &next, p)
	if err != nil {
		return nil, err
	}
	f.kind, f.Fallback = sandbox.MemorySnapshot, true
	return f, nil
}

// planFiles plans copies of the files of a sandbox as last saved.
func (e *Engine) planFiles(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	next := *r
	next.Hibernation = "" // the copies do not get the processes, nor the drives mounted in them
	next.ApplyNext()
	f, err := e.planCopies(ctx, &next, p)
	if err != nil {
		return nil, err
	}
	f.kind, f.Row.FilesOnly = sandbox.FilesystemSnapshot, true
	for _, m := range f.Row.Mounts {
		if f.Count > 1 && m.Mode == sandbox.MountReadWrite {
			return nil, cay.Errorf(cay.Conflict, "sandbox %q has a drive at %s read-write, as only one of %d copies could", r.Name, m.Path, f.Count).
				WithHint("say what the copies are to mount")
		}
	}
	f.from, err = e.openOrigin(ctx, &f.Row)
	return f, err
}

// planCopies plans copies of r with the changes of p.
func (e *Engine) planCopies(ctx context.Context, r *store.Row, p sandbox.ForkParams) (*forking, error) {
	c, err := e.changeOf(sandbox.UpdateParams{
		Network: p.Network, Ports: p.Ports, VCPUs: p.VCPUs, MemoryMB: p.MemoryMB, Timeout: p.Timeout, Persistent: p.Persistent,
	})
	if err != nil {
		return nil, err
	}
	if err := e.cfg.CheckSpace(); err != nil {
		return nil, fmt.Errorf("fork sandbox: %w", err)
	}
	f := newForking(p)
	f.Base = r.Name
	if f.Quota, err = e.cfg.Accounts.Quota(ctx, r.TeamID); err != nil {
		return nil, fmt.Errorf("read quota: %w", err)
	}
	if p.Network != nil {
		f.network = p.Network.WithDefaults()
	} else if f.network, err = e.network(r); err != nil {
		return nil, err
	}
	now := e.now()
	f.Row = store.Row{
		Sandbox: sandbox.Sandbox{
			TeamID: r.TeamID, ProjectID: r.ProjectID, Status: sandbox.Pending,
			Image: r.Image, Digest: r.Digest, Runtime: r.Runtime, VCPUs: r.VCPUs, MemoryMB: r.MemoryMB, DiskMB: r.DiskMB,
			Env: r.Env, Tags: r.Tags, Annotations: r.Annotations, User: r.User, WorkDir: r.WorkDir, Ports: r.Ports, Mounts: r.Mounts,
			Persistent: r.Persistent, SnapshotID: r.SnapshotID, SnapshotExpiration: r.SnapshotExpiration, Retention: r.Retention,
			SaveEvery: r.SaveEvery,
			Timeout:   r.SessionTimeout, IdleTimeout: r.IdleTimeout, CreatedAt: now, UpdatedAt: now, StatusAt: now,
		},
		// The copies start with the source's token, until each has its own.
		Run: store.Run{RuntimeDigest: r.RuntimeDigest, ImageEnv: r.ImageEnv, GuestToken: r.GuestToken},
	}
	t := &f.Row
	patch.Set(&t.VCPUs, p.VCPUs)
	patch.Set(&t.MemoryMB, p.MemoryMB)
	patch.Set(&t.Timeout, p.Timeout)
	patch.Set(&t.IdleTimeout, p.IdleTimeout)
	patch.Set(&t.Persistent, p.Persistent)
	patch.Set(&t.SnapshotExpiration, p.SnapshotExpiration)
	t.Timeout = usage.Millis(time.Duration(t.Timeout))
	t.Retention = cmp.Or(p.Retention, t.Retention)
	patch.SetMap(&t.Env, p.Env)
	patch.SetMap(&t.Tags, p.Tags)
	patch.SetMap(&t.Annotations, p.Annotations)
	patch.SetSlice(&t.Mounts, p.Mounts)
	if p.Ports != nil {
		t.Ports = c.Ports
	}
	return f, nil
}

// makeCopies makes all planned copies, or none.
func (e *Engine) makeCopies(ctx context.Context, f *forking) error {
	if err := e.insertCopies(ctx, f); err != nil {
		return err
	}
	e.at("fork-inserted")
	err := e.startCopies(ctx, f)
	if err != nil {
		e.cfg.Metrics.CreateFailed(cay.CodeOf(err))
		e.log.InfoContext(ctx, "sandbox was not forked", "count", f.Count, "error", err)
		e.abandon(ctx, f, err)
		return err
	}
	for i, m := range f.machines {
		e.run(m, f.Rows[i])
		close(m.created)
	}
	e.at("fork-running")
	return nil
}

// insertCopies inserts the rows of the copies and registers their sessions.
func (e *Engine) insertCopies(ctx context.Context, f *forking) (err error) {
	defer func() {
		if err != nil {
			for _, m := range f.machines {
				e.discardSession(m, err)
			}
		}
	}()
	for range f.Count {
		r := f.Row
		r.ID, r.SessionID, r.GuestToken = ident.NewSandbox(), ident.NewSession(), ident.NewToken()
		r.Env, r.Tags, r.Annotations, r.ImageEnv = maps.Clone(r.Env), maps.Clone(r.Tags), maps.Clone(r.Annotations), maps.Clone(r.ImageEnv)
		r.Ports = slices.Clone(r.Ports)
		for i := range r.Ports {
			r.Ports[i].Label = ident.NewLabel()
		}
		e.store.SetURLs(r.Ports)
		kept, err := e.sealPolicy(r.ID, f.network)
		if err != nil {
			return err
		}
		r.Network, r.Sealed = kept.Shown, kept.Sealed
		m := e.newSession(&r)
		// Register the session before its row is visible; see Create.
		if _, err := e.add(m); err != nil {
			m.cancel(err)
			return err
		}
		f.Rows, f.machines = append(f.Rows, &r), append(f.machines, m)
	}
	return e.store.InsertFork(ctx, &f.Copies)
}

// startCopies starts the machines of the copies, and records that they run. It stops at the
// first copy that fails or is stopped.
func (e *Engine) startCopies(ctx context.Context, f *forking) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, m := range f.machines {
		defer context.AfterFunc(m.ctx, func() { cancel(context.Cause(m.ctx)) })()
	}
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = wire.ContextError(ctx)
		}
	}()
	if f.live != nil {
		err = e.copyLive(ctx, f)
	} else {
		g, ctx := errgroup.WithContext(ctx)
		for i, m := range f.machines {
			g.Go(func() error { return e.bootFrom(ctx, m, f.Rows[i], f.from) })
		}
		err = g.Wait()
	}
	if err != nil {
		return err
	}
	e.at("fork-identified")
	for i, m := range f.machines {
		e.setRunning(m, f.Rows[i])
	}
	// Not canceled with the caller: the engine must know the outcome of the transaction.
	stopped, err := e.store.Forked(context.WithoutCancel(ctx), &f.Copies)
	if err == nil && stopped >= 0 {
		// Stop or Delete came first. The machine's ctx ends now or in a moment.
		<-f.machines[stopped].ctx.Done()
		err = context.Cause(f.machines[stopped].ctx)
	}
	return err
}

// copyLive starts copies of a running machine's processes.
func (e *Engine) copyLive(ctx context.Context, f *forking) error {
	specs := make([]machine.Spec, f.Count)
	for i, m := range f.machines {
		spec, done, err := e.prepare(ctx, m, f.Rows[i])
		if err != nil {
			return err
		}
		defer done()
		specs[i], f.Rows[i].ImageEnv = spec, maps.Clone(f.Row.ImageEnv)
	}
	// The copies take a single place among the boots: the Runtime makes and paces them as
	// one.
	if err := e.enterBoots(ctx, f.Row.TeamID); err != nil {
		return err
	}
	defer e.boots.Leave(f.Row.TeamID)
	ctx, cancel := context.WithTimeoutCause(ctx, forkTimeout,
		cay.Errorf(cay.Unavailable, "the sandbox was not forked within %v", forkTimeout))
	defer cancel()
	begun := e.clock.Mono()
	forked, err := e.copyMachine(ctx, f, specs)
	if err != nil {
		return err
	}
	e.at("forked")
	e.cfg.Metrics.CreatePhase("start", e.clock.Mono()-begun)

	begun = e.clock.Mono()
	from := &origin{memory: true, row: &store.SnapshotRow{Snapshot: sandbox.Snapshot{SandboxID: f.live.sandboxID}, GuestToken: f.Row.GuestToken}}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(fanOut)
	for i, m := range f.machines {
		g.Go(func() error { return e.handshake(ctx, m, f.Rows[i], from) })
	}
	f.paused, f.copied = usage.Millis(time.Duration(forked.Paused)), forked.Bytes
	err = g.Wait()
	e.cfg.Metrics.CreatePhase("guest", e.clock.Mono()-begun)
	return err
}

// copyMachine copies a machine. The machine goes on as soon as the copy is taken.
func (e *Engine) copyMachine(ctx context.Context, f *forking, specs []machine.Spec) (*machine.Forked, error) {
	defer f.unlock()
	src := f.live
	ctx, end := src.bound(ctx) // a stop of the source does not wait for the copies
	defer end()
	src.saving.Lock()
	defer src.saving.Unlock()
	if err := e.checkMemory(ctx, src); err != nil {
		return nil, e.machineError(src, err)
	}
	if err := e.roomFor(ctx, src); err != nil {
		return nil, e.machineError(src, err)
	}
	forked, err := src.inst.Fork(ctx, machine.ForkParams{Specs: specs, MaxBytes: e.cfg.Limits.MaxSnapshotBytes})
	if err != nil {
		return nil, e.machineError(src, fmt.Errorf("fork machine: %w", err))
	}
	for i, m := range f.machines {
		m.inst, m.ran = forked.Instances[i], e.clock.Mono()
		m.follow()
	}
	return forked, nil
}

// roomFor reports whether the host's disk has room for all of a machine's memory and
// files, which lie there while the copies load them. Errors: no_space.
func (e *Engine) roomFor(ctx context.Context, m *session) error {
	if e.cfg.Snapshots == nil {
		return nil
	}
	st, err := m.inst.Stats(ctx)
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	d, err := e.cfg.Snapshots.Create(ctx, st.MemoryBytes+st.DiskBytes)
	if err != nil {
		return err
	}
	return d.Abort()
}

// abandon destroys and deletes the copies of a failed fork, even if the caller has left.
func (e *Engine) abandon(ctx context.Context, f *forking, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTimeout)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(fanOut)
	for _, m := range f.machines {
		m.createErr = cause
		m.failure.Store(&store.Failure{From: sandbox.Pending, Reason: sandbox.ReasonStartFailed, Message: publicMessage(cause)})
		m.detach(cause)
		g.Go(func() error {
			defer close(m.created)
			err := e.finish(ctx, m)
			if err == nil {
				_, err = e.store.Remove(ctx, m.sandboxID, false, e.now()) // in case a stop came first
			}
			if err != nil {
				e.log.ErrorContext(ctx, "copy of a fork that failed was not cleaned up yet", "sandbox", m.sandboxID, "error", err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
}

// sharedBytes returns the size of the image files that a machine shares with all other
// machines of its images.
func (e *Engine) sharedBytes(m *session) int64 {
	paths := []string{e.cfg.Tool.Mount.Source}
	for _, l := range m.leases {
		paths = append(paths, l.Path)
	}
	var n int64
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
	}
	return n
}
