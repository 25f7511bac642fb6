package history

// ChangeType says what a Change tells.
type ChangeType string

// What happens to a list of runs.
const (
	// Ready comes first, and again when changes begin anew: what changes from here on
	// is reported. Who reads the list after it, and then the changes, knows all.
	Ready   ChangeType = "ready"
	Changed ChangeType = "changed" // Run is as it is now
	// Deleted: there is no run ID in the list any more. It was deleted, or is not what
	// the query asks for any more.
	Deleted ChangeType = "deleted"
	// Missed: more has changed than was read, and some of it is not reported. Read the
	// lists again, of runs, hooks and schedules.
	Missed ChangeType = "missed"
	// HooksChanged and SchedulesChanged: the list of live hooks, or that of schedules,
	// is not what it was. Read it again.
	HooksChanged     ChangeType = "hooks"
	SchedulesChanged ChangeType = "schedules"
)

// Change tells that a run is new, is not what it was, or is gone. Of several changes
// of one run that were not read yet, only the last is reported, and of one run at
// most a few a second.
type Change struct {
	Type ChangeType
	ID   string // of the run, with Changed and Deleted
	Run  *Run   // with Changed; it is not to be written to
}

// Count is how many runs there are in a state.
type Count struct {
	Count int `json:"count"`
	// More says that there may be more: they were not all counted.
	More bool `json:"more,omitempty"`
}

// Counts is how many runs a query selects, by their state. It has each state that
// was asked for.
type Counts map[Status]Count

// Statuses are all states, in the order of a run's life.
var Statuses = []Status{Pending, Running, Completed, Failed, Cancelled}
