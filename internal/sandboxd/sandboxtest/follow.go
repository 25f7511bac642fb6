package sandboxtest

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/sandbox"
)

func (u *user) watchCommands(ref string) sandbox.CommandWatch {
	u.t.Helper()
	w, err := u.WatchCommands(u.ctx, ref)
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(func() { w.Close() })
	return w
}

// untilCommand reads changes until a command has exited, or has started if exited is
// false; with the id "" until Ready.
func (u *user) untilCommand(w sandbox.CommandWatch, id string, exited bool) sandbox.Command {
	u.t.Helper()
	for {
		c, err := w.Next()
		if err != nil {
			u.t.Fatalf("waiting for %q: %v", id, err)
		}
		switch {
		case c.Type == sandbox.Ready && id == "" && c.Command == nil:
			return sandbox.Command{}
		case c.Type == sandbox.Changed && c.Command.ID == id && (c.Command.Exit != nil) == exited:
			return *c.Command
		}
	}
}

func testFollow(t *testing.T, cfg Config) {
	t.Run("Commands", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		before := u.start(s.ID, "sleep", "1000")
		a, b := u.watchCommands(s.ID), u.watchCommands(s.ID)
		for _, w := range []sandbox.CommandWatch{a, b} {
			if c := u.untilCommand(w, before.ID, false); c.SandboxID != s.ID || len(c.Argv) != 2 {
				t.Errorf("it is %+v", c)
			}
			u.untilCommand(w, "", false)
		}
		next := u.start(s.ID, "sleep", "1000")
		for _, w := range []sandbox.CommandWatch{a, b} {
			u.untilCommand(w, next.ID, false)
		}
		for i, c := range []*sandbox.Command{next, before} {
			if err := u.Signal(u.ctx, s.ID, c.ID, 9); err != nil {
				t.Fatal(err)
			}
			for _, w := range []sandbox.CommandWatch{a, b} {
				if got := u.untilCommand(w, c.ID, true); got.Exit.Signal != 9 || got.SandboxID != s.ID {
					t.Errorf("%d: its exit is %+v", i, got.Exit)
				}
			}
		}
		// A later watch gets the existing commands, oldest first.
		late := u.watchCommands(s.ID)
		u.untilCommand(late, before.ID, true)
		u.untilCommand(late, next.ID, true)
		u.untilCommand(late, "", false)
		// Also for commands of Exec.
		out, err := u.Exec(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		ev, err := out.Next()
		if err != nil || ev.Command == nil {
			t.Fatalf("got %+v, %v", ev, err)
		}
		u.untilCommand(a, ev.Command.ID, true)
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Next(); err == nil {
			t.Error("a watch that was closed goes on")
		}
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := a.Next(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("with the sandbox it ends by %v", err)
			}
		}
	})
	t.Run("Stats", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{MemoryMB: 512, DiskMB: 100})
		u.start(s.ID, "sleep", "1000")
		w, err := u.WatchStats(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		var last sandbox.Stats
		for i := range 2 {
			st, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if st.MemoryLimit != 512<<20 || st.DiskLimit != 100<<20 || st.Commands != 1 {
				t.Fatalf("reading %d is %+v", i, st)
			}
			if st.Usage.WallTime < last.Usage.WallTime {
				t.Errorf("wall time went from %v to %v", last.Usage.WallTime, st.Usage.WallTime)
			}
			last = st
		}
		// A later watch gets a reading at once.
		again, err := u.WatchStats(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if st, err := again.Next(); err != nil || st.MemoryLimit != 512<<20 {
			t.Fatalf("got %+v, %v", st, err)
		}
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := w.Next(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("with the sandbox it ends by %v", err)
			}
		}
	})
	t.Run("Bounds", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		var all []io.Closer
		for i := range 64 {
			w, err := u.WatchCommands(u.ctx, s.ID)
			if err != nil {
				t.Fatal(fmt.Errorf("watch %d: %w", i, err))
			}
			defer w.Close()
			all = append(all, w)
		}
		_, err := u.WatchCommands(u.ctx, s.ID)
		checktest.Code(t, err, cay.QuotaExceeded)
		if err := all[7].Close(); err != nil {
			t.Fatal(err)
		}
		// Over HTTP, the daemon notices the close a moment later.
		deadline := time.Now().Add(time.Minute)
		for {
			w, err := u.WatchCommands(u.ctx, s.ID)
			if err == nil {
				w.Close()
				break
			}
			checktest.Code(t, err, cay.QuotaExceeded)
			if time.Now().After(deadline) {
				t.Fatal("there is no room after one has left")
			}
		}
		if _, err := u.Pause(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		_, err = u.WatchCommands(u.ctx, s.ID)
		checktest.Code(t, err, cay.Conflict)
		w, err := u.WatchStats(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := w.Next(); err != nil {
			t.Errorf("of one that is paused: %v", err)
		}
	})
}
