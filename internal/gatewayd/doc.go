// Package gatewayd is the AI gateway's engine: it takes model calls in several wire
// formats, routes them to providers, charges for them, and records each call's outcome.
package gatewayd
