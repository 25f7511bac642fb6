// Package flock locks open files and directories between processes, and between
// the parts of one, with flock(2).
package flock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process holds a lock.
var ErrLocked = errors.New("locked")

// Lock locks f; how is unix.LOCK_SH or LOCK_EX, with LOCK_NB to get ErrLocked
// instead of waiting. The lock belongs to the open file: it ends with [Close], or
// when f is closed in every process that has it.
func Lock(f *os.File, how int) error {
	for {
		switch err := unix.Flock(int(f.Fd()), how); err {
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return ErrLocked
		default:
			return os.NewSyscallError("flock", err)
		}
	}
}

// Close unlocks f, then closes it. Closing alone could leave the lock for a
// moment to the child of a fork, which has every open file until its exec.
func Close(f *os.File) error {
	err := Lock(f, unix.LOCK_UN)
	return errors.Join(err, f.Close())
}
