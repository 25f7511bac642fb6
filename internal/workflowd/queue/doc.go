// Package queue delivers messages to programs over HTTP: the durable queue that
// programs written with the Workflow SDK publish to. It knows nothing of runs.
//
// Publish stores a message and returns. When the message is due, the queue leases it,
// and pushes it to the app of its deployment. The app extends the lease while it
// works, and acknowledges by the receipt of the lease; only that removes the message.
// A message that is not acknowledged is delivered again, without end.
//
//	Publish --> waiting ----due----> leased --> pushed --Acknowledge--> gone
//	               ^                    |          |
//	               |                    |          +-- failed: again after a backoff
//	               |                    |          +-- Extend(d), then answered: again in d
//	               +--------------------+----------+-- lease over, or its process replaced
//
// The store is authoritative. A lease is stored before its push begins, so that a
// process that starts anew does not deliver what the app still works on. Memory holds,
// for each deployment, at most some messages that are due within the hour, and a time
// before which none of the others is due (lane). Entries in memory may be out of date:
// the lease, which is conditional, decides.
//
// Nothing is dropped and nothing is polled. While no app answers for a deployment its
// messages are held: one of them is tried again, with a backoff, and all go on when it
// gets through, or when the deployment registers. Such a try does not count as a
// delivery. Deployments do not wait for each other, nor do the messages of a run.
//
// All writes go through one goroutine (writer), which gathers what is queued while
// the last transaction ran.
//
// Several processes may share a store. Each pushes what it leases; any of them takes
// an acknowledgement.
package queue
