package durable

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// Snapshot saves the present state of the sandbox, from which CreateParams.Snapshot makes
// new sandboxes: for example before a long wait, with p.Stop. It is idempotent by the
// snapshot's name, like Create: a missing name is derived from the step's key. A given
// name must be unused, or belong to a snapshot of this very sandbox, which Snapshot takes
// for the result of an earlier attempt; with p.Replace each attempt makes a new snapshot.
func (h *Handle) Snapshot(ctx workflow.Context, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return do(workflow.WithoutCancel(ctx), "snapshot", func(ctx context.Context, c *sandbox.Client) (*sandbox.Snapshot, error) {
		p := p // the attempt's copy
		if p.Name == "" {
			p.Name = "step-" + keyed(ctx)
		}
		if !p.Replace {
			// Look for the snapshot first: the attempt that made it may have stopped the
			// sandbox.
			s, err := c.GetSnapshot(ctx, p.Name)
			if err == nil && s.SandboxID == h.ID && s.Status == sandbox.SnapshotCreated {
				return s, nil
			}
			if err != nil && !is(err, cay.NotFound) {
				return nil, err
			}
		}
		return c.CreateSnapshot(ctx, h.ID, p)
	}, workflow.Timeout(attempt))
}

// DeleteSnapshot deletes a snapshot by id or name. Deleting a deleted snapshot is no
// error.
func DeleteSnapshot(ctx workflow.Context, ref string) error {
	_, err := do(ctx, "delete-snapshot", func(ctx context.Context, c *sandbox.Client) (none, error) {
		_, err := c.DeleteSnapshot(ctx, ref, sandbox.DeleteSnapshotParams{})
		if is(err, cay.NotFound) {
			err = nil
		}
		return none{}, err
	})
	return err
}
