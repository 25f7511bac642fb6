package sandboxtest

import (
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// testKept checks that commands and their output can be read after the end of their
// session.
func testKept(t *testing.T, cfg Config) {
	for name, f := range map[string]func(*testing.T, Config){
		"Stopped":    testKeptStopped,
		"Sessions":   testKeptSessions,
		"Ends":       testKeptEnds,
		"Output":     testKeptOutput,
		"Times":      testKeptTimes,
		"Paused":     testKeptPaused,
		"Failed":     testKeptFailed,
		"Deleted":    testKeptDeleted,
		"Tenancy":    testKeptTenancy,
		"Hibernated": testKeptHibernated,
	} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// command is a GetCommand that must succeed.
func (u *user) command(ref, id string) *sandbox.Command {
	u.t.Helper()
	c, err := u.GetCommand(u.ctx, ref, id)
	if err != nil {
		u.t.Fatalf("command %s of %s: %v", id, ref, err)
	}
	return c
}

// output reads the output of a command from a cursor on.
func (u *user) output(ref, id string, p sandbox.OutputParams) (string, *sandbox.Exit) {
	u.t.Helper()
	out, err := u.Output(u.ctx, ref, id, p)
	if err != nil {
		u.t.Fatalf("output of %s of %s: %v", id, ref, err)
	}
	defer out.Close()
	text, exit, err := readAll(out)
	if err != nil {
		u.t.Fatalf("output of %s of %s: %v", id, ref, err)
	}
	return text, exit
}

// done starts a shell script and waits for its end.
func (u *user) done(ref, script string) *sandbox.Command {
	u.t.Helper()
	c, err := u.Wait(u.ctx, ref, u.start(ref, "sh", "-c", script).ID)
	if err != nil {
		u.t.Fatal(err)
	}
	return c
}

// listed returns the ids of commands, sorted.
func (u *user) listed(ref string) []string {
	u.t.Helper()
	all, err := u.ListCommands(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("commands of %s: %v", ref, err)
	}
	var ids []string
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	slices.Sort(ids)
	return ids
}

func testKeptStopped(t *testing.T, cfg Config) {
	for name, p := range map[string]sandbox.CreateParams{"Persistent": {Name: "kept"}, "NotPersistent": {}} {
		t.Run(name, func(t *testing.T) {
			u := setupSaver(t, cfg)
			s := u.create(p)
			was := u.done(s.ID, "echo out; echo err >&2; exit 3")
			running := u.start(s.ID, "sh", "-c", "trap '' TERM; echo begun; while :; do sleep 1; done")
			for ev := range u.follow(s.ID, running.ID) { // the command ignores SIGTERM from now on
				if len(ev.Data) > 0 {
					break
				}
			}
			u.stop(s.ID)
			for _, ref := range []string{s.ID, s.Name, s.SessionID} {
				got := u.command(ref, was.ID)
				if got.Exit == nil || *got.Exit != *was.Exit || got.SandboxID != s.ID || got.PID != was.PID || !slices.Equal(got.Argv, was.Argv) ||
					got.OutputEnd != was.OutputEnd || !got.StartedAt.Equal(was.StartedAt) || got.WorkDir != was.WorkDir || got.User != was.User {
					t.Errorf("of %s: %+v, want %+v", ref, got, was)
				}
				text, exit := u.output(ref, was.ID, sandbox.OutputParams{Follow: true})
				if len(text) != len("out\nerr\n") || exit == nil || exit.Code != 3 {
					t.Errorf("of %s: %q, %+v", ref, text, exit)
				}
				if waited, err := u.Wait(u.ctx, ref, running.ID); err != nil || waited.Exit == nil || waited.Exit.Code != 137 || waited.Exit.Signal != 9 {
					t.Errorf("one that ran: %+v, %v", waited, err)
				}
				if text, exit := u.output(ref, running.ID, sandbox.OutputParams{}); text != "begun\n" || exit == nil || exit.Code != 137 {
					t.Errorf("output of one that ran: %q, %+v", text, exit)
				}
				want := []string{was.ID, running.ID}
				slices.Sort(want)
				if ids := u.listed(ref); !slices.Equal(ids, want) {
					t.Errorf("commands of %s are %v, want %v", ref, ids, want)
				}
				_, err := u.GetCommand(u.ctx, ref, "cmd_00000000000000000000")
				checktest.Code(t, err, cay.NotFound)
				_, err = u.Wait(u.ctx, ref, "cmd_00000000000000000000")
				checktest.Code(t, err, cay.NotFound)
				_, err = u.Output(u.ctx, ref, "nonsense", sandbox.OutputParams{})
				checktest.Code(t, err, cay.NotFound)
			}
			wantStatus(t, u.get(s.ID), sandbox.Stopped, sandbox.ReasonRequested)
		})
	}
}

// follow returns the events of a command as they come.
func (u *user) follow(ref, id string) func(func(sandbox.Event) bool) {
	return func(yield func(sandbox.Event) bool) {
		out, err := u.Output(u.ctx, ref, id, sandbox.OutputParams{Follow: true})
		if err != nil {
			u.t.Fatal(err)
		}
		defer out.Close()
		for {
			ev, err := out.Next()
			if err == io.EOF {
				return
			}
			if err != nil {
				u.t.Fatal(err)
			}
			if !yield(ev) {
				return
			}
		}
	}
}

// A ref to a sandbox finds the commands of all its sessions, a ref to a session only its
// own.
func testKeptSessions(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	one := u.done(s.ID, "echo one")
	first := u.stop(s.ID).SessionID
	second := u.resume(s.ID).SessionID
	u.stop(s.ID) // a session without commands
	two := u.done(s.ID, "echo two")
	third := u.get(s.ID).SessionID
	for _, stop := range []bool{false, true} {
		if stop {
			u.stop(s.ID)
		}
		for _, tt := range []struct {
			ref, id, want string
		}{
			{s.ID, one.ID, "one\n"}, {s.ID, two.ID, "two\n"}, {first, one.ID, "one\n"}, {third, two.ID, "two\n"},
		} {
			if text, exit := u.output(tt.ref, tt.id, sandbox.OutputParams{}); text != tt.want || exit == nil {
				t.Errorf("%s of %s wrote %q", tt.id, tt.ref, text)
			}
		}
		for ref, id := range map[string]string{first: two.ID, second: one.ID, third: one.ID} {
			_, err := u.GetCommand(u.ctx, ref, id)
			checktest.Code(t, err, cay.NotFound)
		}
		for ref, want := range map[string][]string{s.ID: {two.ID}, first: {one.ID}, second: nil, third: {two.ID}} {
			if got := u.listed(ref); !slices.Equal(got, want) {
				t.Errorf("commands of %s are %v, want %v", ref, got, want)
			}
		}
		if got := u.get(s.ID); got.SessionID != third {
			t.Fatalf("reading has started session %s", got.SessionID)
		}
	}
}

// Commands are kept however a session ends, as long as its guest answers.
func testKeptEnds(t *testing.T, cfg Config) {
	ends := map[string]func(t *testing.T, u saver, s *sandbox.Sandbox){
		"Snapshot": func(_ *testing.T, u saver, s *sandbox.Sandbox) {
			u.snapshot(s.ID, sandbox.SnapshotParams{Stop: true})
		},
		"MemorySnapshot": func(t *testing.T, u saver, s *sandbox.Sandbox) {
			if !u.env.SavesMemory {
				t.Skip("this service saves no memory")
			}
			u.snapshot(s.ID, sandbox.SnapshotParams{Kind: sandbox.MemorySnapshot, Stop: true})
		},
		"Timeout": func(t *testing.T, u saver, s *sandbox.Sandbox) {
			if u.env.Clock == nil {
				t.Skip("the time of this service is real")
			}
			end := u.ending(s.ID)
			u.env.Clock.Advance(10 * time.Minute)
			wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonTimeout)
		},
		"Idle": func(t *testing.T, u saver, s *sandbox.Sandbox) {
			if u.env.Clock == nil {
				t.Skip("the time of this service is real")
			}
			end := u.ending(s.ID)
			u.env.Clock.Advance(2 * time.Minute)
			wantStatus(t, end(), sandbox.Stopped, sandbox.ReasonIdle)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			u := setupSaver(t, cfg)
			params := sandbox.CreateParams{Timeout: minutes(5)}
			if name == "Idle" {
				params.IdleTimeout = minutes(1) // only this timeout, as the clock would otherwise pass two ends at once
			}
			s := u.create(params)
			c := u.done(s.ID, "echo said")
			end(t, u, s)
			if text, exit := u.output(s.ID, c.ID, sandbox.OutputParams{}); text != "said\n" || exit == nil || exit.Code != 0 {
				t.Errorf("it wrote %q, %+v", text, exit)
			}
		})
	}
}

// The newest part of a long output is kept, with the same cursors.
func testKeptOutput(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{})
	const size = 3 << 20
	c := u.done(s.ID, "head -c 3145728 /dev/zero | tr '\\0' x; printf end")
	many := u.done(s.ID, "i=0; while [ $i -lt 300 ]; do echo $i; echo $i >&2; i=$((i+1)); done")
	all, _ := u.output(s.ID, many.ID, sandbox.OutputParams{})
	u.stop(s.ID)
	got := u.command(s.ID, c.ID)
	if got.OutputEnd != size+3 || got.OutputStart < size-2<<20 || got.OutputStart > size {
		t.Errorf("kept are %d to %d", got.OutputStart, got.OutputEnd)
	}
	out, err := u.Output(u.ctx, s.ID, c.ID, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if ev, err := out.Next(); err != nil || !ev.Truncated || ev.Cursor != got.OutputStart {
		t.Errorf("first is %+v, %v", ev, err)
	}
	text, exit, err := readAll(out)
	if err != nil || exit == nil || int64(len(text)) != got.OutputEnd-got.OutputStart || !strings.HasSuffix(text, "xend") {
		t.Errorf("read %d bytes, %+v, %v", len(text), exit, err)
	}
	if text, _ := u.output(s.ID, c.ID, sandbox.OutputParams{Cursor: size + 1}); text != "nd" {
		t.Errorf("from a cursor: %q", text)
	}
	_, err = u.Output(u.ctx, s.ID, c.ID, sandbox.OutputParams{Cursor: size + 4})
	checktest.Code(t, err, cay.Invalid)
	if kept, _ := u.output(s.ID, many.ID, sandbox.OutputParams{}); kept != all {
		t.Errorf("kept are %d bytes, want %d", len(kept), len(all))
	}
}

// Output has its times, while the sandbox runs and afterwards, for readers that ask for them.
func testKeptTimes(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{})
	c := u.done(s.ID, "echo first; echo other >&2; echo last")
	// times returns the times of the bytes of the output.
	times := func(p sandbox.OutputParams) (all []time.Time) {
		t.Helper()
		out, err := u.Output(u.ctx, s.ID, c.ID, p)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for {
			ev, err := out.Next()
			if err == io.EOF {
				return all
			}
			if err != nil {
				t.Fatal(err)
			}
			for range ev.Data {
				all = append(all, ev.Time)
			}
		}
	}
	running := times(sandbox.OutputParams{Times: true})
	const size = len("first\nother\nlast\n")
	if len(running) != size {
		t.Fatalf("read %d bytes", len(running))
	}
	for i, at := range running {
		if at.Before(c.StartedAt) || i > 0 && at.Before(running[i-1]) {
			t.Errorf("byte %d is of %v; the command started at %v, the byte before is of %v", i, at, c.StartedAt, running[max(i-1, 0)])
		}
	}
	u.stop(s.ID)
	if kept := times(sandbox.OutputParams{Times: true}); !slices.EqualFunc(kept, running, time.Time.Equal) {
		t.Errorf("the times were %v, and are %v when it has stopped", running, kept)
	}
	if part := times(sandbox.OutputParams{Times: true, Cursor: 3}); !slices.EqualFunc(part, running[3:], time.Time.Equal) {
		t.Errorf("from a cursor they are %v", part)
	}
	for _, at := range times(sandbox.OutputParams{}) {
		if !at.IsZero() {
			t.Fatal("a reader that does not ask for times gets them")
		}
	}
}

func testKeptPaused(t *testing.T, cfg Config) {
	for name, p := range map[string]sandbox.CreateParams{"Persistent": {Name: "kept"}, "NotPersistent": {}} {
		t.Run(name, func(t *testing.T) {
			u := setupSaver(t, cfg)
			if u.env.NoPause {
				t.Skip("sandboxes of this service cannot be paused")
			}
			s := u.create(p)
			c := u.done(s.ID, "echo said")
			if _, err := u.Pause(u.ctx, s.ID); err != nil {
				t.Fatal(err)
			}
			u.stop(s.ID)
			if text, _ := u.output(s.SessionID, c.ID, sandbox.OutputParams{}); text != "said\n" {
				t.Errorf("it wrote %q", text)
			}
		})
	}
}

// A machine that ended by itself leaves no kept commands, and errors say so.
func testKeptFailed(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	if u.env.Kill == nil {
		t.Skip("machines of this service cannot be killed")
	}
	s := u.create(sandbox.CreateParams{Name: "kept"})
	before := u.done(s.ID, "echo before")
	u.stop(s.ID)
	s = u.resume(s.ID)
	lost := u.done(s.ID, "echo lost")
	end := u.ending(s.ID)
	u.env.Kill(t, s.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed})
	end()
	for _, ref := range []string{s.ID, s.SessionID} {
		_, err := u.GetCommand(u.ctx, ref, lost.ID)
		checktest.Code(t, err, cay.Stopped)
		_, err = u.ListCommands(u.ctx, ref)
		checktest.Code(t, err, cay.Stopped)
		_, err = u.Output(u.ctx, ref, lost.ID, sandbox.OutputParams{Follow: true})
		checktest.Code(t, err, cay.Stopped)
	}
	if text, _ := u.output(s.ID, before.ID, sandbox.OutputParams{}); text != "before\n" {
		t.Errorf("of the session before: %q", text)
	}
}

func testKeptDeleted(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{})
	c := u.done(s.ID, "echo said")
	u.stop(s.ID)
	if err := u.Delete(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{s.ID, s.SessionID} {
		_, err := u.GetCommand(u.ctx, ref, c.ID)
		checktest.Code(t, err, cay.NotFound)
	}
}

func testKeptTenancy(t *testing.T, cfg Config) {
	t.Parallel()
	env := cfg.New(t)
	a := env.user(t, ProjectA)
	s := a.create(sandbox.CreateParams{})
	c := a.done(s.ID, "echo said")
	a.stop(s.ID)
	for name, p := range map[string]*user{"OtherTeam": env.user(t, ProjectB), "OtherProject": env.user(t, ProjectA2)} {
		for _, ref := range []string{s.ID, s.SessionID} {
			for method, call := range map[string]func() error{
				"GetCommand":   func() error { _, err := p.GetCommand(p.ctx, ref, c.ID); return err },
				"ListCommands": func() error { _, err := p.ListCommands(p.ctx, ref); return err },
				"Wait":         func() error { _, err := p.Wait(p.ctx, ref, c.ID); return err },
				"Output":       func() error { _, err := p.Output(p.ctx, ref, c.ID, sandbox.OutputParams{}); return err },
			} {
				t.Run(name+"/"+method, func(t *testing.T) { checktest.Code(t, call(), cay.NotFound) })
			}
		}
	}
}

// A hibernated command continues, with its output, in the sandbox; the output up to the
// hibernation stays with the ended session.
func testKeptHibernated(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	s := u.create(sandbox.CreateParams{Name: "kept"})
	ended := u.done(s.ID, "echo ended")
	running := u.start(s.ID, "sh", "-c", "echo begun; while [ ! -e stop ]; do sleep 0.05; done; echo over")
	for ev := range u.follow(s.ID, running.ID) {
		if len(ev.Data) > 0 {
			break
		}
	}
	if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	// A ref to the session wakes nothing.
	if text, exit := u.output(s.SessionID, ended.ID, sandbox.OutputParams{Follow: true}); text != "ended\n" || exit == nil || exit.Code != 0 {
		t.Errorf("of the session: %q, %+v", text, exit)
	}
	if got := u.command(s.SessionID, running.ID); got.Exit != nil || got.OutputEnd != 6 {
		t.Errorf("of the session: %+v", got)
	}
	_, err := u.Wait(u.ctx, s.SessionID, running.ID)
	checktest.Code(t, err, cay.Stopped)
	if text, exit := u.output(s.SessionID, running.ID, sandbox.OutputParams{}); text != "begun\n" || exit != nil {
		t.Errorf("of the session: %q, %+v", text, exit)
	}
	wantStatus(t, u.get(s.ID), sandbox.Hibernated, "")
	// A ref to the sandbox resumes the command.
	u.sh(s.ID, "touch stop")
	if text, exit := u.output(s.ID, running.ID, sandbox.OutputParams{Cursor: 3, Follow: true}); text != "un\nover\n" || exit == nil || exit.Code != 0 {
		t.Errorf("of the sandbox: %q, %+v", text, exit)
	}
	u.stop(s.ID)
	if text, exit := u.output(s.ID, running.ID, sandbox.OutputParams{}); text != "begun\nover\n" || exit == nil {
		t.Errorf("of the stopped sandbox: %q, %+v", text, exit)
	}
	if got := u.command(s.SessionID, running.ID); got.Exit != nil {
		t.Errorf("of the first session: %+v", got)
	}

	// A hibernated command of a sandbox that is then stopped ends with the sandbox.
	s = u.create(sandbox.CreateParams{})
	running = u.start(s.ID, "sleep", "1000")
	if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	u.stop(s.ID)
	if got := u.command(s.ID, running.ID); got.Exit == nil || got.Exit.Code != 137 {
		t.Errorf("of a sandbox that was stopped while it was hibernated: %+v", got)
	}
}
