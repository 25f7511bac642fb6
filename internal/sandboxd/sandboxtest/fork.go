package sandboxtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

func (u *user) fork(ref string, p sandbox.ForkParams) *sandbox.Fork {
	u.t.Helper()
	f, err := u.Fork(u.ctx, ref, p)
	if err != nil {
		u.t.Fatalf("fork %s: %v", ref, err)
	}
	if len(f.Sandboxes) != max(p.Count, len(p.Names), 1) {
		u.t.Fatalf("a fork of %+v has %d copies", p, len(f.Sandboxes))
	}
	for _, s := range f.Sandboxes {
		wantStatus(u.t, &s, sandbox.Running, "")
		if got := u.get(s.ID); got.Status != sandbox.Running || got.Name != s.Name || got.SessionID != s.SessionID {
			u.t.Errorf("forked %+v, and got %+v", s, got)
		}
	}
	return f
}

// refuseFork expects a fork to fail, and to leave nothing.
func (u *user) refuseFork(ref string, p sandbox.ForkParams, code cay.Code) {
	u.t.Helper()
	before := u.names()
	_, err := u.Fork(u.ctx, ref, p)
	checktest.Code(u.t, err, code)
	if after := u.names(); !slices.Equal(before, after) {
		u.t.Errorf("a fork that failed with %q left sandboxes: %q, and %q before", err, after, before)
	}
}

func (u *user) names() []string {
	u.t.Helper()
	page, err := u.List(u.ctx, sandbox.ListParams{Limit: 200})
	if err != nil {
		u.t.Fatal(err)
	}
	return slices.Sorted(slices.Values(names(page)))
}

func namesOf(all []sandbox.Sandbox) []string {
	var n []string
	for _, s := range all {
		n = append(n, s.Name)
	}
	return n
}

func testFork(t *testing.T, cfg Config) {
	for name, f := range map[string]func(*testing.T, Config){
		"Files": testForkFiles, "Stopped": testForkStopped, "Overrides": testForkOverrides, "Names": testForkNames,
		"Snapshot": testForkSnapshot, "Quota": testForkQuota, "Refused": testForkRefused, "Drives": testForkDrives,
		"Memory": testForkMemory, "Hibernated": testForkHibernated, "MemorySnapshot": testForkMemorySnapshot,
	} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// Copies of files have the last saved content, not the current content.
func testForkFiles(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	hour, day := sandbox.Duration(time.Hour), sandbox.Duration(24*time.Hour)
	src := u.create(sandbox.CreateParams{
		Name: "src", Env: map[string]string{"A": "1"}, Tags: map[string]string{"for": "test"}, VCPUs: 0.5, MemoryMB: 300, DiskMB: 500,
		Network: sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 3000, Access: sandbox.Private}},
		Timeout: minutes(10), IdleTimeout: minutes(5), SnapshotExpiration: &day, Retention: &sandbox.Retention{Keep: 3},
	})
	u.sh("src", "echo image > early")
	first := u.fork("src", sandbox.ForkParams{Kind: sandbox.FilesystemSnapshot})
	if got := u.sh("src-1", "ls early 2>/dev/null || echo none"); got != "none\n" || first.SnapshotID != "" {
		t.Errorf("a copy of what was never saved has %q, of snapshot %q", got, first.SnapshotID)
	}
	snap := u.saver().snapshot("src", sandbox.SnapshotParams{})
	u.sh("src", "echo late > late")
	if _, err := u.Extend(u.ctx, "src", hour); err != nil {
		t.Fatal(err)
	}
	f := u.fork("src", sandbox.ForkParams{Count: 2, Kind: sandbox.FilesystemSnapshot})
	if f.Kind != sandbox.FilesystemSnapshot || f.SnapshotID != snap.ID || f.CopiedBytes != 0 {
		t.Errorf("the fork is %+v", f)
	}
	if got := namesOf(f.Sandboxes); !slices.Equal(got, []string{"src-2", "src-3"}) {
		t.Errorf("the copies are %q", got)
	}
	seen := map[string]bool{src.ID: true, src.SessionID: true, src.Ports[0].Label: true}
	for _, s := range f.Sandboxes {
		for _, own := range []string{s.ID, s.SessionID, s.Ports[0].Label} {
			if seen[own] {
				t.Errorf("%s is not its own", own)
			}
			seen[own] = true
		}
		if !maps.Equal(s.Env, src.Env) || !maps.Equal(s.Tags, src.Tags) || s.VCPUs != 0.5 || s.MemoryMB != 300 || s.DiskMB != 500 ||
			s.Network.Mode != sandbox.DenyAll || s.Ports[0].Port != 3000 || s.Ports[0].Access != sandbox.Private ||
			s.Timeout != minutes(10) || s.IdleTimeout != minutes(5) || !s.Persistent || s.SnapshotExpiration != day ||
			s.Retention == nil || s.Retention.Keep != 3 || s.Image != src.Image || s.Digest != src.Digest || s.Runtime != src.Runtime ||
			s.User != src.User || s.WorkDir != src.WorkDir || s.SnapshotID != snap.ID || s.Usage != (sandbox.Usage{}) && u.env.Clock != nil {
			t.Errorf("the copy is %+v\nof %+v", s, src)
		}
		if got := u.sh(s.ID, `cat early; ls late 2>/dev/null || echo none; echo "$A"`); got != "image\nnone\n1\n" {
			t.Errorf("the copy has %q", got)
		}
		page, err := u.Sessions(u.ctx, s.ID, sandbox.SessionParams{})
		if err != nil || len(page.Items) != 1 || page.Items[0].ID != s.SessionID || page.Items[0].SourceID != snap.ID {
			t.Errorf("its sessions are %+v, %v", page, err)
		}
	}
	if got, err := u.GetSnapshot(u.ctx, snap.ID); err != nil || got.LastUsedAt == nil {
		t.Errorf("that copies started from a snapshot is not told: %+v, %v", got, err)
	}
	// The copies are independent: writes and saves in a copy do not affect the others.
	u.sh("src-2", "echo two > two")
	u.stop("src-2")
	if got := u.sh("src-2", "cat early two"); got != "image\ntwo\n" {
		t.Errorf("the copy comes back with %q", got)
	}
	if got := u.sh("src-3", "ls two 2>/dev/null || echo none") + u.sh("src", "ls two 2>/dev/null || cat late"); got != "none\nlate\n" {
		t.Errorf("the others have %q", got)
	}
	// A copy can itself be forked and deleted.
	u.fork("src-2", sandbox.ForkParams{Names: []string{"grandchild"}, Kind: sandbox.FilesystemSnapshot})
	for _, name := range []string{"src-2", "src"} {
		if err := u.Delete(u.ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	if got := u.sh("grandchild", "cat early two"); got != "image\ntwo\n" {
		t.Errorf("the copy of the copy has %q", got)
	}
}

func testForkStopped(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	u.create(sandbox.CreateParams{Name: "src"})
	u.sh("src", "echo saved > f")
	stopped := u.stop("src")
	f := u.fork("src", sandbox.ForkParams{Count: 2})
	if f.Kind != sandbox.FilesystemSnapshot || f.SnapshotID != stopped.SnapshotID {
		t.Errorf("the fork is %+v, of %+v", f, stopped)
	}
	for _, s := range f.Sandboxes {
		if got := u.sh(s.ID, "cat f"); got != "saved\n" {
			t.Errorf("a copy has %q", got)
		}
	}
	wantStatus(t, u.get("src"), sandbox.Stopped, sandbox.ReasonRequested)
	u.refuseFork("src", sandbox.ForkParams{Kind: sandbox.MemorySnapshot}, cay.Conflict)
	// The copies get the pending changes for the next session.
	cpus, mb := 0.5, int64(384)
	if _, err := u.Update(u.ctx, "src", sandbox.UpdateParams{VCPUs: &cpus, MemoryMB: &mb, Env: map[string]string{"B": "2"}}); err != nil {
		t.Fatal(err)
	}
	s := u.fork("src", sandbox.ForkParams{}).Sandboxes[0]
	if s.VCPUs != cpus || s.MemoryMB != mb || u.sh(s.ID, "echo $B") != "2\n" {
		t.Errorf("the copy is %+v", s)
	}
}

func testForkOverrides(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	u.create(sandbox.CreateParams{
		Name: "src", Env: map[string]string{"A": "1"}, Tags: map[string]string{"a": "1"}, Ports: []sandbox.PortParams{{Port: 3000}},
		Retention: &sandbox.Retention{Keep: 3},
	})
	cpus, mb, timeout, idle, never, no := 0.7, int64(256), minutes(7), minutes(3), sandbox.Duration(0), false
	s := u.fork("src", sandbox.ForkParams{
		Names: []string{"own"}, Kind: sandbox.FilesystemSnapshot, Env: map[string]string{}, Tags: map[string]string{"b": "2"},
		Network: &sandbox.Network{Mode: sandbox.DenyAll}, Ports: []sandbox.PortParams{{Port: 4000}, {Port: 5000, Access: sandbox.Private}},
		VCPUs: &cpus, MemoryMB: &mb, Timeout: &timeout, IdleTimeout: &idle, Persistent: &no, SnapshotExpiration: &never,
		Retention: &sandbox.Retention{Keep: 1},
	}).Sandboxes[0]
	if s.Name != "own" || len(s.Env) != 0 || !maps.Equal(s.Tags, map[string]string{"b": "2"}) || s.Network.Mode != sandbox.DenyAll ||
		len(s.Ports) != 2 || s.Ports[0].Port != 4000 || s.Ports[1].Access != sandbox.Private || s.VCPUs != cpus || s.MemoryMB != mb ||
		s.Timeout != timeout || s.IdleTimeout != idle || s.Persistent || s.SnapshotExpiration != 0 || s.Retention.Keep != 1 {
		t.Errorf("the copy is %+v", s)
	}
	if got := u.sh("own", `echo "[$A]"`); got != "[]\n" {
		t.Errorf("the copy has A = %q", got)
	}
	page, err := u.List(u.ctx, sandbox.ListParams{Tags: map[string]string{"b": "2"}})
	if err != nil || !slices.Equal(names(page), []string{"own"}) {
		t.Errorf("its tags find %q, %v", names(page), err)
	}
}

func testForkNames(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	long := strings.Repeat("x", 128)
	u.create(sandbox.CreateParams{Name: long})
	if got, want := namesOf(u.fork(long, sandbox.ForkParams{Kind: sandbox.FilesystemSnapshot}).Sandboxes), long[:126]+"-1"; got[0] != want {
		t.Errorf("a copy of a long name is %q", got)
	}
	u.create(sandbox.CreateParams{Name: "src"})
	u.create(sandbox.CreateParams{Name: "src-2"})
	got := namesOf(u.fork("src", sandbox.ForkParams{Count: 3, Kind: sandbox.FilesystemSnapshot}).Sandboxes)
	if !slices.Equal(got, []string{"src-1", "src-3", "src-4"}) {
		t.Errorf("the copies are %q", got)
	}
	got = namesOf(u.fork("src", sandbox.ForkParams{Names: []string{"b", "a"}, Kind: sandbox.FilesystemSnapshot}).Sandboxes)
	if !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("the copies are %q", got)
	}
	u.refuseFork("src", sandbox.ForkParams{Names: []string{"c", "src-2"}, Kind: sandbox.FilesystemSnapshot}, cay.AlreadyExists)
}

func testForkSnapshot(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	src := u.create(sandbox.CreateParams{
		Name: "src", Env: map[string]string{"A": "1"}, MemoryMB: 300, DiskMB: 500, Network: sandbox.Network{Mode: sandbox.DenyAll},
	})
	u.sh("src", "echo installed > f")
	snap := u.saver().snapshot("src", sandbox.SnapshotParams{Name: "base"})
	u.sh("src", "echo more > f")
	f := u.fork(snap.ID, sandbox.ForkParams{Count: 3, Network: &sandbox.Network{Mode: sandbox.DenyAll}, Tags: map[string]string{"n": "3"}})
	if f.Kind != sandbox.FilesystemSnapshot || f.SnapshotID != snap.ID || !slices.Equal(namesOf(f.Sandboxes), []string{"src-1", "src-2", "src-3"}) {
		t.Errorf("the fork is %+v", f)
	}
	for _, s := range f.Sandboxes {
		if s.Persistent || len(s.Env) != 0 || s.MemoryMB != 300 || s.DiskMB != 500 || s.Digest != src.Digest || s.Network.Mode != sandbox.DenyAll ||
			s.Tags["n"] != "3" {
			t.Errorf("a sandbox of it is %+v", s)
		}
		if got := u.sh(s.ID, "cat f"); got != "installed\n" {
			t.Errorf("a sandbox of it has %q", got)
		}
	}
	// The source sandbox is not needed any more; a snapshot with a name stays.
	if err := u.Delete(u.ctx, "src"); err != nil {
		t.Fatal(err)
	}
	if s := u.fork(snap.ID, sandbox.ForkParams{Names: []string{"kept"}}).Sandboxes[0]; !s.Persistent {
		t.Errorf("a sandbox with a name is %+v", s)
	}
	u.refuseFork(snap.ID, sandbox.ForkParams{Kind: sandbox.MemorySnapshot}, cay.Conflict)
	if err := u.Delete(u.ctx, "kept"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.DeleteSnapshot(u.ctx, snap.ID, sandbox.DeleteSnapshotParams{}); err != nil {
		t.Fatal(err)
	}
	u.refuseFork(snap.ID, sandbox.ForkParams{}, cay.NotFound)
}

func testForkQuota(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	if u.env.SetQuota == nil {
		t.Skip("quotas of this service cannot be set")
	}
	u.create(sandbox.CreateParams{Name: "src", VCPUs: 0.5, MemoryMB: 300, DiskMB: 200})
	p := sandbox.ForkParams{Count: 3, Kind: sandbox.FilesystemSnapshot}
	for _, q := range []account.Quota{{Sandboxes: 3}, {VCPUs: 1.9}, {MemoryMB: 1199}, {DiskMB: 799}, {CreatesPerMinute: 2}} {
		u.env.SetQuota(account.DefaultTeam, q)
		u.refuseFork("src", p, cay.QuotaExceeded)
	}
	u.env.SetQuota(account.DefaultTeam, account.Quota{Sandboxes: 4, VCPUs: 2, MemoryMB: 1200, DiskMB: 800, CreatesPerMinute: 3})
	u.fork("src", p)
	u.env.SetQuota(account.DefaultTeam, account.Quota{CreatesPerMinute: 3})
	_, err := u.Fork(u.ctx, "src", p)
	checktest.Code(t, err, cay.QuotaExceeded)
	if d := retryAfter(err); d <= 0 || d > time.Minute {
		t.Errorf("it is to be tried again after %v", d)
	}
}

func testForkRefused(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	src := u.create(sandbox.CreateParams{Name: "src"})
	snap := u.saver().snapshot("src", sandbox.SnapshotParams{})
	many, long := 1000.0, sandbox.Duration(u.env.MaxTimeout)+minutes(1)
	for _, c := range []struct {
		ref  string
		p    sandbox.ForkParams
		code cay.Code
	}{
		{"unknown", sandbox.ForkParams{}, cay.NotFound},
		{"sbx_00000000000000000000", sandbox.ForkParams{}, cay.NotFound},
		{"snap_00000000000000000000", sandbox.ForkParams{}, cay.NotFound},
		{"src", sandbox.ForkParams{Count: 101}, cay.Invalid},
		{"src", sandbox.ForkParams{VCPUs: &many}, cay.Invalid},
		{"src", sandbox.ForkParams{Timeout: &long}, cay.Invalid},
		{snap.ID, sandbox.ForkParams{Timeout: &long}, cay.Invalid},
		{"src", sandbox.ForkParams{Mounts: []sandbox.Mount{{Drive: "none", Path: "/d"}}}, cay.NotFound},
		{"src", sandbox.ForkParams{Kind: sandbox.MemorySnapshot, Mounts: []sandbox.Mount{}}, cay.NotSupported},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.ref, c.code), func(t *testing.T) {
			u := *u
			u.t = t
			u.refuseFork(c.ref, c.p, c.code)
		})
	}
	for _, ref := range []string{src.ID, "src", snap.ID} {
		other := u.env.user(t, ProjectB)
		other.refuseFork(ref, sandbox.ForkParams{}, cay.NotFound)
	}
	if !u.env.SavesMemory {
		u.refuseFork("src", sandbox.ForkParams{Kind: sandbox.MemorySnapshot}, cay.NotSupported)
	}
	// A sandbox that failed to start has nothing to copy but its image, which does not
	// exist.
	if _, err := u.Create(u.ctx, sandbox.CreateParams{Name: "failed", Image: "missing"}); err == nil {
		t.Fatal("a sandbox of a missing image was made")
	}
	u.refuseFork("failed", sandbox.ForkParams{Count: 3}, cay.NotFound)
}

func testForkDrives(t *testing.T, cfg Config) {
	u := setupDrives(t, cfg)
	u.drive(sandbox.CreateDriveParams{Name: "data", MaxMB: 64})
	p := mounted(sandbox.CreateParams{Name: "src"}, "data:d")
	u.create(p)
	u.sh("src", "echo one > d/f")
	u.save("data")
	kind := sandbox.FilesystemSnapshot
	u.refuseFork("src", sandbox.ForkParams{Kind: kind}, cay.Conflict) // the source writes to the drive
	u.refuseFork("src", sandbox.ForkParams{Kind: kind, Count: 2}, cay.Conflict)
	u.refuseFork("src", sandbox.ForkParams{Kind: sandbox.MemorySnapshot}, cay.NotSupported)
	mounts := slices.Clone(p.Mounts)
	mounts[0].Mode = sandbox.MountCopy
	f := u.fork("src", sandbox.ForkParams{Count: 2, Mounts: mounts}) // files, because processes keep their mounts
	if f.Kind != kind {
		t.Errorf("with other mounts, the fork is of %s", f.Kind)
	}
	for i, s := range f.Sandboxes {
		if got := u.sh(s.ID, fmt.Sprintf("cat d/f; echo %d > d/f; cat d/f", i)); got != fmt.Sprintf("one\n%d\n", i) {
			t.Errorf("a copy has %q", got)
		}
	}
	u.fork("src", sandbox.ForkParams{Kind: kind, Mounts: []sandbox.Mount{}})
	// A copy has its source's mounts, if possible.
	u.stop("src")
	s := u.fork("src", sandbox.ForkParams{}).Sandboxes[0]
	if got := u.sh(s.ID, "cat d/f; echo two > d/f"); got != "one\n" || u.getDrive("data").SandboxID != s.ID {
		t.Errorf("the copy has %q, and the drive is that of %q", got, u.getDrive("data").SandboxID)
	}
}

// conversation is a command that answers each line with a line of its own.
type conversation struct {
	u      *user
	ref    string
	id     string
	cursor int64
}

// converse starts a shell that counts the lines that it reads, and answers each with the
// line, the count, its process id and the state that it had before it was copied.
func (u *user) converse(ref string) *conversation {
	u.t.Helper()
	const program = `exec 3<$0; state=$(od -An -N8 -tx1 /dev/urandom | tr -d ' '); n=0
		while read -r x; do n=$((n+1)); echo "$x $n $$ $state"; done`
	c, err := u.Start(u.ctx, ref, sandbox.CommandParams{Argv: []string{"sh", "-c", program, "/etc/hostname"}, Stdin: true})
	if err != nil {
		u.t.Fatal(err)
	}
	return &conversation{u: u, ref: ref, id: c.ID}
}

// in returns the same conversation in a copy of the sandbox.
func (c conversation) in(ref string) *conversation {
	c.ref = ref
	return &c
}

func (c *conversation) say(line string) string {
	c.u.t.Helper()
	if err := c.u.WriteStdin(c.u.ctx, c.ref, c.id, strings.NewReader(line+"\n"), false); err != nil {
		c.u.t.Fatalf("say %q to %s: %v", line, c.ref, err)
	}
	out, err := c.u.Output(c.u.ctx, c.ref, c.id, sandbox.OutputParams{Cursor: c.cursor, Follow: true})
	if err != nil {
		c.u.t.Fatal(err)
	}
	defer out.Close()
	var answer string
	for !strings.HasSuffix(answer, "\n") {
		ev, err := out.Next()
		if err != nil || ev.Exit != nil {
			c.u.t.Fatalf("%s says %q to %q, and then %+v, %v", c.ref, answer, line, ev.Exit, err)
		}
		answer += string(ev.Data)
		c.cursor = ev.Cursor + int64(len(ev.Data))
	}
	return answer
}

// identities collects the values that must differ between sandboxes.
type identities struct {
	u    *user
	seen map[string]string
}

// add adds the values of a sandbox, whose host name should be name.
func (i *identities) add(ref, name string) {
	i.u.t.Helper()
	got := strings.Fields(i.u.sh(ref, `hostname; cat /etc/hostname /etc/machine-id /proc/sys/kernel/random/uuid
		od -An -N16 -tx1 /dev/urandom | tr -d ' '; sed 's/.*"boot_id": *"\([^"]*\)".*/\1/' /etc/cay/identity.json
		getent hosts `+name+` >/dev/null && echo resolves-`+name))
	if len(got) != 7 || got[0] != name || got[1] != name || got[6] != "resolves-"+name {
		i.u.t.Fatalf("%s is %q, want %s", ref, got, name)
	}
	for _, own := range got[2:6] {
		if other, ok := i.seen[own]; ok {
			i.u.t.Errorf("%s has %s of %s", ref, own, other)
		}
		i.seen[own] = ref
	}
}

func setupMemory(t *testing.T, cfg Config) *user {
	u := setup(t, cfg)
	if !u.env.SavesMemory {
		t.Skip("this service cannot copy processes")
	}
	return u
}

func testForkMemory(t *testing.T, cfg Config) {
	u := setupMemory(t, cfg)
	src := u.create(sandbox.CreateParams{
		Name: "src", MemoryMB: 512, Env: map[string]string{"A": "1"}, Ports: []sandbox.PortParams{{Port: 3000}}, Persistent: new(bool),
	})
	u.sh("src", "echo live > f; ls /etc/cay/identity.json")
	talk := u.converse("src")
	before := talk.say("hello")
	state := strings.SplitN(before, " ", 3)[2]

	f := u.fork("src", sandbox.ForkParams{Count: 3, Env: map[string]string{"A": "2"}})
	if f.Kind != sandbox.MemorySnapshot || f.SnapshotID != "" || f.CopiedBytes < 1<<20 || f.SharedBytes < 1<<20 ||
		f.Phases.Paused <= 0 && u.env.Clock == nil {
		t.Errorf("the fork is %+v", f)
	}
	who := &identities{u, map[string]string{}}
	who.add("src", "src")
	for i, s := range f.Sandboxes {
		who.add(s.ID, s.Name)
		if s.Ports[0].Label == src.Ports[0].Label {
			t.Errorf("%s has the label of its source", s.Name)
		}
		copied := talk.in(s.Name)
		for n := range 2 {
			if got, want := copied.say(s.Name), fmt.Sprintf("%s %d %s", s.Name, n+2, state); got != want {
				t.Errorf("copy %d says %q, want %q", i, got, want)
			}
		}
		if got := u.sh(s.ID, "cat f; echo $A"); got != "live\n2\n" {
			t.Errorf("copy %d has %q", i, got)
		}
		u.sh(s.ID, "echo own > f")
		page, err := u.Sessions(u.ctx, s.ID, sandbox.SessionParams{})
		if err != nil || len(page.Items) != 1 || page.Items[0].SourceID != "" {
			t.Errorf("its sessions are %+v, %v", page, err)
		}
	}
	if got, want := talk.say("again"), "again 2 "+state; got != want || u.sh("src", "cat f; echo $A") != "live\n1\n" {
		t.Errorf("the source says %q, want %q", got, want)
	}

	// The copy of a paused sandbox runs. So does a copy of a copy.
	if _, err := u.Pause(u.ctx, "src-1"); err != nil {
		t.Fatal(err)
	}
	copied := talk.in("second")
	u.fork("src-1", sandbox.ForkParams{Names: []string{"second"}})
	copied.cursor = talk.in("src-2").cursor
	wantStatus(t, u.get("src-1"), sandbox.Paused, "")
	who.add("second", "second")
	out, err := u.Output(u.ctx, "second", talk.id, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := readAll(out)
	if want := before + "src-1 2 " + state + "src-1 3 " + state; err != nil || text != want {
		t.Errorf("what was written before is %q, %v, want %q", text, err, want)
	}
	if err := u.Delete(u.ctx, "src"); err != nil {
		t.Fatal(err)
	}
	copied.cursor = int64(len(text))
	if got, want := copied.say("bye"), "bye 4 "+state; got != want {
		t.Errorf("the copy of the copy says %q, want %q", got, want)
	}
	u.refuseFork("second", sandbox.ForkParams{Count: 2, Names: []string{"third", "src-2"}}, cay.AlreadyExists)
}

func testForkHibernated(t *testing.T, cfg Config) {
	u := setupMemory(t, cfg)
	u.create(sandbox.CreateParams{Name: "src", MemoryMB: 512})
	talk := u.converse("src")
	state := strings.SplitN(talk.say("hello"), " ", 3)[2]
	if _, err := u.Hibernate(u.ctx, "src"); err != nil {
		t.Fatal(err)
	}
	f := u.fork("src", sandbox.ForkParams{Count: 2})
	if f.Kind != sandbox.MemorySnapshot || f.SnapshotID != "" {
		t.Errorf("the fork is %+v", f)
	}
	wantStatus(t, u.get("src"), sandbox.Hibernated, "")
	who := &identities{u, map[string]string{}}
	for _, name := range []string{"src-1", "src-2", "src"} { // the last one is resumed by this
		if got, want := talk.in(name).say(name), name+" 2 "+state; got != want {
			t.Errorf("%s says %q, want %q", name, got, want)
		}
		who.add(name, name)
	}
	// Copies can be saved like other sandboxes.
	u.stop("src-1")
	u.sh("src-1", "true")
}

func testForkMemorySnapshot(t *testing.T, cfg Config) {
	u := setupMemory(t, cfg)
	u.create(sandbox.CreateParams{Name: "src", MemoryMB: 512})
	talk := u.converse("src")
	state := strings.SplitN(talk.say("hello"), " ", 3)[2]
	u.sh("src", "echo saved > f")
	snap := u.saver().snapshot("src", sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot})
	talk.in("src").say("unsaved")
	u.sh("src", "echo unsaved > f")
	f := u.fork(snap.ID, sandbox.ForkParams{Count: 2})
	if f.Kind != sandbox.MemorySnapshot || f.SnapshotID != snap.ID {
		t.Errorf("the fork is %+v", f)
	}
	who := &identities{u, map[string]string{}}
	who.add("src", "src")
	for _, s := range f.Sandboxes {
		if got, want := talk.in(s.ID).say("you"), "you 2 "+state; got != want {
			t.Errorf("%s says %q, want %q", s.Name, got, want)
		}
		who.add(s.ID, s.Name)
	}
	for _, ref := range []string{snap.ID, "src"} {
		f := u.fork(ref, sandbox.ForkParams{Kind: sandbox.FilesystemSnapshot})
		if f.Kind != sandbox.FilesystemSnapshot || f.SnapshotID != snap.ID {
			t.Errorf("the fork of %s is %+v", ref, f)
		}
		if got := u.sh(f.Sandboxes[0].ID, "cat f"); got != "saved\n" {
			t.Errorf("a copy of the files of %s has %q", ref, got)
		}
	}
}
