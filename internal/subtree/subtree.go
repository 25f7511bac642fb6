// Package subtree signals and ends all descendants of this process, also those whose
// own parents have ended. It is for a process that runs one command and must end all
// of the command's processes.
//
// Call Adopt before the command is started. After a call of End no other goroutine
// may wait for a child.
package subtree

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Adopt makes this process the parent of every descendant whose parent ends.
func Adopt() error {
	return os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
}

// Signal sends a signal to every descendant that has not ended. A descendant that ends
// meanwhile is no error.
func Signal(sig unix.Signal) error {
	pids, err := descendants()
	if err != nil {
		return err
	}
	var failed []error
	for _, pid := range pids {
		if err := unix.Kill(pid, sig); err != nil && err != unix.ESRCH {
			failed = append(failed, fmt.Errorf("signal process %d: %w", pid, err))
		}
	}
	return errors.Join(failed...)
}

// killTime is how long a killed process may take to end.
const killTime = 10 * time.Second

// End waits until this process has no descendants. When ctx ends, End kills the
// remaining ones. The error names the processes that have not ended 10 seconds after
// that.
func End(ctx context.Context) error {
	var killing atomic.Bool
	ended := make(chan error, 1)
	go func() { ended <- reap(&killing) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	killing.Store(true)
	failed := Signal(unix.SIGKILL)
	late := time.NewTimer(killTime)
	defer late.Stop()
	select {
	case err := <-ended:
		return err
	case <-late.C:
	}
	left, err := descendants()
	return errors.Join(fmt.Errorf("processes %v have been killed, and have not ended after %v", left, killTime), failed, err)
}

// reap waits for children until there are none. While killing is set, reap kills the
// remaining processes after each wait: processes that a child started just before it
// ended have become children of this process by then.
func reap(killing *atomic.Bool) error {
	for {
		_, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case err == unix.ECHILD:
			return nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return os.NewSyscallError("wait4", err)
		}
		if killing.Load() {
			_ = Signal(unix.SIGKILL) // End tells what is left
		}
	}
}

// descendants returns the ids of all processes below this one that have not ended.
func descendants() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	ended := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		// The name of the program is in parentheses, and may itself contain
		// parentheses and blanks.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(string(fields[1]))
		if err != nil {
			continue
		}
		children[parent] = append(children[parent], pid)
		ended[pid] = fields[0][0] == 'Z' || fields[0][0] == 'X'
	}
	var out []int
	for next := children[os.Getpid()]; len(next) > 0; {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		if !ended[pid] {
			out = append(out, pid)
		}
	}
	return out, nil
}
