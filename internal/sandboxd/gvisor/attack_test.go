package gvisor_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/runtimetest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// box is a machine under attack.
type box struct {
	machine.Instance
	*guest.Client
	runtime machine.Runtime
}

// open starts a machine that ends with the test.
func open(t *testing.T, change func(*machine.Spec)) box {
	t.Helper()
	r := newRuntime(t, t.TempDir())
	in, c, err := start(t, r, change)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return box{in, c, r}
}

func start(t *testing.T, r machine.Runtime, change func(*machine.Spec)) (machine.Instance, *guest.Client, error) {
	t.Helper()
	return boot(t, config(t), r, change)
}

// ownIDs begins the ids of the machines that boot starts, and no other ids on this host.
var ownIDs = "a" + strings.ToLower(rand.Text()[:8])

func boot(t *testing.T, cfg runtimetest.Config, r machine.Runtime, change func(*machine.Spec)) (machine.Instance, *guest.Client, error) {
	token := rand.Text()
	id := ownIDs + strings.ToLower(rand.Text()[:12])
	spec := machine.Spec{
		ID: id, Hostname: "box", RootFS: cfg.RootFS, VCPUs: 2, MemoryMB: 1024, DiskMB: 512,
		Network: sandbox.Network{Mode: sandbox.AllowAll},
	}
	gc := guest.Config{Hostname: "box", TokenSHA256: guest.HashToken(token), User: "vercel-sandbox", WorkDir: "/vercel/sandbox"}
	cfg.Spec(&spec, &gc)
	if change != nil {
		change(&spec)
	}
	var err error
	if spec.GuestConfig, err = json.Marshal(gc); err != nil {
		return nil, nil, err
	}
	in, err := r.Start(t.Context(), spec)
	if err != nil {
		return nil, nil, err
	}
	return in, guest.NewClient(in.DialGuest, token), nil
}

// root runs a shell script as root in the guest and returns its output and exit code.
func (b box) root(t *testing.T, script string) (output string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o, err := b.Exec(ctx, sandbox.CommandParams{Argv: []string{"bash", "-c", script}, Sudo: true})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	defer o.Close()
	var out strings.Builder
	for {
		ev, err := o.Next()
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		out.Write(ev.Data)
		if ev.Exit != nil {
			return out.String(), ev.Exit.Code
		}
	}
}

// Rows I1, I4, I8, I14 and the set-up rows of the incident table: actions of root in the
// guest have no effect outside the guest.
func TestAttack_Isolation(t *testing.T) {
	b := open(t, nil)
	secret := filepath.Join(t.TempDir(), "host-secret")
	if err := os.WriteFile(secret, []byte("the host's"), 0o644); err != nil {
		t.Fatal(err)
	}
	mark := "cay-" + rand.Text() // in the names of the guest's mounts
	for name, script := range map[string]string{
		"host file by path":            `! cat ` + secret,
		"host file by root of init":    `! cat /proc/1/root` + secret,
		"host file by cwd of init":     `! cat /proc/1/cwd` + secret,
		"descriptors of init":          `for f in /proc/1/fd/*; do readlink $f; done | grep -vE '^(/dev/null|socket:|anon_inode:|pipe:|host:|/sys/fs/cgroup/)' ; test $? = 1`,
		"own descriptors are 0 to 2":   `test "$(ls /proc/self/fd | sort -n | tr '\n' ' ')" = "0 1 2 3 "`, // 3 is the listing itself
		"physical memory":              `! dd if=/dev/mem bs=1 count=1`,
		"kernel memory":                `! dd if=/dev/kmem bs=1 count=1`,
		"kvm":                          `! test -e /dev/kvm`,
		"host disks":                   `! ls /dev/vda /dev/sda /dev/nvme0n1 /dev/xvda`,
		"new disk nodes":               `mknod /tmp/disk b 254 0; ! dd if=/tmp/disk bs=512 count=1`,
		"kernel modules":               `! insmod /nonexistent && ! test -e /sys/module/kvm`,
		"host processes":               `test "$(ps -e --no-headers | wc -l)" -lt 10`,
		"host kernel's name":           `! uname -r | grep -q "$(cat /proc/sys/kernel/osrelease | grep -v gvisor || echo none)"`,
		"mounts stay here":             `mkdir -p /mnt/` + mark + ` && mount -t tmpfs ` + mark + ` /mnt/` + mark + ` && touch /mnt/` + mark + `/y`,
		"own namespaces":               `unshare -Urm true`,
		"tool remounted writable":      `mount -o remount,rw /.cay; ! touch /.cay/x`,
		"tool overwritten":             `! sh -c 'echo x > /.cay/cay-guest'`,
		"init's program overwritten":   `! sh -c 'echo x > /proc/1/exe'`,
		"image's own program replaced": `cp /bin/true /usr/bin/openssl && openssl version`, // the overlay's, not the image's: see below
		"reboot":                       `! reboot -f`,
		"sysrq":                        `! sh -c 'echo b > /proc/sysrq-trigger'`,
		"core pattern":                 `! sh -c 'echo "|/tmp/x" > /proc/sys/kernel/core_pattern'`,
		"release agent":                `! sh -c 'echo /tmp/x > /sys/fs/cgroup/memory/release_agent' || ! test -e /tmp/x`,
	} {
		t.Run(name, func(t *testing.T) {
			if out, code := b.root(t, script); code != 0 {
				t.Errorf("%s: exit code %d\n%s", script, code, out)
			}
		})
	}
	if mounts := hostMounts(t, mark); len(mounts) > 0 {
		t.Errorf("a mount of the guest is the host's: %q", mounts)
	}
	// A guest's changes to its image are invisible to the next guest.
	if out, code := open(t, nil).root(t, "openssl version | grep -q OpenSSL"); code != 0 {
		t.Errorf("a second machine sees a changed image: %s", out)
	}
}

// hostMounts returns the host's mounts whose line contains own, a name or a directory of
// the test's: other processes mount and unmount meanwhile.
func hostMounts(t *testing.T, own string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(string(b), "\n"), func(line string) bool { return !strings.Contains(line, own) })
}

// Row I2 and CVE-2024-21626: a working directory by way of an open descriptor.
func TestAttack_WorkDirByDescriptor(t *testing.T) {
	b := open(t, nil)
	for fd := 3; fd < 64; fd++ {
		for _, dir := range []string{"/proc/self/fd/%d", "/proc/1/fd/%d", "/proc/thread-self/fd/%d"} {
			dir := fmt.Sprintf(dir, fd)
			o, err := b.Exec(t.Context(), sandbox.CommandParams{Argv: []string{"true"}, WorkDir: dir, Sudo: true})
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("working directory %s: %v, want invalid", dir, err)
			}
			if err == nil {
				o.Close()
			}
		}
	}
}

// The incident table's row on kernel interfaces used in recent escalations: a guest
// reaches none of the host's interfaces. The numbers are the same on x86-64 and arm64;
// where they differ, the test uses names through Python.
func TestAttack_KernelInterfaces(t *testing.T) {
	t.Parallel()
	const script = `
import ctypes, errno, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
numbers = {
    "bpf": 321 if x86 else 280, "userfaultfd": 323 if x86 else 282, "perf_event_open": 298 if x86 else 241,
    "io_uring_setup": 425, "keyctl": 250 if x86 else 219, "init_module": 175 if x86 else 105,
    "kexec_load": 246 if x86 else 104, "open_by_handle_at": 304 if x86 else 265,
}
bad = []
for name, number in numbers.items():
    if libc.syscall(number, 0, 0, 0, 0, 0) >= 0:
        bad.append(name)
raw = "RAW" in os.environ # raw sockets of the sandbox itself: TestAttack_RawFrames
for family, name in ((38, "AF_ALG"), (17, "AF_PACKET"), (40, "AF_VSOCK"), (44, "AF_XDP"), (31, "AF_BLUETOOTH")):
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_SEQPACKET if family == 38 else socket.SOCK_STREAM).close()
        if not (raw and family == 17): bad.append(name)
    except OSError:
        pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    if not raw: bad.append("raw ICMP")
except OSError:
    pass
print(" ".join(bad) or "none")
`
	for env, restricted := range map[string]bool{"": true, "RAW=1 ": false} {
		b := open(t, func(s *machine.Spec) { s.Restricted = restricted })
		if out, code := b.root(t, env+"python3 -c '"+script+"'"); code != 0 || strings.TrimSpace(out) != "none" {
			t.Errorf("restricted %t: reached: %s (exit code %d)", restricted, out, code)
		}
	}
}

// Rows N1 to N4 and N16 from inside a real guest; package network tests the rest.
func TestAttack_Network(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	// A service of the host that a guest must not reach at any of our addresses.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	reached := make(chan struct{}, 16)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
			reached <- struct{}{}
		}
	}()
	port := ln.Addr().(*net.TCPAddr).Port
	for _, addr := range []string{"127.0.0.1", "100.64.0.1", "169.254.169.254", "10.0.0.1", "192.168.0.1", "0.0.0.0", "100.64.0.6"} {
		if out, code := b.root(t, fmt.Sprintf("timeout 3 bash -c 'echo > /dev/tcp/%s/%d'", addr, port)); code == 0 {
			t.Errorf("connected to %s: %s", addr, out)
		}
	}
	if out, code := b.root(t, "ping -c1 -W1 8.8.8.8 || ! command -v ping"); code == 0 && strings.Contains(out, "1 received") {
		t.Errorf("a ping was answered: %s", out)
	}
	if out, code := b.root(t, "ip -6 addr show dev eth0 | grep -q inet6"); code == 0 {
		t.Errorf("the guest has IPv6: %s", out)
	}
	select {
	case <-reached:
		t.Error("the host's service was reached")
	default:
	}
}

// Rows P15 and P16: a guest cannot impersonate its agent, send requests to it as the
// daemon does, or end it; and it gets no credential that the daemon's API would accept.
func TestAttack_Agent(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	const knock = `python3 -c '
import socket, sys
try:
    s = socket.create_connection((sys.argv[1], 1), 60)
    s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    sys.exit(1 if s.recv(100) else 0)
except ConnectionError:
    pass
' `
	for name, script := range map[string]string{
		"its port is taken":            `! python3 -c 'import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind(("0.0.0.0", 1)); s.listen()'`,
		"its port on another address":  `! python3 -c 'import socket; s = socket.socket(); s.bind(("100.64.0.2", 1)); s.listen()'`,
		"no answer on loopback":        knock + "127.0.0.1",
		"no answer on its own address": knock + "100.64.0.2",
		"not among those killed":       `kill -9 -- -1; true`,
		"nothing of the API's":         `! env | grep -v ^SUDO_COMMAND | grep -iE 'token|^cay' && ! grep -rlsIE 'cay_[A-Za-z0-9_-]{43}' /etc /root /home /run /tmp`,
	} {
		t.Run(name, func(t *testing.T) {
			if out, code := b.root(t, script); code != 0 {
				t.Errorf("%s: exit code %d\n%s", script, code, out)
			}
			if _, err := b.Health(t.Context()); err != nil {
				t.Fatalf("the agent no longer answers: %v", err)
			}
		})
	}

	// gVisor, unlike Linux, lets root kill init, which ends the machine, or stop init.
	// Then the guest answers nothing, callers get an error in time, and the machine can
	// be destroyed as usual.
	signalInit := func(b box, signal string, patience time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		o, err := b.Exec(ctx, sandbox.CommandParams{Argv: []string{"kill", signal, "1"}, Sudo: true})
		if err != nil {
			return
		}
		for err == nil {
			_, err = o.Next()
		}
		o.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; {
		signalInit(b, "-STOP", 5*time.Second) // a stopped init does not answer
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := b.Health(ctx)
		cancel()
		if cay.CodeOf(err) == cay.DeadlineExceeded {
			break
		}
		if time.Now().After(deadline) { // before, a busy machine may not have sent it yet
			t.Errorf("a stopped agent: %v, want deadline_exceeded", err)
			break
		}
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	b = open(t, nil)
	signalInit(b, "-KILL", time.Minute)
	select {
	case <-b.Done():
		if x := b.Exit(); x.Reason != sandbox.ReasonExited || x.Code != 128+9 {
			t.Errorf("a killed agent: %+v", x)
		}
	case <-time.After(time.Minute):
		t.Error("a machine goes on without its agent")
	}
}

// Row R1: a fork bomb hurts only its own machine, which still answers.
func TestAttack_ForkBomb(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	bomb, err := b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"bash", "-c", "b() { b | b & }; b; sleep 100"}})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.Signal(ctx, bomb.ID, 9); err != nil && cay.CodeOf(err) != cay.Conflict {
		t.Fatalf("signal: %v", err)
	}
	if err := b.Destroy(ctx); err != nil {
		t.Fatalf("destroy: %v", err)
	}
	t.Logf("killed and destroyed in %v", time.Since(begun))
}

// Row R3: a machine that exceeds its memory limit ends with the reason oom_killed,
// whichever process the kernel picks.
func TestAttack_MemoryBomb(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{128, 512} {
		t.Run(fmt.Sprint(limit, "MiB"), func(t *testing.T) {
			b := open(t, func(s *machine.Spec) { s.MemoryMB = limit })
			if _, err := b.Start(t.Context(), sandbox.CommandParams{
				Argv: []string{"python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"},
			}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-b.Done():
			case <-time.After(60 * time.Second):
				t.Fatal("it goes on")
			}
			if x := b.Exit(); x.Reason != sandbox.ReasonOOM {
				t.Errorf("exit %+v, want oom_killed", x)
			}
		})
	}
}

// The disk limit is exact enough, an error inside, and harmless.
func TestAttack_DiskFull(t *testing.T) {
	t.Parallel()
	b := open(t, func(s *machine.Spec) { s.DiskMB = 64 })
	out, code := b.root(t, "dd if=/dev/zero of=/big bs=1M count=100; stat -c %s /big; df -m --output=size / | tail -1; rm /big && dd if=/dev/zero of=/big bs=1M count=50")
	if code != 0 || !strings.Contains(out, "No space left on device") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	_, err := b.WriteFile(t.Context(), "/big2", io.LimitReader(zeros{}, 100<<20), sandbox.WriteParams{})
	if cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("write through the API: %v, want no_space", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The sentry has no files of the host open except the files that it needs.
func TestAttack_SentryDescriptors(t *testing.T) {
	b := open(t, nil)
	// In a test, unlike in the daemon, the guest's init has our standard streams.
	var own []string
	for fd := range 3 {
		target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			t.Fatal(err)
		}
		own = append(own, target)
	}
	dir := fmt.Sprintf("/proc/%d/fd", sentry(t, b.ID()))
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		allowed := slices.Contains(own, target)
		for _, prefix := range []string{
			"/dev/null", "pipe:", "socket:", "anon_inode:", "/memfd:", // of the sentry itself
			"/proc", // of the sentry's namespace
			"/",     // the sentry's empty root
		} {
			allowed = allowed || target == prefix || prefix != "/" && strings.HasPrefix(target, prefix)
		}
		for _, suffix := range []string{".erofs", "/panic.log", " (deleted)"} {
			allowed = allowed || strings.HasSuffix(target, suffix)
		}
		if !allowed {
			t.Errorf("descriptor %s is %s", fd.Name(), target)
		}
	}
}

// Row I9: resources of the host do not leak, however many machines start and end.
func TestLeak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	dir := t.TempDir()
	r := newRuntime(t, dir)
	cfg := config(t)
	cycle := func(n int) {
		var all errgroup.Group
		all.SetLimit(4)
		for range n {
			all.Go(func() error {
				in, c, err := boot(t, cfg, r, nil)
				if err != nil {
					return err
				}
				c.CloseIdleConnections()
				return in.Destroy(context.Background())
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	cycle(8) // things that are made once
	before := hostState(t, dir)
	rounds := seedtest.Rounds(t, 60)
	cycle(rounds)
	awaitState(t, dir, before, fmt.Sprintf("%d machines", rounds))
}

// awaitState waits until the host has no more of each resource than before.
func awaitState(t *testing.T, dir string, before map[string]int, after string) {
	t.Helper()
	// gVisor drops its handle of each sentry's process without closing it, so only the
	// garbage collector closes it.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		runtime.GC()
		var left []string
		for what, n := range hostState(t, dir) {
			if n > before[what] {
				left = append(left, fmt.Sprintf("%s: %d before, %d after %s", what, before[what], n, after))
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(strings.Join(left, "\n"))
		}
	}
}

// hostState counts everything that machines over dir, or machines that boot starts, could
// leave behind, and nothing else on this host.
func hostState(t *testing.T, dir string) map[string]int {
	t.Helper()
	count := func(pattern string) int {
		m, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return len(m)
	}
	var sentries int
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cmdlines {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), dir) {
			sentries++
		}
	}
	return map[string]int{
		"open files": openFiles(t), "goroutines": runtime.NumGoroutine(), "mounts": len(hostMounts(t, dir)),
		"sockets": count("/run/runsc-" + ownIDs + "*"), "state": count(filepath.Join(dir, "*")), "sentries": sentries,
		"cgroups": count("/sys/fs/cgroup/memory/cay/"+ownIDs+"*") + count("/sys/fs/cgroup/cay/"+ownIDs+"*"),
	}
}

// openFiles counts the open files of this process, without the files of the database,
// which opens more connections, up to a bound, for concurrent statements.
func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, fd := range fds {
		name, err := os.Readlink(fd)
		if err == nil && !strings.Contains(filepath.Base(name), ".db") { // it may be closed by now
			n++
		}
	}
	return n
}
