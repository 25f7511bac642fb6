package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// The addresses on every link. All sandboxes have the same, because each has a link of
// its own.
var (
	GuestAddr   = netip.MustParseAddr("100.64.0.2")
	GatewayAddr = netip.MustParseAddr("100.64.0.1") // the daemon's end: DNS, and the peer of control connections
)

const (
	// PrefixLen is the guest's subnet.
	PrefixLen = 30
	// MTU is in bytes. It is large, because a packet never leaves this machine.
	MTU = 65000
	// ReadyPort is the port on the gateway that a guest dials when it accepts
	// connections. The connection is refused; the attempt is the signal.
	ReadyPort = 1

	dnsPort = 53

	udpIdle      = 60 * time.Second // a UDP flow without traffic ends
	socketBuffer = 4 << 20          // bytes queued in the socketpair each way
	maxRefusals  = 256              // connection attempts being answered beyond the limit of open connections
	maxInbound   = 2048             // connections to ports of the guest

	// The first and largest buffer sizes, in our stack, of connections that carry no
	// traffic of the sandbox; the buffers of other connections are bounded by windows.
	defaultTCPBuffer = 256 << 10
	maxTCPBuffer     = 1 << 20
)

const nicID tcpip.NICID = 1

// linkRange has the addresses of all links. No guest reaches it through the daemon, even
// if the operator allows a range that contains it.
var linkRange = netip.PrefixFrom(GatewayAddr, PrefixLen).Masked()

// Link is the daemon's end of a guest's network. Create it with Egress.NewLink; Close
// ends every flow and frees all resources.
type Link struct {
	machine  string // the machine's id
	egress   *Egress
	log      *slog.Logger
	stack    *stack.Stack
	endpoint *endpoint

	policy  atomic.Pointer[policy.Policy]
	handler atomic.Pointer[machine.OutboundHandler] // nil: no handler
	limits  atomic.Pointer[sandbox.NetworkLimits]   // in effect
	rate    *rate.Limiter                           // of new flows
	meter   *meter
	share   *share // bytes that connections may hold
	records *recorder
	queries chan struct{} // an element for each DNS query under way
	lookups chan struct{} // an element for each lookup in progress, by a DNS query or by a connection
	servers *servers      // that requests went to

	ready     chan struct{}
	readyOnce sync.Once

	ctx    context.Context // ends with the link; flows hang on it
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines of flows

	update sync.Mutex // held during a change of policy

	mu      sync.Mutex // guards what follows
	flows   map[*flow]struct{}
	inbound map[*inbound]struct{}
	closed  bool
}

// Pair returns a connected pair of link ends: packets written to one end arrive at the
// other. NewLink takes one end; the sentry gets the other.
//
// The ends are datagram sockets, which do not report that the other end was closed. From
// a SOCK_SEQPACKET with a closed other end, a sentry would read empty packets without a
// pause, as long as it lives.
func Pair() (ours, guests int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("create socketpair: %w", err)
	}
	for _, fd := range fds {
		err := errors.Join(setBuffer(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, socketBuffer),
			setBuffer(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, socketBuffer))
		if err != nil {
			unix.Close(fds[0])
			unix.Close(fds[1])
			return 0, 0, fmt.Errorf("set socket buffer of link: %w", err)
		}
	}
	return fds[0], fds[1], nil
}

// NewLink starts a machine's link on fd, and owns fd from then on, also when it fails.
// Errors: invalid for an invalid policy, or a policy that asks for more than the
// operator's limits. A nil log means the Egress's log.
func (e *Egress) NewLink(fd int, machine string, n sandbox.Network, log *slog.Logger) (*Link, error) {
	return e.newLink(fd, machine, n, log, false)
}

// AdoptLink is NewLink for the end of a link that another process has served, and that
// the guest has sent packets to since. Nothing is read from fd before the first SetPolicy
// or Dial, so that these packets meet the right policy; until then the policy is DenyAll.
// Packets of connections that the other process knew are answered by resets; see Reset for
// connections on which the guest sends nothing.
func (e *Egress) AdoptLink(fd int, machine string, log *slog.Logger) (*Link, error) {
	return e.newLink(fd, machine, sandbox.Network{Mode: sandbox.DenyAll}, log, true)
}

func (e *Egress) newLink(fd int, machine string, n sandbox.Network, log *slog.Logger, held bool) (*Link, error) {
	ep, err := newEndpoint(fd)
	if err != nil {
		return nil, err
	}
	ep.held = held
	if log == nil {
		log = e.log
	}
	l := &Link{
		machine: machine, egress: e, log: log, endpoint: ep,
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
			HandleLocal:        false,
		}),
		ready:   make(chan struct{}),
		meter:   newMeter(),
		share:   e.budget.newShare(),
		queries: make(chan struct{}, maxQueries), lookups: make(chan struct{}, maxLookups),
		flows: make(map[*flow]struct{}), inbound: make(map[*inbound]struct{}),
	}
	l.servers = newServers(l)
	l.ctx, l.cancel = context.WithCancel(context.Background())
	if l.records, err = newRecorder(); err == nil {
		err = l.setPolicy(n)
	}
	if err == nil {
		err = l.configure()
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Link) configure() error {
	// No SACK, because of the guest's sender. If a slow reader gets many small segments,
	// our stack drops some, because it has promised more room than their overhead leaves.
	// With SACK gVisor's sender then believes RACK that they are lost, but counts them as
	// in flight, and sends only two for each retransmission timeout. Without SACK the
	// timeout is followed by a slow start.
	sack, cc := tcpip.TCPSACKEnabled(false), tcpip.CongestionControlOption("cubic")
	// No packet is late on a socketpair, so TIME_WAIT is not needed; during it a guest
	// that uses the same port again for the same destination would get no answer.
	wait := tcpip.TCPTimeWaitTimeoutOption(0)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: defaultTCPBuffer, Max: maxTCPBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: defaultTCPBuffer, Max: maxTCPBuffer}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &cc, &wait, &rcv, &snd} {
		if err := l.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return fmt.Errorf("set TCP option %T: %s", opt, err)
		}
	}
	// The handlers come first: with the interface packets may arrive.
	pending := withDefaults(l.egress.cfg.Limits).Connections + maxRefusals
	l.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(l.stack, leastFromGuest, pending, l.handleTCP).HandlePacket)
	l.stack.SetTransportProtocolHandler(udp.ProtocolNumber, l.handleUDP)
	if err := l.stack.CreateNIC(nicID, l.endpoint); err != nil {
		return fmt.Errorf("create interface: %s", err)
	}
	// The stack accepts packets for every destination address and answers in its name.
	if err := l.stack.SetPromiscuousMode(nicID, true); err != nil {
		return fmt.Errorf("set promiscuous mode: %s", err)
	}
	if err := l.stack.SetSpoofing(nicID, true); err != nil {
		return fmt.Errorf("set spoofing: %s", err)
	}
	addr := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddressWithPrefix{
		Address: tcpip.AddrFrom4(GatewayAddr.As4()), PrefixLen: PrefixLen,
	}}
	if err := l.stack.AddProtocolAddress(nicID, addr, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("add gateway address: %s", err)
	}
	l.stack.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: nicID}})
	return nil
}

// Ready is closed when the guest has knocked at ReadyPort.
func (l *Link) Ready() <-chan struct{} { return l.ready }

// Dial connects to a TCP port in the guest, from the gateway's address. Errors:
// unavailable if no program listens there.
func (l *Link) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := l.connect(ctx, port)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// connect is Dial.
func (l *Link) connect(ctx context.Context, port uint16) (*guestConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	l.endpoint.begin()
	failed := func(err tcpip.Error) error {
		return cay.Errorf(cay.Unavailable, "connect to port %d in the sandbox: %s", port, err)
	}
	var wq waiter.Queue
	ep, err := l.stack.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	if err != nil {
		return nil, failed(err)
	}
	entry, connected := waiter.NewChannelEntry(waiter.WritableEvents)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	err = ep.Connect(tcpip.FullAddress{NIC: nicID, Addr: guestAddress, Port: port})
	if _, ok := err.(*tcpip.ErrConnectStarted); ok {
		select {
		case <-connected:
			err = ep.LastError()
		case <-ctx.Done():
			ep.Close()
			return nil, ctx.Err()
		}
	}
	if err != nil {
		ep.Close()
		return nil, failed(err)
	}
	return newGuestConn(&wq, ep), nil
}

// DialPort is Dial for ports that the guest serves to others: the traffic counts and is
// bounded as the traffic of the guest's own connections. Errors: unavailable if no
// program listens there, quota_exceeded if no more bytes may flow, or too many
// connections are open or hold too many bytes.
func (l *Link) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	if l.meter.exhausted() {
		return nil, cay.Errorf(cay.QuotaExceeded, "%s", l.totalDenied().Reason)
	}
	conn, err := l.connect(ctx, port)
	if err != nil {
		return nil, err
	}
	l.share.makeRoom(connectionFloor)
	return l.count(conn)
}

// SetPolicy replaces the policy. Flows that the policy forbids have ended when SetPolicy
// returns. Errors: invalid, and then the old policy stays; see NewLink.
func (l *Link) SetPolicy(n sandbox.Network) error {
	if err := l.setPolicy(n); err != nil {
		return err
	}
	l.endpoint.begin()
	return nil
}

func (l *Link) setPolicy(n sandbox.Network) error {
	p, err := policy.Compile(n)
	if err != nil {
		return err
	}
	if err := p.Limits().Within(withDefaults(l.egress.cfg.Limits)); err != nil {
		return err
	}
	l.update.Lock()
	defer l.update.Unlock()
	limits := lower(l.egress.cfg.Limits, p.Limits())
	l.limits.Store(&limits)
	if l.rate == nil { // a new link, with the whole burst before it
		l.rate = rate.NewLimiter(rate.Limit(limits.ConnectionsPerSecond), limits.ConnectionsPerSecond)
	}
	l.rate.SetBurst(limits.ConnectionsPerSecond)
	l.rate.SetLimit(rate.Limit(limits.ConnectionsPerSecond))
	l.meter.set(limits.BytesPerSecond, limits.TotalBytes)

	l.policy.Store(p)
	for _, f := range l.open() {
		f.rejudge()
	}
	l.servers.rejudge()
	if l.meter.exhausted() {
		l.exhaust()
	}
	return nil
}

// open returns the open flows. They must be ended without l.mu, because the stack's own
// goroutines lock it.
func (l *Link) open() []*flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(l.flows))
}

// start runs f in a goroutine that Close waits for. It returns false if the link is
// closed.
func (l *Link) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.work.Go(f)
	return true
}

// exhaust ends all connections to the outside, because no more bytes may pass.
func (l *Link) exhaust() {
	d := l.totalDenied()
	for _, f := range l.open() {
		f.close(&errCut{d})
	}
	l.mu.Lock()
	inbound := slices.Collect(maps.Keys(l.inbound))
	l.mu.Unlock()
	for _, c := range inbound {
		c.reset()
	}
	l.servers.end()
}

// OnFlow makes f get every flow from now on; it must not block. nil stops it.
func (l *Link) OnFlow(f func(sandbox.Flow)) { l.records.send(f) }

// Traffic returns the payload bytes relayed from the outside to the guest and from the
// guest to the outside since NewLink, plus the bytes that SetTraffic added.
func (l *Link) Traffic() (ingress, egress int64) {
	return l.meter.ingress.bytes.Load(), l.meter.egress.bytes.Load()
}

// SetTraffic sets how many bytes earlier links of the sandbox have relayed: they count
// for Traffic and NetworkLimits.TotalBytes.
func (l *Link) SetTraffic(ingress, egress int64) {
	l.update.Lock()
	defer l.update.Unlock()
	l.meter.setBase(&l.meter.ingress, ingress)
	l.meter.setBase(&l.meter.egress, egress)
	if l.meter.exhausted() {
		l.exhaust()
	}
}

// Close ends all flows and frees the link. The guest has no network from then on.
func (l *Link) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	for _, f := range l.open() {
		f.close(errClosed)
	}
	l.servers.close()
	l.stack.Close()
	// The reader must end before Wait, which holds the lock that delivering takes.
	l.endpoint.stop()
	l.stack.Wait()
	l.work.Wait()
	l.share.close()
	if l.records != nil {
		l.records.close()
	}
	return l.endpoint.release()
}
