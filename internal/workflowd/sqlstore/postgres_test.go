package sqlstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
)

func openPostgres(t testing.TB, dsn string, o PostgresOptions) *Postgres {
	t.Helper()
	p, err := OpenPostgres(context.Background(), dsn, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// startRun stores a running run.
func startRun(t testing.TB, s workflowd.Store, id string) *history.Run {
	t.Helper()
	now := time.Now().UnixMilli()
	r := history.Run{ID: id, Workflow: "w", Status: history.Running, CreatedAt: now, StartedAt: now, UpdatedAt: now, Events: 2}
	commitGroup(t, s, workflowd.Records{
		Runs: []history.Run{r},
		Logs: []workflowd.Log{{Run: &r, Events: []history.Event{
			{Slot: 1, Type: history.RunCreated, At: now, Name: "w", Payload: []byte("json1")},
			{Slot: 2, Type: history.RunStarted, At: now},
		}}},
	})
	return &r
}

func commitGroup(t testing.TB, s workflowd.Store, r workflowd.Records) {
	t.Helper()
	if err := s.Commit(context.Background(), &workflowd.Group{Settle: func() workflowd.Records { return r }}); err != nil {
		t.Fatal(err)
	}
}

// appendStep returns the next event of a run.
func appendStep(r *history.Run) workflowd.Log {
	r.Events++
	return workflowd.Log{Run: r, Events: []history.Event{{
		Slot: r.Events, Type: history.StepCompleted, At: time.Now().UnixMilli(), ID: fmt.Sprintf("step_a.%d", r.Events), Name: "a",
		Attempt: 1, Input: []byte("json{}"), Payload: []byte("json{}"),
	}}}
}

func TestPostgres_Smoke(t *testing.T) {
	s := openPostgres(t, pgtest.DSN(t), PostgresOptions{})
	r := startRun(t, s, "wrun_1")
	commitGroup(t, s, workflowd.Records{Logs: []workflowd.Log{appendStep(r)}})
	got, err := s.Run(t.Context(), "wrun_1")
	if err != nil || got.Events != 3 || got.Status != history.Running {
		t.Fatalf("%+v, %v", got, err)
	}
	events, err := s.Events(t.Context(), "wrun_1", 2, 0)
	if err != nil || len(events) != 2 || events[1].ID != "step_a.3" {
		t.Fatalf("%+v, %v", events, err)
	}
	owned, err := s.Owned(t.Context(), "", 10)
	if err != nil || len(owned) != 1 {
		t.Fatalf("%+v, %v", owned, err)
	}
	list, err := s.Runs(t.Context(), history.Query{Workflow: "w", Statuses: []history.Status{history.Running}})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
}

// The server's time for the smallest durable write: one row, one statement.
func BenchmarkPostgres_Insert(b *testing.B) {
	server := pgtest.Start(b, pgtest.Options{Durable: true})
	s := openPostgres(b, server.DSN(b), PostgresOptions{})
	if _, err := s.pool.Exec(b.Context(), "CREATE TABLE t (run text, n bigint, data bytea, PRIMARY KEY (run, n))"); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		if _, err := s.pool.Exec(b.Context(), "INSERT INTO t VALUES ($1, $2, $3)", "wrun_1", n, []byte("some data")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPostgres_Commit(b *testing.B) {
	for _, runs := range []int{1, 20, 100, 1000} {
		b.Run(fmt.Sprint(runs), func(b *testing.B) {
			server := pgtest.Start(b, pgtest.Options{Durable: true})
			s := openPostgres(b, server.DSN(b), PostgresOptions{})
			all := make([]*history.Run, runs)
			for i := range all {
				all[i] = startRun(b, s, fmt.Sprintf("wrun_%026d", i))
			}
			b.ResetTimer()
			for n := 0; n < b.N; n += runs {
				var rec workflowd.Records
				for _, r := range all {
					rec.Logs = append(rec.Logs, appendStep(r))
				}
				commitGroup(b, s, rec)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
