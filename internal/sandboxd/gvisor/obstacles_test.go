package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// served is typed into a Python shell. echo sends a byte over TCP and back.
const served = `import fcntl, json, os, socket, struct, subprocess, sys, threading
sys.ps1 = sys.ps2 = ""
def answer(s):
    while True:
        c, _ = s.accept()
        c.sendall(c.recv(1))

def serve():
    global server
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=answer, args=(server,), daemon=True).start()

def echo(timeout=20):
    with socket.create_connection(server.getsockname(), timeout) as c:
        c.sendall(b"x")
        return c.recv(1) == b"x"

def run(*commands):
    for c in commands:
        subprocess.run(c.split(), check=True)

def say(**what):
    print(json.dumps(what), flush=True)

`

// obstacleCases are obstacles to saving a sandbox's memory, and cases that look like
// obstacles but are none. use creates the case, check tells whether it still works.
var obstacleCases = []struct{ name, use, check, end, obstacle string }{
	{"TrafficInNamespace", "os.unshare(os.CLONE_NEWNET); serve(); echo()", "echo()", "0", "network namespace of process"},
	{"ListenerInNamespace", "os.unshare(os.CLONE_NEWNET); serve()", "echo()", "0", "network namespace of process"},
	{"DatagramsInNamespace", "os.unshare(os.CLONE_NEWNET); u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', 5353))",
		"u.sendto(b'x', u.getsockname()) and u.recv(1) == b'x'", "0", "network namespace of process"},
	{"LinkInNamespace", "os.unshare(os.CLONE_NEWNET); serve(); run('ip link add v0 type veth peer name v1')", "echo()", "0", "network namespace of process"},
	{"NamedNamespace", "run('ip netns add blue')", "subprocess.run('ip netns exec blue true'.split()).returncode == 0", "run('ip netns del blue')", "network namespace /run/netns/blue"},
	{"Bridge", "run('ip link add br0 type bridge'); serve()", "echo()", "run('ip link del br0')", "bridge br0"},
	{"TUN", "t = os.open('/dev/net/tun', os.O_RDWR); fcntl.ioctl(t, 0x400454ca, struct.pack('16sH14s', b'vpn0', 0x1001, b'')); serve()", "echo()", "os.close(t)", "TUN device vpn0"},
	{"Pair", "run('ip link add v0 type veth peer name v1'); serve()", "echo()", "run('ip link del v0')", "interface v0 (veth)"},
	// An unused namespace, such as browsers make for their children.
	{"IdleNamespace", "os.unshare(os.CLONE_NEWNET)", "True", "0", ""},
	{"Traffic", "serve(); echo()", "echo()", "0", ""},
}

// Obstacles to saving a sandbox's memory are found before the sandbox is changed: the
// save is refused with the obstacle's name, and the program goes on; files can be saved.
func TestObstacles(t *testing.T) {
	t.Parallel()
	h := startEngine(t, newRuntime(t, t.TempDir()), func(c *sandboxd.Config) { c.Clock = nil })
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	if _, err := h.Create(ctx, sandbox.CreateParams{Name: "src"}); err != nil {
		t.Fatal(err)
	}
	saves := []struct {
		name string
		save func() error
	}{
		{"snapshot", func() error {
			_, err := h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
			return err
		}},
		{"fork", func() error {
			_, err := h.Fork(ctx, "src", sandbox.ForkParams{})
			return err
		}},
		{"fork while paused", func() error {
			checktest.Must(h.Pause(ctx, "src"))(t)
			_, err := h.Fork(ctx, "src", sandbox.ForkParams{})
			checktest.Must(h.Resume(ctx, "src", sandbox.ResumeParams{}))(t)
			return err
		}},
		{"hibernate", func() error { // which the program's check wakes
			_, err := h.Hibernate(ctx, "src")
			return err
		}},
	}
	for _, c := range obstacleCases {
		t.Run(c.name, func(t *testing.T) {
			shell, err := h.Engine.Start(ctx, "src", sandbox.CommandParams{Argv: []string{"python3", "-i", "-q", "-u"}, Stdin: true, User: "root"})
			if err != nil {
				t.Fatal(err)
			}
			l := &living{Harness: h, t: t, ctx: ctx, shell: shell.ID}
			works := func() {
				t.Helper()
				if said := l.ask("src", "say(works="+c.check+")\n"); said["works"] != true {
					t.Errorf("the program says %v", said)
				}
			}
			l.ask("src", served+fmt.Sprintf("exec(%q)\nsay(begun=True)\n", c.use))
			for _, q := range saves {
				err := q.save()
				if c.obstacle == "" && err != nil || c.obstacle != "" && (cay.CodeOf(err) != cay.NotSupported || !strings.Contains(err.Error(), c.obstacle)) {
					t.Errorf("%s: got %v, want an error that names %q", q.name, err, c.obstacle)
				}
			}
			works()
			checktest.Must(h.CreateSnapshot(ctx, "src", sandbox.SnapshotParams{}))(t)
			works()
			l.ask("src", fmt.Sprintf("exec(%q)\nsay(ended=True)\n", c.end))
			if err := h.Signal(ctx, "src", shell.ID, sandbox.Signal(unix.SIGKILL)); err != nil {
				t.Fatal(err)
			}
			checktest.Must(h.Wait(ctx, "src", shell.ID))(t)
		})
	}
}

// A restore that the sentry never answers ends with the caller's context, and leaves
// nothing behind: gVisor waits for ever for connections of other namespaces.
func TestRestore_Hangs(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", `
import os, socket, time
os.unshare(os.CLONE_NEWNET)
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
print(1, flush=True)
time.sleep(10000)
`}, User: "root"})
	if err != nil {
		t.Fatal(err)
	}
	numbers(t, f.box, cmd.ID, 0, 0)
	errGone := errors.New("whoever waited has gone")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errGone)
	defer cancel()
	if _, err := f.runtime.Restore(ctx, f.another(), f.checkpoint(t)); !errors.Is(err, errGone) {
		t.Errorf("restore: got %v, want %v", err, errGone)
	}
	ctx, cancel = context.WithTimeoutCause(t.Context(), time.Second, errGone)
	defer cancel()
	if _, err := f.Instance.Fork(ctx, machine.ForkParams{Specs: []machine.Spec{f.another(), f.another()}}); !errors.Is(err, errGone) {
		t.Errorf("fork: got %v, want %v", err, errGone)
	}
	if ids, err := f.runtime.List(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("left: %q, %v", ids, err)
	}
}
