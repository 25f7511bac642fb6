package sandboxd_test

import (
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/sandbox"
)

// Every change that a caller was told of survives a power cut, and deleted objects do not
// come back: each change is synced when the call returns. Observations, such as the last
// use of a snapshot, may lose their last seconds.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	d, power := dbtest.OpenPower(t)
	h, _ := startFake(t, func(c *sandboxd.Config) { c.DB = d })
	ctx := defaultCaller(t)
	yes, long := true, minutes(600)
	var snap *sandbox.Snapshot
	ref := sandbox.SnapshotParams{Name: "named"}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"create", func() error {
			_, err := h.Create(ctx, sandbox.CreateParams{Name: "box", Persistent: &yes, Timeout: long, IdempotencyKey: "k"})
			return err
		}},
		{"create drive", func() error {
			_, err := h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "drive", MaxMB: 64})
			return err
		}},
		{"policy", func() error {
			_, err := h.Update(ctx, "box", sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.DenyAll}})
			return err
		}},
		{"tags", func() error {
			_, err := h.Update(ctx, "box", sandbox.UpdateParams{Tags: map[string]string{"a": "b"}})
			return err
		}},
		{"ports", func() error {
			_, err := h.Update(ctx, "box", sandbox.UpdateParams{Ports: []sandbox.PortParams{{Port: 3000}}})
			return err
		}},
		{"extend", func() error {
			_, err := h.Extend(ctx, "box", minutes(1))
			return err
		}},
		{"pause", func() error {
			_, err := h.Pause(ctx, "box")
			return err
		}},
		{"resume", func() error {
			_, err := h.Resume(ctx, "box", sandbox.ResumeParams{})
			return err
		}},
		{"snapshot", func() (err error) {
			snap, err = h.CreateSnapshot(ctx, "box", ref)
			return err
		}},
		{"fork", func() error {
			_, err := h.Fork(ctx, "box", sandbox.ForkParams{Names: []string{"copy"}})
			return err
		}},
		{"write and stop", func() error {
			if _, err := h.WriteFile(ctx, "box", "f", strings.NewReader("x"), sandbox.WriteParams{}); err != nil {
				return err
			}
			_, err := h.Engine.Stop(ctx, "box")
			return err
		}},
		{"start again", func() error {
			_, err := h.Resume(ctx, "box", sandbox.ResumeParams{})
			return err
		}},
		{"delete snapshot", func() error {
			_, err := h.DeleteSnapshot(ctx, snap.ID, sandbox.DeleteSnapshotParams{Force: true})
			return err
		}},
		{"delete drive", func() error { return h.DeleteDrive(ctx, "drive") }},
		{"delete", func() error { return h.Delete(ctx, "box") }},
		{"delete copy", func() error { return h.Delete(ctx, "copy") }},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		power.Check(t, c.name, "sandbox_snapshots.last_used_at", "sandboxes.frozen")
	}
	if left := checktest.Must(h.List(ctx, sandbox.ListParams{}))(t); len(left.Items) != 0 {
		t.Errorf("%d sandboxes are left", len(left.Items))
	}
}
