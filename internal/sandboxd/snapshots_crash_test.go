package sandboxd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/sandbox"
)

// snapshotCrashPoints are the points at which the daemon is killed, each with the number
// of times it is reached.
var snapshotCrashPoints = map[string]int{
	"committed": 5, "snapshotted": 5, "snapshot-imported": 1,
	"snapshot-deleted": 3, "snapshot-removed": 4, "snapshots-thinned": 1, "snapshots-kept": 2,
}

// snapshotLife prints each step before it tries the step, and after the answer.
func snapshotLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	die, looks := dying(point), make(chan struct{}, 1)
	e.Reached(func(p string) {
		die(p)
		if p == "snapshots-kept" {
			select {
			case looks <- struct{}{}:
			default:
			}
		}
	})
	if err := e.Open(ctx); err != nil {
		return err
	}
	create := func(name string, p sandbox.CreateParams) func() error {
		return func() error {
			p.Name = name
			_, err := e.Create(ctx, p)
			return err
		}
	}
	save := func(ref, name string) func() error {
		return func() error {
			_, err := e.CreateSnapshot(ctx, ref, sandbox.SnapshotParams{Name: name})
			return err
		}
	}
	remove := func(name string) func() error {
		return func() error { _, err := e.DeleteSnapshot(ctx, name, sandbox.DeleteSnapshotParams{}); return err }
	}
	var archive []byte
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"box", create("box", sandbox.CreateParams{Persistent: ephemeral})},
		{"a", save("box", "a")}, {"b", save("box", "b")},
		{"export", func() error {
			r, err := e.ExportSnapshot(ctx, "a")
			if err != nil {
				return err
			}
			archive, err = io.ReadAll(r)
			return errors.Join(err, r.Close())
		}},
		{"-a", remove("a")},
		{"copy", func() error {
			_, err := e.ImportSnapshot(ctx, bytes.NewReader(archive), sandbox.ImportParams{Name: "copy"})
			return err
		}},
		{"-copy", remove("copy")}, {"a", save("box", "a")}, {"-a", remove("a")},
		{"kept", create("kept", sandbox.CreateParams{Retention: &sandbox.Retention{Keep: 1}})},
		{"1", save("kept", "")}, {"2", save("kept", "")},
		{"thinned", func() error {
			for {
				<-looks
				page, err := e.ListSnapshots(ctx, sandbox.SnapshotListParams{Sandbox: "kept"})
				if err != nil {
					return err
				}
				if len(page.Items) == 1 {
					break
				}
			}
			for range 3 { // until the files are gone, too
				e.LookAfterSnapshots()
				<-looks
			}
			return nil
		}},
	} {
		fmt.Println("try", step.name)
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Println("did", step.name)
	}
	return nil
}

// TestCrash_Snapshots checks that at whatever point the daemon is killed, existing
// snapshots have all of their files, and no other files remain after the next daemon's
// look.
func TestCrash_Snapshots(t *testing.T) {
	checktest.Long(t)
	for point, times := range snapshotCrashPoints {
		for n := 1; n <= times; n++ {
			t.Run(fmt.Sprint(point, "-", n), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				said := append([]string{""}, crash(t, "snapshots", dir, fmt.Sprint(point, " ", n))...)
				checkSnapshots(t, dir, said[len(said)-1])
			})
		}
	}
}

func checkSnapshots(t *testing.T, dir, last string) {
	var files *snapshot.Store
	e, d, rt, err := crashEngine(t.Context(), dir, func(c *sandboxd.Config) {
		c.Limits.SnapshotGrace = time.Nanosecond
		files = c.Snapshots
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(rt.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	k := &janitor{t: t, looks: make(chan struct{}, 1), Harness: &sandboxtest.Harness{Engine: e}}
	k.watch()
	if err := e.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	k.wakeUp()

	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	page, err := e.ListSnapshots(ctx, sandbox.SnapshotListParams{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range page.Items {
		names[s.Name] = true
		open, err := files.Open(ctx, s.ID)
		if err != nil {
			t.Error(err)
			continue
		}
		if err := open.Verify(ctx); err != nil {
			t.Error(err)
		}
		open.Close()
	}
	blobs, err := blob.OpenDir(filepath.Join(dir, "snapshots"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	infos, err := blobs.List(ctx, blob.ListOptions{})
	if err != nil || len(infos) != len(page.Items) {
		t.Errorf("after %q, there are %d snapshots on disk and %d in the database, %v", last, len(infos), len(page.Items), err)
	}
	if n := k.directories(dir, len(infos)); n != len(infos) {
		t.Errorf("after %q, %d directories are left of %d snapshots", last, n, len(infos))
	}
	// b exists from some step on; other snapshots depend on the last step.
	said, step, _ := strings.Cut(last, " ")
	if early := last == "" || step == "box" || last == "did a" && !names["b"] || step == "a" && !names["b"] || last == "try b"; !early && !names["b"] {
		t.Errorf("after %q, b is lost", last)
	}
	for name, is := range names {
		if is && said == "did" && step == "-"+name {
			t.Errorf("after %q, %s is there", last, name)
		}
	}
	if said == "did" && (step == "copy" || step == "b") && !names[step] {
		t.Errorf("after %q, it is not there", last)
	}
	// Unused names are free, and the remaining sandboxes are usable.
	for name, is := range names {
		if !is || name == "" {
			continue
		}
		if _, err := e.Create(ctx, sandbox.CreateParams{Snapshot: name, Persistent: ephemeral}); err != nil {
			t.Errorf("after %q, start from %s: %v", last, name, err)
		}
	}
	all, err := e.List(ctx, sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all.Items {
		if err := e.Delete(ctx, s.ID); err != nil && cay.CodeOf(err) != cay.NotFound {
			t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	for _, s := range page.Items {
		if _, err := e.DeleteSnapshot(ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil {
			t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	k.wakeUp() // a look under way may have read the rows before
	if n := k.directories(dir, 0); n != 0 {
		t.Errorf("%d directories are left of no snapshot", n)
	}
	if err := d.Check(ctx); err != nil {
		t.Error(err)
	}
}

// directories returns the number of snapshot directories, once it equals want, or has not
// changed for a few looks: a process forked by another test holds our file locks, which
// delays the removal, until it executes its own program.
func (k *janitor) directories(dir string, want int) (n int) {
	k.t.Helper()
	for range 4 {
		content, err := os.ReadDir(filepath.Join(dir, "snapshots", "data"))
		if err != nil {
			k.t.Fatal(err)
		}
		if n = len(content); n == want {
			break
		}
		k.wakeUp()
	}
	return n
}
