package sandboxtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// listedPages reads a list in pages of 2 and returns the names of its items.
func listedPages[T any](t *testing.T, name func(T) string, read func(cursor string) (*sandbox.Page[T], error)) (all []string) {
	t.Helper()
	for cursor := ""; ; {
		page, err := read(cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Items {
			all = append(all, name(v))
		}
		if cursor = page.Next; cursor == "" || len(all) > 100 {
			return all
		}
	}
}

// wantReverse checks that two lists are the reverse of each other.
func wantReverse(t *testing.T, what string, ascending, descending []string) {
	t.Helper()
	back := slices.Clone(descending)
	slices.Reverse(back)
	if !slices.Equal(ascending, back) {
		t.Errorf("by %s: up %v, down %v", what, ascending, descending)
	}
}

func testOrders(t *testing.T, cfg Config) {
	t.Run("Sandboxes", func(t *testing.T) {
		u := setupSaver(t, cfg)
		for _, name := range []string{"b", "a", "C", "d", "a-1"} {
			u.create(sandbox.CreateParams{Name: name})
			if u.env.Clock != nil && name != "a" { // some have the same creation time
				u.env.Clock.Advance(time.Millisecond)
			}
		}
		u.stop("a")
		u.stop("d")
		lists := func(p sandbox.ListParams) []string {
			p.Limit = 2
			return listedPages(t, func(s sandbox.Sandbox) string { return s.Name }, func(cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
				p.Cursor = cursor
				return u.List(u.ctx, p)
			})
		}
		for _, order := range []sandbox.Order{"", sandbox.ByCreation, sandbox.ByName, sandbox.ByStatusAt, sandbox.BySnapshot} {
			wantReverse(t, string(order), lists(sandbox.ListParams{Order: order, Ascending: true}), lists(sandbox.ListParams{Order: order}))
		}
		if got, want := lists(sandbox.ListParams{Order: sandbox.ByName, Ascending: true}), []string{"C", "a", "a-1", "b", "d"}; !slices.Equal(got, want) {
			t.Errorf("by name %v, want %v", got, want)
		}
		if got, want := lists(sandbox.ListParams{Order: sandbox.ByName, NamePrefix: "a"}), []string{"a-1", "a"}; !slices.Equal(got, want) {
			t.Errorf("by name, of those with a prefix, %v, want %v", got, want)
		}
		if got := lists(sandbox.ListParams{Order: sandbox.BySnapshot}); !slices.Contains(got[:2], "a") || !slices.Contains(got[:2], "d") {
			t.Errorf("by snapshot %v, want those that have one first", got)
		}
		if got := lists(sandbox.ListParams{Order: sandbox.ByStatusAt}); u.env.Clock == nil && (got[0] != "d" || got[1] != "a") {
			t.Errorf("by the time of their status %v, want those that stopped last first", got)
		}
		page, err := u.List(u.ctx, sandbox.ListParams{Order: sandbox.ByName, Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []sandbox.ListParams{
			{Order: sandbox.ByName, Ascending: true, Cursor: page.Next}, {Cursor: page.Next}, {Order: sandbox.BySnapshot, Cursor: page.Next},
			{Order: "size"}, {Order: sandbox.ByUpdate},
		} {
			_, err := u.List(u.ctx, p)
			checktest.Code(t, err, cay.Invalid)
		}
	})
	t.Run("CreatedWithin", func(t *testing.T) {
		u := setupSaver(t, cfg)
		var at []time.Time
		for _, name := range []string{"a", "b", "c"} {
			at = append(at, u.create(sandbox.CreateParams{Name: name}).CreatedAt)
			u.env.pass(time.Second)
		}
		if at[0].Equal(at[1]) || at[1].Equal(at[2]) {
			t.Skip("they were made in the same millisecond")
		}
		for _, c := range []struct {
			p    sandbox.ListParams
			want string
		}{
			{sandbox.ListParams{CreatedAfter: at[0]}, "cb"}, {sandbox.ListParams{CreatedBefore: at[2]}, "ba"},
			{sandbox.ListParams{CreatedAfter: at[0], CreatedBefore: at[2]}, "b"}, {sandbox.ListParams{CreatedAfter: at[2]}, ""},
		} {
			page, err := u.List(u.ctx, c.p)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, s := range page.Items {
				got += s.Name
			}
			if got != c.want {
				t.Errorf("%v to %v: %q, want %q", c.p.CreatedAfter, c.p.CreatedBefore, got, c.want)
			}
		}
		made, err := u.CreateSnapshot(u.ctx, "a", sandbox.SnapshotParams{})
		if err != nil {
			t.Fatal(err)
		}
		for p, want := range map[sandbox.SnapshotListParams]int{
			{CreatedBefore: made.CreatedAt.Add(time.Millisecond)}: 1, {CreatedAfter: made.CreatedAt.Add(-time.Millisecond)}: 1,
			{CreatedBefore: made.CreatedAt}: 0, {CreatedAfter: made.CreatedAt}: 0,
		} {
			if page, err := u.ListSnapshots(u.ctx, p); err != nil || len(page.Items) != want {
				t.Errorf("snapshots %v to %v: %+v, %v", p.CreatedAfter, p.CreatedBefore, page, err)
			}
		}
	})
	t.Run("Drives", func(t *testing.T) {
		u := setupDrives(t, cfg)
		for _, name := range []string{"b", "a", "c"} {
			u.drive(sandbox.CreateDriveParams{Name: name})
		}
		lists := func(p sandbox.DriveListParams) []string {
			p.Limit = 2
			return listedPages(t, func(d sandbox.Drive) string { return d.Name }, func(cursor string) (*sandbox.Page[sandbox.Drive], error) {
				p.Cursor = cursor
				return u.ListDrives(u.ctx, p)
			})
		}
		for _, order := range []sandbox.Order{"", sandbox.ByCreation, sandbox.ByName, sandbox.ByUpdate} {
			wantReverse(t, string(order), lists(sandbox.DriveListParams{Order: order, Ascending: true}), lists(sandbox.DriveListParams{Order: order}))
		}
		if got, want := lists(sandbox.DriveListParams{Order: sandbox.ByName, Ascending: true}), []string{"a", "b", "c"}; !slices.Equal(got, want) {
			t.Errorf("by name %v, want %v", got, want)
		}
		_, err := u.ListDrives(u.ctx, sandbox.DriveListParams{Order: sandbox.BySnapshot})
		checktest.Code(t, err, cay.Invalid)
	})
	t.Run("SnapshotsAndSessions", func(t *testing.T) {
		u := setupSaver(t, cfg)
		s := u.create(sandbox.CreateParams{Name: "kept"})
		for range 3 {
			u.stop(s.ID)
			u.resume(s.ID)
		}
		snapshots := func(ascending bool) []string {
			return listedPages(t, func(s sandbox.Snapshot) string { return s.ID }, func(cursor string) (*sandbox.Page[sandbox.Snapshot], error) {
				return u.ListSnapshots(u.ctx, sandbox.SnapshotListParams{Ascending: ascending, Limit: 2, Cursor: cursor})
			})
		}
		sessions := func(ascending bool) []string {
			return listedPages(t, func(s sandbox.Session) string { return s.ID }, func(cursor string) (*sandbox.Page[sandbox.Session], error) {
				return u.Sessions(u.ctx, s.ID, sandbox.SessionParams{Ascending: ascending, Limit: 2, Cursor: cursor})
			})
		}
		wantReverse(t, "snapshots", snapshots(true), snapshots(false))
		wantReverse(t, "sessions", sessions(true), sessions(false))
		if got := sessions(true); len(got) != 4 || got[0] != s.SessionID {
			t.Errorf("sessions %v, want 4, and %s first", got, s.SessionID)
		}
		page, err := u.Sessions(u.ctx, s.ID, sandbox.SessionParams{Limit: 2})
		if err != nil {
			t.Fatal(err)
		}
		_, err = u.Sessions(u.ctx, s.ID, sandbox.SessionParams{Ascending: true, Cursor: page.Next})
		checktest.Code(t, err, cay.Invalid)
		_, err = u.ListSessions(u.ctx, sandbox.SessionListParams{Cursor: page.Next})
		checktest.Code(t, err, cay.Invalid)
	})
}

// testAllSessions checks that sessions are read by their id and listed over all
// sandboxes.
func testAllSessions(t *testing.T, cfg Config) {
	t.Parallel()
	env := cfg.New(t)
	a, a2, team, b := env.user(t, ProjectA).saver(), env.user(t, ProjectA2).saver(), env.user(t, TeamA).saver(), env.user(t, ProjectB).saver()
	s := a.create(sandbox.CreateParams{Name: "kept", VCPUs: 1, MemoryMB: 512})
	other := a2.create(sandbox.CreateParams{})
	foreign := b.create(sandbox.CreateParams{})

	running, err := a.GetSession(a.ctx, s.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	if running.ID != s.SessionID || running.SandboxID != s.ID || running.Status != sandbox.Running || running.StartedAt == nil || running.StoppedAt != nil ||
		running.Timeout != s.Timeout || running.VCPUs != 1 || running.MemoryMB != 512 || running.SourceID != "" || running.SnapshotID != "" {
		t.Errorf("the running session is %+v", running)
	}
	if env.Clock != nil {
		env.Clock.Advance(10 * time.Second)
		if got, err := a.GetSession(a.ctx, s.SessionID); err != nil || time.Duration(got.Usage.WallTime) != 10*time.Second {
			t.Errorf("after 10s it is %+v, %v", got, err)
		}
	}
	stopped := a.stop(s.ID)
	later := a.resume(s.ID)
	ended, err := a.GetSession(a.ctx, s.SessionID)
	if err != nil {
		t.Fatal(err)
	}
	if ended.Status != sandbox.Stopped || ended.Reason != sandbox.ReasonRequested || ended.StoppedAt == nil || ended.SnapshotID != stopped.SnapshotID ||
		ended.Usage != stopped.Usage {
		t.Errorf("the ended session is %+v, and the sandbox stopped as %+v", ended, stopped)
	}
	if got, err := team.GetSession(team.ctx, later.SessionID); err != nil || got.SourceID != stopped.SnapshotID || got.Status != sandbox.Running {
		t.Errorf("the later session is %+v, %v", got, err)
	}

	list := func(u saver, p sandbox.SessionListParams) []string {
		t.Helper()
		p.Limit = 2
		return listedPages(t, func(s sandbox.Session) string { return s.ID }, func(cursor string) (*sandbox.Page[sandbox.Session], error) {
			p.Cursor = cursor
			return u.ListSessions(u.ctx, p)
		})
	}
	sorted := func(ids ...string) string { return fmt.Sprint(slices.Sorted(slices.Values(ids))) }
	for name, c := range map[string]struct {
		got  []string
		want string
	}{
		"project":         {list(a, sandbox.SessionListParams{}), sorted(s.SessionID, later.SessionID)},
		"other project":   {list(a2, sandbox.SessionListParams{}), sorted(other.SessionID)},
		"team":            {list(team, sandbox.SessionListParams{}), sorted(s.SessionID, later.SessionID, other.SessionID)},
		"team's project":  {list(team, sandbox.SessionListParams{ProjectID: "prj_a2"}), sorted(other.SessionID)},
		"another team":    {list(b, sandbox.SessionListParams{ProjectID: "*"}), sorted(foreign.SessionID)},
		"all of the team": {list(team, sandbox.SessionListParams{ProjectID: "*"}), sorted(s.SessionID, later.SessionID, other.SessionID)},
	} {
		if got := sorted(c.got...); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	wantReverse(t, "creation", list(team, sandbox.SessionListParams{Ascending: true}), list(team, sandbox.SessionListParams{}))
	_, err = a.ListSessions(a.ctx, sandbox.SessionListParams{ProjectID: "prj_b"})
	checktest.Code(t, err, cay.NotFound)
	_, err = a.ListSessions(a.ctx, sandbox.SessionListParams{Limit: 201})
	checktest.Code(t, err, cay.Invalid)
	nobody := env.user(t, Nobody).saver()
	_, err = nobody.ListSessions(nobody.ctx, sandbox.SessionListParams{})
	checktest.Code(t, err, cay.Unauthenticated)
	_, err = nobody.GetSession(nobody.ctx, s.SessionID)
	checktest.Code(t, err, cay.Unauthenticated)

	if err := a.Delete(a.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	_, err = a.GetSession(a.ctx, s.SessionID)
	checktest.Code(t, err, cay.NotFound)
	if got := list(a, sandbox.SessionListParams{}); len(got) != 0 {
		t.Errorf("sessions of a deleted sandbox: %v", got)
	}
}

// testAnnotations checks the annotations of sandboxes, drives and snapshots.
func testAnnotations(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	notes := map[string]string{"vendor.region": "iad1", "ключ": "a=b\n\x00c", "empty": ""}
	want := func(what string, got, want map[string]string) {
		t.Helper()
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		for k, v := range want {
			if g, ok := got[k]; !ok || g != v {
				t.Errorf("%s: %q is %q, want %q", what, k, g, v)
			}
		}
	}
	s := u.create(sandbox.CreateParams{Name: "kept", Annotations: notes})
	want("created", s.Annotations, notes)
	want("read", u.get(s.ID).Annotations, notes)
	snap := u.snapshot(s.ID, sandbox.SnapshotParams{})
	want("snapshot", snap.Annotations, notes)
	fork := func(p sandbox.ForkParams) map[string]string {
		t.Helper()
		p.Kind = sandbox.FilesystemSnapshot
		f, err := u.Fork(u.ctx, s.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		return u.get(f.Sandboxes[0].ID).Annotations
	}
	want("fork", fork(sandbox.ForkParams{}), notes)
	want("fork with others", fork(sandbox.ForkParams{Annotations: map[string]string{"own": "1"}}), map[string]string{"own": "1"})
	want("fork without", fork(sandbox.ForkParams{Annotations: map[string]string{}}), nil)
	f, err := u.Fork(u.ctx, snap.ID, sandbox.ForkParams{})
	if err != nil {
		t.Fatal(err)
	}
	want("fork of the snapshot", f.Sandboxes[0].Annotations, notes)
	update := func(a map[string]string) map[string]string {
		t.Helper()
		got, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Annotations: a})
		if err != nil {
			t.Fatal(err)
		}
		return got.Annotations
	}
	want("not updated", update(nil), notes)
	want("updated", update(map[string]string{"new": "x"}), map[string]string{"new": "x"})
	u.stop(s.ID)
	want("updated at rest", update(map[string]string{"rest": "y"}), map[string]string{"rest": "y"})
	want("resumed", u.resume(s.ID).Annotations, map[string]string{"rest": "y"})
	want("cleared", update(map[string]string{}), nil)
	if got, err := u.GetSnapshot(u.ctx, snap.ID); err != nil {
		t.Error(err)
	} else {
		want("snapshot afterwards", got.Annotations, notes)
	}

	d := u.drives().drive(sandbox.CreateDriveParams{Name: "data", Annotations: notes})
	want("drive", d.Annotations, notes)
	want("drive read", u.drives().getDrive("data").Annotations, notes)

	long := map[string]string{}
	for i := range 33 {
		long[fmt.Sprint(i)] = ""
	}
	for _, bad := range []map[string]string{
		{"": "x"}, {strings.Repeat("k", 65): "x"}, {"a\nb": "x"}, {"k": strings.Repeat("v", 1025)}, long,
	} {
		_, err := u.Create(u.ctx, sandbox.CreateParams{Annotations: bad})
		checktest.Code(t, err, cay.Invalid)
		_, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Annotations: bad})
		checktest.Code(t, err, cay.Invalid)
		_, err = u.Fork(u.ctx, s.ID, sandbox.ForkParams{Annotations: bad})
		checktest.Code(t, err, cay.Invalid)
		_, err = u.drives().CreateDrive(u.ctx, sandbox.CreateDriveParams{Name: "bad", Annotations: bad})
		checktest.Code(t, err, cay.Invalid)
	}
}
