package sandboxd

// Reached has f called at the points of the lifecycle that Engine.at names.
func (e *Engine) Reached(f func(point string)) { e.reached.Store(&f) }

// Points are the points of a sandbox's life at which a crash is tried.
var Points = []string{
	"inserted", "images", "started", "healthy", "running",
	"network-recorded", "pause-recorded", "resumed",
	"stopping", "destroyed", "ended", "failed",
}
