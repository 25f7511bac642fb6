package sandboxd

import (
	"context"
	"time"
)

// Reached makes the engine call f at the points of the lifecycle that Engine.at names.
func (e *Engine) Reached(f func(point string)) { e.reached.Store(&f) }

// Points are the points of a sandbox's life at which tests crash the daemon.
var Points = []string{
	"inserted", "images", "started", "healthy", "running",
	"network-recorded", "pause-recorded", "resumed",
	"stopping", "destroyed", "ended", "failed",
}

// SweepDrives removes the blobs that no drive holds and that are older than grace, and
// returns their number.
func (e *Engine) SweepDrives(ctx context.Context, grace time.Duration) (int, error) {
	return e.removeStrayDrives(ctx, grace)
}

// SweepCommands removes blobs of commands that no session refers to and that are older
// than grace, and returns their number.
func (e *Engine) SweepCommands(ctx context.Context, grace time.Duration) (int, error) {
	return e.removeStrayCommands(ctx, grace)
}

// LookAfterSnapshots starts a look at snapshots, as a deletion does.
func (e *Engine) LookAfterSnapshots() { e.freeSnapshots() }
