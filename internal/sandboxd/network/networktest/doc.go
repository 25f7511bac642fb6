// Package networktest is an internet for tests: servers and names that look public to the
// code under test, but are on this machine's loopback address.
//
// An Internet has a real DNS server, which is to be the only name server of the code
// under test, and a DialContext, which is to be its only way out. DialContext connects an
// address such as 93.184.0.10:443 to the server that stands for it. The Internet records
// all dials, lookups and requests, so that a test can check not only what a guest saw but
// also what left. A dial to an address that is not public fails the test.
//
// The package must not import the code it tests: it defines again, in a few words, which
// addresses are public, so that an error there is no error here too.
package networktest
