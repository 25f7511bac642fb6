// Package queue delivers messages to programs over HTTP: the durable queue that
// programs written with the Workflow SDK publish to. It knows nothing of runs.
//
// Publish stores a message and returns. When the message is due, the queue leases it, and
// pushes it to the app of its deployment. The app extends the lease while it works, and
// acknowledges with the receipt of the lease; only an acknowledgement removes the
// message. A message without an acknowledgement is delivered again, without end.
//
//	Publish --> waiting ----due----> leased --> pushed --Acknowledge--> gone
//	               ^                    |          |
//	               |                    |          +-- failed: again after a backoff
//	               |                    |          +-- Extend(d), then answered: again in d
//	               +--------------------+----------+-- lease over, or its process replaced
//
// The store is authoritative. A lease is stored before its push begins, so that a
// restarted process does not deliver a message that the app still works on. Memory holds,
// for each deployment, a bounded number of messages that are due within the hour, and the
// earliest time at which any other message is due (lane). Entries in memory may be out of
// date: the store checks each lease and so decides.
//
// Nothing is dropped and nothing is polled. While no app answers for a deployment its
// messages are held: a single message is tried again, with a backoff, and delivery of all
// resumes when it gets through, or when the deployment registers. Such a probe does not
// count as a delivery. Deployments do not wait for each other, nor do the messages of a
// run. Only where an app has no room for all due messages, those of a higher priority go
// before the others, and the runs of one priority take turns.
//
// All writes go through one goroutine (writer), which writes the ops queued during the
// last transaction as the next one.
//
// Several processes may share a store. Each pushes the messages that it leases; any
// process accepts an acknowledgement.
package queue
