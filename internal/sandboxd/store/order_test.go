package store

import (
	"cmp"
	"context"
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

// listed is an object of a list, with its sort key.
type listed struct {
	key any
	id  string
}

func compareListed(a, b listed) int {
	switch x := a.key.(type) {
	case string:
		return cmp.Or(strings.Compare(x, b.key.(string)), strings.Compare(a.id, b.id))
	default:
		return cmp.Or(cmp.Compare(x.(int64), b.key.(int64)), strings.Compare(a.id, b.id))
	}
}

// TestStore_Orders checks that the pages of a list together are the whole list, in every
// order and for every page size, also where many objects have the same sort key.
func TestStore_Orders(t *testing.T) {
	t.Parallel()
	rnd := seedtest.Rand(t)
	d := dbtest.Open(t)
	s, err := Open(t.Context(), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	fill(t, ctx, s, rnd, 60)
	sc := Scope{Team: account.DefaultTeam, Project: account.DefaultProject}

	for what, c := range map[string]struct {
		orders []sandbox.Order
		list   func(l Listing) ([]listed, error)
	}{
		"sandboxes": {[]sandbox.Order{sandbox.ByCreation, sandbox.ByName, sandbox.ByStatusAt, sandbox.BySnapshot}, func(l Listing) ([]listed, error) {
			rows, err := s.List(ctx, l, sandbox.ListParams{})
			return collect(rows, func(r *Row) listed { return listed{r.Place(l.By), r.ID} }), err
		}},
		"drives": {[]sandbox.Order{sandbox.ByCreation, sandbox.ByName, sandbox.ByUpdate}, func(l Listing) ([]listed, error) {
			rows, err := s.ListDrives(ctx, l, sandbox.DriveListParams{})
			return collect(rows, func(d *DriveRow) listed { return listed{d.Place(l.By), d.ID} }), err
		}},
		"snapshots": {[]sandbox.Order{sandbox.ByCreation}, func(l Listing) ([]listed, error) {
			rows, err := s.ListSnapshots(ctx, l, sandbox.SnapshotListParams{})
			return collect(rows, func(r *SnapshotRow) listed { return listed{r.CreatedAt.UnixMilli(), r.ID} }), err
		}},
		"sessions": {[]sandbox.Order{sandbox.ByCreation}, func(l Listing) ([]listed, error) {
			rows, err := s.ListSessions(ctx, l)
			return collect(rows, func(r *SessionRow) listed { return listed{r.CreatedAt.UnixMilli(), r.ID} }), err
		}},
	} {
		for _, order := range c.orders {
			for _, ascending := range []bool{true, false} {
				by := Sorting{order, ascending}
				t.Run(fmt.Sprintf("%s/%s/%v", what, order, ascending), func(t *testing.T) {
					whole, err := c.list(Listing{Sorting: by, Scope: sc, limit: 1000})
					if err != nil {
						t.Fatal(err)
					}
					if len(whole) != 60 {
						t.Fatalf("there are %d, want 60", len(whole))
					}
					sorted := slices.SortedFunc(slices.Values(whole), compareListed)
					if !ascending {
						slices.Reverse(sorted)
					}
					if !slices.Equal(whole, sorted) {
						t.Fatalf("not sorted: %v", whole)
					}
					for _, limit := range []int{1, 2, 7, 59, 60, 61} {
						if got := pages(t, by, limit, sc, c.list); !slices.Equal(got, whole) {
							t.Errorf("pages of %d make up %v, want %v", limit, got, whole)
						}
					}
				})
			}
		}
	}
}

func collect[R any](rows []R, f func(R) listed) []listed {
	all := make([]listed, len(rows))
	for i, r := range rows {
		all[i] = f(r)
	}
	return all
}

// pages reads a list in pages of limit objects.
func pages(t *testing.T, by Sorting, limit int, sc Scope, list func(Listing) ([]listed, error)) (all []listed) {
	t.Helper()
	for next := ""; ; {
		l, err := NewListing("things", by, next, limit)
		if err != nil {
			t.Fatal(err)
		}
		l.Scope = sc
		rows, err := list(l)
		if err != nil {
			t.Fatal(err)
		}
		rows, next = Cut(l, rows, func(v listed) (any, string) { return v.key, v.id })
		if all = append(all, rows...); next == "" || len(all) > 1000 {
			return all
		}
	}
}

// fill inserts n sandboxes, sessions, snapshots and drives with few distinct sort keys.
func fill(t *testing.T, ctx context.Context, s *Store, rnd *rand.Rand, n int) {
	t.Helper()
	at := func() time.Time { return time.UnixMilli(1_700_000_000_000 + int64(rnd.IntN(12))).UTC() }
	snapshots := []string{""}
	for i := range n {
		snap := &SnapshotRow{Snapshot: sandbox.Snapshot{
			ID: ident.NewSnapshot(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject, CreatedAt: at(), UpdatedAt: at(),
		}}
		if err := s.db.Write(ctx, func(tx *db.Tx) error { return s.insertSnapshot(ctx, tx, snap) }); err != nil {
			t.Fatal(err)
		}
		if i < 5 {
			snapshots = append(snapshots, snap.ID)
		}
		drive := &DriveRow{Drive: sandbox.Drive{
			ID: ident.NewDrive(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject, CreatedAt: at(), UpdatedAt: at(),
		}}
		if err := s.InsertDrive(ctx, drive, account.Quota{}); err != nil {
			t.Fatal(err)
		}
		r := &Row{Sandbox: sandbox.Sandbox{
			ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
			SnapshotID: snapshots[rnd.IntN(len(snapshots))], CreatedAt: at(), UpdatedAt: at(),
		}}
		if _, err := s.Insert(ctx, Request{Row: r}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.db.Exec(ctx, `UPDATE sandboxes SET status_at = ? WHERE id = ?`, at().UnixMilli(), r.ID); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCursor_OfItsOrder(t *testing.T) {
	t.Parallel()
	all := []Sorting{
		newestFirst, {sandbox.ByCreation, true}, {sandbox.ByName, false}, {sandbox.ByName, true},
		{sandbox.ByStatusAt, false}, {sandbox.BySnapshot, true}, {ByNumber, false},
	}
	for _, of := range all {
		key := any(int64(1))
		if of.By == sandbox.ByName || of.By == sandbox.BySnapshot {
			key = "k"
		}
		c := cursor{of.String(), key, "id"}
		for _, by := range all {
			got, err := parseCursor("things", by, c.String())
			switch {
			case by == of && (err != nil || got != c):
				t.Errorf("its own cursor is read as %+v, %v; want %+v", got, err, c)
			case by != of && cay.CodeOf(err) != cay.Invalid:
				t.Errorf("a cursor of a list by %v was taken for one by %v: %v", of, by, err)
			}
		}
	}
	for _, bad := range []string{"x", cursor{Key: "k", ID: "id"}.String(), cursor{Key: int64(1)}.String(), cursor{ID: "id"}.String(),
		cursor{Key: 1.5, ID: "id"}.String(), cursor{Key: []int{1}, ID: "id"}.String()} {
		if _, err := parseCursor("things", newestFirst, bad); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("cursor %q: %v, want invalid", bad, err)
		}
	}
}

// TestStore_OrderIndexes checks that no order makes SQLite sort all rows of a team.
func TestStore_OrderIndexes(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	if _, err := Open(t.Context(), d, Options{}); err != nil {
		t.Fatal(err)
	}
	plan := func(query string, args []any) {
		rows, err := d.Query(t.Context(), `EXPLAIN QUERY PLAN `+query, args...)
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
			if strings.HasPrefix(step, "SCAN") || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s: %s", query, step)
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, ascending := range []bool{true, false} {
		for _, order := range []sandbox.Order{sandbox.ByCreation, sandbox.ByName, sandbox.ByStatusAt, sandbox.BySnapshot} {
			l := Listing{Sorting: Sorting{order, ascending}, after: cursor{Key: "k", ID: "id"}}
			plan(l.page(`SELECT id FROM sandboxes WHERE team_id = ? AND project_id = ?`, []any{"t", "p"}, string(order), "id"))
		}
		l := Listing{Sorting: Sorting{sandbox.ByCreation, ascending}, after: cursor{Key: 1, ID: "id"}}
		plan(l.page(sessionQuery+`v.team_id = ? AND s.project_id = ?`, []any{"t", "p"}, "v.created_at", "v.id"))
		plan(l.page(sessionQuery+`v.sandbox_id = ?`, []any{"s"}, "v.number", "v.id"))
	}
}

// TestStore_BeforeOrders checks that rows written by an earlier version are found by
// session and in every order.
func TestStore_BeforeOrders(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	ctx := t.Context()
	at := slices.IndexFunc(migrations, func(m db.Migration) bool { return m.Name == "annotations, orders of lists" })
	if err := d.Migrate(ctx, "sandboxd", migrations[:at]); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		`INSERT INTO sandboxes (id, team_id, project_id, name, status, image, runtime, vcpus, memory_mb, disk_mb, env, tags, user, workdir, network,
			timeout, idle_timeout, created_at, updated_at, started_at, stopped_at, guest_token, session_id)
			VALUES ('sbx_1', 't', 'p', 'old', 'stopped', 'i', '', 1, 1, 1, '{}', '{}', '', '', '{}', 1, 0, 1000, 4000, 2000, 3000, '', 'ses_2')`,
		`INSERT INTO sandbox_sessions (id, sandbox_id, number, status, vcpus, memory_mb, timeout, created_at) VALUES
			('ses_1', 'sbx_1', 1, 'failed', 1, 1, 1, 1000), ('ses_2', 'sbx_1', 2, '', 1, 1, 1, 1500)`,
	} {
		if _, err := d.Exec(ctx, q); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(ctx, d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	sc := Scope{Team: "t"}
	r, err := s.Find(ctx, sc, "ses_1")
	if err != nil || r.ID != "sbx_1" || r.StatusAt.UnixMilli() != 3000 || r.Annotations != nil || cay.CodeOf(r.Over()) != cay.Stopped {
		t.Errorf("the sandbox is %+v, %v", r, err)
	}
	all, err := s.ListSessions(ctx, Listing{Sorting: newestFirst, Scope: sc, limit: 10})
	if err != nil || len(all) != 2 || all[0].ID != "ses_2" || all[0].Status != sandbox.Stopped || all[0].StoppedAt == nil || all[1].Status != sandbox.Failed {
		t.Errorf("its sessions are %+v, %v", all, err)
	}
}
