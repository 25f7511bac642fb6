package sandboxd_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// slow is a Runtime whose saves take until their context ends.
type slow struct {
	machine.Runtime
	on    atomic.Bool
	begun chan struct{}
}

type slowInstance struct {
	machine.Instance
	rt *slow
}

func (s *slow) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	i, err := s.Runtime.Start(ctx, spec)
	return slowInstance{i, s}, err
}

func (s *slow) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	i, err := s.Runtime.Adopt(ctx, id)
	return slowInstance{i, s}, err
}

func (i slowInstance) SaveDisk(ctx context.Context, p machine.SaveParams) (*machine.State, error) {
	if i.rt.on.Load() {
		i.rt.begun <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return i.Instance.SaveDisk(ctx, p)
}

func startSlow(t *testing.T) (*sandboxtest.Harness, *slow, context.Context) {
	t.Helper()
	var rt *slow
	h, _ := startFake(t, func(c *sandboxd.Config) {
		rt = &slow{Runtime: c.Runtime, begun: make(chan struct{})}
		c.Runtime = rt
	})
	ctx := defaultCaller(t)
	checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "box"}))(t)
	if _, err := h.WriteFile(ctx, "box", "file", strings.NewReader("kept"), sandbox.WriteParams{}); err != nil {
		t.Fatal(err)
	}
	rt.on.Store(true)
	return h, rt, ctx
}

// A closing engine leaves a slow save to the next engine.
func TestSave_EndsWithTheEngine(t *testing.T) {
	t.Parallel()
	h, rt, ctx := startSlow(t)
	var wg sync.WaitGroup
	first := h.Engine
	wg.Go(func() {
		_, err := first.Stop(ctx, "box")
		if cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("stop: %v", err)
		}
	})
	<-rt.begun
	wg.Go(func() { // a caller that needs the sandbox does not wait for the save
		if _, err := first.Stat(ctx, "box", "file", false); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("stat: %v", err)
		}
	})
	first.Close()
	wg.Wait()
	rt.on.Store(false)
	h.Restart(t) // does not wait for the save
	s := checktest.Must(h.Engine.Stop(ctx, "box"))(t)
	wantStatus(t, s, sandbox.Stopped, sandbox.ReasonRequested)
	if s.SnapshotID == "" {
		t.Error("it was not saved")
	}
	checktest.Must(h.Stat(ctx, "box", "file", false))(t)
}

// A stop does not wait for a slow snapshot.
func TestSave_EndsWithTheSandbox(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*sandboxtest.Harness, context.Context) error{
		"Delete": func(h *sandboxtest.Harness, ctx context.Context) error { return h.Delete(ctx, "box") },
		"Stop": func(h *sandboxtest.Harness, ctx context.Context) error {
			_, err := h.Engine.Stop(ctx, "box")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, rt, ctx := startSlow(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				_, err := h.CreateSnapshot(ctx, "box", sandbox.SnapshotParams{})
				if cay.CodeOf(err) != cay.Stopped {
					t.Errorf("snapshot: %v", err)
				}
			})
			<-rt.begun
			rt.on.Store(false)
			if err := end(h, ctx); err != nil {
				t.Error(err)
			}
			wg.Wait()
		})
	}
}
