package sandboxd_test

import (
	"flag"
	"os"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashLife) != "" {
		crashMain()
		return
	}
	// Each iteration of the model takes real machines: run fewer than rapid's default of
	// 100, unless the command line asks for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

// Used by most tests of this package.
var startFake, fakeHooks = sandboxtest.StartFake, sandboxtest.FakeHooks

func TestEngine(t *testing.T) {
	checktest.Long(t)
	sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env {
		h, rt := startFake(t)
		env := h.Env()
		fakeHooks(env, rt)
		return env
	}})
}
