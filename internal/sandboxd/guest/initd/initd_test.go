package initd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/initd"
	"github.com/cayhq/cay/internal/sandboxd/runtimetest"
	"github.com/cayhq/cay/sandbox"
)

// newRoot makes the test binary the init of a machine, with the host's programs and a
// root directory of its own.
const newRoot = "CAY_TEST_NEW_ROOT"

func TestMain(m *testing.M) {
	if root := os.Getenv(newRoot); root != "" {
		if err := enter(root); err != nil {
			fmt.Fprintln(os.Stderr, "enter:", err)
			os.Exit(99)
		}
		os.Exit(initd.Main())
	}
	os.Exit(m.Run())
}

// enter makes root the root directory, with the files that programs need.
func enter(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount root: %w", err)
	}
	for _, dir := range []string{"etc", "proc", "tmp", "dev", "root"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib64", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty"} {
		to := filepath.Join(root, dir)
		info, err := os.Stat(dir)
		if err != nil {
			continue
		}
		if info.IsDir() {
			err = os.MkdirAll(to, 0o755)
		} else {
			err = os.WriteFile(to, nil, 0o666)
		}
		if err != nil {
			return err
		}
		if err := unix.Mount(dir, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		// The directories are the host's, and init writes files as root.
		if err := unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); info.IsDir() && err != nil {
			return fmt.Errorf("make %s read-only: %w", dir, err)
		}
	}
	for path, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\nworker:x:1000:1000::/home/worker:/bin/sh\n",
		"etc/group":  "root:x:0:\nwheel:x:10:worker\nworker:x:1000:\nnogroup:x:65534:\n",
	} {
		if err := os.WriteFile(filepath.Join(root, path), []byte(content), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(root, "etc/ssl"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "etc/ssl/cert.pem"), []byte(imageCertificate), 0o644); err != nil {
		return err
	}
	if err := os.Symlink("/nowhere/resolv.conf", filepath.Join(root, "etc/resolv.conf")); err != nil {
		return err
	}
	// As gVisor does.
	if err := unix.Mount("tmpfs", filepath.Join(root, "tmp"), "tmpfs", 0, "mode=1777"); err != nil {
		return fmt.Errorf("mount tmp: %w", err)
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount proc: %w", err)
	}
	if err := os.Mkdir("/dev/pts", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666"); err != nil {
		return fmt.Errorf("mount devpts: %w", err)
	}
	if err := os.Symlink("pts/ptmx", "/dev/ptmx"); err != nil {
		return err
	}
	return loopbackUp()
}

// Neither is a valid certificate: init does not parse certificates.
const (
	imageCertificate = "-----BEGIN CERTIFICATE-----\naW1hZ2U=\n-----END CERTIFICATE-----\n"
	givenCertificate = "-----BEGIN CERTIFICATE-----\nZ2l2ZW4=\n-----END CERTIFICATE-----\n"
)

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req)
}

// machine is an init in namespaces of its own.
type machine struct {
	*guest.Client
	cmd   *exec.Cmd
	ended chan struct{}    // closed when init has ended
	stdio *strings.Builder // its output, to be read after its end
}

const (
	token    = "secret"
	testPort = 7
)

func boot(t testing.TB, adjust func(*guest.Config)) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make namespaces")
	}
	cfg := guest.Config{Hostname: "testbox", TokenSHA256: guest.HashToken(token), Port: testPort, User: "worker",
		WorkDir: "/home/worker/project", Gateway: netip.MustParseAddr("127.0.0.1"), Nameserver: netip.MustParseAddr("192.0.2.53")}
	if adjust != nil {
		adjust(&cfg)
	}
	config, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{stdio: &strings.Builder{}, cmd: exec.Command("/proc/self/exe")}
	m.cmd.Env = []string{newRoot + "=" + t.TempDir(), guest.ConfigEnv + "=" + string(config)}
	// Wait returns after the end of the output, that is, when all its processes have ended.
	m.cmd.Stdout, m.cmd.Stderr = m.stdio, m.stdio
	m.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	started := make(chan error, 1)
	go func() {
		// The thread that started the process must live as long, because of Pdeathsig.
		runtime.LockOSThread()
		started <- m.cmd.Start()
		<-t.Context().Done()
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		t.Skipf("cannot make namespaces here: %v", err)
	}
	m.ended = make(chan struct{})
	var end error
	go func() {
		end = m.cmd.Wait()
		close(m.ended)
	}()
	t.Cleanup(func() {
		m.cmd.Process.Kill()
		<-m.ended
		if t.Failed() {
			t.Logf("init ended: %v: %s", end, m.stdio)
		}
	})
	m.Client = guest.NewClient(m.dial, token)
	t.Cleanup(m.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		_, err := m.Health(ctx)
		if err == nil {
			return m
		}
		select {
		case <-m.ended:
			t.Fatalf("init ended: %v: %s", end, m.stdio)
		case <-ctx.Done():
			t.Fatalf("init does not answer: %v", err)
		default:
			runtime.Gosched()
		}
	}
}

// dial connects from within the machine's network.
func (m *machine) dial(ctx context.Context) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		conn, err := func() (net.Conn, error) {
			ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", m.cmd.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			defer unix.Close(ns)
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", testPort))
		}()
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (m *machine) sh(t *testing.T, p sandbox.CommandParams, script string) string {
	t.Helper()
	p.Argv = []string{"sh", "-c", script}
	o, err := m.Exec(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	var out strings.Builder
	for {
		ev, err := o.Next()
		if err != nil {
			t.Fatal(err)
		}
		out.Write(ev.Data)
		if ev.Exit != nil {
			return strings.TrimSpace(out.String())
		}
	}
}

func TestGuest(t *testing.T) {
	runtimetest.Guest(t, func(t *testing.T) *guest.Client { return boot(t, nil).Client })
}

func TestMachine(t *testing.T) {
	m := boot(t, nil)
	var limit unix.Rlimit // of this machine, on whose kernel the guest runs here
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	files := fmt.Sprint(min(limit.Max, 1<<20))
	for script, want := range map[string]string{
		"uname -n":                                  "testbox",
		"cat /etc/hostname":                         "testbox",
		"grep -c testbox /etc/hosts":                "1",
		"cat /etc/resolv.conf":                      "nameserver 192.0.2.53",
		"grep -cE '^[0-9a-f]{32}$' /etc/machine-id": "1",
		"pwd":                       "/home/worker/project",
		"stat -c '%U %a' .":         "worker 755",
		"id -un; id -Gn":            "worker\nworker wheel",
		"echo $USER $HOME $LOGNAME": "worker /home/worker worker",
		"ulimit -Sn; ulimit -Hn":    files + "\n" + files,
		"ulimit -u 2>/dev/null || grep -c 'Max processes *4096' /proc/self/limits": "1",
		"umask":                          "0022",
		"ls -A /etc | grep -c '^[.]cay'": "0",
		"stat -c %a /tmp; grep -c ' /tmp ' /proc/mounts":            "1777\n0",
		"grep -c '\"hostname\":\"testbox\"' /etc/cay/identity.json": "1",
	} {
		if got := m.sh(t, sandbox.CommandParams{}, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
	info, err := m.WriteFile(t.Context(), "file", strings.NewReader("x"), sandbox.WriteParams{})
	if err != nil {
		t.Fatal(err)
	}
	if info.UID != 1000 || info.GID != 1000 {
		t.Errorf("a file belongs to %d:%d", info.UID, info.GID)
	}
	if got := m.sh(t, sandbox.CommandParams{Sudo: true}, "id -u; echo $SUDO_USER $SUDO_UID $HOME"); got != "0\nworker 1000 /root" {
		t.Errorf("sudo: %q", got)
	}
}

// Certificates are installed before any command starts, and certificates that cannot be
// written do not keep the machine from starting.
func TestCertificates(t *testing.T) {
	m := boot(t, func(c *guest.Config) { c.Certificates = givenCertificate })
	h, err := m.Health(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if h.Trust.ID != guest.TrustID([]byte(givenCertificate)) || !strings.Contains(h.Trust.Problem, "read-only file system") {
		t.Errorf("got %+v", h.Trust)
	}
	for file, want := range map[string]string{
		guest.ExtraFile:     givenCertificate,
		guest.BundleFile:    imageCertificate + "# cay: begin\n" + givenCertificate + "# cay: end\n",
		"/etc/ssl/cert.pem": imageCertificate + "# cay: begin\n" + givenCertificate + "# cay: end\n",
	} {
		if got := m.sh(t, sandbox.CommandParams{}, "cat "+file); got != strings.TrimSpace(want) {
			t.Errorf("%s has %q, want %q", file, got, want)
		}
	}
}

// Orphans end up with init, which reaps them (attack R23).
func TestReap(t *testing.T) {
	m := boot(t, nil)
	m.sh(t, sandbox.CommandParams{}, "i=0; while [ $i -lt 200 ]; do (true & true &); i=$((i+1)); done")
	zombies := m.sh(t, sandbox.CommandParams{}, "for i in $(seq 600); do n=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z '); [ $n = 0 ] && break; sleep 0.1; done; echo $n")
	if zombies != "0" {
		t.Errorf("%s zombies", zombies)
	}
}

// Init's secrets are readable for root only.
func TestSecrets(t *testing.T) {
	m := boot(t, nil)
	out := m.sh(t, sandbox.CommandParams{}, "cat /proc/1/environ 2>&1; ls -l /proc/1/fd 2>&1; kill -9 1 2>&1")
	if strings.Contains(out, "TOKEN") || strings.Contains(out, "token") {
		t.Errorf("init shows its configuration: %q", out)
	}
}

// The agent answers only its gateway, even with the right token.
func TestOtherPeer(t *testing.T) {
	m := boot(t, nil)
	// From another address of the same machine.
	out := m.sh(t, sandbox.CommandParams{}, `command -v python3 >/dev/null || exit 0
		python3 -c '
import socket
s = socket.socket(); s.bind(("127.0.0.2", 0)); s.settimeout(60); s.connect(("127.0.0.1", 7))
try:
    s.sendall(b"GET /health HTTP/1.1\r\nHost: guest\r\nAuthorization: Bearer secret\r\n\r\n")
    print("got", s.recv(100))
except ConnectionError:
    print("got", b"")
'`)
	if out != "got b''" && out != "" {
		t.Errorf("another address was answered: %q", out)
	}
}

// Quiesce ends commands, and also the processes that they have left behind.
func TestQuiesce(t *testing.T) {
	m := boot(t, nil)
	if out := m.sh(t, sandbox.CommandParams{}, `(trap "" TERM HUP; echo up; exec setsid sleep 1000) >/tmp/log 2>&1 &
		setsid sleep 2000 >/dev/null 2>&1 &
		until grep -q up /tmp/log; do :; done 2>/dev/null`); out != "" {
		t.Fatal(out)
	}
	q, err := m.Quiesce(t.Context(), 5*time.Second) // time enough for the other process to end, on a busy machine too
	if err != nil {
		t.Fatal(err)
	}
	if q.Killed != 1 || len(q.Named) != 1 || q.Named[0].Command != "sleep 1000" {
		t.Errorf("killed: %+v", q)
	}
	h, err := m.Health(t.Context())
	if err != nil || h.Processes != 1 || !h.Quiesced || h.Problem != "" {
		t.Errorf("%+v, %v", h, err)
	}
	if err := m.Unquiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := m.sh(t, sandbox.CommandParams{}, "cat /tmp/log"); out != "up" {
		t.Errorf("the file has %q", out)
	}
}

// A machine that becomes another machine has a new name, and its programs go on.
func TestIdentify(t *testing.T) {
	m := boot(t, nil)
	id, err := m.Identify(t.Context(), guest.IdentityRequest{Sandbox: "sbx_2", Hostname: "other", User: "root", WorkDir: "/srv/new"}, "secret2")
	if err != nil || id.Problem != "" {
		t.Fatalf("%+v, %v", id, err)
	}
	for script, want := range map[string]string{
		"uname -n; cat /etc/hostname": "other\nother",
		"grep -c other /etc/hosts":    "1",
		"cat /etc/machine-id":         id.MachineID,
		"id -un; pwd":                 "root\n/srv/new",
	} {
		if got := m.sh(t, sandbox.CommandParams{}, script); got != want {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
	}
}

// Roots of new drives belong to the default user; failures to change the owner are
// reported.
func TestOwned(t *testing.T) {
	m := boot(t, func(c *guest.Config) { c.Owned = []string{"/tmp/../etc/ssl", "/no/such"} })
	if got := m.sh(t, sandbox.CommandParams{}, "stat -c '%U %G %a' /etc/ssl"); got != "worker worker 755" {
		t.Errorf("it belongs to %s", got)
	}
	if h, err := m.Health(t.Context()); err != nil || !strings.Contains(h.Problem, "/no/such") {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestTerminate(t *testing.T) {
	m := boot(t, nil)
	w, err := m.Watch(t.Context(), "/tmp", sandbox.WatchParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// The script writes to init's own output, which is kept when init ends.
	script := "trap 'echo asked >/proc/1/fd/1; exit' TERM; touch /tmp/ready; while :; do sleep 0.1; done"
	if _, err := m.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", script}, User: "root"}); err != nil {
		t.Fatal(err)
	}
	for {
		ev, err := w.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Path == "/tmp/ready" {
			break
		}
	}
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.ended:
	case <-time.After(time.Minute):
		t.Fatal("init does not end")
	}
	if !strings.Contains(m.stdio.String(), "asked") {
		t.Error("a command was not asked to end")
	}
}
