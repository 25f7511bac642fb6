package sandbox

import "context"

// Hibernate saves the sandbox with its processes and frees its memory and CPU;
// see Client.Hibernate.
func (h *Handle) Hibernate(ctx context.Context) (*Sandbox, error) { return h.c.Hibernate(ctx, h.ref) }

// Resume makes the sandbox run, whatever its status; see Client.Resume. Calls
// that need a persistent or hibernated sandbox resume it by themselves.
func (h *Handle) Resume(ctx context.Context) (*Sandbox, error) {
	return h.c.Resume(ctx, h.ref, ResumeParams{})
}

// Snapshot saves the sandbox's current state, so that other sandboxes can start
// from it; see Client.CreateSnapshot.
func (h *Handle) Snapshot(ctx context.Context, p SnapshotParams) (*Snapshot, error) {
	return h.c.CreateSnapshot(ctx, h.ref, p)
}

// Fork copies the sandbox; see Client.Fork.
func (h *Handle) Fork(ctx context.Context, p ForkParams) (*Fork, error) {
	return h.c.Fork(ctx, h.ref, p)
}

// Sessions lists the runs of the sandbox, newest first; see Client.Sessions.
func (h *Handle) Sessions(ctx context.Context, p SessionParams) (*Page[Session], error) {
	return h.c.Sessions(ctx, h.ref, p)
}
