// Package cloudflare runs examples/cloudflare as its README says: "wrangler dev",
// unmodified, with its containers on cay, and a client of the agent.
//
//	server/        an image in the place of the vendor's, with a server that has the
//	               routes that the example uses
//
// wrangler is locked in examples/cloudflare/package-lock.json;
// "make conformance-cloudflare-deps" in the root installs it. No test asks a registry
// of images.
package cloudflare
