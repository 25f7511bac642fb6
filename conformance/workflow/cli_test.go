package workflow

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testenv"
)

// TestCommandLine uses the SDK's own command line on runs in the daemon: it lists and shows them with
// their steps, events and hooks, cancels a run, and asks whether the app is healthy.
func TestCommandLine(t *testing.T) {
	for _, line := range lines {
		t.Run(line, func(t *testing.T) {
			need(t, line)
			d := testenv.Start(t)
			a := buildApp(t, line, d.URL, d.Token)
			a.start(t)
			done := a.run(t, "stream", 3)
			a.result(t, done)
			waiting := a.run(t, "hook", "cli-"+line)

			var runs listed[struct{ RunID, Status, WorkflowName string }]
			a.workflow(t, &runs, "inspect", "runs")
			statuses := map[string]string{}
			for _, r := range runs {
				statuses[r.RunID] = r.Status
			}
			if statuses[done] != "completed" || statuses[waiting] != "running" && statuses[waiting] != "pending" {
				t.Errorf("runs are %v", statuses)
			}
			var run struct{ RunID, Status string }
			if a.workflow(t, &run, "inspect", "run", done); run.RunID != done || run.Status != "completed" {
				t.Errorf("the run is %+v", run)
			}
			var steps listed[struct{ StepID, StepName, Status string }]
			if a.workflow(t, &steps, "inspect", "steps", "--runId", done); len(steps) == 0 || steps[0].Status != "completed" {
				t.Errorf("its steps are %+v", steps)
			}
			var events listed[struct{ EventType string }]
			if a.workflow(t, &events, "inspect", "events", "--runId", done); len(events) < 4 {
				t.Errorf("its events are %+v", events)
			}
			var hooks listed[struct{ HookID string }]
			if a.workflow(t, &hooks, "inspect", "hooks", "--runId", waiting); len(hooks) != 1 {
				t.Errorf("hooks of the other run are %+v", hooks)
			}
			if line == "v5" {
				var attributes listed[struct{ Key string }]
				a.workflow(t, &attributes, "inspect", "attributes")
			}
			a.workflow(t, nil, "cancel", waiting)
			if a.workflow(t, &run, "inspect", "run", waiting); run.Status != "cancelled" {
				t.Errorf("the run that was cancelled is %+v", run)
			}
			a.workflow(t, nil, "health")
		})
	}
}

// listed is a list that the SDK's command line prints: an array, or a page with a cursor.
type listed[T any] []T

func (l *listed[T]) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, (*[]T)(l))
	}
	var page struct{ Data []T }
	err := json.Unmarshal(text, &page)
	*l = page.Data
	return err
}

// workflow runs "npx workflow" for the app, and decodes its output if answer is not nil.
func (a *app) workflow(t *testing.T, answer any, args ...string) {
	t.Helper()
	if answer != nil {
		args = append(args, "--json")
	}
	cmd := exec.CommandContext(t.Context(), program(t), append([]string{"vercel", "exec", "--", "npx", "workflow"}, args...)...)
	cmd.Dir, cmd.WaitDelay, cmd.Stderr = a.dir, 10*time.Second, t.Output()
	cmd.Env = append(environment(), "CAY_URL="+a.daemon, "CAY_TOKEN="+a.token, "XDG_CACHE_HOME="+filepath.Join(a.dir, ".cache"))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("workflow %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if answer == nil {
		t.Logf("%s", out)
		return
	}
	if err := json.Unmarshal(out, answer); err != nil {
		t.Fatalf("workflow %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
