package sandboxtest

import (
	"context"
	"io"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

// follower reads the changes of the sandboxes that a user reaches.
type follower struct {
	t *testing.T
	sandbox.Changes
}

func (u *user) changes(p sandbox.ChangeParams) follower {
	u.t.Helper()
	w, err := u.WatchSandboxes(u.ctx, p)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { w.Close() })
	f := follower{u.t, w}
	if c := f.next(); c.Type != sandbox.Ready {
		u.t.Fatalf("the first is %+v", c)
	}
	return f
}

func (f follower) next() sandbox.Change {
	f.t.Helper()
	c, err := f.Next()
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// until reads changes of one sandbox until it has a status, "" for its end. Changes of
// another sandbox are an error.
func (f follower) until(id string, status sandbox.Status) *sandbox.Sandbox {
	f.t.Helper()
	for {
		c := f.next()
		switch {
		case c.ID != id:
			f.t.Fatalf("a change of %s, want %s", c.ID, id)
		case c.Type == sandbox.Deleted && status == "" && c.Sandbox == nil:
			return nil
		case c.Type != sandbox.Changed || c.Sandbox.ID != id:
			f.t.Fatalf("%s of %+v", c.Type, c.Sandbox)
		case c.Sandbox.Status == status:
			return c.Sandbox
		}
	}
}

func testChanges(t *testing.T, cfg Config) {
	t.Run("Lifecycle", func(t *testing.T) {
		t.Parallel()
		u := cfg.New(t).user(t, Default)
		f := u.changes(sandbox.ChangeParams{})
		s := u.create(sandbox.CreateParams{Name: "seen"})
		if got := f.until(s.ID, sandbox.Running); got.Name != "seen" || got.ExpiresAt == nil {
			t.Errorf("it is %+v", got)
		}
		if _, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{Tags: map[string]string{"a": "b"}}); err != nil {
			t.Fatal(err)
		}
		// An earlier change may be reported again.
		for f.until(s.ID, sandbox.Running).Tags["a"] != "b" {
		}
		for _, step := range []struct {
			do   func(context.Context, string) (*sandbox.Sandbox, error)
			want sandbox.Status
		}{
			{u.Pause, sandbox.Paused},
			{func(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
				return u.Resume(ctx, ref, sandbox.ResumeParams{})
			}, sandbox.Running},
			{u.Stop, sandbox.Stopped},
			{func(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
				return u.Resume(ctx, ref, sandbox.ResumeParams{})
			}, sandbox.Running},
		} {
			if _, err := step.do(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			f.until(s.ID, step.want)
		}
		if err := u.Delete(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		f.until(s.ID, "")
	})
	t.Run("Fork", func(t *testing.T) {
		t.Parallel()
		u := cfg.New(t).user(t, Default)
		s := u.create(sandbox.CreateParams{})
		f := u.changes(sandbox.ChangeParams{})
		fork, err := u.Fork(u.ctx, s.ID, sandbox.ForkParams{})
		if err != nil {
			t.Fatal(err)
		}
		for c := f.next(); ; c = f.next() {
			if c.Type == sandbox.Changed && c.ID == fork.Sandboxes[0].ID && c.Sandbox.Status == sandbox.Running {
				return
			}
		}
	})
	// Changes of other teams' sandboxes, including deletions, are not reported.
	t.Run("Tenancy", func(t *testing.T) {
		t.Parallel()
		env := cfg.New(t)
		a, a2, b, team := env.user(t, ProjectA), env.user(t, ProjectA2), env.user(t, ProjectB), env.user(t, TeamA)
		own, other, all := a.changes(sandbox.ChangeParams{}), b.changes(sandbox.ChangeParams{}), team.changes(sandbox.ChangeParams{ProjectID: "*"})
		for _, u := range []*user{a2, a, b} {
			s := u.create(sandbox.CreateParams{})
			if err := u.Delete(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			switch u {
			case a:
				own.until(s.ID, "")
				all.until(s.ID, "")
			case a2:
				all.until(s.ID, "")
			case b:
				other.until(s.ID, "")
			}
		}
		_, err := env.user(t, Nobody).WatchSandboxes(t.Context(), sandbox.ChangeParams{})
		checktest.Code(t, err, cay.Unauthenticated)
		_, err = b.WatchSandboxes(b.ctx, sandbox.ChangeParams{ProjectID: "prj_nowhere"})
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("Closes", func(t *testing.T) {
		t.Parallel()
		u := cfg.New(t).user(t, Default)
		f := u.changes(sandbox.ChangeParams{})
		done := make(chan error, 1)
		go func() {
			_, err := f.Next()
			done <- err
		}()
		f.Close()
		if err := <-done; err == nil || err == io.EOF {
			t.Errorf("a watch that was closed returned %v", err)
		}
	})
}
