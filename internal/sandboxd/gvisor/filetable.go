package gvisor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// tableFile is above the highest file descriptor of a sentry, 255.
const tableFile = 256

// growFileTable opens a file, to be closed by the caller, whose number makes this
// process's table of open files larger than any sentry's.
//
// A sentry moves its standard streams to descriptors 253 to 255 when it starts. To
// grow the table of a process that has threads by then Linux waits for all
// processors to have seen the old one (synchronize_rcu), 17 ms of nothing. A child
// begins with a table as large as its parent's, and keeps it when it executes a
// program, so that a sentry finds room.
func growFileTable() (*os.File, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return dupAbove(null, tableFile)
}

// dupAbove opens f once more, as descriptor least or above.
func dupAbove(f *os.File, least int) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, least)
	if err != nil {
		return nil, fmt.Errorf("open a file as descriptor %d or above: %w", least, err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
