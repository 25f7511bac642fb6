// Package handover lets a server be replaced by another process without closing its
// listening sockets: the old process starts the new one, passes the sockets on, stops, and
// lets the new one begin. Connections that arrive between wait in the sockets' queues. If
// the new process fails, the old one, which is still there, goes on.
//
// # Protocol
//
// The two processes talk over a socket pair, one message of JSON for each step:
//
//	old                                  new
//	starts it
//	sockets: names, addresses, files ->
//	                                 <-  waiting: it has read its configuration
//	stops, and frees what it holds
//	begin                            ->
//	                                     opens what the old one has freed
//	                                 <-  serving
//	ended                            ->
//	exits
//
// The end of the old process counts as begin, so that its death stops nobody. Whatever else
// the new process says, and its end, is a failure.
//
// The package knows no daemon. It also takes sockets from systemd (socket activation).
package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sockets are listening sockets that were inherited, by name. A nil *Sockets has none. The
// methods may be called concurrently.
type Sockets struct {
	mu   sync.Mutex // guards open
	open map[string]socket
}

type socket struct {
	file *os.File
	fd   int // of file; Fd would make the socket block
	// address is where the socket was asked to listen; "" if whoever opened the socket
	// decides that, whatever the configuration says.
	address string
}

// Listen returns the inherited socket of that name, if it listens on that address, or else
// a new one. An inherited socket can be had once.
func (s *Sockets) Listen(ctx context.Context, name, address string) (net.Listener, error) {
	if f, ok := s.take(name); ok {
		defer f.file.Close()
		if f.address == "" || f.address == address {
			l, err := net.FileListener(f.file)
			if err != nil {
				return nil, fmt.Errorf("take over the socket %q: %w", name, err)
			}
			return l, nil
		}
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

func (s *Sockets) take(name string) (socket, bool) {
	if s == nil {
		return socket{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.open[name]
	delete(s.open, name)
	return f, ok
}

// Close closes the sockets that nobody took.
func (s *Sockets) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.open {
		f.file.Close()
	}
	s.open = nil
}

// firstFD is the first descriptor that systemd passes.
const firstFD = 3

// FromSystemd returns the sockets of a unit (sd_listen_fds(3)), nil if there are none. They
// have the names of FileDescriptorName=. lookup is os.Getenv, pid the process's id. Call it
// once, before this process starts others.
func FromSystemd(lookup func(string) string, pid int) (*Sockets, error) {
	if lookup("LISTEN_PID") != strconv.Itoa(pid) {
		return nil, nil
	}
	n, err := strconv.Atoi(lookup("LISTEN_FDS"))
	if err != nil || n < 0 || n > 16 {
		return nil, fmt.Errorf("LISTEN_FDS is %q, not a number of sockets", lookup("LISTEN_FDS"))
	}
	names := strings.Split(lookup("LISTEN_FDNAMES"), ":")
	s := &Sockets{open: make(map[string]socket)}
	for i := range n {
		fd := firstFD + i
		unix.CloseOnExec(fd)
		name := ""
		if i < len(names) {
			name = names[i]
		}
		if _, ok := s.open[name]; ok {
			s.Close()
			return nil, fmt.Errorf("systemd passes two sockets with the name %q", name)
		}
		s.open[name] = socket{file: os.NewFile(uintptr(fd), name), fd: fd}
	}
	return s, nil
}

// Shared is a listening socket of this process, to be passed on.
type Shared struct {
	Name     string
	Address  string // as given to Listen
	Listener net.Listener
}

// share returns copies of the sockets. They stay open when the listeners are closed.
func share(all []Shared) (*Sockets, error) {
	s := &Sockets{open: make(map[string]socket)}
	for _, l := range all {
		fd, err := copyOf(l.Listener)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("copy the socket %q: %w", l.Name, err)
		}
		s.open[l.Name] = socket{os.NewFile(uintptr(fd), l.Name), fd, l.Address}
	}
	return s, nil
}

// copyOf returns a copy of a listener's descriptor. It does not use File, whose descriptor
// becomes blocking when it is passed on, and with it the listener's.
func copyOf(l net.Listener) (int, error) {
	c, ok := l.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a %T has no descriptor", l)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	cerr := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(cerr, err)
}
