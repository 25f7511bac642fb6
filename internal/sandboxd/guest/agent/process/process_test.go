package process_test

import (
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent/process"
)

// starter is Start, or what takes its place on other architectures.
type starter func(process.Program) (int, error)

// each runs a test of Start with both.
func each(t *testing.T, test func(*testing.T, starter)) {
	t.Run("Start", func(t *testing.T) { test(t, process.Start) })
	t.Run("Portable", func(t *testing.T) { test(t, process.StartPortable) })
}

// run starts a program, and returns its output and its status.
func (start starter) run(t *testing.T, p process.Program) (string, syscall.WaitStatus) {
	t.Helper()
	null := checktest.Must(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer null.Close()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	defer r.Close()
	p.Stdio = [3]int{int(null.Fd()), int(w.Fd()), int(w.Fd())}
	pid := checktest.Must(start(p))(t)
	w.Close()
	out := checktest.Must(io.ReadAll(r))(t)
	var ws syscall.WaitStatus
	checktest.Must(syscall.Wait4(pid, &ws, 0, nil))(t)
	return string(out), ws
}

func shell(script string) process.Program {
	return process.Program{Path: "/bin/sh", Args: []string{"sh", "-c", script}, Env: []string{"A=b c"}, Dir: "/"}
}

func TestStart(t *testing.T) { each(t, testStart) }

func testStart(t *testing.T, start starter) {
	p := shell("echo $A; pwd >&2; wc -c; exit 7")
	p.Dir = t.TempDir()
	out, ws := start.run(t, p)
	if want := "b c\n" + p.Dir + "\n0\n"; out != want || ws.ExitStatus() != 7 {
		t.Errorf("wrote %q and ended with %#x, want %q and 7", out, ws, want)
	}
}

func TestStart_session(t *testing.T) { each(t, testStart_session) }

func testStart_session(t *testing.T, start starter) {
	out, _ := start.run(t, shell("cut -d' ' -f1,5,6 /proc/$$/stat"))
	ids := strings.Fields(out)
	if len(ids) != 3 || ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("process, group and session are %q, want three times the same", ids)
	}
}

// set returns a set of signals from a process's status.
func set(status, name string) string {
	_, rest, _ := strings.Cut(status, "\n"+name+":\t")
	set, _, _ := strings.Cut(rest, "\n")
	return set
}

// A child does not handle the signals that this process handles; it ignores the signals
// that this process ignores; no signal is blocked.
func TestStart_signals(t *testing.T) { each(t, testStart_signals) }

func testStart_signals(t *testing.T, start starter) {
	came := make(chan os.Signal, 1)
	signal.Notify(came)
	defer signal.Stop(came)
	out, _ := start.run(t, shell("exec cat /proc/self/status"))
	own := string(checktest.Must(os.ReadFile("/proc/self/status"))(t))
	const none = "0000000000000000"
	for name, want := range map[string]string{"SigBlk": none, "SigCgt": none, "SigIgn": set(own, "SigIgn")} {
		if got := set(out, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if _, ws := start.run(t, shell("kill -TERM $$")); ws.Signal() != syscall.SIGTERM {
		t.Errorf("SIGTERM ended it with %#x", ws)
	}
}

func TestStart_user(t *testing.T) { each(t, testStart_user) }

func testStart_user(t *testing.T, start starter) {
	if os.Getuid() != 0 {
		t.Skip("only root can run programs as others")
	}
	p := shell("id -u; id -g; id -G")
	p.User = &process.User{UID: 1234, GID: 2345, Groups: []uint32{2345, 3456}}
	if out, _ := start.run(t, p); out != "1234\n2345\n2345 3456\n" {
		t.Errorf("runs as %q", out)
	}
	p.User.Groups = nil
	if out, _ := start.run(t, p); out != "1234\n2345\n2345\n" {
		t.Errorf("without groups it runs as %q", out)
	}
	p.Dir = t.TempDir()
	if err := os.Chmod(p.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := start(p); err != syscall.EACCES {
		t.Errorf("begun in a directory of root's: %v, want %v", err, syscall.EACCES)
	}
}

func TestStart_failures(t *testing.T) { each(t, testStart_failures) }

func testStart_failures(t *testing.T, start starter) {
	notExecutable := t.TempDir() + "/file"
	if err := os.WriteFile(notExecutable, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	null := checktest.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	fd := int(null.Fd())
	for name, c := range map[string]struct {
		change func(*process.Program)
		want   error
	}{
		"no program":     {func(p *process.Program) { p.Path = "/nowhere/sh" }, syscall.ENOENT},
		"not executable": {func(p *process.Program) { p.Path = notExecutable }, syscall.EACCES},
		"no directory":   {func(p *process.Program) { p.Dir = "/nowhere" }, syscall.ENOENT},
		"no descriptor":  {func(p *process.Program) { p.Stdio[2] = 1 << 20 }, syscall.EBADF},
		"no terminal":    {func(p *process.Program) { p.Terminal = true }, syscall.ENOTTY},
		"NUL":            {func(p *process.Program) { p.Args[1] = "a\x00b" }, syscall.EINVAL},
	} {
		p := shell("exit 0")
		p.Stdio = [3]int{fd, fd, fd}
		c.change(&p)
		if pid, err := start(p); err != c.want {
			t.Errorf("%s: %d, %v, want %v", name, pid, err, c.want)
		}
	}
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("children are left: %v", err)
	}
}

func TestAwaitExit(t *testing.T) {
	null := checktest.Must(os.OpenFile(os.DevNull, os.O_RDWR, 0))(t)
	defer null.Close()
	fd := int(null.Fd())
	p := shell("exit 3")
	p.Stdio = [3]int{fd, fd, fd}
	pid := checktest.Must(process.Start(p))(t)
	for _, which := range []int{pid, 0, pid} { // it stays a zombie
		if got, err := process.AwaitExit(which); got != pid || err != nil {
			t.Errorf("waiting for %d: %d, %v, want %d", which, got, err, pid)
		}
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 3 {
		t.Errorf("it ended with %#x, %v", ws, err)
	}
	if got, err := process.AwaitExit(0); err != syscall.ECHILD {
		t.Errorf("without children: %d, %v, want %v", got, err, syscall.ECHILD)
	}
}

// Programs are started from many goroutines, while other goroutines use the memory that
// the children share for a moment.
func TestStart_concurrently(t *testing.T) { each(t, testStart_concurrently) }

func testStart_concurrently(t *testing.T, start starter) {
	done := make(chan struct{})
	const starters, each = 8, 25
	for range starters {
		go func() {
			defer func() { done <- struct{}{} }()
			for range each {
				if _, ws := start.run(t, shell("exit 3")); ws.ExitStatus() != 3 {
					t.Errorf("ended with %#x", ws)
				}
			}
		}()
	}
	for left := starters; left > 0; {
		select {
		case <-done:
			left--
		default:
			_ = make([]byte, 64<<10)
		}
	}
}

func BenchmarkStart(b *testing.B) {
	null := checktest.Must(os.OpenFile(os.DevNull, os.O_RDWR, 0))(b)
	defer null.Close()
	fd := int(null.Fd())
	p := process.Program{Path: "/bin/true", Args: []string{"true"}, Dir: "/", Stdio: [3]int{fd, fd, fd}}
	for b.Loop() {
		pid := checktest.Must(process.Start(p))(b)
		checktest.Must(syscall.Wait4(pid, nil, 0, nil))(b)
	}
}
