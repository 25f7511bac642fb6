package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
)

// longCall is the connection of a call that lasts as long as the machine. The client of
// gVisor's urpc waits for the answer in poll(2), which takes a thread of the operating
// system for each machine. A longCall waits in Go's poller. It passes no files.
type longCall struct{ file *os.File }

// maxAnswer bounds the answer to a longCall, in bytes.
const maxAnswer = 64 << 10

// connectLong opens the connection of a longCall. Errors: those of dialControl.
func connectLong(st *state) (*longCall, error) {
	s, err := dialControl(st)
	if err != nil {
		return nil, err
	}
	return &longCall{os.NewFile(uintptr(s), "sentry")}, nil
}

// Call calls a method once, and waits for its answer or for Close. Errors:
// urpc.RemoteError if the method has failed.
func (c *longCall) Call(method string, arg, result any) error {
	text, err := json.Marshal(map[string]any{"method": method, "arg": arg})
	if err != nil {
		return err
	}
	if _, err := c.file.Write(text); err != nil {
		return fmt.Errorf("call %s of sentry: %w", method, err)
	}
	answer := struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
		Result  any    `json:"result"`
	}{Result: result}
	if err := json.NewDecoder(io.LimitReader(c.file, maxAnswer)).Decode(&answer); err != nil {
		return fmt.Errorf("wait for %s of sentry: %w", method, err)
	}
	if !answer.Success {
		return urpc.RemoteError{Message: answer.Err}
	}
	return nil
}

// Close closes the connection, which ends the call under way. Closing twice is allowed.
func (c *longCall) Close() error {
	if err := c.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// awaitExit returns when a child has ended, which the caller then collects. os.Process
// alone waits in a system call, which takes a thread for each child. Without descriptors
// left, awaitExit returns at once, and the caller waits in that way.
func awaitExit(pid int) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return
	}
	file := os.NewFile(uintptr(fd), "process")
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool { // an error: the poller does not take it
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
