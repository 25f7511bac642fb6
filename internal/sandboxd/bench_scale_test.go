package sandboxd_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// BenchmarkScale measures calls beside sandboxes that have ended, of one team and of a
// thousand, on the fake runtime. For its numbers see docs/benchmarks.md. CAY_ROWS is a
// list of numbers of sandboxes.
func BenchmarkScale(b *testing.B) {
	rows := []int{1000, 100_000}
	if text := os.Getenv("CAY_ROWS"); text != "" {
		rows = nil
		for part := range strings.SplitSeq(text, ",") {
			rows = append(rows, checktest.Must(strconv.Atoi(part))(b))
		}
	}
	for _, teams := range []int{1, 1000} {
		for _, n := range rows {
			b.Run(fmt.Sprintf("teams=%d/rows=%d", teams, n), func(b *testing.B) { benchmarkScale(b, teams, n) })
		}
	}
}

func benchmarkScale(b *testing.B, teams, n int) {
	h, _ := startFake(b, func(c *sandboxd.Config) { c.Logger = slog.New(slog.DiscardHandler) })
	ctx := defaultCaller(b)
	persistent := true
	params := func(name string) sandbox.CreateParams {
		return sandbox.CreateParams{Name: name, Persistent: &persistent}
	}
	ended := checktest.Must(h.Create(ctx, params("ended")))(b)
	checktest.Must(h.Stop(ctx, ended.ID))(b)
	began := time.Now()
	endedSandboxes(b, h, ended.ID, teams, n)
	b.Logf("%d rows made in %v", n, time.Since(began).Round(time.Millisecond))
	made := 0
	for _, op := range []struct {
		name string
		do   func() (undo func() error, err error)
	}{
		{"create", func() (func() error, error) {
			made++
			s, err := h.Create(ctx, params(fmt.Sprint("new-", made)))
			if err != nil {
				return nil, err
			}
			return func() error { return h.Delete(ctx, s.ID) }, nil
		}},
		{"list", func() (func() error, error) {
			page, err := h.List(ctx, sandbox.ListParams{})
			if err == nil && teams == 1 && len(page.Items) != 50 {
				err = fmt.Errorf("a page has %d sandboxes", len(page.Items))
			}
			return nil, err
		}},
		{"list_running", func() (func() error, error) {
			_, err := h.List(ctx, sandbox.ListParams{Status: []sandbox.Status{sandbox.Running}})
			return nil, err
		}},
		{"get", func() (func() error, error) {
			_, err := h.Get(ctx, "ended")
			return nil, err
		}},
		{"resume", func() (func() error, error) {
			_, err := h.Resume(ctx, "ended", sandbox.ResumeParams{})
			return func() error { _, err := h.Stop(ctx, "ended"); return err }, err
		}},
	} {
		b.Run(op.name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				undo, err := op.do()
				took = append(took, time.Since(began))
				if undo != nil && err == nil {
					err = undo()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(took)
			b.ReportMetric(0, "ns/op") // it includes the undoing
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-median")
		})
	}
}

// endedSandboxes adds n copies of an ended sandbox with a session each, spread over
// teams, of which the default team is one.
func endedSandboxes(b *testing.B, h *sandboxtest.Harness, id string, teams, n int) {
	b.Helper()
	ctx := context.Background()
	// Each copy was created a second before the previous one.
	differing := map[string]string{
		"id": "printf('sbx_%026d', n)", "name": "'copy-' || n", "created_at": "created_at - 1000 * n", "session_id": "printf('ses_%026d', n)",
		"sandbox_id": "printf('sbx_%026d', n)",
		"team_id":    fmt.Sprintf("CASE n %% %d WHEN 0 THEN '%s' ELSE 'team_' || n %% %[1]d END", teams, account.DefaultTeam),
		"project_id": fmt.Sprintf("CASE n %% %d WHEN 0 THEN '%s' ELSE 'project_' || n %% %[1]d END", teams, account.DefaultProject),
	}
	const numbers = `WITH RECURSIVE numbers (n) AS (SELECT ? UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) `
	copies := func(table, key string) string {
		names := checktest.Must(db.Collect(ctx, h.Config.DB, db.Column[string], `SELECT name FROM pragma_table_info('`+table+`')`))(b)
		values := slices.Clone(names)
		for i, name := range names {
			if value, ok := differing[name]; ok {
				values[i] = value
			}
			if table == "sandbox_sessions" && name == "id" {
				values[i] = differing["session_id"]
			}
		}
		return numbers + `INSERT INTO ` + table + ` (` + strings.Join(names, ", ") + `) SELECT ` + strings.Join(values, ", ") + ` FROM numbers, ` + table +
			` WHERE ` + key + ` = ?`
	}
	sandboxes, sessions := copies("sandboxes", "id"), copies("sandbox_sessions", "sandbox_id")
	// The writer's cache of pages is made for single rows.
	checktest.Must(h.Config.DB.Exec(ctx, `PRAGMA cache_size = -1000000`))(b)
	defer func() { checktest.Must(h.Config.DB.Exec(ctx, `PRAGMA cache_size = -2000`))(b) }()
	const batch = 200_000
	for first := 1; first <= n; first += batch {
		last := min(n, first+batch-1)
		for _, q := range []string{sandboxes, sessions} {
			if _, err := h.Config.DB.Unsynced().Exec(ctx, q, first, last, id); err != nil {
				b.Fatal(err)
			}
		}
	}
}
