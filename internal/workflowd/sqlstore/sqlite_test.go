package sqlstore_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
)

func openSQLite(t testing.TB, o sqlstore.SQLiteOptions) *sqlstore.SQLite {
	t.Helper()
	s, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "workflows.db"), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// BenchmarkSQLite_Commit appends one step_completed to each of as many runs as are
// in a group.
func BenchmarkSQLite_Commit(b *testing.B) {
	for _, full := range []bool{false, true} {
		for _, n := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("full=%t/runs=%d", full, n), func(b *testing.B) {
				s := openSQLite(b, sqlstore.SQLiteOptions{Full: full})
				logs := make([]*history.Log, n)
				now := time.Now().UnixMilli()
				commit := func(e history.Event) {
					r := workflowd.Records{Logs: make([]workflowd.Log, n)}
					for i, l := range logs {
						e := e
						e.At = now
						if _, err := l.Apply(&e); err != nil {
							b.Fatal(err)
						}
						r.Logs[i] = workflowd.Log{Run: &l.Run, Events: []history.Event{e}}
					}
					if err := s.Commit(b.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }}); err != nil {
						b.Fatal(err)
					}
				}
				for i := range logs {
					logs[i] = history.NewLog(history.Run{ID: fmt.Sprintf("wrun_%026d", i), Workflow: "w"})
				}
				commit(history.Event{Type: history.RunCreated, Name: "w", Payload: []byte("json{}")})
				commit(history.Event{Type: history.RunStarted})
				payload := []byte(`json{"id":12345}`)
				step := 0
				b.ResetTimer()
				for range b.N {
					step++
					commit(history.Event{Type: history.StepCompleted, ID: fmt.Sprintf("step_charge.%d", step), Name: "charge",
						Input: payload, Payload: payload, Attempt: 1, StartedAt: now})
				}
				b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// BenchmarkSQLite_Runs commits whole runs of one step.
func BenchmarkSQLite_Runs(b *testing.B) {
	s := openSQLite(b, sqlstore.SQLiteOptions{})
	var n atomic.Int64
	var wg sync.WaitGroup
	const group = 100
	b.ResetTimer()
	for range (b.N + group - 1) / group {
		r := workflowd.Records{}
		for range group {
			l := history.NewLog(history.Run{ID: fmt.Sprintf("wrun_%026d", n.Add(1)), Workflow: "w"})
			events := []history.Event{
				{Type: history.RunCreated, Name: "w", Payload: []byte("json{}"), At: time.Now().UnixMilli()}, {Type: history.RunStarted},
				{Type: history.StepCompleted, ID: "step_a.1", Name: "a", Input: []byte("json1"), Payload: []byte("json2"), Attempt: 1},
				{Type: history.RunCompleted, Payload: []byte("json3")},
			}
			for i := range events {
				if _, err := l.Apply(&events[i]); err != nil {
					b.Fatal(err)
				}
			}
			r.Logs = append(r.Logs, workflowd.Log{Run: &l.Run, Events: events})
		}
		if err := s.Commit(b.Context(), &workflowd.Group{Settle: func() workflowd.Records { return r }}); err != nil {
			b.Fatal(err)
		}
	}
	wg.Wait()
	b.ReportMetric(float64(n.Load())/b.Elapsed().Seconds(), "runs/s")
}
