package provider

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

const (
	// renewMargin is how long before its expiry a value is no longer used, and renewEarly
	// how long before that it is renewed in the background.
	renewMargin = 4 * time.Minute
	renewEarly  = 5 * time.Minute
	// renewPause is the pause after a failed renewal while the current value is still
	// valid.
	renewPause   = 10 * time.Second
	renewTimeout = 15 * time.Second
)

// renewed caches a value that expires: an access token, temporary keys. The first caller
// without a valid value fetches it for all callers; the fetch continues if that caller
// leaves. A caller that finds the value near its expiry starts a renewal and does not
// wait for it. Failures are not cached.
type renewed[T any] struct {
	from  string // the issuer, for error messages
	fetch func(context.Context) (T, time.Time, error)
	now   func() time.Time

	flight singleflight.Group
	mu     sync.Mutex // guards the following fields
	value  T
	early  time.Time // time from which a new value is fetched
	until  time.Time // time from which this value is not used
}

func newRenewed[T any](from string, fetch func(context.Context) (T, time.Time, error)) *renewed[T] {
	return &renewed[T]{from: from, fetch: fetch, now: time.Now}
}

// get returns the value, and fetches it if necessary. Errors: fetch's errors, and Timeout
// if ctx ends first.
func (r *renewed[T]) get(ctx context.Context) (T, error) {
	r.mu.Lock()
	value, now := r.value, r.now()
	usable, early := now.Before(r.until), !now.Before(r.early)
	r.mu.Unlock()
	if usable && !early {
		return value, nil
	}
	asked := r.flight.DoChan("", func() (any, error) { return r.renew(context.WithoutCancel(ctx)) })
	if usable {
		return value, nil
	}
	select {
	case <-ctx.Done():
		return value, &hub.Error{Kind: hub.Timeout, Message: r.from + " did not answer in time", Cause: context.Cause(ctx)}
	case got := <-asked:
		if got.Err != nil {
			return value, got.Err
		}
		return got.Val.(T), nil
	}
}

func (r *renewed[T]) renew(ctx context.Context) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	value, end, err := r.fetch(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if err != nil {
		r.early = now.Add(renewPause)
		return value, err
	}
	life := max(0, end.Sub(now))
	life = max(life-renewMargin, life/2)
	r.value, r.until, r.early = value, now.Add(life), now.Add(max(life-renewEarly, life/2))
	return value, nil
}
