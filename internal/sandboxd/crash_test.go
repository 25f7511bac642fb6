package sandboxd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// A crash test runs this test binary again as a daemon that kills itself at a given point
// of a life, and then checks the state that the next daemon finds.
const (
	crashLife  = "CAY_TEST_CRASH_LIFE" // a key of lives
	crashDir   = "CAY_TEST_CRASH_DIR"
	crashPoint = "CAY_TEST_CRASH_POINT" // see dying
)

// lives are the functions that the daemon runs on a directory until it reaches the point.
// They report their steps on standard output, one per line.
var lives = map[string]func(ctx context.Context, dir, point string) error{
	"sandbox": sandboxLife, "state": stateLife, "drives": driveLife, "forks": forkLife, "pool": poolLife, "snapshots": snapshotLife, "kept": keptLife,
}

// crashEngine opens an engine over the directory dir.
func crashEngine(ctx context.Context, dir string, change ...func(*sandboxd.Config)) (*sandboxd.Engine, *db.DB, *fake.Runtime, error) {
	d, err := db.Open(ctx, filepath.Join(dir, "cay.db"), db.Options{})
	if err != nil {
		return nil, nil, nil, err
	}
	rt, err := fake.New(filepath.Join(dir, "machines"))
	if err != nil {
		return nil, nil, nil, err
	}
	images, err := sandboxtest.NewImages(filepath.Join(dir, "image"))
	if err != nil {
		return nil, nil, nil, err
	}
	secrets, err := secret.Open(filepath.Join(dir, "secret.key"))
	if err != nil {
		return nil, nil, nil, err
	}
	drives, err := blob.OpenDir(filepath.Join(dir, "drives"), blob.DirOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	snapshots, err := blob.OpenDir(filepath.Join(dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	commands, err := blob.OpenDir(filepath.Join(dir, "commands"), blob.DirOptions{})
	if err != nil {
		return nil, nil, nil, err
	}
	cfg := sandboxd.Config{
		DB: d, Runtime: rt, Images: images, Accounts: sandboxtest.NewAccounts(), Secrets: secrets, Logger: slog.New(slog.DiscardHandler),
		Snapshots: snapshot.New(snapshots), Drives: drives, Commands: commands,
	}
	for _, f := range change {
		f(&cfg)
	}
	e, err := sandboxd.NewEngine(ctx, cfg)
	return e, d, rt, err
}

func crashMain() {
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	if err := lives[os.Getenv(crashLife)](ctx, os.Getenv(crashDir), os.Getenv(crashPoint)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// crash runs a daemon that kills itself at a point of a life, and returns the lines that
// it printed.
func crash(t *testing.T, life, dir, point string) (said []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashLife+"="+life, crashDir+"="+dir, crashPoint+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said = append(said, lines.Text())
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon did not come to %q: %v", point, err)
	}
	return said
}

// dying returns a function for Engine.Reached that kills the process at a point: "name",
// or "name 3" for the third visit.
func dying(point string) func(string) {
	name, count, _ := strings.Cut(point, " ")
	var left atomic.Int32
	left.Store(1)
	if n, err := strconv.Atoi(count); err == nil {
		left.Store(int32(n))
	}
	return func(p string) {
		if p != name || left.Add(-1) != 0 {
			return
		}
		// Not os.Exit: nothing may run after the kill.
		if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
			panic(err)
		}
		select {}
	}
}

// recovered opens an engine over the directory of a killed one. The engine is closed when
// the test ends.
func recovered(t *testing.T, dir string, change ...func(*sandboxd.Config)) (*sandboxd.Engine, *db.DB, *fake.Runtime) {
	t.Helper()
	e, d, rt, err := crashEngine(t.Context(), dir, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(rt.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := e.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e, d, rt
}

// sandboxLife creates, changes and deletes a sandbox that is not persistent.
func sandboxLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	e.Reached(dying(point))
	if err := e.Open(ctx); err != nil {
		return err
	}
	s, err := e.Create(ctx, crashParams)
	if err != nil {
		return err
	}
	fmt.Println(s.ID)
	if _, err := e.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sleep", "100000"}}); err != nil {
		return err
	}
	update := sandbox.UpdateParams{Network: &crashNetwork, Ports: []sandbox.PortParams{{Port: 81}, {Port: 80, Access: sandbox.Private}}}
	if _, err := e.Update(ctx, s.ID, update); err != nil {
		return err
	}
	if _, err := e.Pause(ctx, s.ID); err != nil {
		return err
	}
	if _, err := e.Resume(ctx, s.ID, sandbox.ResumeParams{}); err != nil {
		return err
	}
	if _, err := e.Create(ctx, sandbox.CreateParams{Image: "missing"}); cay.CodeOf(err) != cay.NotFound {
		return fmt.Errorf("a sandbox of a missing image: %w", err)
	}
	return e.Delete(ctx, s.ID)
}

var crashParams = sandbox.CreateParams{
	Name: "one", IdempotencyKey: "key", Persistent: new(false), // persistent sandboxes: see TestCrash_state
	Network: sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 80}, {Port: 82}},
}

// crashNetwork is the policy that the life sets; it has a secret.
var crashNetwork = sandbox.Network{
	Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "x.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"x-key": "secret"}}}}},
}

func TestCrash(t *testing.T) {
	checktest.Long(t)
	for _, point := range sandboxd.Points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			said := crash(t, "sandbox", dir, point)
			e, d, rt := recovered(t, dir)
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			checkRows(t, ctx, e, rt, d)

			// A create with the same key returns the sandbox if it came up, or creates a
			// new one in its place, never a second one.
			s, err := e.Create(ctx, crashParams)
			switch {
			case cay.CodeOf(err) == cay.Conflict: // the sandbox was deleted
			case err != nil:
				t.Fatal(err)
			case len(said) > 0 && s.ID != said[0]:
				t.Errorf("the key stands for %s, and stood for %s before the crash", s.ID, said[0])
			}
			named, err := e.List(ctx, sandbox.ListParams{NamePrefix: "one"})
			if err != nil || len(named.Items) > 1 {
				t.Fatalf("%d sandboxes of one key, %v", len(named.Items), err)
			}
			page, err := e.List(ctx, sandbox.ListParams{})
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page.Items {
				if err := e.Delete(ctx, s.ID); err != nil {
					t.Errorf("delete %s (%s): %v", s.ID, s.Status, err)
				}
			}
			checkRows(t, ctx, e, rt, d)
		})
	}
}

// checkRows checks that no sandbox is in an intermediate state, that there is a machine
// for each running sandbox and no other, and that the database is intact.
func checkRows(t *testing.T, ctx context.Context, e *sandboxd.Engine, rt *fake.Runtime, d *db.DB) {
	t.Helper()
	page, err := e.List(ctx, sandbox.ListParams{Limit: 200, ProjectID: account.DefaultProject})
	if err != nil {
		t.Fatal(err)
	}
	running := make(map[string]bool)
	for _, s := range page.Items {
		switch s.Status {
		case sandbox.Running, sandbox.Paused:
			running[s.SessionID] = true
		case sandbox.Stopped, sandbox.Failed:
			if s.Reason == "" || s.StoppedAt == nil || s.ExpiresAt != nil {
				t.Errorf("sandbox %s ended without saying why or when: %+v", s.ID, s)
			}
		default:
			t.Errorf("sandbox %s is %s", s.ID, s.Status)
		}
	}
	machines, err := rt.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range machines {
		if !running[id] {
			t.Errorf("machine %s belongs to no sandbox that runs", id)
		}
		delete(running, id)
	}
	for id := range running {
		t.Errorf("session %s has no machine", id)
	}
	for _, s := range page.Items {
		checkPorts(t, ctx, e, d, s)
		if s.Status != sandbox.Running && s.Status != sandbox.Paused {
			continue
		}
		// The machine has the policy of the row, including the secrets that the row
		// redacts.
		n, err := rt.Network(s.SessionID)
		if err != nil || n.Mode != s.Network.Mode || n.Mode == sandbox.Custom && !reflect.DeepEqual(n, crashNetwork) {
			t.Errorf("the machine of %s has the policy %v, its row %v, %v", s.ID, n, s.Network, err)
		}
	}
	var deleting int
	if err := d.QueryRow(ctx, `SELECT count(*) FROM sandboxes WHERE deleting = 1`).Scan(&deleting); err != nil || deleting != 0 {
		t.Errorf("%d sandboxes are still to be deleted, %v", deleting, err)
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}

// checkPorts checks that a sandbox's ports are those of one of the reported answers, and
// that exactly their labels lead to them.
func checkPorts(t *testing.T, ctx context.Context, e *sandboxd.Engine, d *db.DB, s sandbox.Sandbox) {
	t.Helper()
	var declared int
	if err := d.QueryRow(ctx, `SELECT count(*) FROM sandbox_ports WHERE sandbox_id = ? AND gone_at IS NULL`, s.ID).Scan(&declared); err != nil || declared != len(s.Ports) {
		t.Errorf("sandbox %s has %d labels for %d ports, %v", s.ID, declared, len(s.Ports), err)
	}
	for _, p := range s.Ports {
		target, err := e.Preview(ctx, p.Label)
		switch {
		case s.Status == sandbox.Running && (err != nil || target.Port != p.Port || target.Access != p.Access):
			t.Errorf("port %+v of sandbox %s has the preview %+v, %v", p, s.ID, target, err)
		case s.Status.Final() && s.Persistent && s.Reason != sandbox.ReasonStartFailed && (err != nil || !target.Asleep):
			t.Errorf("port %+v of sandbox %s, which can be resumed, has the preview %+v, %v", p, s.ID, target, err)
		case s.Status.Final() && !s.Persistent && (cay.CodeOf(err) != cay.Stopped || sandboxd.IsGone(err)):
			t.Errorf("port %+v of sandbox %s, which has ended: %v", p, s.ID, err)
		}
	}
}
