// Package cloudflare runs examples/cloudflare as its README says: "wrangler dev",
// unmodified, with its containers on cay, and a client of the agent.
//
//	server/        an image in the place of the vendor's, with a server that has the
//	               routes that the example uses
//	egress/        a Worker whose handlers answer requests of its containers
//	bridge/        clients of the bridge, which takes no Worker
//
// wrangler is locked in examples/cloudflare/package-lock.json;
// "make conformance-cloudflare-deps" in the root installs it. No test asks a registry
// of images.
//
// Users of the vendor's local tools have reported faults in public. Each has a test here, or
// cannot happen:
//
//	sidecars leak                        docker.TestChurn: 200 containers, nothing is left
//	only the sidecar starts, 100 s hang  no netfilter is needed; a command that cannot start
//	                                     is refused at once (docker.TestLife), an egress handler
//	                                     that does not connect after 10 s
//	egress listens on an unreachable     the gateway is 127.0.0.1 (TestEgress)
//	address of a bridge
//	HTTPS of hosts without a handler     network.TestOutbound_Passed: the server's own certificate
//	--provenance ends podman             cmd/cay, script docker.txtar: unknown flags are noted
//	two classes, one Dockerfile          TestEgress has two classes with one Dockerfile
//	concurrent creations leave orphans   docker.TestChurn_atOnce, cloudflare.TestFirstCalls
//	the end of a session kills all       bridge.TestSessionProcesses: processes belong to the
//	                                     sandbox
//	410 for a healthy preview            previews are the vendor's server's, in the runtime that
//	                                     exposed them; the bridge has none
//	AbortSignal before the command       cloudflare.TestExec_Left: the process group ends
//	replies on the wrong socket, no      the protocol of agents is spoken by the vendor's own
//	sign before the first token, text    code in workerd, which cay does not touch
//	twice, lost state, stale recovery
package cloudflare
