// Package runtimetest tests the behavior that all machine.Runtimes share.
//
// To test a new Runtime, write a test that calls Run with a function that creates the
// Runtime over a state directory. Run covers machines: starting, reaching, adopting,
// pausing and destroying them. It ends with Guest, which covers the guest in a machine,
// and can be run alone against any guest.
//
// Caps states optional features of a Runtime; the tests ask the guest for its features.
// Tests of missing features are skipped with a message.
package runtimetest
