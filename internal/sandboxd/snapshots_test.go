package sandboxd_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/sandboxd/snapshot"
	"github.com/cayhq/cay/sandbox"
)

var ephemeral = new(bool)

// janitor is an engine whose looks at snapshots run when the test asks for them.
type janitor struct {
	*sandboxtest.Harness
	t     *testing.T
	ctx   context.Context
	looks chan struct{} // receives a value after each look
}

func startJanitor(t *testing.T, change ...func(*sandboxd.Config)) *janitor {
	t.Helper()
	h, _ := startFake(t, change...)
	k := &janitor{h, t, sandboxtest.As(t.Context(), sandboxtest.Default), make(chan struct{}, 1)}
	k.watch()
	return k
}

func (k *janitor) watch() {
	k.Reached(func(point string) {
		if point == "snapshots-kept" {
			select {
			case k.looks <- struct{}{}:
			default:
			}
		}
	})
}

// restart runs f while there is no engine.
func (k *janitor) restart(f func()) {
	k.t.Helper()
	k.Engine.Close()
	f()
	k.Restart(k.t)
	k.watch()
}

// wakeUp returns after a look that began after the call.
func (k *janitor) wakeUp() {
	// The first look to end may have begun earlier.
	for range 3 {
		k.LookAfterSnapshots()
		<-k.looks
	}
}

// pass advances the clock, and looks.
func (k *janitor) pass(d time.Duration) {
	k.Clock.Advance(d)
	k.wakeUp()
}

func (k *janitor) create(p sandbox.CreateParams) *sandbox.Sandbox {
	k.t.Helper()
	s, err := k.Create(k.ctx, p)
	if err != nil {
		k.t.Fatalf("create: %v", err)
	}
	return s
}

func (k *janitor) snapshot(ref string, p sandbox.SnapshotParams) *sandbox.Snapshot {
	k.t.Helper()
	k.Clock.Advance(time.Millisecond) // newer than the previous snapshots
	s, err := k.CreateSnapshot(k.ctx, ref, p)
	if err != nil {
		k.t.Fatalf("make a snapshot of %s: %v", ref, err)
	}
	return s
}

// change changes a file of a sandbox, so that its next stop saves it.
func (k *janitor) change(ref string) {
	k.t.Helper()
	if _, err := k.WriteFile(k.ctx, ref, "changed", strings.NewReader(rand.Text()), sandbox.WriteParams{}); err != nil {
		k.t.Fatal(err)
	}
}

// stopChanged changes a file of a sandbox, stops the sandbox, and returns its new
// snapshot.
func (k *janitor) stopChanged(ref string) string {
	k.t.Helper()
	k.Clock.Advance(time.Millisecond) // newer than the previous snapshots
	k.change(ref)
	s, err := k.Stop(k.ctx, ref)
	if err != nil {
		k.t.Fatal(err)
	}
	return s.SnapshotID
}

// expiring makes a snapshot that no sandbox needs.
func (k *janitor) expiring(after time.Duration) *sandbox.Snapshot {
	k.t.Helper()
	box := k.create(sandbox.CreateParams{Persistent: ephemeral, Timeout: sandbox.Duration(sandboxtest.MaxTimeout)})
	d := sandbox.Duration(after)
	return k.snapshot(box.ID, sandbox.SnapshotParams{Expiration: &d})
}

// want checks the status of snapshots, in the database and on disk.
func (k *janitor) want(status sandbox.SnapshotStatus, ids ...string) {
	k.t.Helper()
	for _, id := range ids {
		s, err := k.GetSnapshot(k.ctx, id)
		if err != nil {
			k.t.Fatal(err)
		}
		if s.Status != status {
			k.t.Errorf("snapshot %s is %s, want %s", id, s.Status, status)
		}
		files, err := k.Config.Snapshots.Open(k.ctx, id)
		if err == nil {
			files.Close()
		}
		if there := err == nil; there != (status == sandbox.SnapshotCreated) || err != nil && cay.CodeOf(err) != cay.NotFound {
			k.t.Errorf("snapshot %s is %s, and its files: %v", id, s.Status, err)
		}
	}
}

func TestSnapshots_Expire(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	hour, day, ever := k.expiring(time.Hour), k.expiring(24*time.Hour), k.expiring(0)
	k.pass(59 * time.Minute)
	k.want(sandbox.SnapshotCreated, hour.ID, day.ID, ever.ID)
	k.pass(time.Minute)
	k.want(sandbox.SnapshotDeleted, hour.ID)
	k.want(sandbox.SnapshotCreated, day.ID, ever.ID)
	k.pass(24 * time.Hour)
	k.want(sandbox.SnapshotDeleted, hour.ID, day.ID)
	k.want(sandbox.SnapshotCreated, ever.ID)

	// The row of the deleted snapshot can be read for 30 days.
	k.pass(29 * 24 * time.Hour)
	k.want(sandbox.SnapshotDeleted, day.ID)
	k.pass(24 * time.Hour)
	for _, id := range []string{hour.ID, day.ID} {
		if _, err := k.GetSnapshot(k.ctx, id); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("after 30 days: %v", err)
		}
	}
	k.want(sandbox.SnapshotCreated, ever.ID)
}

// Snapshots kept by retention expire as the retention says; snapshots made with an
// expiration expire as requested.
func TestSnapshots_RetentionExpiration(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	day, never := sandbox.Duration(24*time.Hour), sandbox.Duration(0)
	for name, c := range map[string]struct {
		retention, request *sandbox.Duration
		want               time.Duration // 0: never
	}{
		"sandbox": {nil, nil, time.Hour}, "retention": {&day, nil, 24 * time.Hour}, "never": {&never, nil, 0}, "request": {&never, &day, 24 * time.Hour},
	} {
		box := k.create(sandbox.CreateParams{
			SnapshotExpiration: new(sandbox.Duration(time.Hour)), Retention: &sandbox.Retention{Keep: 1, Expiration: c.retention},
		})
		s := k.snapshot(box.ID, sandbox.SnapshotParams{Expiration: c.request})
		switch {
		case c.want == 0 && s.ExpiresAt == nil:
		case s.ExpiresAt == nil || s.ExpiresAt.Sub(s.CreatedAt) != c.want:
			t.Errorf("%s: it was made at %v and expires at %v", name, s.CreatedAt, s.ExpiresAt)
		}
	}
}

// TestSnapshots_ExpireByTimer relies on the engine's own timers only.
func TestSnapshots_ExpireByTimer(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.wakeUp()
	k.pass(10 * time.Minute)
	s := k.expiring(20 * time.Minute)
	k.Clock.AwaitTimer(t, 20*time.Minute)
	k.Clock.Advance(20 * time.Minute)
	for {
		<-k.looks
		got, err := k.GetSnapshot(k.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if got.Status == sandbox.SnapshotDeleted {
			break
		}
	}
}

// R21: a jump of the wall clock deletes no snapshot that should exist.
func TestSnapshots_ClockJumps(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	hour, day := k.expiring(time.Hour), k.expiring(24*time.Hour)
	k.Clock.Jump(365 * 24 * time.Hour)
	k.wakeUp()
	k.want(sandbox.SnapshotCreated, hour.ID, day.ID)
	k.pass(50 * time.Minute)
	k.want(sandbox.SnapshotCreated, hour.ID, day.ID)
	k.Clock.Jump(-365 * 24 * time.Hour) // the clock is corrected
	k.wakeUp()
	k.want(sandbox.SnapshotCreated, hour.ID, day.ID)
	k.pass(10 * time.Minute)
	k.want(sandbox.SnapshotDeleted, hour.ID)
	k.want(sandbox.SnapshotCreated, day.ID)

	k.Clock.Jump(-time.Hour) // a longer error
	k.pass(23*time.Hour + time.Minute)
	k.want(sandbox.SnapshotCreated, day.ID)
	k.pass(time.Hour)
	k.want(sandbox.SnapshotDeleted, day.ID)

	// A clock that keeps running from where it jumped is right.
	day = k.expiring(24 * time.Hour)
	k.Clock.Jump(25 * time.Hour)
	k.wakeUp()
	k.pass(119 * time.Minute)
	k.want(sandbox.SnapshotCreated, day.ID)
	k.pass(2 * time.Minute)
	k.want(sandbox.SnapshotDeleted, day.ID)
}

func TestSnapshots_ExpiredBeforeStart(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	s := k.expiring(time.Hour)
	k.restart(func() { k.Clock.Advance(2 * time.Hour) })
	k.wakeUp()
	k.want(sandbox.SnapshotCreated, s.ID) // a host just booted may have the wrong time
	k.pass(10 * time.Minute)
	k.want(sandbox.SnapshotDeleted, s.ID)
}

func TestSnapshots_NeededDoNotExpire(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	hour := sandbox.Duration(time.Hour)
	box := k.create(sandbox.CreateParams{Name: "box", SnapshotExpiration: &hour})
	old := k.snapshot("box", sandbox.SnapshotParams{})
	k.change("box")
	stopped, err := k.Stop(k.ctx, "box")
	if err != nil {
		t.Fatal(err)
	}
	k.pass(2 * time.Hour)
	k.want(sandbox.SnapshotDeleted, old.ID)
	k.want(sandbox.SnapshotCreated, stopped.SnapshotID)
	if _, err := k.Resume(k.ctx, "box", sandbox.ResumeParams{}); err != nil {
		t.Error(err)
	}
	if err := k.DeleteWith(k.ctx, box.ID, sandbox.DeleteParams{KeepSnapshots: true}); err != nil {
		t.Fatal(err)
	}
	k.wakeUp()
	k.want(sandbox.SnapshotDeleted, stopped.SnapshotID)
}

func TestSnapshots_Retention(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r    sandbox.Retention
		want string // in the order of creation; N has a name, P is needed by another sandbox
		made string
	}{
		"Keep":      {sandbox.Retention{Keep: 2}, "  xx", "...."},
		"One":       {sandbox.Retention{Keep: 1}, "   x", "...."},
		"Named":     {sandbox.Retention{Keep: 2}, "x  xx", "N...."},
		"NoneNamed": {sandbox.Retention{Keep: 1}, "xxxx", "NNN."},
		"Needed":    {sandbox.Retention{Keep: 1}, " x x", ".P.."},
		"Old":       {sandbox.Retention{Keep: 100, MaxAge: sandbox.Duration(150 * time.Minute)}, "x xxx", "N...."},
		"Evicted":   {sandbox.Retention{Keep: 1, KeepEvicted: true}, "xxxx", "...."},
		"Both":      {sandbox.Retention{Keep: 1, KeepEvicted: true, MaxAge: sandbox.Duration(150 * time.Minute)}, "  xxx", "....."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := startJanitor(t)
			k.create(sandbox.CreateParams{Name: "box", Retention: &c.r, Timeout: sandbox.Duration(sandboxtest.MaxTimeout)})
			var ids []string
			for i, kind := range c.made {
				p := sandbox.SnapshotParams{}
				if kind == 'N' {
					p.Name = "name" + string('0'+rune(i))
				}
				s := k.snapshot("box", p)
				if kind == 'P' {
					k.create(sandbox.CreateParams{Name: "other", Snapshot: s.ID, Timeout: sandbox.Duration(sandboxtest.MaxTimeout)})
				}
				ids = append(ids, s.ID)
				if i < len(c.made)-1 {
					k.Clock.Advance(time.Hour)
				}
			}
			var want []string
			for i, mark := range c.want {
				if mark == 'x' {
					want = append(want, ids[i])
				}
			}
			for {
				<-k.looks // a look follows each creation
				page, err := k.ListSnapshots(k.ctx, sandbox.SnapshotListParams{Sandbox: "box"})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, s := range slices.Backward(page.Items) {
					got = append(got, s.ID)
				}
				if slices.Equal(got, want) {
					break
				}
				if !containsAll(got, want) {
					t.Fatalf("of %v there are %v, want %v", ids, got, want)
				}
			}
			k.wakeUp()
			k.want(sandbox.SnapshotCreated, want...)
		})
	}
}

// For a sandbox without a retention, the newest three automatic snapshots are kept, those
// that other sandboxes start from, and all that callers made.
func TestSnapshots_RetentionByDefault(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.create(sandbox.CreateParams{Name: "box"})
	made := k.snapshot("box", sandbox.SnapshotParams{})
	var auto []string
	for i := range 6 {
		auto = append(auto, k.stopChanged("box"))
		if i == 1 {
			k.create(sandbox.CreateParams{Name: "other", Snapshot: auto[1]})
		}
	}
	// The retention is applied in the background, once for each new snapshot.
	for {
		<-k.looks
		page := checktest.Must(k.ListSnapshots(k.ctx, sandbox.SnapshotListParams{Sandbox: "box"}))(t)
		if len(page.Items) <= 5 {
			break
		}
	}
	k.wakeUp()
	k.want(sandbox.SnapshotCreated, made.ID, auto[1], auto[3], auto[4], auto[5])
	k.want(sandbox.SnapshotDeleted, auto[0], auto[2])
}

// Pruning deletes automatic snapshots that no sandbox starts from, and a dry run lists
// them.
func TestSnapshots_Prune(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	k.create(sandbox.CreateParams{Name: "box", Timeout: sandbox.Duration(sandboxtest.MaxTimeout)})
	made := k.snapshot("box", sandbox.SnapshotParams{})
	old := k.stopChanged("box")
	k.create(sandbox.CreateParams{Name: "other", Snapshot: old})
	next := k.stopChanged("box")
	k.Clock.Advance(time.Hour)
	newer := k.stopChanged("box")
	last := k.stopChanged("box")
	prune := func(p sandbox.PruneSnapshotsParams, want ...string) {
		t.Helper()
		got := checktest.Must(k.PruneSnapshots(k.ctx, p))(t)
		var ids []string
		var bytes int64
		for _, s := range got.Snapshots {
			ids = append(ids, s.ID)
			bytes += s.SizeBytes
		}
		if !slices.Equal(ids, want) || got.Count != len(want) || got.SizeBytes != bytes {
			t.Errorf("pruning %+v is of %+v, want %v", p, got, want)
		}
	}
	hour := sandbox.Duration(time.Hour)
	prune(sandbox.PruneSnapshotsParams{DryRun: true}, next, newer)
	prune(sandbox.PruneSnapshotsParams{DryRun: true, OlderThan: hour}, next)
	k.want(sandbox.SnapshotCreated, made.ID, old, next, newer, last)
	k.Accounts.Set(account.DefaultTeam, account.Quota{SnapshotMB: 1})
	k.fillQuota("box")
	_, err := k.CreateSnapshot(k.ctx, "box", sandbox.SnapshotParams{})
	if checktest.Code(t, err, cay.QuotaExceeded); !strings.Contains(hintOf(err), "3 old snapshots") {
		t.Errorf("the refusal does not say what is old: %v, %q", err, hintOf(err))
	}
	prune(sandbox.PruneSnapshotsParams{OlderThan: hour}, next)
	k.wakeUp()
	k.want(sandbox.SnapshotDeleted, next)
	k.want(sandbox.SnapshotCreated, made.ID, old, newer, last)
	prune(sandbox.PruneSnapshotsParams{}, newer, last) // the box starts from a newer snapshot
	k.wakeUp()
	k.want(sandbox.SnapshotDeleted, newer, last)
	k.want(sandbox.SnapshotCreated, made.ID, old)
	prune(sandbox.PruneSnapshotsParams{})

	// Other teams' snapshots are not pruned.
	stranger := sandboxtest.As(t.Context(), sandboxtest.TeamB)
	if got, err := k.PruneSnapshots(stranger, sandbox.PruneSnapshotsParams{ProjectID: "*", DryRun: true}); err == nil && got.Count != 0 {
		t.Errorf("another team prunes %+v", got)
	}
	_, err = k.PruneSnapshots(k.ctx, sandbox.PruneSnapshotsParams{OlderThan: sandbox.Duration(time.Second)})
	checktest.Code(t, err, cay.Invalid)
}

// fillQuota makes a snapshot of more than 1 MiB.
func (k *janitor) fillQuota(ref string) {
	k.t.Helper()
	if _, err := k.WriteFile(k.ctx, ref, "large", io.LimitReader(rand.Reader, 2<<20), sandbox.WriteParams{}); err != nil {
		k.t.Fatal(err)
	}
	k.snapshot(ref, sandbox.SnapshotParams{})
}

func hintOf(err error) string {
	if e, ok := errors.AsType[*cay.Error](err); ok {
		return e.Hint
	}
	return ""
}

func containsAll(all, some []string) bool {
	for _, s := range some {
		if !slices.Contains(all, s) {
			return false
		}
	}
	return true
}

// export returns a snapshot as a file.
func (k *janitor) export(id string) []byte {
	k.t.Helper()
	r, err := k.ExportSnapshot(k.ctx, id)
	if err != nil {
		k.t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		k.t.Fatal(err)
	}
	return b
}

// Files without a row are removed when they are old enough, and rows without files are
// marked.
func TestSnapshots_Sweep(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	lost, kept := k.expiring(0), k.expiring(0)
	archive := k.export(lost.ID)
	stray := func(id string) {
		t.Helper()
		if _, err := k.Config.Snapshots.Import(k.ctx, bytes.NewReader(archive), snapshot.ImportParams{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	there := func(id string) bool {
		t.Helper()
		s, err := k.Config.Snapshots.Open(k.ctx, id)
		if err == nil {
			s.Close()
		}
		if err != nil && cay.CodeOf(err) != cay.NotFound {
			t.Error(err)
		}
		return err == nil
	}
	stray("snap_young")
	k.restart(func() {
		if err := k.Config.Snapshots.Delete(k.ctx, lost.ID); err != nil {
			t.Fatal(err)
		}
	})
	k.wakeUp()
	if !there("snap_young") {
		t.Error("files that are about to have a row were removed")
	}
	k.want(sandbox.SnapshotCreated, kept.ID)
	for what, f := range map[string]func() error{
		"create": func() error {
			_, err := k.Create(k.ctx, sandbox.CreateParams{Snapshot: lost.ID})
			return err
		},
		"export": func() error { _, err := k.ExportSnapshot(k.ctx, lost.ID); return err },
	} {
		var e *cay.Error
		if err := f(); cay.CodeOf(err) != cay.Conflict || !errors.As(err, &e) || !strings.Contains(e.Message, "missing") || !strings.Contains(e.Hint, "backup") {
			t.Errorf("%s from a snapshot without files: %v", what, err)
		}
	}

	// Files restored from a backup are found again.
	k.Config.Limits.SnapshotGrace = time.Nanosecond
	k.restart(func() { stray(lost.ID) })
	k.wakeUp()
	k.want(sandbox.SnapshotCreated, lost.ID, kept.ID)
	if there("snap_young") {
		t.Error("files without a row are still there")
	}
	if _, err := k.Create(k.ctx, sandbox.CreateParams{Snapshot: lost.ID}); err != nil {
		t.Error(err)
	}
	// While the engine runs, a deletion triggers the removal of stray files.
	k.wakeUp()
	stray("snap_old")
	k.pass(time.Hour)
	if there("snap_old") {
		t.Error("files without a row are still there")
	}
	// A snapshot without files can still be deleted.
	if err := k.Config.Snapshots.Delete(k.ctx, lost.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := k.DeleteSnapshot(k.ctx, lost.ID, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Error(err)
	}
	k.want(sandbox.SnapshotDeleted, lost.ID)
}

// S9: the start of a sandbox from a snapshot succeeds even if the snapshot is deleted
// meanwhile.
func TestSnapshots_DeletedWhileStarting(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	box := k.create(sandbox.CreateParams{Persistent: ephemeral})
	if _, err := k.WriteFile(k.ctx, box.ID, "f", strings.NewReader("kept"), sandbox.WriteParams{Size: 4}); err != nil {
		t.Fatal(err)
	}
	s := k.snapshot(box.ID, sandbox.SnapshotParams{})
	opened, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	k.Reached(func(point string) {
		if point == "images" {
			once.Do(func() {
				close(opened)
				<-goOn
			})
		}
	})
	var other *sandbox.Sandbox
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if other, err = k.Create(k.ctx, sandbox.CreateParams{Snapshot: s.ID, Persistent: ephemeral}); err != nil {
			t.Error(err)
		}
	})
	<-opened
	if _, err := k.DeleteSnapshot(k.ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Error(err)
	}
	k.want(sandbox.SnapshotDeleted, s.ID)
	close(goOn)
	wg.Wait()
	if t.Failed() {
		return
	}
	r, _, err := k.ReadFile(k.ctx, other.ID, "f", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != "kept" || err != nil {
		t.Errorf("it has %q, %v", b, err)
	}
}

// unknownImages is an ImageSource that lacks some images.
type unknownImages struct {
	sandboxd.ImageSource
	mu      sync.Mutex
	unknown map[string]bool // guarded by mu
}

func (i *unknownImages) check(ref string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.unknown[ref] {
		return cay.Errorf(cay.NotFound, "image %q not found", ref)
	}
	return nil
}

func (i *unknownImages) Ensure(ctx context.Context, teamID, ref string) (*sandboxd.Lease, error) {
	if err := i.check(ref); err != nil {
		return nil, err
	}
	return i.ImageSource.Ensure(ctx, teamID, ref)
}

func (i *unknownImages) Lease(ctx context.Context, digest string) (*sandboxd.Lease, error) {
	if err := i.check(digest); err != nil {
		return nil, err
	}
	return i.ImageSource.Lease(ctx, digest)
}

func (i *unknownImages) forget(digest string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.unknown[digest] = true
}

func TestSnapshots_ImportUnknownImage(t *testing.T) {
	t.Parallel()
	images := &unknownImages{unknown: map[string]bool{}}
	k := startJanitor(t, func(c *sandboxd.Config) { images.ImageSource, c.Images = c.Images, images })
	s := k.expiring(0)
	archive := k.export(s.ID)
	images.forget(s.Digest)
	_, err := k.ImportSnapshot(k.ctx, bytes.NewReader(archive), sandbox.ImportParams{})
	var e *cay.Error
	if cay.CodeOf(err) != cay.NotFound || !errors.As(err, &e) || !strings.Contains(e.Message, `"debian"`) || !strings.Contains(e.Message, s.Digest) || e.Hint == "" {
		t.Errorf("the snapshot of an unknown image: %v", err)
	}
}

// An operator may ask for memory, and gets the files if there is none.
func TestSnapshots_ImportByOperator(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	archive := k.export(k.expiring(0).ID)
	ctx := sandboxtest.As(t.Context(), api.Principal{TokenID: "tok_admin", TeamID: account.DefaultTeam, Admin: true})
	s, err := k.ImportSnapshot(ctx, bytes.NewReader(archive), sandbox.ImportParams{Memory: true})
	if err != nil || s.Kind != sandbox.FilesystemSnapshot {
		t.Errorf("imported %+v, %v", s, err)
	}
}

// The size limit holds whatever size an archive states.
func TestSnapshots_ImportTooLarge(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	archive := k.export(k.expiring(0).ID)
	k.Config.Limits.MaxSnapshotBytes = 1000
	k.restart(func() {})
	if _, err := k.ImportSnapshot(k.ctx, bytes.NewReader(archive), sandbox.ImportParams{}); cay.CodeOf(err) != cay.TooLarge {
		t.Errorf("an archive of %d bytes: %v", len(archive), err)
	}
}

func TestSnapshots_ExportEndsWithEngine(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	box := k.create(sandbox.CreateParams{Persistent: ephemeral})
	if _, err := k.WriteFile(k.ctx, box.ID, "f", bytes.NewReader(make([]byte, 4<<20)), sandbox.WriteParams{Size: 4 << 20}); err != nil {
		t.Fatal(err)
	}
	r, err := k.ExportSnapshot(k.ctx, k.snapshot(box.ID, sandbox.SnapshotParams{}).ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	k.Restart(t) // does not wait for readers
	if _, err := io.Copy(io.Discard, r); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("the export ended with %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// R19, R20: with a full disk, running sandboxes go on, and no new work begins.
func TestSnapshots_DiskFull(t *testing.T) {
	t.Parallel()
	var full sync.Map // has the key "disk" while the disk is full
	room := func() error {
		if _, is := full.Load("disk"); is {
			return cay.Errorf(cay.NoSpace, "the host's disk is full")
		}
		return nil
	}
	k := startJanitor(t, func(c *sandboxd.Config) {
		dir, err := blob.OpenDir(filepath.Join(t.TempDir(), "snapshots"), blob.DirOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Snapshots, c.CheckSpace = snapshot.New(fullStore{dir, room}), room
	})
	box := k.create(sandbox.CreateParams{Name: "box", Timeout: sandbox.Duration(sandboxtest.MaxTimeout)})
	s := k.snapshot("box", sandbox.SnapshotParams{})
	rested := k.create(sandbox.CreateParams{Name: "rested"})
	if _, err := k.Stop(k.ctx, "rested"); err != nil {
		t.Fatal(err)
	}
	archive := k.export(s.ID)
	full.Store("disk", true)
	for what, f := range map[string]func() error{
		"create": func() error { _, err := k.Create(k.ctx, sandbox.CreateParams{}); return err },
		"resume": func() error { _, err := k.Resume(k.ctx, rested.ID, sandbox.ResumeParams{}); return err },
		"save":   func() error { _, err := k.CreateSnapshot(k.ctx, "box", sandbox.SnapshotParams{}); return err },
		"import": func() error {
			_, err := k.ImportSnapshot(k.ctx, bytes.NewReader(archive), sandbox.ImportParams{})
			return err
		},
	} {
		if err := f(); cay.CodeOf(err) != cay.NoSpace {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := k.Stat(k.ctx, box.ID, ".", true); err != nil {
		t.Errorf("what runs does not answer: %v", err)
	}
	if got, err := k.Get(k.ctx, "rested"); err != nil || got.Status != sandbox.Stopped {
		t.Errorf("what was not resumed is %+v, %v", got, err)
	}
	full.Clear()
	if _, err := k.Resume(k.ctx, "rested", sandbox.ResumeParams{}); err != nil {
		t.Error(err)
	}
	second := k.snapshot("box", sandbox.SnapshotParams{})
	k.want(sandbox.SnapshotCreated, s.ID, second.ID)
}

// fullStore is a store that has space only if room returns nil.
type fullStore struct {
	blob.Store
	room func() error
}

func (s fullStore) Create(ctx context.Context, size int64) (blob.Draft, error) {
	if err := s.room(); err != nil {
		return nil, err
	}
	return s.Store.Create(ctx, size)
}

func TestSnapshots_NeedsImage(t *testing.T) {
	t.Parallel()
	k := startJanitor(t)
	box := k.create(sandbox.CreateParams{Image: "custom", Persistent: ephemeral})
	named := k.create(sandbox.CreateParams{Name: "named", Image: "other"})
	check := func(want map[string]bool) {
		t.Helper()
		got := map[string]bool{}
		for digest := range want {
			needed, err := k.NeedsImage(k.ctx, digest)
			if err != nil {
				t.Fatal(err)
			}
			got[digest] = needed
		}
		if !maps.Equal(got, want) {
			t.Errorf("needed are %v, want %v", got, want)
		}
	}
	check(map[string]bool{box.Digest: true, named.Digest: true, "sha256:x": false})
	s := k.snapshot(box.ID, sandbox.SnapshotParams{})
	for _, id := range []string{box.ID, named.ID} {
		if _, err := k.Stop(k.ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	check(map[string]bool{box.Digest: true, named.Digest: true})
	if _, err := k.DeleteSnapshot(k.ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Fatal(err)
	}
	check(map[string]bool{box.Digest: false, named.Digest: true})
}
