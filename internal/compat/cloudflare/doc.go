// Package cloudflare serves the HTTP API of the bridge of Cloudflare's Sandbox SDK on
// top of our sandboxes: REST, server-sent events, and terminals over WebSockets. Clients
// are programs that run outside of Workers, such as the OpenAI Agents SDK.
//
// The package translates and has no rules of its own. Rights, quotas and limits are
// those of the sandbox service.
//
// A sandbox of the bridge is a sandbox whose name is the id that clients use, in the
// project of the token. The tag "cloudflare" with the value "bridge" marks it. The bridge
// keeps nothing about it in the daemon: sessions are files in the sandbox, terminals of
// sessions are commands of it. Both therefore survive a restart of the daemon.
package cloudflare
