// Package sandboxd is the sandbox slice: it persists sandboxes, runs them on a Runtime,
// and implements Service.
//
// # States
//
//	           Create, Fork
//	             |
//	             v    start failed, caller left
//	          pending ---------------------------> failed -----+
//	             |  \                                ^          | persistent:
//	guest answers|   \ Stop, Delete                  | machine  | Resume, or a call
//	             v    \                              | ended by | that needs it
//	 +-------> running -\----------------------------+ itself   |
//	 |    Resume|  ^ | Pause  \                      |          |
//	 |       paused--+--\------\---------------------+          |
//	 |          |  |     \      \                               |
//	 |          | Hibernate\     \                              |
//	 |          |  v       v     v                             |
//	 |          | hibernated   stopping <---- Stop, Delete,    |
//	 |          |    |   |        |          timeout, idle     |
//	 |          |    |   | Stop   v                            |
//	 |          |    |   +----> stopped -----------------------+
//	 |          |    |             ^                           |
//	 |          |    v             | failed: back              v
//	 +----------+--resuming <------+--------------------------+
//
// Delete removes the row of a stopped, failed or hibernated sandbox. It stops any other
// sandbox first, and marks the row, so that recovery completes the deletion after a
// crash. A persistent sandbox is saved while it is stopping.
//
// A sandbox that is not persistent is resumed only with ResumeParams.Fresh.
//
// Each run of a sandbox is a session (session rows); the session's machine has the same
// id. A call can be restricted to a session (store.Row.Only): it ends with that session,
// and resumes nothing. For the contents and the order of saves see docs/architecture.md.
//
// # Authoritative state
//
// The database owns the state. Every transition is one conditional statement (UPDATE ...
// WHERE id = ? AND status IN (...)), so when a stop races with a crash of the machine,
// say, exactly one transition succeeds, and its caller alone does the work that follows,
// such as freeing the machine. All SQL is in package store.
//
// Memory holds handles that can be rebuilt: for each sandbox that is neither final nor
// hibernated, a session (session.go) with its machine, its guest client and its timers.
// Engine.Open rebuilds them after a restart by Runtime.Adopt, fails the sandboxes whose
// machine is gone, and reaps machines that no live sandbox owns. Where the order of a
// database write and an effect matters, the write comes first and recovery repeats the
// effect: pause, network policy, stop.
//
// A network policy can hold secrets. The row holds the policy with secrets redacted, and
// the whole policy sealed (policy.go); only the machine's own copy is in the open. The
// label of a port outlives its sandbox by 30 days, marked as gone, and is never issued
// again; the session that a label leads to is cached in memory only (package label). Only
// the guest knows the commands of a session and their output; when the session ends, the
// engine reads them from the guest and keeps them, within limits (commands_keep.go). Flow
// records are the only rows that are written late (package flowlog): a killed daemon
// loses the records of the last half second.
//
// # Time
//
// Timeouts count monotonic time since the machine started (Clock), which is the same for
// all processes of one boot of the host and does not follow changes of the wall clock. A
// sandbox's timeout keeps running while it is paused, and while the daemon is down; its
// idle timeout does not.
package sandboxd
