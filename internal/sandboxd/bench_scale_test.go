package sandboxd_test

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/store/copies"
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
	checktest.OK(b, copies.Ended(ctx, h.Config.DB, ended.ID, teams, n))
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
