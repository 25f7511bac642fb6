package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/cayhq/cay"
)

// guestConn is our end of a connection of the guest.
type guestConn struct {
	*gonet.TCPConn
	ep      tcpip.Endpoint
	wq      *waiter.Queue
	in, out *window // nil if the stack's own sizes hold
	once    sync.Once
}

func newGuestConn(wq *waiter.Queue, ep tcpip.Endpoint) *guestConn {
	return &guestConn{TCPConn: gonet.NewTCPConn(wq, ep), ep: ep, wq: wq}
}

// bind makes the connection's memory count in s, until free. It must be called before the
// connection is used.
func (c *guestConn) bind(s *share) {
	o := c.ep.SocketOptions()
	set := func(set func(int64, bool)) func(int64) error {
		return func(size int64) error {
			set(size, true)
			return nil
		}
	}
	c.in = &window{
		share: s, least: leastFromGuest, most: maxTCPBuffer, parts: 2,
		resize: set(o.SetReceiveBufferSize),
		held: func() int64 {
			n, err := c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
			if err != nil {
				return 0 // it has ended
			}
			return int64(n)
		},
	}
	c.out = &window{
		share: s, least: leastToGuest, most: maxTCPBuffer, parts: 1,
		resize: set(o.SetSendBufferSize),
		held: func() int64 {
			if c.ep.Readiness(waiter.WritableEvents) == 0 {
				return maxTCPBuffer // more than the size, that is all it says
			}
			return 0
		},
	}
	_, _ = c.in.open(), c.out.open() // our stack takes any size
}

// free gives back the counted bytes, when the connection has settled.
func (c *guestConn) free() {
	c.in.close()
	c.out.close()
}

func (c *guestConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	c.in.use(n)
	return n, err
}

func (c *guestConn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	c.out.use(n)
	return n, err
}

// await returns when Read would not block. Before it waits, it calls idle.
func (c *guestConn) await(idle func()) {
	ready := func() bool { return c.ep.Readiness(waiter.ReadableEvents) != 0 }
	if ready() {
		return
	}
	entry, changed := waiter.NewChannelEntry(waiter.ReadableEvents)
	c.wq.EventRegister(&entry)
	defer c.wq.EventUnregister(&entry)
	for waits := false; !ready(); <-changed {
		if !waits {
			idle()
			waits = true
		}
	}
}

// untakenTime is how long a closed connection waits for a guest that takes no sent bytes.
// The stack waits as long for a guest's own end.
const untakenTime = time.Minute

// Close implements net.Conn. Written bytes are still delivered; see awaitDelivery.
func (c *guestConn) Close() error {
	c.once.Do(func() {
		bound := tcpip.TCPUserTimeoutOption(untakenTime)
		if c.ep.SetSockOpt(&bound) != nil {
			c.ep.Abort() // there would be no bound
		}
		c.ep.Close()
	})
	return nil
}

// awaitDelivery returns when the guest has taken all bytes sent to a closed connection, or when
// it is clear that it will not.
func (c *guestConn) awaitDelivery() {
	if ep, ok := c.ep.(stack.TransportEndpoint); ok {
		ep.Wait()
	}
}

// reset ends the connection as broken, and wakes goroutines that wait in it.
func (c *guestConn) reset() {
	c.once.Do(func() {
		c.ep.Abort()
		c.ep.Close()
	})
}

// reset closes a connection so that its other end sees an abrupt end, if c supports it.
func reset(c net.Conn) {
	switch c := c.(type) {
	case interface{ reset() }:
		c.reset()
		return
	case interface{ NetConn() net.Conn }: // TLS
		reset(c.NetConn())
		return
	case interface{ SetLinger(int) error }:
		// SetLinger fails only on a closed connection.
		_ = c.SetLinger(0)
	}
	c.Close()
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of a %T: %w", c, errors.ErrUnsupported)
}

// Buffer sizes of one direction of a flow. A direction begins with smallBuffer, and gets
// bufferSize after largeAfter bytes, when it fills the small buffer and the budget has
// room.
const (
	smallBuffer = 8 << 10
	bufferSize  = 128 << 10
	largeAfter  = 256 << 10
)

var (
	smallBuffers = sync.Pool{New: func() any { return new([smallBuffer]byte) }}
	buffers      = sync.Pool{New: func() any { return new([bufferSize]byte) }}
)

// loan is the buffer of one direction. A waiting direction holds no buffer.
type loan struct {
	share *share
	small *[smallBuffer]byte
	large *[bufferSize]byte
	read  int // bytes since the beginning
	last  int // bytes in the buffer
}

// buffer returns the buffer to read into.
func (b *loan) buffer() []byte {
	if b.large == nil && b.last >= smallBuffer && b.read >= largeAfter && b.share.grow(bufferSize) {
		b.free()
		b.large = buffers.Get().(*[bufferSize]byte)
	}
	if b.large != nil {
		return b.large[:]
	}
	if b.small == nil {
		b.small = smallBuffers.Get().(*[smallBuffer]byte)
	}
	return b.small[:]
}

// free gives the buffer back.
func (b *loan) free() {
	if b.small != nil {
		smallBuffers.Put(b.small)
	}
	if b.large != nil {
		buffers.Put(b.large)
		b.share.shrink(bufferSize)
	}
	b.small, b.large = nil, nil
}

// await returns when a Read of conn would not block, if conn supports it; else at once.
// Before it waits, it calls idle.
func await(conn net.Conn, idle func()) {
	if c, ok := conn.(interface{ await(idle func()) }); ok {
		c.await(idle)
	}
}

// errLost is the error of a flow that ended because of its server.
type errLost struct{ reason string }

func (e *errLost) Error() string { return e.reason }

// splice relays both ways until both sides have ended. It passes each side's end on at
// once: a half-close as a half-close, an error as a reset. first was already read from
// the guest.
func (f *flow) splice(guest, server net.Conn, first []byte) {
	guest = replay(guest, first)
	var wg sync.WaitGroup
	pump := func(dst, src net.Conn, d *direction, count func(int64) int64) {
		err := f.pump(dst, src, d, count)
		if errors.Is(err, unix.ETIMEDOUT) {
			f.close(&errLost{fmt.Sprintf("the server took nothing of what was sent to it for %s", f.link.egress.silence)})
		}
		if err != nil {
			reset(src)
			reset(dst)
		}
	}
	wg.Go(func() { pump(server, guest, &f.link.meter.egress, f.egress.Add) })
	wg.Go(func() { pump(guest, server, &f.link.meter.ingress, f.ingress.Add) })
	wg.Wait()
}

// pump copies src to dst at the rate of d, and half-closes dst at the end. An error means
// that the flow is broken both ways.
func (f *flow) pump(dst, src net.Conn, d *direction, count func(int64) int64) error {
	lent := loan{share: f.link.share}
	defer lent.free()
	for {
		await(src, lent.free)
		buf := lent.buffer()
		n, err := src.Read(buf[:d.chunk(len(buf))])
		lent.read += n
		lent.last = n
		if n > 0 {
			if perr := f.link.pass(f.ctx, d, n); perr != nil {
				return perr
			}
			count(int64(n))
			if _, werr := dst.Write(buf[:n]); werr != nil {
				return werr
			}
		}
		if errors.Is(err, io.EOF) {
			return closeWrite(dst)
		}
		if err != nil {
			return err
		}
	}
}

// pass is meter.pass, and ends everything when that says so.
func (l *Link) pass(ctx context.Context, d *direction, n int) error {
	err := l.meter.pass(ctx, d, n)
	if errors.Is(err, errTotal) {
		l.exhaust()
	}
	return err
}

// metered counts and paces the bytes that another package relays for a flow. Read reads
// from the guest, Write writes to it.
type metered struct {
	net.Conn
	flow *flow
}

func (c *metered) Read(b []byte) (int, error) {
	d := &c.flow.link.meter.egress
	n, err := c.Conn.Read(b[:d.chunk(len(b))])
	if n > 0 {
		if perr := c.flow.link.pass(c.flow.ctx, d, n); perr != nil {
			return 0, perr
		}
		c.flow.egress.Add(int64(n))
	}
	return n, err
}

func (c *metered) Write(b []byte) (int, error) {
	return paced(c.flow.ctx, c.flow.link, &c.flow.link.meter.ingress, c.Conn, b, c.flow.ingress.Add)
}

// CloseWrite half-closes the connection, if it can.
func (c *metered) CloseWrite() error { return closeWrite(c.Conn) }

func (c *metered) reset() { reset(c.Conn) }

// paced writes b in the pace of d.
func paced(ctx context.Context, l *Link, d *direction, w io.Writer, b []byte, count func(int64) int64) (written int, err error) {
	for len(b) > 0 {
		n := d.chunk(min(len(b), bufferSize))
		if err := l.pass(ctx, d, n); err != nil {
			return written, err
		}
		count(int64(n))
		m, err := w.Write(b[:n])
		written += m
		if err != nil {
			return written, err
		}
		b = b[n:]
	}
	return written, nil
}

// inbound is a connection from outside to a port of the guest. Read reads from the guest,
// Write writes to it.
type inbound struct {
	*guestConn
	link   *Link
	ctx    context.Context // ends with the connection
	cancel context.CancelFunc
	left   sync.Once
}

// count returns conn with its traffic counted.
func (l *Link) count(conn *guestConn) (net.Conn, error) {
	c := &inbound{guestConn: conn, link: l}
	c.ctx, c.cancel = context.WithCancel(l.ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	switch {
	case l.closed:
		err = errClosed
	case len(l.inbound) >= maxInbound:
		err = cay.Errorf(cay.QuotaExceeded, "%d connections into the sandbox are open", maxInbound).WithHint("close some")
	case !l.share.take(connectionFloor):
		err = cay.Errorf(cay.QuotaExceeded, "%s", l.memoryDenied().Reason).WithHint("close some")
	default:
		conn.bind(l.share)
		l.inbound[c] = struct{}{}
		return c, nil
	}
	c.cancel()
	conn.reset()
	return nil, err
}

func uncounted(n int64) int64 { return n }

func (c *inbound) Read(b []byte) (int, error) {
	d := &c.link.meter.egress
	n, err := c.guestConn.Read(b[:d.chunk(len(b))])
	if n > 0 {
		if perr := c.link.pass(c.ctx, d, n); perr != nil {
			return 0, perr
		}
	}
	return n, err
}

func (c *inbound) Write(b []byte) (int, error) {
	return paced(c.ctx, c.link, &c.link.meter.ingress, c.guestConn, b, uncounted)
}

// Close implements net.Conn.
func (c *inbound) Close() error {
	c.cancel()
	err := c.guestConn.Close()
	c.leave()
	return err
}

func (c *inbound) reset() {
	c.cancel()
	c.guestConn.reset()
	c.leave()
}

// leave gives back the place of a closed connection, once the guest has taken the bytes
// sent to it: until then the bytes take memory.
func (c *inbound) leave() {
	c.left.Do(func() {
		l := c.link
		l.start(func() {
			c.awaitDelivery()
			c.free()
			l.share.give(connectionFloor)
			l.mu.Lock()
			delete(l.inbound, c)
			l.mu.Unlock()
		})
	})
}
