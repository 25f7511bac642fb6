package workflowd_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// upper is a runtime whose payloads are JSON in capitals.
type upper struct{}

func (upper) Readable(p []byte) []byte         { return bytes.ToLower(p) }
func (upper) Payload(p []byte) ([]byte, error) { return bytes.ToUpper(p), nil }
func (upper) Wake(r *history.Run) (queue.Message, error) {
	return queue.Message{Project: r.Project, Deployment: r.Build, Topic: "t", Run: r.ID, Body: []byte(r.ID)}, nil
}

// added is a queue that records the messages passed to Added.
type added struct {
	*queue.Queue
	mu   sync.Mutex
	runs []string
}

func (a *added) Added(messages []queue.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range messages {
		a.runs = append(a.runs, messages[i].Run)
	}
	a.Queue.Added(messages)
}

// An action on an external run from outside wakes the run's app: the event and the
// message are stored together.
func TestRuntime(t *testing.T) {
	t.Parallel()
	store, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "w.db"), sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), queue.Config{Store: store.Queue()})
	if err != nil {
		t.Fatal(err)
	}
	messages := &added{Queue: q}
	e := start(t, workflowd.Config{Store: store, Messages: messages, Runtimes: map[history.Kind]workflowd.Runtime{history.JavaScript: upper{}}})
	defer q.Close()
	x, b := e.External("p", history.JavaScript), e.For("p")
	createExternal(t, x, externalRun)
	record(t, x, history.Event{Type: history.RunStarted}, history.Event{Type: history.HookCreated, ID: "hook_1", Token: "t"}, history.Event{Type: history.WaitCreated, ID: "wait_1", Until: 1 << 50})
	if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte(`json"a"`)}); err != nil {
		t.Fatal(err)
	}
	if n, err := b.WakeRun(t.Context(), externalRun, nil); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if n, err := b.WakeRun(t.Context(), externalRun, nil); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	again, err := b.RerunRun(t.Context(), externalRun, workflow.RerunParams{})
	if err != nil || again.Kind != history.JavaScript || again.Build != "dpl_1" || string(again.Extra) != "run" {
		t.Fatalf("it runs again as %+v: %v", again, err)
	}
	events, err := b.Events(t.Context(), externalRun, 5, 0)
	if err != nil || len(events) != 2 || string(events[0].Payload) != `JSON"A"` {
		t.Errorf("its log ends with %v: %v", events, err)
	}
	want := []string{externalRun, externalRun, again.ID}
	if !slices.Equal(messages.runs, want) {
		t.Errorf("the queue was told of %v", messages.runs)
	}
	stored, err := q.Messages(t.Context(), "p", "", 10)
	if err != nil || len(stored) != 3 {
		t.Errorf("it has %d messages: %v", len(stored), err)
	}
}

// An engine that cannot wake the app of a run refuses actions on the run.
func TestRuntime_unknown(t *testing.T) {
	t.Parallel()
	e := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{})
	x, b := e.External("p", history.JavaScript), e.For("p")
	createExternal(t, x, externalRun)
	record(t, x, history.Event{Type: history.RunStarted}, history.Event{Type: history.HookCreated, ID: "hook_1", Token: "t"})
	if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "t", Payload: []byte(`json1`)}); cay.CodeOf(err) != cay.NotSupported {
		t.Errorf("resumed: %v", err)
	}
	if run, err := b.GetRun(t.Context(), externalRun); err != nil || run.Events != 3 {
		t.Errorf("it is %+v: %v", run, err)
	}
}
