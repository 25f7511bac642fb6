package backendtest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

func testCreate(t *testing.T, b Backend) {
	run := start(t, b, workflow.NewRun{
		Workflow: "order", Input: value("in"), Key: "k", Group: "g", Priority: 3, Build: "b1", Attributes: map[string]string{"a": "1"},
	})
	if !strings.HasPrefix(run.ID, "wrun_") || run.Workflow != "order" || run.Status != workflow.StatusPending || run.Key != "k" ||
		run.Group != "g" || run.Priority != 3 || run.Build != "b1" || run.Attributes["a"] != "1" || run.CreatedAt == 0 {
		t.Errorf("the run is %+v", run)
	}
	again, created, err := b.CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Input: value("other"), Key: "k"})
	if err != nil || created || again.ID != run.ID {
		t.Errorf("with the same key: %+v, created %v, %v", again, created, err)
	}
	if other := start(t, b, workflow.NewRun{Workflow: "another", Key: "k"}); other.ID == run.ID {
		t.Error("keys of two workflows are mixed up")
	}
	id := strings.Repeat("0", 26)
	own := start(t, b, workflow.NewRun{ID: "wrun_" + id, Workflow: "order"})
	if own.ID != "wrun_"+id {
		t.Errorf("the run asked for is %s", own.ID)
	}
	got, err := b.GetRun(t.Context(), run.ID)
	if err != nil || got.ID != run.ID || got.Key != "k" || got.CreatedAt != run.CreatedAt || !maps.Equal(got.Attributes, run.Attributes) {
		t.Errorf("get: %+v, %v", got, err)
	}
	_, _, err = b.CreateRun(t.Context(), workflow.NewRun{})
	checktest.Code(t, err, cay.Invalid, "a run of nothing")
	_, err = b.GetRun(t.Context(), "wrun_none")
	checktest.Code(t, err, cay.NotFound, "a run that is not there")
	_, err = b.WaitRun(t.Context(), "wrun_none")
	checktest.Code(t, err, cay.NotFound, "waiting for it")
	_, err = b.Events(t.Context(), "wrun_none", 1, 10)
	checktest.Code(t, err, cay.NotFound, "its events")
	_, err = b.Follow(t.Context(), "wrun_none", 1)
	checktest.Code(t, err, cay.NotFound, "following it")
}

func testList(t *testing.T, b Backend) {
	var ids []string
	for i := range 5 {
		name := "order"
		if i%2 == 1 {
			name = "refund"
		}
		ids = append(ids, start(t, b, workflow.NewRun{
			Workflow: name, Attributes: map[string]string{"n": fmt.Sprint(i), "odd=": fmt.Sprint(i % 2)}, Key: fmt.Sprint("key", i),
		}).ID)
	}
	if _, err := b.CancelRun(t.Context(), ids[4], workflow.CancelParams{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		q    workflow.Query
		want []int
	}{
		{"all", workflow.Query{}, []int{4, 3, 2, 1, 0}},
		{"oldest first", workflow.Query{Ascending: true}, []int{0, 1, 2, 3, 4}},
		{"workflow", workflow.Query{Workflow: "refund"}, []int{3, 1}},
		{"status", workflow.Query{Statuses: []workflow.Status{workflow.StatusCancelled, workflow.StatusFailed}}, []int{4}},
		{"attributes", workflow.Query{Attributes: map[string]string{"odd=": "1", "n": "3"}}, []int{3}},
		{"key", workflow.Query{Key: "key2"}, []int{2}},
		{"nothing", workflow.Query{Workflow: "none"}, nil},
		{"later", workflow.Query{Since: time.Now().Add(time.Hour).UnixMilli()}, nil},
		{"earlier", workflow.Query{Until: time.Now().Add(-time.Hour).UnixMilli()}, nil},
		{"in time", workflow.Query{Since: time.Now().Add(-time.Hour).UnixMilli(), Until: time.Now().Add(time.Hour).UnixMilli(), Workflow: "refund"}, []int{3, 1}},
	} {
		for _, limit := range []int{0, 2} {
			var got []string
			for q := tt.q; ; {
				q.Limit = limit
				page, err := b.ListRuns(t.Context(), q)
				if err != nil {
					t.Fatalf("%s: %v", tt.name, err)
				}
				for _, r := range page.Items {
					got = append(got, r.ID)
				}
				if q.Cursor = page.Cursor; q.Cursor == "" {
					break
				}
			}
			var want []string
			for _, i := range tt.want {
				want = append(want, ids[i])
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, pages of %d: %v, want %v", tt.name, limit, got, want)
			}
		}
	}
	_, err := b.ListRuns(t.Context(), workflow.Query{Cursor: "nonsense"})
	checktest.Code(t, err, cay.Invalid, "a cursor that is none")
}

func testSteps(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	run := start(t, b, workflow.NewRun{Workflow: "order", Input: value("in"), Attributes: map[string]string{"a": "1"}})
	j := w.take(run.ID)
	if len(j.first.Events) != 2 || j.first.Events[0].Type != history.RunCreated || j.first.Events[1].Type != history.RunStarted ||
		string(j.first.Events[0].Payload) != string(value("in")) || j.first.Recovered || j.first.Run.Status != workflow.StatusRunning {
		t.Errorf("assigned %+v", j.first)
	}
	got := j.append(step("step_a.1", "one"))[0]
	if got.ID != "step_a.1" || got.Name != "step" || string(got.Payload) != string(value("one")) || string(got.Input) != string(value("in")) || got.Attempt != 1 {
		t.Errorf("delivered %+v", got)
	}
	j.append(workflow.Event{Type: history.StepStarted, ID: "step_b.1", Name: "b", Attempt: 1},
		workflow.Event{Type: history.VersionMarked, ID: "version_x", Attempt: 2})
	until := time.Now().Add(time.Hour).UnixMilli()
	got = j.append(workflow.Event{Type: history.StepRetrying, ID: "step_b.1", Attempt: 1, Payload: value("no"), Until: until})[0]
	if got.Until != until {
		t.Errorf("until is %d, want %d", got.Until, until)
	}
	j.append(workflow.Event{Type: history.StepStarted, ID: "step_b.1", Attempt: 2}, workflow.Event{Type: history.StepFailed, ID: "step_b.1", Attempt: 2, Payload: value("no")})
	j.append(completed("out"))
	end := ended(t, b, run.ID, workflow.StatusCompleted)
	if end.CompletedAt == 0 || end.Events != j.slot {
		t.Errorf("the run is %+v; its last slot is %d", end, j.slot)
	}
	events, err := b.Events(t.Context(), run.ID, 3, 2)
	if err != nil || len(events) != 2 || events[0].Slot != 3 || events[0].ID != "step_a.1" {
		t.Errorf("events from 3: %+v, %v", events, err)
	}
	if events, err := b.Events(t.Context(), run.ID, j.slot+1, 2); err != nil || len(events) != 0 {
		t.Errorf("events after the last: %+v, %v", events, err)
	}

	failed := start(t, b, workflow.NewRun{Workflow: "order"})
	j = w.take(failed.ID)
	j.append(workflow.Event{Type: history.RunFailed, Payload: value("bad"), Code: history.CodeUser})
	if end := ended(t, b, failed.ID, workflow.StatusFailed); end.ErrorCode != history.CodeUser {
		t.Errorf("its code is %q", end.ErrorCode)
	}
	start(t, b, workflow.NewRun{Workflow: "order", StartAt: time.Now().Add(time.Hour)})
	w.quiet("")
}

func testFencing(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	wrong := *j
	wrong.lease += 1000
	checktest.Code(t, wrong.try(step("step_a.1", "x")), cay.Conflict, "another lease")
	other := attach(t, b, "none")
	stolen := *j
	stolen.worker = other
	checktest.Code(t, stolen.try(step("step_a.1", "x")), cay.Conflict, "another session")
	none := *j
	none.run = "wrun_none"
	if none.try(step("step_a.1", "x")) == nil {
		t.Error("appended to a run that is not there")
	}
	j.append(completed("out"))
	checktest.Code(t, j.try(step("step_a.1", "x")), cay.Conflict, "after the end")
	j.session.Append(j.run, j.lease, []workflow.Event{step("step_a.1", "x")}, nil) // the test does not need the outcome
}

func testAllOrNone(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	j.append(step("step_a.1", "x"))
	checktest.Code(t, j.try(step("step_b.1", "y"), step("step_a.1", "again")), cay.Conflict, "a step that is over")
	events, err := b.Events(t.Context(), j.run, 1, 100)
	if err != nil || int64(len(events)) != j.slot {
		t.Errorf("%d events, %v, want %d", len(events), err, j.slot)
	}
	j.append(step("step_b.1", "y"), completed("out"))
}

func testWaits(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	wait := func(id string, d time.Duration) workflow.Event {
		return workflow.Event{Type: history.WaitCreated, ID: id, Until: time.Now().Add(d).UnixMilli()}
	}
	j.append(wait("wait_sleep.1", 20*time.Millisecond))
	if e := j.wait(history.WaitCompleted)[0]; e.ID != "wait_sleep.1" {
		t.Errorf("ended %+v", e)
	}
	j.append(wait("wait_sleep.2", time.Hour), wait("wait_sleep.3", time.Hour), wait("wait_sleep.4", time.Hour))
	if n, err := b.WakeRun(t.Context(), j.run, []string{"wait_sleep.3", "wait_none.1"}); n != 1 || err != nil {
		t.Errorf("woke %d, %v", n, err)
	}
	if e := j.wait(history.WaitCompleted)[0]; e.ID != "wait_sleep.3" {
		t.Errorf("ended %+v", e)
	}
	if n, err := b.WakeRun(t.Context(), j.run, nil); n != 2 || err != nil {
		t.Errorf("woke %d, %v", n, err)
	}
	j.wait(history.WaitCompleted, history.WaitCompleted)
	if n, err := b.WakeRun(t.Context(), j.run, nil); n != 0 || err != nil {
		t.Errorf("woke %d, %v", n, err)
	}
	_, err := b.WakeRun(t.Context(), "wrun_none", nil)
	checktest.Code(t, err, cay.NotFound, "waking nothing")

	late := start(t, b, workflow.NewRun{Workflow: "order", StartAt: time.Now().Add(30 * time.Millisecond)})
	w.take(late.ID)
}

func testCancel(t *testing.T, b Backend) {
	pending := start(t, b, workflow.NewRun{Workflow: "order"})
	run, err := b.CancelRun(t.Context(), pending.ID, workflow.CancelParams{Reason: "no need"})
	if err != nil || run.Status != workflow.StatusCancelled || run.CancelReason != "no need" {
		t.Errorf("cancelled: %+v, %v", run, err)
	}
	if run, err := b.CancelRun(t.Context(), pending.ID, workflow.CancelParams{}); err != nil || run.Status != workflow.StatusCancelled {
		t.Errorf("once more: %+v, %v", run, err)
	}
	ended(t, b, pending.ID, workflow.StatusCancelled)

	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	if run, err = b.CancelRun(t.Context(), j.run, workflow.CancelParams{Reason: "stop"}); err != nil || !run.CancelRequested {
		t.Errorf("asked: %+v, %v", run, err)
	}
	if e := j.wait(history.CancelRequested)[0]; e.Reason != "stop" {
		t.Errorf("delivered %+v", e)
	}
	j.append(step("step_undo.1", "x"))
	j.append(workflow.Event{Type: history.RunCancelled, Reason: "stop"})
	ended(t, b, j.run, workflow.StatusCancelled)

	j = w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	if run, err = b.CancelRun(t.Context(), j.run, workflow.CancelParams{Force: true}); err != nil || run.Status != workflow.StatusCancelled {
		t.Errorf("forced: %+v, %v", run, err)
	}
	checktest.Code(t, j.try(step("step_a.1", "x")), cay.Conflict, "after that")

	j = w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	j.append(completed("out"))
	_, err = b.CancelRun(t.Context(), j.run, workflow.CancelParams{})
	checktest.Code(t, err, cay.Conflict, "a run that has completed")
	_, err = b.CancelRun(t.Context(), "wrun_none", workflow.CancelParams{})
	checktest.Code(t, err, cay.NotFound, "a run that is not there")
	_, err = b.CancelRun(t.Context(), j.run, workflow.CancelParams{Reason: strings.Repeat("x", 513)})
	checktest.Code(t, err, cay.Invalid, "a long reason")
}

func testCancelMany(t *testing.T, b Backend) {
	var ids []string
	for range 3 {
		ids = append(ids, start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	}
	start(t, b, workflow.NewRun{Workflow: "refund"})
	results, err := b.CancelRuns(t.Context(), workflow.Query{Workflow: "order", Statuses: []workflow.Status{workflow.StatusPending}}, workflow.CancelParams{Reason: "all"})
	if err != nil || len(results) != 3 {
		t.Fatalf("%+v, %v", results, err)
	}
	for _, r := range results {
		if r.Outcome != "cancelled" {
			t.Errorf("run %s: %+v", r.Run, r)
		}
	}
	// The backend may have forwarded the cancellation to another process that owns the
	// run.
	for _, id := range ids {
		ended(t, b, id, workflow.StatusCancelled)
	}
	results, err = b.CancelRuns(t.Context(), workflow.Query{Workflow: "order", Limit: 2}, workflow.CancelParams{})
	if err != nil || len(results) != 2 || results[0].Outcome != "already_cancelled" {
		t.Errorf("once more: %+v, %v", results, err)
	}
	if page, err := b.ListRuns(t.Context(), workflow.Query{Workflow: "refund"}); err != nil || page.Items[0].Status != workflow.StatusPending {
		t.Errorf("another workflow: %+v, %v", page, err)
	}
}

func testAttributes(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order", Attributes: map[string]string{"a": "1", "b": "2"}}).ID)
	run, err := b.SetAttributes(t.Context(), j.run, map[string]string{"a": "", "c": "3"})
	want := map[string]string{"b": "2", "c": "3"}
	if err != nil || !maps.Equal(run.Attributes, want) {
		t.Errorf("%+v, %v", run, err)
	}
	j.wait(history.AttrSet)
	j.append(workflow.Event{Type: history.AttrSet, Attributes: map[string]string{"d": "4"}})
	page, err := b.ListRuns(t.Context(), workflow.Query{Attributes: map[string]string{"d": "4", "c": "3"}})
	if err != nil || len(page.Items) != 1 {
		t.Errorf("by attributes: %+v, %v", page, err)
	}
	_, err = b.SetAttributes(t.Context(), "wrun_none", map[string]string{"a": "1"})
	checktest.Code(t, err, cay.NotFound, "of a run that is not there")
}

func testRerunDelete(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order", Input: value("in")}).ID)
	checktest.Code(t, b.DeleteRun(t.Context(), j.run), cay.Conflict, "deleting a run that runs")
	j.append(completed("out"))
	again, err := b.RerunRun(t.Context(), j.run, workflow.RerunParams{Key: "again"})
	if err != nil || again.ID == j.run || again.Workflow != "order" || again.Key != "again" {
		t.Fatalf("rerun: %+v, %v", again, err)
	}
	second := w.take(again.ID)
	if string(second.first.Events[0].Payload) != string(value("in")) {
		t.Errorf("its input is %s", second.first.Events[0].Payload)
	}
	if err := b.DeleteRun(t.Context(), j.run); err != nil {
		t.Fatal(err)
	}
	_, err = b.GetRun(t.Context(), j.run)
	checktest.Code(t, err, cay.NotFound, "a deleted run")
	checktest.Code(t, b.DeleteRun(t.Context(), j.run), cay.NotFound, "deleting it again")
	_, err = b.RerunRun(t.Context(), j.run, workflow.RerunParams{})
	checktest.Code(t, err, cay.NotFound, "rerunning it")
}

func testFollow(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	run := start(t, b, workflow.NewRun{Workflow: "order"})
	j := w.take(run.ID)
	r, err := b.Follow(t.Context(), run.ID, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	seen := int64(1)
	read := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		events, err := r.ReadEvents(ctx)
		for _, e := range events {
			if seen++; e.Slot != seen {
				t.Fatalf("slot %d after %d", e.Slot, seen-1)
			}
		}
		if err == nil && len(events) == 0 {
			t.Error("no events and no error")
		}
		return err
	}
	for i := range 5 {
		j.append(step(fmt.Sprintf("step_a.%d", i+1), "x"))
		for seen < j.slot {
			if err := read(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := b.CancelRun(t.Context(), run.ID, workflow.CancelParams{}); err != nil {
		t.Fatal(err)
	}
	j.wait(history.CancelRequested)
	j.append(completed("out"))
	for seen < j.slot {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	wantEOF(t, "after the last event", read())
	whole, err := b.Follow(t.Context(), run.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	n := int64(0)
	for {
		events, err := whole.ReadEvents(t.Context())
		if n += int64(len(events)); err != nil {
			wantEOF(t, "of a run that has ended", err)
			break
		}
	}
	if n != j.slot {
		t.Errorf("%d events, want %d", n, j.slot)
	}
}

func testLargePayloads(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	big := value(strings.Repeat("0123456789abcdef", 3<<20/16))
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order", Input: big}).ID)
	if string(j.first.Events[0].Payload) != string(big) {
		t.Errorf("the input has %d bytes, want %d", len(j.first.Events[0].Payload), len(big))
	}
	e := step("step_a.1", "")
	e.Payload = big
	if got := j.append(e)[0]; string(got.Payload) != string(big) {
		t.Errorf("the result has %d bytes, want %d", len(got.Payload), len(big))
	}
	sealed := append([]byte("encr\x00\xff"), big...)
	j.append(workflow.Event{Type: history.HookCreated, ID: "hook_a.1", Token: "big"})
	if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "big", Payload: sealed}); err != nil {
		t.Fatal(err)
	}
	if got := j.wait(history.HookReceived)[0]; string(got.Payload) != string(sealed) {
		t.Errorf("the hook's payload has %d bytes, want %d", len(got.Payload), len(sealed))
	}
	events, err := b.Events(t.Context(), j.run, 1, 100)
	if err != nil || int64(len(events)) != j.slot || string(events[2].Payload) != string(big) || string(events[4].Payload) != string(sealed) {
		t.Errorf("%d events, %v", len(events), err)
	}
	_, _, err = b.CreateRun(t.Context(), workflow.NewRun{Workflow: "order", Input: make([]byte, 101<<20)})
	checktest.Code(t, err, cay.TooLarge, "a payload of 101 MiB")
}

// A log is assigned completely, however long it is.
func testLongLog(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	filler := strings.Repeat("x", 20<<10)
	for i := range 10 {
		var events []workflow.Event
		for k := range 50 {
			events = append(events, step(fmt.Sprintf("step_a.%d", i*50+k+1), filler))
		}
		j.append(events...)
	}
	if err := w.session.Close(); err != nil {
		t.Fatal(err)
	}
	second := attach(t, b, "order").take(j.run)
	if len(second.first.Events) != 502 {
		t.Errorf("it has %d events", len(second.first.Events))
	}
	second.append(completed("out"))
}

func testContexts(t *testing.T, b Backend) {
	run := start(t, b, workflow.NewRun{Workflow: "order"})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := b.WaitRun(ctx, run.ID)
	if err == nil || ctx.Err() == nil {
		t.Errorf("waited: %v", err)
	}
	r, err := b.Follow(t.Context(), run.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadEvents(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if events, err := r.ReadEvents(ctx); err == nil {
		t.Errorf("read %+v", events)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// testBuilds: a run pinned to a build goes to workers that have or accept the build.
func testBuilds(t *testing.T, b Backend) {
	old := start(t, b, workflow.NewRun{Workflow: "order", Build: "v1"})
	info := workflow.WorkerInfo{Name: "suite", Build: "v2", Definitions: []workflow.DefinitionInfo{{Name: "order"}}}
	w := attachAs(t, b, &worker{t: t, news: make(chan news, 1000)}, info)
	w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID).append(completed("out"))
	w.quiet(old.ID)
	info.Accept = []string{"v0", "v1"}
	w = attachAs(t, b, &worker{t: t, news: make(chan news, 1000)}, info)
	w.take(old.ID).append(completed("out"))
	if run := ended(t, b, old.ID, history.Completed); run.Build != "v1" {
		t.Errorf("it is of build %q, want v1", run.Build)
	}
}
