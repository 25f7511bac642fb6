package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// A sentry that gets the signal of a crash counts as crashed, although it may have passed
// the signal on to the guest's init.
func TestExit_Crash(t *testing.T) {
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGSEGV, unix.SIGABRT, unix.SIGKILL} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			b := open(t, nil)
			if err := unix.Kill(sentry(t, b.ID()), sig); err != nil {
				t.Fatal(err)
			}
			if x := b.Exit(); x.Reason != sandbox.ReasonCrashed || sig != unix.SIGKILL && !strings.Contains(x.Message, "signal") {
				t.Errorf("it ended with %+v", x)
			}
		})
	}
}

// The next call of Destroy frees the parts of a machine that could not be freed.
func TestDestroy_Again(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	inTheWay := filepath.Join(cgroupDirs(t, f.ID())[0], "in-the-way")
	if err := os.Mkdir(inTheWay, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(inTheWay) }) // it may be gone
	if err := f.Destroy(t.Context()); err == nil {
		t.Fatal("its cgroup holds another, and was removed")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if err := f.Destroy(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if left := cgroupDirs(t, f.ID()); len(left) != 0 {
		t.Errorf("left are %v", left)
	}
	if left, err := filepath.Glob(filepath.Join(f.dir, f.ID(), "*")); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// cgroupDirs returns the directories of a machine's cgroup.
func cgroupDirs(t *testing.T, id string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/cay/", "/sys/fs/cgroup/*/cay/"} {
		dirs, err := filepath.Glob(pattern + id)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, dirs...)
	}
	return all
}

// Row S7: many machines restored from one memory at once all answer, and share the pages
// that they do not write.
func TestRestore_Many(t *testing.T) {
	t.Parallel()
	const (
		machines = 10
		dirty    = 32 // MiB
	)
	f := openForkable(t, nil)
	cmd, err := f.Start(t.Context(), sandbox.CommandParams{Argv: []string{"python3", "-c", fmt.Sprintf(
		"import os, time\nx = os.urandom(%d << 20)\nn = 0\nwhile True:\n  n += 1\n  print(n, flush=True)\n  time.sleep(.05)", dirty)}})
	if err != nil {
		t.Fatal(err)
	}
	got, cursor := numbers(t, f.box, cmd.ID, 0, 3)
	last := got[len(got)-1]
	dir := f.checkpoint(t)
	specs := make([]machine.Spec, machines)
	boxes, errs := make([]machine.Instance, machines), make(chan error, machines)
	for i := range specs {
		specs[i] = f.another()
		go func() {
			var err error
			boxes[i], err = f.runtime.Restore(t.Context(), specs[i], dir)
			errs <- err
		}()
	}
	for range machines {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	source := pssKiB(t, sentry(t, f.ID())) >> 10
	var sum int64
	for _, in := range boxes {
		if in == nil {
			continue
		}
		b := f.own(t, in)
		goesOn(t, b.ID(), b, cmd, cursor, last)
		sum += pssKiB(t, sentry(t, b.ID())) >> 10
	}
	t.Logf("%d machines with %d MiB that they wrote take %d MiB each; the first takes %d MiB", machines, dirty, sum/machines, source)
	if sum > machines*source {
		t.Errorf("%d machines take %d MiB, which is more than %d for each", machines, sum, source)
	}
}
