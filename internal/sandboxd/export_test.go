package sandboxd

import (
	"context"
	"time"
)

// Reached has f called at the points of the lifecycle that Engine.at names.
func (e *Engine) Reached(f func(point string)) { e.reached.Store(&f) }

// Points are the points of a sandbox's life at which a crash is tried.
var Points = []string{
	"inserted", "images", "started", "healthy", "running",
	"network-recorded", "pause-recorded", "resumed",
	"stopping", "destroyed", "ended", "failed",
}

// SweepDrives removes the blobs that no drive holds, if they are older than
// grace, and returns how many.
func (e *Engine) SweepDrives(ctx context.Context, grace time.Duration) (int, error) {
	return e.removeStrayDrives(ctx, grace)
}

// SweepCommands removes what is kept of commands that no session has, if it is
// older than grace, and returns how much.
func (e *Engine) SweepCommands(ctx context.Context, grace time.Duration) (int, error) {
	return e.removeStrayCommands(ctx, grace)
}

// LookAfterSnapshots has snapshots looked after, as if one had been deleted.
func (e *Engine) LookAfterSnapshots() { e.freeSnapshots() }
