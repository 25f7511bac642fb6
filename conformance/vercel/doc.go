// Package vercel runs the official clients of Vercel Sandbox, unmodified, against
// a daemon with real sandboxes.
//
// The versions of the clients are pinned by package.json, requirements.txt and
// their lock files; "make conformance-vercel-deps" in the root installs them.
// Clients find the daemon as users' clients do, by the module of
// internal/compat/vercelsandbox/preload. Sandboxes have a simulated internet, of
// internal/sandboxd/network/networktest, with a host of git repositories.
//
//	sdk.test.mjs      one table of cases, in cases/, for versions 1, 2 and 3 of the SDK
//	versions.test.mjs what one version made is there for the others and for our own API
//	slow.test.mjs     answers that take longer than clients wait
//	receiver.test.mjs receivers of forwarded requests
//	cli_test.go       the command line, old and new: scripts in testdata/script
//	terminal_test.go  what takes a terminal: shells in sandboxes, and signing in
//	python_test.go    the client for Python, both of its faces: python/cases.py
//	client.test.mjs   @vercel/sdk, the client of the vendor's whole API
//	readme_test.go    the programs of the SDKs' own READMEs, as they are written there,
//	                  and those in examples/vercel
//
// A case is a function, and becomes a subtest here: "go test -run TestSDK/v3/fork"
// runs the table and reports the case, CAY_CASES=fork runs only the matching
// cases.
package vercel
