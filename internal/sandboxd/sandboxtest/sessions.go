package sandboxtest

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// saver is a user of saved files.
type saver struct {
	*user
	sandboxd.Snapshots
}

func setupSaver(t *testing.T, cfg Config) saver {
	t.Helper()
	return setup(t, cfg).saver()
}

func (u *user) saver() saver {
	u.t.Helper()
	s, ok := u.Service.(sandboxd.Snapshots)
	if !ok {
		u.t.Fatalf("%T saves nothing", u.Service)
	}
	return saver{u, s}
}

func (u saver) snapshot(ref string, p sandbox.SnapshotParams) *sandbox.Snapshot {
	u.t.Helper()
	s, err := u.CreateSnapshot(u.ctx, ref, p)
	if err != nil {
		u.t.Fatalf("snapshot of %s: %v", ref, err)
	}
	return s
}

func (u saver) sessions(ref string) []sandbox.Session {
	u.t.Helper()
	page, err := u.Sessions(u.ctx, ref, sandbox.SessionParams{})
	if err != nil {
		u.t.Fatalf("sessions of %s: %v", ref, err)
	}
	return page.Items
}

func (u *user) resume(ref string) *sandbox.Sandbox {
	u.t.Helper()
	s, err := u.Resume(u.ctx, ref, sandbox.ResumeParams{})
	if err != nil {
		u.t.Fatalf("resume %s: %v", ref, err)
	}
	return s
}

var yes, no = new(true), new(false)

func testSessions(t *testing.T, cfg Config) {
	for name, f := range map[string]func(*testing.T, Config){
		"Persistent":         testPersistent,
		"NotPersistent":      testNotPersistent,
		"CallsResume":        testCallsResume,
		"OneResume":          testOneResume,
		"StopDuringResume":   testStopDuringResume,
		"Timeout":            testTimeoutSaves,
		"FailedGoesBack":     testFailedGoesBack,
		"NextSession":        testNextSession,
		"Totals":             testTotals,
		"Delete":             testDeletePersistent,
		"QuotaOfResume":      testQuotaOfResume,
		"CreateSnapshot":     testCreateSnapshot,
		"SnapshotAndStop":    testSnapshotAndStop,
		"CreateFromSnapshot": testCreateFromSnapshot,
		"Hibernate":          testHibernate,
		"HibernatedStops":    testHibernatedStops,
		"WokenFails":         testWokenFails,
		"MemorySnapshot":     testMemorySnapshot,
		"All":                testAllSessions,
		"Annotations":        testAnnotations,
		"Fresh":              testAnew,
		"AnewFailed":         testAnewFailed,
		"OneAnew":            testOneAnew,
		"ForcedSnapshot":     testForcedSnapshot,
		"Runtime":            testChangeRuntime,
		"StatusAt":           testStatusAt,
		"Unchanged":          testUnchanged,
		"SaveEvery":          testSaveEvery,
		"DeletedWith":        testDeletedWith,
	} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

func testPersistent(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	if !s.Persistent || s.SnapshotID != "" || !strings.HasPrefix(s.SessionID, "ses_") {
		t.Fatalf("new sandbox with a name: %+v", s)
	}
	u.sh(s.ID, "echo one > kept; ln -s kept link; chmod 4751 kept; truncate -s 1M sparse")
	stopped := u.stop(s.ID)
	wantStatus(t, stopped, sandbox.Stopped, sandbox.ReasonRequested)
	if stopped.SnapshotID == "" || stopped.SessionID != s.SessionID {
		t.Fatalf("stopped: %+v", stopped)
	}
	if again := u.stop(s.ID); again.SnapshotID != stopped.SnapshotID {
		t.Errorf("stopping a stopped sandbox saved it again")
	}
	snap, err := u.GetSnapshot(u.ctx, stopped.SnapshotID)
	if err != nil {
		t.Fatal(err)
	}
	if !snap.Automatic || snap.Kind != sandbox.FilesystemSnapshot || snap.SandboxID != s.ID || snap.SessionID != s.SessionID || snap.ParentID != "" ||
		snap.Status != sandbox.SnapshotCreated || snap.SizeBytes == 0 || snap.ExpiresAt == nil {
		t.Errorf("automatic snapshot: %+v", snap)
	}
	resumed := u.resume(s.ID)
	wantStatus(t, resumed, sandbox.Running, "")
	if resumed.SessionID == s.SessionID || resumed.StoppedAt != nil || resumed.ExpiresAt == nil {
		t.Errorf("resumed: %+v", resumed)
	}
	if got := u.sh(s.ID, "cat link; stat -c %a,%s kept sparse"); got != "one\n4751,4\n644,1048576\n" {
		t.Errorf("after the resume: %q", got)
	}
	u.sh(s.ID, "echo two > kept")
	second := u.stop(s.ID)
	all := u.sessions(s.ID)
	if len(all) != 2 || all[0].SourceID != stopped.SnapshotID || all[0].SnapshotID != second.SnapshotID || all[1].ID != s.SessionID ||
		all[1].SnapshotID != stopped.SnapshotID || all[1].Status != sandbox.Stopped || all[1].Reason != sandbox.ReasonRequested || all[1].StoppedAt == nil {
		t.Errorf("sessions: %+v", all)
	}
	if snap, err = u.GetSnapshot(u.ctx, second.SnapshotID); err != nil || snap.ParentID != stopped.SnapshotID {
		t.Errorf("second snapshot %+v, %v", snap, err)
	}
	if got := u.sh(s.ID, "cat kept"); got != "two\n" {
		t.Errorf("after the second resume: %q", got)
	}
}

func testNotPersistent(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	for name, p := range map[string]sandbox.CreateParams{"no name": {}, "opted out": {Name: "away", Persistent: no}} {
		s := u.create(p)
		if s.Persistent {
			t.Errorf("%s: it is persistent", name)
		}
		if stopped := u.stop(s.ID); stopped.SnapshotID != "" {
			t.Errorf("%s: it was saved in %s", name, stopped.SnapshotID)
		}
		_, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
		checktest.Code(t, err, cay.Stopped)
		_, err = u.Exec(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
		checktest.Code(t, err, cay.Stopped)
	}
	s := u.create(sandbox.CreateParams{Persistent: yes})
	if stopped := u.stop(s.ID); stopped.SnapshotID == "" {
		t.Error("a sandbox without a name that is to be persistent was not saved")
	}
}

func testCallsResume(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	c := u.start(s.ID, "true")
	for name, call := range map[string]func() error{
		"exec": func() error { u.sh(s.ID, "true"); return nil },
		"start": func() error {
			_, err := u.Start(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
			return err
		},
		"file": func() error { _, err := u.Stat(u.ctx, s.ID, "/", true); return err },
	} {
		u.stop(s.ID)
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantStatus(t, u.get(s.ID), sandbox.Running, "")
	}
	u.stop(s.ID)
	// Calls about earlier commands start no session.
	if _, err := u.GetCommand(u.ctx, s.ID, c.ID); err != nil {
		t.Error(err)
	}
	if _, err := u.ListCommands(u.ctx, s.ID); err != nil {
		t.Error(err)
	}
	checktest.Code(t, u.Signal(u.ctx, s.ID, c.ID, 9), cay.Stopped)
	wantStatus(t, u.get(s.ID), sandbox.Stopped, sandbox.ReasonRequested)
}

// testOneResume tests row S12 of the attacks.
func testOneResume(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.stop(s.ID)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				_, err = u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
			case 1:
				_, err = u.Stat(u.ctx, "kept", "/", true)
			default:
				_, err = u.Start(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
			}
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if all := u.sessions(s.ID); len(all) != 2 {
		t.Errorf("%d sessions, want 2", len(all))
	}
}

func testStopDuringResume(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.sh(s.ID, "echo one > kept")
	u.stop(s.ID)
	for range 3 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); err != nil && cay.CodeOf(err) != cay.Stopped {
				t.Errorf("resume: %v", err)
			}
		})
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Errorf("stop: %v", err)
		}
		wg.Wait()
	}
	u.stop(s.ID)
	if got := u.sh(s.ID, "cat kept"); got != "one\n" {
		t.Errorf("its file is %q", got)
	}
}

func testTimeoutSaves(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Clock == nil {
		t.Skip("time is real")
	}
	s := u.create(sandbox.CreateParams{Name: "kept", Timeout: sandbox.Duration(time.Minute)})
	u.sh(s.ID, "echo one > kept")
	if _, err := u.Extend(u.ctx, s.ID, sandbox.Duration(time.Minute)); err != nil {
		t.Fatal(err)
	}
	ended := u.ending(s.ID)
	u.env.pass(2 * time.Minute)
	stopped := ended()
	wantStatus(t, stopped, sandbox.Stopped, sandbox.ReasonTimeout)
	if stopped.SnapshotID == "" {
		t.Fatal("it was not saved")
	}
	if got := u.sh(s.ID, "cat kept"); got != "one\n" {
		t.Errorf("its file is %q", got)
	}
	if got := u.get(s.ID); time.Duration(got.Timeout) != time.Minute {
		t.Errorf("the timeout of the new session is %v, want the one asked for", got.Timeout)
	}
}

func testFailedGoesBack(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Kill == nil {
		t.Skip("machines cannot be killed")
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.sh(s.ID, "echo one > kept")
	u.snapshot(s.ID, sandbox.SnapshotParams{})
	u.sh(s.ID, "echo two > kept")
	ended := u.ending(s.ID)
	u.env.Kill(t, s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed, Message: "so it goes"})
	wantStatus(t, ended(), sandbox.Failed, sandbox.ReasonCrashed)
	if got := u.sh(s.ID, "cat kept"); got != "one\n" {
		t.Errorf("its file is %q, want what was saved last", got)
	}
	if all := u.sessions(s.ID); len(all) != 2 || all[1].Status != sandbox.Failed || all[1].Reason != sandbox.ReasonCrashed {
		t.Errorf("sessions %+v", all)
	}
}

// A running sandbox is saved if its files have changed, each save takes the place of the one
// before, and a machine that ends by a fault loses no more than what came after the last.
func testSaveEvery(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Kill == nil || u.env.Clock == nil {
		t.Skip("machines cannot be killed, or time is real")
	}
	const every = 77 * time.Second // no other timer's
	s := u.create(sandbox.CreateParams{Name: "kept", Timeout: minutes(60), SaveEvery: sandbox.Duration(every)})
	if got := u.get(s.ID).SaveEvery; got != sandbox.Duration(every) {
		t.Errorf("it is to be saved every %v", got)
	}
	pass := func() (saved string) {
		t.Helper()
		u.env.Clock.AwaitTimer(t, every)
		u.env.Clock.Advance(every)
		u.env.Clock.AwaitTimer(t, every) // it is set again after the save
		return u.get(s.ID).SnapshotID
	}
	u.sh(s.ID, "echo one > kept")
	first := pass()
	if first == "" {
		t.Fatal("nothing was saved")
	}
	if again := pass(); again != first {
		t.Errorf("saved again as %s, and nothing had changed", again)
	}
	client := u.snapshot(s.ID, sandbox.SnapshotParams{}) // stays
	u.sh(s.ID, "echo two > kept")
	second := pass()
	u.sh(s.ID, "echo three > kept")
	third := pass()
	for u.ctx.Err() == nil { // the snapshots before are deleted in the background
		if got := u.snapshots(sandbox.SnapshotListParams{Sandbox: s.ID}); slices.Equal(got, []string{third, client.ID}) {
			break
		} else if !slices.Contains(got, third) || !slices.Contains(got, client.ID) || third == second {
			t.Fatalf("there are the snapshots %q, want %s and %s", got, third, client.ID)
		}
	}
	u.sh(s.ID, "echo four > kept")
	ended := u.ending(s.ID)
	u.env.Kill(t, s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed})
	wantStatus(t, ended(), sandbox.Failed, sandbox.ReasonCrashed)
	if got := u.sh(s.ID, "cat kept"); got != "three\n" {
		t.Errorf("its file is %q, want what was saved last", got)
	}
	// The save of a stop is another one, and stays if nothing has changed since.
	u.sh(s.ID, "echo five > kept")
	fourth := pass()
	stopped, err := u.Stop(u.ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if stopped.SnapshotID != fourth {
		t.Errorf("the stop left %s, and nothing had changed since %s", stopped.SnapshotID, fourth)
	}
	u.sh(s.ID, "echo six > kept")
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{SaveEvery: new(sandbox.Duration)}); err != nil {
		t.Fatal(err)
	}
	u.env.Clock.Advance(5 * every)
	got := u.get(s.ID)
	if got.SaveEvery != 0 || got.SnapshotID != fourth {
		t.Errorf("saved every %v as %s after the saves were turned off", got.SaveEvery, got.SnapshotID)
	}
}

func testNextSession(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept", Env: map[string]string{"A": "1"}, VCPUs: 1, MemoryMB: 512})
	vcpus, memory, timeout := 0.5, int64(768), sandbox.Duration(7*time.Minute)
	p := sandbox.UpdateParams{Env: map[string]string{"B": "2"}, VCPUs: &vcpus, MemoryMB: &memory, Timeout: &timeout}
	now, err := u.Update(u.ctx, s.ID, p)
	if err != nil {
		t.Fatal(err)
	}
	if now.VCPUs != 1 || now.MemoryMB != 512 || now.Env["A"] != "1" || now.Timeout != s.Timeout {
		t.Errorf("the session that runs changed: %+v", now)
	}
	if n := now.Next; s.Next != nil || n == nil || *n.VCPUs != vcpus || *n.MemoryMB != memory || *n.Timeout != timeout || n.Env["B"] != "2" || n.Mounts != nil {
		t.Errorf("what its next session is to have: %+v", n)
	}
	u.stop(s.ID)
	policy := sandbox.Network{Mode: sandbox.DenyAll}
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &policy, Tags: map[string]string{"t": "v"}}); err != nil {
		t.Fatalf("update of a stopped sandbox: %v", err)
	}
	next := u.resume(s.ID)
	if next.VCPUs != 0.5 || next.MemoryMB != 768 || next.Env["B"] != "2" || next.Env["A"] != "" || next.Timeout != timeout ||
		next.Network.Mode != sandbox.DenyAll || next.Tags["t"] != "v" || next.Next != nil {
		t.Errorf("the next session is %+v", next)
	}
	if got := u.sh(s.ID, "echo $A$B"); got != "2\n" {
		t.Errorf("its environment has %q", got)
	}
	// A sandbox that is no longer persistent.
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Persistent: no}); err != nil {
		t.Fatal(err)
	}
	before := u.get(s.ID).SnapshotID
	if stopped := u.stop(s.ID); stopped.SnapshotID != before {
		t.Error("it was saved all the same")
	}
	_, err = u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
	checktest.Code(t, err, cay.Stopped)
}

func testTotals(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Clock == nil {
		t.Skip("time is real")
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.env.pass(10 * time.Second)
	first := u.stop(s.ID)
	u.resume(s.ID)
	u.env.pass(5 * time.Second)
	got := u.get(s.ID)
	if want := first.Usage.WallTime + got.Usage.WallTime; got.Total.WallTime != want || time.Duration(want) != 15*time.Second {
		t.Errorf("total %v, want %v of %v and %v", got.Total.WallTime, want, first.Usage.WallTime, got.Usage.WallTime)
	}
}

func testDeletePersistent(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	if err := u.Delete(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	page, err := u.ListSnapshots(u.ctx, sandbox.SnapshotListParams{})
	if err != nil || len(page.Items) != 0 {
		t.Errorf("deleting it saved it: %+v, %v", page, err)
	}
	again := u.create(sandbox.CreateParams{Name: "kept"})
	stopped := u.stop(again.ID)
	if err := u.Delete(u.ctx, again.ID); err != nil {
		t.Fatal(err)
	}
	if snap, err := u.GetSnapshot(u.ctx, stopped.SnapshotID); err != nil || snap.Status != sandbox.SnapshotDeleted {
		t.Errorf("its automatic snapshot is %+v, %v; it goes with the sandbox", snap, err)
	}
}

// Automatic snapshots are deleted with their sandbox, unless another sandbox starts from
// them or KeepSnapshots is set; snapshots made by callers stay.
func testDeletedWith(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	for _, keep := range []bool{false, true} {
		s := u.create(sandbox.CreateParams{Name: "kept"})
		u.sh(s.ID, "echo one > f")
		first := u.stop(s.ID).SnapshotID
		other := u.create(sandbox.CreateParams{Name: "other", Snapshot: first})
		u.resume(s.ID)
		u.sh(s.ID, "echo two > f")
		made := u.snapshot(s.ID, sandbox.SnapshotParams{})
		u.sh(s.ID, "echo three > f")
		last := u.stop(s.ID).SnapshotID
		if err := u.DeleteWith(u.ctx, s.ID, sandbox.DeleteParams{KeepSnapshots: keep}); err != nil {
			t.Fatal(err)
		}
		gone := sandbox.SnapshotDeleted
		if keep {
			gone = sandbox.SnapshotCreated
		}
		for id, want := range map[string]sandbox.SnapshotStatus{first: sandbox.SnapshotCreated, made.ID: sandbox.SnapshotCreated, last: gone} {
			if snap, err := u.GetSnapshot(u.ctx, id); err != nil || snap.Status != want {
				t.Errorf("keep %v: snapshot %s is %+v, %v; want it %s", keep, id, snap, err, want)
			}
		}
		if err := u.Delete(u.ctx, other.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// A stop keeps the snapshot that a session started from if the session has changed no
// file, and makes a new one after any change. A sandbox started from the kept snapshot
// has all the files.
func testUnchanged(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept", Retention: &sandbox.Retention{Keep: 100}})
	u.sh(s.ID, `umask 022; mkdir d; echo one > d/f; ln d/f hard; ln -s d/f sym; dd if=/dev/zero of=zeros bs=4096 count=3 2>/dev/null; mkdir gone; touch -d 2020-01-02 old`)
	last := u.stop(s.ID).SnapshotID
	for range 2 {
		u.resume(s.ID)
		if got := u.sh(s.ID, "cat hard sym"); got != "one\none\n" {
			t.Fatalf("it has %q", got)
		}
		if now := u.stop(s.ID).SnapshotID; now != last {
			t.Errorf("a session that only read files was saved as %s, instead of keeping %s", now, last)
		}
	}
	if ids := u.snapshots(sandbox.SnapshotListParams{Sandbox: s.ID}); len(ids) != 1 {
		t.Errorf("its snapshots: %v", ids)
	}
	if all := u.sessions(s.ID); all[0].SourceID != last || all[0].SnapshotID != last {
		t.Errorf("the session that changed nothing: %+v", all[0])
	}
	for _, change := range []string{
		"touch new", "mkdir newdir", "echo two > d/f", `echo x >> d/f`, "chmod 600 d/f", "chmod 700 d", "rm sym", "ln -sfn other hard2", "rmdir gone",
		"rm hard", "mv old older", "touch -d 2021-01-02 older", "printf x | dd of=zeros bs=1 seek=5000 conv=notrunc 2>/dev/null", "truncate -s 4K zeros",
	} {
		u.resume(s.ID)
		u.sh(s.ID, change)
		now := u.stop(s.ID).SnapshotID
		if now == last {
			t.Errorf("%q was not saved", change)
		}
		last = now
	}
	// A sandbox started from the snapshot gets its policy, which must be that of the
	// stopped sandbox.
	u.resume(s.ID)
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.DenyAll}}); err != nil {
		t.Fatal(err)
	}
	now := u.stop(s.ID).SnapshotID
	if now == last {
		t.Error("another network policy was not saved")
	}
	last = now
	if started := u.create(sandbox.CreateParams{Snapshot: last}); started.Network.Mode != sandbox.DenyAll {
		t.Errorf("what starts from its snapshot has the network %s", started.Network.Mode)
	}
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Retention: &sandbox.Retention{All: true, EachStop: true}}); err != nil {
		t.Fatal(err)
	}
	u.resume(s.ID)
	if now := u.stop(s.ID).SnapshotID; now == last {
		t.Error("it was not saved at a stop, with a retention that wants each stop saved")
	}
}

func testQuotaOfResume(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.SetQuota == nil {
		t.Skip("this service has no quotas to set")
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.stop(s.ID)
	u.env.SetQuota(Default.TeamID, account.Quota{Sandboxes: 1})
	other := u.create(sandbox.CreateParams{})
	_, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	wantStatus(t, u.get(s.ID), sandbox.Stopped, sandbox.ReasonRequested)
	u.stop(other.ID)
	wantStatus(t, u.resume(s.ID), sandbox.Running, "")
}

func testCreateSnapshot(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{})
	u.sh(s.ID, "echo one > kept")
	expire := sandbox.Duration(time.Hour)
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{Name: "first", Expiration: &expire})
	if snap.Automatic || snap.Name != "first" || snap.SandboxName != s.Name || snap.Build == "" || snap.ExpiresAt == nil ||
		snap.ExpiresAt.Sub(snap.CreatedAt) != time.Hour || snap.Digest != s.Digest || snap.Runtime != s.Runtime {
		t.Errorf("snapshot %+v", snap)
	}
	got := u.get(s.ID)
	wantStatus(t, got, sandbox.Running, "")
	if got.SnapshotID != snap.ID {
		t.Errorf("the next session starts from %q, want %s", got.SnapshotID, snap.ID)
	}
	u.sh(s.ID, "cat kept")
	_, err := u.CreateSnapshot(u.ctx, s.ID, sandbox.SnapshotParams{Name: "first"})
	checktest.Code(t, err, cay.AlreadyExists)
	second := u.snapshot(s.ID, sandbox.SnapshotParams{Name: "first", Replace: true})
	if byName, err := u.GetSnapshot(u.ctx, "first"); err != nil || byName.ID != second.ID || byName.ParentID != snap.ID {
		t.Errorf("by name: %+v, %v", byName, err)
	}
	u.stop(s.ID)
	_, err = u.CreateSnapshot(u.ctx, s.ID, sandbox.SnapshotParams{})
	checktest.Code(t, err, cay.Stopped)
}

func testSnapshotAndStop(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.sh(s.ID, "echo one > kept")
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{Stop: true})
	got := u.get(s.ID)
	wantStatus(t, got, sandbox.Stopped, sandbox.ReasonRequested)
	page, err := u.ListSnapshots(u.ctx, sandbox.SnapshotListParams{Sandbox: s.ID})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != snap.ID || got.SnapshotID != snap.ID || snap.Automatic {
		t.Errorf("it was saved as %+v, %v, want %s only", page, err, snap.ID)
	}
	if got := u.sh(s.ID, "cat kept"); got != "one\n" {
		t.Errorf("its file is %q", got)
	}
}

func testCreateFromSnapshot(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Runtime: "python3.13", DiskMB: 256, MemoryMB: 512, VCPUs: 1})
	u.sh(s.ID, "echo one > kept")
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{Name: "first", Env: map[string]string{"ADDED": "yes"}})
	u.sh(s.ID, "echo two > kept")
	for _, ref := range []string{snap.ID, "first"} {
		c := u.create(sandbox.CreateParams{Snapshot: ref})
		if c.Runtime != "python3.13" || c.DiskMB != 256 || c.MemoryMB != 512 || c.VCPUs != 1 || c.Digest != s.Digest || c.SnapshotID != snap.ID {
			t.Errorf("of the snapshot: %+v", c)
		}
		if got := u.sh(c.ID, "cat kept; echo $ADDED"); got != "one\nyes\n" {
			t.Errorf("its file and environment are %q", got)
		}
	}
	if got := u.sh(s.ID, "cat kept"); got != "two\n" {
		t.Errorf("the source's file is %q", got)
	}
	_, err := u.Create(u.ctx, sandbox.CreateParams{Snapshot: "nosuch"})
	checktest.Code(t, err, cay.NotFound)
	_, err = u.Create(u.ctx, sandbox.CreateParams{Snapshot: snap.ID, DiskMB: 128})
	checktest.Code(t, err, cay.Invalid)
	other := u.env.user(t, TeamB)
	_, err = other.Create(other.ctx, sandbox.CreateParams{Snapshot: snap.ID, ProjectID: "prj_b"})
	checktest.Code(t, err, cay.NotFound)
}

func (u saver) savesMemory() {
	u.t.Helper()
	if !u.env.SavesMemory {
		s := u.create(sandbox.CreateParams{})
		_, err := u.Hibernate(u.ctx, s.ID)
		checktest.Code(u.t, err, cay.NotSupported)
		_, err = u.CreateSnapshot(u.ctx, s.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
		checktest.Code(u.t, err, cay.NotSupported)
		wantStatus(u.t, u.get(s.ID), sandbox.Running, "")
		u.t.Skip("this service saves no memory")
	}
}

// counter is a program that counts in memory only, and reports its count when asked
// through a file.
const counter = `i=0; while :; do i=$((i+1)); if [ -e ask ]; then echo $i > told; rm ask; fi; echo $i; sleep 0.05; done`

// count asks a counter for its count.
func (u *user) count(ref string) string {
	u.t.Helper()
	return strings.TrimSpace(u.sh(ref, "rm -f told; touch ask; while [ -e ask ] || [ ! -s told ]; do sleep 0.02; done; cat told"))
}

func testHibernate(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	s := u.create(sandbox.CreateParams{})
	c := u.start(s.ID, "sh", "-c", counter)
	u.count(s.ID)
	asleep, err := u.Hibernate(u.ctx, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, asleep, sandbox.Hibernated, "")
	if again, err := u.Hibernate(u.ctx, s.ID); err != nil || again.Status != sandbox.Hibernated {
		t.Errorf("hibernating a hibernated sandbox: %+v, %v", again, err)
	}
	if page, err := u.ListSnapshots(u.ctx, sandbox.SnapshotListParams{}); err != nil || len(page.Items) != 0 {
		t.Errorf("what it is hibernated in shows: %+v, %v", page, err)
	}
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.DenyAll}}); err != nil {
		t.Errorf("update of a hibernated sandbox: %v", err)
	}
	// A call about the command wakes the sandbox: the command goes on with the same
	// output.
	out, err := u.Output(u.ctx, s.ID, c.ID, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := readAll(out)
	out.Close()
	if err != nil || !strings.HasPrefix(text, "1\n2\n") {
		t.Errorf("its output is now %.40q, %v", text, err)
	}
	awake := u.get(s.ID)
	wantStatus(t, awake, sandbox.Running, "")
	if awake.SessionID == s.SessionID || awake.Network.Mode != sandbox.DenyAll {
		t.Errorf("awake: %+v", awake)
	}
	u.count(s.ID)
	all := u.sessions(s.ID)
	if len(all) != 2 || all[1].Status != sandbox.Hibernated || all[0].SourceID != all[1].SnapshotID || all[0].SourceID == "" {
		t.Errorf("sessions %+v", all)
	}
}

func testHibernatedStops(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	for _, persistent := range []*bool{yes, no} {
		s := u.create(sandbox.CreateParams{Persistent: persistent})
		u.sh(s.ID, "echo one > kept")
		if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		stopped := u.stop(s.ID)
		wantStatus(t, stopped, sandbox.Stopped, sandbox.ReasonRequested)
		if !*persistent {
			_, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
			checktest.Code(t, err, cay.Stopped)
			continue
		}
		if got := u.sh(s.ID, "cat kept"); got != "one\n" {
			t.Errorf("its file is %q", got)
		}
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := u.Delete(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err := u.Get(u.ctx, s.ID)
	checktest.Code(t, err, cay.NotFound)
}

func testMemorySnapshot(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	s := u.create(sandbox.CreateParams{})
	c := u.start(s.ID, "sh", "-c", counter)
	u.count(s.ID)
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
	u.count(s.ID) // the program goes on
	copied := u.create(sandbox.CreateParams{Snapshot: snap.ID})
	u.count(copied.ID)
	if got, err := u.GetCommand(u.ctx, copied.ID, c.ID); err != nil || got.Exit != nil || got.SandboxID != copied.ID {
		t.Errorf("the command in the copy: %+v, %v", got, err)
	}
	host := u.sh(copied.ID, "hostname; cat /etc/machine-id")
	if host == u.sh(s.ID, "hostname; cat /etc/machine-id") {
		t.Errorf("the copy is still who it was: %q", host)
	}
	files := u.create(sandbox.CreateParams{Snapshot: snap.ID, FilesOnly: true})
	if cmds, err := u.ListCommands(u.ctx, files.ID); err != nil || len(cmds) != 0 {
		t.Errorf("of the files alone there are commands %+v, %v", cmds, err)
	}
}

// testAnew checks that a sandbox that is not persistent starts anew from its last saved
// files with Fresh, and is not resumed otherwise.
func testAnew(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	anew := func(ref string) *sandbox.Sandbox {
		t.Helper()
		s, err := u.Resume(u.ctx, ref, sandbox.ResumeParams{Fresh: true})
		if err != nil {
			t.Fatalf("resume %s anew: %v", ref, err)
		}
		return s
	}
	s := u.create(sandbox.CreateParams{Env: map[string]string{"A": "1"}})
	u.sh(s.ID, "echo lost > f")
	if got := anew(s.ID); got.SessionID != s.SessionID {
		t.Errorf("one that runs was started anew: %+v", got)
	}
	u.stop(s.ID)
	_, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
	checktest.Code(t, err, cay.Stopped)
	again := anew(s.ID)
	wantStatus(t, again, sandbox.Running, "")
	if again.SessionID == s.SessionID || again.Persistent || again.Digest != s.Digest {
		t.Errorf("anew: %+v", again)
	}
	if got := u.sh(s.ID, "ls; echo $A"); got != "1\n" {
		t.Errorf("from its image it has %q", got)
	}
	u.sh(s.ID, "echo kept > f")
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{})
	u.sh(s.ID, "echo lost > f")
	if stopped := u.stop(s.ID); stopped.SnapshotID != snap.ID {
		t.Errorf("it would start from %q, want %s", stopped.SnapshotID, snap.ID)
	}
	if third := anew(s.ID); third.SnapshotID != snap.ID {
		t.Errorf("it started from %q, want %s", third.SnapshotID, snap.ID)
	}
	if got := u.sh(s.ID, "cat f"); got != "kept\n" {
		t.Errorf("from its snapshot it has %q", got)
	}
	all := u.sessions(s.ID)
	if len(all) != 3 || all[0].SourceID != snap.ID || all[1].SourceID != "" || all[1].SnapshotID != snap.ID {
		t.Errorf("sessions %+v", all)
	}
	u.stop(s.ID)
	if _, err := u.DeleteSnapshot(u.ctx, snap.ID, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Fatal(err)
	}
	_, err = u.Resume(u.ctx, s.ID, sandbox.ResumeParams{Fresh: true})
	checktest.Code(t, err, cay.NotFound)
	if !strings.Contains(err.Error(), snap.ID) {
		t.Errorf("%q does not name the snapshot", err)
	}
	wantStatus(t, u.get(s.ID), sandbox.Stopped, sandbox.ReasonRequested)
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{SnapshotID: new("")}); err != nil {
		t.Fatal(err)
	}
	anew(s.ID)
	// A persistent sandbox is resumed as usual.
	p := u.create(sandbox.CreateParams{Name: "kept"})
	u.sh(p.ID, "echo kept > f")
	u.stop(p.ID)
	anew(p.ID)
	if got := u.sh(p.ID, "cat f"); got != "kept\n" {
		t.Errorf("a persistent sandbox has %q", got)
	}
}

func testAnewFailed(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Kill == nil {
		t.Skip("machines cannot be killed")
	}
	s := u.create(sandbox.CreateParams{})
	ended := u.ending(s.ID)
	u.env.Kill(t, s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed, Message: "so it goes"})
	wantStatus(t, ended(), sandbox.Failed, sandbox.ReasonCrashed)
	again, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{Fresh: true})
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, again, sandbox.Running, "")
	u.sh(s.ID, "true")
}

// Concurrent resumes with Fresh start one session, also while the last session is ending.
func testOneAnew(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if i == 0 {
				if _, err := u.Stop(u.ctx, s.SessionID); err != nil {
					t.Errorf("stop: %v", err)
				}
			}
			if _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{Fresh: true}); err != nil {
				t.Errorf("resume %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	wantStatus(t, u.get(s.ID), sandbox.Running, "")
	if all := u.sessions(s.ID); len(all) != 2 {
		t.Errorf("%d sessions, want 2", len(all))
	}
}

func testForcedSnapshot(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	u.sh(s.ID, "echo one > kept")
	first := u.snapshot(s.ID, sandbox.SnapshotParams{})
	u.sh(s.ID, "echo two > kept")
	second := u.stop(s.ID).SnapshotID
	_, err := u.DeleteSnapshot(u.ctx, second, sandbox.DeleteSnapshotParams{})
	checktest.Code(t, err, cay.Conflict)
	gone, err := u.DeleteSnapshot(u.ctx, second, sandbox.DeleteSnapshotParams{Force: true})
	if err != nil || gone.Status != sandbox.SnapshotDeleted {
		t.Fatalf("forced: %+v, %v", gone, err)
	}
	before := u.get(s.ID)
	for name, call := range map[string]func() error{
		"resume": func() error { _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); return err },
		"anew":   func() error { _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{Fresh: true}); return err },
		"call":   func() error { _, err := u.Stat(u.ctx, s.ID, "/", false); return err },
	} {
		err := call()
		checktest.Code(t, err, cay.NotFound)
		if !strings.Contains(err.Error(), second) {
			t.Errorf("%s: %q does not name the snapshot", name, err)
		}
	}
	if after := u.get(s.ID); after.Status != sandbox.Stopped || after.SessionID != before.SessionID {
		t.Errorf("it was %+v and is %+v", before, after)
	}
	for _, c := range []struct{ from, want string }{{first.ID, "one\n"}, {"", ""}} {
		if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{SnapshotID: &c.from}); err != nil {
			t.Fatal(err)
		}
		u.resume(s.ID)
		if got := u.sh(s.ID, "cat kept || true"); !strings.HasPrefix(got, c.want) || c.want == "" && strings.Contains(got, "one") {
			t.Errorf("from %q it has %q, want %q", c.from, got, c.want)
		}
		u.stop(s.ID)
	}
	// The snapshot of a running sandbox can be deleted, too: the sandbox is saved again.
	u.resume(s.ID)
	source := u.get(s.ID).SnapshotID
	if _, err := u.DeleteSnapshot(u.ctx, source, sandbox.DeleteSnapshotParams{Force: true}); err != nil {
		t.Fatal(err)
	}
	if stopped := u.stop(s.ID); stopped.SnapshotID == source {
		t.Error("it was not saved")
	}
	u.resume(s.ID)
}

func testChangeRuntime(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept", Runtime: "node24"})
	u.sh(s.ID, "echo one > kept")
	change := func(ref, runtime string) error {
		_, err := u.Update(u.ctx, ref, sandbox.UpdateParams{Runtime: &runtime})
		return err
	}
	checktest.Code(t, change(s.ID, "node1"), cay.Invalid)
	checktest.Code(t, change(s.ID, ""), cay.Invalid)
	if err := change(s.ID, "python3.13"); err != nil {
		t.Fatal(err)
	}
	if got := u.get(s.ID); got.Runtime != "node24" {
		t.Errorf("the session that runs has %q", got.Runtime)
	}
	u.stop(s.ID)
	next := u.resume(s.ID)
	if next.Runtime != "python3.13" {
		t.Errorf("the next session has %q", next.Runtime)
	}
	got := u.sh(s.ID, "cat kept; echo $PATH")
	if !strings.HasPrefix(got, "one\n/vercel/runtimes/python3.13/bin:") || strings.Contains(got, "node24") {
		t.Errorf("its file and PATH are %q", got)
	}
	if err := change(s.ID, "node24"); err != nil {
		t.Fatal(err)
	}
	u.stop(s.ID)
	u.resume(s.ID)
	if got := u.sh(s.ID, "cat kept; echo $PATH"); !strings.HasPrefix(got, "one\n/vercel/runtimes/node24/bin:") || strings.Contains(got, "python") {
		t.Errorf("back again its file and PATH are %q", got)
	}
	without := u.create(sandbox.CreateParams{Image: "debian", Persistent: yes})
	checktest.Code(t, change(without.ID, "node24"), cay.Invalid)
	if !u.env.SavesMemory {
		return
	}
	// Processes keep their runtime, and are not restored with another one.
	if err := change(s.ID, "python3.13"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if awake := u.resume(s.ID); awake.Runtime != "node24" {
		t.Errorf("processes go on with %q", awake.Runtime)
	}
	c := u.start(s.ID, "sleep", "1000")
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
	u.stop(s.ID)
	if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{SnapshotID: &snap.ID}); err != nil {
		t.Fatal(err)
	}
	if next := u.resume(s.ID); next.Runtime != "python3.13" {
		t.Errorf("after the processes have ended it has %q", next.Runtime)
	}
	if cmds, err := u.ListCommands(u.ctx, s.ID); err != nil || len(cmds) != 0 {
		t.Errorf("command %s goes on with another runtime: %+v, %v", c.ID, cmds, err)
	}
	if got := u.sh(s.ID, "cat kept"); got != "one\n" {
		t.Errorf("from a memory snapshot of another runtime it has %q", got)
	}
}

func testStatusAt(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Clock == nil {
		t.Skip("time is real")
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	at := func(what string, changed bool, got *sandbox.Sandbox) {
		t.Helper()
		if now := u.env.Clock.Now().UTC().Truncate(time.Millisecond); got.StatusAt.Equal(now) != changed {
			t.Errorf("%s: its status is of %v, and now it is %v", what, got.StatusAt, now)
		}
		u.env.Clock.Advance(time.Second)
	}
	at("created", true, s)
	at("read", false, u.get(s.ID))
	updated, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Tags: map[string]string{"a": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	at("updated", false, updated)
	at("stopped", true, u.stop(s.ID))
	at("resumed", true, u.resume(s.ID))
	if !u.env.NoPause {
		paused, err := u.Pause(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		at("paused", true, paused)
		at("goes on", true, u.resume(s.ID))
	}
}
