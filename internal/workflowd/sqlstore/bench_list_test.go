package sqlstore

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// Half of a benchmark's runs have the workflow "agent", and 20 other workflows share the
// rest. All but a few runs have ended. Each has one of 1000 customers; a tenth are of
// agents; only the first 5000 have an attribute that later ones do not have.
func benchRun(i, of int) history.Run {
	at := int64(1_760_000_000_000 + i*250)
	r := history.Run{
		ID: fmt.Sprintf("wrun_%026d", i), Project: "prj_default", Workflow: "agent", Status: history.Completed,
		CreatedAt: at, StartedAt: at + 2, CompletedAt: at + 900, UpdatedAt: at + 900, Events: 1,
		Attributes: map[string]string{"customer": fmt.Sprint(i % 1000)},
	}
	if i%2 == 1 {
		r.Workflow = fmt.Sprint("order-", i%20)
	}
	switch {
	case i%20 == 3:
		r.Status, r.ErrorCode = history.Failed, history.CodeUser
	case i%100 == 7:
		r.Status = history.Cancelled
	case of-i <= 50:
		r.Status, r.CompletedAt = history.Running, 0
	}
	if i%10 == 0 {
		r.Attributes["$agent"] = "coder"
	}
	if i < 5000 {
		r.Attributes["old"] = "yes"
	}
	return r
}

func fillRuns(b *testing.B, s workflowd.Store, n int) {
	b.Helper()
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	for page := range slices.Chunk(all, 1000) {
		var rec workflowd.Records
		for _, i := range page {
			r := benchRun(i, n)
			rec.Runs = append(rec.Runs, r)
			rec.Logs = append(rec.Logs, workflowd.Log{Run: &r, Events: []history.Event{{Slot: 1, Type: history.RunCreated, At: r.CreatedAt, Name: r.Workflow, Payload: []byte(`json{"n":1}`)}}})
		}
		commitGroup(b, s, rec)
	}
}

// BenchmarkList measures the queries of the inspector's pages. docs/inspector.md has the
// numbers.
func BenchmarkList(b *testing.B) {
	for name, open := range map[string]func(b *testing.B) workflowd.Store{
		"sqlite": func(b *testing.B) workflowd.Store {
			s, err := OpenSQLite(b.Context(), filepath.Join(b.TempDir(), "workflows.db"), SQLiteOptions{})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				if err := s.Close(); err != nil {
					b.Error(err)
				}
			})
			return s
		},
		"postgres": func(b *testing.B) workflowd.Store { return openPostgres(b, pgtest.DSN(b), PostgresOptions{}) },
	} {
		for _, n := range []int{10_000, 100_000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				s := open(b)
				fillRuns(b, s, n)
				if p, ok := s.(*Postgres); ok {
					if _, err := p.pool.Exec(b.Context(), p.sql("ANALYZE cay.runs")); err != nil {
						b.Fatal(err)
					}
				}
				benchQueries(b, s, n)
			})
		}
	}
}

func benchQueries(b *testing.B, s workflowd.Store, n int) {
	middle := cursor{benchRun(n/2, n).CreatedAt, benchRun(n/2, n).ID}
	if _, ok := s.(*SQLite); ok {
		middle.tie = fmt.Sprint(n/2 + 1)
	}
	day := benchRun(n/2, n).CreatedAt
	if _, err := s.Runs(b.Context(), history.Query{}); err != nil { // SQLite folds
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		q    history.Query
		want int // number on the page
	}{
		{"First", history.Query{}, 100},
		{"Middle", history.Query{Cursor: middle.String()}, 100},
		{"Oldest", history.Query{Ascending: true}, 100},
		{"Running", history.Query{Statuses: []history.Status{history.Running}}, 48},
		{"Ended", history.Query{Statuses: []history.Status{history.Failed, history.Cancelled}}, 100},
		{"Workflow", history.Query{Workflow: "order-3"}, 100},
		{"WorkflowMiddle", history.Query{Workflow: "agent", Cursor: middle.String()}, 100},
		{"WorkflowStatus", history.Query{Workflow: "order-3", Statuses: []history.Status{history.Failed}}, 100},
		{"WorkflowNoSuch", history.Query{Workflow: "agent", Statuses: []history.Status{history.Pending}}, 0},
		{"Attribute", history.Query{Attributes: map[string]string{"customer": "7"}}, min(100, n/1000)},
		{"AttributeMany", history.Query{Attributes: map[string]string{"$agent": "coder"}}, 100},
		{"AttributeOld", history.Query{Attributes: map[string]string{"old": "yes"}}, 100},
		{"HasAttribute", history.Query{HasAttributes: []string{"$agent"}}, 100},
		{"HasOldAttribute", history.Query{HasAttributes: []string{"old"}}, 100},
		{"HasAll", history.Query{HasAttributes: []string{"customer"}}, 100},
		{"HasNone", history.Query{HasAttributes: []string{"none"}}, 0},
		{"HasFailed", history.Query{HasAttributes: []string{"customer"}, Statuses: []history.Status{history.Failed}}, 100},
		{"Since", history.Query{Since: day}, 100},
		{"Between", history.Query{Since: day - 60_000, Until: day}, 100},
	} {
		c.q.Project = "prj_default"
		b.Run("Page"+c.name, func(b *testing.B) {
			for b.Loop() {
				page, err := s.Runs(b.Context(), c.q)
				if err != nil {
					b.Fatal(err)
				}
				if len(page.Items) != c.want {
					b.Fatalf("%d runs, want %d", len(page.Items), c.want)
				}
			}
		})
		if c.q.Cursor != "" || c.q.Ascending {
			continue
		}
		b.Run("Count"+c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Count(b.Context(), c.q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
