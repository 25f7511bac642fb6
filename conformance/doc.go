// Package conformance runs third-party programs against cay: here a browser,
// and in the packages below the official clients of other products whose
// protocols cay serves.
//
// Their versions are pinned by package.json and its lock file; "make
// conformance-deps" in the root installs them.
package conformance
