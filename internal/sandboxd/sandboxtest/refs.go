package sandboxtest

import (
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/sandbox"
)

// testSessionRefs checks that a session's id names its sandbox until the session ends.
func testSessionRefs(t *testing.T, cfg Config) {
	for name, f := range map[string]func(*testing.T, Config){
		"Running":    testRunningSession,
		"Ended":      testEndedSession,
		"Hibernated": testHibernatedSession,
		"Paused":     testPausedSession,
		"Stopping":   testStoppingSession,
		"Unknown":    testUnknownSession,
	} {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
}

// onSession returns the calls that an ended session refuses, by method. Calls about
// commands that ended with the session are tested with the commands.
func (u *user) onSession(ref string) map[string][]func() error {
	ctx, argv := u.ctx, []string{"true"}
	deny := &sandbox.Network{Mode: sandbox.DenyAll}
	calls := map[string][]func() error{
		"Update": {
			func() error {
				_, err := u.Update(ctx, ref, sandbox.UpdateParams{Tags: map[string]string{"a": "b"}})
				return err
			},
			func() error { _, err := u.Update(ctx, ref, sandbox.UpdateParams{Network: deny}); return err },
			func() error { _, err := u.Update(ctx, ref, sandbox.UpdateParams{Persistent: yes}); return err },
		},
		"Resume": {
			func() error { _, err := u.Resume(ctx, ref, sandbox.ResumeParams{}); return err },
			func() error { _, err := u.Resume(ctx, ref, sandbox.ResumeParams{Fresh: true}); return err },
		},
		"CreateSnapshot": {
			func() error { _, err := u.CreateSnapshot(ctx, ref, sandbox.SnapshotParams{}); return err },
			func() error { _, err := u.CreateSnapshot(ctx, ref, sandbox.SnapshotParams{Stop: true}); return err },
		},
	}
	for method, call := range map[string]func() error{
		"Extend":          func() error { _, err := u.Extend(ctx, ref, seconds(1)); return err },
		"Pause":           func() error { _, err := u.Pause(ctx, ref); return err },
		"DeleteWith":      func() error { return u.Delete(ctx, ref) },
		"Stats":           func() error { _, err := u.Stats(ctx, ref); return err },
		"WatchStats":      func() error { _, err := u.WatchStats(ctx, ref); return err },
		"WatchCommands":   func() error { _, err := u.WatchCommands(ctx, ref); return err },
		"Hibernate":       func() error { _, err := u.Hibernate(ctx, ref); return err },
		"Fork":            func() error { _, err := u.Fork(ctx, ref, sandbox.ForkParams{}); return err },
		"CreateLink":      func() error { _, err := u.CreateLink(ctx, ref, 3000, sandbox.LinkParams{}); return err },
		"DialPort":        func() error { _, err := u.DialPort(ctx, ref, 3000); return err },
		"HandleOutbound":  func() error { _, err := u.HandleOutbound(ctx, ref); return err },
		"TakeOutbound":    func() error { _, err := u.TakeOutbound(ctx, ref, "1", sandbox.HandleRaw); return err },
		"DeclineOutbound": func() error { return u.DeclineOutbound(ctx, ref, "1", sandbox.HandlePass) },
		"Start":           func() error { _, err := u.Start(ctx, ref, sandbox.CommandParams{Argv: argv}); return err },
		"Exec":            func() error { _, err := u.Exec(ctx, ref, sandbox.CommandParams{Argv: argv}); return err },
		"Signal":          func() error { return u.Signal(ctx, ref, "cmd_x", 9) },
		"WriteStdin":      func() error { return u.WriteStdin(ctx, ref, "cmd_x", strings.NewReader("x"), true) },
		"Resize":          func() error { return u.Resize(ctx, ref, "cmd_x", sandbox.WindowSize{Cols: 80, Rows: 24}) },
		"Stat":            func() error { _, err := u.Stat(ctx, ref, "/", false); return err },
		"ReadDir":         func() error { _, err := u.ReadDir(ctx, ref, "/", sandbox.ReadDirParams{}); return err },
		"Glob":            func() error { _, err := u.Glob(ctx, ref, "*"); return err },
		"ReadFile":        func() error { _, _, err := u.ReadFile(ctx, ref, "f", sandbox.ReadParams{}); return err },
		"WriteFile": func() error {
			_, err := u.WriteFile(ctx, ref, "f", strings.NewReader("x"), sandbox.WriteParams{})
			return err
		},
		"Mkdir":   func() error { return u.Mkdir(ctx, ref, "d", sandbox.MkdirParams{}) },
		"Rename":  func() error { return u.Rename(ctx, ref, "f", "g") },
		"Copy":    func() error { return u.Copy(ctx, ref, "f", "g") },
		"Remove":  func() error { return u.Remove(ctx, ref, "f", false) },
		"Symlink": func() error { return u.Symlink(ctx, ref, "f", "l") },
		"Chmod":   func() error { return u.Chmod(ctx, ref, "f", 0o600) },
		"Extract": func() error { return u.Extract(ctx, ref, "d", strings.NewReader(""), sandbox.ExtractParams{}) },
		"Archive": func() error { _, err := u.Archive(ctx, ref, "f", sandbox.Tar); return err },
		"Watch":   func() error { _, err := u.Watch(ctx, ref, ".", sandbox.WatchParams{}); return err },
	} {
		calls[method] = []func() error{call}
	}
	return calls
}

// beyond lists the methods that take an id or a name, and are not in onSession: they read
// data that outlives a session, end nothing, or are not about a sandbox.
var beyond = []string{
	"Get", "Stop", "Sessions", "Flows", "WatchFlows",
	"GetCommand", "ListCommands", "Wait", "Output",
	"GetSession", "GetSnapshot", "SnapshotTree", "DeleteSnapshot", "ExportSnapshot", "GetDrive", "SaveDrive", "DeleteDrive",
}

// refuses expects sandbox_stopped from every call restricted to a session, and that the
// calls change nothing.
func (u *user) refuses(t *testing.T, session string) {
	t.Helper()
	before := u.get(session)
	calls := u.onSession(session)
	for method := range reflect.TypeFor[sandboxd.Service]().Methods() {
		if in := method.Type; in.NumIn() < 2 || in.In(1).Kind() != reflect.String || slices.Contains(beyond, method.Name) {
			continue
		}
		if len(calls[method.Name]) == 0 {
			t.Errorf("%s is not tried", method.Name)
		}
		for _, call := range calls[method.Name] {
			t.Run(method.Name, func(t *testing.T) {
				err := call()
				checktest.Code(t, err, cay.Stopped)
				if !strings.Contains(err.Error(), session) {
					t.Errorf("%q does not name the session", err)
				}
			})
		}
	}
	if after := u.get(session); after.Status != before.Status || after.SessionID != before.SessionID || !after.UpdatedAt.Equal(before.UpdatedAt) {
		t.Errorf("the sandbox has changed from %+v to %+v", before, after)
	}
}

func testRunningSession(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	ref := s.SessionID
	if got := u.get(ref); got.ID != s.ID {
		t.Fatalf("it is of %s, want %s", got.ID, s.ID)
	}
	if got := u.sh(ref, "echo hi > f; cat f"); got != "hi\n" {
		t.Errorf("a command wrote %q", got)
	}
	cmd := u.start(ref, "sleep", "1000")
	if cmd.SandboxID != s.ID {
		t.Errorf("the command is of %q, want %q", cmd.SandboxID, s.ID)
	}
	if got, err := u.GetCommand(u.ctx, s.ID, cmd.ID); err != nil || got.ID != cmd.ID {
		t.Errorf("by the sandbox's id: %+v, %v", got, err)
	}
	if err := u.Signal(u.ctx, ref, cmd.ID, 9); err != nil {
		t.Error(err)
	}
	if info, err := u.Stat(u.ctx, ref, "f", false); err != nil || info.Size != 3 {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if got, err := u.Extend(u.ctx, ref, minutes(1)); err != nil || got.ID != s.ID || got.Timeout != s.Timeout+minutes(1) {
		t.Errorf("extended: %+v, %v", got, err)
	}
	if got, err := u.Update(u.ctx, ref, sandbox.UpdateParams{Network: &sandbox.Network{Mode: sandbox.DenyAll}}); err != nil || got.Network.Mode != sandbox.DenyAll {
		t.Errorf("updated: %+v, %v", got, err)
	}
	if got, err := u.Resume(u.ctx, ref, sandbox.ResumeParams{}); err != nil || got.SessionID != ref {
		t.Errorf("resuming one that runs: %+v, %v", got, err)
	}
	if _, err := u.Stats(u.ctx, ref); err != nil {
		t.Error(err)
	}
	if all := u.sessions(ref); len(all) != 1 || all[0].ID != ref {
		t.Errorf("sessions %+v", all)
	}
	snap := u.snapshot(ref, sandbox.SnapshotParams{})
	if snap.SandboxID != s.ID || snap.SessionID != ref {
		t.Errorf("snapshot %+v", snap)
	}
	f, err := u.Fork(u.ctx, ref, sandbox.ForkParams{Kind: sandbox.FilesystemSnapshot, Names: []string{"copy"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := u.sh(f.Sandboxes[0].SessionID, "cat f"); got != "hi\n" {
		t.Errorf("the copy has %q", got)
	}
	u.sh(ref, "echo there > f")
	stopped, err := u.Stop(u.ctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, stopped, sandbox.Stopped, sandbox.ReasonRequested)
	if stopped.ID != s.ID || stopped.SnapshotID == snap.ID {
		t.Errorf("stopped: %+v", stopped)
	}
	if err := u.Delete(u.ctx, f.Sandboxes[0].SessionID); err != nil {
		t.Error(err)
	}
	_, err = u.Get(u.ctx, "copy")
	checktest.Code(t, err, cay.NotFound)
}

func testEndedSession(t *testing.T, cfg Config) {
	for name, p := range map[string]sandbox.CreateParams{"Persistent": {Name: "kept"}, "NotPersistent": {}} {
		t.Run(name, func(t *testing.T) {
			u := setupSaver(t, cfg)
			p.Ports = []sandbox.PortParams{{Port: 3000, Access: sandbox.Private}}
			s := u.create(p)
			first := s.SessionID
			u.stop(s.ID)
			t.Run("Stopped", func(t *testing.T) { u.refuses(t, first) })
			u.leaves(t, s.ID, first, sandbox.Stopped)
			later, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{Fresh: !s.Persistent})
			if err != nil {
				t.Fatal(err)
			}
			t.Run("Resumed", func(t *testing.T) { u.refuses(t, first) })
			u.leaves(t, s.ID, first, sandbox.Running)
			u.sh(later.SessionID, "true")
			if got := u.sessions(s.ID); len(got) != 2 {
				t.Errorf("it has %d sessions, want 2", len(got))
			}
		})
	}
}

// leaves checks that methods that accept the id of an ended session read the sandbox's
// data, and that Stop with this id stops nothing.
func (u saver) leaves(t *testing.T, id, session string, status sandbox.Status) {
	t.Helper()
	if got := u.get(session); got.ID != id || got.Status != status {
		t.Errorf("get: %+v", got)
	}
	if got, err := u.Stop(u.ctx, session); err != nil || got.ID != id || got.Status != status {
		t.Errorf("stop: %+v, %v", got, err)
	}
	if all := u.sessions(session); len(all) == 0 || all[len(all)-1].ID != session {
		t.Errorf("sessions: %+v", all)
	}
	if _, err := u.Flows(u.ctx, session, sandbox.FlowParams{}); err != nil {
		t.Errorf("flows: %v", err)
	}
	w, err := u.WatchFlows(u.ctx, session, sandbox.FlowParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if f, err := w.Next(); err != io.EOF {
		t.Errorf("its flows go on with %+v, %v", f, err)
	}
}

func testHibernatedSession(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	s := u.create(sandbox.CreateParams{Ports: []sandbox.PortParams{{Port: 3000, Access: sandbox.Private}}})
	if _, err := u.Hibernate(u.ctx, s.SessionID); err != nil {
		t.Fatal(err)
	}
	u.refuses(t, s.SessionID)
	u.leaves(t, s.ID, s.SessionID, sandbox.Hibernated)
}

func testPausedSession(t *testing.T, cfg Config) {
	u := setup(t, cfg)
	if u.env.NoPause {
		t.Skip("this service cannot pause")
	}
	s := u.create(sandbox.CreateParams{})
	if _, err := u.Pause(u.ctx, s.SessionID); err != nil {
		t.Fatal(err)
	}
	_, err := u.Stat(u.ctx, s.SessionID, "/", false)
	checktest.Code(t, err, cay.Conflict)
	if got, err := u.Resume(u.ctx, s.SessionID, sandbox.ResumeParams{}); err != nil || got.SessionID != s.SessionID {
		t.Fatalf("resumed: %+v, %v", got, err)
	}
	u.sh(s.SessionID, "true")
}

// Calls restricted to a session that is being stopped succeed or report its end,
// depending on the moment; they never start another session.
func testStoppingSession(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	s := u.create(sandbox.CreateParams{Name: "kept"})
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			close := sync.OnceFunc(func() { begin <- struct{}{} })
			for {
				_, err := u.Stat(u.ctx, s.SessionID, "/", false)
				close()
				if cay.CodeOf(err) == cay.Stopped {
					return
				}
				if err != nil {
					t.Errorf("stat: %v", err)
					return
				}
			}
		})
	}
	for range 8 {
		<-begin
	}
	if _, err := u.Stop(u.ctx, s.SessionID); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if all := u.sessions(s.ID); len(all) != 1 {
		t.Errorf("it has %d sessions, want 1", len(all))
	}
}

func testUnknownSession(t *testing.T, cfg Config) {
	t.Parallel()
	env := cfg.New(t)
	a, a2, b := env.user(t, ProjectA), env.user(t, ProjectA2), env.user(t, TeamB)
	s := a.create(sandbox.CreateParams{})
	for _, u := range []*user{a2, b} {
		for method, calls := range u.onSession(s.SessionID) {
			for _, call := range calls {
				if err := call(); cay.CodeOf(err) != cay.NotFound {
					t.Errorf("%s of another's session: %v, want not_found", method, err)
				}
			}
		}
		_, err := u.Get(u.ctx, s.SessionID)
		checktest.Code(t, err, cay.NotFound)
		_, err = u.GetSession(u.ctx, s.SessionID)
		checktest.Code(t, err, cay.NotFound)
	}
	for _, ref := range []string{"ses_", "ses_00000000000000000000", "ses_'; --"} {
		_, err := a.Get(a.ctx, ref)
		checktest.Code(t, err, cay.NotFound)
		_, err = a.Stat(a.ctx, ref, "/", false)
		checktest.Code(t, err, cay.NotFound)
		_, err = a.GetSession(a.ctx, ref)
		checktest.Code(t, err, cay.NotFound)
	}
	wantStatus(t, a.get(s.ID), sandbox.Running, "")
}
