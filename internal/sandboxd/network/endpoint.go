package network

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// endpoint is the link-layer end of our stack, on one end of a Pair: each message is a
// whole IP packet.
//
// gVisor's fdbased endpoint would work, but it parks a thread of the operating system in
// each link and never closes its wake-up descriptor. endpoint waits in Go's poller, and
// holds only the socket.
//
// It also guards the stack: packets that a guest has no reason to send are dropped before
// anything parses them further. See welcome.
//
// A sentry may hold a copy of our socket (see Egress.AdoptLink), and with it change flags
// that both share. So each call says that it must not block.
type endpoint struct {
	file *os.File
	conn syscall.RawConn
	done sync.WaitGroup // the reader
	// patient is held by the sender that waits for room, one at a time, because the write
	// deadline belongs to the file.
	patient chan struct{}

	mu         sync.RWMutex // guards what follows
	dispatcher stack.NetworkDispatcher
	held       bool // the reader has not begun, and waits for begin
}

var _ stack.LinkEndpoint = (*endpoint)(nil)

// newEndpoint takes over fd, also when it fails.
func newEndpoint(fd int) (*endpoint, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open link: %w", err)
	}
	file := os.NewFile(uintptr(fd), "link")
	conn, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open link: %w", err), file.Close())
	}
	return &endpoint{file: file, conn: conn, patient: make(chan struct{}, 1)}, nil
}

// small is the size, in bytes, up to which a packet is copied out of the receive buffer
// instead of passed on with the whole buffer.
const small = 32 << 10

// read delivers packets until the endpoint is detached or the peer is gone.
func (e *endpoint) read() {
	var view *buffer.View
	for {
		if view == nil {
			view = buffer.NewViewSize(MTU)
		}
		n, err := e.receive(view.AsSlice())
		if err != nil {
			view.Release()
			return
		}
		if n < header.IPv4MinimumSize || !welcome(header.IPv4(view.AsSlice()[:header.IPv4MinimumSize])) {
			continue
		}
		packet := view
		if n <= small {
			packet = buffer.NewViewWithData(view.AsSlice()[:n])
		} else {
			packet.CapLength(n)
			view = nil
		}
		e.deliver(packet)
	}
}

// receive waits for the next packet and returns its length, which is 0 for an empty packet:
// the end of a datagram socket is an error.
func (e *endpoint) receive(buf []byte) (n int, err error) {
	werr := e.conn.Read(func(fd uintptr) bool {
		for {
			if n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	return n, errors.Join(werr, err)
}

func (e *endpoint) deliver(packet *buffer.View) {
	e.mu.RLock()
	d := e.dispatcher
	e.mu.RUnlock()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(packet)})
	defer pkt.DecRef()
	if d != nil {
		d.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
	}
}

// sendPatience is how long a packet waits for room in the guest's end of the link. A
// working guest kernel makes room much faster; a stuck guest kernel must not hold up our
// stack for longer.
const sendPatience = 5 * time.Millisecond

// WritePackets implements stack.LinkEndpoint. Packets that find no room within
// sendPatience are dropped, as on any link, and TCP sends them again. Waiting first keeps
// fast transfers fast, because recovery from a drop is slow.
func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	written := 0
	for _, pkt := range pkts.AsSlice() {
		err := e.send(pkt.AsSlices())
		if errors.Is(err, unix.EAGAIN) {
			err = e.sendPatiently(pkt.AsSlices())
		}
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, os.ErrClosed):
			return written, &tcpip.ErrClosedForSend{}
		default:
			return written, &tcpip.ErrAborted{}
		}
		written++
	}
	return written, nil
}

// send writes one packet if there is room in the socket.
func (e *endpoint) send(parts [][]byte) (err error) {
	// Not by Write, which would block behind another waiting Write.
	if cerr := e.conn.Control(func(fd uintptr) { err = writev(fd, parts) }); cerr != nil {
		return cerr
	}
	return err
}

// sendPatiently waits for room, and for other senders that wait, for at most
// sendPatience.
func (e *endpoint) sendPatiently(parts [][]byte) (err error) {
	deadline := time.Now().Add(sendPatience)
	timeout := time.NewTimer(sendPatience)
	defer timeout.Stop()
	select {
	case e.patient <- struct{}{}:
		defer func() { <-e.patient }()
	case <-timeout.C:
		return os.ErrDeadlineExceeded
	}
	if err := e.file.SetWriteDeadline(deadline); err != nil {
		return err
	}
	werr := e.conn.Write(func(fd uintptr) bool {
		err = writev(fd, parts)
		return !errors.Is(err, unix.EAGAIN)
	})
	if werr != nil {
		return werr
	}
	return err
}

func writev(fd uintptr, parts [][]byte) error {
	for {
		if _, err := unix.SendmsgBuffers(int(fd), parts, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Attach implements stack.LinkEndpoint. A nil dispatcher ends the reader.
func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	e.mu.Lock()
	first := e.dispatcher == nil && d != nil
	e.dispatcher = d
	if first && !e.held {
		e.done.Go(e.read)
	}
	e.mu.Unlock()
	if d == nil {
		e.interrupt()
	}
}

// begin starts the reader if it was held.
func (e *endpoint) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.held && e.dispatcher != nil {
		e.done.Go(e.read)
	}
	e.held = false
}

// interrupt makes the reader end.
func (e *endpoint) interrupt() {
	// SetReadDeadline fails only on a closed file, which ends the reader too.
	_ = e.file.SetReadDeadline(time.Unix(1, 0))
}

// stop ends the reader and waits for it. Packets can still be sent.
func (e *endpoint) stop() {
	e.interrupt()
	e.done.Wait()
}

// IsAttached implements stack.LinkEndpoint.
func (e *endpoint) IsAttached() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.dispatcher != nil
}

// Wait implements stack.LinkEndpoint.
func (e *endpoint) Wait() { e.done.Wait() }

// release closes the socket, once the endpoint is out of use.
func (e *endpoint) release() error {
	if err := e.file.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close link: %w", err)
	}
	return nil
}

// Capabilities implements stack.LinkEndpoint. The guest's kernel and ours are on the same
// host: nothing can corrupt a packet on the way, and a wrong checksum could only hurt its
// sender.
func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityTXChecksumOffload | stack.CapabilityRXChecksumOffload
}

// The rest of stack.LinkEndpoint: no link layer, no addresses on it.

func (e *endpoint) MTU() uint32                             { return MTU }
func (e *endpoint) SetMTU(uint32)                           {}
func (e *endpoint) MaxHeaderLength() uint16                 { return 0 }
func (e *endpoint) LinkAddress() tcpip.LinkAddress          { return "" }
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (e *endpoint) AddHeader(*stack.PacketBuffer)           {}
func (e *endpoint) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (e *endpoint) Close()                                  {}
func (e *endpoint) SetOnCloseAction(func())                 {}

// welcome judges the first 20 bytes of a packet. It accepts whole IPv4 packets without
// options, with TCP or UDP, from the guest's own address. It refuses ICMP, other
// protocols, fragments, IPv6 and forged sources.
func welcome(ip header.IPv4) bool {
	const versionAndLength = 4<<4 | header.IPv4MinimumSize/4
	if ip[0] != versionAndLength {
		return false
	}
	if ip.More() || ip.FragmentOffset() != 0 {
		return false
	}
	if ip.SourceAddress() != guestAddress {
		return false
	}
	p := ip.TransportProtocol()
	return p == header.TCPProtocolNumber || p == header.UDPProtocolNumber
}

var guestAddress = tcpip.AddrFrom4(GuestAddr.As4())
