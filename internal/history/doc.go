// Package history is the vocabulary of durable workflows: runs, the events of their logs,
// and the rules that say which event may follow. The SDK (workflow), the engine
// (internal/workflowd) and its stores share the package; it imports none of them.
//
// A run is its log. Events are appended at dense slots, 1, 2, 3, ..., assigned in the
// commit that stores them; Log derives the state of a run's steps, hooks and waits from
// its events. The types of events, the states of entities and the rules follow the event
// log of the Workflow SDK for JavaScript (specification version 6 and 7), so that runs of
// both live in one engine. Event types that only Go runs have are marked "Go only".
//
//	        run_created            run_started
//	(none) -------------> pending -------------> running --run_completed--> completed
//	                         |                     |-------run_failed-----> failed
//	                         +----run_cancelled----+----------------------> cancelled
//
//	       step_created            step_started (attempt+1)
//	(none) -------------> pending -------------------------> running --step_completed--> completed
//	                         ^                                |   \----step_failed-----> failed
//	                         +---------step_retrying----------+
//
// A Go worker writes one event for a step that is done quickly: a step_completed
// (or step_failed, step_retrying, step_started) that carries Name and Input
// creates the step too.
package history
