package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

func retryAfter(err error) time.Duration {
	var e *cay.Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

func names(page *sandbox.Page[sandbox.Sandbox]) []string {
	var n []string
	for _, s := range page.Items {
		n = append(n, s.Name)
	}
	return n
}

func testList(t *testing.T, cfg Config) {
	env := cfg.New(t)
	u := env.user(t, Default)
	for i := range 5 {
		u.create(sandbox.CreateParams{Name: fmt.Sprintf("box-%d", i), Tags: map[string]string{"n": fmt.Sprint(i), "all": "yes"}})
		if env.Clock != nil {
			env.Clock.Advance(time.Millisecond) // so that the newest is first
		}
	}
	u.create(sandbox.CreateParams{Name: "other"})
	if _, err := u.Stop(u.ctx, "box-1"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		p    sandbox.ListParams
		want []string
	}{
		{"All", sandbox.ListParams{}, []string{"other", "box-4", "box-3", "box-2", "box-1", "box-0"}},
		{"Prefix", sandbox.ListParams{NamePrefix: "box-"}, []string{"box-4", "box-3", "box-2", "box-1", "box-0"}},
		{"Status", sandbox.ListParams{Status: []sandbox.Status{sandbox.Stopped, sandbox.Failed}}, []string{"box-1"}},
		{"Tag", sandbox.ListParams{Tags: map[string]string{"n": "3"}}, []string{"box-3"}},
		{"Tags", sandbox.ListParams{Tags: map[string]string{"n": "3", "all": "yes"}}, []string{"box-3"}},
		{"TagsNone", sandbox.ListParams{Tags: map[string]string{"n": "3", "all": "no"}}, nil},
		{"Together", sandbox.ListParams{Tags: map[string]string{"all": "yes"}, NamePrefix: "box", Status: []sandbox.Status{sandbox.Running}},
			[]string{"box-4", "box-3", "box-2", "box-0"}},
		{"EveryProject", sandbox.ListParams{ProjectID: "*", Limit: 1}, []string{"other"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			page, err := u.List(u.ctx, c.p)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(names(page), c.want) {
				t.Fatalf("got %v, want %v", names(page), c.want)
			}
		})
	}
	t.Run("Pages", func(t *testing.T) {
		var all []string
		p := sandbox.ListParams{Limit: 2}
		for range 10 {
			page, err := u.List(u.ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, names(page)...)
			if page.Next == "" {
				break
			}
			// A sandbox created between two pages is not listed, and does not hide
			// another one.
			if p.Cursor == "" {
				u.create(sandbox.CreateParams{Name: "late"})
			}
			p.Cursor = page.Next
		}
		if want := []string{"other", "box-4", "box-3", "box-2", "box-1", "box-0"}; !slices.Equal(all, want) {
			t.Fatalf("got %v, want %v", all, want)
		}
	})
}

func testLifecycle(t *testing.T, cfg Config) {
	t.Run("Stop", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		u.sh(s.ID, "true")
		stopped, err := u.Stop(u.ctx, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, stopped, sandbox.Stopped, sandbox.ReasonRequested)
		if stopped.StoppedAt == nil || stopped.ExpiresAt != nil {
			t.Errorf("stopped %v, expires %v", stopped.StoppedAt, stopped.ExpiresAt)
		}
		again, err := u.Stop(u.ctx, s.ID)
		if err != nil || !again.StoppedAt.Equal(*stopped.StoppedAt) {
			t.Fatalf("stopping twice: %v, %v", again, err)
		}
		if final := u.get(s.ID); final.Usage != stopped.Usage {
			t.Errorf("final usage changed from %+v to %+v", stopped.Usage, final.Usage)
		}
		ctx := u.ctx
		for name, f := range map[string]func() error{
			"Extend":        func() error { _, err := u.Extend(ctx, s.ID, seconds(1)); return err },
			"Pause":         func() error { _, err := u.Pause(ctx, s.ID); return err },
			"Resume":        func() error { _, err := u.Resume(ctx, s.ID, sandbox.ResumeParams{}); return err },
			"Stats":         func() error { _, err := u.Stats(ctx, s.ID); return err },
			"WatchStats":    func() error { _, err := u.WatchStats(ctx, s.ID); return err },
			"WatchCommands": func() error { _, err := u.WatchCommands(ctx, s.ID); return err },
			"Start":         func() error { _, err := u.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}}); return err },
			"Exec":          func() error { _, err := u.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}}); return err },
			"Signal":        func() error { return u.Signal(ctx, s.ID, "cmd_00000000000000000000", 9) },
			"Stat":          func() error { _, err := u.Stat(ctx, s.ID, "/", false); return err },
			"ReadFile":      func() error { _, _, err := u.ReadFile(ctx, s.ID, "/x", sandbox.ReadParams{}); return err },
		} {
			t.Run(name, func(t *testing.T) { checktest.Code(t, f(), cay.Stopped) })
		}
	})
	t.Run("Delete", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		if err := u.Delete(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		_, err := u.Get(u.ctx, s.ID)
		checktest.Code(t, err, cay.NotFound)
		_, err = u.Get(u.ctx, s.Name)
		checktest.Code(t, err, cay.NotFound)
		checktest.Code(t, u.Delete(u.ctx, s.ID), cay.NotFound)
		_, err = u.Stat(u.ctx, s.ID, "/", false)
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("Update", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Tags: map[string]string{"a": "1"}})
		idle := minutes(2)
		got, err := u.Update(u.ctx, s.ID, sandbox.UpdateParams{
			Tags: map[string]string{"b": "2"}, Network: &sandbox.Network{Mode: sandbox.DenyAll}, IdleTimeout: &idle,
		})
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got.Tags, map[string]string{"b": "2"}) || got.Network.Mode != sandbox.DenyAll || got.IdleTimeout != idle {
			t.Fatalf("got %+v", got)
		}
		// Nil leaves a field unchanged, empty clears it.
		if got, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{}); err != nil || len(got.Tags) != 1 || got.IdleTimeout != idle {
			t.Fatalf("got %+v, %v", got, err)
		}
		if got, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Tags: map[string]string{}}); err != nil || len(got.Tags) != 0 {
			t.Fatalf("got %+v, %v", got, err)
		}
		_, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Network: &sandbox.Network{Mode: "x"}})
		checktest.Code(t, err, cay.Invalid)
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if got, err = u.Update(u.ctx, s.ID, sandbox.UpdateParams{Tags: map[string]string{"c": "3"}}); err != nil || got.Tags["c"] != "3" {
			t.Fatalf("tags of a stopped sandbox: %+v, %v", got, err)
		}
		next := sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.AllowAll}, IdleTimeout: new(minutes(3)), Persistent: new(true)}
		if got, err = u.Update(u.ctx, s.ID, next); err != nil || got.Network.Mode != sandbox.AllowAll || got.IdleTimeout != minutes(3) || !got.Persistent {
			t.Fatalf("the next session of a stopped sandbox: %+v, %v", got, err)
		}
		wantStatus(t, got, sandbox.Stopped, sandbox.ReasonRequested)
		if got, err = u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); err != nil || got.Network.Mode != sandbox.AllowAll {
			t.Fatalf("its next session: %+v, %v", got, err)
		}
	})
	t.Run("PauseResume", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.NoPause {
			t.Skip("this service cannot pause")
		}
		s := u.create(sandbox.CreateParams{})
		running, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}) // the sandbox runs: Resume does nothing
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, running, sandbox.Running, "")
		paused, err := u.Pause(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, paused, sandbox.Paused, "")
		_, err = u.Pause(u.ctx, s.ID)
		checktest.Code(t, err, cay.Conflict)
		_, err = u.Exec(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
		checktest.Code(t, err, cay.Conflict)
		if _, err := u.Stats(u.ctx, s.ID); err != nil {
			t.Fatalf("stats of a paused sandbox: %v", err)
		}
		if s, err = u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s, sandbox.Running, "")
		u.sh(s.ID, "true")
		if _, err := u.Pause(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		if s, err = u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, s, sandbox.Stopped, sandbox.ReasonRequested)
	})
	t.Run("Stats", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{MemoryMB: 512, DiskMB: 100})
		cmd := u.start(s.ID, "sleep", "1000")
		st, err := u.Stats(u.ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if st.MemoryLimit != 512<<20 || st.DiskLimit != 100<<20 || st.Commands != 1 {
			t.Fatalf("got %+v", st)
		}
		if err := u.Signal(u.ctx, s.ID, cmd.ID, 9); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("StopEndsCalls", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		cmd := u.start(s.ID, "sleep", "1000")
		waited := make(chan error, 1)
		go func() {
			_, err := u.Wait(u.ctx, s.ID, cmd.ID)
			waited <- err
		}()
		out, err := u.Output(u.ctx, s.ID, cmd.ID, sandbox.OutputParams{Follow: true})
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		w, err := u.Watch(u.ctx, s.ID, ".", sandbox.WatchParams{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		if _, err := u.Stop(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		checktest.Code(t, <-waited, cay.Stopped)
		_, _, err = readAll(out)
		checktest.Code(t, err, cay.Stopped)
		if _, err := w.Next(); err != io.EOF {
			t.Fatalf("a watch ended with %v, want EOF", err)
		}
	})
}

func testTime(t *testing.T, cfg Config) {
	t.Run("Timeout", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Timeout: seconds(1)})
		u.start(s.ID, "sleep", "1000")
		end := u.ending(s.ID)
		u.env.pass(time.Second)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonTimeout)
		_, err := u.Stat(u.ctx, s.ID, "/", false)
		checktest.Code(t, err, cay.Stopped)
	})
	t.Run("Extend", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{Timeout: minutes(5)})
		_, err := u.Extend(u.ctx, s.ID, 0)
		checktest.Code(t, err, cay.Invalid)
		_, err = u.Extend(u.ctx, s.ID, seconds(-1))
		checktest.Code(t, err, cay.Invalid)
		_, err = u.Extend(u.ctx, s.ID, sandbox.Duration(u.env.MaxTimeout))
		checktest.Code(t, err, cay.Invalid)
		got, err := u.Extend(u.ctx, s.ID, minutes(1))
		if err != nil {
			t.Fatal(err)
		}
		if got.Timeout != minutes(6) {
			t.Errorf("timeout is %v, want 6m", got.Timeout)
		}
		if d := got.ExpiresAt.Sub(*got.StartedAt); d < 6*time.Minute-time.Second || d > 6*time.Minute+time.Second {
			t.Errorf("it expires %v after its start, want 6m", d)
		}
		if u.env.Clock != nil {
			u.env.Clock.Advance(6*time.Minute - time.Millisecond)
			u.sh(s.ID, "true")
			end := u.ending(s.ID)
			u.env.Clock.Advance(time.Millisecond)
			wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonTimeout)
		}
	})
	t.Run("WallClockJumps", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil {
			t.Skip("the host's clock is left alone")
		}
		s := u.create(sandbox.CreateParams{Timeout: minutes(5), IdleTimeout: minutes(2)})
		for _, jump := range []time.Duration{time.Hour, -2 * time.Hour} {
			u.env.Clock.Jump(jump)
			u.env.Clock.Advance(time.Minute)
			got := u.get(s.ID)
			wantStatus(t, got, sandbox.Running, "")
			if left := got.ExpiresAt.Sub(u.env.Clock.Now()); left > 4*time.Minute || left < 2*time.Minute {
				t.Errorf("%v are left after a jump of %v", left, jump)
			}
			u.sh(s.ID, "true")
		}
		end := u.ending(s.ID)
		u.env.Clock.Advance(2 * time.Minute)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
	})
	t.Run("Idle", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{IdleTimeout: seconds(1)})
		end := u.ending(s.ID) // an open watch is not activity
		u.env.pass(time.Second)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
	})
	t.Run("IdleAfterCommand", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil {
			t.Skip("time is real")
		}
		s := u.create(sandbox.CreateParams{Timeout: minutes(60), IdleTimeout: minutes(1)})
		cmd := u.start(s.ID, "sleep", "1000")
		end := u.ending(s.ID)
		for range 5 {
			u.env.Clock.Advance(time.Minute)
			wantStatus(t, u.get(s.ID), sandbox.Running, "") // the command runs
		}
		u.env.Clock.Advance(59 * time.Second)
		if err := u.Signal(u.ctx, s.ID, cmd.ID, 9); err != nil {
			t.Fatal(err)
		}
		if _, err := u.Wait(u.ctx, s.ID, cmd.ID); err != nil {
			t.Fatal(err)
		}
		u.env.Clock.AwaitTimer(t, time.Minute) // the service notices the exit without a call
		u.env.Clock.Advance(59 * time.Second)
		wantStatus(t, u.get(s.ID), sandbox.Running, "") // the exit was activity
		u.env.Clock.Advance(time.Second)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
	})
	t.Run("IdleAfterUpload", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil {
			t.Skip("time is real")
		}
		s := u.create(sandbox.CreateParams{Timeout: minutes(60), IdleTimeout: minutes(1)})
		end := u.ending(s.ID)
		content, feed := io.Pipe()
		wrote := make(chan error, 1)
		go func() {
			_, err := u.WriteFile(u.ctx, s.ID, "slow", content, sandbox.WriteParams{})
			wrote <- err
		}()
		// More data than the buffers on the way hold: once it is written, the upload has
		// begun.
		if _, err := feed.Write(make([]byte, 32<<20)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			u.env.Clock.Advance(time.Minute)
			u.env.Clock.AwaitTimer(t, time.Minute) // found active, and checked again
		}
		u.env.Clock.Advance(20 * time.Second)
		feed.Close()
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		u.env.Clock.Advance(40 * time.Second)
		u.env.Clock.AwaitTimer(t, 20*time.Second) // counted from the end of the upload
		wantStatus(t, u.get(s.ID), sandbox.Running, "")
		u.env.Clock.Advance(20 * time.Second)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
	})
	t.Run("IdlePaused", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil || u.env.NoPause {
			t.Skip("time is real, or this service cannot pause")
		}
		s := u.create(sandbox.CreateParams{Timeout: minutes(60), IdleTimeout: minutes(1)})
		if _, err := u.Pause(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		u.env.Clock.Advance(10 * time.Minute)
		if _, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{}); err != nil {
			t.Fatal(err)
		}
		end := u.ending(s.ID)
		u.env.Clock.Advance(time.Minute)
		wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
	})
	t.Run("WallTime", func(t *testing.T) {
		u := setup(t, cfg)
		if u.env.Clock == nil {
			t.Skip("time is real")
		}
		s := u.create(sandbox.CreateParams{})
		u.env.Clock.Advance(90 * time.Second)
		if got := u.get(s.ID).Usage.WallTime; got != seconds(90) {
			t.Errorf("wall time is %v, want 90s", got)
		}
		stopped, err := u.Stop(u.ctx, s.ID)
		if err != nil || stopped.Usage.WallTime != seconds(90) {
			t.Errorf("final wall time is %v, %v; want 90s", stopped.Usage.WallTime, err)
		}
	})
}

// pass lets time pass, if the service's clock is not real.
func (e *Env) pass(d time.Duration) {
	if e.Clock != nil {
		e.Clock.Advance(d)
	}
}

func testFailure(t *testing.T, cfg Config) {
	for _, reason := range []sandbox.Reason{sandbox.ReasonOOM, sandbox.ReasonCrashed, sandbox.ReasonExited} {
		t.Run(string(reason), func(t *testing.T) {
			u := setup(t, cfg)
			if u.env.Kill == nil {
				t.Skip("machines of this service cannot be killed")
			}
			s := u.create(sandbox.CreateParams{Name: "one"})
			cmd := u.start(s.ID, "sleep", "1000")
			end := u.ending(s.ID)
			u.env.Kill(t, s.SessionID, machine.Exit{Reason: reason, Message: "so it goes"})
			got := end()
			wantStatus(t, got, sandbox.Failed, reason)
			if got.StoppedAt == nil || got.ExpiresAt != nil || got.Message == "" {
				t.Errorf("got %+v", got)
			}
			_, err := u.Wait(u.ctx, s.ID, cmd.ID)
			checktest.Code(t, err, cay.Stopped)
			if err := u.Delete(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			u.create(sandbox.CreateParams{Name: "one"})
		})
	}
}

func testConcurrency(t *testing.T, cfg Config) {
	t.Run("Sandboxes", func(t *testing.T) {
		u := setup(t, cfg)
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				s, err := u.Create(u.ctx, sandbox.CreateParams{Env: map[string]string{"I": fmt.Sprint(i)}})
				if err != nil {
					t.Errorf("create: %v", err)
					return
				}
				out, err := u.Exec(u.ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $I"}})
				if err != nil {
					t.Errorf("exec: %v", err)
					return
				}
				defer out.Close()
				if text, _, err := readAll(out); text != fmt.Sprintln(i) || err != nil {
					t.Errorf("got %q, %v; want %d", text, err, i)
				}
				if err := u.Delete(u.ctx, s.ID); err != nil {
					t.Errorf("delete: %v", err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("OneSandbox", func(t *testing.T) {
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				path := fmt.Sprintf("f%d", i)
				if _, err := u.WriteFile(u.ctx, s.ID, path, &repeat{n: 1000}, sandbox.WriteParams{}); err != nil {
					t.Errorf("write: %v", err)
				}
				if info, err := u.Stat(u.ctx, s.ID, path, false); err != nil || info.Size != 1000 {
					t.Errorf("stat: %+v, %v", info, err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("StopDelete", func(t *testing.T) {
		// Whichever call wins, all return, and the sandbox is gone.
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = u.Stop(u.ctx, s.ID)
				} else {
					err = u.Delete(u.ctx, s.ID)
				}
				if err != nil && cay.CodeOf(err) != cay.NotFound {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		_, err := u.Get(u.ctx, s.ID)
		checktest.Code(t, err, cay.NotFound)
	})
	t.Run("Disconnect", func(t *testing.T) {
		// A command goes on when its caller leaves, and can be found again.
		u := setup(t, cfg)
		s := u.create(sandbox.CreateParams{})
		ctx, cancel := context.WithCancel(u.ctx)
		out, err := u.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo one; sleep 1000"}})
		if err != nil {
			t.Fatal(err)
		}
		ev, err := out.Next()
		if err != nil || ev.Command == nil {
			t.Fatalf("first event is %+v, %v; want the command", ev, err)
		}
		cancel()
		if _, _, err := readAll(out); cay.CodeOf(err) != cay.Canceled {
			t.Fatalf("the stream of a caller who left ended with %v", err)
		}
		out.Close()
		cmd, err := u.GetCommand(u.ctx, s.ID, ev.Command.ID)
		if err != nil || cmd.Exit != nil {
			t.Fatalf("got %+v, %v; want a command that runs", cmd, err)
		}
		if err := u.Signal(u.ctx, s.ID, cmd.ID, 15); err != nil {
			t.Fatal(err)
		}
		if cmd, err = u.Wait(u.ctx, s.ID, cmd.ID); err != nil || cmd.Exit == nil || cmd.Exit.Code != 128+15 {
			t.Fatalf("got %+v, %v; want exit code 143", cmd, err)
		}
	})
}

// repeat is a reader of n bytes.
type repeat struct{ n int }

func (r *repeat) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, io.EOF
	}
	n := min(r.n, len(p))
	for i := range p[:n] {
		p[i] = 'x'
	}
	r.n -= n
	return n, nil
}
