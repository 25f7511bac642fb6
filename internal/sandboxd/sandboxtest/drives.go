package sandboxtest

import (
	"errors"
	"reflect"
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

// driver is a user of drives.
type driver struct {
	*user
	sandboxd.Drives
}

func (u *user) drives() driver {
	u.t.Helper()
	d, ok := u.Service.(sandboxd.Drives)
	if !ok {
		u.t.Fatalf("%T has no drives", u.Service)
	}
	return driver{u, d}
}

func setupDrives(t *testing.T, cfg Config) driver {
	t.Helper()
	return setup(t, cfg).drives()
}

func (u driver) drive(p sandbox.CreateDriveParams) *sandbox.Drive {
	u.t.Helper()
	d, err := u.CreateDrive(u.ctx, p)
	if err != nil {
		u.t.Fatalf("create drive: %v", err)
	}
	return d
}

func (u driver) getDrive(ref string) *sandbox.Drive {
	u.t.Helper()
	d, err := u.GetDrive(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("get drive %s: %v", ref, err)
	}
	return d
}

func (u driver) save(ref string) *sandbox.Drive {
	u.t.Helper()
	d, err := u.SaveDrive(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("save drive %s: %v", ref, err)
	}
	return d
}

func (u *user) stop(ref string) *sandbox.Sandbox {
	u.t.Helper()
	s, err := u.Stop(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("stop %s: %v", ref, err)
	}
	return s
}

// driveDir is the working directory of sandboxes with drives, and the parent of their
// mount points, so that relative paths find the drives on every Runtime.
const driveDir = "/workspace"

// with creates a sandbox with drives, each given as "drive:name" or "drive:name:mode",
// and mounted in its working directory.
func (u driver) with(p sandbox.CreateParams, mounts ...string) *sandbox.Sandbox {
	u.t.Helper()
	return u.create(mounted(p, mounts...))
}

func mounted(p sandbox.CreateParams, mounts ...string) sandbox.CreateParams {
	p.WorkDir = driveDir
	for _, m := range mounts {
		f := strings.SplitN(m+"::", ":", 4)
		p.Mounts = append(p.Mounts, sandbox.Mount{Drive: f[0], Path: driveDir + "/" + f[1], Mode: sandbox.MountMode(f[2])})
	}
	return p
}

// shows checks the content of a file in a drive, as a sandbox that mounts the drive now
// sees it.
func (u driver) shows(drive, file, want string) {
	u.t.Helper()
	s := u.with(sandbox.CreateParams{}, drive+":d:read-only")
	if got := u.sh(s.ID, "cat d/"+file+" 2>/dev/null || echo none"); got != want {
		u.t.Errorf("drive %s has %q in %s, want %q", drive, got, file, want)
	}
	u.stop(s.ID)
}

func wantSays(t *testing.T, err error, says ...string) {
	t.Helper()
	text := err.Error()
	if e := (*cay.Error)(nil); errors.As(err, &e) {
		text += "; " + e.Hint
	}
	for _, s := range says {
		if !strings.Contains(text, s) {
			t.Errorf("error %q does not say %q", text, s)
		}
	}
}

func testDrives(t *testing.T, cfg Config) {
	for name, test := range map[string]func(*testing.T, Config){
		"Create":      testCreateDrive,
		"List":        testListDrives,
		"Tenancy":     testDriveTenancy,
		"Write":       testWriteDrive,
		"OneWriter":   testOneWriter,
		"Race":        testWritersRace,
		"Readers":     testDriveReaders,
		"Save":        testSaveDrive,
		"Clone":       testCloneDrive,
		"Mounts":      testDriveMounts,
		"Persistent":  testPersistentDrive,
		"Unavailable": testDriveGone,
		"Quota":       testDriveQuota,
		"Crashed":     testDriveOfCrashed,
	} {
		t.Run(name, func(t *testing.T) { test(t, cfg) })
	}
}

func testCreateDrive(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	d := u.drive(sandbox.CreateDriveParams{Name: "data"})
	if !strings.HasPrefix(d.ID, "drv_") || len(d.ID) != 24 || d.Name != "data" || d.TeamID != account.DefaultTeam || d.ProjectID != account.DefaultProject ||
		d.MaxMB != 1024 || d.SizeBytes != 0 || d.SandboxID != "" || d.ParentID != "" || d.SavedAt != nil || d.CreatedAt.IsZero() {
		t.Errorf("made %+v", d)
	}
	for _, ref := range []string{"data", d.ID} {
		if got := u.getDrive(ref); !reflect.DeepEqual(got, d) {
			t.Errorf("%s is %+v, want %+v", ref, got, d)
		}
	}
	if got := u.save("data"); !reflect.DeepEqual(got, d) {
		t.Errorf("saving a drive that nobody has made it %+v", got)
	}
	if d := u.drive(sandbox.CreateDriveParams{Name: "small", MaxMB: 16}); d.MaxMB != 16 {
		t.Errorf("it has %d MiB, want 16", d.MaxMB)
	}
	for _, c := range []struct {
		p    sandbox.CreateDriveParams
		code cay.Code
		says string
	}{
		{sandbox.CreateDriveParams{Name: "data"}, cay.AlreadyExists, `"data"`},
		{sandbox.CreateDriveParams{Name: "drv_data"}, cay.Invalid, "drv_data"},
		{sandbox.CreateDriveParams{Name: "x", MaxMB: 15}, cay.Invalid, "15"},
		{sandbox.CreateDriveParams{Name: "x", MaxMB: 1 << 40}, cay.Invalid, "maximum"},
		{sandbox.CreateDriveParams{Name: "x", ProjectID: "prj_none"}, cay.NotFound, "prj_none"},
		{sandbox.CreateDriveParams{Name: "x", From: "none"}, cay.NotFound, `"none"`},
	} {
		_, err := u.CreateDrive(u.ctx, c.p)
		checktest.Code(t, err, c.code)
		wantSays(t, err, c.says)
	}
	if err := u.DeleteDrive(u.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"data", d.ID, "drv_none"} {
		_, err := u.GetDrive(u.ctx, ref)
		checktest.Code(t, err, cay.NotFound)
		_, err = u.SaveDrive(u.ctx, ref)
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, u.DeleteDrive(u.ctx, ref), cay.NotFound)
	}
	if again := u.drive(sandbox.CreateDriveParams{Name: "data"}); again.ID == d.ID {
		t.Error("an id was used twice")
	}
}

func testListDrives(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	for _, name := range []string{"a-1", "a-2", "b-1", "a-3"} {
		u.drive(sandbox.CreateDriveParams{Name: name})
		if u.env.Clock != nil {
			u.env.Clock.Advance(time.Millisecond) // so that the newest is first
		}
	}
	for _, c := range []struct {
		p    sandbox.DriveListParams
		want []string
	}{
		{sandbox.DriveListParams{}, []string{"a-3", "b-1", "a-2", "a-1"}},
		{sandbox.DriveListParams{NamePrefix: "a-"}, []string{"a-3", "a-2", "a-1"}},
		{sandbox.DriveListParams{NamePrefix: "c"}, nil},
		{sandbox.DriveListParams{ProjectID: "*", Limit: 1}, []string{"a-3", "b-1", "a-2", "a-1"}},
		{sandbox.DriveListParams{Limit: 3}, []string{"a-3", "b-1", "a-2", "a-1"}},
		{sandbox.DriveListParams{Limit: 4}, []string{"a-3", "b-1", "a-2", "a-1"}},
	} {
		var got []string
		for p := c.p; ; {
			page, err := u.ListDrives(u.ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if p.Limit > 0 && len(page.Items) > p.Limit {
				t.Errorf("a page of %d has %d", p.Limit, len(page.Items))
			}
			for _, d := range page.Items {
				got = append(got, d.Name)
			}
			if p.Cursor = page.Next; p.Cursor == "" {
				break
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v lists %v, want %v", c.p, got, c.want)
		}
	}
	for _, p := range []sandbox.DriveListParams{{Limit: 201}, {Limit: -1}, {Cursor: "x"}, {NamePrefix: "/"}} {
		_, err := u.ListDrives(u.ctx, p)
		checktest.Code(t, err, cay.Invalid)
	}
}

func testDriveTenancy(t *testing.T, cfg Config) {
	t.Parallel()
	env := cfg.New(t)
	a, a2, team, b := env.user(t, ProjectA).drives(), env.user(t, ProjectA2).drives(), env.user(t, TeamA).drives(), env.user(t, TeamB).drives()
	d := a.drive(sandbox.CreateDriveParams{Name: "data"})
	for _, u := range []driver{a2, b} {
		for _, ref := range []string{d.ID, "data"} {
			_, err := u.GetDrive(u.ctx, ref)
			checktest.Code(t, err, cay.NotFound)
			_, err = u.SaveDrive(u.ctx, ref)
			checktest.Code(t, err, cay.NotFound)
			checktest.Code(t, u.DeleteDrive(u.ctx, ref), cay.NotFound)
		}
		page, err := u.ListDrives(u.ctx, sandbox.DriveListParams{})
		if err != nil || len(page.Items) != 0 {
			t.Errorf("others see %v, %v", page, err)
		}
	}
	for _, ref := range []string{d.ID, "data"} {
		_, err := a2.Create(a2.ctx, mounted(sandbox.CreateParams{}, ref+":d"))
		checktest.Code(t, err, cay.NotFound)
		_, err = a2.CreateDrive(a2.ctx, sandbox.CreateDriveParams{Name: "copy", From: ref})
		checktest.Code(t, err, cay.NotFound)
		// A team-wide token cannot mix projects either.
		_, err = team.Create(team.ctx, mounted(sandbox.CreateParams{ProjectID: "prj_a2"}, ref+":d"))
		checktest.Code(t, err, cay.NotFound)
		if got, err := team.GetDrive(team.ctx, ref); err != nil || got.ID != d.ID {
			t.Errorf("the team's token finds %v, %v", got, err)
		}
	}
	other := a2.drive(sandbox.CreateDriveParams{Name: "data"})
	_, err := team.GetDrive(team.ctx, "data")
	checktest.Code(t, err, cay.Conflict)
	page, err := team.ListDrives(team.ctx, sandbox.DriveListParams{})
	if err != nil || len(page.Items) != 2 {
		t.Errorf("the team's token lists %v, %v", page, err)
	}
	page, err = team.ListDrives(team.ctx, sandbox.DriveListParams{ProjectID: "prj_a2"})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != other.ID {
		t.Errorf("the team's token lists %v of a project, %v", page, err)
	}
	nobody := env.user(t, Nobody).drives()
	_, err = nobody.CreateDrive(nobody.ctx, sandbox.CreateDriveParams{Name: "x"})
	checktest.Code(t, err, cay.Unauthenticated)
	_, err = nobody.ListDrives(nobody.ctx, sandbox.DriveListParams{})
	checktest.Code(t, err, cay.Unauthenticated)
}

// Files that a sandbox writes to a drive outlive it, and are there when the drive is
// mounted next.
func testWriteDrive(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	d := u.drive(sandbox.CreateDriveParams{Name: "data", MaxMB: 64})
	s := u.with(sandbox.CreateParams{}, "data:here/deep")
	want := []sandbox.Mount{{Path: driveDir + "/here/deep", Drive: d.ID, Mode: sandbox.MountReadWrite}}
	if !slices.Equal(s.Mounts, want) || !slices.Equal(u.get(s.ID).Mounts, want) {
		t.Errorf("it has %v, want %v", s.Mounts, want)
	}
	if got := u.getDrive("data"); got.SandboxID != s.ID || got.SandboxName != s.Name || got.SavedAt != nil {
		t.Errorf("the drive of sandbox %s is %+v", s.ID, got)
	}
	u.sh(s.ID, `cd here/deep && echo one > file && chmod 640 file && ln -s file link && mkdir -p a/b && head -c 300000 /dev/urandom > a/b/big && cksum < a/b/big > sum && echo root > ../../file`)
	u.stop(s.ID)
	saved := u.getDrive("data")
	if saved.SandboxID != "" || saved.SandboxName != "" || saved.SavedAt == nil || saved.SizeBytes < 300_000 {
		t.Errorf("the drive of a stopped sandbox is %+v", saved)
	}
	next := u.with(sandbox.CreateParams{}, "data:there")
	if got := u.sh(next.ID, "cd there && cat file link && stat -c %a file && cksum < a/b/big | cmp - sum && ls -A && echo two > file"); got != "one\none\n640\na\nfile\nlink\nsum\n" {
		t.Errorf("the next sandbox finds %q", got)
	}
	// Also when the sandbox is deleted, or ends by its timeout.
	if err := u.Delete(u.ctx, next.ID); err != nil {
		t.Fatal(err)
	}
	u.shows("data", "file", "two\n")
	if u.env.Clock == nil {
		return
	}
	last := u.with(sandbox.CreateParams{Timeout: sandbox.Duration(time.Minute)}, "data:d")
	u.sh(last.ID, "echo three > d/file")
	ended := u.ending(last.ID)
	u.env.Clock.Advance(time.Minute)
	wantStatus(t, ended(), sandbox.Stopped, sandbox.ReasonTimeout)
	u.shows("data", "file", "three\n")
}

func testOneWriter(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	d := u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{Name: "first"}, "data:d")
	for _, ref := range []string{"data", d.ID} {
		for _, mode := range []string{"", ":read-write"} {
			_, err := u.Create(u.ctx, mounted(sandbox.CreateParams{Name: "second"}, ref+":x"+mode))
			checktest.Code(t, err, cay.Conflict)
			wantSays(t, err, `sandbox "first"`, `drive "data"`, "/workspace/x", "stop")
		}
	}
	if _, err := u.Get(u.ctx, "second"); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a sandbox that was refused is there: %v", err)
	}
	err := u.DeleteDrive(u.ctx, "data")
	checktest.Code(t, err, cay.Conflict)
	wantSays(t, err, `sandbox "first"`)
	// A creation that fails later releases the drive.
	u.stop(s.ID)
	_, err = u.Create(u.ctx, mounted(sandbox.CreateParams{Image: "missing"}, "data:d"))
	checktest.Code(t, err, cay.NotFound)
	if got := u.getDrive("data"); got.SandboxID != "" {
		t.Errorf("it is held by %s, which never came up", got.SandboxID)
	}
	second := u.with(sandbox.CreateParams{Name: "second"}, "data:d")
	if got := u.getDrive("data"); got.SandboxID != second.ID {
		t.Errorf("it is held by %q, want %s", got.SandboxID, second.ID)
	}
	// Two read-write mounts in one sandbox are two writers, too.
	_, err = u.Create(u.ctx, mounted(sandbox.CreateParams{}, "data:a", d.ID+":b"))
	checktest.Code(t, err, cay.Invalid)
	wantSays(t, err, "/workspace/a", "/workspace/b")
}

func testWritersRace(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	d := u.drive(sandbox.CreateDriveParams{Name: "data"})
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		have []string
	)
	for range 6 {
		wg.Go(func() {
			s, err := u.Create(u.ctx, mounted(sandbox.CreateParams{}, "data:d"))
			mu.Lock()
			defer mu.Unlock()
			switch cay.CodeOf(err) {
			case "":
				have = append(have, s.ID)
			case cay.Conflict:
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(have) != 1 || u.getDrive(d.ID).SandboxID != have[0] {
		t.Fatalf("%v have the drive, whose writer is %q", have, u.getDrive(d.ID).SandboxID)
	}
	// Concurrent saves while the sandbox stops: the last content that it wrote remains.
	u.sh(have[0], "echo last > d/file")
	for range 3 {
		wg.Go(func() {
			if _, err := u.SaveDrive(u.ctx, d.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Go(func() {
		if _, err := u.Stop(u.ctx, have[0]); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
	if got := u.getDrive(d.ID); got.SandboxID != "" {
		t.Errorf("it is held by %s, which was stopped", got.SandboxID)
	}
	u.shows("data", "file", "last\n")
}

// Readers see the last saved content, several at the same time, and next to a writer.
func testDriveReaders(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	u.drive(sandbox.CreateDriveParams{Name: "data"})
	first := u.with(sandbox.CreateParams{}, "data:d", "data:empty:read-only")
	u.sh(first.ID, "test -z \"$(ls -A empty)\" && echo one > d/file")
	u.stop(first.ID)
	writer := u.with(sandbox.CreateParams{}, "data:d")
	u.sh(writer.ID, "echo two > d/file")
	reader := u.with(sandbox.CreateParams{}, "data:ro:read-only", "data:copy:snapshot")
	other := u.with(sandbox.CreateParams{}, "data:ro:read-only")
	if got := u.sh(reader.ID, "cat ro/file copy/file; echo mine > copy/file; cat copy/file ro/file"); got != "one\none\nmine\none\n" {
		t.Errorf("a reader finds %q", got)
	}
	u.stop(reader.ID)
	u.stop(writer.ID)
	if got := u.sh(other.ID, "cat ro/file"); got != "one\n" {
		t.Errorf("a reader finds %q after a save", got)
	}
	u.shows("data", "file", "two\n")
	// The drive can be deleted while it is being read.
	if err := u.DeleteDrive(u.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	if got := u.sh(other.ID, "cat ro/file"); got != "one\n" {
		t.Errorf("a reader finds %q of a deleted drive", got)
	}
}

func testSaveDrive(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{}, "data:d")
	for i, text := range []string{"one", "two"} {
		u.sh(s.ID, "echo "+text+" > d/file")
		if i == 1 && !u.env.NoPause {
			if _, err := u.Pause(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
		}
		d := u.save("data")
		if d.SavedAt == nil || d.SizeBytes == 0 || d.SandboxID != s.ID {
			t.Errorf("saved %+v", d)
		}
		u.shows("data", "file", text+"\n")
	}
	if _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	if got := u.sh(s.ID, "echo three >> d/file; cat d/file"); got != "two\nthree\n" {
		t.Errorf("the writer finds %q", got)
	}
	u.stop(s.ID)
	u.shows("data", "file", "two\nthree\n")
}

func testCloneDrive(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	empty := u.drive(sandbox.CreateDriveParams{Name: "data", MaxMB: 64})
	if d := u.drive(sandbox.CreateDriveParams{Name: "nothing", From: "data"}); d.MaxMB != 64 || d.ParentID != empty.ID || d.SizeBytes != 0 || d.SavedAt != nil {
		t.Errorf("the clone of an empty drive is %+v", d)
	}
	s := u.with(sandbox.CreateParams{}, "data:d")
	u.sh(s.ID, "echo one > d/file")
	clone := u.drive(sandbox.CreateDriveParams{Name: "clone", From: empty.ID, MaxMB: 128})
	if clone.MaxMB != 128 || clone.ParentID != empty.ID || clone.SizeBytes == 0 || clone.SavedAt == nil || clone.SandboxID != "" {
		t.Errorf("the clone is %+v", clone)
	}
	if src := u.getDrive("data"); src.SizeBytes != clone.SizeBytes || src.SandboxID != s.ID {
		t.Errorf("what was cloned is %+v", src)
	}
	u.sh(s.ID, "echo two > d/file")
	c := u.with(sandbox.CreateParams{}, "clone:d")
	if got := u.sh(c.ID, "cat d/file; echo mine > d/file"); got != "one\n" {
		t.Errorf("the clone has %q", got)
	}
	u.stop(s.ID)
	u.stop(c.ID)
	// Clone and original are independent.
	u.drive(sandbox.CreateDriveParams{Name: "third", From: "data"})
	if err := u.DeleteDrive(u.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	u.shows("clone", "file", "mine\n")
	u.shows("third", "file", "two\n")
	_, err := u.CreateDrive(u.ctx, sandbox.CreateDriveParams{Name: "less", From: "third", MaxMB: 32})
	checktest.Code(t, err, cay.Invalid)
	wantSays(t, err, "max_mb 32", "64", `"third"`)
	_, err = u.CreateDrive(u.ctx, sandbox.CreateDriveParams{Name: "clone", From: "third"})
	checktest.Code(t, err, cay.AlreadyExists)
}

func testDriveMounts(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	a, b := u.drive(sandbox.CreateDriveParams{Name: "a"}), u.drive(sandbox.CreateDriveParams{Name: "b"})
	s := u.with(sandbox.CreateParams{}, "b:y", "a:x")
	if want := []sandbox.Mount{{Path: driveDir + "/x", Drive: a.ID, Mode: sandbox.MountReadWrite}, {Path: driveDir + "/y", Drive: b.ID, Mode: sandbox.MountReadWrite}}; !slices.Equal(s.Mounts, want) {
		t.Errorf("it has %v, want %v", s.Mounts, want)
	}
	u.sh(s.ID, "echo a > x/file; echo b > y/file")
	u.stop(s.ID)
	u.shows("a", "file", "a\n")
	u.shows("b", "file", "b\n")
	_, err := u.Create(u.ctx, mounted(sandbox.CreateParams{}, "a:x", "none:y"))
	checktest.Code(t, err, cay.NotFound)
	wantSays(t, err, `"none"`, "/workspace/y")
	if got := u.getDrive("a"); got.SandboxID != "" {
		t.Errorf("a sandbox that was refused has %s", got.Name)
	}
	for _, m := range []sandbox.Mount{{Path: "/proc/x", Drive: "a"}, {Path: "rel", Drive: "a"}, {Path: "/x", Drive: "a", Mode: "rw"}} {
		_, err := u.Create(u.ctx, sandbox.CreateParams{Mounts: []sandbox.Mount{m}})
		checktest.Code(t, err, cay.Invalid)
	}
}

// A persistent sandbox has its drives while it runs, and gets them again when it is
// resumed.
func testPersistentDrive(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	d := u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{Name: "keeper"}, "data:d")
	u.sh(s.ID, "echo one > d/file; echo root > file")
	u.stop(s.ID)
	other := u.with(sandbox.CreateParams{Name: "other"}, "data:d")
	_, err := u.Resume(u.ctx, "keeper", sandbox.ResumeParams{})
	checktest.Code(t, err, cay.Conflict)
	wantSays(t, err, `sandbox "other"`, `drive "data"`)
	if got := u.get("keeper"); got.Status != sandbox.Stopped {
		t.Errorf("it is %s", got.Status)
	}
	u.sh(other.ID, "echo two >> d/file")
	u.stop(other.ID)
	if got := u.sh("keeper", "cat d/file file"); got != "one\ntwo\nroot\n" {
		t.Errorf("it finds %q", got)
	}
	if got := u.getDrive("data"); got.SandboxID != s.ID {
		t.Errorf("the drive is held by %q", got.SandboxID)
	}
	// The mounts change with the next session.
	u.drive(sandbox.CreateDriveParams{Name: "more"})
	if _, err := u.Update(u.ctx, "keeper", sandbox.UpdateParams{Mounts: []sandbox.Mount{
		{Path: driveDir + "/more", Drive: "more"}, {Path: driveDir + "/old", Drive: "data", Mode: sandbox.MountReadOnly},
	}}); err != nil {
		t.Fatal(err)
	}
	u.sh("keeper", "echo three >> d/file")
	u.stop("keeper")
	if got := u.sh("keeper", "cat old/file && echo x > more/file"); got != "one\ntwo\nthree\n" {
		t.Errorf("it finds %q", got)
	}
	if got := u.getDrive(d.ID); got.SandboxID != "" {
		t.Errorf("what it only reads is held by %q", got.SandboxID)
	}
	u.stop("keeper")
	u.shows("more", "file", "x\n")
}

// The resume of a sandbox whose drive was deleted fails with an error that says so, until
// it is given another drive.
func testDriveGone(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{Name: "keeper"}, "data:d")
	u.sh(s.ID, "echo root > file")
	u.stop(s.ID)
	if err := u.DeleteDrive(u.ctx, "data"); err != nil {
		t.Fatal(err)
	}
	u.drive(sandbox.CreateDriveParams{Name: "data"}) // a different drive with the same name
	_, err := u.Resume(u.ctx, "keeper", sandbox.ResumeParams{})
	checktest.Code(t, err, cay.NotFound)
	wantSays(t, err, "/workspace/d", "mounts")
	if _, err := u.Update(u.ctx, "keeper", sandbox.UpdateParams{Mounts: []sandbox.Mount{{Path: driveDir + "/d", Drive: "data"}}}); err != nil {
		t.Fatal(err)
	}
	if got := u.sh("keeper", "cat file; ls -A d"); got != "root\n" {
		t.Errorf("it finds %q", got)
	}
	u.stop("keeper")
	if _, err := u.Update(u.ctx, "keeper", sandbox.UpdateParams{Mounts: []sandbox.Mount{}}); err != nil {
		t.Fatal(err)
	}
	if got := u.sh("keeper", "cat file; ls -A d"); got != "root\n" {
		t.Errorf("it finds %q without mounts", got)
	}
}

func testDriveQuota(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	if u.env.SetQuota == nil {
		t.Skip("this service has no quotas to set")
	}
	u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{}, "data:d")
	u.sh(s.ID, "head -c 700000 /dev/urandom > d/a")
	u.env.SetQuota(account.DefaultTeam, account.Quota{SnapshotMB: 1})
	before := u.save("data")
	u.sh(s.ID, "head -c 700000 /dev/urandom > d/b")
	_, err := u.SaveDrive(u.ctx, "data")
	checktest.Code(t, err, cay.QuotaExceeded)
	if got := u.getDrive("data"); !reflect.DeepEqual(got, before) {
		t.Errorf("a save that was refused left %+v, want %+v", got, before)
	}
	_, err = u.CreateDrive(u.ctx, sandbox.CreateDriveParams{Name: "clone", From: "data"})
	checktest.Code(t, err, cay.QuotaExceeded)
	// Saves that are smaller than before are never refused, and neither is the save at
	// the end.
	u.sh(s.ID, "head -c 200000 /dev/urandom > d/b")
	u.save("data")
	u.env.SetQuota(account.DefaultTeam, account.Quota{SnapshotMB: 0})
	u.sh(s.ID, "head -c 2000000 /dev/urandom > d/b")
	u.save("data")
	u.env.SetQuota(account.DefaultTeam, account.Quota{SnapshotMB: 1})
	u.sh(s.ID, "rm d/b; head -c 1700000 /dev/urandom > d/b")
	u.save("data")
	u.sh(s.ID, "head -c 700000 /dev/urandom > d/b; echo last > d/file")
	u.stop(s.ID)
	u.env.SetQuota(account.DefaultTeam, account.Quota{})
	u.shows("data", "file", "last\n")

	// A machine's copies of drives count as disk like its root.
	u.drive(sandbox.CreateDriveParams{Name: "small", MaxMB: 100})
	u.env.SetQuota(account.DefaultTeam, account.Quota{DiskMB: 250})
	for _, mounts := range [][]string{{"data:d:snapshot"}, {"small:a", "small:b:snapshot"}} {
		_, err := u.Create(u.ctx, mounted(sandbox.CreateParams{DiskMB: 100}, mounts...))
		checktest.Code(t, err, cay.QuotaExceeded)
		wantSays(t, err, "MiB of disk")
	}
	has := u.with(sandbox.CreateParams{Name: "keeper", DiskMB: 100}, "small:a", "data:d:read-only")
	_, err = u.Create(u.ctx, sandbox.CreateParams{DiskMB: 100})
	checktest.Code(t, err, cay.QuotaExceeded)
	u.stop(has.ID)
	other := u.with(sandbox.CreateParams{DiskMB: 100})
	_, err = u.Resume(u.ctx, "keeper", sandbox.ResumeParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	u.stop(other.ID)
	if _, err = u.Resume(u.ctx, "keeper", sandbox.ResumeParams{}); err != nil {
		t.Error(err)
	}
}

// A sandbox that ends by a fault loses its unsaved changes, and its drive is free.
func testDriveOfCrashed(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	if u.env.Kill == nil {
		t.Skip("machines cannot be killed")
	}
	u.drive(sandbox.CreateDriveParams{Name: "data"})
	s := u.with(sandbox.CreateParams{}, "data:d")
	u.sh(s.ID, "echo one > d/file")
	u.save("data")
	u.sh(s.ID, "echo two > d/file")
	ended := u.ending(s.ID)
	u.env.Kill(t, s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed})
	wantStatus(t, ended(), sandbox.Failed, sandbox.ReasonCrashed)
	if got := u.getDrive("data"); got.SandboxID != "" {
		t.Errorf("it is held by %s, which crashed", got.SandboxID)
	}
	next := u.with(sandbox.CreateParams{}, "data:d")
	if got := u.sh(next.ID, "cat d/file"); got != "one\n" {
		t.Errorf("it has %q", got)
	}
}
