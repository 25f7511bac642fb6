// Package preview serves what programs in sandboxes serve: a request for
// <label>.<domain> is passed on to the port the label belongs to.
//
// Two parties meet here who must not be trusted, with a browser in between. The
// visitor may reach nothing but declared ports, a private one only with a
// link's token. The guest is handed what the visitor sent without anything that
// is ours: tokens, cookies, credentials of the API. And each preview is an
// origin of its own, which can set no cookie for another.
//
// A visit goes through these steps, a file each: a slot is taken (package limit),
// the label is looked up (preview.go), the visitor is admitted (access.go), and
// the request is passed on (proxy.go), its headers cleaned (clean.go). Who gets
// no answer from the guest gets a page that says why (page.go).
//
// The package knows nothing of sandboxes: see Targets.
package preview
