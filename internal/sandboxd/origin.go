package sandboxd

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/sandbox"
)

// origin is the snapshot a session starts from, open. A nil *origin is the image.
type origin struct {
	row   *store.SnapshotRow
	files *snapshot.Snapshot
	// memory says that its processes go on.
	memory bool
}

// openOrigin opens what the session of r, which is about to start, starts from:
// what the sandbox is hibernated in, else its snapshot. Errors: not_found if the
// snapshot is gone, conflict if it is damaged.
func (e *Engine) openOrigin(ctx context.Context, r *store.Row) (*origin, error) {
	id := cmp.Or(r.Hibernation, r.SnapshotID)
	if id == "" {
		return nil, nil
	}
	row, err := e.store.GetSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	// Processes need the runtime that they were started from.
	o := &origin{row: row, memory: row.Kind == sandbox.MemorySnapshot && !r.FilesOnly && row.Runtime == r.Runtime}
	if o.files, err = e.openSnapshot(ctx, row); err != nil {
		return nil, fmt.Errorf("open snapshot: %w", err)
	}
	if !o.memory && !o.files.HasDisk() {
		o.files.Close()
		return nil, cay.Errorf(cay.NotSupported, "snapshot %s has no files to start from, only memory", id)
	}
	return o, nil
}

// errNoSnapshots is what an engine says that was given no place for snapshots.
var errNoSnapshots = cay.Errorf(cay.NotSupported, "this daemon keeps no snapshots")

// close lets go of the files, for a machine that has started from them too.
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
