// Package api is the HTTP kit under every slice's routes.
//
// A slice registers Handlers on a Mux. A Handler decodes the request, calls its
// service and encodes the answer; when it returns an error, this package is the
// one place that turns the error's code into a status. The Mux authenticates
// every request before its Handler runs, so a route cannot forget to, and
// collects the slices' OpenAPI fragments into one document.
//
// NewServer wraps a handler in the middleware of all requests, from the outside
// in: a request id and the access log, the check of the Host header against DNS
// rebinding, the refusal of other origins, security headers.
//
// The package knows no capability, only package cay and internal/wire.
package api
