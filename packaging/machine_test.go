package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// machine is a new Debian in a mount namespace of its own, with the programs of a minimal
// installation, as a user meets it. It shares network, processes and cgroups with this
// machine.
type machine struct {
	t    *testing.T
	dir  string
	pid  string // of the process that keeps the namespace
	env  []string
	url  string // of the API
	unit *service
	// spaces are options of nsenter, for namespaces beside the mount namespace.
	spaces []string
}

// enter makes the directory in $1 the root of a mount namespace. A change of the root alone
// would not do: the kernel makes no user namespaces for processes in one.
const enter = `set -e
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"; mount --rbind /sys "$1/sys"; mount --rbind /dev "$1/dev"; mount -t tmpfs tmpfs "$1/run"
cd "$1"; mkdir -p .old; pivot_root . .old; umount -l /.old; rmdir /.old
echo entered $$
exec sleep infinity`

// newMachine makes a Debian 13 in which no service manager runs.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := unpackMachine(t)
	m.enter(exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", enter, "sh", m.dir))
	t.Cleanup(func() {
		if m.unit != nil {
			m.unit.stop()
		}
		m.try("cay", "reap")
	})
	return m
}

// unpackMachine makes the files of a Debian 13. Their archive is kept in .cache.
func unpackMachine(t *testing.T) *machine {
	t.Helper()
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := filepath.Abs("../.cache/install-test/trixie.tar")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
			t.Fatal(err)
		}
		output(t, ".", nil, "mmdebstrap", "--variant=minbase", "--include=ca-certificates,systemd", "--format=tar", "trixie", base+".new")
		if err := os.Rename(base+".new", base); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "cay-install-*")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{t: t, dir: dir, url: "http://127.0.0.1:7070", env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}}
	output(t, ".", nil, "tar", "-xf", base, "-C", dir)
	// How this machine reaches the archives.
	for _, f := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt"} {
		b, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, f), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// Node.js comes from a registry of npm, which a machine without npm has to name.
	if out, err := exec.Command("npm", "config", "get", "registry").Output(); err == nil {
		m.env = append(m.env, "NPM_CONFIG_REGISTRY="+strings.TrimSpace(string(out)))
	}
	return m
}

// enter starts the process that keeps the machine's namespaces. Its first line is "entered"
// and the id of a process in them.
func (m *machine) enter(keeper *exec.Cmd) {
	t := m.t
	t.Helper()
	stdout, err := keeper.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	keeper.Stderr = os.Stderr
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := keeper.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = keeper.Wait() // it was killed
		if err := os.RemoveAll(m.dir); err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if _, serr := fmt.Sscanf(line, "entered %s", &m.pid); serr != nil {
		t.Fatalf("the new root was not entered: %q, %v", line, err)
	}
}

// command returns a command that runs on the machine.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", slices.Concat([]string{"--target", m.pid, "--mount", "--root", "--wdns=/"}, m.spaces, []string{name}, args)...)
	cmd.Env = m.env
	return cmd
}

// try runs a command and returns its output and its error.
func (m *machine) try(name string, args ...string) (string, error) {
	out, err := m.command(name, args...).CombinedOutput()
	return string(out), err
}

// run runs a command that must succeed, and shows it as a transcript.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	began := time.Now()
	out, err := m.try(name, args...)
	shown := strings.Split(strings.TrimSpace(out), "\n")
	m.t.Logf("# %s %s  (%.1f s)\n%s", name, strings.Join(args, " "), time.Since(began).Seconds(), strings.Join(shown[max(0, len(shown)-8):], "\n"))
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return out
}

// bring copies a file to the machine, into the directory /root.
func (m *machine) bring(path string) string {
	m.t.Helper()
	to := filepath.Join("/root", filepath.Base(path))
	output(m.t, ".", nil, "cp", path, filepath.Join(m.dir, "root"))
	return to
}

// files lists what is on the machine outside of directories that every installation fills.
func (m *machine) files() string {
	m.t.Helper()
	return m.run("sh", "-c", `find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /root -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune -o -print | sort | grep -v -E '/__pycache__|/etc/(ld.so.cache|ssl/certs)' || true`)
}

// service plays the part of systemd for the unit that is installed: ExecStart, notices,
// ExecReload, KillMode=process.
type service struct {
	m       *machine
	cmd     *exec.Cmd
	conn    *net.UnixConn
	log     *os.File
	notices chan string
	// next is the process that has taken over from cmd, as a file that can be polled for its
	// end; nil before.
	next *os.File
	pid  int
}

var (
	execStart = regexp.MustCompile(`(?m)^ExecStart=(.*)$`)
	bounding  = regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`)
)

// start starts the unit, and returns when it is ready.
func (m *machine) start() {
	m.t.Helper()
	unit := m.run("cat", "/usr/lib/systemd/system/cay.service")
	set := "-all"
	for c := range strings.FieldsSeq(bounding.FindStringSubmatch(unit)[1]) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	args := append([]string{"setpriv", "--no-new-privs", "--bounding-set=" + set}, strings.Fields(execStart.FindStringSubmatch(unit)[1])...)
	// The notices' socket is below /root, which both sides see; /run is the machine's own.
	socket := filepath.Join(m.dir, "root", "notify")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	// A file, since the daemon that takes over inherits it: a pipe would stay open.
	log, err := os.Create(filepath.Join(m.t.TempDir(), "log"))
	if err != nil {
		m.t.Fatal(err)
	}
	s := &service{m: m, conn: conn, log: log, notices: make(chan string, 100)}
	s.cmd = m.command(args[0], args[1:]...)
	s.cmd.Env = append(s.cmd.Env, "NOTIFY_SOCKET=/root/notify", "WATCHDOG_USEC=4000000")
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.unit, s.pid = s, s.cmd.Process.Pid
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				close(s.notices)
				return
			}
			s.notices <- string(b[:n])
		}
	}()
	s.wait("READY=1")
}

// wait returns the next notice that contains want.
func (s *service) wait(want string) string {
	s.m.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case <-timeout:
			s.m.t.Fatalf("no notice %s; the log:\n%s", want, s.logged())
		case got, open := <-s.notices:
			if !open {
				s.m.t.Fatalf("no notice %s; the log:\n%s", want, s.logged())
			}
			if strings.Contains(got, want) {
				return got
			}
		}
	}
}

// logged returns what the daemons of the unit have logged.
func (s *service) logged() string {
	b, err := os.ReadFile(s.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var mainPID = regexp.MustCompile(`(?m)^MAINPID=([0-9]+)$`)

// follow takes note of the process that has taken over from the unit's first one.
func (s *service) follow() {
	s.m.t.Helper()
	pid, err := strconv.Atoi(mainPID.FindStringSubmatch(s.wait("MAINPID="))[1])
	if err != nil {
		s.m.t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		s.m.t.Fatalf("process %d, which has taken over: %v\n%s", pid, err, s.logged())
	}
	s.next, s.pid = os.NewFile(uintptr(fd), "pidfd"), pid
	if err := s.cmd.Wait(); err != nil {
		s.m.t.Errorf("the daemon that was replaced ended: %v\n%s", err, s.logged())
	}
}

// stop ends the main process alone.
func (s *service) stop() {
	s.m.unit = nil
	if err := syscall.Kill(s.pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		s.m.t.Error(err)
	}
	if s.next == nil {
		if err := s.cmd.Wait(); err != nil {
			s.m.t.Logf("the daemon ended: %v\n%s", err, s.logged())
		}
	} else {
		poll := []unix.PollFd{{Fd: int32(s.next.Fd()), Events: unix.POLLIN}}
		if n, err := unix.Poll(poll, int(2*time.Minute/time.Millisecond)); n != 1 {
			s.m.t.Errorf("the daemon does not end: %v\n%s", err, s.logged())
		}
		s.next.Close()
	}
	s.conn.Close()
	s.log.Close()
}
