package route_test

import (
	"flag"
	"testing"

	"github.com/cayhq/cay/internal/leaktest"
)

func TestMain(m *testing.M) {
	// Each try of the model takes real machines, so fewer than rapid's default of 100,
	// unless the command line asks for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}
