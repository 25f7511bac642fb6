package sandboxd_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashMain()
		return
	}
	// A try of the model takes real machines: fewer than rapid's default of 100,
	// unless the command line asks for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func startFake(t testing.TB, change ...func(*sandboxd.Config)) (*sandboxtest.Harness, *fake.Runtime) {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	h := sandboxtest.Start(t, rt, change...)
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, rt
}

func TestEngine(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env {
		h, rt := startFake(t)
		env := h.Env()
		env.Kill = func(t *testing.T, id string, x sandboxd.Exit) {
			if err := rt.Kill(id, x); err != nil {
				t.Fatal(err)
			}
		}
		return env
	}})
}
