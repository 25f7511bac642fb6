package blob

// Points are the steps of a blob's life that Reached reports, in order.
var Points = []string{
	"created", "partly written", "a file on disk", "content on disk", "named", "committed",
	"unnamed", "unnamed on disk", "partly removed",
}

// Reached makes the store call f after every step, before the next.
func (d *Dir) Reached(f func(point string)) { d.reached = f }

// SetAvailable replaces the function that returns the available disk space.
func (d *Dir) SetAvailable(f func(string) (int64, error)) { d.available = f }

// Migrate is the function by which OpenDir brings a directory to the current version.
var Migrate = migrate

// MakeDir makes the directories of a store.
var MakeDir = makeDir
