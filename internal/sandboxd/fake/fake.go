// Package fake is a machine.Runtime that isolates nothing: machines are directories,
// their guest is package agent in this process, and their commands are ordinary processes
// of the host with the caller's user. It serves tests of the layers above a Runtime, and
// must never run a tenant's code.
//
// It saves the files of machines, not their processes.
//
// A fake machine differs from a real one. Absolute paths of commands are the host's;
// relative paths, and those of file methods, are the machine's. There is one user.
// Network policies, limits of disk and memory, and sizes and read-only modes of drives
// are stored, but not enforced. Drives cannot hide files. Certificates are installed in
// the machine's directory, but its commands use the host's.
package fake

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// Runtime keeps its machines below one directory. A new Runtime over the same directory
// finds them running if it is in the same process, and dead in a later process.
type Runtime struct {
	dir string

	mu        sync.Mutex // guards the fields below
	closed    bool
	failStart func(machine.Spec) error
}

// New returns a Runtime over dir, which it creates if it is missing.
func New(dir string) (*Runtime, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &Runtime{dir: dir}, nil
}

// FailStart sets a function that every later Start calls. If fail returns an error, Start
// fails with that error, at a point where there is something to undo. Nil ends that.
func (r *Runtime) FailStart(fail func(machine.Spec) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failStart = fail
}

// registry corresponds to the host's process table for a real Runtime: machines outlive
// the Runtime that started them.
var registry = struct {
	mu       sync.Mutex
	machines map[string]*box // by directory
}{machines: map[string]*box{}}

// Start implements machine.Runtime.
func (r *Runtime) Start(ctx context.Context, spec machine.Spec) (machine.Instance, error) {
	return r.start(ctx, spec, func(root string) error {
		if spec.RootFS == "" {
			return nil
		}
		return os.CopyFS(root, os.DirFS(spec.RootFS))
	})
}

// start starts a machine; fill creates its root directory.
func (r *Runtime) start(ctx context.Context, spec machine.Spec, fill func(root string) error) (machine.Instance, error) {
	r.mu.Lock()
	closed, fail := r.closed, r.failStart
	r.mu.Unlock()
	if closed {
		return nil, errClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	cfg, err := guest.ParseConfig(spec.GuestConfig)
	if err != nil {
		return nil, err
	}
	saved, err := openDrives(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer saved.close()
	dir := r.machineDir(spec.ID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, cay.Errorf(cay.AlreadyExists, "machine %q exists", spec.ID)
		}
		return nil, err
	}
	m, err := boot(ctx, dir, spec, cfg, fill, saved)
	if err == nil && fail != nil {
		if err = fail(spec); err != nil {
			m.end(machine.Exit{Reason: sandbox.ReasonStartFailed, Message: err.Error()})
		}
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
		m.end(machine.Exit{Reason: sandbox.ReasonRequested})
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	registry.mu.Lock()
	registry.machines[dir] = m
	registry.mu.Unlock()
	return m.attach(), nil
}

var errClosed = cay.Errorf(cay.Unavailable, "the runtime is closed")

func (r *Runtime) machineDir(id string) string { return filepath.Join(r.dir, id) }

func find(dir string) *box {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	return registry.machines[dir]
}

// Adopt implements machine.Runtime.
func (r *Runtime) Adopt(ctx context.Context, id string) (machine.Instance, error) {
	m := find(r.machineDir(id))
	if m == nil || m.ended() {
		return nil, cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	return m.attach(), nil
}

// List implements machine.Runtime.
func (r *Runtime) List(ctx context.Context) ([]string, error) {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids, nil
}

// Reap implements machine.Runtime. It also kills processes of a machine whose guest died
// with an earlier test process.
func (r *Runtime) Reap(ctx context.Context, id string) error {
	dir := r.machineDir(id)
	if m := find(dir); m != nil {
		return m.remove()
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := killMarked(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// Close implements machine.Runtime.
func (r *Runtime) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

// marker is the environment variable that marks the processes of a machine.
const marker = "CAY_FAKE_MACHINE="

// killMarked kills all processes of a machine.
func killMarked(dir string) error {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	want := []byte(marker + dir)
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", p.Name(), "environ"))
		if err != nil {
			continue // ended, or another user's, so not a machine's
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(kv, want) {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
		}
	}
	return nil
}

// Kill ends a running machine as if by itself, with the given exit.
func (r *Runtime) Kill(id string, exit machine.Exit) error {
	m := find(r.machineDir(id))
	if m == nil {
		return cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.end(exit)
	return nil
}

// Outbound offers a connection of a running machine to its owner's handler.
func (r *Runtime) Outbound(ctx context.Context, id string, o sandbox.Outbound) (machine.OutboundAnswer, error) {
	m := find(r.machineDir(id))
	if m == nil {
		return machine.OutboundAnswer{}, cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.mu.Lock()
	ask := m.onOutbound
	m.mu.Unlock()
	if ask == nil {
		return machine.OutboundAnswer{}, cay.Errorf(cay.Unavailable, "nobody handles connections of machine %q", id)
	}
	return ask(ctx, o)
}

// Flow reports a flow of a running machine to its owner's handler.
func (r *Runtime) Flow(id string, f sandbox.Flow) error {
	m := find(r.machineDir(id))
	if m == nil {
		return cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.mu.Lock()
	onFlow := m.onFlow
	m.mu.Unlock()
	if onFlow != nil {
		onFlow(f)
	}
	return nil
}

// Network returns the policy of a running machine.
func (r *Runtime) Network(id string) (sandbox.Network, error) {
	m := find(r.machineDir(id))
	if m == nil {
		return sandbox.Network{}, cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.network, nil
}

// Freeze makes a running machine stop without a Pause, so that it does not answer, or
// continue.
func (r *Runtime) Freeze(id string, frozen bool) error {
	m := find(r.machineDir(id))
	if m == nil {
		return cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.setPaused(frozen)
	return nil
}

// Break cuts all connections into a running machine, as the loss of its link does.
func (r *Runtime) Break(id string) error {
	m := find(r.machineDir(id))
	if m == nil {
		return cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.cut()
	return nil
}

var (
	_ machine.Runtime  = (*Runtime)(nil)
	_ machine.Instance = (*instance)(nil)
	_ net.Conn         = (*gatedConn)(nil)
)
