package gvisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"

	"github.com/cayhq/cay"
)

// A sentry executes requests that depend on the guest, and can hang in them. So every
// call of a sentry has a deadline, ends with the caller's context, and closes its
// connection when it is given up. The exceptions are the two calls that report an end,
// which wait as long as the machine lives: ContMgrWait, and the wait for the rest of a
// restore.

const (
	// answerTimeout bounds a call that takes a sentry no time.
	answerTimeout = 10 * time.Second
	// startTimeout bounds a start: the boot of an image, from the call to the guest's
	// connection to ReadyPort, or a restore, until the guest's processes run.
	startTimeout = 60 * time.Second
)

// errNoSocket is returned by connect if the sentry's control socket does not exist.
var errNoSocket = errors.New("the machine's control socket is gone")

// connect opens a connection to the sentry's control socket. Errors: errNoSocket,
// unavailable.
func connect(st *state) (*urpc.Client, error) {
	s, err := dialControl(st)
	if err != nil {
		return nil, err
	}
	sock, err := unet.NewSocket(s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connect to sentry: %w", err), unix.Close(s))
	}
	return urpc.NewClient(sock), nil
}

// dialControl returns a non-blocking socket that is connected to the sentry's control
// socket. It connects through an open descriptor, because the path may be too long for
// connect(2), and does not wait for a sentry that accepts no connections. Errors:
// errNoSocket, unavailable.
func dialControl(st *state) (int, error) {
	fd, err := unix.Open(st.Sandbox.GetControlSocketPath(), unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return -1, errNoSocket
	}
	if err != nil {
		return -1, fmt.Errorf("find sentry: %w", err)
	}
	defer unix.Close(fd)
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("connect to sentry: %w", err)
	}
	if err := unix.Connect(s, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", fd)}); err != nil {
		unix.Close(s)
		if errors.Is(err, unix.EAGAIN) {
			return -1, cay.Errorf(cay.Unavailable, "the machine's kernel accepts no connections")
		}
		return -1, fmt.Errorf("connect to sentry: %w", err)
	}
	return s, nil
}

// callWithin calls method on conn, and closes conn if the answer has not come after
// timeout, or when ctx ends. Errors: the cause of ctx, unavailable after timeout, or the
// sentry's own error.
func callWithin(ctx context.Context, timeout time.Duration, conn *urpc.Client, method string, args any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		cay.Errorf(cay.Unavailable, "the machine's kernel did not answer %s within %v", method, timeout))
	defer cancel()
	// The client's own Close waits for the call under way.
	abort := context.AfterFunc(ctx, func() { conn.Socket.Close() })
	err := conn.Call(method, args, nil)
	if !abort() && err != nil {
		return context.Cause(ctx)
	}
	return sentryError(err)
}
