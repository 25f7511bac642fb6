package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// configured returns the spec of another machine like f, with a changed configuration of
// the guest.
func (f *forkable) configured(t *testing.T, change func(*guest.Config)) machine.Spec {
	t.Helper()
	spec := f.another()
	var gc guest.Config
	if err := json.Unmarshal(spec.GuestConfig, &gc); err != nil {
		t.Fatal(err)
	}
	change(&gc)
	spec.Hostname = gc.Hostname
	var err error
	if spec.GuestConfig, err = json.Marshal(gc); err != nil {
		t.Fatal(err)
	}
	return spec
}

// startFrom starts a machine from files.
func (f *forkable) startFrom(t *testing.T, spec machine.Spec, dir string) box {
	t.Helper()
	in, err := f.runtime.StartFrom(t.Context(), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	return f.own(t, in)
}

// want runs a script as root and checks its output.
func (b box) want(t *testing.T, name, script, want string) {
	t.Helper()
	if out, code := b.root(t, script); strings.TrimSpace(out) != want || code != 0 {
		t.Errorf("%s: %s: %q, exit code %d, want %q", name, script, out, code, want)
	}
}

// /tmp is a directory of the disk, where programs can work as usual.
func TestTmp(t *testing.T) {
	f := openForkable(t, func(s *machine.Spec) { s.DiskMB = 64 })
	h, err := f.Health(t.Context())
	if err != nil || h.Problem != "" {
		t.Fatalf("%+v, %v", h, err)
	}
	for name, script := range map[string]string{
		"no mount":   `! grep ' /tmp ' /proc/mounts`,
		"mode":       `test "$(stat -c '%a %U' /tmp)" = "1777 root"`,
		"for all":    `sudo -u nobody touch /tmp/nobodys && ! sudo -u vercel-sandbox rm -f /tmp/nobodys 2>/dev/null && test -e /tmp/nobodys`,
		"programs":   `printf '#!/bin/sh\necho ran' > /tmp/program && chmod +x /tmp/program && test "$(/tmp/program)" = ran && cp /bin/true /tmp/true && /tmp/true`,
		"temporary":  `python3 -c 'import tempfile; f = tempfile.TemporaryFile(); f.write(b"x"); f.seek(0); assert f.read() == b"x"'`,
		"sockets":    `python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("/tmp/s"); s.listen(); c = socket.socket(socket.AF_UNIX); c.connect("/tmp/s"); a, _ = s.accept(); c.send(b"x"); assert a.recv(1) == b"x"'`,
		"pipes":      `mkfifo /tmp/p && { echo x > /tmp/p & test "$(cat /tmp/p)" = x; }`,
		"locks":      `flock /tmp/lock true`,
		"mapped":     `python3 -c 'import mmap; f = open("/tmp/m", "w+b"); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096); m[0:1] = b"x"; m.flush(); assert open("/tmp/m", "rb").read(1) == b"x"'`,
		"attributes": `python3 -c 'import os; open("/tmp/a", "w"); os.setxattr("/tmp/a", "user.k", b"v"); assert os.getxattr("/tmp/a", "user.k") == b"v"'`,
		"renames":    `mkdir /tmp/d && touch /root/f && mv /root/f /tmp/d/f && mv /tmp/d /root/d && rm -r /root/d`,
	} {
		if out, code := f.root(t, script); code != 0 {
			t.Errorf("%s: %s", name, out)
		}
	}
	f.want(t, "full", `head -c 100000000 /dev/zero > /tmp/big; rm /tmp/big; echo on`, "head: error writing 'standard output': No space left on device\non")
}

// A sandbox that starts again keeps its identity and edited files; a sandbox that starts
// from another sandbox's files gets a new identity.
func TestStartFrom_Identity(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	one := func(c *guest.Config) { c.Sandbox, c.Hostname = "sbx_1", "one" }
	if _, code := f.root(t, "echo below > /tmp/kept"); code != 0 {
		t.Fatal("/tmp is read-only")
	}
	f.box = f.startFrom(t, f.configured(t, one), f.saveDisk(t)) // from files of a machine without a sandbox
	f.want(t, "new", "cat /etc/hostname; uname -n; grep -c 127.0.1.1.one /etc/hosts; cat /tmp/kept; stat -c %a /tmp", "one\none\n1\nbelow\n1777")
	const edit = `echo 192.0.2.9 db >> /etc/hosts; echo "search example.com" >> /etc/resolv.conf; cat /etc/machine-id`
	id, _ := f.root(t, edit)
	dir := f.saveDisk(t)
	again := f.startFrom(t, f.configured(t, one), dir)
	again.want(t, "again", "cat /etc/machine-id; tail -n 2 /etc/hosts; tail -n 1 /etc/resolv.conf; uname -n",
		id+"127.0.1.1\tone\n192.0.2.9 db\nsearch example.com\none")
	other := f.startFrom(t, f.configured(t, func(c *guest.Config) { c.Sandbox, c.Hostname = "sbx_2", "two" }), dir)
	other.want(t, "other", "tail -n 2 /etc/hosts; tail -n 1 /etc/resolv.conf; uname -n; cat /etc/hostname", "127.0.1.1\ttwo\n192.0.2.9 db\nsearch example.com\ntwo\ntwo")
	if out, _ := other.root(t, "cat /etc/machine-id"); out == id {
		t.Error("another sandbox has the same machine id")
	}
	for _, b := range []box{again, other} {
		if h, err := b.Health(t.Context()); err != nil || h.Problem != "" {
			t.Errorf("%+v, %v", h, err)
		}
	}
}

// Copies of a running machine become machines of their own, and their programs
// go on, with terminals, watches, pipes and timeouts.
func TestRestore_Guest(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	start := func(p sandbox.CommandParams) string {
		t.Helper()
		cmd, err := f.Start(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return cmd.ID
	}
	terminal := start(sandbox.CommandParams{Argv: []string{"bash", "--norc"}, PTY: &sandbox.WindowSize{Cols: 80, Rows: 24}})
	filter := start(sandbox.CommandParams{Argv: []string{"sed", "-u", "s/^/got /"}, Stdin: true})
	watcher := start(sandbox.CommandParams{Argv: []string{"python3", "-uc", `
import ctypes, os
libc = ctypes.CDLL(None)
fd = libc.inotify_init()
os.makedirs("/tmp/watched")
assert libc.inotify_add_watch(fd, b"/tmp/watched", 0x100) >= 0
print("ready")
os.read(fd, 4096)
print("seen")
`}})
	const timeout = 6 * time.Second
	began := time.Now()
	timed := start(sandbox.CommandParams{Argv: []string{"sleep", "1000"}, Timeout: sandbox.Duration(timeout)})
	f.said(t, watcher, "ready")
	events, err := f.Watch(t.Context(), "/tmp", sandbox.WatchParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Close()
	dir := f.checkpoint(t)
	ran := time.Since(began)
	f.CloseIdleConnections()
	if err := f.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-time.After(timeout + time.Second) // the test needs the clock to jump
	ids := map[string]bool{}
	for i, name := range []string{"two", "three"} {
		spec := f.another()
		spec.Hostname = name
		restored := time.Now()
		in, err := f.runtime.Restore(t.Context(), spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		b := f.own(t, in)
		id, err := b.Identify(t.Context(), guest.IdentityRequest{Sandbox: name, Hostname: name}, "token-"+name)
		if err != nil || id.Problem != "" || ids[id.MachineID] || ids[id.BootID] {
			t.Fatalf("%+v, %v", id, err)
		}
		t.Logf("becoming another machine took %v", time.Since(restored))
		ids[id.MachineID], ids[id.BootID] = true, true
		// On a busy machine the command may have run up to its timeout.
		if cmd, err := b.GetCommand(t.Context(), timed); err != nil || cmd.Exit != nil && ran+time.Since(restored) < timeout {
			t.Errorf("%s: after %v: %+v, %v", name, time.Since(restored), cmd, err)
		}
		b.want(t, name, "uname -n; cat /etc/hostname; grep -c 127.0.1.1.$(uname -n) /etc/hosts", name+"\n"+name+"\n1")
		if err := b.WriteStdin(t.Context(), terminal, strings.NewReader("echo $((6*7)); tty\n"), false); err != nil {
			t.Fatal(err)
		}
		b.said(t, terminal, "42")
		b.said(t, terminal, "/dev/pts/")
		if err := b.Resize(t.Context(), terminal, sandbox.WindowSize{Cols: 100, Rows: 30}); err != nil {
			t.Error(err)
		}
		if err := b.WriteStdin(t.Context(), filter, strings.NewReader("it\n"), true); err != nil {
			t.Fatal(err)
		}
		b.said(t, filter, "got it")
		// The agent notices that the clients of the original machine are gone.
		b.want(t, name, "for i in $(seq 1200); do n=$(ls -l /proc/1/fd | grep -c inotify); [ $n = 0 ] && break; sleep 0.05; done; echo $n", "0")
		again, err := b.Watch(t.Context(), "/tmp", sandbox.WatchParams{})
		if err != nil {
			t.Fatal(err)
		}
		if _, code := b.root(t, "touch /tmp/watched/file /tmp/new"); code != 0 {
			t.Error("touch failed")
		}
		b.said(t, watcher, "seen")
		if ev, err := again.Next(); err != nil || ev.Path != "/tmp/new" {
			t.Errorf("%+v, %v", ev, err)
		}
		again.Close()
		if i > 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd, err := b.Wait(ctx, timed)
		cancel()
		if err != nil || !cmd.Exit.TimedOut {
			t.Errorf("%s: %+v, %v after %v", name, cmd, err, time.Since(restored))
		}
	}
}

// A pause does not count towards timeouts.
func TestPause_Timeout(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	const timeout = 4 * time.Second
	began := time.Now()
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sleep", "1000"}, Timeout: sandbox.Duration(timeout)})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ran := time.Since(began)
	<-time.After(timeout + time.Second) // the test needs the clock to jump
	resumed := time.Now()
	if err := f.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.want(t, "machine", "sleep 0.5", "")
	// On a busy machine the command may have run up to its timeout.
	if cmd, err = f.GetCommand(t.Context(), cmd.ID); err != nil || cmd.Exit != nil && ran+time.Since(resumed) < timeout {
		t.Errorf("%+v, %v", cmd, err)
	}
	if cmd, err = f.Wait(t.Context(), cmd.ID); err != nil || !cmd.Exit.TimedOut {
		t.Errorf("%+v, %v", cmd, err)
	}
}

// Before its files are saved, all processes of a machine end, of any kind, and deleted
// files take no disk space any more.
func TestQuiesce(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	if out, code := f.root(t, `cd /tmp
python3 -c 'import os, time; f = open("/deleted", "wb"); f.write(b"x" * 30000000); f.flush(); os.unlink("/deleted"); open("/tmp/up", "w"); time.sleep(1000)' >/dev/null 2>&1 &
(trap "" TERM HUP; exec setsid sleep 2000) >/dev/null 2>&1 &
unshare -pf --mount-proc sleep 3000 >/dev/null 2>&1 &
until test -e /tmp/up; do sleep 0.01; done`); code != 0 {
		t.Fatal(out)
	}
	q, err := f.Quiesce(t.Context(), time.Second)
	if err != nil || q.Killed == 0 {
		t.Fatalf("%+v, %v", q, err)
	}
	t.Logf("killed: %+v", q)
	h, err := f.Health(t.Context())
	if err != nil || h.Processes != 1 || h.DiskBytes > 20<<20 {
		t.Errorf("%+v, %v", h, err)
	}
	dir := f.saveDisk(t)
	b := f.startFrom(t, f.another(), dir)
	b.want(t, "next", "ls /tmp", "up")
}

// said waits until a command has written something, from the start of its output.
func (b box) said(t *testing.T, id, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := b.Output(ctx, id, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var text string
	for !strings.Contains(text, what) {
		ev, err := out.Next()
		if errors.Is(err, io.EOF) || err == nil && ev.Exit != nil {
			t.Fatalf("it ended after %q", text)
		}
		if err != nil {
			t.Fatalf("it said %q, then: %v", text, err)
		}
		text += string(ev.Data)
	}
}
