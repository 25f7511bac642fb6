package backendtest

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

// testRefused: a value that a store cannot keep is refused, and only its caller gets the
// error. PostgreSQL keeps UTF-8 without zero bytes, and numbers in 32 bits; JSON has
// times up to the year 9999.
func testRefused(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	texts := []string{"a\x00b"}
	if !b.Remote { // JSON cannot carry text that is not UTF-8
		texts = append(texts, "a\xffb")
	}
	for _, bad := range texts {
		for what, p := range map[string]workflow.NewRun{
			"workflow":        {Workflow: bad},
			"key":             {Workflow: "order", Key: bad},
			"group":           {Workflow: "order", Group: bad},
			"build":           {Workflow: "order", Build: bad},
			"id":              {Workflow: "order", ID: "wrun_" + bad},
			"attribute":       {Workflow: "order", Attributes: map[string]string{bad: "v"}},
			"attribute value": {Workflow: "order", Attributes: map[string]string{"k": bad}},
		} {
			_, _, err := b.CreateRun(t.Context(), p)
			checktest.Code(t, err, cay.Invalid, what)
		}
		for what, e := range map[string]workflow.Event{
			"id of a step":     {Type: history.StepCompleted, ID: bad, Name: "step", Attempt: 1},
			"name of a step":   {Type: history.StepCompleted, ID: "step_a.1", Name: bad, Attempt: 1},
			"token":            {Type: history.HookCreated, ID: "hook_a.1", Token: bad},
			"code":             {Type: history.RunFailed, Code: bad},
			"reason":           {Type: history.RunCancelled, Reason: bad},
			"attribute of its": {Type: history.AttrSet, Attributes: map[string]string{"k": bad}},
		} {
			checktest.Code(t, j.try(e), cay.Invalid, what)
		}
		_, err := b.CancelRun(t.Context(), j.run, workflow.CancelParams{Reason: bad})
		checktest.Code(t, err, cay.Invalid, "reason to cancel")
		_, err = b.CancelRuns(t.Context(), workflow.Query{Workflow: "none"}, workflow.CancelParams{Reason: bad})
		checktest.Code(t, err, cay.Invalid, "reason to cancel many")
		_, err = b.SetAttributes(t.Context(), j.run, map[string]string{"k": bad})
		checktest.Code(t, err, cay.Invalid, "attributes")
		_, err = b.PutSchedule(t.Context(), workflow.Schedule{ID: bad, Workflow: "order", Cron: "@every 1h"})
		checktest.Code(t, err, cay.Invalid, "schedule")
		written := make(chan error, 1)
		j.session.WriteStream(j.run, j.lease, bad, [][]byte{value("a")}, false, func(err error) { written <- err })
		select {
		case err := <-written:
			checktest.Code(t, err, cay.Invalid, "stream")
		case <-time.After(patience):
			t.Fatal("a write to a stream was not decided")
		}

		for what, info := range map[string]workflow.WorkerInfo{
			"definition":     {Definitions: []workflow.DefinitionInfo{{Name: bad}}},
			"worker's build": {Build: bad, Definitions: []workflow.DefinitionInfo{{Name: "order"}}},
			"accepted build": {Accept: []string{bad}, Definitions: []workflow.DefinitionInfo{{Name: "order"}}},
		} {
			_, err := b.Attach(t.Context(), info, w)
			checktest.Code(t, err, cay.Invalid, what)
		}

		// The name is invalid and does not exist: the store may return either error.
		for what, find := range map[string]func() error{
			"hook": func() error { _, err := b.GetHook(t.Context(), bad); return err },
			"resume": func() error {
				_, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: bad, Payload: value("a")})
				return err
			},
			"delete schedule": func() error { return b.DeleteSchedule(t.Context(), bad) },
		} {
			if code := cay.CodeOf(find()); code != cay.NotFound && code != cay.Invalid {
				t.Errorf("%s %q: %q, want not_found or invalid", what, bad, code)
			}
		}
		for what, q := range map[string]workflow.Query{
			"workflow": {Workflow: bad}, "key": {Key: bad}, "attribute": {Attributes: map[string]string{"k": bad}}, "with": {HasAttributes: []string{bad}},
		} {
			page, err := b.ListRuns(t.Context(), q)
			if err != nil && cay.CodeOf(err) != cay.Invalid || err == nil && len(page.Items) > 0 {
				t.Errorf("list by %s %q: %+v, %v", what, bad, page, err)
			}
		}
	}
	_, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "none", Key: strings.Repeat("k", 1025)})
	checktest.Code(t, err, cay.Invalid, "a long key")
	for _, n := range []int{math.MaxInt32 + 1, math.MinInt32 - 1, math.MaxInt} {
		_, _, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Priority: n})
		checktest.Code(t, err, cay.Invalid, "priority")
		checktest.Code(t, j.try(workflow.Event{Type: history.StepCompleted, ID: "step_a.1", Name: "step", Attempt: n}), cay.Invalid, "attempt")
	}

	far := time.UnixMilli(math.MaxInt64 / 2)
	if b.Remote {
		far = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) // the latest time in JSON
	}
	start(t, b, workflow.NewRun{Workflow: "other", Priority: math.MaxInt32, StartAt: far})
	start(t, b, workflow.NewRun{Workflow: "other", Priority: math.MinInt32})
	j.append(workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: math.MaxInt64}, step("step_a.1", "out"))
	if page, err := b.ListRuns(t.Context(), workflow.Query{}); err != nil || len(page.Items) != 3 {
		t.Errorf("%+v, %v; want three runs", page, err)
	}
	if events, err := b.Events(t.Context(), j.run, 1, 0); err != nil || len(events) != 4 {
		t.Errorf("%d events, %v; want 4", len(events), err)
	}
	j.append(completed("out"))
	ended(t, b, j.run, history.Completed)
}
