package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/programs"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// earlierEnv makes a test binary a daemon of another build, which hibernates a sandbox: its
// value is an earlierDaemon.
const earlierEnv = "CAY_TEST_EARLIER_DAEMON"

// earlierDaemon is the configuration of a daemon with programs of its own.
type earlierDaemon struct {
	driveDaemon
	Sentry string // the program of its sentries; "": the test's
}

// openMemory opens an engine that keeps programs.
func (d *earlierDaemon) openMemory(ctx context.Context, log *slog.Logger, reached func(point string)) (_ *sandboxd.Engine, end func() error, err error) {
	var closers []func() error
	end = func() error {
		var errs []error
		for len(closers) > 0 {
			errs = append(errs, closers[len(closers)-1]())
			closers = closers[:len(closers)-1]
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	base, err := db.Open(ctx, filepath.Join(d.Dir, "cay.db"), db.Options{})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, base.Close)
	kept, err := blob.OpenDir(filepath.Join(d.Dir, "programs"), blob.DirOptions{})
	if err != nil {
		return nil, nil, err
	}
	store := programs.New(kept)
	rt, err := gvisor.New(gvisor.Config{StateDir: filepath.Join(d.Dir, "machines"), Logger: log, Programs: store})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, rt.Close)
	secrets, err := secret.Open(filepath.Join(d.Dir, "secret.key"))
	if err != nil {
		return nil, nil, err
	}
	snapshots, err := blob.OpenDir(filepath.Join(d.Dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		return nil, nil, err
	}
	e, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		DB: base, Runtime: rt, Images: d, Accounts: sandboxtest.NewAccounts(), Secrets: secrets, Logger: log, Programs: store,
		Snapshots: snapshot.New(snapshots), Tool: d.Tool, Gateway: network.GatewayAddr, Nameserver: network.GatewayAddr, Reached: reached,
	})
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() error { e.Close(); return nil })
	return e, end, e.Open(ctx)
}

// runEarlierDaemon hibernates a sandbox with a process, and prints its id.
func runEarlierDaemon(config string) error {
	d := &earlierDaemon{}
	if err := json.Unmarshal([]byte(config), d); err != nil {
		return err
	}
	if d.Sentry != "" {
		if err := gvisor.UseProgram(d.Sentry); err != nil {
			return err
		}
	}
	out, log := os.Stdout, slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := gvisor.DetachStdio(); err != nil {
		return err
	}
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	e, end, err := d.openMemory(ctx, log, func(point string) {
		if point == d.DieAt {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
	})
	if err != nil {
		return err
	}
	s, err := e.Create(ctx, sandbox.CreateParams{Image: "debian", Name: "box"})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, s.ID); err != nil {
		return err
	}
	// The process has its number in memory, and the disk has a file.
	if _, err := e.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", `n=41; : >/tmp/ready; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo $((n+1)) >/tmp/answer; sleep 1000`}}); err != nil {
		return err
	}
	if text, err := output(ctx, e, s.ID, `while [ ! -e /tmp/ready ]; do sleep 0.01; done; echo kept >/tmp/file; echo done`); err != nil || text != "done\n" {
		return errors.Join(fmt.Errorf("the sandbox said %q", text), err)
	}
	if _, err := e.Hibernate(ctx, s.ID); err != nil {
		return err
	}
	return end()
}

// output runs a shell script in a sandbox and returns its standard output.
func output(ctx context.Context, e *sandboxd.Engine, id, script string) (string, error) {
	out, err := e.Exec(ctx, id, sandbox.CommandParams{Argv: []string{"sh", "-c", script}})
	if err != nil {
		return "", err
	}
	defer out.Close()
	var text strings.Builder
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return text.String(), nil
		}
		if err != nil {
			return text.String(), err
		}
		if ev.Stream == sandbox.Stdout {
			text.Write(ev.Data)
		}
	}
}

// hibernateElsewhere runs an earlier daemon whose programs differ from this test's by a
// byte at their ends. It returns this test's daemon over the same directory.
func hibernateElsewhere(t *testing.T, dieAt string) (d *earlierDaemon, id string) {
	t.Helper()
	suite := config(t)
	root := imagetest.Acquire(t, "debian")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	d = &earlierDaemon{driveDaemon: driveDaemon{
		Dir: t.TempDir(), Image: root.Image, Path: root.Path, Tool: sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init},
	}}
	other := *d
	sentry := embedded.Sentry()
	if sentry == nil || os.Getenv(itselfEnv) != "" {
		sentry = checktest.Must(os.ReadFile("/proc/self/exe"))(t)
	}
	other.Sentry = filepath.Join(t.TempDir(), "sentry")
	checktest.OK(t, os.WriteFile(other.Sentry, append(bytes.Clone(sentry), 0), 0o755))
	program := append(bytes.Clone(checktest.Must(guestProgram())(t)), t.Name()...) // a file that is this test's alone
	other.Tool.Mount.Source = checktest.Must(imagetest.Open(t).Tool(t.Context(), "cay-guest", map[string][]byte{"cay-guest": program}))(t)
	other.DieAt = dieAt
	text := checktest.Must(json.Marshal(other))(t)
	cmd := exec.CommandContext(t.Context(), checktest.Must(os.Executable())(t))
	cmd.Env = append(os.Environ(), earlierEnv+"="+string(text))
	cmd.Stderr = t.Output()
	said, err := cmd.Output()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); dieAt == "" && err != nil || dieAt != "" && (!ok || status.Signal() != syscall.SIGKILL) {
		t.Fatalf("the earlier daemon ended with %v", err)
	}
	checktest.OK(t, os.Remove(other.Sentry)) // of the other build nothing is left
	checktest.OK(t, os.Remove(other.Tool.Mount.Source))
	return d, strings.TrimSpace(string(said))
}

// keptIn returns the programs that a daemon keeps.
func keptIn(t *testing.T, d *earlierDaemon) []string {
	t.Helper()
	return checktest.Must(filepath.Glob(filepath.Join(d.Dir, "programs", "*", "*")))(t)
}

// startLater starts an engine of this test over the directory of an earlier daemon. The
// channel receives a token whenever programs were removed.
func startLater(t *testing.T, d *earlierDaemon) (*sandboxd.Engine, <-chan struct{}) {
	t.Helper()
	removed := make(chan struct{}, 10)
	ctx := sandboxtest.As(context.WithoutCancel(t.Context()), sandboxtest.Default)
	e, end, err := d.openMemory(ctx, slog.New(slog.NewTextHandler(t.Output(), nil)), func(point string) {
		if point == "programs-removed" {
			removed <- struct{}{}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checktest.OK(t, end()) })
	return e, removed
}

// A sandbox that another build has hibernated goes on with its processes, and can be
// hibernated again, with the programs of that build. They are removed with their last use.
func TestKept_Wakes(t *testing.T) {
	t.Parallel()
	d, id := hibernateElsewhere(t, "")
	if got := keptIn(t, d); len(got) != 4 { // two names, and two directories with the content
		t.Fatalf("after the hibernation: %q", got)
	}
	e, removed := startLater(t, d)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	for _, again := range []bool{false, true} {
		if again {
			checktest.Must(e.Hibernate(ctx, id))(t)
		}
		s := checktest.Must(e.Resume(ctx, id, sandbox.ResumeParams{}))(t)
		if s.Message != "" {
			t.Errorf("it says %q", s.Message)
		}
		if got := keptIn(t, d); len(got) != 4 {
			t.Errorf("while the sandbox runs: %q", got)
		}
	}
	script := `cat /tmp/file; : >/tmp/go; while [ ! -s /tmp/answer ]; do sleep 0.01; done; cat /tmp/answer`
	if text := checktest.Must(output(ctx, e, id, script))(t); text != "kept\n42\n" {
		t.Errorf("it said %q", text)
	}
	checktest.OK(t, e.Delete(ctx, id))
	awaitRemoved(t, d, removed)
}

// awaitRemoved waits until no program is kept.
func awaitRemoved(t *testing.T, d *earlierDaemon, removed <-chan struct{}) {
	t.Helper()
	timeout := time.After(time.Minute)
	for len(keptIn(t, d)) > 0 {
		select {
		case <-removed:
		case <-timeout:
			t.Fatalf("kept are %q", keptIn(t, d))
		}
	}
}

// Without the programs a sandbox starts from its files, and says so.
func TestKept_Missing(t *testing.T) {
	t.Parallel()
	d, id := hibernateElsewhere(t, "")
	for _, name := range checktest.Must(filepath.Glob(filepath.Join(d.Dir, "programs", "names", "*")))(t) {
		checktest.OK(t, os.Remove(name))
	}
	e, _ := startLater(t, d)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	s := checktest.Must(e.Resume(ctx, id, sandbox.ResumeParams{}))(t)
	if s.Status != sandbox.Running || !strings.Contains(s.Message, "started from its files") {
		t.Errorf("it is %s, and says %q", s.Status, s.Message)
	}
	if text := checktest.Must(output(ctx, e, id, `cat /tmp/file; : >/tmp/go; sleep 0.2; cat /tmp/answer 2>/dev/null || echo no process`))(t); text != "kept\nno process\n" {
		t.Errorf("it said %q", text)
	}
	checktest.OK(t, e.Delete(ctx, id))
}

// A daemon that dies while it saves memory leaves no programs behind.
func TestKept_Killed(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"memory-saved", "committed", "hibernated"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			d, id := hibernateElsewhere(t, point)
			if len(keptIn(t, d)) == 0 {
				t.Fatal("nothing is kept, so nothing is tested")
			}
			e, removed := startLater(t, d)
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			if point == "hibernated" { // the row is there: the programs are needed
				s := checktest.Must(e.Resume(ctx, id, sandbox.ResumeParams{}))(t)
				if s.Message != "" {
					t.Errorf("it says %q", s.Message)
				}
			}
			checktest.OK(t, e.Delete(ctx, id))
			awaitRemoved(t, d, removed)
		})
	}
}
