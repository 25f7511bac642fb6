package gvisor_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/runtimetest"
)

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	if config := os.Getenv(earlierEnv); config != "" { // before useProgram: it has a program of its own
		stderr := os.Stderr
		if err := runEarlierDaemon(config); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := useProgram(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if dirs := os.Getenv(daemonEnv); dirs != "" {
		stderr := os.Stderr
		if err := restoringDaemon(dirs); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if config := os.Getenv(driveDaemonEnv); config != "" {
		stderr := os.Stderr
		if err := runDriveDaemon(config); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if config := os.Getenv(forkDaemonEnv); config != "" {
		stderr := os.Stderr
		if err := runForkDaemon(config); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if args := os.Getenv(savingEnv); args != "" {
		stderr := os.Stderr
		if err := savingDaemon(args); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// itselfEnv makes sentries execute this test program, as cay does where it cannot use
// cay-sentry.
const itselfEnv = "CAY_TEST_ITSELF"

// useProgram makes sentries execute cay-sentry, as cay does, if "make inside" has built
// it.
func useProgram() error {
	program := embedded.Sentry()
	if program == nil || os.Getenv(itselfEnv) != "" {
		return nil
	}
	f, err := os.CreateTemp("", "cay-sentry-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // it stays open
	_, err = f.Write(program)
	if err := errors.Join(err, f.Chmod(0o755), f.Close()); err != nil {
		return err
	}
	return gvisor.UseProgram(f.Name())
}

// guestProgram builds cay-guest once for all tests of the package.
var guestProgram = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "cay-guest-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "cay-guest")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "github.com/cayhq/cay/cmd/cay-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build cay-guest: %w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// config runs the shared suite on gVisor with the default image.
func config(t testing.TB) runtimetest.Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	image := imagetest.Acquire(t, "debian")
	program, err := guestProgram()
	if err != nil {
		t.Fatal(err)
	}
	tool, err := imagetest.Open(t).Tool(t.Context(), "cay-guest", map[string][]byte{"cay-guest": program})
	if err != nil {
		t.Fatal(err)
	}
	return runtimetest.Config{
		New:    func(t *testing.T, dir string) machine.Runtime { return newRuntime(t, dir) },
		RootFS: image.Path,
		Spec: func(s *machine.Spec, c *guest.Config) {
			s.Mounts = []machine.Mount{{Source: tool, Target: "/.cay"}}
			s.Init = []string{"/.cay/cay-guest"}
			c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		},
		Kill: func(t *testing.T, _ machine.Runtime, id string) {
			if err := unix.Kill(sentry(t, id), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Caps: runtimetest.Caps{InitExits: true, Enforces: true},
	}
}

func newRuntime(t testing.TB, dir string) *gvisor.Runtime {
	t.Helper()
	r, err := gvisor.New(gvisor.Config{StateDir: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// sentry returns the process id of a machine's sentry.
func sentry(t *testing.T, id string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(b), "runsc-sandbox\x00") || !strings.HasSuffix(string(b), "\x00"+id+"\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("machine %s has no sentry", id)
	return 0
}

func TestRuntime(t *testing.T) { runtimetest.Run(t, config(t)) }

// A daemon that is killed in the middle of a start leaves a sentry without a cgroup and
// without a state file.
func TestReap_HalfStarted(t *testing.T) {
	dir := t.TempDir()
	r := newRuntime(t, dir)
	in, c, err := start(t, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.CloseIdleConnections()
	pid := sentry(t, in.ID())
	if err := in.Detach(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, in.ID(), "state.json")); err != nil {
		t.Fatal(err)
	}
	procs, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(procs, "/sys/fs/cgroup/cgroup.procs") {
		os.WriteFile(file, []byte(strconv.Itoa(pid)), 0o644) // where such a hierarchy exists
	}
	later := newRuntime(t, dir)
	if err := later.Reap(t.Context(), in.ID()); err != nil {
		t.Fatal(err)
	}
	// The sentry is our child, and stays a zombie until it is reaped.
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil || !status.Signaled() {
		t.Errorf("the sentry: %v, %v", status, err)
	}
	if ids, err := later.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left: %q, %v", ids, err)
	}
}

// All processes of a machine are in its cgroup, whatever the machine started from.
func TestSentry_Group(t *testing.T) {
	f := openForkable(t, nil)
	copies := f.fork(t, 1)
	for _, id := range []string{f.ID(), copies[0].ID()} {
		pids := []int{sentry(t, id)}
		for i := 0; i < len(pids); i++ {
			tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pids[i]))
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range tasks {
				groups, err := os.ReadFile(filepath.Join(task, "cgroup"))
				children, err2 := os.ReadFile(filepath.Join(task, "children"))
				if err := errors.Join(err, err2); err != nil {
					if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
						continue // it has ended
					}
					t.Fatal(err)
				}
				for line := range strings.Lines(string(groups)) {
					controllers := strings.Split(line, ":")[1]
					if slices.Contains([]string{"cpu", "cpuacct", "cpu,cpuacct", "memory", "pids"}, controllers) && !strings.HasSuffix(line, "/cay/"+id+"\n") {
						t.Errorf("%s is in %q", task, line)
					}
				}
				for _, child := range strings.Fields(string(children)) {
					pid, err := strconv.Atoi(child)
					if err != nil {
						t.Fatal(err)
					}
					pids = append(pids, pid)
				}
			}
		}
		if len(pids) < 3 {
			t.Errorf("a machine of processes %v, want a sentry and its stubs", pids)
		}
	}
}

// Programs of a guest are mapped from its images and from the files it has written.
func TestNew_NoExec(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	r, err := gvisor.New(gvisor.Config{StateDir: dir})
	if err == nil {
		r.Close()
	}
	if cay.CodeOf(err) != cay.NotSupported || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "noexec") {
		t.Errorf("got %v, want not_supported", err)
	}
}

// A sentry starts even if the daemon has very many open files.
func TestStart_ManyFiles(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for highest := 235; highest < 262; highest++ { // around the descriptor of the program
		for len(fds) == 0 || fds[len(fds)-1] < highest {
			fd, err := unix.FcntlInt(null.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
		in, c, err := start(t, r, nil)
		if err != nil {
			t.Fatalf("with files up to descriptor %d: %v", highest, err)
		}
		c.CloseIdleConnections()
		if err := in.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSentry_Itself(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestSentry_Powerless$", "-test.v")
	cmd.Env = append(os.Environ(), itselfEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestSentry_Powerless") {
		t.Errorf("%v\n%s", err, out)
	}
}

// No thread of a sentry, however it started, has any rights on the host.
func TestSentry_Powerless(t *testing.T) {
	f := openForkable(t, nil)
	copies := f.fork(t, 1)
	for _, id := range []string{f.ID(), copies[0].ID()} {
		pid := sentry(t, id)
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		if err != nil || len(threads) < 2 {
			t.Fatal(threads, err)
		}
		for _, path := range threads {
			status, err := os.ReadFile(path)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				continue // it has ended
			}
			if err != nil {
				t.Fatal(err)
			}
			const none = "0000000000000000\n"
			for _, want := range []string{
				"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
				"CapInh:\t" + none, "CapPrm:\t" + none, "CapEff:\t" + none, "CapBnd:\t" + none, "CapAmb:\t" + none,
				"NoNewPrivs:\t1\n", "Seccomp:\t2\n",
			} {
				if !strings.Contains(string(status), want) {
					t.Errorf("%s: no %q in\n%s", path, want, status)
				}
			}
		}
		root := fmt.Sprintf("/proc/%d/root/", pid) // with the slash, the target of the link
		err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() && path != root+"etc/localtime" {
				t.Errorf("its root has %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		for _, ns := range []string{"user", "mnt", "net", "ipc", "uts", "pid"} {
			its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
			ours, oerr := os.Readlink("/proc/self/ns/" + ns)
			if err != nil || oerr != nil || its == ours {
				t.Errorf("namespace %s: %q, %v; ours: %q, %v", ns, its, err, ours, oerr)
			}
		}
	}
}
