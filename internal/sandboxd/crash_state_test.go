package sandboxd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// statePoints are the points at which the daemon is killed, in a life that saves and
// resumes a sandbox, each with the number of the visit to that point.
var statePoints = []string{
	"images 2", "started 2", "healthy 2", "running 2", "inserted", "stopping", "disk-saved", "disk-saved 2", "disk-saved 3",
	"committed", "committed 2", "committed 3", "snapshotted", "snapshotted 2", "snapshotted 3",
	"destroyed", "destroyed 2", "ended", "ended 2", "resuming", "resuming 2", "images 3", "started 3", "healthy 3", "running 3",
	"fork-inserted",
}

// version describes the content of the sandbox's file.
type version struct {
	Written int    `json:"written"` // about to be written
	Saved   int    `json:"saved"`
	ID      string `json:"id"`
}

func writeVersion(ctx context.Context, e *sandboxd.Engine, n int) error {
	_, err := e.WriteFile(ctx, "kept", "version", strings.NewReader(fmt.Sprint(n)), sandbox.WriteParams{})
	return err
}

func readVersion(ctx context.Context, e *sandboxd.Engine, ref string) (n int, err error) {
	r, _, err := e.ReadFile(ctx, ref, "version", sandbox.ReadParams{})
	if cay.CodeOf(err) == cay.FileNotFound {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(string(data), &n)
	return n, err
}

// stateLife writes, saves and resumes a sandbox again and again.
func stateLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	e.Reached(dying(point))
	if err := e.Open(ctx); err != nil {
		return err
	}
	said := json.NewEncoder(os.Stdout)
	s, err := e.Create(ctx, sandbox.CreateParams{Name: "kept", Retention: &sandbox.Retention{Keep: 1}})
	if err != nil {
		return err
	}
	for i, save := range []func() error{
		func() error { _, err := e.Stop(ctx, s.ID); return err },
		func() error { _, err := e.CreateSnapshot(ctx, s.ID, sandbox.SnapshotParams{}); return err },
		func() error { _, err := e.Stop(ctx, s.ID); return err },
	} {
		v := version{Written: i + 1, Saved: i, ID: s.ID}
		if err := said.Encode(v); err != nil {
			return err
		}
		if err := writeVersion(ctx, e, v.Written); err != nil { // resumes the sandbox
			return err
		}
		if err := save(); err != nil {
			return err
		}
		v.Saved = v.Written
		if err := said.Encode(v); err != nil {
			return err
		}
	}
	if _, err := e.Fork(ctx, s.ID, sandbox.ForkParams{Count: 2}); err != nil {
		return err
	}
	_, err = e.Stat(ctx, s.ID, ".", false)
	return err
}

// TestCrash_state kills the daemon at every point while a sandbox is saved and resumed.
// The sandbox then has the last saved files, or those that were being saved.
func TestCrash_state(t *testing.T) {
	checktest.Long(t)
	for _, point := range statePoints {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var told version // the last reported version
			for _, line := range crash(t, "state", dir, point) {
				if err := json.Unmarshal([]byte(line), &told); err != nil {
					t.Errorf("the daemon said %q", line)
				}
			}
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			e, d, rt := recovered(t, dir)
			checkRows(t, ctx, e, rt, d)
			if told.ID != "" {
				checkVersion(t, ctx, e, told)
			}
			removeAll(t, ctx, e, rt)
		})
	}
}

// checkVersion checks that the sandbox reported by a killed daemon exists, and can be
// saved and resumed.
func checkVersion(t *testing.T, ctx context.Context, e *sandboxd.Engine, told version) {
	t.Helper()
	n, err := readVersion(ctx, e, told.ID)
	if err != nil || n < told.Saved || n > told.Written {
		t.Fatalf("its file is of version %d, %v; %d was saved and %d written", n, err, told.Saved, told.Written)
	}
	if err := writeVersion(ctx, e, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Stop(ctx, told.ID); err != nil {
		t.Fatal(err)
	}
	if n, err := readVersion(ctx, e, told.ID); err != nil || n != 100 {
		t.Errorf("after another stop its file is of version %d, %v", n, err)
	}
}

// removeAll deletes all sandboxes and snapshots, and checks that nothing is left.
func removeAll(t *testing.T, ctx context.Context, e *sandboxd.Engine, rt *fake.Runtime) {
	t.Helper()
	page, err := e.List(ctx, sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Items {
		if err := e.Delete(ctx, s.ID); err != nil {
			t.Errorf("delete %s (%s): %v", s.ID, s.Status, err)
		}
	}
	snaps, err := e.ListSnapshots(ctx, sandbox.SnapshotListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps.Items {
		if _, err := e.DeleteSnapshot(ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil {
			t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	if left, err := rt.List(ctx); err != nil || len(left) != 0 {
		t.Errorf("machines %v are left, %v", left, err)
	}
}
