// Package protocol is what the daemon and the programs that use its workflows
// say to each other: the bodies of the HTTP API, and the messages of a worker's
// session. Both sides import it, the SDK (workflow) and the engine's routes
// (internal/workflowd), so it knows neither, and links nothing but the standard
// library and this module's leaves.
//
// Times are RFC 3339 with milliseconds. Payloads travel as Payload does.
package protocol
