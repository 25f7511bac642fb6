package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// socketName is the socket in a data directory by which its process is asked to let another
// take over. Only the user of the process can open it, who may replace the process anyway.
const socketName = "control.sock"

// Request asks to be replaced. Program is an absolute path; empty means the path that the
// process was started from.
type Request struct {
	Program string `json:"program"`
}

// Result says what has become of a request.
type Result struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
}

// answer is a line of the socket.
type answer struct {
	Result *Result     `json:"result,omitempty"`
	Error  *wire.Error `json:"error,omitempty"`
}

const (
	// askTimeout bounds the wait for a request that a caller has announced.
	askTimeout = 5 * time.Second
	maxRequest = 16 << 10
)

// Control serves the socket of a data directory.
type Control struct {
	l    *net.UnixListener
	ask  func(Request) (*Result, error)
	log  *slog.Logger
	work sync.WaitGroup
}

// Serve serves the socket in dir, whose lock the caller holds. ask answers one request; it
// may be called from several goroutines.
func Serve(dir string, log *slog.Logger, ask func(Request) (*Result, error)) (*Control, error) {
	path := filepath.Join(dir, socketName)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	c := &Control{ask: ask, log: log}
	err := inDir(dir, func(short string) (err error) {
		c.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	c.l.SetUnlinkOnClose(false) // by then it may be another process's
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close the socket to others: %w", err), c.l.Close())
	}
	c.work.Go(c.accept)
	return c, nil
}

func (c *Control) accept() {
	for {
		conn, err := c.l.AcceptUnix()
		if err != nil {
			return
		}
		c.work.Go(func() {
			defer conn.Close()
			c.serve(conn)
		})
	}
}

func (c *Control) serve(conn *net.UnixConn) {
	var r Request
	if conn.SetReadDeadline(time.Now().Add(askTimeout)) != nil || json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&r) != nil {
		return // nobody who asks
	}
	var a answer
	var err error
	if a.Result, err = c.ask(r); err != nil {
		e, ok := errors.AsType[*cay.Error](err)
		if !ok {
			e = cay.Errorf(cay.Internal, "%w", err)
		}
		a.Error = wire.FromError(e)
	}
	if err := json.NewEncoder(conn).Encode(a); err != nil {
		c.log.Warn("who asked for an upgrade did not hear its result", "error", err)
	}
}

// Close stops accepting requests. Those under way are answered; Wait waits for them.
func (c *Control) Close() error {
	if c == nil {
		return nil
	}
	return c.l.Close()
}

// Wait returns when all requests were answered.
func (c *Control) Wait() {
	if c != nil {
		c.work.Wait()
	}
}

// Ask asks the process of a data directory to be replaced. Errors: unavailable if none runs
// there; those of the process.
func Ask(ctx context.Context, dir string, r Request) (*Result, error) {
	var conn net.Conn
	err := inDir(dir, func(short string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
		return nil, cay.Errorf(cay.Unavailable, "no daemon runs on the data directory %q, or one of a version that cannot be upgraded while it runs", dir).
			WithHint("name its directory with --data")
	case errors.Is(err, fs.ErrPermission):
		return nil, cay.Errorf(cay.PermissionDenied, "the daemon of %q belongs to another user", dir)
	case err != nil:
		return nil, fmt.Errorf("ask the daemon of %s: %w", dir, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return nil, fmt.Errorf("ask the daemon of %s: %w", dir, err)
	}
	var a answer
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&a); err != nil {
		if ctx.Err() != nil {
			return nil, wire.ContextError(ctx)
		}
		return nil, cay.Errorf(cay.Unavailable, "the daemon ended before it answered: %w", err).WithHint("its log has the reason")
	}
	if a.Error != nil {
		return nil, a.Error.Err()
	}
	return a.Result, nil
}

// inDir calls f with a path of the socket in dir that is short enough for its address,
// however long dir is.
func inDir(dir string, f func(short string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), socketName))
}
