package sandboxd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// startKept starts an engine, and returns its store of kept commands.
func startKept(t *testing.T, change ...func(*sandboxd.Config)) (*sandboxtest.Harness, *blob.Dir) {
	t.Helper()
	dir, err := blob.OpenDir(filepath.Join(t.TempDir(), "commands"), blob.DirOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h, _ := startFake(t, append([]func(*sandboxd.Config){func(c *sandboxd.Config) { c.Commands = dir }}, change...)...)
	return h, dir
}

// said creates a sandbox and runs a command in it.
func said(t *testing.T, h *sandboxtest.Harness, p sandbox.CreateParams, argv ...string) (*sandbox.Sandbox, *sandbox.Command) {
	t.Helper()
	ctx := defaultCaller(t)
	s, err := h.Create(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	c, err := h.Start(ctx, s.ID, sandbox.CommandParams{Argv: argv})
	if err == nil {
		c, err = h.Wait(ctx, s.ID, c.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func stored(t *testing.T, dir *blob.Dir) []blob.Info {
	t.Helper()
	all, err := dir.List(t.Context(), blob.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A team's kept commands are bounded; the oldest are dropped, and a call for them says
// so.
func TestKept_limit(t *testing.T) {
	t.Parallel()
	h, dir := startKept(t, func(c *sandboxd.Config) { c.Limits.KeptCommands = 2 * 64 << 10 })
	ctx := defaultCaller(t)
	freed := make(chan struct{}, 10)
	h.Reached(func(point string) {
		if point == "commands-removed" {
			freed <- struct{}{}
		}
	})
	var ids []*sandbox.Sandbox
	var cmds []*sandbox.Command
	for range 3 {
		s, c := said(t, h, sandbox.CreateParams{}, "echo", "said")
		ids, cmds = append(ids, s), append(cmds, c)
		if _, err := h.Stop(ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		h.Clock.Advance(1e9) // "oldest" goes by the clock
	}
	<-freed
	if n := len(stored(t, dir)); n != 2 {
		t.Errorf("%d blobs", n)
	}
	for i, want := range []cay.Code{cay.Stopped, "", ""} {
		if _, err := h.GetCommand(ctx, ids[i].ID, cmds[i].ID); cay.CodeOf(err) != want {
			t.Errorf("command of sandbox %d: %v, want %q", i, err, want)
		}
	}
	// Deleting the sandbox removes its kept commands.
	if err := h.Delete(ctx, ids[1].ID); err != nil {
		t.Fatal(err)
	}
	<-freed
	if n := len(stored(t, dir)); n != 1 {
		t.Errorf("%d blobs after a delete", n)
	}
}

// Reading kept commands counts as a call, and calls are bounded.
func TestKept_calls(t *testing.T) {
	t.Parallel()
	h, _ := startKept(t, func(c *sandboxd.Config) { c.Limits.Calls = 1 })
	ctx := defaultCaller(t)
	s, c := said(t, h, sandbox.CreateParams{}, "echo", "said")
	if _, err := h.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	out, err := h.Output(ctx, s.ID, c.ID, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.GetCommand(ctx, s.ID, c.ID); cay.CodeOf(err) != cay.QuotaExceeded {
		t.Errorf("one more call: %v", err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := h.GetCommand(ctx, s.ID, c.ID); err != nil {
			t.Errorf("after the other: %v", err)
		}
		if _, err := h.GetCommand(ctx, s.ID, guest.NewCommandID()); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("of another: %v", err)
		}
		if _, err := h.ListCommands(ctx, s.ID); err != nil {
			t.Errorf("all: %v", err)
		}
	}
}

// Nothing is written for a session without commands, nor for a deleted sandbox.
func TestKept_nothing(t *testing.T) {
	t.Parallel()
	h, dir := startKept(t)
	ctx := defaultCaller(t)
	s, err := h.Create(ctx, sandbox.CreateParams{Name: "silent"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if all, err := h.ListCommands(ctx, s.ID); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v", all, err)
	}
	if _, err := h.GetCommand(ctx, s.ID, guest.NewCommandID()); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("got %v", err)
	}
	s, _ = said(t, h, sandbox.CreateParams{}, "echo", "said")
	if err := h.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if all := stored(t, dir); len(all) != 0 {
		t.Errorf("blobs %v", all)
	}
}

// Missing or damaged files do not make a command appear as never run.
func TestKept_missing(t *testing.T) {
	t.Parallel()
	h, dir := startKept(t)
	ctx := defaultCaller(t)
	s, c := said(t, h, sandbox.CreateParams{}, "echo", "said")
	if _, err := h.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	for _, b := range stored(t, dir) {
		if err := dir.Delete(ctx, b.Name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.GetCommand(ctx, s.ID, c.ID); cay.CodeOf(err) != cay.Stopped {
		t.Errorf("get: %v", err)
	}
	if _, err := h.ListCommands(ctx, s.ID); cay.CodeOf(err) != cay.Stopped {
		t.Errorf("list: %v", err)
	}
	if _, err := h.Output(ctx, s.ID, c.ID, sandbox.OutputParams{}); cay.CodeOf(err) != cay.Stopped {
		t.Errorf("output: %v", err)
	}
}

// guestTap lets a test answer in place of the guests of a runtime.
type guestTap struct {
	*fake.Runtime
	mu    sync.Mutex
	conns []net.Conn
	dial  func(ctx context.Context) (net.Conn, error) // nil: dials the real guest
}

func (r *guestTap) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	inst, err := r.Runtime.Start(ctx, spec)
	if err != nil {
		return nil, err
	}
	return tapped{inst, r}, nil
}

// answer makes later connections to guests use dial, and closes existing ones.
func (r *guestTap) answer(dial func(ctx context.Context) (net.Conn, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dial = dial
	for _, c := range r.conns {
		c.Close()
	}
}

type tapped struct {
	machine.Instance
	tap *guestTap
}

func (i tapped) DialGuest(ctx context.Context) (net.Conn, error) {
	i.tap.mu.Lock()
	defer i.tap.mu.Unlock()
	if i.tap.dial != nil {
		return i.tap.dial(ctx)
	}
	c, err := i.Instance.DialGuest(ctx)
	i.tap.conns = append(i.tap.conns, c)
	return c, err
}

// A guest cannot delay the end of its sandbox, nor keep more than the limits allow.
func TestKept_hostile(t *testing.T) {
	checktest.Long(t)
	t.Parallel()
	var mute []net.Conn
	t.Cleanup(func() {
		for _, c := range mute {
			c.Close()
		}
	})
	junk := strings.Repeat("%n\x00<>", 1<<10)
	for name, dial := range map[string]func(t *testing.T) func(context.Context) (net.Conn, error){
		"Silent": func(*testing.T) func(context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				ours, theirs := net.Pipe()
				mute = append(mute, theirs)
				return ours, nil
			}
		},
		"Nonsense": func(t *testing.T) func(context.Context) (net.Conn, error) {
			return served(t, http.NotFoundHandler())
		},
		"Much": func(t *testing.T) func(context.Context) (net.Conn, error) {
			return served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/commands" { // the output of a command, which never ends
					at, err := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
					if err != nil {
						t.Error(err)
					}
					for ; r.Context().Err() == nil; at += 1 << 10 {
						w.Write(guest.AppendHeader(nil, guest.KindStdout, at, 1<<10))
						w.Write([]byte(junk)[:1<<10])
					}
					return
				}
				var all []sandbox.Command
				for range 4000 { // almost as many as the client reads
					all = append(all, sandbox.Command{ID: guest.NewCommandID(), PID: 1, Argv: []string{junk[:600]}, OutputEnd: 1 << 40})
				}
				json.NewEncoder(w).Encode(all)
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			rt, err := fake.New(filepath.Join(t.TempDir(), "machines"))
			if err != nil {
				t.Fatal(err)
			}
			tap := &guestTap{Runtime: rt}
			dir, err := blob.OpenDir(filepath.Join(t.TempDir(), "commands"), blob.DirOptions{})
			if err != nil {
				t.Fatal(err)
			}
			h := sandboxtest.Start(t, tap, func(c *sandboxd.Config) { c.Commands = dir })
			t.Cleanup(func() { rt.Close() })
			ctx := defaultCaller(t)
			s, c := said(t, h, sandbox.CreateParams{}, "echo", "said")
			tap.answer(dial(t))
			if got, err := h.Stop(ctx, s.ID); err != nil || got.Status != sandbox.Stopped {
				t.Fatalf("got %+v, %v", got, err)
			}
			if _, err := h.GetCommand(ctx, s.ID, c.ID); cay.CodeOf(err) != cay.Stopped && cay.CodeOf(err) != cay.NotFound {
				t.Errorf("got %v", err)
			}
			for _, b := range stored(t, dir) {
				if b.Size > 17<<20 {
					t.Errorf("%d bytes are kept", b.Size)
				}
			}
			if name == "Much" {
				all, err := h.ListCommands(ctx, s.ID)
				if cay.CodeOf(err) == cay.Stopped {
					return // on a machine this slow the guest's answer comes too late
				}
				if err != nil || len(all) == 0 || len(all) > 1000 {
					t.Fatalf("%d commands, %v", len(all), err)
				}
				// Output that never ends was not kept, and the reader is told that it is
				// truncated.
				out, err := h.Output(ctx, s.ID, all[0].ID, sandbox.OutputParams{})
				if err != nil {
					t.Fatal(err)
				}
				defer out.Close()
				if ev, err := out.Next(); err != nil || !ev.Truncated || ev.Cursor != 1<<40 {
					t.Errorf("its output begins with %+v, %v", ev, err)
				}
				if ev, err := out.Next(); err != nil || ev.Exit == nil {
					t.Errorf("its output goes on with %+v, %v", ev, err)
				}
			}
		})
	}
}

// served starts a server in place of a guest, and returns the function that connects to
// it.
func served(t *testing.T, h http.Handler) func(context.Context) (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // returns at Close
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// keptLife runs a command in a sandbox, stops the sandbox, and prints their ids.
func keptLife(ctx context.Context, dir, point string) error {
	e, _, _, err := crashEngine(ctx, dir)
	if err != nil {
		return err
	}
	e.Reached(dying(point))
	if err := e.Open(ctx); err != nil {
		return err
	}
	for _, p := range []sandbox.CreateParams{{Name: "kept"}, {}} {
		s, err := e.Create(ctx, p)
		if err != nil {
			return err
		}
		c, err := e.Start(ctx, s.ID, sandbox.CommandParams{Argv: []string{"echo", "said"}})
		if err == nil {
			_, err = e.Wait(ctx, s.ID, c.ID)
		}
		if err != nil {
			return err
		}
		fmt.Println("ran", s.ID, c.ID)
		if _, err := e.Stop(ctx, s.ID); err != nil {
			return err
		}
		fmt.Println("stopped", s.ID)
	}
	return nil
}

// TestCrash_Kept checks that at whatever point the daemon is killed, a command is either
// kept whole or reported as gone, and no unowned files are left.
func TestCrash_Kept(t *testing.T) {
	checktest.Long(t)
	for _, point := range []string{"stopping", "commands-kept", "snapshotted", "destroyed", "ended", "stopping 2", "commands-kept 2", "destroyed 2", "ended 2"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			lines := crash(t, "kept", dir, point)
			e, d, _ := recovered(t, dir)
			ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
			stopped := strings.Join(lines, "\n")
			kept := 0
			for _, line := range lines {
				f := strings.Fields(line)
				if f[0] != "ran" {
					continue
				}
				out, err := e.Output(ctx, f[1], f[2], sandbox.OutputParams{Follow: true})
				switch {
				case err == nil:
					kept++
					if text := sandboxtest.ReadText(t, out); text != "said\n" {
						t.Errorf("it wrote %q", text)
					}
				case cay.CodeOf(err) != cay.Stopped, strings.Contains(stopped, "stopped "+f[1]), strings.HasPrefix(point, "ended") && f[1] == lastRan(lines):
					t.Errorf("%s: %v", line, err)
				}
			}
			if _, err := e.SweepCommands(ctx, 0); err != nil {
				t.Fatal(err)
			}
			for _, sub := range []string{"names", "data"} {
				left, err := os.ReadDir(filepath.Join(dir, "commands", sub))
				// The engine's own sweep may be removing files at this moment.
				tick, bound := time.NewTicker(10*time.Millisecond), time.After(time.Minute)
				for late := false; err == nil && len(left) > kept && !late; left, err = os.ReadDir(filepath.Join(dir, "commands", sub)) {
					select {
					case <-tick.C:
					case <-bound:
						late = true
					}
				}
				tick.Stop()
				if err != nil || len(left) != kept {
					t.Errorf("%d are kept, and there are %v in %s, %v", kept, left, sub, err)
				}
			}
			if err := d.Check(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// lastRan returns the sandbox that the killed process was working on.
func lastRan(lines []string) (id string) {
	for _, line := range lines {
		if f := strings.Fields(line); f[0] == "ran" {
			id = f[1]
		}
	}
	return id
}
