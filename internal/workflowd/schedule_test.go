package workflowd_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/sqlstore"
	"github.com/cayhq/cay/workflow"
)

// lateSchedules is a store that delays its first answer with the schedules of all
// projects: a schedule is put, if the engine allows it, after they were read.
type lateSchedules struct {
	workflowd.Store
	once sync.Once
	read chan struct{} // closed after the read
	put  chan struct{} // closed after the put
}

func (s *lateSchedules) Schedules(ctx context.Context, project string) ([]history.Schedule, error) {
	all, err := s.Store.Schedules(ctx, project)
	if project == "" {
		s.once.Do(func() {
			close(s.read)
			select {
			case <-s.put:
			case <-time.After(300 * time.Millisecond): // the put waits for this answer, as it should
			}
		})
	}
	return all, err
}

// A schedule that is put during the engine's first read of schedules starts runs.
func TestSchedule_PutWhileRead(t *testing.T) {
	real, err := sqlstore.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "workflows.db"), sqlstore.SQLiteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := &lateSchedules{Store: real, read: make(chan struct{}), put: make(chan struct{})}
	b := start(t, workflowd.Config{Store: store}).For("p")
	<-store.read
	if _, err := b.PutSchedule(t.Context(), workflow.Schedule{ID: "often", Workflow: "tick", Cron: "@every 1s"}); err != nil {
		t.Fatal(err)
	}
	close(store.put)
	late := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		page, err := b.ListRuns(t.Context(), workflow.Query{})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Items) > 0 {
			return
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatal("what is scheduled every second has not run")
		}
	}
}
