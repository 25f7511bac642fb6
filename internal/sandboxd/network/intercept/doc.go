// Package intercept answers the HTTP of guests where a policy has to see it: inside TLS
// that it ends with certificates of our own authority, and in plain HTTP.
//
//	guest -- TLS or plain --> Proxy -- policy for each request --> server
//
// Proxy is one http.Server that is fed connections; each comes with a Session, which says
// whose it is. For every request the host must be the one the connection was opened for,
// today's policy decides, and the first matching rule is applied: headers set, the
// request forwarded elsewhere, answered or refused. A request that passes goes out on a
// connection of the sandbox's own Upstream, whose server must prove by its certificate
// that it is the requested host. A record of each request is made when it has ended.
//
// Bodies stream both ways, without bounds and without delay; so do upgraded connections
// (WebSocket), trailers and informational responses. HTTP/1.1 and HTTP/2 may meet in any
// combination; HTTP/2 without TLS is not supported.
//
// Values of headers that rules set are secrets: they are in no error, log or record, and
// not in responses of rules that scrub.
//
// The package knows nothing of links, addresses and resolvers: Session.Dial resolves a
// name and decides whether its address may be reached.
package intercept
