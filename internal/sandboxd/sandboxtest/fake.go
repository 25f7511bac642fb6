package sandboxtest

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// StartFake starts a Harness on a fake Runtime.
func StartFake(t testing.TB, change ...func(*sandboxd.Config)) (*Harness, *fake.Runtime) {
	t.Helper()
	rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
	if err != nil {
		t.Fatal(err)
	}
	h := Start(t, rt, change...)
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return h, rt
}

// FakeHooks sets the hooks of env that a fake Runtime supports.
func FakeHooks(env *Env, rt *fake.Runtime) {
	env.Kill = func(t *testing.T, id string, x machine.Exit) {
		if err := rt.Kill(id, x); err != nil {
			t.Fatal(err)
		}
	}
	env.Flow = func(t *testing.T, id string, f sandbox.Flow) {
		if err := rt.Flow(id, f); err != nil {
			t.Fatal(err)
		}
	}
	env.Outbound = func(t *testing.T, id string, o sandbox.Outbound, conn net.Conn) (sandbox.Handling, error) {
		a, err := rt.Outbound(t.Context(), id, o)
		if err == nil && a.Take != nil {
			a.Take(conn)
		}
		return a.As, err
	}
	// The ports of a fake machine are ports of the host.
	env.Serve = func(t *testing.T, _ Caller, _ string) int { return ServeEcho(t) }
}

// ServeEcho listens on a port of the host and echoes all data.
func ServeEcho(t *testing.T) int {
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
				_, _ = io.Copy(conn, conn) // ends when the connection ends, for whatever reason
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// Talk sends a byte over a connection and expects it back.
func Talk(t *testing.T, conn net.Conn) {
	t.Helper()
	b := []byte("x")
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		t.Fatal(err)
	}
}

// ReadText returns the remaining output of both streams, and closes it.
func ReadText(t testing.TB, out sandbox.Output) string {
	t.Helper()
	defer out.Close()
	var text strings.Builder
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		text.Write(ev.Data)
	}
}
