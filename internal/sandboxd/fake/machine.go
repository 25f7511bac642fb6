package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/guest/agent"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// box is a running machine. Until attach, a box has no owner.
type box struct {
	dir    string
	spec   machine.Spec
	agent  *agent.Server
	listen net.Listener
	served chan error
	done   chan struct{}
	ending sync.Once

	in, out atomic.Int64 // bytes carried by connections

	mu      sync.Mutex // guards the fields below
	exit    machine.Exit
	conns   map[*gatedConn]struct{}
	gate    chan struct{} // closed while not paused
	paused  bool          // by Pause
	network sandbox.Network
	onFlow  func(sandbox.Flow) // the owner's; nil: flows are not reported
	// onOutbound is the owner's handler; nil: connections are refused.
	onOutbound machine.OutboundHandler
	owner      *instance
}

// boot starts a machine in dir. fill creates its root directory, and saved has the
// content of its saved drives.
func boot(ctx context.Context, dir string, spec machine.Spec, cfg guest.Config, fill func(root string) error, saved drives) (*box, error) {
	root := filepath.Join(dir, "root")
	if err := fill(root); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(root, cfg.WorkDir), 0o755); err != nil {
		return nil, err
	}
	for _, mnt := range spec.Mounts {
		if mnt.Drive == nil {
			if err := mount(root, mnt); err != nil {
				return nil, err
			}
		} else if err := mountDrive(root, mnt, saved[mnt.Target]); err != nil {
			return nil, err
		}
	}
	sum, err := hex.DecodeString(cfg.TokenSHA256)
	if err != nil {
		return nil, err
	}
	m := &box{dir: dir, spec: spec, served: make(chan error, 1), done: make(chan struct{}),
		conns: map[*gatedConn]struct{}{}, gate: make(chan struct{}), network: spec.Network}
	close(m.gate)
	user := cfg.User
	if user == "" {
		user = "root"
	}
	m.agent, err = agent.New(agent.Config{Root: root, User: user, WorkDir: cfg.WorkDir,
		TokenSHA256: [sha256.Size]byte(sum), Env: []string{marker + dir}})
	if err != nil {
		return nil, err
	}
	if cfg.Certificates != "" {
		m.agent.Trust(guest.TrustRequest{Certificates: cfg.Certificates})
	}
	if m.listen, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, m.agent.Close())
	}
	go func() { m.served <- m.agent.Serve(m.listen) }()
	return m, nil
}

// mount creates a link to a directory, or an empty directory in place of an EROFS file.
func mount(root string, mnt machine.Mount) error {
	target := filepath.Join(root, mnt.Target)
	if info, err := os.Stat(mnt.Source); err != nil || !info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(mnt.Source, target); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// end stops the machine; its files stay. The first exit counts.
func (m *box) end(exit machine.Exit) {
	m.ending.Do(func() {
		m.mu.Lock()
		m.exit = exit
		m.mu.Unlock()
		m.setPaused(false)
		m.cut()
		// Remaining processes are dead anyway, and no caller waits for this error.
		_ = m.agent.Close()
		_ = killMarked(m.dir)
		<-m.served
		close(m.done)
	})
	<-m.done
}

func (m *box) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// remove ends the machine and removes its directory.
func (m *box) remove() error {
	m.end(machine.Exit{Reason: sandbox.ReasonRequested})
	registry.mu.Lock()
	if registry.machines[m.dir] == m {
		delete(registry.machines, m.dir)
	}
	registry.mu.Unlock()
	return os.RemoveAll(m.dir)
}

// cut closes all connections into the machine.
func (m *box) cut() {
	m.mu.Lock()
	conns := m.conns
	m.conns = map[*gatedConn]struct{}{}
	m.mu.Unlock()
	for c := range conns {
		c.Conn.Close()
		close(c.closed)
	}
}

// setPaused stops or continues the machine's processes and its connections, and returns
// whether they were stopped before.
func (m *box) setPaused(paused bool) (before bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.gate:
		if !paused {
			return false
		}
		m.gate = make(chan struct{})
	default:
		before = true
		if paused {
			return true
		}
		close(m.gate)
	}
	m.agent.Pause(paused)
	return before
}

// notePause records that the owner has paused or resumed the machine.
func (m *box) notePause(paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused
}

// open returns a channel that is closed while the machine is not paused.
func (m *box) open() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gate
}

// attach creates a new owner; connections of the previous owner are cut.
func (m *box) attach() *instance {
	m.cut()
	i := &instance{m: m}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owner, m.onFlow, m.onOutbound = i, nil, nil
	return i
}

// instance is an owner's handle on a machine.
type instance struct{ m *box }

func (i *instance) ID() string { return i.m.spec.ID }

func (i *instance) owns() bool {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	return i.m.owner == i
}

func (i *instance) DialGuest(ctx context.Context) (net.Conn, error) {
	return i.dial(ctx, i.m.listen.Addr().String())
}

func (i *instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if port == guest.Port {
		return i.DialGuest(ctx)
	}
	return i.dial(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
}

func (i *instance) dial(ctx context.Context, addr string) (net.Conn, error) {
	select {
	case <-i.m.open():
	case <-i.m.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if !i.owns() || i.m.ended() {
		return nil, cay.Errorf(cay.Unavailable, "machine %q is not attached", i.ID())
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, cay.Errorf(cay.Unavailable, "connect to machine %q: %w", i.ID(), err)
	}
	c := &gatedConn{Conn: conn, m: i.m, closed: make(chan struct{})}
	i.m.mu.Lock()
	i.m.conns[c] = struct{}{}
	i.m.mu.Unlock()
	return c, nil
}

// OnFlow stores f for Runtime.Flow: a fake machine's own traffic is not observed.
func (i *instance) OnFlow(f func(sandbox.Flow)) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	if i.m.owner == i {
		i.m.onFlow = f
	}
}

// OnOutbound stores h for Runtime.Outbound: a fake machine's own traffic is not observed.
func (i *instance) OnOutbound(h machine.OutboundHandler) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	if i.m.owner == i {
		i.m.onOutbound = h
	}
}

// SetTraffic changes nothing: there is no traffic to add to.
func (i *instance) SetTraffic(ingress, egress int64) {}

// Reset changes nothing: connections end with the process that had them.
func (i *instance) Reset([]machine.Connection) {}

// SetNetwork stores the policy; it is not enforced.
func (i *instance) SetNetwork(n sandbox.Network) error {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.m.network = n
	return nil
}

func (i *instance) Pause(ctx context.Context) error {
	if i.m.ended() {
		return cay.Errorf(cay.Unavailable, "machine %q has ended", i.ID())
	}
	i.m.setPaused(true)
	i.m.notePause(true)
	return nil
}

// Paused implements machine.Instance.
func (i *instance) Paused() (paused, sure bool) {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	return i.m.paused, true
}

func (i *instance) Resume(ctx context.Context) error {
	if i.m.ended() {
		return cay.Errorf(cay.Unavailable, "machine %q has ended", i.ID())
	}
	i.m.setPaused(false)
	i.m.notePause(false)
	return nil
}

// Stats reports invented memory use, and the bytes that connections carried.
func (i *instance) Stats(ctx context.Context) (machine.Stats, error) {
	if i.m.ended() {
		return machine.Stats{}, cay.Errorf(cay.Unavailable, "machine %q has ended", i.ID())
	}
	var st syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &st); err != nil {
		return machine.Stats{}, err
	}
	cpu := syscall.TimevalToNsec(st.Utime) + syscall.TimevalToNsec(st.Stime)
	return machine.Stats{
		CPU:          sandbox.Duration(cpu),
		MemoryBytes:  16 << 20,
		MemoryPeak:   24 << 20,
		DiskBytes:    4096,
		IngressBytes: i.m.in.Load(),
		EgressBytes:  i.m.out.Load(),
		Processes:    i.m.agent.Running() + 1,
	}, nil
}

func (i *instance) Done() <-chan struct{} { return i.m.done }

func (i *instance) Exit() machine.Exit {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	return i.m.exit
}

func (i *instance) Destroy(ctx context.Context) error { return i.m.remove() }

func (i *instance) Detach() error {
	if i.owns() {
		i.m.mu.Lock()
		i.m.owner, i.m.onFlow, i.m.onOutbound = nil, nil, nil
		i.m.mu.Unlock()
		i.m.cut()
	}
	return nil
}

// gatedConn transfers nothing while its machine is paused.
type gatedConn struct {
	net.Conn
	m      *box
	closed chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.pass()
	c.m.out.Add(int64(n))
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.pass()
	n, err := c.Conn.Write(p)
	c.m.in.Add(int64(n))
	return n, err
}

// CloseWrite closes the sending half, like connections into real machines.
func (c *gatedConn) CloseWrite() error {
	c.pass()
	return c.Conn.(*net.TCPConn).CloseWrite()
}

func (c *gatedConn) pass() {
	select {
	case <-c.m.open():
	case <-c.closed:
	}
}

func (c *gatedConn) Close() error {
	c.m.mu.Lock()
	_, open := c.m.conns[c]
	delete(c.m.conns, c)
	c.m.mu.Unlock()
	if !open {
		return net.ErrClosed
	}
	close(c.closed)
	return c.Conn.Close()
}
