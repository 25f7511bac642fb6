package gvisor

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// Forked machines start to read the files of their checkpoint while the pager writes
// them. Readers wait for a lock: Fork locks each file from its first byte on, and the
// pager that writes the file unlocks each complete part. The lock belongs to the open
// file description that Fork and the pager share. So if the pager dies the lock stays,
// until Fork has made sure that nobody takes a part for the whole file.

// lockFile locks an open file as a whole, including bytes that it does not have yet.
func lockFile(fd int) error { return setLock(unix.F_OFD_SETLK, fd, unix.F_WRLCK, 0, 0) }

// unlockFile unlocks n bytes of a file from off on, or all bytes from off on if n is 0,
// whether they were locked or not.
func unlockFile(fd int, off, n int64) error {
	return setLock(unix.F_OFD_SETLK, fd, unix.F_UNLCK, off, n)
}

// awaitUnlocked returns when no other open file description locks any of n bytes of a
// file from off on, or all bytes from off on if n is 0.
func awaitUnlocked(fd int, off, n int64) error {
	if err := setLock(unix.F_OFD_SETLKW, fd, unix.F_RDLCK, off, n); err != nil {
		return err
	}
	return unlockFile(fd, off, n)
}

func setLock(cmd, fd int, kind int16, off, n int64) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: off, Len: n})
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock checkpoint: %w", err)
		}
	}
}

// lock locks files that are about to be written.
func (files openFiles) lock() error {
	for _, f := range files {
		if err := lockFile(int(f.Fd())); err != nil {
			return err
		}
	}
	return nil
}

// unlock wakes the readers of files that were being written. If the files are not whole,
// it truncates them, so that the readers get nothing.
func (files openFiles) unlock(whole bool) error {
	var errs []error
	for _, f := range files {
		if !whole {
			errs = append(errs, f.Truncate(0))
		}
		errs = append(errs, unlockFile(int(f.Fd()), 0, 0))
	}
	return errors.Join(errs...)
}
