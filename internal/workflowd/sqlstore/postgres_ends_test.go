package sqlstore

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

// ended returns the event that ends a run; next is the run that continues it, or "".
func ended(r *history.Run, next string) workflowd.Log {
	r.Events++
	r.Status, r.Next, r.CompletedAt = history.Completed, next, time.Now().UnixMilli()
	return workflowd.Log{Run: r, Events: []history.Event{{Slot: r.Events, Type: history.RunCompleted, At: r.CompletedAt, Token: next, Payload: []byte("json1")}}}
}

// statements returns the statements that store records.
func statements(p *Postgres, r workflowd.Records) []*pgx.QueuedQuery {
	b := new(pgx.Batch)
	newRows(&r).queue(p, b, true)
	return b.QueuedQueries
}

// The three commits of a run of one step take six statements, which are sent in three
// round trips.
func TestPostgres_Statements(t *testing.T) {
	t.Parallel()
	p := &Postgres{quoted: `"cay"`}
	r := &history.Run{ID: "wrun_1", Workflow: "w", Status: history.Running, Events: 2}
	for _, commit := range []struct {
		name    string
		records workflowd.Records
		want    int
	}{
		{"start", workflowd.Records{Runs: []history.Run{*r}, Logs: []workflowd.Log{{Run: r, Events: []history.Event{
			{Slot: 1, Type: history.RunCreated, Name: "w"}, {Slot: 2, Type: history.RunStarted},
		}}}}, 2},
		{"step", workflowd.Records{Logs: []workflowd.Log{appendStep(r)}}, 1},
		{"end", workflowd.Records{Logs: []workflowd.Log{ended(r, "")}}, 3},
	} {
		got := statements(p, commit.records)
		if len(got) != commit.want {
			t.Errorf("the %s takes %d statements, want %d", commit.name, len(got), commit.want)
		}
		for _, q := range got {
			if strings.Contains(q.SQL, "unnest") {
				t.Errorf("the %s sends one row as arrays: %s", commit.name, q.SQL)
			}
		}
	}
}

// The server keeps the plans of statements. A plan that was made while the tables were
// empty must not read all rows when there are many.
func TestPostgres_Plans(t *testing.T) {
	t.Parallel()
	p := openPostgres(t, pgtest.DSN(t), PostgresOptions{})
	conn, err := pgx.Connect(t.Context(), p.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	one, two := &history.Run{ID: "wrun_1"}, &history.Run{ID: "wrun_2"}
	for _, group := range []workflowd.Records{
		{Logs: []workflowd.Log{ended(one, "")}},
		{Logs: []workflowd.Log{ended(one, ""), ended(two, "")}},
	} {
		for _, q := range statements(p, group) {
			if _, err := conn.Exec(t.Context(), "DEALLOCATE ALL"); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "PREPARE s AS "+q.SQL); err != nil {
				t.Fatal(err)
			}
			nulls := strings.TrimSuffix(strings.Repeat("NULL, ", len(q.Arguments)), ", ")
			rows, err := conn.Query(t.Context(), "EXPLAIN EXECUTE s("+nulls+")", pgx.QueryExecModeSimpleProtocol)
			if err != nil {
				t.Fatal(err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") {
				t.Errorf("%s\n%s", q.SQL, text)
			}
		}
	}
}

// The end of a run deletes its timers, hooks and messages, whether the run ends alone or
// with others in a group. Messages for a run that is continued stay.
func TestPostgres_Ends(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"Alone": false, "Together": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := openPostgres(t, pgtest.DSN(t), PostgresOptions{Lease: time.Hour})
			runs := []*history.Run{startRun(t, p, "wrun_1"), startRun(t, p, "wrun_2"), startRun(t, p, "wrun_3")}
			for _, r := range runs {
				r.Events += 2
				token := "token of " + r.ID
				commitGroup(t, p, workflowd.Records{Logs: []workflowd.Log{{Run: r, Events: []history.Event{
					{Slot: r.Events - 1, Type: history.WaitCreated, ID: "wait_1", Until: 1},
					{Slot: r.Events, Type: history.HookCreated, ID: "hook_1", Token: token},
				}}}})
				if _, err := p.Post(t.Context(), workflowd.Message{Run: r.ID, Event: history.Event{Type: history.CancelRequested}}); err != nil {
					t.Fatal(err)
				}
			}
			ends := []workflowd.Log{ended(runs[0], ""), ended(runs[1], "wrun_4")}
			if together {
				commitGroup(t, p, workflowd.Records{Logs: ends})
			} else {
				for _, l := range ends {
					commitGroup(t, p, workflowd.Records{Logs: []workflowd.Log{l}})
				}
			}
			for table, want := range map[string]string{"timers": "wrun_3", "hooks": "wrun_3", "inbox": "wrun_2 wrun_3"} {
				rows, err := p.pool.Query(t.Context(), p.sql("SELECT run FROM cay."+table+" ORDER BY run"))
				if err != nil {
					t.Fatal(err)
				}
				left, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(left, " "); got != want {
					t.Errorf("%s are left of %q, want of %q", table, got, want)
				}
			}
			for i, want := range []history.Status{history.Completed, history.Completed, history.Running} {
				if r, err := p.Run(t.Context(), runs[i].ID); err != nil || r.Status != want || r.Next != runs[i].Next || r.CompletedAt != runs[i].CompletedAt {
					t.Errorf("run %d is %+v, %v", i, r, err)
				}
			}
			var attributes, extra int
			if err := p.pool.QueryRow(t.Context(), p.sql("SELECT count(attributes), count(extra) FROM cay.runs")).Scan(&attributes, &extra); err != nil {
				t.Fatal(err)
			}
			if attributes != 0 || extra != 0 {
				t.Errorf("%d rows have attributes and %d have something extra; want NULL in all", attributes, extra)
			}
		})
	}
}
