package sandboxd_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// Calls into a guest that has stopped answering fail, and so do new calls until it
// answers again; the sandbox shows unresponsive_since.
func TestUnresponsive(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t, func(c *sandboxd.Config) { c.Limits.Answer = 3 * time.Second })
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(100)}))(t)
	changes := checktest.Must(h.WatchSandboxes(ctx, sandbox.ChangeParams{}))(t)
	defer changes.Close()
	out := checktest.Must(h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true}))(t)
	defer out.Close()
	cmd := checktest.Must(out.Next())(t).Command

	if err := rt.Freeze(s.SessionID, true); err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	defer pw.Close()
	calls := map[string]func() error{
		"output": func() error { _, err := out.Next(); return err },
		"wait":   func() error { _, err := h.Wait(ctx, s.ID, cmd.ID); return err },
		"start": func() error {
			_, err := h.Engine.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"true"}})
			return err
		},
		"stat":  func() error { _, err := h.Stat(ctx, s.ID, "/", false); return err },
		"stdin": func() error { return h.WriteStdin(ctx, s.ID, cmd.ID, strings.NewReader("x"), false) },
		"upload": func() error {
			_, err := h.WriteFile(ctx, s.ID, "x", pr, sandbox.WriteParams{})
			return err
		},
	}
	type ended struct {
		name string
		err  error
	}
	ends := make(chan ended, len(calls))
	for name, call := range calls {
		go func() { ends <- ended{name, call()} }()
	}
	h.Clock.Advance(10 * time.Second)
	for range calls {
		e := <-ends
		if cay.CodeOf(e.err) != cay.Unavailable || !strings.Contains(e.err.Error(), "does not answer") {
			t.Errorf("%s ended with %v", e.name, e.err)
		}
	}
	until(t, changes, func(s *sandbox.Sandbox) bool { return s.UnresponsiveSince != nil })
	checktest.Code(t, calls["stat"](), cay.Unavailable)
	if got := checktest.Must(h.Get(ctx, s.ID))(t); got.Status != sandbox.Running || got.UnresponsiveSince == nil {
		t.Errorf("it is %s, unresponsive since %v", got.Status, got.UnresponsiveSince)
	}

	if err := rt.Freeze(s.SessionID, false); err != nil {
		t.Fatal(err)
	}
	h.Clock.Advance(10 * time.Second)
	until(t, changes, func(s *sandbox.Sandbox) bool { return s.UnresponsiveSince == nil })
	if err := calls["stat"](); err != nil {
		t.Errorf("it answers again, and stat fails: %v", err)
	}
	out = checktest.Must(h.Output(ctx, s.ID, cmd.ID, sandbox.OutputParams{Follow: true}))(t)
	defer out.Close()
	if err := h.WriteStdin(ctx, s.ID, cmd.ID, strings.NewReader("on\n"), true); err != nil {
		t.Fatal(err)
	}
	if text := sandboxtest.ReadText(t, out); !strings.HasSuffix(text, "on\n") {
		t.Errorf("the command wrote %q", text)
	}
}

// until reads changes until a wanted one arrives.
func until(t *testing.T, changes sandbox.Changes, wanted func(*sandbox.Sandbox) bool) {
	t.Helper()
	for {
		c := checktest.Must(changes.Next())(t)
		if c.Sandbox != nil && wanted(c.Sandbox) {
			return
		}
	}
}

// A sandbox that is paused while calls into it are under way is not reported as
// unresponsive.
func TestUnresponsive_Paused(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t, func(c *sandboxd.Config) { c.Limits.Answer = time.Second })
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(100)}))(t)
	out := checktest.Must(h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true}))(t)
	defer out.Close()
	cmd := checktest.Must(out.Next())(t).Command
	checktest.Must(h.Pause(ctx, s.ID))(t)
	h.Clock.Advance(10 * time.Second)
	checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
	h.Clock.Advance(10 * time.Second)
	if err := h.WriteStdin(ctx, s.ID, cmd.ID, strings.NewReader("on\n"), true); err != nil {
		t.Fatal(err)
	}
	if text := sandboxtest.ReadText(t, out); text != "on\n" {
		t.Errorf("the command wrote %q", text)
	}
}

// A sandbox whose guest does not answer after a restart of the daemon is kept.
func TestUnresponsive_Restart(t *testing.T) {
	t.Parallel()
	h, rt := startFake(t, func(c *sandboxd.Config) { c.Limits.Answer = 3 * time.Second })
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Timeout: minutes(100)}))(t)
	if err := rt.Freeze(s.SessionID, true); err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	got := checktest.Must(h.Get(ctx, s.ID))(t)
	if got.Status != sandbox.Running || got.UnresponsiveSince == nil {
		t.Fatalf("it is %s (%s), unresponsive since %v", got.Status, got.Message, got.UnresponsiveSince)
	}
	checktest.Code(t, stat(ctx, h, s.ID), cay.Unavailable)
	changes := checktest.Must(h.WatchSandboxes(ctx, sandbox.ChangeParams{}))(t)
	defer changes.Close()
	if err := rt.Freeze(s.SessionID, false); err != nil {
		t.Fatal(err)
	}
	h.Clock.Advance(10 * time.Second)
	until(t, changes, func(s *sandbox.Sandbox) bool { return s.UnresponsiveSince == nil })
	if err := stat(ctx, h, s.ID); err != nil {
		t.Error(err)
	}
}

func stat(ctx context.Context, h sandboxd.Service, ref string) error {
	_, err := h.Stat(ctx, ref, "/", false)
	return err
}
