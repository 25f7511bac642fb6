package workflowd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/workflow"
)

// Socket serves an engine to this machine on a unix socket, so that people can see and
// act on the runs of an embedded database while its program has it open: "cay workflow
// --db". The users who may open the socket, its owner and root, have all rights.
type Socket struct {
	path   string
	routes *Routes
	server *http.Server
	served chan error
}

// socketToken replaces the token that requests to a daemon carry.
const socketToken = "socket"

// owner gives all rights to every caller that could open the socket.
type owner struct{}

func (owner) Authenticate(_ context.Context, secret string) (api.Principal, error) {
	if secret != socketToken {
		return api.Principal{}, cay.Errorf(cay.Unauthenticated, "a token of a daemon is not for a socket")
	}
	return api.Principal{Admin: true}, nil
}

// SocketPath returns the path of the socket of a database file.
func SocketPath(database string) string { return database + ".sock" }

// ServeSocket serves an engine at path. The caller holds the lock of the database, so a
// socket that exists already is left over from a dead process.
func ServeSocket(path string, backends Backends, logger *slog.Logger) (*Socket, error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	var l *net.UnixListener
	err := withShortPath(path, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // the listener knows the short path only
	s := &Socket{path: path, served: make(chan error, 1)}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket to others: %w", err), l.Close(), os.Remove(path))
	}
	mux := api.NewMux(owner{})
	s.routes = NewRoutes(mux, backends, nil)
	s.server = api.NewServer(mux, nil, logger)
	go func() { s.served <- s.server.Serve(l) }()
	return s, nil
}

// socketDrain is how long running requests may take to finish.
const socketDrain = 2 * time.Second

// Close stops serving and removes the socket.
func (s *Socket) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), socketDrain)
	defer cancel()
	var errs []error
	if err := s.server.Shutdown(ctx); err != nil { // a caller follows a run
		errs = append(errs, s.server.Close())
	}
	s.routes.Close()
	if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
		errs = append(errs, fmt.Errorf("serve %s: %w", s.path, err))
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// DialSocket returns the backend behind a socket. Errors: not_found if there is no
// socket, or no process serves it.
func DialSocket(ctx context.Context, path string) (workflow.Backend, error) {
	dial := func(ctx context.Context) (conn net.Conn, err error) {
		err = withShortPath(path, func(short string) (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
			return err
		})
		return conn, err
	}
	conn, err := dial(ctx)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, cay.Errorf(cay.NotFound, "no program serves %s: %w", path, err)
	}
	if err != nil {
		return nil, cay.Errorf(cay.Unavailable, "cannot reach the program behind %s: %w", path, err)
	}
	conn.Close() // the connection was only a test
	t := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
	}
	b, err := workflow.Dial(workflow.RemoteOptions{URL: "http://localhost", Token: socketToken, HTTPClient: &http.Client{Transport: t}})
	if err != nil {
		return nil, err
	}
	return &socketBackend{b, t}, nil
}

// socketBackend is a backend with its own connections.
type socketBackend struct {
	workflow.Backend
	transport *http.Transport
}

func (b *socketBackend) Close() error {
	b.transport.CloseIdleConnections()
	return b.Backend.Close()
}

// maxSocketPath is the longest socket path that the kernel accepts.
const maxSocketPath = 107

// withShortPath calls f with a path that leads to path and is short enough for the
// kernel.
func withShortPath(path string, f func(short string) error) error {
	if len(path) <= maxSocketPath {
		return f(path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close() // the directory was only opened for its descriptor
	return f("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path))
}
