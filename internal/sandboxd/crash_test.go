package sandboxd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// The crash test runs this test binary again as a daemon, which kills itself
// at a given point of a sandbox's life, and looks at what the next one finds.
const (
	crashEnv   = "CAY_TEST_CRASH_DIR"
	crashPoint = "CAY_TEST_CRASH_POINT"
)

// crashEngine opens an engine over what is in dir.
func crashEngine(ctx context.Context, dir string) (*sandboxd.Engine, *db.DB, *fake.Runtime, error) {
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
	e, err := sandboxd.NewEngine(ctx, sandboxd.Config{
		DB: d, Runtime: rt, Images: images, Accounts: sandboxtest.NewAccounts(), Secrets: secrets, Logger: slog.New(slog.DiscardHandler),
	})
	return e, d, rt, err
}

// crashMain lives through a sandbox's life, and dies at the point it is told.
// What it did is on its standard output.
func crashMain() {
	if err := crashLife(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func crashLife() error {
	ctx := sandboxtest.As(context.Background(), sandboxtest.Default)
	e, _, _, err := crashEngine(ctx, os.Getenv(crashEnv))
	if err != nil {
		return err
	}
	point := os.Getenv(crashPoint)
	e.Reached(func(p string) {
		if p == point {
			// Not os.Exit: nothing may run after this.
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
	})
	if err := e.Open(ctx); err != nil {
		return err
	}
	said := json.NewEncoder(os.Stdout)
	s, err := e.Create(ctx, crashParams)
	if err != nil {
		return err
	}
	if err := said.Encode(s.ID); err != nil {
		return err
	}
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
	if _, err := e.Resume(ctx, s.ID); err != nil {
		return err
	}
	if _, err := e.Create(ctx, sandbox.CreateParams{Image: "missing"}); cay.CodeOf(err) != cay.NotFound {
		return fmt.Errorf("a sandbox of a missing image: %w", err)
	}
	return e.Delete(ctx, s.ID)
}

var crashParams = sandbox.CreateParams{
	Name: "one", IdempotencyKey: "key",
	Network: sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 80}, {Port: 82}},
}

// crashNetwork is what the policy is changed to, with a secret.
var crashNetwork = sandbox.Network{
	Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "x.example.com", Rules: []sandbox.Rule{{SetHeaders: map[string]string{"x-key": "secret"}}}}},
}

func TestCrash(t *testing.T) {
	for _, point := range sandboxd.Points {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			said := crash(t, dir, point)
			e, d, rt, err := crashEngine(t.Context(), dir)
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
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			checkRows(t, ctx, e, rt, d)

			// The same key again: the sandbox there was, if it came up, or one in
			// its place. Never two.
			s, err := e.Create(ctx, crashParams)
			switch {
			case cay.CodeOf(err) == cay.Conflict: // it was deleted
			case err != nil:
				t.Fatal(err)
			case said != "" && s.ID != said:
				t.Errorf("the key stands for %s, and stood for %s before the crash", s.ID, said)
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

// crash runs a daemon that dies at point and returns the id it told before.
func crash(t *testing.T, dir, point string) (said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+dir, crashPoint+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			t.Errorf("the daemon said %q", lines.Text())
		}
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon did not come to %q: %v", point, err)
	}
	return said
}

// checkRows checks that no sandbox is in a half state, that machines and
// sandboxes that run are the same, and that the database is whole.
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
			running[s.ID] = true
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
		t.Errorf("sandbox %s has no machine", id)
	}
	for _, s := range page.Items {
		checkPorts(t, ctx, e, d, s)
		if s.Status != sandbox.Running && s.Status != sandbox.Paused {
			continue
		}
		// The machine follows the row, and has what the row hides.
		n, err := rt.Network(s.ID)
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

// checkPorts checks that a sandbox's ports are those of an answer that was given,
// and that its labels, and no others of it, lead to them.
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
		case s.Status.Final() && (cay.CodeOf(err) != cay.Stopped || sandboxd.IsGone(err)):
			t.Errorf("port %+v of sandbox %s, which has ended: %v", p, s.ID, err)
		}
	}
}
