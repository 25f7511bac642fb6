// Package workflowd is the engine of durable workflows: it keeps the logs of runs,
// decides what may be appended to them, gives them to workers, and wakes them. It never
// runs a workflow's code; workers do, in the SDK (workflow), in this process or connected
// over HTTP.
//
// The Store is authoritative: a run is its log (see history), and the engine's memory
// only holds state derived from the logs of active runs. The log is also the only channel
// to a worker: the worker's own events come back to it, with all other events of the run,
// in the order of the log.
//
// # Lanes
//
// Everything that changes a run is an op in the queue of a lane, one goroutine that
// belongs to the run: workers append, clients cancel and resume, timers ring, children
// end. A lane takes what is queued, decides it op by op against the logs in memory, and
// commits all of it as one group; while that is under way the next group gathers. When
// the group is stored, the lane tells workers, followers, timers and the callers that
// wait for the op. SQLite has one lane. A shared database has several; a run belongs to
// the lane of its root, so that a parent learns of its child's end in the same commit.
//
//	Append, ResumeHook, ...        decide            store            tell
//	 ---------- op ----------> [lane: group] ----> Commit ----> Deliver, done, hub
//	                                ^                 |
//	                                +---- failed -----+  (see failure.go)
//
// Names that must be unique in the whole database, tokens and idempotency keys, are
// decided by the store at the beginning of the commit. An op that depends on such a
// decision is the last op of its run in that group.
//
// # A run and its worker
//
//	                start                         take, and read the log
//	pending ----> in line -----> [worker has room] --------------------> assigned
//	   ^             ^   ^                                                 |   |
//	 StartAt         |   +----- session over (recovered, if it died) ------+   |
//	   |             |                                                         |
//	 asleep -----> awake <--- timer, hook, child, cancel --- asleep <--- Release
//
// Each assignment has a new lease; an append under an older lease is refused. Sleeping
// runs are not in memory, except their timers of the next hour. Limits of concurrency and
// rate hold up starts, never runs that go on (dispatch.go). Runs that were active when
// workers died are tried apart from others (suspects.go).
//
// # Ends
//
// A terminal event is the last one, except for results of steps that ran. A worker's
// terminal event is refused if hooks have received values that the code was not shown:
// the engine gives the run to a worker again, which replays it with these values
// (lane.go, replayed). Before a run fails or is cancelled its children are asked to end;
// then, in one commit, it ends and its parent is told. Continuing as a new run ends this
// one, creates the next and gives it the hooks (carry.go), in one commit; runs that
// continue each other are a chain, which is known by its first run (chain.go).
//
// # Several processes
//
// Where processes share a database (Owner), each run has one owner, whose lanes alone
// append to it. Others leave messages in its inbox. A process that has no worker for a
// run hands it over; a dead process loses its runs to processes that have a worker
// (owner.go).
package workflowd
