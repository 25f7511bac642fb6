package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// driveDaemonEnv makes a test binary a daemon that is killed while it stops a sandbox
// with a drive: its value is a driveDaemon.
const driveDaemonEnv = "CAY_TEST_DRIVE_DAEMON"

// driveDaemon is the configuration of a daemon, and the point at which it dies, "" for
// none.
type driveDaemon struct {
	Dir     string
	Image   sandbox.Image
	Path    string // of the image
	Tool    sandboxd.Tool
	DieAt   string
	reached func(point string)
}

func (d *driveDaemon) Ensure(ctx context.Context, _, ref string) (*sandboxd.Lease, error) {
	return d.Lease(ctx, ref)
}

func (d *driveDaemon) Lease(context.Context, string) (*sandboxd.Lease, error) {
	return &sandboxd.Lease{Image: d.Image, Path: d.Path, Release: func() {}}, nil
}

func (d *driveDaemon) Digest(context.Context, string, string) (string, error) {
	return d.Image.Digest, nil
}

func (d *driveDaemon) open(ctx context.Context, log *slog.Logger) (*sandboxd.Engine, func() error, error) {
	base, err := db.Open(ctx, filepath.Join(d.Dir, "cay.db"), db.Options{})
	if err != nil {
		return nil, nil, err
	}
	rt, err := gvisor.New(gvisor.Config{StateDir: filepath.Join(d.Dir, "machines"), Logger: log})
	if err != nil {
		return nil, nil, errors.Join(err, base.Close())
	}
	end := func() error { return errors.Join(rt.Close(), base.Close()) }
	secrets, err := secret.Open(filepath.Join(d.Dir, "secret.key"))
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	store, err := blob.OpenDir(filepath.Join(d.Dir, "drives"), blob.DirOptions{})
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	e, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		DB: base, Runtime: mortalRuntime{rt, d.reached}, Images: d, Accounts: sandboxtest.NewAccounts(), Secrets: secrets, Logger: log,
		Drives: mortalBlobs{store, d.reached}, Tool: d.Tool, Gateway: network.GatewayAddr, Nameserver: network.GatewayAddr,
	})
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return e, func() error { e.Close(); return end() }, e.Open(ctx)
}

// mortalRuntime, the machines that it starts, and mortalBlobs report the points they
// reach.
type mortalRuntime struct {
	machine.Runtime
	reached func(point string)
}

func (r mortalRuntime) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	in, err := r.Runtime.Start(ctx, spec)
	return mortalInstance{in, r.reached}, err
}

func (r mortalRuntime) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	in, err := r.Runtime.Adopt(ctx, id)
	return mortalInstance{in, r.reached}, err
}

type mortalInstance struct {
	machine.Instance
	reached func(point string)
}

func (in mortalInstance) SaveDisk(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	in.reached("saving")
	s, err := in.Instance.SaveDisk(ctx, p)
	in.reached("saved")
	return s, err
}

func (in mortalInstance) Destroy(ctx context.Context) error {
	in.reached("destroying")
	err := in.Instance.Destroy(ctx)
	in.reached("destroyed")
	return err
}

type mortalBlobs struct {
	blob.Store
	reached func(point string)
}

func (b mortalBlobs) Create(ctx context.Context, size int64) (blob.Draft, error) {
	b.reached("stopping")
	d, err := b.Store.Create(ctx, size)
	return mortalDraft{d, b.reached}, err
}

func (b mortalBlobs) Delete(ctx context.Context, name string) error {
	b.reached("switched")
	err := b.Store.Delete(ctx, name)
	b.reached("dropped")
	return err
}

type mortalDraft struct {
	blob.Draft
	reached func(point string)
}

func (d mortalDraft) Commit(ctx context.Context, name string) (blob.Info, error) {
	info, err := d.Draft.Commit(ctx, name)
	d.reached("committed")
	return info, err
}

// runDriveDaemon saves a drive with the content "one", prints the id of a sandbox that
// then writes "two", and stops the sandbox.
func runDriveDaemon(config string) error {
	d := &driveDaemon{}
	if err := json.Unmarshal([]byte(config), d); err != nil {
		return err
	}
	armed := false
	d.reached = func(point string) {
		if armed && point == d.DieAt {
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
	if _, err := e.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data", MaxMB: 64}); err != nil {
		return err
	}
	s, err := e.Create(ctx, sandbox.CreateParams{Image: "debian", Mounts: []sandbox.Mount{{Path: "/data", Drive: "data"}}})
	if err != nil {
		return err
	}
	for _, text := range []string{"one", "two"} {
		if _, err := e.WriteFile(ctx, s.ID, "/data/file", strings.NewReader(text), sandbox.WriteParams{Size: 3}); err != nil {
			return err
		}
		if text == "one" {
			_, err = e.SaveDrive(ctx, "data")
		} else {
			_, err = fmt.Fprintln(out, s.ID)
		}
		if err != nil {
			return err
		}
	}
	armed = true
	_, err = e.Stop(ctx, s.ID)
	return errors.Join(err, errors.New("it was not killed"))
}

// A daemon that is killed while it stops a sandbox loses nothing of its drive: the next
// daemon finds the machine, and continues the stop.
func TestDrive_KilledDaemon(t *testing.T) {
	suite := config(t)
	root := imagetest.Acquire(t, "debian")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	self, err := os.Executable() // by path, because gVisor recognizes its own processes by /proc/self/exe
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{"stopping", "saving", "saved", "committed", "switched", "dropped", "destroying", "destroyed"} {
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
			daemon.Env = append(os.Environ(), driveDaemonEnv+"="+string(config))
			daemon.Stderr = t.Output()
			said, err := daemon.Output()
			if status, ok := daemon.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != unix.SIGKILL {
				t.Fatalf("the daemon was not killed: %v", err)
			}
			id := string(bytes.TrimSpace(said))

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
			if s, err := e.Stop(ctx, id); err != nil || s.Status != sandbox.Stopped {
				t.Fatalf("the sandbox is %+v, %v", s, err)
			}
			if v, err := e.GetDrive(ctx, "data"); err != nil || v.SandboxID != "" {
				t.Fatalf("the drive is %+v, %v", v, err)
			}
			s, err := e.Create(ctx, sandbox.CreateParams{Image: "debian", Mounts: []sandbox.Mount{{Path: "/data", Drive: "data", Mode: sandbox.MountReadOnly}}})
			if err != nil {
				t.Fatal(err)
			}
			r, _, err := e.ReadFile(ctx, s.ID, "/data/file", sandbox.ReadParams{})
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if _, err := text.ReadFrom(r); err != nil || text.String() != "two" {
				t.Errorf("the drive has %q, %v", text.String(), err)
			}
			r.Close()
			if err := e.Delete(ctx, s.ID); err != nil {
				t.Error(err)
			}
		})
	}
}
