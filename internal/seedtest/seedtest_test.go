package seedtest_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/seedtest"
)

// Two checks see the same inputs, and the inputs of a check vary.
func TestCheck(t *testing.T) {
	t.Setenv("CAY_SEED", "7")
	var runs [2][]int
	for i := range runs {
		seedtest.Check(t, func(r *rapid.T) { runs[i] = append(runs[i], rapid.Int().Draw(r, "n")) })
	}
	if !slices.Equal(runs[0], runs[1]) {
		t.Error("two checks differ")
	}
	if slices.Min(runs[0]) == slices.Max(runs[0]) {
		t.Errorf("a check sees %v", runs[0])
	}
}

func TestRand(t *testing.T) {
	t.Setenv("CAY_SEED", "7")
	first := seedtest.Rand(t).Uint64()
	if again := seedtest.Rand(t).Uint64(); again != first {
		t.Error("the same seed gives different numbers")
	}
	t.Setenv("CAY_SEED", "random")
	if seedtest.Rand(t).Uint64() == first {
		t.Error("a random seed gives the numbers of another")
	}
}
