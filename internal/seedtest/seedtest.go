// Package seedtest is for tests with random inputs. The inputs are the same in
// every run, so that a run's result depends on the program alone; CAY_SEED=NUMBER
// selects other inputs, and CAY_SEED=random new inputs each time. Slow checks run a
// few times, or CAY_ROUNDS=NUMBER times.
package seedtest

import (
	"flag"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	seedEnv   = "CAY_SEED"
	roundsEnv = "CAY_ROUNDS"
	usual     = 1
)

// Seed returns and logs the seed of a test.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(usual)
	switch text := os.Getenv(seedEnv); text {
	case "":
	case "random":
		seed = uint64(time.Now().UnixNano())
	default:
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil || seed == 0 {
			t.Fatalf("%s is %q, want a number above 0 or random", seedEnv, text)
		}
	}
	t.Logf("%s=%d", seedEnv, seed)
	return seed
}

// Rand returns numbers that depend on the Seed.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0))
}

// Rounds returns how often a test repeats slow work: few times, or CAY_ROUNDS times
// if that is set.
func Rounds(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv(roundsEnv)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("%s is %q, want a number above 0", roundsEnv, text)
	}
	return n
}

var setSeed sync.Once

// Check is rapid.Check with the Seed. The flag -rapid.seed overrides the Seed.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	setSeed.Do(func() {
		if f := flag.Lookup("rapid.seed"); f.Value.String() == "0" {
			if err := f.Value.Set(strconv.FormatUint(Seed(t), 10)); err != nil {
				t.Fatal(err)
			}
		}
	})
	rapid.Check(t, property)
}
