package gvisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/pages"
	"github.com/cayhq/cay/sandbox"
)

// remembering starts a process with mb MiB in memory, which reads the memory again and
// again.
func remembering(t *testing.T, f *forkable, mb int) (cmd *sandbox.Command, cursor int64, last int) {
	t.Helper()
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", fmt.Sprintf(`
import os, time, zlib
x = [os.urandom(1<<20) for _ in range(%d)]
s = [zlib.crc32(b) for b in x]
n = 0
while True:
    i = n %% len(x)
    assert zlib.crc32(x[i]) == s[i]
    n += 1
    print(n, flush=True)
    time.sleep(.002)
`, mb)}})
	if err != nil {
		t.Fatal(err)
	}
	got, cursor := numbers(t, f.box, cmd.ID, 0, 3)
	return cmd, cursor, got[len(got)-1]
}

// Row S4: a machine whose memory or disk turns out to be damaged ends, and nothing is
// left behind.
func TestRestore_Damaged(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	if out, code := f.root(t, "head -c 50000000 /dev/urandom > /big"); code != 0 {
		t.Fatal(out)
	}
	remembering(t, f, 64)
	for _, c := range []struct {
		kind  string
		dir   string
		start func(context.Context, machine.Spec, string) (machine.Instance, error)
	}{
		{"memory", f.checkpoint(t), f.runtime.Restore},
		{"disk", f.saveDisk(t), f.runtime.StartFrom},
	} {
		s, err := machine.ReadState(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range s.Files {
			name, hasPages := file.Name, file.Name == pages.WholeName || pages.IsPart(file.Name)
			if !hasPages && name != "pages_meta.img" && name != pages.MapName {
				continue
			}
			t.Run(c.kind+" "+strings.TrimRight(name, "0123456789abcdef.img"), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "state")
				if err := os.CopyFS(dir, os.DirFS(c.dir)); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(dir, name)
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				file, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				if _, err := file.WriteAt([]byte("damage"), info.Size()*3/4); err != nil {
					t.Fatal(err)
				}
				in, err := c.start(t.Context(), f.another(), dir)
				if (!hasPages || err != nil) && cay.CodeOf(err) != cay.Conflict {
					t.Errorf("got %v, want a conflict", err)
				}
				if err == nil {
					select {
					case <-in.Done():
					case <-time.After(time.Minute):
						t.Error("the machine goes on")
					}
					if err := in.Destroy(t.Context()); err != nil {
						t.Fatal(err)
					}
					if x := in.Exit(); x.Reason != sandbox.ReasonCrashed || !x.Damaged || !strings.Contains(x.Message, "could not be loaded") {
						t.Errorf("exit %+v", x)
					}
				}
				if ids, err := f.runtime.List(t.Context()); err != nil || len(ids) != 1 {
					t.Errorf("left: %q, %v", ids, err)
				}
			})
		}
	}
}

// A state that has valid sums but makes no sense to a sentry ends in an error.
func TestRestore_Nonsense(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	for kind, start := range map[machine.StateKind]func(context.Context, machine.Spec, string) (machine.Instance, error){
		machine.MemoryState: f.runtime.Restore, machine.DiskState: f.runtime.StartFrom,
	} {
		from, first := f.checkpoint(t), "checkpoint.img"
		if kind == machine.DiskState {
			from, first = f.saveDisk(t), "fscheckpoint.pb"
		}
		for name, change := range map[string]func([]byte) []byte{
			"empty": func([]byte) []byte { return nil },
			"half":  func(b []byte) []byte { return b[:len(b)/2] },
			"changed": func(b []byte) []byte {
				copy(b[len(b)/2:], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
				return b
			},
		} {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				s, err := machine.ReadState(from)
				if err != nil {
					t.Fatal(err)
				}
				dir := t.TempDir()
				var files []*os.File
				for _, sf := range s.Files {
					b, err := os.ReadFile(filepath.Join(from, sf.Name))
					if err != nil {
						t.Fatal(err)
					}
					if sf.Name == first {
						b = change(b)
					}
					file, err := os.Create(filepath.Join(dir, sf.Name))
					if err != nil {
						t.Fatal(err)
					}
					defer file.Close()
					if _, err := file.Write(b); err != nil {
						t.Fatal(err)
					}
					files = append(files, file)
				}
				if err := machine.SealState(t.Context(), dir, s, files); err != nil {
					t.Fatal(err)
				}
				in, err := start(t.Context(), f.another(), dir)
				if err == nil {
					t.Error("it started")
					in.Destroy(t.Context())
				} else if strings.Contains(err.Error(), "goroutine") {
					t.Errorf("the error has a stack: %v", err)
				}
				if ids, err := f.runtime.List(t.Context()); err != nil || len(ids) != 1 {
					t.Errorf("left: %q, %v", ids, err)
				}
			})
		}
	}
}

// pagers returns the processes that load a machine.
func pagers(t *testing.T, id string) []int {
	t.Helper()
	pids, err := findPagers(id)
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func findPagers(id string) (pids []int, err error) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(b), "cay-pager\x00") {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup")); err != nil || !strings.Contains(string(b), "/cay/"+id+"\n") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// loading returns a copy of f that is still being loaded, and the process id of its
// pager, which loading has stopped.
func loading(t *testing.T, f *forkable) (box, int) {
	t.Helper()
	for range 20 { // a busy host may be slow to look
		for _, b := range f.fork(t, 2) {
			for _, pid := range pagers(t, b.ID()) {
				if unix.Kill(pid, unix.SIGSTOP) == nil && len(pagers(t, b.ID())) == 1 {
					return b, pid
				}
			}
			b.CloseIdleConnections()
			if err := b.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatal("no machine has a pager")
	panic("unreachable")
}

// A pager has almost no rights, and acts as part of its machine.
func TestPager_Confined(t *testing.T) {
	f := openForkable(t, nil)
	holding(t, f, 256)
	for range 2 {
		_, pid := loading(t, f)
		proc := fmt.Sprintf("/proc/%d/", pid)
		status, err := os.ReadFile(proc + "status")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"Uid:\t65534\t65534\t65534\t65534\n", "Gid:\t65534\t65534\t65534\t65534\n", "Groups:\t \n",
			"CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n",
		} {
			if !strings.Contains(string(status), want) {
				t.Errorf("no %q in\n%s", want, status)
			}
		}
		if root, err := os.Readlink(proc + "root"); err != nil || root != filepath.Join(f.dir, ".empty") {
			t.Errorf("its root is %q, %v", root, err)
		}
		// The files with a path that a pager has open are the null device and the files
		// it serves, none of them writable.
		fds, err := os.ReadDir(proc + "fdinfo")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			link, err := os.Readlink(proc + "fd/" + fd.Name())
			if n, _ := strconv.Atoi(fd.Name()); err != nil || n >= 8 || !strings.HasPrefix(link, f.dir) {
				continue // the following files belong to its sentry
			}
			info, err := os.ReadFile(proc + "fdinfo/" + fd.Name())
			if err != nil {
				t.Fatal(err)
			}
			var flags int
			for line := range strings.Lines(string(info)) {
				fmt.Sscanf(line, "flags: %o", &flags)
			}
			if flags&unix.O_ACCMODE != unix.O_RDONLY {
				t.Errorf("descriptor %s, of %s, can be written to", fd.Name(), link)
			}
		}
	}
}

// A pager ends with its machine, even in the middle of loading.
func TestPager_EndsWithMachine(t *testing.T) {
	f := openForkable(t, nil)
	holding(t, f, 256)
	for range 2 {
		b, _ := loading(t, f) // a stopped pager is no obstacle
		b.CloseIdleConnections()
		if err := b.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left := pagers(t, b.ID()); len(left) > 0 {
			t.Errorf("pagers are left: %v", left)
		}
	}
}

// A restored machine may have other limits than its source.
func TestRestore_Limits(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	dir := f.checkpoint(t)
	f.spec.MemoryMB = 192
	b := f.restore(t, dir)
	if _, err := b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", "x = [bytearray(b'x' * (1<<20)) for _ in range(1000)]"}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.Done():
		if x := b.Exit(); x.Reason != sandbox.ReasonOOM || !strings.Contains(x.Message, "192 MiB") {
			t.Errorf("exit %+v, want oom_killed", x)
		}
	case <-time.After(time.Minute):
		t.Error("no limit was met")
	}
}

// A restored guest never runs with another policy than its present one, not even for one
// connection.
func TestRestore_Policy(t *testing.T) {
	t.Parallel()
	var dials atomic.Int64
	egress, err := network.NewEgress(network.EgressConfig{DialContext: func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("there is no internet")
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(egress.Close)
	f := openForkable(t, nil)
	r, err := gvisor.New(gvisor.Config{StateDir: t.TempDir(), Egress: egress, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	spec := f.another()
	in, err := r.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	f.runtime, f.box = r, f.own(t, in)
	f.runtime, f.box.runtime = r, r
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", `
import socket, time
n = 0
while True:
    s = socket.socket(); s.settimeout(1)
    try: s.connect(("93.184.216.34", 80))
    except OSError: pass
    s.close(); n += 1
    print(n, flush=True)
    time.sleep(.005)
`}})
	if err != nil {
		t.Fatal(err)
	}
	got, cursor := numbers(t, f.box, cmd.ID, 0, 3)
	if dials.Load() == 0 {
		t.Fatal("the source does not reach the outside")
	}
	dir := f.checkpoint(t)
	f.CloseIdleConnections()
	if err := f.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	dials.Store(0)
	f.spec.Network = sandbox.Network{Mode: sandbox.DenyAll}
	b := f.restore(t, dir)
	last := got[len(got)-1]
	_, cursor = numbers(t, b, cmd.ID, cursor, last+20)
	if n := dials.Load(); n != 0 {
		t.Errorf("a copy that may not dialled %d times", n)
	}
	if err := b.SetNetwork(sandbox.Network{Mode: sandbox.AllowAll}); err != nil {
		t.Fatal(err)
	}
	numbers(t, b, cmd.ID, cursor, last+60)
	if dials.Load() == 0 {
		t.Error("a copy that may does not dial")
	}
}

// daemonEnv makes a test binary a daemon, to be killed, that restores a machine and waits
// for its end: its value is the state directory and the directory of the checkpoint.
const daemonEnv = "CAY_TEST_RESTORE"

func restoringDaemon(dirs string) error {
	state, checkpoint, _ := strings.Cut(dirs, ":")
	var spec machine.Spec
	if err := json.NewDecoder(os.Stdin).Decode(&spec); err != nil {
		return err
	}
	out := os.Stdout
	if err := gvisor.DetachStdio(); err != nil {
		return err
	}
	r, err := gvisor.New(gvisor.Config{StateDir: state})
	if err != nil {
		return err
	}
	in, err := r.Restore(context.Background(), spec, checkpoint)
	if err != nil {
		return err
	}
	// Here, and not where the line is read, because by then everything may have been
	// loaded.
	loading, err := findPagers(spec.ID)
	if err != nil {
		return err
	}
	for _, pid := range loading {
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, "restored"); err != nil {
		return err
	}
	<-in.Done()
	return nil
}

// withoutStdio calls do with os.Stdin, os.Stdout and os.Stderr as they are in a daemon.
func withoutStdio(t *testing.T, do func()) {
	t.Helper()
	in, out, err := os.Stdin, os.Stdout, os.Stderr
	defer func() { os.Stdin, os.Stdout, os.Stderr = in, out, err }()
	if err := gvisor.DetachStdio(); err != nil {
		t.Fatal(err)
	}
	do()
}

// killedWhileLoading makes another process restore a machine, and kills that process
// while the machine is being loaded. It returns the pid of the machine's pager, which is
// stopped.
func killedWhileLoading(t *testing.T, f *forkable, dir string) (machine.Spec, int) {
	t.Helper()
	self, err := os.Executable() // by path, because gVisor recognizes its own processes by /proc/self/exe
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // a busy host may be slow to look
		spec := f.another()
		in, err := json.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		daemon := exec.Command(self)
		daemon.Env = append(os.Environ(), daemonEnv+"="+f.dir+":"+dir)
		daemon.Stdin = strings.NewReader(string(in))
		out, err := daemon.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		daemon.Stderr = t.Output()
		t.Cleanup(func() {
			if err := f.runtime.Reap(context.Background(), spec.ID); err != nil {
				t.Error(err)
			}
		})
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, len("restored\n"))
		_, err = io.ReadFull(out, line)
		loading := pagers(t, spec.ID)
		kerr := daemon.Process.Kill()
		daemon.Wait()
		if err != nil || kerr != nil {
			t.Fatal(err, kerr)
		}
		if len(loading) == 1 {
			return spec, loading[0]
		}
		// All was loaded before the pager could be stopped.
		if err := f.runtime.Reap(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no machine has a pager")
	panic("unreachable")
}

// Row S6: loading a machine continues after the daemon that restored it is killed, and
// the next daemon adopts the machine.
func TestRestore_KilledDaemon(t *testing.T) {
	// A guest's init has the standard files of the process that starts the guest, and a
	// restored guest must have the same ones: as in daemons, none.
	var f *forkable
	withoutStdio(t, func() { f = openForkable(t, nil) })
	cmd, cursor, last := remembering(t, f, 256)
	spec, pager := killedWhileLoading(t, f, f.checkpoint(t))
	adopted, err := f.runtime.Adopt(t.Context(), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	b := f.own(t, adopted)
	if err := unix.Kill(pager, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	gvisor.AwaitLoaded(adopted)
	if left := pagers(t, spec.ID); len(left) > 0 {
		t.Logf("still there: %v", left) // the pager is about to end
	}
	numbers(t, b, cmd.ID, cursor, last+300) // all of the machine's memory is there
	goesOn(t, "adopted", b, cmd, cursor, last)
}
