package gvisor_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/sandbox"
)

// If any part of a hibernation is damaged, waking the sandbox is a conflict that names
// the damage and a remedy, and leaves the hibernation unchanged: after repair, the
// sandbox wakes. If its files are undamaged, a sandbox can be started from them.
func TestWake_Damaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := startSaving(t, dir)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "box"}))(t)
	checktest.Must(h.WriteFile(ctx, s.ID, "/kept", strings.NewReader("kept"), sandbox.WriteParams{}))(t)
	checktest.Must(h.Hibernate(ctx, s.ID))(t)

	content := checktest.Must(filepath.Glob(filepath.Join(dir, "data", "*")))(t)
	if len(content) != 1 {
		t.Fatalf("the hibernation is in %q", content)
	}
	wake := func(t *testing.T, what string, files, restorable bool) {
		t.Helper()
		_, err := h.Resume(ctx, s.ID, sandbox.ResumeParams{FilesOnly: files})
		checktest.Code(t, err, cay.Conflict)
		e, ok := errors.AsType[*cay.Error](err)
		if !ok || !strings.Contains(err.Error(), what) {
			t.Errorf("the error does not name %s: %v", what, err)
		}
		if ok && strings.Contains(e.Hint, "--files") != restorable {
			t.Errorf("files can be started from: %v; the hint is %q", restorable, e.Hint)
		}
		if got := checktest.Must(h.Get(ctx, s.ID))(t); got.Status != sandbox.Hibernated {
			t.Fatalf("it is %s (%s)", got.Status, got.Message)
		}
	}
	var paths []string
	for _, pattern := range []string{"*.*", "memory/*"} {
		paths = append(paths, checktest.Must(filepath.Glob(filepath.Join(content[0], pattern)))(t)...)
	}
	if len(paths) < 5 {
		t.Fatalf("the hibernation has %q", paths)
	}
	for _, path := range paths {
		good := checktest.Must(os.ReadFile(path))(t)
		inMemory := filepath.Base(filepath.Dir(path)) == "memory"
		for how, damage := range map[string]func() error{
			"other content": func() error { return os.WriteFile(path, []byte(strings.Repeat("x", len(good))), 0o600) },
			"cut off":       func() error { return os.Truncate(path, int64(len(good)/2)) },
			"missing":       func() error { return os.Remove(path) },
		} {
			name := filepath.Base(path)
			t.Run(name+" "+how, func(t *testing.T) {
				if err := os.Chmod(path, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := damage(); err != nil {
					t.Fatal(err)
				}
				what := name
				if !inMemory {
					what = "manifest"
				}
				wake(t, what, false, inMemory)
				if err := os.WriteFile(path, good, 0o600); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	elsewhere := filepath.Join(dir, "elsewhere")
	if err := os.Rename(content[0], elsewhere); err != nil {
		t.Fatal(err)
	}
	wake(t, "missing", false, false)
	wake(t, "missing", true, false)
	if err := os.Rename(elsewhere, content[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(content[0], "memory")); err != nil {
		t.Fatal(err)
	}
	wake(t, "memory", false, true)
	checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{FilesOnly: true}))(t)
	r, _, err := h.ReadFile(ctx, s.ID, "/kept", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != "kept" || err != nil {
		t.Errorf("its file has %q, %v", b, err)
	}
}

// startSaving starts an engine whose snapshots are in a directory.
func startSaving(t *testing.T, dir string, change ...func(*sandboxd.Config)) *sandboxtest.Harness {
	t.Helper()
	suite := config(t)
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	set := func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		c.Snapshots = snapshot.New(checktest.Must(blob.OpenDir(dir, blob.DirOptions{}))(t))
	}
	return sandboxtest.Start(t, newRuntime(t, t.TempDir()), append(change, set)...)
}

// A persistent sandbox that wakes from a hibernation, or is stopped in hibernation, keeps
// the files of the hibernation, and the memory is dropped.
func TestWake_MemoryDropped(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(ctx context.Context, h *sandboxtest.Harness, id string) (*sandbox.Sandbox, error){
		"resumed": func(ctx context.Context, h *sandboxtest.Harness, id string) (*sandbox.Sandbox, error) {
			return h.Resume(ctx, id, sandbox.ResumeParams{})
		},
		"stopped": func(ctx context.Context, h *sandboxtest.Harness, id string) (*sandbox.Sandbox, error) {
			return h.Engine.Stop(ctx, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			kept := make(chan struct{}) // closed when the look has ended that dropped the memory
			var dropped atomic.Bool
			end := sync.OnceFunc(func() { close(kept) })
			h := startSaving(t, dir, func(c *sandboxd.Config) {
				c.Reached = func(point string) {
					switch {
					case point == "memory-dropped":
						dropped.Store(true)
					case point == "snapshots-kept" && dropped.Load():
						end()
					}
				}
			})
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "box"}))(t)
			checktest.Must(h.WriteFile(ctx, s.ID, "/kept", strings.NewReader("kept"), sandbox.WriteParams{}))(t)
			checktest.Must(h.Hibernate(ctx, s.ID))(t)
			s = checktest.Must(leave(ctx, h, s.ID))(t)
			<-kept
			if left := checktest.Must(filepath.Glob(filepath.Join(dir, "data", "*", "memory", "*")))(t); len(left) > 0 {
				t.Errorf("of memory there is %q", left)
			}
			snap := checktest.Must(h.GetSnapshot(ctx, s.SnapshotID))(t)
			var size int64
			for _, path := range checktest.Must(filepath.Glob(filepath.Join(dir, "names", snap.ID, "disk", "*")))(t) {
				size += checktest.Must(os.Stat(path))(t).Size()
			}
			if snap.Kind != sandbox.FilesystemSnapshot || snap.SizeBytes != size || size == 0 {
				t.Errorf("its files have %d bytes, and the snapshot is %+v", size, snap)
			}
			copied := checktest.Must(h.Create(ctx, sandbox.CreateParams{Snapshot: snap.ID}))(t)
			r, _, err := h.ReadFile(ctx, copied.ID, "/kept", sandbox.ReadParams{})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if b, err := io.ReadAll(r); string(b) != "kept" || err != nil {
				t.Errorf("its file has %q, %v", b, err)
			}
		})
	}
}
