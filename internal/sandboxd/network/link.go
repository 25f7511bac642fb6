package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// The addresses on every link. They are the same for all sandboxes, because
// each has a link of its own.
var (
	GuestAddr   = netip.MustParseAddr("100.64.0.2")
	GatewayAddr = netip.MustParseAddr("100.64.0.1") // the daemon's end: DNS, and the peer of control connections
)

const (
	// PrefixLen is the guest's subnet.
	PrefixLen = 30
	// MTU is in bytes. Large, since a packet never leaves this machine.
	MTU = 65000
	// ReadyPort is where on the gateway a guest knocks when it accepts
	// connections. The connection is refused; the knock is what counts.
	ReadyPort = 1

	dnsPort = 53

	maxFlows        = 1024             // connections and UDP flows of one guest to the outside
	maxPending      = 256              // of them, still being dialled
	dialTimeout     = 10 * time.Second // to a destination
	udpIdle         = 60 * time.Second // a UDP flow without traffic ends
	socketBuffer    = 4 << 20          // bytes queued in the socketpair each way
	maxTCPBuffer    = 4 << 20          // per connection and direction, in our stack
	defaultTCPQueue = 1 << 20
)

const nicID tcpip.NICID = 1

// Config describes a link. The zero value of each optional field is usable.
type Config struct {
	Logger *slog.Logger
	Policy sandbox.Network
	// Resolver answers the guest's DNS queries. Required.
	Resolver *Resolver
	// AllowRanges are special-purpose ranges the operator lets guests reach.
	AllowRanges []netip.Prefix
	// DialContext dials destinations; nil means a net.Dialer. It is given
	// addresses, never names.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Link is the daemon's end of a guest's network. Create it with New; Close
// frees all it holds and ends every flow.
type Link struct {
	cfg      Config
	log      *slog.Logger
	stack    *stack.Stack
	endpoint *endpoint

	policy atomic.Pointer[sandbox.Network]
	onFlow atomic.Pointer[func(sandbox.Flow)]

	ingress, egress atomic.Int64 // payload bytes relayed to and from the outside

	ready     chan struct{}
	readyOnce sync.Once

	ctx    context.Context // ends with the link; flows hang on it
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines of flows

	mu     sync.Mutex // guards flows and closed
	flows  map[*flow]struct{}
	closed bool
}

// Pair returns a connected pair of link ends: packets written to one arrive at
// the other. New takes one; the sentry gets the other.
func Pair() (ours, guests int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("create socketpair: %w", err)
	}
	for _, fd := range fds {
		// The FORCE variants exceed the system's limit and need CAP_NET_ADMIN;
		// without it the limit is what we get.
		for _, opt := range [][2]int{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[0], socketBuffer) == nil {
				continue
			}
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[1], socketBuffer); err != nil {
				unix.Close(fds[0])
				unix.Close(fds[1])
				return 0, 0, fmt.Errorf("set socket buffer of link: %w", err)
			}
		}
	}
	return fds[0], fds[1], nil
}

// New starts a link on fd, which it owns from now on, also when it fails.
func New(fd int, cfg Config) (*Link, error) {
	if cfg.DialContext == nil {
		cfg.DialContext = (&net.Dialer{}).DialContext
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	ep, err := newEndpoint(fd)
	if err != nil {
		return nil, err
	}
	l := &Link{
		cfg: cfg, log: cfg.Logger, endpoint: ep,
		stack: stack.New(stack.Options{
			NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
			TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
			HandleLocal:        false,
		}),
		ready: make(chan struct{}),
		flows: make(map[*flow]struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	policy := cfg.Policy
	l.policy.Store(&policy)
	if err := l.configure(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Link) configure() error {
	// No SACK, for the guest's sake. A slow reader of many small segments makes
	// our stack drop some: it has promised more room than their overhead leaves.
	// With SACK gVisor's sender then takes RACK's word that they are lost, but
	// counts them as in flight, and sends two for each retransmission timeout.
	// Without it the timeout is followed by a slow start.
	sack, cc := tcpip.TCPSACKEnabled(false), tcpip.CongestionControlOption("cubic")
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: defaultTCPQueue, Max: maxTCPBuffer}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: defaultTCPQueue, Max: maxTCPBuffer}
	for _, opt := range []tcpip.SettableTransportProtocolOption{&sack, &cc, &rcv, &snd} {
		if err := l.stack.SetTransportProtocolOption(tcp.ProtocolNumber, opt); err != nil {
			return fmt.Errorf("set TCP option %T: %s", opt, err)
		}
	}
	// The handlers come first: with the interface packets may arrive.
	l.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, tcp.NewForwarder(l.stack, 0, maxPending, l.handleTCP).HandlePacket)
	l.stack.SetTransportProtocolHandler(udp.ProtocolNumber, udp.NewForwarder(l.stack, l.handleUDP).HandlePacket)
	if err := l.stack.CreateNIC(nicID, l.endpoint); err != nil {
		return fmt.Errorf("create interface: %s", err)
	}
	// Every destination is ours: we accept packets for any address and answer in
	// its name.
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
// unavailable if nothing listens there.
func (l *Link) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	conn, err := gonet.DialContextTCP(ctx, l.stack, tcpip.FullAddress{
		NIC: nicID, Addr: tcpip.AddrFrom4(GuestAddr.As4()), Port: port,
	}, ipv4.ProtocolNumber)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, cay.Errorf(cay.Unavailable, "connect to port %d in the sandbox: %w", port, err)
	}
	return conn, nil
}

// SetPolicy replaces the policy. Flows it forbids have ended when it returns.
func (l *Link) SetPolicy(p sandbox.Network) {
	l.policy.Store(&p)
	l.mu.Lock()
	defer l.mu.Unlock()
	for f := range l.flows {
		if !l.permitted(f.dst) {
			f.close(errPolicy)
		}
	}
}

// OnFlow makes f hear of every flow from now on; it must not block. nil stops it.
func (l *Link) OnFlow(f func(sandbox.Flow)) { l.onFlow.Store(&f) }

// Traffic returns the payload bytes relayed from the outside to the guest and
// from the guest to the outside since New.
func (l *Link) Traffic() (ingress, egress int64) {
	return l.ingress.Load(), l.egress.Load()
}

var (
	errPolicy = errors.New("network policy changed")
	errClosed = errors.New("network link closed")
)

// Close ends all flows and frees the link. The guest has no network from then on.
func (l *Link) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.cancel()
	for f := range l.flows {
		f.close(errClosed)
	}
	l.mu.Unlock()
	l.stack.Close()
	// The reader ends before Wait, which holds the lock that delivering takes.
	l.endpoint.stop()
	l.stack.Wait()
	l.work.Wait()
	return l.endpoint.release()
}

// track registers a flow so that policy changes and Close can end it. It
// returns false, with the reason logged, if there is no room or no link.
func (l *Link) track(f *flow) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.flows) >= maxFlows {
		l.log.Debug("flow refused: too many", "destination", f.dst, "limit", maxFlows)
		return false
	}
	l.flows[f] = struct{}{}
	l.work.Add(1)
	return true
}

func (l *Link) untrack(f *flow) {
	l.mu.Lock()
	delete(l.flows, f)
	l.mu.Unlock()
	f.close(nil)
	l.work.Done()
}
