package durable

import (
	"context"
	"errors"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

type clientKey struct{}

// WithClient returns a context whose steps use the sandboxes of a Client. Pass it to
// Worker.Start:
//
//	err := worker.Start(durable.WithClient(ctx, client))
func WithClient(ctx context.Context, c *sandbox.Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// local is the client of contexts without a Client.
var local sandbox.Client

func client(ctx context.Context) *sandbox.Client {
	if c, ok := ctx.Value(clientKey{}).(*sandbox.Client); ok {
		return c
	}
	return &local
}

// attempt bounds one attempt of a step that has no other bound: an image may have to be
// pulled, or much memory saved.
const attempt = 15 * time.Minute

// do runs one step. Permanent errors are not retried; an unreachable daemon is retried
// for as long as a restart of it takes.
func do[T any](ctx workflow.Context, name string, f func(ctx context.Context, c *sandbox.Client) (T, error), opts ...workflow.StepOption) (T, error) {
	opts = append([]workflow.StepOption{
		workflow.MaxRetries(10),
		workflow.RetryPolicy{Initial: 500 * time.Millisecond, Max: 30 * time.Second},
	}, opts...)
	return workflow.Do(ctx, "sandbox."+name, func(ctx context.Context) (T, error) {
		v, err := f(ctx, client(ctx))
		return v, final(err)
	}, opts...)
}

// none is the result type of steps without a result.
type none struct{}

// final marks errors that would be the same at the next attempt as fatal, and sets the
// time of the next attempt if the daemon has given one.
func final(err error) error {
	var e *cay.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case cay.Unavailable, cay.SourceUnavailable, cay.Internal, cay.DeadlineExceeded, cay.Canceled, cay.NoSpace:
		return err
	case cay.QuotaExceeded:
		if e.RetryAfter > 0 {
			return workflow.Retryable(err, e.RetryAfter)
		}
		return err
	}
	return workflow.Fatal(err)
}

func is(err error, codes ...cay.Code) bool {
	for _, c := range codes {
		if errors.Is(err, &cay.Error{Code: c}) {
			return true
		}
	}
	return false
}
