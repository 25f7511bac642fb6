package store

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/db/dbtest"
	"github.com/cayhq/cay/internal/sandboxd/ident"
	"github.com/cayhq/cay/sandbox"
)

// allowedScans are the steps that read a whole index or table. The size of each is
// independent of the number of sandboxes that have ended.
var allowedScans = []string{
	"SCAN CONSTANT ROW",
	"SCAN sandboxes USING INDEX sandboxes_live", // recovery
	"SCAN sandboxes USING COVERING INDEX sandboxes_deleting",
	"SCAN sandboxes USING INDEX sandboxes_unsealed_env",
	"SCAN sandboxes USING INDEX sandboxes_unsealed_next",
	"SCAN sandboxes USING INDEX sandboxes_unsealed_token",
	"SCAN sandbox_snapshots USING INDEX sandbox_snapshots_unsealed_token",
	"SCAN sandbox_commands_gone",
	"SCAN ids",                              // sandboxes with flows, some at a time
	"SCAN sandbox_counts",                   // of all teams
	"SCAN json_each VIRTUAL TABLE INDEX 1:", // a parameter
}

// wholeTeam matches the step that reads all rows of a team or project. Pages of lists may
// do so, because they end at their limit.
var wholeTeam = regexp.MustCompile(`^SEARCH sandbox(es|_snapshots|_drives|_sessions|_ports|_flows)? USING .*\((team_id|project_id)=\?\)$`)

// allowedStatements are parts of statements that may read many rows.
var allowedStatements = []string{
	`SELECT id, stored FROM sandbox_snapshots`, // the sweep compares all snapshots with the files
	`SELECT blob_id FROM sandbox_drives`,       // the same for drives
	`SELECT commands FROM sandbox_sessions`,    // the same for kept commands
	`created_at <= ?`,                          // a prune, which a caller asks for and which deletes what it reads
}

// TestPlans runs each operation of the store, and asks SQLite for the plan of each
// statement: none reads, or sorts, rows in proportion to the sandboxes that have ended.
func TestPlans(t *testing.T) {
	t.Parallel()
	d, ctx := dbtest.Open(t), t.Context()
	s, err := Open(ctx, d, Options{MaxCommands: 100})
	if err != nil {
		t.Fatal(err)
	}
	a := newActor(t, s)
	for _, st := range a.steps(account.Quota{Sandboxes: 1, SnapshotMB: 1}) {
		_ = st.do(ctx, a.some(ctx)) // a refusal also has statements
	}
	for range 300 {
		if name, err := a.step(ctx); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	flows, err := OpenFlows(ctx, d, d)
	if err != nil {
		t.Fatal(err)
	}
	readAll(t, s, a)
	readFlows(t, flows)
	statements := d.Statements()
	if len(statements) < 150 {
		t.Errorf("only %d statements ran", len(statements))
	}
	for _, query := range statements {
		if !strings.Contains(query, "sandbox") || slices.ContainsFunc(allowedStatements, func(part string) bool { return strings.Contains(query, part) }) {
			continue
		}
		for _, step := range planOf(t, d, query) {
			scan := strings.HasPrefix(step, "SCAN") && !strings.HasPrefix(step, "SCAN (subquery") && !slices.Contains(allowedScans, step)
			sort := strings.Contains(step, "TEMP B-TREE") && !sortsFew(query)
			if whole := wholeTeam.MatchString(step) && !strings.Contains(query, "LIMIT"); scan || sort || whole {
				t.Errorf("%s: %s", strings.Join(strings.Fields(query), " "), step)
			}
		}
	}
}

// sortsFew reports whether a statement sorts a bounded number of rows only: sandboxes
// with a rare tag, sandboxes that run, or the drives of a team.
func sortsFew(query string) bool {
	return strings.Contains(query, "id IN (SELECT sandbox_id FROM sandbox_tags") || strings.Contains(query, "FROM sandbox_drives d") ||
		strings.Contains(query, "INDEXED BY sandboxes_live") || strings.Contains(query, "INDEXED BY sandboxes_rare")
}

// readAll runs the statements that read: lists in each order and with each filter, and
// the work of janitors.
func readAll(t *testing.T, s *Store, a *actor) {
	t.Helper()
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, sc := range []Scope{{Team: "team_a"}, {"team_a", "team_a_0"}} {
		for _, l := range []Listing{{Sorting: newestFirst}, {Sorting: Sorting{sandbox.ByName, true}}, {Sorting: Sorting{sandbox.ByCreation, true}, after: cursor{Key: 1, ID: "a"}}} {
			l.Scope, l.limit = sc, 10
			for _, p := range []sandbox.ListParams{{}, {Resumable: l.By == sandbox.ByCreation}, {Tags: map[string]string{"a": "b"}}, {Tags: map[string]string{"none": "b"}},
				{Status: []sandbox.Status{sandbox.Running}}, {Status: []sandbox.Status{sandbox.Failed}}, {Status: []sandbox.Status{sandbox.Stopped}},
				{CreatedAfter: a.now}} {
				_, err := s.List(ctx, l, p)
				check(err)
			}
		}
		l := Listing{Sorting: newestFirst, Scope: sc, limit: 10}
		for _, p := range []sandbox.SnapshotListParams{{}, {Sandbox: "sbx_x"}, {Sandbox: "x"}, {Name: "x"}, {Deleted: true}} {
			_, err := s.ListSnapshots(ctx, l, p)
			check(err)
		}
		_, err := s.ListDrives(ctx, l, sandbox.DriveListParams{})
		check(err)
		_, err = s.ListSessions(ctx, l)
		check(err)
		_, _, _, err = s.Count(ctx, sc)
		check(err)
		for _, ref := range []string{"a", ident.NewSandbox(), ident.NewSession()} {
			_, _ = s.Find(ctx, sc, ref) // not found
		}
		for _, ref := range []string{"a", ident.NewSnapshot(), ident.NewDrive()} {
			_, _ = s.FindSnapshot(ctx, sc, ref)
			_, _ = s.FindDrive(ctx, sc, ref)
		}
	}
	_, err := s.Unfinished(ctx)
	check(err)
	_, err = s.NeedsImage(ctx, "sha256:0")
	check(err)
	_, _, err = s.CountSnapshots(ctx)
	check(err)
	_, err = s.LeftSnapshots(ctx, "", 10)
	check(err)
	_, err = s.MemoryLeft(ctx, "", 10)
	check(err)
	_, err = s.SnapshotDates(ctx, a.now)
	check(err)
	_, err = s.IsDriveBlob(ctx, "x")
	check(err)
	_, err = s.GoneCommands(ctx)
	check(err)
	_, err = s.SnapshotStays(ctx, "ses_x", "snp_x")
	check(err)
	check(s.PruneLabels(ctx, a.now))
	check(s.SealAll(ctx))
	check(s.SaveUsage(ctx, map[string]sandbox.Usage{"a": {}}))
	_, _ = s.Declared(ctx, "x")
	_, _ = s.OfMachine(ctx, "x")
}

// readFlows runs the statements on the records of flows, except those of a trim, which
// counts all of them.
func readFlows(t *testing.T, s *Flows) {
	t.Helper()
	ctx := t.Context()
	_, err := s.AddFlows(ctx, map[string][]sandbox.Flow{"a": {{Seq: 1, Time: time.UnixMilli(1)}}}, 10)
	if err == nil {
		_, err = s.Flows(ctx, "a", sandbox.FlowParams{}, 10)
	}
	if err == nil {
		_, err = s.LastFlow(ctx, "a")
	}
	if err == nil {
		err = s.RemoveFlows(ctx, []string{"a"})
	}
	if err == nil {
		err = s.SweepFlows(ctx)
	}
	if err == nil {
		_, err = s.MoveFlows(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// planOf returns the steps of the plan of a statement.
func planOf(t *testing.T, d *db.DB, query string) []string {
	t.Helper()
	steps, err := db.Collect(t.Context(), d, func(row db.Scanner) (step string, err error) {
		err = row.Scan(new(int), new(int), new(int), &step)
		return step, err
	}, `EXPLAIN QUERY PLAN `+query, make([]any, strings.Count(query, "?"))...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return steps
}
