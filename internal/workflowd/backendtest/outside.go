package backendtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/workflow"
)

func wantEOF(t *testing.T, what string, err error) {
	t.Helper()
	if err != io.EOF {
		t.Errorf("%s: %v, want io.EOF", what, err)
	}
}

func testHooks(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	const token = "approve://order/../42?x=ä "
	j.append(workflow.Event{Type: history.HookCreated, ID: "hook_hook.1", Token: token, Payload: value("meta")},
		workflow.Event{Type: history.HookCreated, ID: "hook_webhook.1", Token: "web", Webhook: true})
	hook, err := b.GetHook(t.Context(), token)
	if err != nil || hook.Run != j.run || hook.ID != "hook_hook.1" || hook.Token != token || hook.Webhook ||
		string(hook.Metadata) != string(value("meta")) || hook.CreatedAt == 0 {
		t.Errorf("%+v, %v", hook, err)
	}
	for _, run := range []string{"", j.run} {
		page, err := b.ListHooks(t.Context(), run, "", 0)
		if err != nil || len(page.Items) != 2 {
			t.Errorf("hooks of %q: %+v, %v", run, page, err)
		}
	}
	page, err := b.ListHooks(t.Context(), "", "", 1)
	if err != nil || len(page.Items) != 1 || page.Cursor == "" {
		t.Fatalf("one hook: %+v, %v", page, err)
	}
	if page, err = b.ListHooks(t.Context(), "", page.Cursor, 1); err != nil || len(page.Items) != 1 || page.Cursor != "" {
		t.Errorf("the other one: %+v, %v", page, err)
	}

	resume := func(p workflow.ResumeParams) error {
		hook, err := b.ResumeHook(t.Context(), p)
		if err == nil && hook.Run != j.run {
			t.Errorf("resumed %+v", hook)
		}
		return err
	}
	if err := resume(workflow.ResumeParams{Token: token, Payload: value("yes"), Key: "k1"}); err != nil {
		t.Fatal(err)
	}
	if e := j.wait(history.HookReceived)[0]; e.ID != "hook_hook.1" || string(e.Payload) != string(value("yes")) || e.Key != "k1" {
		t.Errorf("delivered %+v", e)
	}
	if err := resume(workflow.ResumeParams{Token: token, Payload: value("yes"), Key: "k1"}); err != nil {
		t.Errorf("the same again: %v", err)
	}
	checktest.Code(t, resume(workflow.ResumeParams{Token: token, Payload: value("no"), Key: "k1"}), cay.Conflict, "the same key, something else")
	if err := resume(workflow.ResumeParams{Token: token}); err != nil {
		t.Errorf("without a payload: %v", err)
	}
	j.wait(history.HookReceived)
	checktest.Code(t, resume(workflow.ResumeParams{Token: token, Webhook: true}), cay.NotFound, "a hook that is no webhook")
	if err := resume(workflow.ResumeParams{Token: "web", Webhook: true, Payload: value("in")}); err != nil {
		t.Error(err)
	}
	j.wait(history.HookReceived)
	checktest.Code(t, resume(workflow.ResumeParams{Token: "none"}), cay.NotFound, "no hook")

	j.append(workflow.Event{Type: history.HookDisposed, ID: "hook_hook.1"})
	checktest.Code(t, resume(workflow.ResumeParams{Token: token}), cay.NotFound, "a disposed hook")
	j.append(completed("out"))
	checktest.Code(t, resume(workflow.ResumeParams{Token: "web"}), cay.NotFound, "a hook of a run that has ended")
	ended(t, b, j.run, workflow.StatusCompleted) // an end is delivered before it is stored
	_, err = b.GetHook(t.Context(), "web")
	checktest.Code(t, err, cay.NotFound, "getting it")
}

func testHookConflict(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	first := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	second := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	create := workflow.Event{Type: history.HookCreated, ID: "hook_hook.1", Token: "mine"}
	first.append(create)
	if err := second.try(create); err != nil {
		t.Fatal(err)
	}
	if e := second.wait(history.HookConflict)[0]; e.ID != "hook_hook.1" || e.Token != "mine" || e.Reason != first.run {
		t.Errorf("delivered %+v", e)
	}
	first.append(completed("out"))
	create.ID = "hook_hook.2"
	second.append(create)
	if hook, err := b.GetHook(t.Context(), "mine"); err != nil || hook.Run != second.run {
		t.Errorf("%+v, %v", hook, err)
	}
}

func testChildren(t *testing.T, b Backend) {
	w := attach(t, b, "order", "refund")
	parent := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	const id = "wrun_01K00000000000000000000000"
	spawn := func(call string, p workflow.NewRun) error {
		p.Workflow, p.ParentCall = "refund", call
		p.Parent, p.Root = parent.run, parent.run
		done := make(chan error, 1)
		parent.session.StartRun(parent.run, parent.lease, p,
			workflow.Event{Type: history.ChildStarted, ID: call, Name: "refund", Token: p.ID}, func(err error) { done <- err })
		return <-done
	}
	if err := spawn("child_refund.1", workflow.NewRun{ID: id, Input: value("in")}); err != nil {
		t.Fatal(err)
	}
	if e := parent.wait(history.ChildStarted)[0]; e.Token != id || e.ID != "child_refund.1" {
		t.Errorf("delivered %+v", e)
	}
	child := w.take(id)
	if child.first.Run.Parent != parent.run || string(child.first.Events[0].Payload) != string(value("in")) {
		t.Errorf("the child is %+v", child.first.Run)
	}
	page, err := b.ListRuns(t.Context(), workflow.Query{Parent: parent.run})
	if err != nil || len(page.Items) != 1 || page.Items[0].ID != id {
		t.Errorf("children: %+v, %v", page, err)
	}
	child.append(completed("out"))
	e := parent.wait(history.ChildEnded)[0]
	if e.ID != "child_refund.1" || e.Code != string(workflow.StatusCompleted) || string(e.Payload) != string(value("out")) {
		t.Errorf("delivered %+v", e)
	}
	parent.append(completed("out"))
}

func testRelease(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	j.append(workflow.Event{Type: history.HookCreated, ID: "hook_hook.1", Token: "go"})
	j.session.Release(j.run, j.lease, j.slot)
	// A value that arrives around the release is not lost.
	if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "go", Payload: value("x")}); err != nil {
		t.Fatal(err)
	}
	for {
		n := w.next(j.run)
		if n.assigned == nil {
			continue // the value was delivered under the old lease
		}
		if last := n.assigned.Events[len(n.assigned.Events)-1]; n.lease == j.lease || last.Type != history.HookReceived || n.assigned.Recovered {
			t.Errorf("assigned %+v", n.assigned)
		}
		old := *j
		checktest.Code(t, old.try(step("step_a.1", "x")), cay.Conflict, "the old lease")
		j = &job{worker: w, run: n.run, lease: n.lease, slot: int64(len(n.assigned.Events))}
		break
	}
	j.append(step("step_a.1", "x"))
	// A worker that has not seen the last event gets the run back at once.
	j.session.Release(j.run, j.lease, j.slot-1)
	w.take(j.run).append(completed("out"))
}

func testTakeOver(t *testing.T, b Backend) {
	run := start(t, b, workflow.NewRun{Workflow: "order"})
	first := attach(t, b, "order")
	j := first.take(run.ID)
	j.append(step("step_a.1", "x"))
	if err := first.session.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-first.session.Lost():
	case <-time.After(patience):
		t.Fatal("a closed session is not lost")
	}
	if err := j.try(step("step_b.1", "x")); err == nil {
		t.Error("appended in a session that is over")
	}

	// The second worker's session ends with its context, as after a crash.
	ctx, die := context.WithCancel(t.Context())
	second := &worker{t: t, news: make(chan news, 1000)}
	s, err := b.Attach(ctx, workflow.WorkerInfo{Definitions: []workflow.DefinitionInfo{{Name: "order"}}}, second)
	if err != nil {
		t.Fatal(err)
	}
	second.session = s
	j = second.take(run.ID)
	if len(j.first.Events) != 3 {
		t.Errorf("assigned %+v", j.first)
	}
	die()
	select {
	case <-s.Lost():
	case <-time.After(patience):
		t.Fatal("a session without a context is not lost")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	third := attach(t, b, "order")
	j = third.take(run.ID)
	if !j.first.Recovered || j.first.Run.Recoveries == 0 {
		t.Errorf("nobody says that a worker was lost: %+v", j.first)
	}
	j.append(completed("out"))
	ended(t, b, run.ID, workflow.StatusCompleted)
}

func testStreams(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	write := func(stream string, closeIt bool, chunks ...string) error {
		var data [][]byte
		for _, c := range chunks {
			data = append(data, []byte(c))
		}
		return b.WriteStream(t.Context(), j.run, stream, data, closeIt)
	}
	open := func(stream string, from int64) workflow.ChunkReader {
		r, err := b.ReadStream(t.Context(), j.run, stream, from)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
	var have []workflow.Chunk
	read := func(r workflow.ChunkReader, n int) []workflow.Chunk {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		have = nil
		for len(have) < n {
			chunks, err := r.ReadChunks(ctx)
			if err != nil {
				t.Fatalf("after %d of %d chunks: %v", len(have), n, err)
			}
			have = append(have, chunks...)
		}
		return have
	}
	const odd = "a b/../c"
	live := open("", 0)
	if err := write("", false, `json"a"`, "json\"b\"", "\x00\xff raw"); err != nil {
		t.Fatal(err)
	}
	got := read(live, 3)
	for i, want := range []string{`json"a"`, `json"b"`, "\x00\xff raw"} {
		if got[i].Index != int64(i) || string(got[i].Data) != want {
			t.Errorf("chunk %d is %d %q", i, got[i].Index, got[i].Data)
		}
	}
	if got := read(open("", -1), 1); got[0].Index != 2 {
		t.Errorf("the last chunk is %+v", got)
	}
	if got := read(open("", 1), 2); got[0].Index != 1 {
		t.Errorf("from 1: %+v", got)
	}
	if got := read(open("", -100), 3); got[0].Index != 0 {
		t.Errorf("from long before: %+v", got)
	}
	if err := write(odd, true, "json1"); err != nil {
		t.Fatal(err)
	}
	checktest.Code(t, write(odd, false, "json2"), cay.Conflict, "a closed stream")
	closed := open(odd, 0)
	read(closed, 1)
	_, err := closed.ReadChunks(t.Context())
	wantEOF(t, "a closed stream", err)
	streams, err := b.ListStreams(t.Context(), j.run)
	if err != nil || len(streams) != 2 {
		t.Fatalf("%+v, %v", streams, err)
	}
	for _, s := range streams {
		if want := (workflow.StreamInfo{Name: s.Name, Chunks: map[string]int64{"": 3, odd: 1}[s.Name], Closed: s.Name == odd}); s != want {
			t.Errorf("stream %+v, want %+v", s, want)
		}
	}
	if err := write("", false, "json4"); err != nil {
		t.Fatal(err)
	}
	if got := read(live, 1); got[0].Index != 3 {
		t.Errorf("live: %+v", got)
	}
	j.append(completed("out"))
	_, err = live.ReadChunks(t.Context())
	wantEOF(t, "the stream of a run that has ended", err)
	checktest.Code(t, b.WriteStream(t.Context(), "wrun_none", "", [][]byte{[]byte("x")}, false), cay.NotFound, "a run that is not there")
	_, err = b.ReadStream(t.Context(), "wrun_none", "", 0)
	checktest.Code(t, err, cay.NotFound, "reading it")
	_, err = b.ListStreams(t.Context(), "wrun_none")
	checktest.Code(t, err, cay.NotFound, "listing them")
}

// testStreamFencing: a worker may write to a run's streams only while it has the run, as
// with appends.
func testStreamFencing(t *testing.T, b Backend) {
	write := func(j *job, closeIt bool, chunks ...string) error {
		t.Helper()
		var data [][]byte
		for _, c := range chunks {
			data = append(data, []byte(c))
		}
		done := make(chan error, 1)
		j.session.WriteStream(j.run, j.lease, "s", data, closeIt, func(err error) { done <- err })
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			t.Fatal("a write was not decided")
			return nil
		}
	}
	old := attach(t, b, "order")
	run := start(t, b, workflow.NewRun{Workflow: "order"})
	lost := old.take(run.ID)
	if err := write(lost, false, "json1", "json2"); err != nil {
		t.Fatal(err)
	}
	guess := *lost
	guess.lease++
	checktest.Code(t, write(&guess, false, "json9"), cay.Conflict, "with another lease")
	if err := lost.session.Close(); err != nil {
		t.Fatal(err)
	}
	heir := attach(t, b, "order").take(run.ID)
	if err := write(lost, false, "json9"); !errors.Is(err, &cay.Error{Code: cay.Conflict}) && !errors.Is(err, &cay.Error{Code: cay.Unavailable}) {
		t.Errorf("who has lost the run writes: %v", err)
	}
	other := *heir
	other.worker = attach(t, b, "another")
	checktest.Code(t, write(&other, true, "json9"), cay.Conflict, "another worker with the lease")
	if err := write(heir, true, "json3"); err != nil {
		t.Fatal(err)
	}
	checktest.Code(t, write(heir, false, "json9"), cay.Conflict, "a closed stream")
	r, err := b.ReadStream(t.Context(), run.ID, "s", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() // only a reader
	var got string
	for {
		chunks, err := r.ReadChunks(t.Context())
		for _, c := range chunks {
			got += string(c.Data)
		}
		if err != nil {
			wantEOF(t, "the stream", err)
			break
		}
	}
	if got != "json1json2json3" {
		t.Errorf("the stream has %s", got)
	}
	heir.append(completed("out"))
	checktest.Code(t, write(heir, false, "json9"), cay.Conflict, "after the run's end")
}

func testSchedules(t *testing.T, b Backend) {
	s, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "nightly", Workflow: "order", Cron: "0 3 * * *", Zone: "Europe/Berlin", Input: value("in")})
	if err != nil || s.NextAt == 0 || s.CreatedAt == 0 || s.Zone != "Europe/Berlin" || string(s.Input) != string(value("in")) {
		t.Fatalf("%+v, %v", s, err)
	}
	if s, err = b.PutSchedule(t.Context(), workflow.Schedule{ID: "nightly", Workflow: "order", Cron: "@every 1h", Paused: true, Overlap: true}); err != nil || !s.Paused || !s.Overlap {
		t.Errorf("changed: %+v, %v", s, err)
	}
	all, err := b.ListSchedules(t.Context())
	if err != nil || len(all) != 1 || all[0].ID != "nightly" || all[0].Cron != "@every 1h" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, bad := range []workflow.Schedule{
		{ID: "x", Workflow: "order", Cron: "never"}, {ID: "x", Cron: "0 3 * * *"}, {ID: "x", Workflow: "order", Cron: "0 3 * * *", Zone: "Nowhere"},
	} {
		_, err := b.PutSchedule(t.Context(), bad)
		checktest.Code(t, err, cay.Invalid, fmt.Sprintf("%+v", bad))
	}
	if err := b.DeleteSchedule(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	checktest.Code(t, b.DeleteSchedule(t.Context(), "nightly"), cay.NotFound, "deleting it again")

	w := attach(t, b, "tick")
	if _, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "often", Workflow: "tick", Cron: "@every 1s", Input: value("tock")}); err != nil {
		t.Fatal(err)
	}
	j := w.take("")
	if string(j.first.Events[0].Payload) != string(value("tock")) {
		t.Errorf("its input is %s", j.first.Events[0].Payload)
	}
	j.append(completed("out"))
}

func testTransact(t *testing.T, b Backend) {
	w := attach(t, b, "order")
	j := w.take(start(t, b, workflow.NewRun{Workflow: "order"}).ID)
	err := w.session.Transact(t.Context(), j.run, j.lease, func(ctx context.Context, tx workflow.Tx) (workflow.Event, error) {
		if _, err := tx.ExecContext(ctx, "CREATE TABLE suite_transact (n INTEGER)"); err != nil {
			return workflow.Event{}, err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO suite_transact VALUES (1)")
		return step("step_tx.1", "x"), err
	})
	if b.Remote {
		checktest.Code(t, err, cay.NotSupported, "a transaction")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	j.wait(history.StepCompleted)
	err = w.session.Transact(t.Context(), j.run, j.lease, func(ctx context.Context, tx workflow.Tx) (workflow.Event, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO suite_transact VALUES (2)"); err != nil {
			return workflow.Event{}, err
		}
		return workflow.Event{}, cay.Errorf(cay.Invalid, "no")
	})
	checktest.Code(t, err, cay.Invalid, "a transaction that fails")
	count := 0
	err = w.session.Transact(t.Context(), j.run, j.lease, func(ctx context.Context, tx workflow.Tx) (workflow.Event, error) {
		return step("step_tx.2", "x"), tx.QueryRowContext(ctx, "SELECT count(*) FROM suite_transact").Scan(&count)
	})
	if err != nil || count != 1 {
		t.Errorf("%d rows, %v", count, err)
	}
	j.wait(history.StepCompleted)
	j.append(completed("out"))
}
