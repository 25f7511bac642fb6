package sandboxd

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/sandboxd/usage"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// NeedsImage reports whether a snapshot, or a sandbox that runs or can be resumed, uses
// the image or the runtime with that digest, which must then be kept.
func (e *Engine) NeedsImage(ctx context.Context, digest string) (bool, error) {
	return e.store.NeedsImage(ctx, digest)
}

// lookupSnapshot returns the snapshot that the caller's ref names.
func (e *Engine) lookupSnapshot(ctx context.Context, ref string) (*store.SnapshotRow, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	return e.store.FindSnapshot(ctx, sc, ref)
}

// GetSnapshot implements Snapshots.
func (e *Engine) GetSnapshot(ctx context.Context, ref string) (*sandbox.Snapshot, error) {
	r, err := e.lookupSnapshot(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &r.Snapshot, nil
}

// ListSnapshots implements Snapshots.
func (e *Engine) ListSnapshots(ctx context.Context, p sandbox.SnapshotListParams) (*sandbox.Page[sandbox.Snapshot], error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	l, err := e.listing(ctx, sc, "snapshots", p.ProjectID, store.SortedBy(sandbox.ByCreation, p.Ascending), p.Cursor, p.Limit)
	if err != nil {
		return nil, err
	}
	rows, err := e.store.ListSnapshots(ctx, l, p)
	if err != nil {
		return nil, err
	}
	page := &sandbox.Page[sandbox.Snapshot]{Items: []sandbox.Snapshot{}}
	rows, page.Next = store.Cut(l, rows, func(r *store.SnapshotRow) (any, string) { return r.CreatedAt.UnixMilli(), r.ID })
	for _, r := range rows {
		page.Items = append(page.Items, r.Snapshot)
	}
	return page, nil
}

// SnapshotTree implements Snapshots.
func (e *Engine) SnapshotTree(ctx context.Context, ref string, p sandbox.SnapshotTreeParams) (*sandbox.SnapshotTree, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p = p.WithDefaults()
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.store.FindSnapshot(ctx, sc, ref)
	if err != nil {
		return nil, err
	}
	return e.store.SnapshotTree(ctx, sc, r, p.Descendants, p.Limit)
}

// DeleteSnapshot implements Snapshots. It refuses a snapshot from which a persistent
// sandbox's next session starts, running or not: the sandbox falls back on it when its
// machine crashes. The snapshot can be deleted once the sandbox has been saved again,
// starts from another snapshot, or is deleted. With Force it is deleted anyway: such a
// sandbox cannot be resumed until it is set to start from another snapshot. Children keep
// the snapshot as their parent.
func (e *Engine) DeleteSnapshot(ctx context.Context, ref string, p sandbox.DeleteSnapshotParams) (*sandbox.Snapshot, error) {
	r, err := e.lookupSnapshot(ctx, ref)
	if err != nil {
		return nil, err
	}
	if r.Status == sandbox.SnapshotDeleted {
		return &r.Snapshot, nil
	}
	deleted, err := e.store.DeleteSnapshot(ctx, r.ID, p.Force, e.now())
	if err != nil {
		return nil, err
	}
	e.at("snapshot-deleted")
	if deleted && e.cfg.Snapshots != nil {
		e.log.InfoContext(ctx, "snapshot deleted", "snapshot", r.ID, "team", r.TeamID, "project", r.ProjectID)
		if err := e.removeSnapshot(context.WithoutCancel(ctx), r.ID); err != nil {
			e.log.ErrorContext(ctx, "files of a deleted snapshot were not removed yet", "snapshot", r.ID, "error", err)
		}
	}
	e.freeSnapshots() // removes remaining files, and reschedules the next pass of the janitor
	if r, err = e.store.GetSnapshot(ctx, r.ID); err != nil {
		return nil, err
	}
	return &r.Snapshot, nil
}

// PruneSnapshots implements Snapshots.
func (e *Engine) PruneSnapshots(ctx context.Context, p sandbox.PruneSnapshotsParams) (*sandbox.SnapshotPrune, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if sc, err = e.listed(ctx, sc, p.ProjectID); err != nil {
		return nil, err
	}
	pruned, err := e.store.PruneSnapshots(ctx, sc, e.janitor.clock.Now().Add(-time.Duration(p.OlderThan)), p.DryRun, e.now())
	if err != nil {
		return nil, err
	}
	if !p.DryRun && pruned.Count > 0 {
		e.log.InfoContext(ctx, "snapshots pruned", "count", pruned.Count, "bytes", pruned.SizeBytes, "team", sc.Team)
		e.freeSnapshots()
	}
	return pruned, nil
}

// openSnapshot opens the files of a snapshot. Errors: conflict if the files are damaged,
// not_supported, and those of Usable.
func (e *Engine) openSnapshot(ctx context.Context, r *store.SnapshotRow) (*snapshot.Snapshot, error) {
	return e.openPart(ctx, r, snapshot.AllParts)
}

// openPart is openSnapshot for one part: the other parts may be damaged.
func (e *Engine) openPart(ctx context.Context, r *store.SnapshotRow, part snapshot.Part) (*snapshot.Snapshot, error) {
	if e.cfg.Snapshots == nil {
		return nil, errNoSnapshots
	}
	if err := r.Usable(); err != nil {
		return nil, err
	}
	files, err := e.cfg.Snapshots.OpenPart(ctx, r.ID, part)
	if cay.CodeOf(err) != cay.NotFound {
		return files, err
	}
	// The snapshot was deleted meanwhile, or its files are lost.
	if r, err = e.store.GetSnapshot(ctx, r.ID); err != nil {
		return nil, err
	}
	r.Missing = r.Status == sandbox.SnapshotCreated
	return nil, r.Usable()
}

// ExportSnapshot implements Snapshots.
func (e *Engine) ExportSnapshot(ctx context.Context, ref string) (io.ReadCloser, error) {
	r, err := e.lookupSnapshot(ctx, ref)
	if err != nil {
		return nil, err
	}
	files, err := e.openSnapshot(ctx, r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })
	reader, writer := io.Pipe()
	x := &export{PipeReader: reader, cancel: cancel, done: make(chan struct{})}
	begun := e.background(func() {
		defer close(x.done)
		defer stop()
		defer files.Close()
		// Unblocks a write that nobody reads when the context ends.
		defer context.AfterFunc(ctx, func() { writer.CloseWithError(wire.ContextError(ctx)) })()
		writer.CloseWithError(files.Export(ctx, writer))
	})
	if !begun {
		stop()
		cancel(nil)
		files.Close()
		return nil, errClosing
	}
	return x, nil
}

// export is the reading end of a running export.
type export struct {
	*io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// Close ends the export, and waits for it.
func (x *export) Close() error {
	err := x.PipeReader.Close()
	x.cancel(nil)
	<-x.done
	return err
}

// ImportSnapshot implements Snapshots. The images of the snapshot must exist here.
func (e *Engine) ImportSnapshot(ctx context.Context, r io.Reader, p sandbox.ImportParams) (*sandbox.Snapshot, error) {
	sc, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if p.Memory {
		if err := api.RequireAdmin(ctx); err != nil {
			return nil, cay.Errorf(cay.PermissionDenied, "the memory of a snapshot is for an operator to import: it runs with this daemon's trust").
				WithHint("leave memory out to import the files alone, or use the daemon's admin token")
		}
	}
	if e.cfg.Snapshots == nil {
		return nil, errNoSnapshots
	}
	if sc.Project, err = e.project(ctx, sc, p.ProjectID); err != nil {
		return nil, err
	}
	if p.Name != "" {
		// Fail before reading the archive. The insertion checks the name again.
		if _, err := e.store.FindSnapshot(ctx, sc, p.Name); err == nil {
			return nil, store.SnapshotExists(p.Name)
		} else if cay.CodeOf(err) != cay.NotFound {
			return nil, err
		}
	}
	row := &store.SnapshotRow{Snapshot: sandbox.Snapshot{
		ID: ident.NewSnapshot(), Name: p.Name, TeamID: sc.Team, ProjectID: sc.Project, Status: sandbox.SnapshotCreated,
	}}
	began := e.clock.Mono()
	m, err := e.cfg.Snapshots.Import(ctx, r, snapshot.ImportParams{
		ID: row.ID, Name: p.Name, Memory: p.Memory, MaxBytes: e.cfg.Limits.MaxSnapshotBytes,
		Check: func(m *snapshot.Manifest) error {
			if err := e.checkSnapshotQuota(ctx, sc.Team, m.Size()); err != nil {
				return err
			}
			return e.fillImported(ctx, row, m)
		},
	})
	if err != nil {
		return nil, err
	}
	e.at("snapshot-imported")
	now := e.now()
	row.CreatedAt, row.UpdatedAt, row.Duration = now, now, usage.Millis(e.clock.Mono()-began)
	row.SizeBytes = m.Size()
	if p.Expiration != nil && *p.Expiration != 0 {
		expires := now.Add(time.Duration(*p.Expiration))
		row.ExpiresAt = &expires
	}
	// The archive is complete: record it even if the caller has left.
	ctx = context.WithoutCancel(ctx)
	if err := e.insertImported(ctx, row); err != nil {
		if rerr := e.removeSnapshot(ctx, row.ID); rerr != nil {
			e.freeSnapshots()
			e.log.ErrorContext(ctx, "files of a snapshot that was not recorded were not removed yet", "snapshot", row.ID, "error", rerr)
		}
		return nil, err
	}
	e.log.InfoContext(ctx, "snapshot imported", "snapshot", row.ID, "origin", m.Origin, "team", sc.Team, "project", sc.Project, "bytes", row.SizeBytes)
	e.janitor.wakeUp()
	return &row.Snapshot, nil
}

func (e *Engine) insertImported(ctx context.Context, row *store.SnapshotRow) error {
	quota, err := e.cfg.Accounts.Quota(ctx, row.TeamID)
	if err != nil {
		return fmt.Errorf("read quota: %w", err)
	}
	return e.store.InsertImported(ctx, row, quota)
}

// guestOf returns the properties of a snapshot that its export carries.
func guestOf(r *store.SnapshotRow) *snapshot.Guest {
	g := &snapshot.Guest{Image: r.Image, User: r.User, WorkDir: r.WorkDir, Env: r.ImageEnv, Token: r.GuestToken}
	if !g.Fits(snapshot.Kind(r.Kind)) {
		g.Env = nil // left out, as the image has most of it
	}
	return g
}

// fillImported fills in the properties that an archive's manifest states, and the images
// that it names. Errors: not_found (images), not_supported.
func (e *Engine) fillImported(ctx context.Context, row *store.SnapshotRow, m *snapshot.Manifest) error {
	var name string
	if m.Guest != nil {
		name = m.Guest.Image
	}
	root, err := e.knownImage(ctx, row.TeamID, m.Image, name)
	if err != nil {
		return err
	}
	var runtimeEnv []string
	for _, rt := range m.Runtimes {
		name, ok := strings.CutPrefix(rt.Target, runtimeDir)
		if !ok || row.Runtime != "" {
			return cay.Errorf(cay.NotSupported, "the snapshot has an image mounted at %.100q, which is not where this cay has one", rt.Target)
		}
		img, err := e.knownImage(ctx, row.TeamID, rt.Digest, name)
		if err != nil {
			return err
		}
		row.Runtime, row.RuntimeDigest, runtimeEnv = name, rt.Digest, img.Config.Env
	}
	like := sandbox.CreateParams{VCPUs: m.VCPUs, MemoryMB: m.MemoryMB, DiskMB: m.DiskMB}.WithDefaults()
	row.Kind, row.Build, row.Programs = sandbox.SnapshotKind(m.Kind), m.Build.Cay, m.Build.ID
	row.VCPUs, row.MemoryMB, row.DiskMB = like.VCPUs, like.MemoryMB, like.DiskMB
	row.Image, row.Digest = cmp.Or(name, m.Image), m.Image
	row.User, row.WorkDir = cmp.Or(root.Config.User, "root"), cmp.Or(root.Config.WorkDir, "/")
	row.ImageEnv = baseEnv(root.Config.Env, runtimeEnv, row.Runtime)
	if g := m.Guest; g != nil {
		row.User, row.WorkDir = cmp.Or(g.User, row.User), cmp.Or(g.WorkDir, row.WorkDir)
		if g.Env != nil {
			row.ImageEnv = g.Env
		}
		row.GuestToken = g.Token
	}
	// The author of the archive chose these, and commands run with them.
	if err := (sandbox.CreateParams{User: row.User, WorkDir: row.WorkDir, Env: row.ImageEnv}).Validate(); err != nil {
		return cay.Errorf(cay.Invalid, "the archive's manifest: %w", err)
	}
	if row.Kind == sandbox.MemorySnapshot && row.GuestToken == "" {
		return cay.Errorf(cay.NotSupported, "the processes in the archive cannot be talked to: it does not say how").
			WithHint("import its files alone")
	}
	return nil
}

// knownImage returns an image of a team by its digest. name is the name for error
// messages. Errors: not_found.
func (e *Engine) knownImage(ctx context.Context, teamID, digest, name string) (*sandbox.Image, error) {
	lease, err := e.cfg.Images.Ensure(ctx, teamID, digest)
	if cay.CodeOf(err) == cay.NotFound {
		what := digest
		if name != "" {
			what = fmt.Sprintf("%q (%s)", name, digest)
		}
		return nil, cay.Errorf(cay.NotFound, "the snapshot is of the image %s, which is not here", what).
			WithHint("build, pull or import that very image first, see cay image; one of another digest does not do")
	}
	if err != nil {
		return nil, fmt.Errorf("get image %s: %w", digest, err)
	}
	defer lease.Release()
	return &lease.Image, nil
}
