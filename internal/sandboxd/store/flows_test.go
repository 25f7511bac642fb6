package store

import (
	"fmt"
	"slices"
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

// flowStores opens the tables of sandboxes, with two sandboxes, and of flows.
func flowStores(t *testing.T) (flows *Flows, sandboxes *db.DB, ids [2]string) {
	t.Helper()
	d := dbtest.Open(t)
	s := checktest.Must(Open(t.Context(), d, Options{}))(t)
	now := time.UnixMilli(1_700_000_000_000).UTC()
	for i := range ids {
		r := &Row{Sandbox: sandbox.Sandbox{
			ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: ident.NewName(), TeamID: account.DefaultTeam, ProjectID: account.DefaultProject,
			CreatedAt: now, UpdatedAt: now,
		}}
		checktest.Must(s.Insert(t.Context(), Request{Row: r}))(t)
		ids[i] = r.ID
	}
	return checktest.Must(OpenFlows(t.Context(), dbtest.Open(t), d))(t), d, ids
}

// addOld adds a record as earlier versions did.
func addOld(t *testing.T, d *db.DB, id string, seq int64) {
	t.Helper()
	checktest.Must(d.Exec(t.Context(), `INSERT INTO sandbox_flows (sandbox_id, seq, time, verdict, open, record) VALUES (?, ?, 1, 'denied', 1, ?)`,
		id, seq, fmt.Sprintf(`{"seq":%d,"verdict":"denied","open":true}`, seq)))(t)
}

func seqsOf(t *testing.T, s *Flows, id string) (seqs []int64) {
	t.Helper()
	for _, f := range checktest.Must(s.Flows(t.Context(), id, sandbox.FlowParams{}, 100))(t) {
		if f.Open {
			t.Errorf("record %d of %s is open", f.Seq, id)
		}
		seqs = append(seqs, f.Seq)
	}
	return seqs
}

// Records of an earlier version move: the records of a sandbox when somebody asks for them,
// other records one sandbox after the other. They stay older than all new records.
func TestFlows_Move(t *testing.T) {
	t.Parallel()
	s, d, ids := flowStores(t)
	ctx := t.Context()
	for seq := range int64(3) {
		addOld(t, d, ids[0], seq+1)
		addOld(t, d, ids[1], seq+1)
	}
	if last := checktest.Must(s.LastFlow(ctx, ids[0]))(t); last != 3 {
		t.Errorf("the last record is %d, want 3", last)
	}
	checktest.Must(s.AddFlows(ctx, map[string][]sandbox.Flow{ids[0]: {{Seq: 4, Time: time.UnixMilli(2)}}}, 100))(t)
	for more := true; more; {
		more = checktest.Must(s.MoveFlows(ctx))(t)
	}
	var left int
	checktest.OK(t, d.QueryRow(ctx, `SELECT count(*) FROM sandbox_flows`).Scan(&left))
	if left != 0 {
		t.Errorf("%d records have not moved", left)
	}
	for i, want := range [][]int64{{1, 2, 3, 4}, {1, 2, 3}} {
		if got := seqsOf(t, s, ids[i]); !slices.Equal(got, want) {
			t.Errorf("records of sandbox %d: %v, want %v", i, got, want)
		}
	}
	// The limit is 3, and a trim leaves nine tenths of it: the newest of all.
	if left := checktest.Must(s.TrimFlows(ctx, 3))(t); left != 3 {
		t.Errorf("%d records are left", left)
	}
	if got := seqsOf(t, s, ids[0]); !slices.Equal(got, []int64{3, 4}) {
		t.Errorf("after a trim: %v", got)
	}
}

// A crash between the two databases moves records twice, and shows them once.
func TestFlows_MoveAgain(t *testing.T) {
	t.Parallel()
	s, d, ids := flowStores(t)
	addOld(t, d, ids[0], 1)
	checktest.Must(s.moveOf(t.Context(), ids[0]))(t)
	addOld(t, d, ids[0], 1) // as if its removal was lost
	if got := seqsOf(t, s, ids[0]); !slices.Equal(got, []int64{1}) {
		t.Errorf("got %v", got)
	}
}

// A creation does not wait for the database of flows.
func TestFlows_Busy(t *testing.T) {
	t.Parallel()
	s, d, ids := flowStores(t)
	ctx := t.Context()
	locked, unlock, done := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() {
		done <- s.db.Write(ctx, func(*db.Tx) error {
			close(locked)
			<-unlock
			return nil
		})
	}()
	<-locked
	go func() {
		_, err := s.AddFlows(ctx, map[string][]sandbox.Flow{ids[0]: {{Seq: 1, Time: time.UnixMilli(1)}}}, 100)
		done <- err
	}()
	sandboxes := checktest.Must(Open(ctx, d, Options{}))(t)
	r := &Row{Sandbox: sandbox.Sandbox{ID: ident.NewSandbox(), SessionID: ident.NewSession(), Name: "new", TeamID: account.DefaultTeam, ProjectID: account.DefaultProject}}
	checktest.Must(sandboxes.Insert(ctx, Request{Row: r}))(t) // returns while the other database is locked
	close(unlock)
	checktest.OK(t, <-done)
	checktest.OK(t, <-done)
}

// An earlier version refuses a database whose flows are elsewhere.
func TestFlows_Downgrade(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t)
	checktest.Must(Open(t.Context(), d, Options{}))(t)
	before := slices.IndexFunc(migrations, func(m db.Migration) bool { return m.Name == flowsMigration.Name })
	if err := d.Migrate(t.Context(), "sandboxd", migrations[:before]); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("got %v, want a conflict", err)
	}
}
