package sandboxd

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// TestTransitions holds every transition to the picture in doc.go: from each
// status it either happens, or changes nothing.
func TestTransitions(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := openStore(t.Context(), d, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000).UTC()
	before := now.Add(-time.Hour)
	changedTo := func(to sandbox.Status, id string) (bool, error) {
		r, err := s.get(ctx, id)
		return err == nil && r.Status == to, err
	}
	for _, c := range []struct {
		name string
		from []sandbox.Status
		try  func(id string) (bool, error)
	}{
		{"started", []sandbox.Status{sandbox.Pending, sandbox.Resuming}, func(id string) (bool, error) {
			return s.started(ctx, &row{Sandbox: sandbox.Sandbox{ID: id, SessionID: sessionOf(id), StartedAt: &now, ExpiresAt: &now, UpdatedAt: now}})
		}},
		{"startedLate", nil, func(id string) (bool, error) { // of a session before
			return s.started(ctx, &row{Sandbox: sandbox.Sandbox{ID: id, SessionID: ident.NewSession(), StartedAt: &now, ExpiresAt: &now, UpdatedAt: now}})
		}},
		{"resumed", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) {
			r, err := s.resume(ctx, id, ident.NewSession(), ident.NewToken(), false, account.Quota{}, now)
			return r != nil, err
		}},
		{"failResuming", []sandbox.Status{sandbox.Resuming}, func(id string) (bool, error) {
			return s.fail(ctx, id, failure{sandbox.Resuming, sandbox.ReasonStart, ""}, now)
		}},
		{"stopHibernated", []sandbox.Status{sandbox.Hibernated}, func(id string) (bool, error) { return s.stopHibernated(ctx, id, now) }},
		{"freeze", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) { return s.setFrozen(ctx, id, true) }},
		{"pause", []sandbox.Status{sandbox.Running}, func(id string) (bool, error) {
			return s.move(ctx, id, sandbox.Running, sandbox.Paused, now)
		}},
		{"resume", []sandbox.Status{sandbox.Paused}, func(id string) (bool, error) {
			return s.move(ctx, id, sandbox.Paused, sandbox.Running, now)
		}},
		{"beginStop", []sandbox.Status{sandbox.Pending, sandbox.Running, sandbox.Paused, sandbox.Resuming}, func(id string) (bool, error) {
			return s.beginStop(ctx, id, sessionOf(id), end{reason: sandbox.ReasonRequested}, now)
		}},
		{"failPending", []sandbox.Status{sandbox.Pending}, func(id string) (bool, error) {
			return s.fail(ctx, id, failure{sandbox.Pending, sandbox.ReasonStart, ""}, now)
		}},
		{"failRunning", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			return s.fail(ctx, id, failure{sandbox.Running, sandbox.ReasonOOM, ""}, now)
		}},
		{"ended", []sandbox.Status{sandbox.Stopping, sandbox.Stopped}, func(id string) (bool, error) {
			if err := s.ended(ctx, id, sessionOf(id), sandbox.Usage{}, keptCommands{}, now); err != nil {
				return false, err
			}
			return changedTo(sandbox.Stopped, id)
		}},
		{"extend", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			return s.extend(ctx, id, sessionOf(id), minute, 10*minute, now)
		}},
		{"extendTooFar", nil, func(id string) (bool, error) { return s.extend(ctx, id, sessionOf(id), minute, minute, now) }},
		{"extendLate", nil, func(id string) (bool, error) { return s.extend(ctx, id, ident.NewSession(), minute, 10*minute, now) }},
		{"beginStopLate", []sandbox.Status{sandbox.Pending}, func(id string) (bool, error) {
			return s.beginStop(ctx, id, ident.NewSession(), end{reason: sandbox.ReasonRequested}, now)
		}},
		{"resumedAnew", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) {
			if _, err := d.Exec(ctx, `UPDATE sandboxes SET persistent = 0 WHERE id = ?`, id); err != nil {
				return false, err
			}
			r, err := s.resume(ctx, id, ident.NewSession(), ident.NewToken(), true, account.Quota{}, now)
			return r != nil, err
		}},
		{"network", []sandbox.Status{sandbox.Running, sandbox.Paused}, func(id string) (bool, error) {
			_, ok, err := s.update(ctx, id, change{network: &policy{shown: sandbox.Network{Mode: sandbox.DenyAll}}}, now)
			return ok, err
		}},
		{"remove", []sandbox.Status{sandbox.Stopped, sandbox.Failed, sandbox.Hibernated}, func(id string) (bool, error) { return s.remove(ctx, id, now) }},
	} {
		for _, from := range []sandbox.Status{sandbox.Pending, sandbox.Resuming, sandbox.Running, sandbox.Paused,
			sandbox.Hibernated, sandbox.Stopping, sandbox.Stopped, sandbox.Failed} {
			t.Run(c.name+"/"+string(from), func(t *testing.T) {
				id := ident.NewSandbox()
				r := &row{Sandbox: sandbox.Sandbox{
					ID: id, SessionID: sessionOf(id), Name: ident.NewName(), Persistent: true, TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
					Timeout: minute, CreatedAt: before, UpdatedAt: before,
				}}
				if _, err := s.insert(ctx, request{row: r}); err != nil {
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
				if r, err := s.get(ctx, r.ID); err == nil && (r.Status != from) != r.StatusAt.Equal(now) {
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

// sessionOf is the session of a sandbox that has one.
func sessionOf(id string) string {
	return ident.SessionPrefix + strings.TrimPrefix(id, ident.SandboxPrefix)
}

func TestStore_NewerDatabase(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	newer := append(slices.Clone(migrations), db.Migration{Name: "of a newer cay", SQL: `CREATE TABLE newer (x)`})
	if err := d.Migrate(t.Context(), "sandboxd", newer); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(t.Context(), d, nil); cay.CodeOf(err) != cay.Conflict {
		t.Fatalf("got %v, want conflict", err)
	}
}

// TestStore_Indexes: what is asked for each snapshot looks at no more sandboxes
// than it is about.
func TestStore_Indexes(t *testing.T) {
	t.Parallel()
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := openStore(t.Context(), d, nil); err != nil {
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
