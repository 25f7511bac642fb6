// Package conformance runs programs of others against cay: a browser today,
// the official clients of other products as their protocols are served.
//
// What they are is pinned by package.json and its lock file; "make
// conformance-deps" in the root installs them.
package conformance
