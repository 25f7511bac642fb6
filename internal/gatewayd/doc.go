// Package gatewayd is the AI gateway's engine: it takes calls of models in the wire
// formats of several products, finds who serves them, pays for them, and records
// what became of each.
package gatewayd
