package api

import (
	"context"
	"net/http"
)

// stoppingKey is the key of the context of WithStopping.
type stoppingKey struct{}

// WithStopping returns a context for all requests of a server (http.Server.BaseContext).
// stopping ends when the server begins to stop, with the cause that clients get: an error
// with the code unavailable. Streams and waits, which can last for any time, end then, so
// that a server that stops need not wait for them, and their clients attach again.
func WithStopping(ctx, stopping context.Context) context.Context {
	return context.WithValue(ctx, stoppingKey{}, stopping)
}

// stoppingOf returns the context that ends when the server of a request begins to stop.
func stoppingOf(ctx context.Context) context.Context {
	if stopping, ok := ctx.Value(stoppingKey{}).(context.Context); ok {
		return stopping
	}
	return context.Background()
}

// UntilStopping returns a request that also ends when its server begins to stop, as with
// EndWith. It is for handlers that only wait. Call end when the request was answered.
func UntilStopping(r *http.Request) (_ *http.Request, end func()) {
	return EndWith(r, stoppingOf(r.Context()))
}
