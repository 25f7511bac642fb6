package workflow_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/workflow"
	"github.com/cayhq/cay/workflow/workflowtest"
)

// TestPrograms runs random programs on a whole engine, whose worker is stopped and
// started in between: every run ends, and replays to the same end (which the kit checks).
func TestPrograms(t *testing.T) {
	const programs = 150
	defs := []workflow.Workflow{workflow.SomeChild()}
	var all []*workflow.Definition[int, int]
	for seed := range uint64(programs) {
		d := workflow.Program(1_000_000 + seed)
		defs, all = append(defs, d), append(all, d)
	}
	o := workflowtest.Options{Path: filepath.Join(t.TempDir(), "programs.db")}
	kit := workflowtest.New(t, o, defs...)
	var ids []string
	for _, d := range all {
		run, err := d.Start(t.Context(), kit.Client, 1)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, run.ID)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for begun, restarts := time.Now(), 0; ; {
		if time.Since(begun) > 3*time.Minute {
			for _, id := range ids {
				if info, err := kit.Client.Get(t.Context(), id); err == nil && !info.Status.Terminal() {
					events, _ := kit.Client.Events(t.Context(), id, 1, 0)
					t.Errorf("%s of %s has not ended", id, info.Workflow)
					for _, e := range events {
						t.Logf("%d %s %s %s", e.Slot, e.Type, e.ID, e.Payload)
					}
				}
			}
			return
		}
		if restarts < 5 && time.Since(begun) > time.Duration(restarts+1)*30*time.Millisecond {
			restarts++
			kit.Close()
			kit = workflowtest.New(t, o, defs...)
		}
		// Resume all hooks, until all runs have ended.
		hooks, err := kit.Client.Hooks(t.Context(), "", "", 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hooks.Items {
			if _, err := kit.Client.Resume(t.Context(), h.Token, r.IntN(50)); err != nil {
				t.Logf("resume: %v", err) // the hook has just been disposed of
			}
		}
		open, err := kit.Client.List(t.Context(), workflow.Query{Statuses: []workflow.Status{workflow.StatusPending, workflow.StatusRunning}})
		if err != nil {
			t.Fatal(err)
		}
		if len(open.Items) == 0 {
			break
		}
		select {
		case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond): // the time of resumes is random
		case <-t.Context().Done():
		}
	}
	for i, id := range ids {
		_, err := workflow.GetRun[int](kit.Client, id).Result(context.Background())
		var failed *workflow.RunFailedError
		if errors.As(err, &failed) && failed.Code != "USER_ERROR" || err != nil && failed == nil {
			t.Errorf("program %d: %v", 1_000_000+i, err)
		}
	}
}
