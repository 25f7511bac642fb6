package history

// ChangeType is the kind of a Change.
type ChangeType string

// The kinds of changes of a list of runs.
const (
	// Ready comes first, and again when the feed restarts: later changes are reported
	// from here on. A reader that reads the list after Ready, and then the changes,
	// misses nothing.
	Ready   ChangeType = "ready"
	Changed ChangeType = "changed" // Run holds the new state of the run
	// Deleted: the run is no longer in the list. It was deleted, or no longer matches the
	// query.
	Deleted ChangeType = "deleted"
	// Missed: the reader was too slow, and some changes are not reported. Read the lists
	// of runs, hooks and schedules again.
	Missed ChangeType = "missed"
	// HooksChanged and SchedulesChanged: the list of live hooks, or the list of
	// schedules, has changed. Read that list again.
	HooksChanged     ChangeType = "hooks"
	SchedulesChanged ChangeType = "schedules"
)

// Change reports that a run is new, has changed, or was deleted. While several changes of
// one run are unread, only the last is reported, and each run is reported at most a few
// times a second.
type Change struct {
	Type ChangeType
	ID   string // the run's id; with Changed and Deleted
	Run  *Run   // with Changed; must not be written to
}

// Count is how many runs there are in a state.
type Count struct {
	Count int `json:"count"`
	// More means that the count stopped early: there may be more runs.
	More bool `json:"more,omitempty"`
}

// Counts is the number of runs that a query selects, by state. It has an entry for each
// state that was asked for.
type Counts map[Status]Count

// Statuses are all states, in the order of a run's life.
var Statuses = []Status{Pending, Running, Completed, Failed, Cancelled}
