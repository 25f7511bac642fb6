package gvisor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// Row R2: threads are bounded like processes; the machine still answers.
func TestAttack_ThreadBomb(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	out, code := b.root(t, `timeout 240 python3 -c '
import threading, time
n = 0
try:
    while n < 100000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        n += 1
except Exception as e:
    print("stopped at", n, type(e).__name__)
'`)
	// The guest's kernel kills a program if the host lacks room for its threads.
	if !strings.Contains(out, "stopped at") && code != 137 {
		t.Errorf("no bound was met: exit code %d, %s", code, out)
	}
	if out, code := b.root(t, "echo alive"); code != 0 || out != "alive\n" {
		t.Errorf("afterwards: %q, %d", out, code)
	}
}

// Row R6: empty files are bounded by memory, and too many of them end only their own
// machine.
func TestAttack_InodeBomb(t *testing.T) {
	t.Parallel()
	b := open(t, func(s *machine.Spec) { s.MemoryMB = 128 })
	cmd, err := b.Start(t.Context(), sandbox.CommandParams{
		Argv: []string{"python3", "-c", "import os\nos.mkdir('/tmp/d')\ni = 0\nwhile True:\n  os.close(os.open(f'/tmp/d/{i}', os.O_CREAT)); i += 1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err = b.Wait(ctx, cmd.ID); err == nil {
		_, err = b.Health(ctx)
	}
	if err == nil { // another bound came first, which is fine if the machine answers
		return
	}
	select {
	case <-b.Done():
		if x := b.Exit(); x.Reason != sandbox.ReasonOOM {
			t.Errorf("exit %+v, want oom_killed", x)
		}
	case <-time.After(time.Minute):
		t.Error("no bound was met")
	}
}

// Row R8: files far larger than the disk can be inspected without problems.
func TestAttack_SparseFile(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	if out, code := b.root(t, "truncate -s 1T /vercel/sandbox/sparse; ! fallocate -l 1T /vercel/sandbox/real"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	body, info, err := b.ReadFile(t.Context(), "sparse", sandbox.ReadParams{Offset: 1 << 39, Length: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	n, err := io.Copy(io.Discard, body)
	if err != nil || n != 1<<20 || info.Size != 1<<40 {
		t.Errorf("read %d bytes of %d: %v", n, info.Size, err)
	}
}

// Row R9: output at full speed costs the daemon no memory, whether it is read or not, and
// its end is kept.
func TestAttack_LogFlood(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const flood = "head -c 64M /dev/zero | tr '\\0' x; echo; echo the end"
	unread, err := b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", flood}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := b.Exec(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", flood}})
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	var total int64
	for {
		ev, err := read.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ev.Truncated {
			t.Error("a reader that keeps up lost output")
		}
		total += int64(len(ev.Data))
	}
	if want := int64(64<<20 + len("\nthe end\n")); total != want {
		t.Errorf("read %d bytes, want %d", total, want)
	}
	if _, err := b.Wait(t.Context(), unread.ID); err != nil {
		t.Fatal(err)
	}
	out, err := b.Output(t.Context(), unread.ID, sandbox.OutputParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	truncated, last := false, ""
	for {
		ev, err := out.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		truncated = truncated || ev.Truncated
		last = (last + string(ev.Data))[max(0, len(last)+len(ev.Data)-8):]
	}
	if !truncated || last != "the end\n" {
		t.Errorf("unread output: truncated %t, ends with %q", truncated, last)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("the daemon's heap grew by %d MiB", grown>>20)
	}
}

// Row R15: a guest runs out of its own descriptors, not of the host's.
func TestAttack_Descriptors(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	// The host-wide count of open files would not do: other processes change it.
	hostFiles := func() (n int) {
		for _, pid := range []int{os.Getpid(), sentry(t, b.ID())} {
			files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			if err != nil {
				t.Fatal(err)
			}
			n += len(files)
		}
		return n
	}
	before := hostFiles()
	cmd, err := b.Start(t.Context(), sandbox.CommandParams{Sudo: true, Stdin: true, Argv: []string{"python3", "-c", `
import resource, socket, sys
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1048576, 1048576)
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000)) # the memory for all of them takes long to fill
all = []
try:
    while len(all) < 1000000:
        all.append(socket.socket())
except OSError as e:
    print(len(all), e.strerror, flush=True)
sys.stdin.read()
`}})
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.Output(t.Context(), cmd.ID, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ev, err := out.Next()
	if err != nil || !strings.Contains(string(ev.Data), "Too many open files") {
		t.Errorf("got %q, %v", ev.Data, err)
	}
	if grown := hostFiles() - before; grown > 2000 {
		t.Errorf("the machine and the daemon have %d more open files", grown)
	}
}

// Rows R22 and R23: a command that ignores SIGTERM is killed when its time is
// up, and orphans are reaped.
func TestAttack_StubbornAndOrphaned(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	cmd, err := b.Start(t.Context(), sandbox.CommandParams{
		Argv: []string{"bash", "-c", "trap '' TERM; while :; do sleep 1; done"}, Timeout: sandbox.Duration(200 * time.Millisecond),
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, code := b.root(t, `for i in $(seq 200); do (sleep 0 & exit) ; done
for i in $(seq 600); do n=$(ps -eo stat= | grep -c ^Z); [ $n = 0 ] && break; sleep 0.1; done; echo $n`); strings.TrimSpace(out) != "0" {
		t.Errorf("zombies: %s (exit code %d)", out, code)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done, err := b.Wait(ctx, cmd.ID)
	if err != nil {
		t.Fatal(err)
	}
	if x := done.Exit; !x.TimedOut || x.Code != 124 {
		t.Errorf("exit %+v, want timed out", x)
	}
}

// Rows F1, F2 and F4: paths and links of the file API stay within the guest.
func TestAttack_Paths(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	marker := "cay-host-marker"
	host := t.TempDir() + "/" + marker
	if err := os.WriteFile(host, []byte("of the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, code := b.root(t, "ln -s "+host+" /vercel/sandbox/link; ln -s /proc/1/root"+host+" /vercel/sandbox/magic; ln -s /etc/passwd /vercel/sandbox/passwd"); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	for _, path := range []string{host, "../../../../../../.." + host, "link", "magic", "/proc/self/root" + host, "/proc/self/cwd/.." + host} {
		if body, _, err := b.ReadFile(t.Context(), path, sandbox.ReadParams{}); cay.CodeOf(err) != cay.FileNotFound {
			if err == nil {
				body.Close()
			}
			t.Errorf("read %s: %v, want file_not_found", path, err)
		}
	}
	body, _, err := b.ReadFile(t.Context(), "passwd", sandbox.ReadParams{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil || !strings.Contains(string(text), "vercel-sandbox") {
		t.Errorf("a link to /etc/passwd reads %q, %v; want the guest's", text, err)
	}
	if _, err := b.WriteFile(t.Context(), "bad\x00name", strings.NewReader(""), sandbox.WriteParams{}); cay.CodeOf(err) != cay.Invalid {
		t.Errorf("NUL in a path: %v", err)
	}
}

// A pause holds commands, and they continue after the pause.
func TestPause(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	var cmd *sandbox.Command
	for paused := false; !paused; {
		begun := time.Now()
		var err error
		if cmd, err = b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", "sleep 1; echo done"}}); err != nil {
			t.Fatal(err)
		}
		if err := b.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if paused = time.Since(begun) < 800*time.Millisecond; !paused { // the machine is busy: it may have ended before
			if err := b.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if _, err := b.Wait(ctx, cmd.ID); err == nil {
		t.Error("a command went on during a pause")
	}
	if err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if done, err := b.Wait(t.Context(), cmd.ID); err != nil || done.Exit.Code != 0 {
		t.Errorf("after the pause: %+v, %v", done, err)
	}
}

// Row R20: on a full host disk a start fails clearly and leaves nothing.
func TestStart_FullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	r := newRuntime(t, dir)
	filler, err := os.Create(dir + "/filler")
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	if _, err := io.Copy(filler, zeros{}); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	_, _, err = start(t, r, nil)
	if cay.CodeOf(err) != cay.NoSpace {
		t.Errorf("start on a full disk: %v, want no_space", err)
	}
	if ids, err := r.List(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left: %q, %v", ids, err)
	}
	if err := filler.Truncate(0); err != nil {
		t.Fatal(err)
	}
	in, c, err := start(t, r, nil)
	if err != nil {
		t.Fatalf("start with room again: %v", err)
	}
	c.CloseIdleConnections()
	if err := in.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

// Next to row S4: an image that is damaged or missing gives a clear error.
func TestStart_BadImage(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, t.TempDir())
	bad := t.TempDir() + "/bad.erofs"
	if err := os.WriteFile(bad, []byte(strings.Repeat("not an image", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bad, bad + ".missing"} {
		_, _, err := start(t, r, func(s *machine.Spec) { s.RootFS = path })
		if err == nil {
			t.Fatalf("%s started", path)
		}
		t.Log(err)
		if ids, err := r.List(t.Context()); err != nil || len(ids) != 0 {
			t.Errorf("left: %q, %v", ids, err)
		}
	}
}
