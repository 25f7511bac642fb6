package gvisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// tableFile is above the highest file descriptor of a sentry, 255.
const tableFile = 256

// enoughFiles is a limit of open files with which hundreds of sandboxes can run.
const enoughFiles = 65536

// growFileTable opens a file, to be closed by the caller, with a descriptor so high that
// this process's table of open files is larger than any sentry's.
//
// A sentry moves its standard streams to descriptors 253 to 255 when it starts. To grow
// the table of a process that has threads, Linux waits until all CPUs have stopped using
// the old table (synchronize_rcu), which takes 17 ms. A child begins with a table as
// large as its parent's, and keeps it when it executes a program, so that a sentry's
// table is large enough.
func growFileTable() (*os.File, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return dupAbove(null, tableFile)
}

// dupAbove opens f once more, as descriptor least or above. Errors: not_supported if this
// process may not have so many descriptors.
func dupAbove(f *os.File, least int) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, least)
	if err == unix.EINVAL || err == unix.EMFILE { // above the limit, or all below it are taken
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return nil, fmt.Errorf("get limit of open files: %w", err)
		}
		return nil, cay.Errorf(cay.NotSupported, "this process may have %d files open, which is too few to start sandboxes", limit.Cur).
			WithHint("raise the limit to %d or more: ulimit -n, or LimitNOFILE= of a systemd unit", enoughFiles)
	}
	if err != nil {
		return nil, fmt.Errorf("open a file as descriptor %d or above: %w", least, err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
