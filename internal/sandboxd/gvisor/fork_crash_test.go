package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// forkDaemonEnv makes a test binary a daemon that is killed while it forks a sandbox: its
// value is a driveDaemon.
const forkDaemonEnv = "CAY_TEST_FORK_DAEMON"

func (in mortalInstance) Fork(ctx context.Context, p machine.ForkParams) (*machine.Forked, error) {
	in.reached("forking")
	f, err := in.Instance.Fork(ctx, p)
	in.reached("forked")
	if err != nil {
		return nil, err
	}
	for i, copied := range f.Instances {
		f.Instances[i] = mortalCopy{mortalInstance{copied, in.reached}}
	}
	return f, nil
}

// mortalCopy reports the point "telling", just before its guest is given its identity.
type mortalCopy struct{ mortalInstance }

func (c mortalCopy) DialGuest(ctx context.Context) (net.Conn, error) {
	conn, err := c.Instance.DialGuest(ctx)
	c.reached("telling")
	return conn, err
}

// forkParams copy the processes of src.
var forkParams = sandbox.ForkParams{Names: []string{"one", "two"}, Kind: sandbox.MemorySnapshot}

// runForkDaemon prints the id of a sandbox's command, and then forks the sandbox.
func runForkDaemon(config string) error {
	d := &driveDaemon{}
	if err := json.Unmarshal([]byte(config), d); err != nil {
		return err
	}
	d.reached = func(point string) {
		if point == d.DieAt {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
	}
	out := os.Stdout
	if err := gvisor.DetachStdio(); err != nil {
		return err
	}
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	e, _, err := d.open(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if _, err := e.Create(ctx, sandbox.CreateParams{Name: "src", Image: "debian"}); err != nil {
		return err
	}
	cmd, err := e.Start(ctx, "src", sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, cmd.ID); err != nil {
		return err
	}
	_, err = e.Fork(ctx, "src", forkParams)
	return errors.Join(err, errors.New("it was not killed"))
}

// A daemon that is killed while it forks a sandbox leaves no copies and no machines of
// copies; the sandbox goes on.
func TestFork_KilledDaemon(t *testing.T) {
	suite := config(t)
	root := imagetest.Acquire(t, "debian")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	self, err := os.Executable() // by path, because gVisor recognizes its own processes by /proc/self/exe
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"forking", "forked", "telling"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d := &driveDaemon{
				Dir: t.TempDir(), Image: root.Image, Path: root.Path, DieAt: point,
				Tool: sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}, reached: func(string) {},
			}
			config, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			daemon := exec.CommandContext(t.Context(), self)
			daemon.Env = append(os.Environ(), forkDaemonEnv+"="+string(config))
			daemon.Stderr = t.Output()
			said, err := daemon.Output()
			if status, ok := daemon.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
				t.Fatalf("the daemon was not killed: %v", err)
			}
			command := string(bytes.TrimSpace(said))
			if machines := machinesIn(t, d.Dir); point != "forking" && len(machines) != 3 {
				t.Errorf("the daemon left the machines %q", machines)
			}

			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			e, end, err := d.open(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := end(); err != nil {
					t.Error(err)
				}
			})
			page, err := e.List(ctx, sandbox.ListParams{})
			if err != nil || len(page.Items) != 1 || page.Items[0].Status != sandbox.Running {
				t.Fatalf("there are %+v, %v", page, err)
			}
			if machines := machinesIn(t, d.Dir); !slices.Equal(machines, []string{page.Items[0].SessionID}) {
				t.Errorf("there are the machines %q", machines)
			}
			f, err := e.Fork(ctx, "src", forkParams) // the names are free
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range append(f.Sandboxes, page.Items[0]) {
				echo(t, ctx, e, s.ID, command)
				if err := e.Delete(ctx, s.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// machinesIn returns the ids of the machines in a daemon's directory.
func machinesIn(t *testing.T, dir string) []string {
	t.Helper()
	rt, err := gvisor.New(gvisor.Config{StateDir: filepath.Join(dir, "machines")})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	ids, err := rt.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// echo makes a cat in a sandbox print its id, and end.
func echo(t *testing.T, ctx context.Context, e *sandboxd.Engine, ref, command string) {
	t.Helper()
	if err := e.WriteStdin(ctx, ref, command, bytes.NewReader([]byte(ref)), true); err != nil {
		t.Fatal(err)
	}
	out, err := e.Output(ctx, ref, command, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var text []byte
	for {
		ev, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, ev.Data...)
	}
	if string(text) != ref {
		t.Errorf("the cat of %s says %q", ref, text)
	}
}
