package sandboxd

import (
	"cmp"
	"context"
	"fmt"
	"maps"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// origin is the opened snapshot from which a session starts. A nil *origin stands for the
// image.
type origin struct {
	row   *store.SnapshotRow
	files *snapshot.Snapshot
	// memory says that the snapshot's processes are restored.
	memory bool
}

// openOrigin opens the origin of the session of r, which is about to start: the snapshot
// in which the sandbox is hibernated, else the snapshot it starts from. Errors: not_found
// if the snapshot is gone, conflict if it is damaged.
func (e *Engine) openOrigin(ctx context.Context, r *store.Row) (*origin, error) {
	id := cmp.Or(r.Hibernation, r.SnapshotID)
	if id == "" {
		return nil, nil
	}
	row, err := e.store.GetSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	// Saved processes can be restored only with the runtime that they were started from.
	o := &origin{row: row, memory: row.Kind == sandbox.MemorySnapshot && !r.FilesOnly && row.Runtime == r.Runtime}
	part := snapshot.DiskPart
	if o.memory {
		part = snapshot.MemoryPart
	}
	if o.files, err = e.openPart(ctx, row, part); err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	if !o.memory && !o.files.HasDisk() {
		o.files.Close()
		return nil, cay.Errorf(cay.NotSupported, "snapshot %s has no files to start from, only memory", id)
	}
	return o, nil
}

// wakeError adds a hint to the error of a sandbox whose hibernation is damaged.
func (e *Engine) wakeError(ctx context.Context, r *store.Row, err error) error {
	if cay.CodeOf(err) != cay.Conflict || r.Hibernation == "" {
		return err
	}
	damaged := cay.Errorf(cay.Conflict, "sandbox %q cannot go on from what it was hibernated in: %w", r.Name, err)
	if files, ferr := e.cfg.Snapshots.OpenPart(ctx, r.Hibernation, snapshot.DiskPart); ferr == nil {
		files.Close()
		if !r.FilesOnly {
			return damaged.WithHint("its processes are lost; \"cay sandbox resume --files %s\" (files_only) starts it from the files that were saved with them", r.Name)
		}
	}
	return damaged.WithHint("its files are damaged, too: restore the data directory from a backup, or delete the sandbox")
}

// errNoSnapshots is the error of an engine without a store of snapshots.
var errNoSnapshots = cay.Errorf(cay.NotSupported, "this daemon keeps no snapshots")

// close closes the files. A machine that has started from them keeps its own.
func (o *origin) close() {
	if o != nil {
		o.files.Close()
	}
}

// launch starts the machine of a session.
func (e *Engine) launch(ctx context.Context, spec machine.Spec, o *origin) (machine.Instance, error) {
	switch {
	case o == nil:
		return e.cfg.Runtime.Start(ctx, spec)
	case o.memory:
		inst, err := e.cfg.Runtime.Restore(ctx, spec, o.files.MemoryDir())
		if err != nil {
			return nil, o.files.Refused(err)
		}
		return inst, nil
	default:
		return e.cfg.Runtime.StartFrom(ctx, spec, o.files.DiskDir())
	}
}

// mayStay returns the snapshot from which the sandbox's next session starts, if a new
// automatic snapshot would differ from it in nothing but the files: if the files are
// equal, too, no new snapshot is needed. Nil: there is no such snapshot.
func (e *Engine) mayStay(ctx context.Context, r *store.Row) (*store.SnapshotRow, error) {
	if r.SnapshotID == "" || r.Retention != nil && r.Retention.EachStop {
		return nil, nil
	}
	has, err := e.store.GetSnapshot(ctx, r.SnapshotID)
	if cay.CodeOf(err) == cay.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	next := e.describe(r, saveRequest{kind: sandbox.FilesystemSnapshot})
	same := has.Usable() == nil && !has.Hibernated && has.Kind == next.Kind && has.TeamID == next.TeamID && has.ProjectID == next.ProjectID &&
		has.Digest == next.Digest && has.Runtime == next.Runtime && has.RuntimeDigest == next.RuntimeDigest &&
		has.User == next.User && has.WorkDir == next.WorkDir && has.DiskMB == next.DiskMB && has.VCPUs == next.VCPUs && has.MemoryMB == next.MemoryMB &&
		maps.Equal(has.ImageEnv, next.ImageEnv) && maps.Equal(has.Annotations, next.Annotations)
	if !same || !samePolicy(has.Extra.Network, next.Extra.Network) {
		return nil, nil
	}
	return has, nil
}

// sameFiles reports whether a snapshot has the same files as were saved in dir. It
// returns false for a snapshot that cannot be read.
func (e *Engine) sameFiles(ctx context.Context, has *store.SnapshotRow, dir string) bool {
	files, err := e.openSnapshot(ctx, has)
	if err == nil {
		defer files.Close()
		if !files.HasDisk() || files.Kind != snapshot.Filesystem {
			return false // a former hibernation, whose memory would be kept, too
		}
		var same bool
		if same, err = e.cfg.Runtime.SameDisk(ctx, files.DiskDir(), dir); err == nil {
			return same
		}
	}
	e.log.WarnContext(ctx, "snapshot cannot be compared to what is saved now", "snapshot", has.ID, "error", err)
	return false
}
