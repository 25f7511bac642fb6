// Package vercelsandbox speaks the wire protocol of Vercel Sandbox on top of our
// own services. It translates and has no rules of its own: package sandbox
// defines the meaning of a policy and validates it.
package vercelsandbox
