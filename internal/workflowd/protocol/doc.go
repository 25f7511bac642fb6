// Package protocol is the wire format between the daemon and the programs that use its
// workflows: the bodies of the HTTP API, and the messages of a worker's session. Both
// sides import it, the SDK (workflow) and the engine's routes (internal/workflowd), so it
// imports neither, only the standard library and small packages of this module.
//
// Times are RFC 3339 with milliseconds. Payloads are encoded as Payload.
package protocol
