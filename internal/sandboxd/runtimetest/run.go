package runtimetest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// Config describes the Runtime to test.
type Config struct {
	// New returns a Runtime over the state in dir. Tests call it again with the same dir
	// for a Runtime that adopts an earlier one's machines.
	New func(t *testing.T, dir string) machine.Runtime
	// RootFS is an image with a POSIX shell and the usual tools, in the form that the
	// Runtime takes.
	RootFS string
	// Spec adapts a Spec, and the guest's configuration in it, to the Runtime. May be
	// nil.
	Spec func(*machine.Spec, *guest.Config)
	// Kill ends a machine as a crash does. Nil if that is not possible.
	Kill func(t *testing.T, r machine.Runtime, id string)
	Caps Caps
}

// Caps are the optional features of a Runtime.
type Caps struct {
	// InitExits says that a machine ends when its init does, and that commands
	// can signal init.
	InitExits bool
	// Enforces says that a drive's size limit and read-only mode are enforced, and that
	// memory is bounded.
	Enforces bool
}

// Run tests a Runtime.
func Run(t *testing.T, cfg Config) {
	for name, test := range map[string]func(*testing.T, Config){
		"StartAndDestroy": testStartAndDestroy,
		"FailingStart":    testFailingStart,
		"CanceledStart":   testCanceledStart,
		"WrongToken":      testWrongToken,
		"Concurrent":      testConcurrentStarts,
		"Ends":            testEnds,
		"Adopt":           testAdopt,
		"AdoptPaused":     testAdoptPaused,
		"Reap":            testReap,
		"PauseResume":     testPauseResume,
		"Dial":            testDial,
		"Stats":           testStats,
		"Reconnect":       testReconnect,
		"DiskState":       testDiskState,
		"DamagedState":    testDamagedState,
		"RefusedSave":     testRefusedSave,
		"MemoryState":     testMemoryState,
		"Fork":            testFork,
		"Drives":          testDrives,
		"ArchiveBombs":    testArchiveBombs,
	} {
		t.Run(name, func(t *testing.T) { test(t, cfg) })
	}
	t.Run("Guest", func(t *testing.T) {
		Guest(t, func(t *testing.T) *guest.Client {
			return cfg.start(t, cfg.New(t, t.TempDir())).client
		})
	})
}

// tested is a started instance and a client of its guest.
type tested struct {
	machine.Instance
	spec   machine.Spec
	token  string
	client *guest.Client
}

func (cfg Config) spec() (spec machine.Spec, token string) {
	token = rand.Text()
	id := "m" + strings.ToLower(rand.Text()[:12])
	gc := guest.Config{Hostname: id, TokenSHA256: guest.HashToken(token), WorkDir: "/work"}
	spec = machine.Spec{ID: id, Hostname: id, RootFS: cfg.RootFS, VCPUs: 1, MemoryMB: 512, DiskMB: 256,
		Network: sandbox.Network{Mode: sandbox.DenyAll}}
	if cfg.Spec != nil {
		cfg.Spec(&spec, &gc)
	}
	data, err := json.Marshal(gc)
	if err != nil {
		panic(err)
	}
	spec.GuestConfig = data
	return spec, token
}

func (cfg Config) start(t *testing.T, r machine.Runtime, more ...machine.Mount) tested {
	t.Helper()
	spec, token := cfg.spec()
	spec.Mounts = slices.Concat(spec.Mounts, more)
	in, err := r.Start(testContext(t), spec)
	checktest.OK(t, err)
	return own(t, in, spec, token)
}

func attach(t *testing.T, in machine.Instance, spec machine.Spec, token string) tested {
	c := guest.NewClient(in.DialGuest, token)
	t.Cleanup(c.CloseIdleConnections)
	return tested{Instance: in, spec: spec, token: token, client: c}
}

func wantList(t *testing.T, r machine.Runtime, want ...string) {
	t.Helper()
	got, err := r.List(testContext(t))
	checktest.OK(t, err)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("listed %q, want %q", got, want)
	}
}

func waitDone(t *testing.T, in machine.Instance) machine.Exit {
	t.Helper()
	select {
	case <-in.Done():
		return in.Exit()
	case <-time.After(patience):
		t.Fatal("the machine does not end")
		panic("unreachable")
	}
}

func testStartAndDestroy(t *testing.T, cfg Config) {
	ctx := testContext(t)
	r := cfg.New(t, t.TempDir())
	wantList(t, r)
	m := cfg.start(t, r)
	equal(t, "id", m.ID(), m.spec.ID)
	wantList(t, r, m.ID())
	h, err := m.client.Health(ctx)
	checktest.OK(t, err)
	if h.BootID == "" {
		t.Error("no boot id")
	}
	equal(t, "output", sh(t, m.client, "", "echo hello"), "hello\n")
	_, err = r.Start(ctx, m.spec)
	checktest.Code(t, err, cay.AlreadyExists)
	equal(t, "still there", sh(t, m.client, "", "echo hello"), "hello\n")
	select {
	case <-m.Done():
		t.Fatal("done while it runs")
	default:
	}
	checktest.OK(t, m.Destroy(ctx))
	equal(t, "reason", waitDone(t, m).Reason, sandbox.ReasonRequested)
	checktest.OK(t, m.Destroy(ctx))
	wantList(t, r)
	if _, err := m.DialGuest(ctx); err == nil {
		t.Error("a destroyed machine answers")
	}
	_, err = m.client.Health(ctx)
	checktest.Code(t, err, cay.Unavailable)
}

func testFailingStart(t *testing.T, cfg Config) {
	r := cfg.New(t, t.TempDir())
	spec, _ := cfg.spec()
	spec.GuestConfig = []byte("{}")
	_, err := r.Start(testContext(t), spec)
	if err == nil {
		t.Fatal("a guest without configuration started")
	}
	wantList(t, r)
}

func testCanceledStart(t *testing.T, cfg Config) {
	r := cfg.New(t, t.TempDir())
	spec, _ := cfg.spec()
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := r.Start(ctx, spec); err == nil {
		t.Fatal("started though nobody wanted it")
	}
	wantList(t, r)
}

func testWrongToken(t *testing.T, cfg Config) {
	m := cfg.start(t, cfg.New(t, t.TempDir()))
	for _, token := range []string{"", "wrong", m.token + "x"} {
		c := guest.NewClient(m.DialGuest, token)
		_, err := c.Health(testContext(t))
		if err == nil {
			t.Errorf("token %q was taken", token)
		}
		c.CloseIdleConnections()
	}
}

func testConcurrentStarts(t *testing.T, cfg Config) {
	r := cfg.New(t, t.TempDir())
	var all sync.WaitGroup
	var mu sync.Mutex
	var started []machine.Instance
	for range 8 {
		all.Go(func() {
			spec, token := cfg.spec()
			in, err := r.Start(testContext(t), spec)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			started = append(started, in)
			mu.Unlock()
			c := guest.NewClient(in.DialGuest, token)
			defer c.CloseIdleConnections()
			if _, err := c.WriteFile(testContext(t), "id", strings.NewReader(spec.ID), sandbox.WriteParams{}); err != nil {
				t.Error(err)
			}
			body, _, err := c.ReadFile(testContext(t), "id", sandbox.ReadParams{})
			if err != nil {
				t.Error(err)
				return
			}
			defer body.Close()
			if data, err := io.ReadAll(body); err != nil || string(data) != spec.ID {
				t.Errorf("read %q, %v; wrote %q", data, err, spec.ID)
			}
		})
	}
	all.Wait()
	for _, in := range started {
		checktest.OK(t, in.Destroy(testContext(t)))
	}
	wantList(t, r)
}

func testEnds(t *testing.T, cfg Config) {
	t.Run("Crash", func(t *testing.T) {
		if cfg.Kill == nil {
			t.Skip("this runtime's machines cannot be crashed")
		}
		r := cfg.New(t, t.TempDir())
		m := cfg.start(t, r)
		o, err := m.client.Exec(testContext(t), sandbox.CommandParams{Argv: []string{"sleep", "1000"}})
		checktest.OK(t, err)
		defer o.Close()
		_, err = o.Next()
		checktest.OK(t, err)
		cfg.Kill(t, r, m.ID())
		equal(t, "reason", waitDone(t, m).Reason, sandbox.ReasonCrashed)
		ended := make(chan error, 1)
		go func() {
			_, err := o.Next()
			ended <- err
		}()
		select {
		case err := <-ended:
			if err == nil || err == io.EOF {
				t.Errorf("output of a crashed machine ends with %v", err)
			}
		case <-time.After(patience / 2): // silent connections end, too, but after 1 min
			t.Error("whoever reads output of a crashed machine is not told")
		}
		checktest.OK(t, m.Destroy(testContext(t)))
		equal(t, "reason after destroy", m.Exit().Reason, sandbox.ReasonCrashed)
		wantList(t, r)
	})
	t.Run("Init", func(t *testing.T) {
		if !cfg.Caps.InitExits {
			t.Skip("this runtime's machines have no init")
		}
		r := cfg.New(t, t.TempDir())
		m := cfg.start(t, r)
		cmd, err := m.client.Start(testContext(t), sandbox.CommandParams{Argv: []string{"kill", "-TERM", "1"}, User: "root"})
		checktest.OK(t, err)
		exit := waitDone(t, m)
		equal(t, "reason", exit.Reason, sandbox.ReasonExited)
		t.Logf("after %s: %+v", cmd.ID, exit)
	})
}

func testAdopt(t *testing.T, cfg Config) {
	ctx := testContext(t)
	dir := t.TempDir()
	old := cfg.New(t, dir)
	m := cfg.start(t, old)
	write(t, m.client, "file", "kept")
	o, err := m.client.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo before; read line; echo $line; exit 4"}, Stdin: true})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	ev, err := o.Next()
	checktest.OK(t, err)
	checktest.OK(t, o.Close())
	checktest.OK(t, m.Detach())
	m.client.CloseIdleConnections()
	checktest.OK(t, old.Close())

	r := cfg.New(t, dir)
	wantList(t, r, m.ID())
	_, err = r.Adopt(ctx, "nosuchmachine")
	checktest.Code(t, err, cay.NotFound)
	in, err := r.Adopt(ctx, m.ID())
	checktest.OK(t, err)
	n := attach(t, in, m.spec, m.token)
	equal(t, "file", read(t, n.client, "file"), "kept")
	// The command has continued, and its output continues at the old reader's cursor.
	id := first.Command.ID
	rest, err := n.client.Output(ctx, id, sandbox.OutputParams{Cursor: ev.Cursor + int64(len(ev.Data)), Follow: true})
	checktest.OK(t, err)
	checktest.OK(t, n.client.WriteStdin(ctx, id, strings.NewReader("after\n"), true))
	got := collect(t, rest)
	equal(t, "output", got.stdout, "after\n")
	equal(t, "code", got.exit.Code, 4)
	checktest.OK(t, in.Destroy(ctx))
	wantList(t, r)
	_, err = r.Adopt(ctx, m.ID())
	checktest.Code(t, err, cay.NotFound)
}

func testReap(t *testing.T, cfg Config) {
	ctx := testContext(t)
	dir := t.TempDir()
	old := cfg.New(t, dir)
	m := cfg.start(t, old)
	checktest.OK(t, m.Detach())
	checktest.OK(t, old.Close())
	r := cfg.New(t, dir)
	checktest.OK(t, r.Reap(ctx, "nosuchmachine"))
	wantList(t, r, m.ID())
	checktest.OK(t, r.Reap(ctx, m.ID()))
	wantList(t, r)
	checktest.OK(t, r.Reap(ctx, m.ID()))
	_, err := r.Adopt(ctx, m.ID())
	checktest.Code(t, err, cay.NotFound)
}

func testPauseResume(t *testing.T, cfg Config) {
	ctx := testContext(t)
	m := cfg.start(t, cfg.New(t, t.TempDir()))
	o, err := m.client.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"}})
	checktest.OK(t, err)
	defer o.Close()
	var text strings.Builder
	read := func(lines int) {
		t.Helper()
		for strings.Count(text.String(), "\n") < lines {
			ev, err := o.Next()
			checktest.OK(t, err)
			text.Write(ev.Data)
		}
	}
	read(3)
	begun := time.Now()
	_, err = m.client.Health(ctx)
	checktest.OK(t, err)
	long := 300*time.Millisecond + 10*time.Since(begun) // answers are slow on a busy machine
	checktest.OK(t, m.Pause(ctx))
	checktest.OK(t, m.Pause(ctx)) // calls do not nest
	wantPaused(t, m, true)
	short, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	if _, err := m.client.Health(short); err == nil {
		t.Error("a paused machine answers")
	}
	checktest.OK(t, m.Resume(ctx))
	wantPaused(t, m, false)
	checktest.OK(t, m.Resume(ctx))
	// The stream continues without a gap.
	read(strings.Count(text.String(), "\n") + 5)
	lines := strings.Split(text.String(), "\n")
	for i, line := range lines[:len(lines)-1] {
		equal(t, "line", line, fmt.Sprint(i+1))
	}
	equal(t, "after resume", sh(t, m.client, "", "echo hello"), "hello\n")
	checktest.OK(t, m.Pause(ctx))
	checktest.OK(t, m.Destroy(ctx))
	equal(t, "reason", waitDone(t, m).Reason, sandbox.ReasonRequested)
}

func wantPaused(t *testing.T, in machine.Instance, want bool) {
	t.Helper()
	if paused, sure := in.Paused(); paused != want || !sure {
		t.Errorf("the machine is paused: %v, for sure: %v; want %v", paused, sure, want)
	}
}

// A Runtime that adopts a machine knows whether it is paused.
func testAdoptPaused(t *testing.T, cfg Config) {
	ctx := testContext(t)
	dir := t.TempDir()
	old := cfg.New(t, dir)
	m := cfg.start(t, old)
	wantPaused(t, m, false)
	checktest.OK(t, m.Pause(ctx))
	checktest.OK(t, m.Detach())
	m.client.CloseIdleConnections()
	checktest.OK(t, old.Close())

	next := cfg.New(t, dir)
	in, err := next.Adopt(ctx, m.ID())
	checktest.OK(t, err)
	wantPaused(t, in, true)
	checktest.OK(t, in.Resume(ctx))
	n := attach(t, in, m.spec, m.token)
	equal(t, "after resume", sh(t, n.client, "", "echo hello"), "hello\n")
	checktest.OK(t, in.Detach())
	n.client.CloseIdleConnections()
	checktest.OK(t, next.Close())

	in, err = cfg.New(t, dir).Adopt(ctx, m.ID())
	checktest.OK(t, err)
	wantPaused(t, in, false)
	checktest.OK(t, in.Destroy(ctx))
}

func testDial(t *testing.T, cfg Config) {
	ctx := testContext(t)
	m := cfg.start(t, cfg.New(t, t.TempDir()))
	_, err := m.Dial(ctx, 9)
	checktest.Code(t, err, cay.Unavailable)
	has := run(t, m.client, sandbox.CommandParams{Argv: []string{"sh", "-c", "command -v python3"}})
	if has.exit.Code != 0 {
		t.Skip("the image has no program to listen with")
	}
	o, err := m.client.Exec(ctx, sandbox.CommandParams{Argv: []string{"python3", "-c", `
import socket
s = socket.create_server(("0.0.0.0", 0)); print(s.getsockname()[1], flush=True)
c, _ = s.accept(); c.sendall(b"you said " + c.recv(100)); c.close()`}})
	checktest.OK(t, err)
	defer o.Close()
	_, err = o.Next()
	checktest.OK(t, err)
	ev, err := o.Next()
	checktest.OK(t, err)
	var port uint16
	_, err = fmt.Sscan(string(ev.Data), &port)
	checktest.OK(t, err)
	conn, err := m.Dial(ctx, port)
	checktest.OK(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("hello"))
	checktest.OK(t, err)
	answer, err := io.ReadAll(conn)
	checktest.OK(t, err)
	equal(t, "answer", string(answer), "you said hello")
}

func testStats(t *testing.T, cfg Config) {
	ctx := testContext(t)
	m := cfg.start(t, cfg.New(t, t.TempDir()))
	sh(t, m.client, "", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
	st, err := m.Stats(ctx)
	checktest.OK(t, err)
	if st.CPU <= 0 || st.MemoryBytes <= 0 || st.MemoryPeak < 0 || st.DiskBytes < 0 || st.Processes < 0 {
		t.Errorf("implausible: %+v", st)
	}
	checktest.OK(t, m.SetNetwork(sandbox.Network{Mode: sandbox.AllowAll}))
}

// A client survives the loss of its connections.
func testReconnect(t *testing.T, cfg Config) {
	ctx := testContext(t)
	m := cfg.start(t, cfg.New(t, t.TempDir()))
	link := &breakable{dial: m.DialGuest}
	c := guest.NewClient(link.Dial, m.token)
	t.Cleanup(c.CloseIdleConnections)
	o, err := c.Exec(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c",
		"i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); done; read x; while [ $i -lt 4000 ]; do echo $i; i=$((i+1)); done"}, Stdin: true})
	checktest.OK(t, err)
	first, err := o.Next()
	checktest.OK(t, err)
	var want, got strings.Builder
	for i := range 4000 {
		fmt.Fprintln(&want, i)
	}
	half := strings.Index(want.String(), "2000\n")
	for got.Len() < half {
		ev, err := o.Next()
		checktest.OK(t, err)
		got.Write(ev.Data)
		link.Break()
	}
	// Idempotent calls succeed in spite of that, too.
	_, err = c.GetCommand(ctx, first.Command.ID)
	checktest.OK(t, err)
	link.Break()
	checktest.OK(t, c.WriteStdin(ctx, first.Command.ID, strings.NewReader("go\n"), false))
	r := collect(t, o)
	got.WriteString(r.stdout)
	if got.String() != want.String() {
		t.Errorf("got %d bytes, want %d without loss or repetition", got.Len(), want.Len())
	}
	equal(t, "code", r.exit.Code, 0)
	link.Break()
	_, err = c.Health(ctx)
	checktest.OK(t, err)
}
