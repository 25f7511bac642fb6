package admission

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// shelf is a store with limits and one pending run, which has a message. Another process
// shares it.
type shelf struct {
	mu       sync.Mutex // guards the fields below
	limits   map[string]history.Limit
	priority int // of the message
}

func (s *shelf) Run(_ context.Context, id string) (*history.Run, error) {
	return &history.Run{ID: id, Project: "p", Workflow: "w", Kind: history.JavaScript, Status: history.Pending}, nil
}

func (s *shelf) Runs(ctx context.Context, _ history.Query) (*history.Page[history.Run], error) {
	r, err := s.Run(ctx, "wrun_1")
	return &history.Page[history.Run]{Items: []history.Run{*r}}, err
}

func (s *shelf) Limits(context.Context, string) (all []history.Limit, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.limits {
		all = append(all, l)
	}
	return all, nil
}

func (s *shelf) PutLimit(_ context.Context, l history.Limit) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits[l.Workflow] = l
	return nil
}

func (s *shelf) DeleteLimit(_ context.Context, _, workflow string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.limits, workflow)
	return nil
}

func (s *shelf) Hasten(_ context.Context, _, _ string, priority int) (due, leased int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.priority = priority
	return 1, 0, nil
}

func (s *shelf) Messages(_ context.Context, _, run string, _ int) ([]queue.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []queue.Message{{Project: "p", Run: run, Priority: s.priority}}, nil
}

func (s *shelf) LetIn(context.Context, history.Limit, string) (LetIn, error) {
	return LetIn{OK: true}, nil
}

// A limit that is deleted and soon set again has the priority that was set last, and
// nothing is left of limits that stay deleted.
func TestDoor_SetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{limits: make(map[string]history.Limit)}
		var work sync.WaitGroup
		d := checktest.Must(Open(t.Context(), Config{
			Store: s, Messages: s, Shared: s, Spawn: work.Go, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		}))(t)
		expect := func(priority, gates int) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			d.mu.Lock()
			defer d.mu.Unlock()
			if s.priority != priority || len(d.gates) != gates {
				t.Errorf("the priority is %d, want %d; %d gates, want %d", s.priority, priority, len(d.gates), gates)
			}
		}
		limit := history.Limit{Project: "p", Workflow: "w", Priority: 5}
		remove := map[string]func() error{
			"by this process": func() error { return d.Delete(t.Context(), "p", "w") },
			"by another one": func() error {
				time.Sleep(2 * staleLimits)
				checktest.OK(t, s.DeleteLimit(t.Context(), "p", "w"))
				return d.refresh(t.Context())
			},
		}
		for _, by := range []string{"by this process", "by another one"} {
			t.Log(by)
			checktest.OK(t, d.Put(t.Context(), limit))
			expect(5, 1)
			checktest.OK(t, remove[by]())
			expect(0, 1)
			checktest.OK(t, d.Put(t.Context(), limit))
			expect(5, 1)
			time.Sleep(2 * knownAfter)
			expect(5, 1)
			checktest.OK(t, remove[by]())
			time.Sleep(2 * knownAfter)
			expect(0, 0)
		}
		checktest.OK(t, d.Put(t.Context(), limit))
		checktest.OK(t, d.Delete(t.Context(), "p", "w"))
		checktest.Code(t, d.Delete(t.Context(), "p", "w"), cay.NotFound)
		synctest.Wait()
		d.Close()
		s.priority = 7
		time.Sleep(2 * knownAfter)
		expect(7, 1) // the timer is stopped
		work.Wait()
	})
}
