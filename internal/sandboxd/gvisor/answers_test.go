package gvisor_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// freeze stops all threads of the guest's init until a client connects.
const freeze = `
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, DETACH, WALL = 16, 17, 0x40000000
server = socket.create_server(("0.0.0.0", 4000))
threads = [int(t) for t in os.listdir("/proc/1/task")]
for t in threads:
    if libc.ptrace(ATTACH, t, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    os.waitpid(t, WALL)
server.accept()
for t in threads:
    libc.ptrace(DETACH, t, 0, 0)
`

// Root in the guest stops the agent. No call waits for ever, the sandbox is reported as
// unresponsive and later as responsive again; meanwhile its programs can be reached, and
// the sandbox can be deleted.
func TestAttack_StoppedAgent(t *testing.T) {
	t.Parallel()
	suite := config(t)
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	h := sandboxtest.Start(t, newRuntime(t, t.TempDir()), func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		c.Clock, c.Limits.Answer = nil, 2*time.Second
	})
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	s, err := h.Create(ctx, sandbox.CreateParams{})
	if err != nil {
		t.Fatal(err)
	}
	changes, err := h.WatchSandboxes(ctx, sandbox.ChangeParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	until := func(silent bool) {
		t.Helper()
		for {
			c, err := changes.Next()
			if err != nil {
				t.Fatal(err)
			}
			if c.Sandbox != nil && (c.Sandbox.UnresponsiveSince != nil) == silent {
				return
			}
		}
	}
	stop := func() {
		t.Helper()
		out, err := h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"python3", "-c", freeze}, Sudo: true})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for {
			ev, err := out.Next()
			if cay.CodeOf(err) == cay.Unavailable {
				return
			}
			if err != nil || len(ev.Data) > 0 || ev.Exit != nil {
				t.Fatalf("%s%+v, %v", ev.Data, ev.Exit, err)
			}
		}
	}
	stop()
	until(true)
	if _, err := h.Engine.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}}); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("a start ended with %v", err)
	}
	conn, err := h.DialPort(ctx, s.ID, 4000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	until(false)
	c, err := h.Engine.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = h.Wait(ctx, s.ID, c.ID); err != nil || c.Exit.Code != 0 {
		t.Errorf("afterwards: %+v, %v", c, err)
	}
	stop()
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Error(err)
	}
}
