// Package workflowtest tests workflows by running them on a database of their own, with
// everything that a program has, except that tests do not wait for sleeps.
//
//	func TestOrder(t *testing.T) {
//		kit := workflowtest.New(t, workflowtest.Options{}, order)
//		run, err := order.Start(t.Context(), kit.Client, Order{ID: "1"})
//		...
//		kit.WaitForSleep(run.ID)
//		kit.Wake(run.ID)
//		hook := kit.WaitForHook(run.ID)
//		err = workflow.ResumeHook(t.Context(), kit.Client, hook.Token, Approval{Yes: true})
//		...
//		receipt, err := run.Result(t.Context())
//	}
//
// Each run is replayed from its log before it ends, and fails with REPLAY_DIVERGENCE if
// the replay differs. Replay does the same for saved histories, for example of runs of an
// earlier version of the program.
//
// Steps are ordinary functions; test them as such.
package workflowtest

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// Options configure a Kit. The zero value is usable.
type Options struct {
	// Path is the database. Empty means a new one in a directory of the test. Two Kits
	// must not use the same database at a time.
	Path string
	// Client configures how values are stored.
	Client workflow.ClientOptions
	// Worker changes the worker's configuration. May be nil.
	Worker func(*workflow.WorkerConfig)
	// Context returns the context for steps, derived from its argument, as the context
	// that a program passes to Worker.Start. May be nil.
	Context func(context.Context) context.Context
	// Timeout bounds the waits of the Kit. 0 means a minute.
	Timeout time.Duration
}

// Kit is an engine with a worker. It is closed at the end of the test, or by Close.
type Kit struct {
	Client *workflow.Client
	Worker *workflow.Worker

	t       testing.TB
	engine  *workflowd.Engine
	timeout time.Duration
	closed  bool
}

// New starts an engine and a worker for the given definitions. Errors fail the test.
func New(t testing.TB, o Options, definitions ...workflow.Workflow) *Kit {
	t.Helper()
	if o.Path == "" {
		o.Path = filepath.Join(t.TempDir(), "workflows.db")
	}
	store, err := sqlstore.OpenSQLite(context.Background(), o.Path, sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatalf("open a database: %v", err)
	}
	return newKit(t, store, o, definitions)
}

// newKit is New on a store, which the Kit closes.
func newKit(t testing.TB, store workflowd.Store, o Options, definitions []workflow.Workflow) *Kit {
	t.Helper()
	if o.Timeout <= 0 {
		o.Timeout = time.Minute
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	ctx := context.Background() // the test's own context ends before its clean-up
	engine, err := workflowd.Open(ctx, workflowd.Config{Store: store, Logger: log})
	if err != nil {
		_ = store.Close() // the store is unused
		t.Fatalf("start an engine: %v", err)
	}
	k := &Kit{t: t, engine: engine, timeout: o.Timeout, Client: workflow.NewClient(engine.For(""), o.Client)}
	config := workflow.WorkerConfig{Definitions: definitions, Name: t.Name(), Logger: log, VerifyReplay: true}
	if o.Worker != nil {
		o.Worker(&config)
	}
	k.Worker = workflow.NewWorker(k.Client, config)
	t.Cleanup(k.Close)
	steps := ctx
	if o.Context != nil {
		steps = o.Context(ctx)
	}
	if err := k.Worker.Start(steps); err != nil {
		t.Fatalf("start a worker: %v", err)
	}
	return k
}

// Close stops the worker and the engine. Live runs go on in a Kit on the same Path.
func (k *Kit) Close() {
	k.t.Helper()
	if k.closed {
		return
	}
	k.closed = true
	k.Worker.Stop()
	if err := k.engine.Close(); err != nil {
		k.t.Errorf("stop the engine: %v", err)
	}
}

// WaitForHook waits until a run has a live hook, and returns it. If tokens are given, the
// hook must have one of these tokens.
func (k *Kit) WaitForHook(run string, tokens ...string) *workflow.Hook {
	k.t.Helper()
	hooks := make(map[string]string) // token by id
	found := ""
	k.wait(run, "a hook", func(e *workflow.Event) {
		switch e.Type {
		case history.HookCreated:
			hooks[e.ID] = e.Token
		case history.HookDisposed:
			delete(hooks, e.ID)
		}
	}, func() bool {
		for _, token := range hooks {
			if len(tokens) == 0 || contains(tokens, token) {
				found = token
				return true
			}
		}
		return false
	})
	hook, err := k.Client.Hook(context.Background(), found)
	if err != nil {
		k.t.Fatalf("hook %q of run %s: %v", found, run, err)
	}
	return hook
}

func contains(all []string, s string) bool {
	for _, other := range all {
		if other == s {
			return true
		}
	}
	return false
}

// WaitForSleep waits until a run sleeps, and returns the event with the end of the sleep.
// Timeouts of hooks are sleeps too.
func (k *Kit) WaitForSleep(run string) *workflow.Event {
	k.t.Helper()
	var waits []*workflow.Event
	k.wait(run, "a sleep", func(e *workflow.Event) {
		switch e.Type {
		case history.WaitCreated:
			waits = append(waits, e)
		case history.WaitCompleted:
			for i, w := range waits {
				if w.ID == e.ID {
					waits = append(waits[:i], waits[i+1:]...)
					break
				}
			}
		}
	}, func() bool { return len(waits) > 0 })
	return waits[0]
}

// Wake ends all sleeps of a run.
func (k *Kit) Wake(run string) {
	k.t.Helper()
	if _, err := k.Client.Wake(context.Background(), run); err != nil {
		k.t.Fatalf("wake run %s: %v", run, err)
	}
}

// WaitFor waits until the log of a run has an event for which f returns true, and returns
// the event.
func (k *Kit) WaitFor(run, what string, f func(*workflow.Event) bool) *workflow.Event {
	k.t.Helper()
	var found *workflow.Event
	k.wait(run, what, func(e *workflow.Event) {
		if found == nil && f(e) {
			found = e
		}
	}, func() bool { return found != nil })
	return found
}

// wait calls see for each event of a run, for existing events first and then for new
// ones, until done returns true.
func (k *Kit) wait(run, what string, see func(*workflow.Event), done func() bool) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
	defer cancel()
	h, err := k.Client.History(ctx, run)
	if err != nil {
		k.t.Fatalf("history of run %s: %v", run, err)
	}
	for i := range h.Events {
		see(&h.Events[i])
	}
	if done() {
		return
	}
	for e, err := range k.Client.Follow(ctx, run, int64(len(h.Events))+1) {
		if err != nil {
			k.t.Fatalf("run %s: waiting for %s: %v", run, what, err)
		}
		see(&e)
		if done() {
			return
		}
	}
	k.t.Fatalf("run %s has ended without %s", run, what)
}

// SaveHistory writes the history of a run to a file, for Replay. Programs use
// Client.History for that.
func (k *Kit) SaveHistory(run, file string) {
	k.t.Helper()
	h, err := k.Client.History(context.Background(), run)
	if err != nil {
		k.t.Fatalf("history of run %s: %v", run, err)
	}
	b, err := json.MarshalIndent(h, "", "\t")
	if err == nil {
		err = os.WriteFile(file, append(b, '\n'), 0o644)
	}
	if err != nil {
		k.t.Fatalf("save the history of run %s: %v", run, err)
	}
}

// Replay runs the code of the definitions over the history in a file, and fails the test
// if the code does not fit the history: see workflow.Replay.
func Replay(t testing.TB, file string, definitions ...workflow.Workflow) {
	t.Helper()
	ReplayWith(t, file, workflow.ClientOptions{}, definitions...)
}

// ReplayWith is Replay for values that were not stored as unencrypted JSON.
func ReplayWith(t testing.TB, file string, o workflow.ClientOptions, definitions ...workflow.Workflow) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var h workflow.History
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if err := workflow.Replay(&h, o, definitions...); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
