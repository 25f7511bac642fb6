// Package capture stores bodies of requests and answers for users who want to inspect
// them: truncated, redacted, sealed, and bounded in size, number and age. Capturing is
// off unless the settings enable it.
//
// No caller waits for a capture. A call's bodies count against a memory limit from the
// start of the call until they are written; if the limit is reached or the queue is full,
// the bodies are omitted and the request's record says so. A goroutine redacts, seals and
// writes the bodies in batches, in its own transactions, so that large bodies do not
// delay the records. A crash loses the bodies not yet written. So a record says only that
// bodies were to be stored; Store.Has says whether they are stored, including queued
// ones, and Get waits for queued ones.
//
// A captured body is exactly the body that the client sent or received: no headers of
// either side, so no credentials; credentials in a request's body have been removed by
// the engine. The package knows only one format, server-sent events.
package capture
