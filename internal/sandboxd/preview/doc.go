// Package preview forwards HTTP requests to programs in sandboxes: a request for
// <label>.<domain> goes to the port that the label belongs to.
//
// Neither the visitor nor the guest may be trusted, and a browser stands between them.
// The visitor may reach declared ports only, and a private port only with a link's token.
// The guest receives the visitor's request without cay's own tokens, cookies and API
// credentials. Each preview is an origin of its own, which can set no cookie for another.
//
// A visit goes through these steps, one file each: a slot is taken (package limit), the
// label is looked up (preview.go), the visitor is admitted (access.go), and the request
// is forwarded (proxy.go), its headers cleaned (clean.go). A visitor who gets no answer
// from the guest gets a page that says why (page.go).
//
// The package knows nothing of sandboxes: see Targets.
package preview
