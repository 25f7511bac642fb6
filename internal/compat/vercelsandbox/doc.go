// Package vercelsandbox speaks the wire protocol of Vercel Sandbox on top of our
// own services. It translates and has no rules of its own: what a policy means
// and whether it is valid is for package sandbox to say.
package vercelsandbox
