package agent_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/leaktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// serve starts an agent and returns a client of it, and its address.
func serve(t *testing.T, change func(*agent.Config)) (*guest.Client, string) {
	t.Helper()
	return serveServer(t, change, new(*agent.Server))
}

// clientOf returns another client of an agent.
func clientOf(t *testing.T, addr, token string) *guest.Client {
	c := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}, token)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// serveServer does the same as serve, and sets *server to the Server.
func serveServer(t *testing.T, change func(*agent.Config), server **agent.Server) (*guest.Client, string) {
	t.Helper()
	cfg := agent.Config{Root: t.TempDir(), TokenSHA256: sha256.Sum256([]byte("token"))}
	if change != nil {
		change(&cfg)
	}
	s, err := agent.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	*server = s
	return serveOn(t, s, func(l net.Listener) net.Listener { return l })
}

// serveOn serves a listener, wrapped by wrap, until the test's end.
func serveOn(t *testing.T, s *agent.Server, wrap func(net.Listener) net.Listener) (*guest.Client, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(wrap(l)) }()
	c := guest.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}, "token")
	t.Cleanup(func() {
		c.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c, l.Addr().String()
}

func wait(t *testing.T, c *guest.Client, p sandbox.CommandParams) *sandbox.Command {
	t.Helper()
	cmd, err := c.Start(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err = c.Wait(t.Context(), cmd.ID)
	if err != nil {
		t.Fatal(err)
	}
	return cmd
}

// timeOut runs a script, which writes a line once it has set its traps, until its
// timeout. It retries with a longer timeout, because a busy machine may be slow to start
// the script.
func timeOut(t *testing.T, c *guest.Client, script string, signal sandbox.Signal) *sandbox.Command {
	t.Helper()
	for timeout := time.Second; ; timeout *= 2 {
		cmd := wait(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", script}, Timeout: sandbox.Duration(timeout), TimeoutSignal: signal})
		if cmd.OutputEnd > 0 {
			return cmd
		}
	}
}

// A command that ignores SIGTERM is killed after a while, with its children.
func TestTimeout_kill(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Limits.KillAfter = 200 * time.Millisecond })
	cmd := timeOut(t, c, "trap '' TERM; echo set; sleep 1000 & sleep 1000; sleep 1000", 0)
	if cmd.Exit.Code != 124 || !cmd.Exit.TimedOut || cmd.Exit.Signal != 9 {
		t.Errorf("got %+v", cmd.Exit)
	}
}

// All bytes in a command's pipes at its end are read, however short Limits.Drain is and
// whichever processes still hold the pipes.
func TestDrain(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Limits.Drain = 1 })
	const total = 60000
	wait(t, c, sandbox.CommandParams{Argv: []string{"mkfifo", "hold"}})
	defer wait(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", "exec 3<>hold; rm hold"}}) // lets go of them
	for range 50 {
		cmd := wait(t, c, sandbox.CommandParams{Argv: []string{"sh", "-c", fmt.Sprintf("cat hold & head -c %d /dev/zero", total)}})
		if cmd.OutputEnd != total || cmd.OutputStart != 0 {
			t.Fatalf("its output goes from %d to %d, not to %d", cmd.OutputStart, cmd.OutputEnd, total)
		}
	}
}

func TestTimeout_signal(t *testing.T) {
	t.Parallel()
	c, addr := serve(t, func(c *agent.Config) { c.Limits.KillAfter = time.Hour })
	impatient, _ := serve(t, func(c *agent.Config) { c.Limits.KillAfter = 200 * time.Millisecond })
	for _, tt := range []struct {
		name, script string
		signal       sandbox.Signal
		want         sandbox.Exit
	}{
		{"Killed", "echo set; sleep 1000", 9, sandbox.Exit{Code: 137, Signal: 9}},
		{"Another", "echo set; sleep 1000", 2, sandbox.Exit{Code: 130, Signal: 2}},
		{"Handled", "trap 'exit 7' USR1; echo set; sleep 1000 & wait", 10, sandbox.Exit{Code: 7}},
		{"Ignored", "trap '' HUP; echo set; sleep 1000; sleep 1000", 1, sandbox.Exit{Code: 137, Signal: 9}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := c
			if tt.name == "Ignored" {
				c = impatient
			}
			cmd := timeOut(t, c, tt.script, tt.signal)
			if e := cmd.Exit; e.Code != tt.want.Code || e.Signal != tt.want.Signal || !e.TimedOut {
				t.Errorf("got %+v, want %+v", e, tt.want)
			}
		})
	}
	_, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"true"}, TimeoutSignal: 65})
	if cay.CodeOf(err) != cay.Invalid {
		t.Errorf("signal 65: %v", err)
	}
	// Parameters of a later daemon are refused, not ignored.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/commands",
		strings.NewReader(`{"id":"cmd_aaaaaaaaaaaaaaaaaaaa","params":{"argv":["true"],"some_day":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer token")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown parameter: status %d", resp.StatusCode)
	}
}

func TestLimit_running(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Limits.Running = 4 })
	var ids []string
	for range 4 {
		cmd, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cmd.ID)
	}
	_, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"true"}})
	if e, ok := errors.AsType[*cay.Error](err); !ok || e.Code != cay.QuotaExceeded || e.RetryAfter <= 0 {
		t.Fatalf("got %v", err)
	}
	if err := c.Signal(t.Context(), ids[0], 9); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	// A command that does not start takes no place in the table.
	for range 3 {
		if _, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"/no/such"}}); cay.CodeOf(err) != cay.ExecutableMissing {
			t.Fatalf("got %v", err)
		}
	}
	wait(t, c, sandbox.CommandParams{Argv: []string{"true"}})
}

func TestLimit_finished(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Limits.Finished = 3 })
	var ids []string
	for range 5 {
		ids = append(ids, wait(t, c, sandbox.CommandParams{Argv: []string{"echo", "x"}}).ID)
	}
	list, err := c.ListCommands(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, cmd := range list {
		listed = append(listed, cmd.ID)
	}
	slices.Reverse(listed)
	if !slices.Equal(listed, ids[2:]) {
		t.Errorf("listed %q of %q", listed, ids)
	}
	if _, err := c.GetCommand(t.Context(), ids[0]); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("a forgotten command: %v", err)
	}
}

// The same id starts one command, however often it is asked for.
func TestStart_repeated(t *testing.T) {
	t.Parallel()
	c, addr := serve(t, nil)
	id := guest.NewCommandID()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			body := `{"id":"` + id + `","params":{"argv":["sh","-c","echo x >> started; sleep 1000"]}}`
			req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+addr+"/commands", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer token")
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	all.Wait()
	list, err := c.ListCommands(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id {
		t.Errorf("listed %+v, %v", list, err)
	}
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	_, addr := serve(t, nil)
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer token2", "bearer"} {
		for _, path := range []string{"/health", "/commands", "/files/stat?path=/", "/nonsense"} {
			req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", header)
			resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("%q %s: status %d", header, path, resp.StatusCode)
			}
		}
	}
}

func TestPeer(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, func(c *agent.Config) { c.Peer = netip.MustParseAddr("192.0.2.1") })
	if _, err := c.Health(t.Context()); cay.CodeOf(err) != cay.Unavailable {
		t.Errorf("got %v", err)
	}
	c, _ = serve(t, func(c *agent.Config) { c.Peer = netip.MustParseAddr("127.0.0.1") })
	if _, err := c.Health(t.Context()); err != nil {
		t.Errorf("the peer itself: %v", err)
	}
}

func TestLimit_connections(t *testing.T) {
	t.Parallel()
	c, addr := serve(t, func(c *agent.Config) { c.Limits.Connections = 2 })
	var open []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	// The third is closed without an answer once the two were accepted.
	third, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Error("a connection too many was served")
	}
	for _, conn := range open {
		conn.Close()
	}
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := c.Health(t.Context()); err == nil {
			return
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// A program that another process has open for writing for a moment is started all the
// same; a program that stays open is an error.
func TestStart_busyProgram(t *testing.T) {
	root := t.TempDir()
	c, _ := serve(t, func(cfg *agent.Config) { cfg.Root = root })
	open := func(name string) *os.File {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(root, name), os.O_CREATE|os.O_WRONLY, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.WriteString("#!/bin/sh\nexit 7\n"); err != nil {
			t.Fatal(err)
		}
		return f
	}
	open("busy")
	if _, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"./busy"}}); cay.CodeOf(err) != cay.Conflict {
		t.Errorf("a program that stays busy: %v, want conflict", err)
	}
	for {
		f, closed := open("soon"), make(chan time.Duration)
		begun := time.Now()
		time.AfterFunc(10*time.Millisecond, func() {
			f.Close()
			closed <- time.Since(begun)
		})
		cmd, err := c.Start(t.Context(), sandbox.CommandParams{Argv: []string{"./soon"}})
		if after := <-closed; cay.CodeOf(err) == cay.Conflict && after > 60*time.Millisecond {
			continue // the machine is busy: it was open for longer than a start is tried again
		}
		if err != nil {
			t.Fatal(err)
		}
		if cmd, err = c.Wait(t.Context(), cmd.ID); err != nil || cmd.Exit.Code != 7 {
			t.Errorf("%+v, %v", cmd, err)
		}
		return
	}
}
