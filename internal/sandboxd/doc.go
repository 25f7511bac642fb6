// Package sandboxd is the sandbox slice: it keeps sandboxes, runs them on a
// Runtime, and answers Service for them.
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
// Delete removes the row of a sandbox that is stopped, failed or hibernated; for
// one that is not it goes through stopping first, marked so that a crash in
// between does not bring the sandbox back. A sandbox that is persistent is saved
// while it is stopping.
//
// A sandbox that is not persistent is resumed only if it is said to start anew.
//
// Between a start and an end there is a session (session rows), whose machine has
// the session's id. A call can be about a session instead of a sandbox (store.Row.Only):
// it ends with that session, and starts none. What is saved, and in which order, is in docs/architecture.md.
//
// # What is authoritative
//
// The database owns the state. Every transition is one conditional statement
// (UPDATE ... WHERE id = ? AND status IN (...)), so of two that race, a stop
// and a crash of the machine say, exactly one wins, and the winner does what
// follows from the transition: it alone frees the machine. All SQL is in
// package store.
//
// Memory holds handles that can be rebuilt: for each sandbox that is not final
// or hibernated a session (session.go) with its machine, its guest client and its
// timers.
// Engine.Open rebuilds them after a restart by Runtime.Adopt, fails the
// sandboxes whose machine is gone, and reaps machines no live sandbox owns.
// Where the order of a database write and an effect matters, the write comes
// first and recovery repeats the effect: pause, network policy, stop.
//
// A network policy can hold secrets. Its row keeps what may be shown of it, and
// the whole of it sealed (policy.go); only the machine's own copy is in the open.
// A label of a port outlives its sandbox by 30 days, as gone, and is never given
// out again; that a label leads to a session is only ever remembered (package label).
// What the commands of a session did its guest alone knows; when the session ends the
// engine keeps what it tells of them, within bounds (commands_keep.go).
// Flow records are the one thing that is written late (package flowlog): a daemon that
// is killed loses those of the last half second.
//
// # Time
//
// Timeouts count monotonic time since the machine started (Clock), which is the
// same for all processes of one boot of the host and does not follow changes of
// the wall clock. A sandbox's timeout keeps running while it is paused, and
// while the daemon is down; its idle timeout does not.
package sandboxd
