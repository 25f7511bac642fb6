// Package sniff reads the first bytes of a guest's connection: enough to tell
// who it asks for, and no more.
//
//	Guess            which protocol a connection begins with
//	ReadClientHello  the server name in a TLS hello
//	FilterRequests   lets HTTP/1 requests through that mean the same to everyone
//
// What is read here decides whether a connection may leave, so a guest that can
// make us read something else than the server does has found a way out. That is
// why everything here is strict: what a specification forbids, discourages or
// leaves open is refused with a short reason, even where servers put up with it.
//
// The package decides nothing, dials nothing and knows no policy. All it holds
// of a connection is bounded.
package sniff
