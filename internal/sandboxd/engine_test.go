package sandboxd_test

import (
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashLife) != "" {
		crashMain()
		return
	}
	// A try of the model takes real machines: fewer than rapid's default of 100,
	// unless the command line asks for more.
	if err := flag.Set("rapid.checks", "20"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
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
		fakeHooks(env, rt)
		return env
	}})
}

// fakeHooks fills in what can be done with machines of a fake Runtime.
func fakeHooks(env *sandboxtest.Env, rt *fake.Runtime) {
	env.Kill = func(t *testing.T, id string, x sandboxd.Exit) {
		if err := rt.Kill(id, x); err != nil {
			t.Fatal(err)
		}
	}
	env.Flow = func(t *testing.T, id string, f sandbox.Flow) {
		if err := rt.Flow(id, f); err != nil {
			t.Fatal(err)
		}
	}
	// The ports of a fake machine are the host's.
	env.Serve = func(t *testing.T, _ sandboxtest.Caller, _ string) int { return serveEcho(t) }
}

// serveEcho listens on a port of the host and sends back all that comes.
func serveEcho(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // ends with the connection, however that does
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}
