package provider

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A value near its expiry is renewed while the old value is used; a failed renewal does
// not matter while the old value is valid, and is not retried at once.
func TestRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked, broken atomic.Int64
		r := newRenewed("a cloud", func(ctx context.Context) (int64, time.Time, error) {
			n := asked.Add(1)
			time.Sleep(time.Second)
			if broken.Load() != 0 {
				return 0, time.Time{}, errors.New("broken")
			}
			return n, time.Now().Add(time.Hour), nil
		})
		step := func(later time.Duration, want, asks int64) {
			t.Helper()
			time.Sleep(later)
			got, err := r.get(t.Context())
			synctest.Wait()
			if err != nil || got != want || asked.Load() != asks {
				t.Errorf("%d %v, asked %d times; want %d and %d", got, err, asked.Load(), want, asks)
			}
		}
		step(0, 1, 1)
		step(50*time.Minute, 1, 1)
		step(2*time.Minute, 1, 2) // 8 minutes before its end: in the background
		step(2*time.Second, 2, 2)
		broken.Store(1)
		step(52*time.Minute, 2, 3)
		step(2*time.Second, 2, 3) // it has failed
		step(10*time.Second, 2, 4)
		time.Sleep(5 * time.Minute) // the value has expired
		if _, err := r.get(t.Context()); err == nil || err.Error() != "broken" {
			t.Error(err)
		}
		broken.Store(0)
		step(0, 6, 6)
		broken.Store(1)
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		var e *hub.Error
		if _, err := r.get(ctx); !errors.As(err, &e) || e.Kind != hub.Timeout || e.Message != "a cloud did not answer in time" {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}
