// Package oidc signs and verifies this installation's JSON Web Tokens, with
// RS256. The public keys are served as a JWKS document, so that other services
// can verify the tokens.
//
//	Ring      the keys of an installation: the newest signs, all verify
//	Forwards  tokens that go with requests forwarded out of sandboxes
//
// A token cannot choose how it is verified: the algorithm is always RS256, and
// the key is one of the ring's, found by its id. A token with any changed byte is
// refused, even if it decodes to the same content. Tokens of different purposes
// have different audiences, which is why Verify takes an audience.
//
// The package knows no database and no slice: the caller passes the keys, and
// seals and stores them.
package oidc
