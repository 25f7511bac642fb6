package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// actor does random operations on a store. Operations may be refused: a refused one must
// not change the counters either.
type actor struct {
	t         *testing.T
	s         *Store
	rnd       *rand.Rand
	now       time.Time
	teams     []Scope
	sandboxes []string
	snapshots []string
	drives    []string
}

func newActor(t *testing.T, s *Store) *actor {
	a := &actor{t: t, s: s, rnd: seedtest.Rand(t), now: time.UnixMilli(1_700_000_000_000).UTC()}
	for _, team := range []string{"team_a", "team_b"} {
		for i := range 3 {
			a.teams = append(a.teams, Scope{team, fmt.Sprint(team, "_", i)})
		}
	}
	return a
}

func (a *actor) scope() Scope { return a.teams[a.rnd.IntN(len(a.teams))] }

// pick returns one of the ids, or an id that does not exist.
func (a *actor) pick(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return ids[a.rnd.IntN(len(ids))]
}

func (a *actor) row(ctx context.Context) *Row {
	sc := a.scope()
	r := &Row{Sandbox: sandbox.Sandbox{
		ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: sc.Team, ProjectID: sc.Project,
		VCPUs: float64(1+a.rnd.IntN(30)) / 10, MemoryMB: int64(128 * (1 + a.rnd.IntN(8))), DiskMB: 1024, Timeout: minute,
		Persistent: a.rnd.IntN(2) == 0, CreatedAt: a.now, UpdatedAt: a.now,
	}}
	if len(a.drives) > 0 && a.rnd.IntN(3) == 0 {
		mode := []sandbox.MountMode{sandbox.MountReadWrite, sandbox.MountReadOnly}[a.rnd.IntN(2)]
		r.Mounts = []sandbox.Mount{{Drive: a.pick(a.drives), Path: "/d", Mode: mode}}
		if d, err := a.s.GetDrive(ctx, r.Mounts[0].Drive); err == nil {
			r.TeamID, r.ProjectID = d.TeamID, d.ProjectID
		}
	}
	if len(a.snapshots) > 0 && a.rnd.IntN(3) == 0 {
		r.SnapshotID = a.pick(a.snapshots)
	}
	return r
}

func (a *actor) snapshot(r *Row) *SnapshotRow {
	snap := &SnapshotRow{Snapshot: sandbox.Snapshot{
		ID: ident.NewSnapshot(), TeamID: r.TeamID, ProjectID: r.ProjectID, SandboxID: r.ID, SandboxName: r.Name, SessionID: r.SessionID,
		Kind: sandbox.FilesystemSnapshot, Automatic: a.rnd.IntN(2) == 0, SizeBytes: a.rnd.Int64N(1 << 30), CreatedAt: a.now, UpdatedAt: a.now,
	}, GuestToken: "token"}
	if a.rnd.IntN(3) == 0 {
		at := a.now.Add(time.Duration(a.rnd.IntN(100)) * time.Minute)
		snap.ExpiresAt = &at
	}
	a.snapshots = append(a.snapshots, snap.ID)
	return snap
}

// some returns the row of a sandbox, or of one that does not exist.
func (a *actor) some(ctx context.Context) *Row {
	r, err := a.s.Get(ctx, a.pick(a.sandboxes))
	if err != nil {
		r = a.row(ctx)
	}
	r.UpdatedAt, r.StartedAt = a.now, &a.now
	at := a.now.Add(time.Hour)
	r.ExpiresAt = &at
	return r
}

// step does one operation. It returns the operation's name.
func (a *actor) step(ctx context.Context) (name string, err error) {
	a.now = a.now.Add(time.Duration(a.rnd.IntN(60)) * time.Second)
	quota := account.Quota{Sandboxes: 40, VCPUs: 60, MemoryMB: 40_000, DiskMB: 80_000, SnapshotMB: 40_000, CreatesPerMinute: 1000}
	steps := a.steps(quota)
	s := steps[a.rnd.IntN(len(steps))]
	err = s.do(ctx, a.some(ctx))
	if cay.CodeOf(err) != cay.Internal || errors.Is(err, sql.ErrNoRows) {
		err = nil // refused, or there is no such sandbox
	}
	return s.name, err
}

type step struct {
	name string
	do   func(ctx context.Context, r *Row) error
}

func (a *actor) steps(quota account.Quota) []step {
	s := a.s
	archive := func() CommandArchive {
		if a.rnd.IntN(2) == 0 {
			return CommandArchive{}
		}
		return CommandArchive{Blob: ident.NewSession(), Bytes: 1 + a.rnd.Int64N(300)}
	}
	insert := step{"insert", func(ctx context.Context, _ *Row) error {
		r := a.row(ctx)
		_, err := s.Insert(ctx, Request{Row: r, Quota: quota, Key: []string{"", ident.NewName()}[a.rnd.IntN(2)], Hash: []byte("hash")})
		a.sandboxes = append(a.sandboxes, r.ID)
		return err
	}}
	started := step{"started", func(ctx context.Context, r *Row) error {
		_, err := s.Started(ctx, r)
		return err
	}}
	beginStop := step{"begin stop", func(ctx context.Context, r *Row) error {
		_, err := s.BeginStop(ctx, r.ID, r.SessionID, End{Reason: sandbox.ReasonRequested, Deleting: a.rnd.IntN(4) == 0}, a.now)
		return err
	}}
	ended := step{"ended", func(ctx context.Context, r *Row) error {
		return s.Ended(ctx, r.ID, r.SessionID, sandbox.Usage{}, archive(), a.now)
	}}
	resume := step{"resume", func(ctx context.Context, r *Row) error {
		_, err := s.Resume(ctx, r.ID, ident.NewSession(), ident.NewToken(), a.rnd.IntN(2) == 0, quota, a.now)
		return err
	}}
	return append(append([]step{insert, insert, insert, started, started, started, beginStop, beginStop, ended, ended, ended, resume, resume},
		a.rareSteps(quota, archive)...), a.savedSteps(quota)...)
}

func (a *actor) rareSteps(quota account.Quota, archive func() CommandArchive) []step {
	s := a.s
	return []step{
		{"fail", func(ctx context.Context, r *Row) error {
			from := []sandbox.Status{sandbox.Pending, sandbox.Resuming, sandbox.Running}[a.rnd.IntN(3)]
			_, err := s.Fail(ctx, r.ID, Failure{From: from, Reason: sandbox.ReasonStartFailed}, a.now)
			return err
		}},
		{"delete failed", func(ctx context.Context, r *Row) error { return s.DeleteFailed(ctx, r.ID, a.now) }},
		{"pause", func(ctx context.Context, r *Row) error {
			_, err := s.Move(ctx, r.ID, sandbox.Running, sandbox.Paused, a.now)
			return err
		}},
		{"hibernated", func(ctx context.Context, r *Row) error {
			snap := a.snapshot(r)
			snap.Hibernated, snap.Kind = true, sandbox.MemorySnapshot
			_, err := s.Hibernated(ctx, snap, sandbox.Usage{}, archive(), a.now)
			return err
		}},
		{"stop hibernated", func(ctx context.Context, r *Row) error {
			_, err := s.StopHibernated(ctx, r.ID, a.now)
			return err
		}},
		{"remove", func(ctx context.Context, r *Row) error {
			_, err := s.Remove(ctx, r.ID, a.rnd.IntN(2) == 0, a.now)
			return err
		}},
		{"update", func(ctx context.Context, r *Row) error {
			vcpus, persistent := float64(1+a.rnd.IntN(30))/10, a.rnd.IntN(2) == 0
			_, _, err := s.Update(ctx, r.ID, Change{Next: NextSession{VCPUs: &vcpus}, Persistent: &persistent, Tags: map[string]string{"a": "b"}}, a.now)
			return err
		}},
		{"fork", func(ctx context.Context, r *Row) error {
			f := &Copies{Count: 2, Base: r.Name, Row: *r, Quota: quota}
			for range f.Count {
				c := a.row(ctx)
				c.TeamID, c.ProjectID, c.Mounts = r.TeamID, r.ProjectID, nil
				f.Rows = append(f.Rows, c)
				a.sandboxes = append(a.sandboxes, c.ID)
			}
			if err := s.InsertFork(ctx, f); err != nil {
				return err
			}
			for _, c := range f.Rows {
				c.StartedAt, c.ExpiresAt = &a.now, &a.now
			}
			_, err := s.Forked(ctx, f)
			return err
		}},
	}
}

func (a *actor) savedSteps(quota account.Quota) []step {
	s := a.s
	return []step{
		{"snapshotted", func(ctx context.Context, r *Row) error { return s.Snapshotted(ctx, a.snapshot(r), a.now) }},
		{"imported", func(ctx context.Context, r *Row) error { return s.InsertImported(ctx, a.snapshot(r), quota) }},
		{"delete snapshot", func(ctx context.Context, _ *Row) error {
			_, err := s.DeleteSnapshot(ctx, a.pick(a.snapshots), a.rnd.IntN(2) == 0, a.now)
			return err
		}},
		{"snapshot removed", func(ctx context.Context, _ *Row) error { return s.SnapshotRemoved(ctx, a.pick(a.snapshots)) }},
		{"memory dropped", func(ctx context.Context, _ *Row) error {
			return s.MemoryDropped(ctx, a.pick(a.snapshots), a.rnd.Int64N(1<<20))
		}},
		{"retain", func(ctx context.Context, r *Row) error {
			_, err := s.Retain(ctx, r.ID, a.now, a.now)
			return err
		}},
		{"prune", func(ctx context.Context, r *Row) error {
			_, err := s.PruneSnapshots(ctx, r.Scope(), a.now.Add(-time.Hour), false, a.now)
			return err
		}},
		{"expire", func(ctx context.Context, _ *Row) error {
			_, err := s.ExpireSnapshots(ctx, time.Time{}, a.now, a.now)
			return err
		}},
		{"forget", func(ctx context.Context, _ *Row) error { return s.ForgetSnapshots(ctx, a.now.Add(-time.Hour)) }},
		{"insert drive", func(ctx context.Context, r *Row) error {
			d := &DriveRow{Drive: sandbox.Drive{ID: ident.NewDrive(), Name: ident.NewName(), TeamID: r.TeamID, ProjectID: r.ProjectID,
				MaxMB: 64, SizeBytes: a.rnd.Int64N(1 << 20), CreatedAt: a.now, UpdatedAt: a.now}}
			a.drives = append(a.drives, d.ID)
			return s.InsertDrive(ctx, d, quota)
		}},
		{"switch drive", func(ctx context.Context, r *Row) error {
			for _, m := range r.Mounts {
				had, err := s.GetDrive(ctx, m.Drive)
				if err != nil {
					return err
				}
				d := SavedDrive{BlobID: ident.NewDrive(), SizeBytes: a.rnd.Int64N(1 << 20), Over: had.BlobID, SandboxID: r.ID, SessionID: r.SessionID}
				if _, err := s.SwitchDrive(ctx, m.Drive, d, a.now); err != nil {
					return err
				}
			}
			return nil
		}},
		{"resize drive", func(ctx context.Context, _ *Row) error {
			_, err := s.db.Exec(ctx, `UPDATE sandbox_drives SET size_bytes = ? WHERE id = ?`, a.rnd.Int64N(1<<20), a.pick(a.drives))
			return err
		}},
		{"remove drive", func(ctx context.Context, _ *Row) error {
			_, err := s.RemoveDrive(ctx, a.pick(a.drives))
			return err
		}},
	}
}

// The counters agree with a count of the rows after any sequence of operations, also of
// operations that are refused.
func TestCounts(t *testing.T) {
	t.Parallel()
	s, err := Open(t.Context(), dbtest.Open(t), Options{MaxCommands: 1000})
	if err != nil {
		t.Fatal(err)
	}
	a := newActor(t, s)
	done := make(map[string]int)
	for i := range 800 {
		name, err := a.step(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		done[name]++
		if i%10 != 9 {
			continue
		}
		wrong, err := wrongCounts(t.Context(), s.db)
		if err != nil {
			t.Fatal(err)
		}
		if len(wrong) > 0 {
			t.Fatalf("after %s: %s", name, strings.Join(wrong, "\n"))
		}
	}
	for _, sc := range append(a.teams, Scope{Team: "team_a"}) {
		sandboxes, snapshots, drives, err := s.Count(t.Context(), sc)
		if err != nil {
			t.Fatal(err)
		}
		want := [3]int{}
		for i, q := range []string{`sandboxes WHERE`, `sandbox_snapshots WHERE status = 'created' AND`, `sandbox_drives WHERE`} {
			if err := s.db.QueryRow(t.Context(), `SELECT count(*) FROM `+q+` team_id = ? AND (? = '' OR project_id = ?)`, sc.Team, sc.Project, sc.Project).Scan(&want[i]); err != nil {
				t.Fatal(err)
			}
			if want[i] == 0 && sc.Project == "" {
				t.Errorf("%v has nothing of %s", sc, q)
			}
		}
		if got := [3]int{sandboxes, snapshots, drives}; got != want {
			t.Errorf("%v has %v, counted as %v", sc, want, got)
		}
	}
	var bytes int64
	if err := s.db.QueryRow(t.Context(), `SELECT sum(command_bytes) FROM sandbox_counts`).Scan(&bytes); err != nil || bytes == 0 {
		t.Errorf("%d bytes of kept commands, %v", bytes, err)
	}
}

// CheckCounts mends wrong counters, missing ones, and those of projects without rows.
func TestCheckCounts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	newRow(t, s)
	if mended, err := s.CheckCounts(t.Context()); err != nil || len(mended) > 0 {
		t.Fatalf("right counters: %v, %v", mended, err)
	}
	for _, breakage := range []string{
		`UPDATE sandbox_counts SET live = live + 1`,
		`DELETE FROM sandbox_counts`,
		`INSERT INTO sandbox_counts (team_id, project_id, drives) VALUES ('gone', 'gone', 1)`,
	} {
		if _, err := s.db.Exec(t.Context(), breakage); err != nil {
			t.Fatal(err)
		}
		if mended, err := s.CheckCounts(t.Context()); err != nil || len(mended) != 1 {
			t.Errorf("after %s: %v, %v; want one difference", breakage, mended, err)
		}
		if mended, err := s.CheckCounts(t.Context()); err != nil || len(mended) > 0 {
			t.Errorf("a second check after %s: %v, %v", breakage, mended, err)
		}
	}
}

// Rows of an earlier version are counted.
func TestCounts_EarlierVersion(t *testing.T) {
	t.Parallel()
	d, ctx := dbtest.Open(t), t.Context()
	at := slices.IndexFunc(migrations, func(m db.Migration) bool { return m.Name == indexMigration.Name })
	if err := d.Migrate(ctx, "sandboxd", migrations[:at]); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`INSERT INTO sandboxes (id, team_id, project_id, name, status, image, runtime, vcpus, memory_mb, disk_mb, drives_mb, env, tags, user, workdir, network,
			timeout, idle_timeout, created_at, updated_at, guest_token, session_id) VALUES
			('sbx_1', 't', 'p', 'a', 'stopped', 'i', '', 1, 10, 100, 0, '{}', '{}', '', '', '{}', 1, 0, 1, 1, '', 'ses_1'),
			('sbx_2', 't', 'p', 'b', 'running', 'i', '', 0.3, 10, 100, 7, '{}', '{}', '', '', '{}', 1, 0, 1, 1, '', 'ses_2'),
			('sbx_3', 't', 'q', 'c', 'paused', 'i', '', 2, 20, 200, 0, '{}', '{}', '', '', '{}', 1, 0, 1, 1, '', 'ses_3')`,
		`INSERT INTO sandbox_drives (id, team_id, project_id, name, max_mb, size_bytes, created_at, updated_at) VALUES ('drv_1', 't', 'p', 'd', 1, 5, 1, 1)`,
		`INSERT INTO sandbox_sessions (id, sandbox_id, number, status, vcpus, memory_mb, timeout, created_at, team_id, commands, commands_bytes) VALUES
			('ses_1', 'sbx_1', 1, '', 1, 1, 1, 1, 't', 'blob', 3)`,
	} {
		if _, err := d.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(ctx, d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := counts{sandboxes: 3, live: 2, microcpus: 2_300_000, memoryMB: 30, diskMB: 307, drives: 1, driveBytes: 5, commandBytes: 3}
	if got, err := countsOf(ctx, s.db, Scope{Team: "t"}); err != nil || got != want {
		t.Errorf("counted %+v, %v; want %+v", got, err, want)
	}
	if wrong, err := wrongCounts(ctx, d); err != nil || len(wrong) > 0 {
		t.Errorf("%v, %v", wrong, err)
	}
}
