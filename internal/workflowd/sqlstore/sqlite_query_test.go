package sqlstore

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// TestSelectRuns checks that queries use their indexes: no query scans or sorts all runs
// to find a few.
func TestSelectRuns(t *testing.T) {
	t.Parallel()
	s, err := OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "workflows.db"), SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	var r workflowd.Records
	for i := range fewRuns + 100 {
		run := &history.Run{
			ID: fmt.Sprint("wrun_", i), Workflow: "w", Status: history.Pending, CreatedAt: int64(i + 1), Events: 1, Key: fmt.Sprint(i),
			Parent: fmt.Sprint("p", i), Attributes: map[string]string{"order": fmt.Sprint(i), "kind": "x"},
		}
		if i%1000 == 0 {
			run.Attributes["rare"] = "x"
		}
		r.Logs = append(r.Logs, workflowd.Log{Run: run, Events: []history.Event{{Slot: 1, Type: history.RunCreated}}})
	}
	if err := s.Commit(t.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }}); err != nil {
		t.Fatal(err)
	}
	if err := s.fold(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		q     history.Query
		index string // the index that finds the runs
		sorts bool   // whether the few runs found are sorted
		lists bool   // one list for each status, each a page long
	}{
		"All":            {q: history.Query{}, index: "workflow_runs_created"},
		"Since":          {q: history.Query{Since: 10, Until: 20}, index: "workflow_runs_created"},
		"Workflow":       {q: history.Query{Workflow: "w"}, index: "workflow_runs_state", lists: true},
		"Status":         {q: history.Query{Statuses: []history.Status{history.Failed}}, index: "workflow_runs_status", lists: true},
		"WorkflowStatus": {q: history.Query{Workflow: "w", Statuses: []history.Status{history.Failed}}, index: "workflow_runs_state", lists: true},
		"Key":            {q: history.Query{Key: "7"}, index: "workflow_runs_key", sorts: true},
		"KeyOfWorkflow":  {q: history.Query{Project: "p", Workflow: "w", Key: "7"}, index: "workflow_runs_key", sorts: true},
		"Parent":         {q: history.Query{Parent: "p7", Statuses: []history.Status{history.Failed}}, index: "workflow_runs_parent", sorts: true},
		"RareAttribute":  {q: history.Query{Attributes: map[string]string{"order": "7"}}, index: "workflow_attributes_value", sorts: true},
		"HasRare":        {q: history.Query{HasAttributes: []string{"rare"}}, index: "workflow_attributes_value", sorts: true},
		"HasOften":       {q: history.Query{HasAttributes: []string{"kind"}}, index: "workflow_runs_created"},
		"NoSuch":         {q: history.Query{Attributes: map[string]string{"kind": "y"}}, index: "workflow_attributes_value", sorts: true},
		"OftenAttribute": {q: history.Query{Attributes: map[string]string{"kind": "x"}}, index: "workflow_runs_created"},
		"Attributes":     {q: history.Query{Attributes: map[string]string{"kind": "x", "order": "7"}}, index: "workflow_attributes_value", sorts: true},
	} {
		t.Run(name, func(t *testing.T) {
			text, args, err := s.selectRuns(t.Context(), c.q, 101)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := s.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+text, args...)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			var plan strings.Builder
			for rows.Next() {
				var id, parent, unused int
				var detail string
				if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(&plan, detail)
			}
			p := plan.String()
			if !strings.Contains(p, c.index) || strings.Contains(p, "SCAN workflow_runs") || strings.Contains(p, "SCAN workflow_attributes") ||
				!c.sorts && !c.lists && strings.Contains(p, "ORDER BY") {
				t.Errorf("%s\n%s", text, p)
			}
		})
	}
}
