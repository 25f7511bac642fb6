// Package oidc signs what others are to believe of this installation, and checks
// what it has signed: JSON Web Tokens by RS256, whose public keys are served as a
// JWKS document.
//
//	Ring      the keys of an installation: the newest signs, all verify
//	Forwards  tokens that go with requests forwarded out of sandboxes
//
// Nothing in a token says how it is to be checked: the algorithm is always RS256,
// and the key one of ours, found by its id. A token that was changed in any byte,
// also one that decodes to the same, is not the one that was signed. Tokens of
// different purposes are told apart by their audience, which Verify takes for
// that reason.
//
// The package knows no database and no slice: keys are handed in, and sealed and
// stored by others.
package oidc
