package durable

import (
	"context"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// Snapshot saves the sandbox as it is now, to make others of it with
// CreateParams.Snapshot: before a long wait, say, with p.Stop. It is idempotent as
// Create is, by its name: one that is not given is made from the step's key. A name
// given must be free, or belong to a snapshot of this very sandbox, which is taken
// for an earlier attempt's; with p.Replace a new one is made each time.
func (h *Handle) Snapshot(ctx workflow.Context, p sandbox.SnapshotParams) (*sandbox.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return do(workflow.WithoutCancel(ctx), "snapshot", func(ctx context.Context, c *sandbox.Client) (*sandbox.Snapshot, error) {
		p := p // of this attempt
		if p.Name == "" {
			p.Name = "step-" + keyed(ctx)
		}
		if !p.Replace {
			// Asked first: the attempt that made it may have stopped the sandbox.
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

// DeleteSnapshot deletes a snapshot by id or name. One that is gone is no error.
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
