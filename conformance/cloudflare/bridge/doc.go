// Package bridge runs clients of the bridge of Cloudflare's Sandbox SDK against cay, with
// real sandboxes.
//
//	checks_test.go   what the vendor's own black-box test of the bridge checks, over
//	                 HTTP, and sessions, terminals and archives with real programs
//	client.mjs       the client of the OpenAI Agents SDK, unmodified
//	client.py        the same for Python
//
// The clients are locked in package-lock.json and requirements.txt; "make
// conformance-cloudflare-deps" in the root installs them. The other tests are part of
// "make test".
package bridge
