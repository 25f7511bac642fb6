// Package vercelworkflow serves the HTTP API that @workflow/world-vercel speaks, the
// client of the hosted service in Vercel's Workflow SDK, lines 4.7 and 5.0. Programs
// that are written with this SDK run on a cay daemon unmodified: their own process
// replays workflows and carries out steps, and this API keeps the event logs, wakes the
// process through a queue, and keeps streams.
//
// The package translates. The engine of workflows (workflowd.External) decides what may
// follow in a log, and the queue (workflowd/queue) decides when a message is delivered.
//
// # Facts about the protocol
//
// They come from the published packages, @workflow/world-vercel 4.7.4 and
// 5.0.0-beta.50, and from what these clients did against a server.
//
//	frame         u32 big endian length, CBOR map, u32 length, body. The map has the
//	              plain fields of an event, the body its payload. See frame.go.
//	dates         CBOR tag 1.
//	answers       CBOR, errors JSON {code, message}.
//	event ids     evnt_ and the slot in 26 digits for runs of spec version 6 and later;
//	              before, evnt_ and a ULID whose last 16 digits are the slot.
//	cursor        eid: and an event id. It is exclusive.
//	queue         the app acknowledges a message itself, by its receipt.
package vercelworkflow
