package bench

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// newSession makes a process the leader of its own session, so that the
// terminal's signals do not reach it.
func newSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// spawner starts processes in a mount namespace without the version 2 cgroups that
// hosts with version 1 may have beside it: crun refuses such a mixture. The
// namespace costs the processes nothing, and us one thread.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

const mixedCgroups = "/sys/fs/cgroup/unified"

func newSpawner() (*spawner, error) {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(s.done)
		// Never unlocked: a thread in another namespace must end with its goroutine.
		runtime.LockOSThread()
		err := hideMixedCgroups()
		ready <- err
		if err != nil {
			return
		}
		for job := range s.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

func hideMixedCgroups() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	err := unix.Unmount(mixedCgroups, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not mounted
		return fmt.Errorf("unmount %s: %w", mixedCgroups, err)
	}
	return nil
}

// start starts a process; the caller waits for it.
func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread. No process is being started then.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}
