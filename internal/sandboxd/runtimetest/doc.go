// Package runtimetest is the behaviour every machine.Runtime shares, as tests.
//
// To hold a new Runtime to it, write a test that calls Run with a function that
// makes one over a state directory. Run covers machines: starting, reaching,
// adopting, pausing and ending them. It ends with Guest, which covers what the
// guest in a machine does, and can be run alone against any guest.
//
// What a Runtime cannot do it says in Caps; what a guest cannot do is found out
// by asking it. The tests skip that and say so.
package runtimetest
