// Package gatewayd is the AI gateway's engine: it takes model calls in several wire
// formats, routes them to providers, charges for them, and records each call's outcome.
//
// A call (call.go) goes through stages, each with a package or a type of its own: what the
// client sent (package request), what to try (package plan), each attempt (exchange), and
// what it costs (package charge). Package admin manages keys, budgets and providers.
package gatewayd
