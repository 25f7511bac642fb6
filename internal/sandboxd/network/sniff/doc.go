// Package sniff reads the first bytes of a guest's connection: just enough to find the
// name that the guest asks for.
//
//	Guess            which protocol a connection begins with
//	ReadClientHello  the server name in a TLS hello
//	FilterRequests   lets HTTP/1 requests through that mean the same to everyone
//
// These bytes decide whether a connection may leave, so a guest that can make us read a
// different name than the server reads has found a way out. Therefore everything here is
// strict: anything that a specification forbids, discourages or leaves open is refused
// with a short reason, even where servers tolerate it.
//
// The package decides nothing, dials nothing and knows no policy. The bytes it holds of a
// connection are bounded.
package sniff
