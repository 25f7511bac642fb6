package workflowd_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/db/pgtest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/workflow"
)

func worker(d workflow.DefinitionInfo) workflow.WorkerInfo {
	return workflow.WorkerInfo{Definitions: []workflow.DefinitionInfo{d}}
}

// ended is a backend whose engine can be closed before the end of the test.
type ended struct {
	workflow.Backend
	end func()
}

func ending(t *testing.T, e *workflowd.Engine) ended {
	return ended{e.For("p"), func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}}
}

// alone runs a test on engines with a database of their own.
func alone(t *testing.T, test func(t *testing.T, open func() ended)) {
	path := filepath.Join(t.TempDir(), "w.db")
	test(t, func() ended { return ending(t, open(t, path, workflowd.Config{})) })
}

// both runs a test on engines with a database of their own, and on engines with a
// shareable one.
func both(t *testing.T, test func(t *testing.T, open func() ended)) {
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		alone(t, test)
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		dsn := pgtest.DSN(t)
		test(t, func() ended { return ending(t, openShared(t, dsn, workflowd.Config{})) })
	})
}

func TestLimits_Concurrency(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, open func() ended) {
		b := open()
		var ids []string
		for i := range 4 {
			ids = append(ids, create(t, b, workflow.NewRun{Workflow: "w", Priority: i / 2}).ID)
		}
		h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", MaxRunning: 2}))
		first, second := h.take(ids[2]), h.take(ids[3]) // the runs of higher priority
		h.append(second, workflow.Event{Type: history.WaitCreated, ID: "wait_a.1", Until: time.Now().Add(time.Hour).UnixMilli()})
		h.session.Release(second.run, second.lease, 3) // a sleeping run still counts
		if err := h.try(first, step("step_a.1")); err != nil {
			t.Error(err)
		}
		h.idle("two run")
		h.append(first, completed)
		h.append(h.take(ids[0]), completed)
		if _, err := b.CancelRun(t.Context(), second.run, workflow.CancelParams{Force: true}); err != nil {
			t.Error(err)
		}
		h.append(h.take(ids[1]), completed)
	})
}

// Runs that started before a restart count.
func TestLimits_Restart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "w.db")
	e := open(t, path, workflowd.Config{})
	b := e.For("p")
	def := worker(workflow.DefinitionInfo{Name: "w", MaxRunning: 1})
	h := attach(t, b, def)
	a := h.take(create(t, b, workflow.NewRun{Workflow: "w"}).ID)
	h.append(a, workflow.Event{Type: history.HookCreated, ID: "hook_a.1", Token: "x"})
	h.session.Release(a.run, a.lease, 3)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, path, workflowd.Config{}).For("p")
	other := create(t, b, workflow.NewRun{Workflow: "w"}).ID
	h = attach(t, b, def)
	if _, err := b.ResumeHook(t.Context(), workflow.ResumeParams{Token: "x"}); err != nil {
		t.Fatal(err)
	}
	a = h.take(a.run)
	h.idle("one runs")
	h.append(a, completed)
	h.append(h.take(other), completed)
}

func TestLimits_Groups(t *testing.T) {
	t.Parallel()
	alone(t, func(t *testing.T, open func() ended) {
		b := open()
		ids := map[string][]string{}
		for _, g := range []string{"a", "a", "a", "b", ""} {
			ids[g] = append(ids[g], create(t, b, workflow.NewRun{Workflow: "w", Group: g}).ID)
		}
		h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", MaxRunningPerGroup: 1}))
		a := h.take(ids["a"][0])
		h.append(h.take(ids["b"][0]), completed)
		h.append(h.take(ids[""][0]), completed)
		h.idle("one of a runs")
		h.append(a, completed)
		h.append(h.take(ids["a"][1]), completed)
		h.append(h.take(ids["a"][2]), completed)
	})
}

func TestLimits_Rate(t *testing.T) {
	t.Parallel()
	b := open(t, filepath.Join(t.TempDir(), "w.db"), workflowd.Config{}).For("p")
	const period = 400 * time.Millisecond
	h := attach(t, b, worker(workflow.DefinitionInfo{Name: "w", Rate: 2, RatePerGroup: 1, RatePeriod: period}))
	began := time.Now()
	for i := range 5 {
		create(t, b, workflow.NewRun{Workflow: "w", Group: fmt.Sprint(i)})
	}
	for i := range 5 {
		h.append(h.take(""), completed)
		if took := time.Since(began); took < time.Duration(i/2)*period*9/10 {
			t.Errorf("run %d started after %v", i, took)
		}
	}
	began = time.Now()
	first := h.take(create(t, b, workflow.NewRun{Workflow: "w", Group: "g"}).ID)
	second := h.take(create(t, b, workflow.NewRun{Workflow: "w", Group: "g"}).ID)
	if took := time.Since(began); took < period*9/10 {
		t.Errorf("two of a group started in %v", took)
	}
	h.append(first, completed)
	h.append(second, completed)
}

// A run pinned to a build without workers does not block other runs.
func TestBuilds(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, open func() ended) {
		b := open()
		old := create(t, b, workflow.NewRun{Workflow: "w", Build: "v1", Priority: 9})
		free := create(t, b, workflow.NewRun{Workflow: "w"})
		info := of("w")
		info.Build = "v2"
		h := attach(t, b, info)
		h.append(h.take(free.ID), completed)
		if run := get(t, b, free.ID); run.Build != "v2" {
			t.Errorf("it is pinned to %q", run.Build)
		}
		h.idle("nobody has v1")
		info.Accept = []string{"v1"}
		h = attach(t, b, info)
		h.append(h.take(old.ID), completed)
	})
}
