package docker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

const (
	// maxPath is the longest path of a unix socket, in bytes.
	maxPath = 107
	// maxFirst is how much longer than its directory the path is that the socket has
	// before it gets its own.
	maxFirst = 16
)

// Listen listens on a unix socket at a path, which only this user can connect to.
// It makes missing parent directories, for this user alone, and replaces the
// socket of a server that has ended. Errors: invalid, already_exists (a server
// answers there), unavailable.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if max(len(path), len(filepath.Dir(path))+maxFirst) > maxPath {
		return nil, cay.Errorf(cay.Invalid, "the path %q of the socket has %d bytes; it may have %d, and its directory %d", path, len(path), maxPath, maxPath-maxFirst)
	}
	if err := clearPath(ctx, path); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, cay.Errorf(cay.Unavailable, "make the directory of the socket: %w", err)
	}
	// The socket gets its mode in a directory that is closed to others, and its name after that.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, cay.Errorf(cay.Unavailable, "make the socket: %w", err)
	}
	defer os.RemoveAll(dir) // empty by then
	made := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, cay.Errorf(cay.Unavailable, "make the socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, path)); err != nil {
		return nil, errors.Join(cay.Errorf(cay.Unavailable, "make the socket: %w", err), l.Close())
	}
	return &listener{UnixListener: l, path: path, slots: make(chan struct{}, maxConnections), closed: make(chan struct{})}, nil
}

// clearPath removes a socket that nobody listens on.
func clearPath(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return cay.Errorf(cay.Unavailable, "look at the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return cay.Errorf(cay.AlreadyExists, "%s is there, and is no socket", path).WithHint("name another path with --socket")
	}
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		c.Close()
		return cay.Errorf(cay.AlreadyExists, "another program serves %s", path).WithHint("end it, or name another path with --socket")
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	}
	return cay.Errorf(cay.Unavailable, "look who serves %s: %w", path, err)
}

// listener bounds how many connections are open at a time, and removes the socket
// when it is closed.
type listener struct {
	*net.UnixListener
	path   string
	slots  chan struct{}
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptUnix()
	if err != nil {
		<-l.slots
		return nil, err
	}
	return &conn{UnixConn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	err := l.UnixListener.Close()
	l.once.Do(func() {
		close(l.closed)
		os.Remove(l.path) // its absence is all that is wanted
	})
	return err
}

// conn is a connection that counts.
type conn struct {
	*net.UnixConn
	release func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	defer c.release()
	return c.UnixConn.Close()
}

// hungUp reports whether the other end is closed, and not only half of it.
func (c *conn) hungUp() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		gone = err == nil && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone || err != nil
}
