package workflow

import (
	"cmp"
	"slices"
	"testing"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/workflow"
)

// TestLimit starts more runs of a workflow than its limit allows. They run two at a time.
// Runs of other workflows start at once.
func TestLimit(t *testing.T) {
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			need(t, line)
			d := testenv.Start(t)
			a := buildApp(t, line, d.URL, d.Token)
			a.start(t)
			b := checktest.Must(workflow.Dial(workflow.RemoteOptions{URL: d.URL, Token: d.Token}))(t)
			defer b.Close()
			first := a.run(t, "doubled", 1)
			a.result(t, first)
			name := checktest.Must(b.GetRun(t.Context(), first))(t).Workflow
			const most = 2
			checktest.Must(b.PutLimit(t.Context(), workflow.Limit{Workflow: name, Concurrency: most}))(t)
			var runs []string
			for n := range 8 {
				runs = append(runs, a.run(t, "doubled", n))
			}
			a.result(t, a.run(t, "sequential", 3))
			type change struct{ at, by int64 }
			var changes []change
			for _, id := range runs {
				a.result(t, id)
				r := checktest.Must(b.GetRun(t.Context(), id))(t)
				changes = append(changes, change{r.StartedAt, 1}, change{r.CompletedAt, -1})
			}
			slices.SortFunc(changes, func(x, y change) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.by, y.by)) })
			running, top := int64(0), int64(0)
			for _, c := range changes {
				running += c.by
				top = max(top, running)
			}
			if top != most {
				t.Errorf("%d runs were running at one time, want %d", top, most)
			}
		})
	}
}
