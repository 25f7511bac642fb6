package blob_test

import (
	"math"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
)

func TestCheckSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := blob.CheckSpace(dir, 0); err != nil {
		t.Errorf("without a reserve: %v", err)
	}
	if err := blob.CheckSpace(dir, math.MaxInt64); cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("with a reserve no disk has: %v", err)
	}
	if err := blob.CheckSpace(dir+"/missing", 0); err == nil {
		t.Error("there is room in a directory that is not there")
	}
}
