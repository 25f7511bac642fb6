package sandboxtest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// ephemeral is CreateParams.Persistent for sandboxes that need no snapshot.
var ephemeral = new(bool)

// snapshot makes a snapshot that is newer than all earlier ones.
func (u *user) snapshot(ref string, p sandbox.SnapshotParams) *sandbox.Snapshot {
	u.t.Helper()
	if u.env.Clock != nil {
		u.env.Clock.Advance(time.Millisecond)
	}
	s, err := u.CreateSnapshot(u.ctx, ref, p)
	if err != nil {
		u.t.Fatalf("make a snapshot of %s: %v", ref, err)
	}
	return s
}

func (u *user) getSnapshot(ref string) *sandbox.Snapshot {
	u.t.Helper()
	s, err := u.GetSnapshot(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("get snapshot %s: %v", ref, err)
	}
	return s
}

func (u *user) deleteSnapshot(ref string) *sandbox.Snapshot {
	u.t.Helper()
	s, err := u.DeleteSnapshot(u.ctx, ref, sandbox.DeleteSnapshotParams{})
	if err != nil {
		u.t.Fatalf("delete snapshot %s: %v", ref, err)
	}
	return s
}

// export returns a snapshot as a file.
func (u *user) export(ref string) []byte {
	u.t.Helper()
	r, err := u.ExportSnapshot(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("export %s: %v", ref, err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		u.t.Fatalf("read the export of %s: %v", ref, err)
	}
	if err := r.Close(); err != nil {
		u.t.Errorf("close the export of %s: %v", ref, err)
	}
	return data
}

// snapshots returns the ids of a list.
func (u *user) snapshots(p sandbox.SnapshotListParams) []string {
	u.t.Helper()
	page, err := u.ListSnapshots(u.ctx, p)
	if err != nil {
		u.t.Fatalf("list snapshots by %+v: %v", p, err)
	}
	if page.Next != "" {
		u.t.Errorf("the list by %+v has another page", p)
	}
	return snapshotIDs(page.Items)
}

func snapshotIDs(list []sandbox.Snapshot) []string {
	ids := []string{}
	for _, s := range list {
		ids = append(ids, s.ID)
	}
	return ids
}

func testSnapshots(t *testing.T, cfg Config) {
	for name, f := range map[string]func(*testing.T, Config){
		"Make": testMakeSnapshot, "List": testListSnapshots, "Delete": testDeleteSnapshot, "Tree": testSnapshotTree,
		"Tenancy": testSnapshotTenancy, "Quota": testSnapshotQuota, "Export": testExportSnapshot, "DeletedWhileRead": testSnapshotDeletedWhileRead,
		"Import": testImportSnapshot, "Network": testSnapshotNetwork,
	} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// A sandbox that starts from a snapshot has the policy that the snapshot's sandbox had
// when the snapshot was made, unless the request has a policy.
func testSnapshotNetwork(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	denyAll, custom := sandbox.Network{Mode: sandbox.DenyAll}, brokering().WithDefaults()
	noSecrets := brokering().WithDefaults()
	for i := range noSecrets.Allow {
		for j := range noSecrets.Allow[i].Rules {
			noSecrets.Allow[i].Rules[j].SetHeaders, noSecrets.Allow[i].Rules[j].Scrub = nil, false
		}
	}
	box := u.create(sandbox.CreateParams{Name: "closed", Network: denyAll, Persistent: ephemeral})
	closed := u.snapshot("closed", sandbox.SnapshotParams{})
	without := u.snapshot("closed", sandbox.SnapshotParams{WithoutNetwork: true})
	if _, err := u.Update(u.ctx, box.ID, sandbox.UpdateParams{Network: &custom}); err != nil {
		t.Fatal(err)
	}
	listed := u.snapshot("closed", sandbox.SnapshotParams{})
	if err := u.Delete(u.ctx, box.ID); err != nil { // the snapshot has its own copy of the policy
		t.Fatal(err)
	}
	limits := sandbox.NetworkLimits{Connections: 3}
	limited := denyAll
	limited.Limits = limits
	for _, c := range []struct {
		name     string
		snapshot *sandbox.Snapshot
		asked    sandbox.Network
		want     sandbox.Network
	}{
		{"deny-all", closed, sandbox.Network{}, denyAll},
		{"its limits replaced", closed, sandbox.Network{Limits: limits}, limited},
		{"allow-all asked for", closed, sandbox.Network{Mode: sandbox.AllowAll}, sandbox.Network{Mode: sandbox.AllowAll}},
		{"a list asked for", closed, sandbox.Network{AllowCIDRs: []string{"203.0.113.0/24"}}, sandbox.Network{Mode: sandbox.Custom, AllowCIDRs: []string{"203.0.113.0/24"}}},
		{"left out", without, sandbox.Network{}, sandbox.Network{Mode: sandbox.AllowAll}},
		{"a list, without its credentials", listed, sandbox.Network{}, noSecrets},
	} {
		s := u.create(sandbox.CreateParams{Snapshot: c.snapshot.ID, Network: c.asked})
		if !reflect.DeepEqual(s.Network, c.want) {
			t.Errorf("%s: the policy is %v, want %v", c.name, s.Network, c.want)
		}
		if err := u.Delete(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		p    sandbox.ForkParams
		want sandbox.NetworkMode
	}{
		"fork":                {sandbox.ForkParams{}, sandbox.DenyAll},
		"fork with allow-all": {sandbox.ForkParams{Network: &sandbox.Network{}}, sandbox.AllowAll},
	} {
		if f := u.fork(closed.ID, c.p); f.Sandboxes[0].Network.Mode != c.want {
			t.Errorf("%s: the mode is %s, want %s", name, f.Sandboxes[0].Network.Mode, c.want)
		}
	}
}

func testMakeSnapshot(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	box := u.create(sandbox.CreateParams{Name: "base", DiskMB: 1024})
	u.sh(box.ID, "echo kept > f; chmod 640 f")
	snap := u.snapshot("base", sandbox.SnapshotParams{Name: "installed"})
	want := *snap
	want.TeamID, want.ProjectID, want.Name = account.DefaultTeam, account.DefaultProject, "installed"
	want.Kind, want.Status, want.Automatic, want.ParentID = sandbox.FilesystemSnapshot, sandbox.SnapshotCreated, false, ""
	want.SandboxID, want.SandboxName, want.SessionID = box.ID, "base", box.SessionID
	want.Image, want.Digest, want.Runtime, want.User, want.WorkDir = box.Image, box.Digest, box.Runtime, box.User, box.WorkDir
	want.DiskMB, want.VCPUs, want.MemoryMB = 1024, box.VCPUs, box.MemoryMB
	if !reflect.DeepEqual(*snap, want) || !strings.HasPrefix(snap.ID, "snap_") || len(snap.ID) != 25 || snap.Build == "" || snap.SizeBytes <= 0 || snap.LastUsedAt != nil {
		t.Errorf("made %+v, want %+v", snap, &want)
	}
	if snap.ExpiresAt == nil || !snap.ExpiresAt.Equal(snap.CreatedAt.Add(30*24*time.Hour)) {
		t.Errorf("made at %v, it expires at %v, not after 30 days", snap.CreatedAt, snap.ExpiresAt)
	}
	for _, ref := range []string{snap.ID, "installed"} {
		if got := u.getSnapshot(ref); !reflect.DeepEqual(got, snap) {
			t.Errorf("got %+v, made %+v", got, snap)
		}
	}
	if now := u.get("base"); now.Status != sandbox.Running || now.SnapshotID != snap.ID {
		t.Errorf("its sandbox is %s and starts from %q the next time", now.Status, now.SnapshotID)
	}
	u.sh(box.ID, "echo later > g")

	other := u.create(sandbox.CreateParams{Snapshot: "installed"})
	if got := u.sh(other.ID, "cat f; stat -c %a f; ls g 2>/dev/null || echo none"); got != "kept\n640\nnone\n" {
		t.Errorf("a sandbox of it has %q", got)
	}
	if got := u.getSnapshot(snap.ID); got.LastUsedAt == nil {
		t.Error("that a sandbox started from it is not told")
	}

	never, hour := sandbox.Duration(0), sandbox.Duration(time.Hour)
	if s := u.snapshot("base", sandbox.SnapshotParams{Expiration: &never}); s.ExpiresAt != nil {
		t.Errorf("it expires at %v, not never", s.ExpiresAt)
	}
	if s := u.snapshot("base", sandbox.SnapshotParams{Expiration: &hour}); s.ExpiresAt == nil || !s.ExpiresAt.Equal(s.CreatedAt.Add(time.Hour)) {
		t.Errorf("made at %v, it expires at %v, not after an hour", s.CreatedAt, s.ExpiresAt)
	}
	_, err := u.CreateSnapshot(u.ctx, "base", sandbox.SnapshotParams{Name: "installed"})
	checktest.Code(t, err, cay.AlreadyExists)
	for _, ref := range []string{"snap_00000000000000000000", "nothing"} {
		_, err := u.GetSnapshot(u.ctx, ref)
		checktest.Code(t, err, cay.NotFound)
		_, err = u.Create(u.ctx, sandbox.CreateParams{Snapshot: ref})
		checktest.Code(t, err, cay.NotFound)
	}
}

func testListSnapshots(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	if got := u.snapshots(sandbox.SnapshotListParams{}); len(got) != 0 {
		t.Errorf("there are %v before any was made", got)
	}
	one, two := u.create(sandbox.CreateParams{Name: "one"}), u.create(sandbox.CreateParams{Name: "two"})
	var ids []string // newest first
	for i := range 5 {
		ref, p := one.ID, sandbox.SnapshotParams{}
		if i%2 == 1 {
			ref, p.Name = two.ID, fmt.Sprint("s", i)
		}
		ids = slices.Insert(ids, 0, u.snapshot(ref, p).ID)
	}
	for _, c := range []struct {
		p    sandbox.SnapshotListParams
		want []string
	}{
		{sandbox.SnapshotListParams{}, ids},
		{sandbox.SnapshotListParams{ProjectID: "*"}, ids},
		{sandbox.SnapshotListParams{Sandbox: one.ID}, []string{ids[0], ids[2], ids[4]}},
		{sandbox.SnapshotListParams{Sandbox: "two"}, []string{ids[1], ids[3]}},
		{sandbox.SnapshotListParams{Sandbox: "three"}, []string{}},
		{sandbox.SnapshotListParams{Name: "s1"}, []string{ids[3]}},
		{sandbox.SnapshotListParams{Name: "s1", Sandbox: "one"}, []string{}},
	} {
		if got := u.snapshots(c.p); !slices.Equal(got, c.want) {
			t.Errorf("by %+v: %v, want %v", c.p, got, c.want)
		}
	}
	u.deleteSnapshot(ids[3])
	if got, want := u.snapshots(sandbox.SnapshotListParams{}), slices.Delete(slices.Clone(ids), 3, 4); !slices.Equal(got, want) {
		t.Errorf("without the deleted one: %v, want %v", got, want)
	}
	if got := u.snapshots(sandbox.SnapshotListParams{Deleted: true}); !slices.Equal(got, ids) {
		t.Errorf("with the deleted one: %v, want %v", got, ids)
	}

	var all []string
	for p := (sandbox.SnapshotListParams{Limit: 2, Deleted: true}); ; {
		page, err := u.ListSnapshots(u.ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, snapshotIDs(page.Items)...)
		if page.Next == "" {
			break
		}
		if p.Cursor = page.Next; len(page.Items) != 2 || len(all) > len(ids) {
			t.Fatalf("a page has %d of 2, and there are %v so far", len(page.Items), all)
		}
	}
	if !slices.Equal(all, ids) {
		t.Errorf("by pages: %v, want %v", all, ids)
	}
	_, err := u.ListSnapshots(u.ctx, sandbox.SnapshotListParams{Cursor: "x"})
	checktest.Code(t, err, cay.Invalid)
}

func testDeleteSnapshot(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	box := u.create(sandbox.CreateParams{Name: "base"})
	first := u.snapshot("base", sandbox.SnapshotParams{Name: "first"})

	// A persistent sandbox needs the snapshot it starts from, running or not.
	needed := func(ref string) {
		t.Helper()
		_, err := u.DeleteSnapshot(u.ctx, ref, sandbox.DeleteSnapshotParams{})
		checktest.Code(t, err, cay.Conflict)
		if !strings.Contains(err.Error(), `"base"`) {
			t.Errorf("%v does not name the sandbox", err)
		}
	}
	needed("first")
	second := u.snapshot("base", sandbox.SnapshotParams{})
	gone := u.deleteSnapshot("first")
	if gone.ID != first.ID || gone.Status != sandbox.SnapshotDeleted || gone.Name != "" {
		t.Errorf("deleted, it is %+v", gone)
	}
	u.sh("base", "echo more > more")
	if _, err := u.Stop(u.ctx, "base"); err != nil {
		t.Fatal(err)
	}
	third := u.get("base").SnapshotID
	if third == second.ID {
		t.Fatal("stopping saved nothing")
	}
	needed(third)
	u.deleteSnapshot(second.ID)

	// The deleted snapshot can be read, and nothing else can be done with it.
	if got := u.getSnapshot(first.ID); !reflect.DeepEqual(got, gone) {
		t.Errorf("got %+v, deleted %+v", got, gone)
	}
	if again := u.deleteSnapshot(first.ID); !reflect.DeepEqual(again, gone) {
		t.Errorf("deleted again it is %+v, before %+v", again, gone)
	}
	_, err := u.GetSnapshot(u.ctx, "first")
	checktest.Code(t, err, cay.NotFound)
	_, err = u.Create(u.ctx, sandbox.CreateParams{Snapshot: first.ID})
	checktest.Code(t, err, cay.NotFound)
	_, err = u.ExportSnapshot(u.ctx, first.ID)
	checktest.Code(t, err, cay.NotFound)
	_, err = u.Update(u.ctx, "base", sandbox.UpdateParams{SnapshotID: &first.ID})
	checktest.Code(t, err, cay.NotFound)

	// The name is free, and the child keeps the snapshot as its parent.
	if got := u.getSnapshot(third); got.ParentID == "" {
		t.Errorf("%+v has no parent", got)
	}
	other := u.create(sandbox.CreateParams{Persistent: ephemeral})
	if again := u.snapshot(other.ID, sandbox.SnapshotParams{Name: "first"}); u.getSnapshot("first").ID != again.ID {
		t.Error("the name does not lead to the new one")
	}
	u.deleteSnapshot("first") // a sandbox that is not persistent does not need it

	// Deleting the sandbox ends its need for the snapshot, and with KeepSnapshots leaves
	// the snapshot.
	if err := u.DeleteWith(u.ctx, box.ID, sandbox.DeleteParams{KeepSnapshots: true}); err != nil {
		t.Fatal(err)
	}
	if got := u.getSnapshot(third); got.Status != sandbox.SnapshotCreated || got.SandboxID != box.ID || got.SandboxName != "base" {
		t.Errorf("its sandbox is gone, and it is %+v", got)
	}
	u.deleteSnapshot(third)
}

func testSnapshotTree(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	// Tree: root - a1, a2 - b
	of := func(parent string) *sandbox.Snapshot {
		box := u.create(sandbox.CreateParams{Snapshot: parent, Persistent: ephemeral})
		s := u.snapshot(box.ID, sandbox.SnapshotParams{})
		if s.ParentID != parent {
			t.Errorf("its parent is %q, not %q", s.ParentID, parent)
		}
		if err := u.Delete(u.ctx, box.ID); err != nil {
			t.Fatal(err)
		}
		return s
	}
	root := of("")
	a1 := of(root.ID)
	a2 := of(root.ID)
	b := of(a2.ID)
	of("") // the root of another tree

	tree := func(from string, p sandbox.SnapshotTreeParams, nodes []string, next string) *sandbox.SnapshotTree {
		t.Helper()
		got, err := u.SnapshotTree(u.ctx, from, p)
		if err != nil {
			t.Fatal(err)
		}
		way := []string{}
		for _, n := range got.Nodes {
			way = append(way, n.Snapshot.ID)
		}
		if got.Anchor.Snapshot.ID != from || !slices.Equal(way, nodes) || got.Next != next {
			t.Errorf("from %s, %+v: %s, %v, next %q; want %v, next %q", from, p, got.Anchor.Snapshot.ID, way, got.Next, nodes, next)
		}
		return got
	}
	up, down := sandbox.SnapshotTreeParams{}, sandbox.SnapshotTreeParams{Descendants: true}
	full := tree(b.ID, up, []string{a2.ID, root.ID}, "")
	for _, c := range []struct {
		node     sandbox.SnapshotNode
		siblings []string
	}{{full.Anchor, []string{}}, {full.Nodes[0], []string{a1.ID}}, {full.Nodes[1], []string{}}} {
		if got := snapshotIDs(c.node.Siblings); !slices.Equal(got, c.siblings) || c.node.Count != len(c.siblings)+1 {
			t.Errorf("the siblings of %s are %v, %d with it; want %v", c.node.Snapshot.ID, got, c.node.Count, c.siblings)
		}
	}
	tree(root.ID, up, []string{}, "")
	tree(root.ID, down, []string{a2.ID, b.ID}, "")
	tree(b.ID, sandbox.SnapshotTreeParams{Limit: 1}, []string{a2.ID}, a2.ID)
	tree(a2.ID, sandbox.SnapshotTreeParams{Limit: 1}, []string{root.ID}, "")
	tree(root.ID, sandbox.SnapshotTreeParams{Limit: 1, Descendants: true}, []string{a2.ID}, a2.ID)

	// A deleted snapshot is still part of paths, but towards children another snapshot is
	// preferred to it, and it is not shown as a sibling.
	u.deleteSnapshot(a2.ID)
	tree(b.ID, up, []string{a2.ID, root.ID}, "")
	tree(root.ID, down, []string{a1.ID}, "")
	if n := tree(a1.ID, up, []string{root.ID}, "").Anchor; n.Count != 1 {
		t.Errorf("it counts a deleted sibling: %+v", n)
	}
	u.deleteSnapshot(a1.ID)
	tree(root.ID, down, []string{a2.ID, b.ID}, "")

	_, err := u.SnapshotTree(u.ctx, root.ID, sandbox.SnapshotTreeParams{Limit: 101})
	checktest.Code(t, err, cay.Invalid)
	_, err = u.SnapshotTree(u.ctx, "snap_00000000000000000000", up)
	checktest.Code(t, err, cay.NotFound)
}

func testSnapshotTenancy(t *testing.T, cfg Config) {
	t.Parallel()
	env := cfg.New(t)
	a, a2, b := env.user(t, ProjectA), env.user(t, ProjectA2), env.user(t, ProjectB)
	team := env.user(t, TeamA)
	snap := a.snapshot(a.create(sandbox.CreateParams{Name: "mine"}).ID, sandbox.SnapshotParams{Name: "shared"})
	every := func(u *user, ref string) map[string]func() error {
		return map[string]func() error{
			"Get":    func() error { _, err := u.GetSnapshot(u.ctx, ref); return err },
			"Tree":   func() error { _, err := u.SnapshotTree(u.ctx, ref, sandbox.SnapshotTreeParams{}); return err },
			"Delete": func() error { _, err := u.DeleteSnapshot(u.ctx, ref, sandbox.DeleteSnapshotParams{}); return err },
			"Export": func() error { _, err := u.ExportSnapshot(u.ctx, ref); return err },
			"Create": func() error { _, err := u.Create(u.ctx, sandbox.CreateParams{Snapshot: ref}); return err },
			"Fork":   func() error { _, err := u.Fork(u.ctx, ref, sandbox.ForkParams{}); return err },
		}
	}
	for name, u := range map[string]*user{"OtherTeam": b, "OtherProject": a2} {
		for _, ref := range []string{snap.ID, "shared"} {
			for method, f := range every(u, ref) {
				t.Run(name+"/"+method+"/"+ref, func(t *testing.T) { checktest.Code(t, f(), cay.NotFound) })
			}
		}
		if got := u.snapshots(sandbox.SnapshotListParams{ProjectID: "*"}); len(got) != 0 {
			t.Errorf("%s lists %v", name, got)
		}
	}
	nobody := env.user(t, Nobody)
	for method, f := range every(nobody, snap.ID) {
		t.Run("Nobody/"+method, func(t *testing.T) { checktest.Code(t, f(), cay.Unauthenticated) })
	}
	_, err := nobody.ListSnapshots(nobody.ctx, sandbox.SnapshotListParams{})
	checktest.Code(t, err, cay.Unauthenticated)
	_, err = nobody.ImportSnapshot(nobody.ctx, strings.NewReader(""), sandbox.ImportParams{})
	checktest.Code(t, err, cay.Unauthenticated)
	_, err = a2.ListSnapshots(a2.ctx, sandbox.SnapshotListParams{ProjectID: "prj_a"})
	checktest.Code(t, err, cay.NotFound)

	// Names belong to a project.
	other := a2.snapshot(a2.create(sandbox.CreateParams{Name: "mine"}).ID, sandbox.SnapshotParams{Name: "shared"})
	if a.getSnapshot("shared").ID != snap.ID || a2.getSnapshot("shared").ID != other.ID || team.getSnapshot(snap.ID).ID != snap.ID {
		t.Error("a name leads to another project's snapshot")
	}
	_, err = team.GetSnapshot(team.ctx, "shared")
	checktest.Code(t, err, cay.Conflict)
	if got := team.snapshots(sandbox.SnapshotListParams{}); len(got) != 2 {
		t.Errorf("the team lists %v", got)
	}
	if got := team.snapshots(sandbox.SnapshotListParams{ProjectID: "prj_a"}); !slices.Equal(got, []string{snap.ID}) {
		t.Errorf("the team lists %v of a project", got)
	}
}

// fill writes n random bytes to a file.
func (u *user) fill(ref, path string, n int) {
	u.t.Helper()
	u.sh(ref, fmt.Sprintf("head -c %d /dev/urandom > %s", n, path))
}

func testSnapshotQuota(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	if u.env.SetQuota == nil {
		t.Skip("there are no quotas to set")
	}
	box := u.create(sandbox.CreateParams{Name: "box"})
	u.fill(box.ID, "f", 3<<20)
	u.env.SetQuota(account.DefaultTeam, account.Quota{SnapshotMB: 2})
	first := u.snapshot("box", sandbox.SnapshotParams{}) // the size is not known before
	_, err := u.CreateSnapshot(u.ctx, "box", sandbox.SnapshotParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	archive := u.export(first.ID)

	// The save of a stop is not refused, and counts.
	u.sh(box.ID, "echo more > more")
	if _, err := u.Stop(u.ctx, "box"); err != nil {
		t.Fatal(err)
	}
	saved := u.get("box").SnapshotID
	if saved == first.ID {
		t.Error("the stop saved nothing")
	}
	u.deleteSnapshot(first.ID)
	if _, err := u.Resume(u.ctx, "box", sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	_, err = u.CreateSnapshot(u.ctx, "box", sandbox.SnapshotParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	if err := u.Delete(u.ctx, "box"); err != nil {
		t.Fatal(err)
	}
	u.deleteSnapshot(saved)

	// The size of an import is known before.
	_, err = u.ImportSnapshot(u.ctx, bytes.NewReader(archive), sandbox.ImportParams{})
	checktest.Code(t, err, cay.QuotaExceeded)
	u.env.SetQuota(account.DefaultTeam, account.Quota{SnapshotMB: 10})
	if _, err := u.ImportSnapshot(u.ctx, bytes.NewReader(archive), sandbox.ImportParams{}); err != nil {
		t.Error(err)
	}
}

func testExportSnapshot(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	box := u.create(sandbox.CreateParams{Name: "base", WorkDir: "/tmp", DiskMB: 777})
	u.sh(box.ID, "echo kept > f; ln -s f link")
	snap := u.snapshot(box.ID, sandbox.SnapshotParams{Name: "installed"})
	archive := u.export("installed")
	if !bytes.Equal(archive, u.export(snap.ID)) {
		t.Error("exported twice, it differs")
	}

	hour := sandbox.Duration(time.Hour)
	copied, err := u.ImportSnapshot(u.ctx, bytes.NewReader(archive), sandbox.ImportParams{Name: "copy", Expiration: &hour})
	if err != nil {
		t.Fatal(err)
	}
	want := *copied
	want.Name, want.Kind, want.Status, want.ParentID = "copy", sandbox.FilesystemSnapshot, sandbox.SnapshotCreated, ""
	want.SandboxID, want.SandboxName, want.SessionID = "", "", ""
	want.Image, want.Digest, want.Runtime, want.User, want.WorkDir = snap.Image, snap.Digest, snap.Runtime, snap.User, "/tmp"
	want.DiskMB, want.Build = 777, snap.Build
	if copied.SizeBytes <= 0 || copied.SizeBytes > snap.SizeBytes { // an archive has no list of parts
		t.Errorf("imported %d bytes of %d", copied.SizeBytes, snap.SizeBytes)
	}
	if !reflect.DeepEqual(*copied, want) || copied.ID == snap.ID || copied.ExpiresAt == nil || !copied.ExpiresAt.Equal(copied.CreatedAt.Add(time.Hour)) {
		t.Errorf("imported %+v, want %+v", copied, &want)
	}
	if got := u.getSnapshot("copy"); !reflect.DeepEqual(got, copied) {
		t.Errorf("got %+v, imported %+v", got, copied)
	}
	other := u.create(sandbox.CreateParams{Snapshot: "copy"})
	if got := u.sh(other.ID, "cat link"); got != "kept\n" {
		t.Errorf("a sandbox of the copy has %q", got)
	}
	_, err = u.ImportSnapshot(u.ctx, bytes.NewReader(archive), sandbox.ImportParams{Name: "copy"})
	checktest.Code(t, err, cay.AlreadyExists)

	// A reader that does not want all of it closes the export.
	r, err := u.ExportSnapshot(u.ctx, "copy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 100)); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// S9: readers of a snapshot are not disturbed when it is deleted.
func testSnapshotDeletedWhileRead(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	box := u.create(sandbox.CreateParams{Persistent: ephemeral})
	u.fill(box.ID, "f", 16<<20)
	sum := u.sh(box.ID, "md5sum < f")
	snap := u.snapshot(box.ID, sandbox.SnapshotParams{})
	r, err := u.ExportSnapshot(u.ctx, snap.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	begin := make([]byte, 10_000)
	if _, err := io.ReadFull(r, begin); err != nil {
		t.Fatal(err)
	}
	u.deleteSnapshot(snap.ID)
	copied, err := u.ImportSnapshot(u.ctx, io.MultiReader(bytes.NewReader(begin), r), sandbox.ImportParams{})
	if err != nil {
		t.Fatal(err)
	}
	other := u.create(sandbox.CreateParams{Snapshot: copied.ID, Persistent: ephemeral})
	if got := u.sh(other.ID, "md5sum < f"); got != sum {
		t.Errorf("the file has the sum %s, not %s", got, sum)
	}
	// The sandbox has started, and does not need the snapshot any more.
	u.deleteSnapshot(copied.ID)
	if got := u.sh(other.ID, "md5sum < f"); got != sum {
		t.Errorf("after its snapshot was deleted the file has the sum %s, not %s", got, sum)
	}
}

func testImportSnapshot(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	box := u.create(sandbox.CreateParams{Persistent: ephemeral})
	u.fill(box.ID, "f", 1<<20)
	archive := u.export(u.snapshot(box.ID, sandbox.SnapshotParams{}).ID)
	before := u.snapshots(sandbox.SnapshotListParams{})
	damaged := bytes.Clone(archive)
	damaged[len(damaged)/2]++
	for name, c := range map[string]struct {
		archive []byte
		p       sandbox.ImportParams
		code    cay.Code
	}{
		"Empty":    {nil, sandbox.ImportParams{}, cay.Invalid},
		"Text":     {[]byte(strings.Repeat("no archive", 1000)), sandbox.ImportParams{}, cay.Invalid},
		"Half":     {archive[:len(archive)/2], sandbox.ImportParams{}, cay.Invalid},
		"Damaged":  {damaged, sandbox.ImportParams{}, cay.Invalid},
		"Longer":   {slices.Concat(archive[:len(archive)-1024], archive), sandbox.ImportParams{}, cay.Invalid},
		"Name":     {archive, sandbox.ImportParams{Name: "snap_x"}, cay.Invalid},
		"Project":  {archive, sandbox.ImportParams{ProjectID: "prj_b"}, cay.NotFound},
		"Operator": {archive, sandbox.ImportParams{Memory: true}, cay.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := u.ImportSnapshot(u.ctx, bytes.NewReader(c.archive), c.p)
			checktest.Code(t, err, c.code)
		})
	}
	// An interrupted upload leaves nothing.
	ctx, cancel := context.WithCancel(u.ctx)
	r, w := io.Pipe()
	go func() {
		if _, err := w.Write(archive[:len(archive)/2]); err != nil {
			t.Error(err)
		}
		cancel()
		w.CloseWithError(context.Canceled)
	}()
	if _, err := u.ImportSnapshot(ctx, r, sandbox.ImportParams{}); err == nil {
		t.Error("half an archive was imported")
	}
	if after := u.snapshots(sandbox.SnapshotListParams{}); !slices.Equal(after, before) {
		t.Errorf("there are %v, and were %v", after, before)
	}
}
