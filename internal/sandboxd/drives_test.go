package sandboxd_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// driveAt returns the mounts of a sandbox with one drive, at d in its working directory.
func driveAt(ref string, mode sandbox.MountMode) []sandbox.Mount {
	return []sandbox.Mount{{Path: "/workspace/d", Drive: ref, Mode: mode}}
}

func sh(t testing.TB, h *sandboxtest.Harness, ref, script string) string {
	t.Helper()
	return sandboxtest.ReadText(t, checktest.Must(h.Exec(defaultCaller(t), ref, sandbox.CommandParams{Argv: []string{"sh", "-c", script}}))(t))
}

// wantFile checks the content of a drive's file.
func wantFile(t testing.TB, h *sandboxtest.Harness, drive, want string) {
	t.Helper()
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt(drive, sandbox.MountCopy)}))(t)
	if got := sh(t, h, s.ID, "cat d/file 2>&1"); got != want {
		t.Errorf("drive %s has %q, want %q", drive, got, want)
	}
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
}

// blobsOf returns the names of the blobs of drives.
func blobsOf(t testing.TB, h *sandboxtest.Harness) (names []string) {
	t.Helper()
	for _, info := range checktest.Must(h.Config.Drives.List(t.Context(), blob.ListOptions{}))(t) {
		names = append(names, info.Name)
	}
	return names
}

func TestDrives_SurviveRestart(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	sh(t, h, s.ID, "echo one > d/file")
	h.Restart(t)
	if d := checktest.Must(h.SaveDrive(ctx, "data"))(t); d.SandboxID != s.ID {
		t.Errorf("it is held by %q", d.SandboxID)
	}
	wantFile(t, h, "data", "one\n")
	sh(t, h, s.ID, "echo two > d/file")
	h.Restart(t)
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	if d := checktest.Must(h.GetDrive(ctx, "data"))(t); d.SandboxID != "" {
		t.Errorf("it is held by %q", d.SandboxID)
	}
	wantFile(t, h, "data", "two\n")
	if names := blobsOf(t, h); len(names) != 1 {
		t.Errorf("%v are kept of one drive", names)
	}
}

// A machine whose runtime does not exist releases the leases of its drives.
func TestDrives_UnknownRuntime(t *testing.T) {
	t.Parallel()
	images, dir := &unknownImages{unknown: map[string]bool{}}, t.TempDir()
	h, _ := startFake(t, func(c *sandboxd.Config) {
		images.ImageSource, c.Images = c.Images, images
		c.Drives = checktest.Must(blob.OpenDir(dir, blob.DirOptions{}))(t)
	})
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	sh(t, h, s.ID, "echo one > d/file")
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	images.forget("python3.13")
	_, err := h.Create(ctx, sandbox.CreateParams{Runtime: "python3.13", Mounts: driveAt("data", "")})
	if cay.CodeOf(err) != cay.NotFound {
		t.Errorf("with a runtime that is not there: %v", err)
	}
	wantFile(t, h, "data", "one\n")
	if err := h.DeleteDrive(ctx, "data"); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "data"))
	if err != nil || len(left) != 0 {
		t.Errorf("of the drive that was removed, %v is left: %v", left, err)
	}
}

// A sandbox that is lost with its machine loses its unsaved changes, and releases its
// drives.
func TestDrives_Lost(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t)
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	sh(t, h, s.ID, "echo one > d/file")
	checktest.Must(h.SaveDrive(ctx, "data"))(t)
	sh(t, h, s.ID, "echo two > d/file")
	h.Engine.Close()
	if err := rt.Kill(s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed}); err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	wantStatus(t, checktest.Must(h.Get(ctx, s.ID))(t), sandbox.Failed, sandbox.ReasonLost)
	next := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	if got := sh(t, h, next.ID, "cat d/file"); got != "one\n" {
		t.Errorf("it has %q", got)
	}
}

func TestDrives_NotKept(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t, func(c *sandboxd.Config) { c.Drives = nil })
	ctx := defaultCaller(t)
	_, err := h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"})
	checktest.Code(t, err, cay.NotSupported)
	_, err = h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")})
	checktest.Code(t, err, cay.NotFound)
}

// An error says what is missing of a drive, and the drive can be removed.
func TestDrives_Missing(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	if err := h.Config.Drives.Delete(ctx, blobsOf(t, h)[0]); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []sandbox.MountMode{sandbox.MountReadWrite, sandbox.MountReadOnly} {
		_, err := h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", mode)})
		checktest.Code(t, err, cay.Conflict)
		if !strings.Contains(err.Error(), `drive "data"`) || !strings.Contains(err.Error(), "/workspace/d") {
			t.Errorf("the error is %q", err)
		}
	}
	_, err := h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "clone", From: "data"})
	checktest.Code(t, err, cay.Conflict)
	if err := h.DeleteDrive(ctx, "data"); err != nil {
		t.Fatal(err)
	}
}

// R20 for drives: a full disk makes the save fail, with no other effects.
func TestDrives_DiskFull(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=3m"); err != nil {
		t.Skipf("no small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	store := checktest.Must(blob.OpenDir(filepath.Join(dir, "drives"), blob.DirOptions{}))(t)
	h, _ := startFake(t, func(c *sandboxd.Config) { c.Drives = store })
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	sh(t, h, s.ID, "echo one > d/file")
	before := checktest.Must(h.SaveDrive(ctx, "data"))(t)
	kept := blobsOf(t, h)

	sh(t, h, s.ID, "echo two > d/file; head -c 4000000 /dev/urandom > d/big")
	for range 3 { // a failure leaves nothing that takes space
		_, err := h.SaveDrive(ctx, "data")
		checktest.Code(t, err, cay.NoSpace)
		_, err = h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "clone", From: "data"})
		checktest.Code(t, err, cay.NoSpace)
	}
	if got := checktest.Must(h.GetDrive(ctx, "data"))(t); !reflect.DeepEqual(got, before) || !reflect.DeepEqual(blobsOf(t, h), kept) {
		t.Errorf("the drive is %+v with %v, was %+v with %v", got, blobsOf(t, h), before, kept)
	}
	wantFile(t, h, "data", "one\n")
	if got := sh(t, h, s.ID, "cat d/file; echo three > d/file; rm d/big"); got != "two\n" {
		t.Errorf("the sandbox answers %q", got)
	}
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	wantFile(t, h, "data", "three\n")
}

// A stop has no other place for the drive's changes: the sandbox stays until there is
// space.
func TestDrives_DiskFullAtStop(t *testing.T) {
	t.Parallel()
	f := &faultyBlobs{}
	h, _ := startFake(t, func(c *sandboxd.Config) { f.Store, c.Drives = c.Drives, f })
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	sh(t, h, s.ID, "echo one > d/file")
	f.full.Store(true)
	_, err := h.Engine.Stop(ctx, s.ID)
	checktest.Code(t, err, cay.NoSpace)
	if d := checktest.Must(h.GetDrive(ctx, "data"))(t); d.SandboxID != s.ID {
		t.Errorf("it is held by %q", d.SandboxID)
	}
	_, err = h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")})
	checktest.Code(t, err, cay.Conflict)
	_, err = h.SaveDrive(ctx, "data")
	checktest.Code(t, err, cay.Conflict)
	f.full.Store(false)
	wantStatus(t, checktest.Must(h.Engine.Stop(ctx, s.ID))(t), sandbox.Stopped, sandbox.ReasonRequested)
	wantFile(t, h, "data", "one\n")
}

// faultyBlobs is a store that fails on request.
type faultyBlobs struct {
	blob.Store
	full, sticky atomic.Bool // Create, Delete fail
}

func (f *faultyBlobs) Create(ctx context.Context, size int64) (blob.Draft, error) {
	if f.full.Load() {
		return nil, cay.Errorf(cay.NoSpace, "the disk is full")
	}
	return f.Store.Create(ctx, size)
}

func (f *faultyBlobs) Delete(ctx context.Context, name string) error {
	if f.sticky.Load() {
		return cay.Errorf(cay.Internal, "it cannot be removed")
	}
	return f.Store.Delete(ctx, name)
}

// A blob that could not be removed in time is removed later; blobs left behind by a
// killed daemon are removed after the next one opens. Neither is removed too early.
func TestDrives_Sweep(t *testing.T) {
	t.Parallel()
	f := &faultyBlobs{}
	h, _ := startFake(t, func(c *sandboxd.Config) { f.Store, c.Drives = c.Drives, f })
	ctx := defaultCaller(t)
	d := checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Mounts: driveAt("data", "")}))(t)
	checktest.Must(h.SaveDrive(ctx, "data"))(t)
	f.sticky.Store(true)
	checktest.Must(h.SaveDrive(ctx, "data"))(t)
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	f.sticky.Store(false)
	if names := blobsOf(t, h); len(names) != 3 {
		t.Fatalf("%v are there, want one and two that could not be removed", names)
	}
	stray := checktest.Must(f.Create(ctx, 0))(t)
	checktest.Must(stray.Commit(ctx, d.ID+"-stray"))(t)
	// A sweep goes by the disk's clock, by which the blobs are new.
	swept := make(chan struct{}, 2) // at opening, and later
	sweep := func() {
		t.Helper()
		h.Reached(func(point string) {
			if point == "drives-swept" {
				swept <- struct{}{}
			}
		})
		h.Clock.Advance(20 * time.Minute) // the next sweep is due
		<-swept
	}
	sweep()
	if names := blobsOf(t, h); len(names) != 4 {
		t.Fatalf("%v are there after an early sweep", names)
	}
	for _, name := range blobsOf(t, h) {
		age(t, f.Store, name)
	}
	h.Restart(t)
	sweep()
	if names := blobsOf(t, h); len(names) != 1 {
		t.Fatalf("%v are there after a sweep", names)
	}
	wantFile(t, h, "data", "cat: d/file: No such file or directory\n")
}

// age makes a blob 1 h old.
func age(t *testing.T, s blob.Store, name string) {
	t.Helper()
	l := checktest.Must(s.Local(t.Context(), name))(t)
	defer l.Release()
	then := unix.NsecToTimespec(time.Now().Add(-time.Hour).UnixNano())
	link := filepath.Join(filepath.Dir(filepath.Dir(l.Dir)), "names", name)
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, link, []unix.Timespec{then, then}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		t.Fatal(err)
	}
}

// The number of a team's drives is limited.
func TestDrives_TooMany(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "data"}))(t)
	checktest.Must(h.Config.DB.Exec(ctx, `WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
		INSERT INTO sandbox_drives (id, team_id, project_id, name, max_mb, created_at, updated_at)
		SELECT 'drv_' || i, d.team_id, d.project_id, 'n' || i, 16, 0, 0 FROM n, sandbox_drives d`))(t)
	_, err := h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "more"})
	checktest.Code(t, err, cay.QuotaExceeded)
	if err := h.DeleteDrive(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "more"}))(t)
}

func TestInUse(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	want := func(what string) {
		t.Helper()
		for _, project := range []string{"", account.DefaultProject} {
			if got := checktest.Must(h.InUse(ctx, account.DefaultTeam, project))(t); got != what {
				t.Errorf("in use are %q, want %q", got, what)
			}
		}
	}
	want("")
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "a"}))(t)
	checktest.Must(h.CreateDrive(ctx, sandbox.CreateDriveParams{Name: "b"}))(t)
	want("2 drives")
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	want("1 sandbox, 2 drives")
	snap := checktest.Must(h.CreateSnapshot(ctx, s.ID, sandbox.SnapshotParams{}))(t)
	want("1 sandbox, 1 snapshot, 2 drives")
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	want("1 snapshot, 2 drives")
	checktest.Must(h.DeleteSnapshot(ctx, snap.ID, sandbox.DeleteSnapshotParams{}))(t)
	want("2 drives")
	if got := checktest.Must(h.InUse(ctx, "team_b", ""))(t); got != "" {
		t.Errorf("another team uses %q", got)
	}
}
