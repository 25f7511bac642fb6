package template

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cayhq/cay/sandbox"
)

// forever is the expiration of results.
var forever sandbox.Duration

// image makes an image of the last layer.
func (u *build) image(ctx context.Context, layer *sandbox.Snapshot) (*sandbox.Image, error) {
	u.event(Event{Phase: PhaseSave, Text: "image " + u.t.Name})
	p := sandbox.ImageSnapshotParams{Snapshot: layer.ID, Ref: u.t.Name, User: u.t.User, WorkDir: u.t.WorkDir}
	for _, k := range slices.Sorted(maps.Keys(u.t.Env)) {
		p.Env = append(p.Env, k+"="+u.t.Env[k])
	}
	if u.t.Start != nil {
		p.Cmd = u.t.Start.Command
	}
	if c := u.t.Config; c != nil {
		p.Env, p.User, p.WorkDir, p.Entrypoint, p.Cmd = c.Env, c.User, c.WorkDir, c.Entrypoint, c.Cmd
		p.Labels, p.ExposedPorts = c.Labels, c.ExposedPorts
	}
	img, err := u.Images.FromSnapshot(ctx, p, func(s sandbox.ImageProgress) { u.event(Event{Image: &s}) })
	if err != nil {
		return nil, fmt.Errorf("make the image: %w", err)
	}
	return img, nil
}

// snapshot makes a snapshot of the last layer.
func (u *build) snapshot(ctx context.Context, layer *sandbox.Snapshot) (s *sandbox.Snapshot, err error) {
	u.event(Event{Phase: PhaseSave, Text: "snapshot " + u.t.Name})
	box, err := u.create(ctx, layer)
	if err != nil {
		return nil, err
	}
	defer func() { u.end(ctx, box, err) }()
	return u.replace(ctx, box, u.result(sandbox.FilesystemSnapshot))
}

// memory makes a snapshot of a sandbox in which the start command is ready, and
// no process of the steps runs.
func (u *build) memory(ctx context.Context, layer *sandbox.Snapshot) (s *sandbox.Snapshot, err error) {
	u.event(Event{Phase: PhaseStart, Text: u.t.Start.Command.String()})
	box, err := u.create(ctx, layer)
	if err != nil {
		return nil, err
	}
	defer func() { u.end(ctx, box, err) }()
	if layer == nil {
		if err := u.prepare(ctx, box); err != nil {
			return nil, err
		}
	}
	if err := u.start(ctx, box); err != nil {
		return nil, err
	}
	u.event(Event{Phase: PhaseSave, Text: "memory snapshot " + u.t.Name})
	return u.replace(ctx, box, u.result(sandbox.MemorySnapshot))
}

func (u *build) result(kind sandbox.SnapshotKind) sandbox.SnapshotParams {
	return sandbox.SnapshotParams{Kind: kind, Name: u.t.Name, Env: u.t.Env, Expiration: &forever, WithoutNetwork: true}
}
