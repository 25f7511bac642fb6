// Package gateway runs the official clients of model providers and gateways,
// unmodified, against a gateway whose providers are played by
// internal/gatewayd/gatewaytest.
//
// The versions of the clients are pinned by package.json, requirements.txt and
// their lock files; "make conformance-gateway-deps" in the root installs them.
//
//	cases.mjs         what every client does with every provider: one table
//	clients.mjs       the clients for JavaScript, behind the same few words
//	clients.test.mjs  the table, by one client
//	replay.test.mjs   recorded answers of providers, by one client
//	vercel.test.mjs   the AI SDK under "cay vercel exec", which names models and no gateway
//	kinds.test.mjs    embeddings, images, accounting, errors of the gateway's own
//	python/cases.py   the clients for Python
//	gateway_test.go   runs them all; each case is a subtest
//	site_test.go      the daemon, its providers, and what they have seen
//	agents_test.go    coding agents, of agents/package.json, write a file
//	clouds_test.go    what Bedrock, Azure and Vertex check of a request
//	raw_test.go       bytes pass where both sides speak the same format
//
// "go test -run TestClients/openai-v6" runs one client, CAY_CASES=tools runs only
// the matching cases.
package gateway
