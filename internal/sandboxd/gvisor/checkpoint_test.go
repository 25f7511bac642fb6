package gvisor_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// forkable is a machine whose checkpoints can be restored.
type forkable struct {
	box
	spec  machine.Spec
	token string
	dir   string // of the runtime
}

func openForkable(t testing.TB, change func(*machine.Spec)) *forkable {
	t.Helper()
	f := &forkable{token: rand.Text()}
	cfg := config(t)
	f.spec = machine.Spec{
		ID: newID(), Hostname: "box", RootFS: cfg.RootFS, VCPUs: 2, MemoryMB: 2048, DiskMB: 1024,
		Network: sandbox.Network{Mode: sandbox.AllowAll},
	}
	gc := guest.Config{Hostname: "box", TokenSHA256: guest.HashToken(f.token), User: "vercel-sandbox", WorkDir: "/vercel/sandbox"}
	cfg.Spec(&f.spec, &gc)
	if change != nil {
		change(&f.spec)
	}
	var err error
	if f.spec.GuestConfig, err = json.Marshal(gc); err != nil {
		t.Fatal(err)
	}
	f.dir = t.TempDir()
	r := newRuntime(t, f.dir)
	in, err := r.Start(t.Context(), f.spec)
	if err != nil {
		t.Fatal(err)
	}
	f.runtime = r
	f.box = f.own(t, in)
	return f
}

func newID() string { return "c" + strings.ToLower(rand.Text()[:12]) }

// another returns the spec of another machine like f.
func (f *forkable) another() machine.Spec {
	spec := f.spec
	spec.ID = newID()
	return spec
}

// own makes a machine end with the test.
func (f *forkable) own(t testing.TB, in machine.Instance) box {
	c := guest.NewClient(in.DialGuest, f.token)
	t.Cleanup(func() {
		c.CloseIdleConnections()
		if err := in.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return box{in, c, f.runtime}
}

func (f *forkable) checkpoint(t testing.TB) string {
	t.Helper()
	p := f.params(t)
	if _, err := f.Instance.Checkpoint(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p.Dir
}

func (f *forkable) saveDisk(t testing.TB) string {
	t.Helper()
	p := f.params(t)
	if _, err := f.Instance.SaveDisk(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p.Dir
}

// params are to save f in a new directory.
func (f *forkable) params(t testing.TB) machine.SaveParams {
	images := map[string]string{"/": "image"}
	for _, m := range f.spec.Mounts {
		images[m.Target] = "mount"
	}
	return machine.SaveParams{Dir: t.TempDir(), Images: images, MaxBytes: 8 << 30}
}

func (f *forkable) fork(t testing.TB, n int) []box {
	t.Helper()
	boxes, _ := f.forked(t, n)
	return boxes
}

// forked is fork, and also returns how long the machine was paused.
func (f *forkable) forked(t testing.TB, n int) ([]box, time.Duration) {
	t.Helper()
	specs := make([]machine.Spec, n)
	for i := range specs {
		specs[i] = f.another()
	}
	forked, err := f.Instance.Fork(t.Context(), machine.ForkParams{Specs: specs})
	if err != nil {
		t.Fatal(err)
	}
	boxes := make([]box, n)
	for i, in := range forked.Instances {
		boxes[i] = f.own(t, in)
	}
	return boxes, time.Duration(forked.Paused)
}

func (f *forkable) restore(t testing.TB, dir string) box {
	t.Helper()
	in, err := f.runtime.Restore(t.Context(), f.another(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return f.own(t, in)
}

// numbers reads a command's output from a cursor on until a number is greater than after.
// It returns the numbers of all complete lines, and the next cursor.
func numbers(t testing.TB, b box, id string, cursor int64, after int) ([]int, int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := b.Output(ctx, id, sandbox.OutputParams{Cursor: cursor, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var text string
	var got []int
	for {
		ev, err := out.Next()
		if errors.Is(err, io.EOF) || ev.Exit != nil {
			t.Fatalf("the counter ended after %q", text)
		}
		if err != nil {
			t.Fatal(err)
		}
		text += string(ev.Data)
		for {
			line, rest, ok := strings.Cut(text, "\n")
			if !ok {
				break
			}
			n, err := strconv.Atoi(line)
			if err != nil {
				t.Fatalf("the counter wrote %q", line)
			}
			got, text, cursor = append(got, n), rest, cursor+int64(len(line))+1
			if n > after {
				return got, cursor
			}
		}
	}
}

// A machine's copies continue from its state, with the same processes, open files and
// output, independently; and so does the machine.
func TestCheckpoint_Fork(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	const counter = `
import os, threading, time
f = open("/vercel/sandbox/deleted", "w+"); os.unlink("/vercel/sandbox/deleted")
data = os.urandom(1 << 20)
open("/vercel/sandbox/kept", "wb").write(data)
open("/tmp/kept", "wb").write(data)
n = 0
def count():
    global n
    while True:
        n += 1
        f.seek(0); f.write(str(n)); f.flush(); f.seek(0)
        assert int(f.read()) == n and open("/vercel/sandbox/kept", "rb").read() == data == open("/tmp/kept", "rb").read()
        print(n, flush=True)
        time.sleep(0.01)
t = threading.Thread(target=count); t.start(); t.join()
`
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", counter}})
	if err != nil {
		t.Fatal(err)
	}
	before, cursor := numbers(t, f.box, cmd.ID, 0, 20)
	dir := f.checkpoint(t)
	last := before[len(before)-1]
	random := map[string]string{}
	for name, b := range map[string]box{"first": f.restore(t, dir), "second": f.restore(t, dir), "source": f.box} {
		goesOn(t, name, b, cmd, cursor, last)
		out, code := b.root(t, "cat /proc/sys/kernel/random/uuid")
		if other, ok := random[out]; ok || code != 0 {
			t.Errorf("%s and %s have the same random numbers: %s", name, other, out)
		}
		random[out] = name
	}
}

// goesOn makes sure that a counter continues after last.
func goesOn(t *testing.T, name string, b box, cmd *sandbox.Command, cursor int64, last int) {
	t.Helper()
	got, _ := numbers(t, b, cmd.ID, cursor, last+30)
	for i, n := range got {
		if n != last+1+i {
			t.Errorf("%s: after %d came %v", name, last, got)
			break
		}
	}
	now, err := b.GetCommand(t.Context(), cmd.ID)
	if err != nil {
		t.Fatal(err)
	}
	if now.PID != cmd.PID || now.Exit != nil {
		t.Errorf("%s: the counter is %+v, was process %d", name, now, cmd.PID)
	}
}

// counting starts a counter in a shell, and returns when it has begun.
func counting(t *testing.T, b box) (cmd *sandbox.Command, cursor int64, last int) {
	t.Helper()
	cmd, err := b.Start(t.Context(), sandbox.CommandParams{Argv: []string{"sh", "-c", "n=0; while :; do n=$((n+1)); echo $n; sleep 0.01; done"}})
	if err != nil {
		t.Fatal(err)
	}
	got, cursor := numbers(t, b, cmd.ID, 0, 3)
	return cmd, cursor, got[len(got)-1]
}

// Copies of a paused machine run, and so do copies of a copy, with other limits.
func TestCheckpoint_Generations(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, cursor, last := counting(t, f.box)
	if err := f.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := f.checkpoint(t)
	f.CloseIdleConnections()
	if err := f.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.box = f.restore(t, dir)
	goesOn(t, "child", f.box, cmd, cursor, last)
	f.spec.MemoryMB, f.spec.VCPUs = 512, 0.5
	goesOn(t, "grandchild", f.restore(t, f.checkpoint(t)), cmd, cursor, last)
}

// readopt has another daemon take the machine over.
func (f *forkable) readopt(t *testing.T) {
	t.Helper()
	f.CloseIdleConnections()
	if err := f.Detach(); err != nil {
		t.Fatal(err)
	}
	in, err := f.runtime.Adopt(t.Context(), f.ID())
	if err != nil {
		t.Fatal(err)
	}
	f.box = f.own(t, in)
}

// A machine is adopted even if its directory cannot be written, as on a full disk.
func TestAdopt_NoRoom(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	// The note of the new link is first written to this path.
	if err := os.Mkdir(filepath.Join(f.dir, f.ID(), "state.json.new"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 3 { // each time the name of the link is taken
		f.readopt(t)
		if _, err := f.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A machine on its second link, which has another name than the first link.
func TestCheckpoint_Adopted(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, cursor, last := counting(t, f.box)
	// Copies of copies have the links of all earlier machines in their kernels.
	for range 2 {
		for range 4 {
			f.readopt(t)
		}
		f.box = f.restore(t, f.checkpoint(t))
		goesOn(t, "copy", f.box, cmd, cursor, last)
	}
}

// A daemon that was killed while it adopted a machine has given it an unrecorded link.
// The next daemon adopts the machine all the same.
func TestAdopt_Killed(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, cursor, last := counting(t, f.box)
	record := filepath.Join(f.dir, f.ID(), "state.json")
	before, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.readopt(t)
		if err := os.WriteFile(record, before, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	goesOn(t, "adopted", f.box, cmd, cursor, last)
}

// A daemon that is killed while it destroys a machine may leave a running sentry without
// a control socket. The next daemon gets not_found for the machine, and ends it.
func TestAdopt_Destroying(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	if err := f.Detach(); err != nil {
		t.Fatal(err)
	}
	sockets := checktest.Must(filepath.Glob(filepath.Join(f.dir, f.ID(), "*.sock")))(t)
	if len(sockets) != 1 {
		t.Fatalf("its sockets are %q", sockets)
	}
	if err := os.Remove(sockets[0]); err != nil {
		t.Fatal(err)
	}
	rt := newRuntime(t, f.dir)
	_, err := rt.Adopt(t.Context(), f.ID())
	checktest.Code(t, err, cay.NotFound)
	pid := sentry(t, f.ID())
	if err := rt.Reap(t.Context(), f.ID()); err != nil {
		t.Fatal(err)
	}
	// A zombie process has no arguments.
	if argv, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); len(argv) > 0 {
		t.Errorf("its sentry runs: %q, %v", argv, err)
	}
}

// A machine from which several daemons have detached uses no CPU by itself.
func TestDetach_Idle(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	for range 10 {
		// The end of the connections is the last event the guest sees; right after it the
		// link's other end is gone.
		checktest.Must(f.Health(t.Context()))(t)
		f.readopt(t)
	}
	used := func() time.Duration { return time.Duration(checktest.Must(f.Stats(t.Context()))(t).CPU) }
	begun := used()
	const d, most = 2 * time.Second, 400 * time.Millisecond
	<-time.After(d)
	if took := used() - begun; took > most {
		t.Errorf("it took %v of CPU in %v", took, d)
	}
}

// A machine with something in memory, ten times.
func TestFork(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, cursor, last := counting(t, f.box)
	for _, b := range f.fork(t, 10) {
		goesOn(t, b.ID(), b, cmd, cursor, last)
	}
	goesOn(t, "source", f.box, cmd, cursor, last)
	if left, err := os.ReadDir(f.dir); err != nil || len(left) != 12 { // and emptyDir
		t.Errorf("the state directory has %v, %v", left, err)
	}
}

// A checkpoint that finds no disk space fails with an error, and the machine goes on.
func TestCheckpoint_Full(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	cmd, cursor, last := counting(t, f.box)
	if out, code := f.root(t, "head -c 50000000 /dev/urandom > /big"); code != 0 {
		t.Fatal(out)
	}
	p := f.params(t)
	if err := unix.Mount("full", p.Dir, "tmpfs", 0, "size=20m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(p.Dir, unix.MNT_DETACH) })
	for name, save := range map[string]func(context.Context, machine.SaveParams) (*machine.State, error){
		"memory": f.Instance.Checkpoint, "disk": f.Instance.SaveDisk,
	} {
		if _, err := save(t.Context(), p); cay.CodeOf(err) != cay.NoSpace || strings.Contains(err.Error(), "goroutine") {
			t.Errorf("%s: %v, want no_space", name, err)
		}
		if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
	}
	goesOn(t, "machine", f.box, cmd, cursor, last)
}

// A save that is cancelled at any point leaves nothing behind, and the machine goes on.
func TestCheckpoint_Canceled(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	if out, code := f.root(t, "head -c 200000000 /dev/urandom > /big"); code != 0 {
		t.Fatal(out)
	}
	cmd, cursor, last := counting(t, f.box)
	for name, save := range map[string]func(context.Context, machine.SaveParams) (*machine.State, error){
		"memory": f.Instance.Checkpoint, "disk": f.Instance.SaveDisk,
	} {
		for _, after := range []time.Duration{1, 5, 10, 15, 20, 25, 30, 60, 90} {
			p := f.params(t)
			ctx, cancel := context.WithTimeout(t.Context(), after*time.Millisecond)
			if _, err := save(ctx, p); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			cancel()
			if left, err := os.ReadDir(p.Dir); err != nil || len(left) > 0 {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
			goesOn(t, "machine after "+name, f.box, cmd, cursor, last)
		}
	}
	goesOn(t, "copy", f.restore(t, f.checkpoint(t)), cmd, cursor, last)
}

// The memory of an adopted machine whose guest's program is gone is saved, and refused at
// the restore.
func TestCheckpoint_WithoutProgram(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	f.restore(t, f.checkpoint(t)) // the program is there
	path := filepath.Join(f.dir, f.ID(), "state.json")
	for _, tool := range []string{`"/no/such/file"`, `""`} { // "": an earlier version has recorded none
		text := checktest.Must(os.ReadFile(path))(t)
		changed := regexp.MustCompile(`"tool":\s*"[^"]*"`).ReplaceAll(text, []byte(`"tool":`+tool))
		if bytes.Equal(changed, text) {
			t.Fatalf("no tool in %s", text)
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		f.readopt(t)
		_, err := f.runtime.Restore(t.Context(), f.another(), f.checkpoint(t))
		checktest.Code(t, err, cay.NotSupported)
	}
}
