package gvisor_test

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// storeImages adapts the shared test store to the engine. It builds the images that cay
// can make and pulls none.
type storeImages struct{ *image.Store }

func (s storeImages) Ensure(ctx context.Context, _, ref string) (*sandboxd.Lease, error) {
	return s.Lease(ctx, ref)
}

func (s storeImages) Digest(ctx context.Context, _, ref string) (string, error) {
	return s.Store.Digest(ctx, ref)
}

func (s storeImages) Lease(ctx context.Context, ref string) (*sandboxd.Lease, error) {
	l, err := s.Acquire(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &sandboxd.Lease{Image: l.Image, Path: l.Path, Release: l.Release}, nil
}

// TestEngine runs the tests of every Service with the engine on gVisor.
func TestEngine(t *testing.T) {
	suite := config(t)
	imagetest.Acquire(t, "node24")
	imagetest.Acquire(t, "python3.13")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	sandboxtest.Run(t, sandboxtest.Config{New: func(t *testing.T) *sandboxtest.Env {
		h := sandboxtest.Start(t, newRuntime(t, t.TempDir()), func(c *sandboxd.Config) {
			c.Images = storeImages{imagetest.Open(t)}
			c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
			c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		})
		env := h.Env()
		env.Kill = func(t *testing.T, id string, x machine.Exit) {
			if x.Reason != sandbox.ReasonCrashed {
				t.Skipf("a real sentry cannot be made to end as %s from outside", x.Reason)
			}
			if err := unix.Kill(sentry(t, id), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		env.Serve = serveEcho
		env.SavesMemory = true
		return env
	}})
}

// serveEcho starts a server in a sandbox that sends back all it gets.
func serveEcho(t *testing.T, c sandboxtest.Caller, id string) int {
	t.Helper()
	const program = `require("net").createServer({allowHalfOpen: true}, s => s.pipe(s)).listen(3000, "127.0.0.1", () => console.log("listening"))`
	out, err := c.Exec(c.Context(t.Context()), id, sandbox.CommandParams{Argv: []string{"node", "-e", program}})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for {
		ev, err := out.Next()
		if err != nil {
			t.Fatalf("the server did not start: %v", err)
		}
		if strings.Contains(string(ev.Data), "listening") {
			return 3000
		}
	}
}
