// Package networktest is an internet for tests: servers and names that look
// public to the code under test, but are on this machine's loopback address.
//
// An Internet has a real DNS server, which is to be the only name server of the
// code under test, and a DialContext, which is to be its only way out. It
// connects an address such as 93.184.0.10:443 to the server that stands for it,
// and keeps a record of what was dialled, resolved and requested, so that a test
// can say not only what a guest saw but also what left. Whoever dials an address
// that is not public fails the test.
//
// The package must not know the code it tests: what is public is told again, in
// few words, so that an error there is no error here too.
package networktest
