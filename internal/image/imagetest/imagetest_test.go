package imagetest_test

import (
	"testing"

	"github.com/cayhq/cay/internal/image/imagetest"
)

// TestAcquire also is the way to build all images before other tests need them:
//
//	go test ./internal/image/imagetest
func TestAcquire(t *testing.T) {
	for _, ref := range []string{"debian", "node24", "node22", "node26", "python3.13"} {
		t.Run(ref, func(t *testing.T) {
			lease := imagetest.Acquire(t, ref)
			t.Log(lease.Path, lease.Image.SizeBytes)
		})
	}
}
