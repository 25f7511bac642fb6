package workflow

import (
	"testing"
	"time"
)

var (
	counted = NewLocal[int]()
	other   = NewLocal[int]()
)

// A run's branches share its variable, which has the same value on every replay; each run
// has its own value, and variables are independent of each other.
func TestLocal(t *testing.T) {
	w := Define("local", func(ctx Context, n int) ([]int, error) {
		add := func(d time.Duration) *Future[int] {
			return Go(ctx, func(ctx Context) (int, error) {
				before := *counted.Of(ctx)
				*counted.Of(ctx) += n
				err := Sleep(ctx, d)
				*counted.Of(ctx) += n
				return before, err
			})
		}
		seen, err := All(ctx, add(2*time.Hour), add(time.Hour))
		return append(seen, *counted.Of(ctx), *other.Of(ctx)), err
	})
	for _, n := range []int{1, 10} {
		var got []int
		newEngine(t, w, n).result(&got)
		if want := [4]int{0, n, 4 * n, 0}; len(got) != 4 || [4]int(got) != want {
			t.Errorf("the branches saw %v, want %v", got, want)
		}
	}
}
