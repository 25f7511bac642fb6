package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// newStore opens a store over a fresh database.
func newStore(t *testing.T) *Store {
	t.Helper()
	d := dbtest.Open(t)
	s, err := Open(t.Context(), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newRow inserts a sandbox with the given ports.
func newRow(t *testing.T, s *Store, ports ...sandbox.Port) *Row {
	t.Helper()
	now := time.UnixMilli(1_700_000_000_000).UTC()
	r := &Row{Sandbox: sandbox.Sandbox{
		ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
		Timeout: minute, CreatedAt: now, UpdatedAt: now, Ports: ports,
	}}
	if _, err := s.Insert(t.Context(), Request{Row: r}); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTransitions checks every transition against the picture in doc.go: from each status
// it either happens, or changes nothing.
func TestTransitions(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	s, err := Open(t.Context(), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000).UTC()
	before := now.Add(-time.Hour)
	changedTo := func(to sandbox.Status, id string) (bool, error) {
		r, err := s.Get(ctx, id)
		return err == nil && r.Status == to, err
	}
	for _, c := range []struct {
		name string
		from []sandbox.Status
		try  func(id string) (bool, error)
	}{
		{"started", []sandbox.Status{sandbox.Pending, sandbox.Resuming}, func(id string) (bool, error) {
			return s.Started(ctx, &Row{Sandbox: sandbox.Sandbox{ID: id, SessionID: sessionOf(id), StartedAt: &now, ExpiresAt: &now, UpdatedAt: now}})
		}},
		{"startedLate", nil, func(id string) (bool, error) { // from an earlier session
			return s.Started(ctx, &Row{Sandbox: sandbox.Sandbox{ID: id, SessionID: ident.NewSession(), StartedAt: &now, ExpiresAt: &now, UpdatedAt: now}})
		}},
		{"resumed", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) {
			r, err := s.Resume(ctx, id, ident.NewSession(), ident.NewToken(), false, account.Quota{}, now)
			return r != nil, err
		}},
		{"failResuming", []sandbox.Status{sandbox.Resuming}, func(id string) (bool, error) {
			return s.Fail(ctx, id, Failure{sandbox.Resuming, sandbox.ReasonStartFailed, ""}, now)
		}},
		{"stopHibernated", []sandbox.Status{sandbox.Hibernated}, func(id string) (bool, error) { return s.StopHibernated(ctx, id, now) }},
		{"freeze", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) { return s.SetFrozen(ctx, id, true) }},
		{"pause", []sandbox.Status{sandbox.Running}, func(id string) (bool, error) {
			return s.Move(ctx, id, sandbox.Running, sandbox.Paused, now)
		}},
		{"resume", []sandbox.Status{sandbox.Paused}, func(id string) (bool, error) {
			return s.Move(ctx, id, sandbox.Paused, sandbox.Running, now)
		}},
		{"beginStop", []sandbox.Status{sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Resuming}, func(id string) (bool, error) {
			return s.BeginStop(ctx, id, sessionOf(id), End{Reason: sandbox.ReasonRequested}, now)
		}},
		{"failPending", []sandbox.Status{sandbox.Pending}, func(id string) (bool, error) {
			return s.Fail(ctx, id, Failure{sandbox.Pending, sandbox.ReasonStartFailed, ""}, now)
		}},
		{"failRunning", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			return s.Fail(ctx, id, Failure{sandbox.Running, sandbox.ReasonOOM, ""}, now)
		}},
		{"ended", []sandbox.Status{sandbox.Stopping, sandbox.Stopped}, func(id string) (bool, error) {
			if err := s.Ended(ctx, id, sessionOf(id), sandbox.Usage{}, CommandArchive{}, now); err != nil {
				return false, err
			}
			return changedTo(sandbox.Stopped, id)
		}},
		{"extend", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			return s.Extend(ctx, id, sessionOf(id), minute, 10*minute, now)
		}},
		{"extendTooFar", nil, func(id string) (bool, error) { return s.Extend(ctx, id, sessionOf(id), minute, minute, now) }},
		{"extendLate", nil, func(id string) (bool, error) { return s.Extend(ctx, id, ident.NewSession(), minute, 10*minute, now) }},
		{"beginStopLate", []sandbox.Status{sandbox.Pending}, func(id string) (bool, error) {
			return s.BeginStop(ctx, id, ident.NewSession(), End{Reason: sandbox.ReasonRequested}, now)
		}},
		{"resumedAnew", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) {
			if _, err := d.Exec(ctx, `UPDATE sandboxes SET persistent = 0 WHERE id = ?`, id); err != nil {
				return false, err
			}
			r, err := s.Resume(ctx, id, ident.NewSession(), ident.NewToken(), true, account.Quota{}, now)
			return r != nil, err
		}},
		{"network", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			_, ok, err := s.Update(ctx, id, Change{Network: &Policy{Shown: sandbox.Network{Mode: sandbox.DenyAll}}}, now)
			return ok, err
		}},
		{"remove", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) { return s.Remove(ctx, id, false, now) }},
	} {
		for _, from := range []sandbox.Status{sandbox.Pending, sandbox.Resuming, sandbox.Running, sandbox.Paused,
			sandbox.Hibernated, sandbox.Stopping, sandbox.Stopped, sandbox.Failed} {
			t.Run(c.name+"/"+string(from), func(t *testing.T) {
				id := ident.NewSandbox()
				r := &Row{Sandbox: sandbox.Sandbox{
					ID: id, SessionID: sessionOf(id), Name: ident.NewName(), Persistent: true, TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
					Timeout: minute, CreatedAt: before, UpdatedAt: before,
				}}
				if _, err := s.Insert(ctx, Request{Row: r}); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Exec(ctx, `UPDATE sandboxes SET status = ? WHERE id = ?`, from, r.ID); err != nil {
					t.Fatal(err)
				}
				ok, err := c.try(r.ID)
				if err != nil {
					t.Fatal(err)
				}
				if want := slices.Contains(c.from, from); ok != want {
					t.Fatalf("happened: %v, want %v", ok, want)
				}
				if r, err := s.Get(ctx, r.ID); err == nil && (r.Status != from) != r.StatusAt.Equal(now) {
					t.Errorf("its status went from %s to %s, and was last changed at %v", from, r.Status, r.StatusAt)
				} else if err != nil && cay.CodeOf(err) != cay.NotFound {
					t.Error(err)
				}
				if !ok {
					if same, err := changedTo(from, r.ID); !same {
						t.Fatalf("it did not happen, yet the status changed, %v", err)
					}
				}
			})
		}
	}
}

const minute = sandbox.Duration(time.Minute)

// sessionOf returns the id of the session of a sandbox.
func sessionOf(id string) string {
	return ident.SessionPrefix + strings.TrimPrefix(id, ident.SandboxPrefix)
}

// The files of a snapshot are removed only after the row that allows it is synced:
// otherwise a power cut would bring back the snapshot's row without its files.
func TestStore_LeftSnapshots_powerCut(t *testing.T) {
	t.Parallel()
	d, power := dbtest.OpenPower(t)
	ctx := t.Context()
	s, err := Open(ctx, d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change string
		list   func(ctx context.Context, last string, limit int) ([]string, error)
	}{
		{`kind = 'filesystem'`, s.MemoryLeft}, {`status = 'deleted'`, s.LeftSnapshots},
	} {
		id := ident.NewSnapshot()
		if err := s.InsertImported(ctx, &SnapshotRow{
			Snapshot: sandbox.Snapshot{ID: id, TeamID: account.DefaultTeam, ProjectID: account.DefaultProject, Kind: sandbox.MemorySnapshot}, GuestToken: "t",
		}, account.Quota{}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Unsynced().Exec(ctx, `UPDATE sandbox_snapshots SET `+c.change+` WHERE id = ?`, id); err != nil {
			t.Fatal(err)
		}
		if ids, err := c.list(ctx, "", 10); err != nil || !slices.Equal(ids, []string{id}) {
			t.Errorf("%s: listed %q, %v", c.change, ids, err)
		}
		power.Check(t, c.change)
		if _, err := d.Exec(ctx, `DELETE FROM sandbox_snapshots`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStore_NewerDatabase(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	newer := append(slices.Clone(migrations), db.Migration{Name: "of a newer cay", SQL: `CREATE TABLE newer (x)`})
	if err := d.Migrate(t.Context(), "sandboxd", newer); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), d, Options{}); cay.CodeOf(err) != cay.Conflict {
		t.Fatalf("got %v, want conflict", err)
	}
}

// TestStore_Indexes checks that queries made for each snapshot scan no more sandboxes
// than they are about.
func TestStore_Indexes(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	if _, err := Open(t.Context(), d, Options{}); err != nil {
		t.Fatal(err)
	}
	rows, err := d.Query(t.Context(), `EXPLAIN QUERY PLAN SELECT id, `+needed+` FROM sandbox_snapshots WHERE sandbox_id = ''`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			id, parent, unused int
			step               string
		)
		if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(step, "SCAN") {
			t.Errorf("all rows are read: %s", step)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

// Gone labels are remembered for 30 days, and their number is bounded.
func TestStore_Labels(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	s := newStore(t)
	ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000).UTC()
	label := ident.NewLabel()
	r := newRow(t, s, sandbox.Port{Port: 80, Access: sandbox.Public, Label: label})
	gone := func(want bool) {
		t.Helper()
		if d, err := s.Declared(ctx, label); err != nil || d.Gone != want {
			t.Fatalf("gone: %v, %v, want %v", d.Gone, err, want)
		}
	}
	gone(false)
	if _, _, err := s.Update(ctx, r.ID, Change{Ports: []sandbox.Port{}}, now); err != nil {
		t.Fatal(err)
	}
	gone(true)
	// An update that restores the old ports declares the label again.
	if _, _, err := s.Update(ctx, r.ID, Change{Ports: r.Ports}, now); err != nil {
		t.Fatal(err)
	}
	gone(false)
	if _, err := s.db.Exec(ctx, `UPDATE sandboxes SET status = 'stopped' WHERE id = ?`, r.ID); err != nil {
		t.Fatal(err)
	}
	if ok, err := s.Remove(ctx, r.ID, false, now); !ok || err != nil {
		t.Fatalf("removed: %v, %v", ok, err)
	}
	gone(true)
	if err := s.PruneLabels(ctx, now.Add(goneLifetime-time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	gone(true)
	if err := s.PruneLabels(ctx, now.Add(goneLifetime)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Declared(ctx, label); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("after 30 days: %v", err)
	}

	if _, err := s.db.Exec(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO sandbox_ports (label, sandbox_id, port, access, created_at, gone_at) SELECT 'x' || i, 'sbx', i, 'public', 0, i FROM n`,
		maxGone+500); err != nil {
		t.Fatal(err)
	}
	if err := s.PruneLabels(ctx, time.UnixMilli(0)); err != nil {
		t.Fatal(err)
	}
	var n, oldest int
	if err := s.db.QueryRow(ctx, `SELECT count(*), min(gone_at) FROM sandbox_ports`).Scan(&n, &oldest); err != nil || n != maxGone || oldest != 501 {
		t.Errorf("%d labels are kept, from %d, %v", n, oldest, err)
	}
}

// A database from before ports and flows is migrated with its rows.
func TestStore_Migrates(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	if err := d.Migrate(t.Context(), "sandboxd", migrations[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Exec(t.Context(), `INSERT INTO sandboxes (id, team_id, project_id, name, status, image, runtime, vcpus, memory_mb, disk_mb, env, tags, user,
		workdir, network, timeout, idle_timeout, created_at, updated_at, guest_token)
		VALUES ('sbx_1', 't', 'p', 'old', 'running', 'debian', '', 1, 1, 1, '{}', '{}', '', '/', '{"mode":"deny-all"}', 1, 0, 1, 1, 'x')`); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Get(t.Context(), "sbx_1")
	if err != nil || r.Network.Mode != sandbox.DenyAll || r.Sealed != nil || len(r.Ports) != 0 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// SaveUsage records the counters of each sandbox, also of more than one statement takes.
func TestSaveUsage(t *testing.T) {
	t.Parallel()
	s, ctx := newStore(t), t.Context()
	others := newRow(t, s)
	usage := make(map[string]sandbox.Usage)
	for i := range 3 {
		usage[newRow(t, s).ID] = sandbox.Usage{ActiveCPU: sandbox.Duration(i) * sandbox.Duration(time.Second), WallTime: minute,
			MemoryPeak: 1 << 40, IngressBytes: 1<<53 + 1, EgressBytes: int64(i)}
	}
	for i := range usageAtOnce {
		usage[fmt.Sprint("sbx_gone", i)] = sandbox.Usage{EgressBytes: 1}
	}
	if err := s.SaveUsage(ctx, usage); err != nil {
		t.Fatal(err)
	}
	usage[others.ID] = sandbox.Usage{}
	rows, err := s.all(ctx, `SELECT `+columns+` FROM sandboxes`)
	if err != nil || len(rows) != 4 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.Usage != usage[r.ID] {
			t.Errorf("recorded %+v, want %+v", r.Usage, usage[r.ID])
		}
	}
}
