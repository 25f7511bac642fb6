package sandboxd_test

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/sandbox"
)

// startRoom starts an engine whose saves begin only if room returns nil.
func startRoom(t *testing.T, room func() error) *janitor {
	return startJanitor(t, func(c *sandboxd.Config) {
		dir, err := blob.OpenDir(filepath.Join(t.TempDir(), "snapshots"), blob.DirOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Snapshots = snapshot.New(fullStore{dir, room})
	})
}

var errNoRoom = cay.Errorf(cay.NoSpace, "the host's disk is full")

// A sandbox that cannot be saved can still be deleted.
func TestEnd_DeleteWhatCannotBeSaved(t *testing.T) {
	t.Parallel()
	k := startRoom(t, func() error { return errNoRoom })
	box := k.create(sandbox.CreateParams{Name: "box"})
	_, err := k.Stop(k.ctx, "box")
	checktest.Code(t, err, cay.NoSpace)
	wantStatus(t, checktest.Must(k.Get(k.ctx, "box"))(t), sandbox.Stopping, sandbox.ReasonRequested)
	if err := k.Delete(k.ctx, "box"); err != nil {
		t.Fatal(err)
	}
	_, err = k.Get(k.ctx, box.ID)
	checktest.Code(t, err, cay.NotFound)
}

// Callers that come during a failing save share it, and do not start further saves.
func TestEnd_AttemptIsShared(t *testing.T) {
	t.Parallel()
	var saves atomic.Int32
	begun, fail := make(chan struct{}), make(chan struct{})
	k := startRoom(t, func() error {
		if saves.Add(1) == 1 {
			close(begun)
		}
		<-fail
		return errNoRoom
	})
	k.create(sandbox.CreateParams{Name: "box"})
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = k.Stop(k.ctx, "box") })
	<-begun
	for range 8 {
		ctx, leave := context.WithCancelCause(k.ctx)
		wg.Go(func() { _, _ = k.Stat(k.ctx, "box", ".", true) })
		wg.Go(func() {
			_, _ = k.Stop(ctx, "box")
		})
		leave(errors.New("gone"))
	}
	wg.Go(func() { // waits for the same attempt
		if err := k.Delete(k.ctx, "box"); err != nil {
			t.Errorf("delete: %v", err)
		}
	})
	close(fail)
	wg.Wait()
	// Callers that came after the failure may try again, one at a time.
	if n := saves.Load(); n > 2 {
		t.Errorf("it was saved %d times", n)
	}
}

// A sandbox whose row is running and that has no machine does not make calls loop.
func TestAwake_NoMachine(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	box := k.create(sandbox.CreateParams{Name: "box"})
	if _, err := k.Stop(k.ctx, "box"); err != nil {
		t.Fatal(err)
	}
	for _, status := range []sandbox.Status{sandbox.Running, sandbox.Paused, sandbox.Resuming, sandbox.Pending} {
		if _, err := k.Config.DB.Exec(k.ctx, `UPDATE sandboxes SET status = ? WHERE id = ?`, status, box.ID); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(k.ctx, time.Minute)
		_, err := k.Stat(ctx, "box", ".", true)
		cancel()
		if cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("%s: %v", status, err)
		}
	}
}

// R19: the saves of stops, which ignore the quota, cannot fill the disk.
func TestSnapshots_StopsInALoop(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.create(sandbox.CreateParams{Name: "box"})
	fill := func(ref string) {
		t.Helper()
		if _, err := k.WriteFile(k.ctx, ref, "f", io.LimitReader(rand.Reader, 3<<20), sandbox.WriteParams{}); err != nil {
			t.Fatal(err)
		}
	}
	fill("box")
	k.Accounts.Set(account.DefaultTeam, account.Quota{SnapshotMB: 2})
	stop := func(ref string) {
		t.Helper()
		if _, err := k.Stop(k.ctx, ref); err != nil {
			t.Fatal(err)
		}
	}
	stop("box") // saved although the quota is exceeded
	first := checktest.Must(k.Get(k.ctx, "box"))(t).SnapshotID
	if _, err := k.Resume(k.ctx, "box", sandbox.ResumeParams{}); err != nil {
		t.Fatal("alone it may be larger than the quota: ", err)
	}
	fill("box")
	stop("box")
	_, err := k.Resume(k.ctx, "box", sandbox.ResumeParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	_, err = k.Create(k.ctx, sandbox.CreateParams{Name: "another"})
	checktest.Code(t, err, cay.QuotaExceeded)
	_, err = k.Fork(k.ctx, "box", sandbox.ForkParams{Kind: sandbox.FilesystemSnapshot})
	checktest.Code(t, err, cay.QuotaExceeded)
	brief := k.create(sandbox.CreateParams{})
	_, err = k.Update(k.ctx, brief.ID, sandbox.UpdateParams{Persistent: new(!*ephemeral)})
	checktest.Code(t, err, cay.QuotaExceeded)
	if _, err := k.DeleteSnapshot(k.ctx, first, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Resume(k.ctx, "box", sandbox.ResumeParams{}); err != nil {
		t.Error(err)
	}
}

// If two sandboxes stop with the same snapshot name, the second one ends, too.
func TestSnapshots_NameTakenAtStop(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.create(sandbox.CreateParams{Name: "one"})
	k.create(sandbox.CreateParams{Name: "two"})
	var once sync.Once
	k.Reached(func(point string) {
		if point == "stopping" {
			once.Do(func() {
				if _, err := k.CreateSnapshot(k.ctx, "two", sandbox.SnapshotParams{Name: "wanted"}); err != nil {
					t.Error(err)
				}
			})
		}
	})
	_, err := k.CreateSnapshot(k.ctx, "one", sandbox.SnapshotParams{Name: "wanted", Stop: true})
	checktest.Code(t, err, cay.Conflict)
	one := checktest.Must(k.Get(k.ctx, "one"))(t)
	wantStatus(t, one, sandbox.Stopped, sandbox.ReasonRequested)
	if s := checktest.Must(k.GetSnapshot(k.ctx, one.SnapshotID))(t); s.Name != "" || s.SandboxID != one.ID {
		t.Errorf("it was saved as %+v", s)
	}
}

// R21: snapshots that are too old only because the wall clock has jumped are kept.
func TestSnapshots_ClockJumpsWithRetention(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.create(sandbox.CreateParams{
		Name: "box", Timeout: sandbox.Duration(sandboxtest.MaxTimeout),
		Retention: &sandbox.Retention{Keep: 10, MaxAge: sandbox.Duration(24 * time.Hour)},
	})
	old := k.snapshot("box", sandbox.SnapshotParams{})
	k.wakeUp()
	k.Clock.Jump(365 * 24 * time.Hour)
	thinned := make(chan struct{}, 1)
	k.Reached(func(point string) {
		if point == "snapshots-thinned" {
			thinned <- struct{}{}
		}
	})
	k.snapshot("box", sandbox.SnapshotParams{})
	k.Engine.Close() // waits for background work
	select {
	case <-thinned:
		t.Errorf("snapshot %s was deleted for a clock that was set wrong", old.ID)
	default:
	}
}

// Visits to the preview of a sandbox that cannot be resumed do not each try to resume it.
func TestPreview_FailedResume(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	box := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "box", Ports: []sandbox.PortParams{{Port: 8080, Access: sandbox.Public}}}))(t)
	checktest.Must(h.Engine.Stop(ctx, "box"))(t)
	var tries atomic.Int32
	rt.FailStart(func(machine.Spec) error {
		tries.Add(1)
		return cay.Errorf(cay.Unavailable, "no")
	})
	visit := func() error {
		_, err := h.WakePreview(t.Context(), box.Ports[0].Label)
		return err
	}
	for range 5 {
		checktest.Code(t, visit(), cay.Unavailable)
	}
	if n := tries.Load(); n != 1 {
		t.Errorf("five visits have it started %d times", n)
	}
	rt.FailStart(nil)
	h.Clock.Advance(10 * time.Second)
	if err := visit(); err != nil {
		t.Error(err)
	}
}

// If two clones are made concurrently and the quota has room for one, only one succeeds.
func TestDrives_ClonesAtTheSameTime(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	checktest.Must(k.CreateDrive(k.ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	box := k.create(sandbox.CreateParams{Mounts: []sandbox.Mount{{Path: "/data", Drive: "data"}}})
	if _, err := k.WriteFile(k.ctx, box.ID, "/data/f", io.LimitReader(rand.Reader, 700_000), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	checktest.Must(k.Stop(k.ctx, box.ID))(t)
	k.Accounts.Set(account.DefaultTeam, account.Quota{SnapshotMB: 2})
	var copied atomic.Bool
	k.Reached(func(point string) {
		if point == "drive-copied" && copied.CompareAndSwap(false, true) {
			if _, err := k.CreateDrive(k.ctx, sandbox.CreateDriveParams{Name: "second", From: "data"}); err != nil {
				t.Error(err)
			}
		}
	})
	_, err := k.CreateDrive(k.ctx, sandbox.CreateDriveParams{Name: "first", From: "data"})
	checktest.Code(t, err, cay.QuotaExceeded)
}

// silentRuntime makes machines whose kernel stops answering once silent is set.
type silentRuntime struct {
	machine.Runtime
	silent *atomic.Bool
}

func (r silentRuntime) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	inst, err := r.Runtime.Start(ctx, spec)
	return silentInstance{inst, r.silent}, err
}

type silentInstance struct {
	machine.Instance
	silent *atomic.Bool
}

func (i silentInstance) wait() {
	if i.silent.Load() {
		<-i.Done()
	}
}

func (i silentInstance) Pause(ctx context.Context) error {
	i.wait()
	return i.Instance.Pause(ctx)
}

func (i silentInstance) SaveDisk(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	i.wait()
	return i.Instance.SaveDisk(ctx, p)
}

// A machine that does not answer is still destroyed.
func TestEnd_SilentMachine(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	k := startJanitor(t, func(c *sandboxd.Config) {
		c.Runtime, c.Limits.Silence = silentRuntime{c.Runtime, &silent}, 10*time.Millisecond
	})
	k.create(sandbox.CreateParams{Name: "box"})
	k.create(sandbox.CreateParams{Name: "other"})
	silent.Store(true)
	brief, cancel := context.WithTimeout(k.ctx, 10*time.Millisecond)
	defer cancel()
	if s, err := k.CreateSnapshot(brief, "box", sandbox.SnapshotParams{}); err == nil {
		t.Errorf("there is a snapshot: %+v", s)
	}
	wantStatus(t, checktest.Must(k.Stop(k.ctx, "box"))(t), sandbox.Stopped, sandbox.ReasonRequested)
	if err := k.Delete(k.ctx, "other"); err != nil {
		t.Error(err)
	}
}
