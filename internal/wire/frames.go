package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// UpgradeStream is the protocol of an upgraded connection that carries a TCP
// connection into a sandbox: in each direction frames of a length, 4 bytes big
// endian, and as many bytes. A frame of length 0 ends its direction. A
// connection that closes without such a frame is broken.
const UpgradeStream = "cay-stream"

const (
	// maxFrame bounds the size of a frame, in bytes: a longer one means that
	// the peer speaks another protocol.
	maxFrame = 16 << 20
	// frameChunk is the longest frame a FrameConn sends, in bytes.
	frameChunk = 64 << 10
)

// FrameConn is a net.Conn, with CloseWrite, over a connection that was upgraded
// to UpgradeStream.
type FrameConn struct {
	rw   io.ReadWriteCloser
	conn net.Conn

	rmu  sync.Mutex // guards what is read and what follows
	head [4]byte
	got  int    // bytes of head read so far
	left uint32 // bytes of the frame yet to be read
	eof  bool   // the other side sends nothing more

	wmu  sync.Mutex // guards what is written and what follows
	buf  []byte
	werr error // why nothing more can be written
}

var _ net.Conn = (*FrameConn)(nil)

// NewFrameConn returns a connection whose frames are read from and written to
// rw. conn is the network connection below rw, for its addresses and deadlines.
// Without conn, setting a deadline fails.
func NewFrameConn(rw io.ReadWriteCloser, conn net.Conn) *FrameConn {
	return &FrameConn{rw: rw, conn: conn}
}

// Read implements net.Conn. io.EOF means that the other side has ended its
// direction; io.ErrUnexpectedEOF that the connection broke off.
func (c *FrameConn) Read(p []byte) (int, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for c.left == 0 {
		if c.eof {
			return 0, io.EOF
		}
		// The part of a frame's head that was read before a deadline is kept in
		// c.head.
		n, err := c.rw.Read(c.head[c.got:])
		if c.got += n; c.got < len(c.head) {
			if err != nil {
				return 0, brokenOff(err)
			}
			continue
		}
		c.got = 0
		c.left = binary.BigEndian.Uint32(c.head[:])
		switch {
		case c.left == 0:
			c.eof = true
		case c.left > maxFrame:
			c.left = 0
			return 0, fmt.Errorf("a frame of %d bytes is more than %d", binary.BigEndian.Uint32(c.head[:]), maxFrame)
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.rw.Read(p[:min(len(p), int(c.left))])
	c.left -= uint32(n)
	if n > 0 {
		return n, nil
	}
	return 0, brokenOff(err)
}

func brokenOff(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

var errWriteClosed = errors.New("the connection was closed for writing")

// Write implements net.Conn. After an error, including an expired deadline, all
// further calls of Write fail: a part of a frame may have been sent.
func (c *FrameConn) Write(p []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	total := 0
	for len(p) > 0 {
		chunk := p[:min(len(p), frameChunk)]
		if err := c.sendLocked(chunk); err != nil {
			return total, err
		}
		total += len(chunk)
		p = p[len(chunk):]
	}
	return total, c.werr
}

// sendLocked sends one frame.
func (c *FrameConn) sendLocked(p []byte) error {
	if c.werr != nil {
		return c.werr
	}
	c.buf = append(binary.BigEndian.AppendUint32(c.buf[:0], uint32(len(p))), p...)
	_, c.werr = c.rw.Write(c.buf)
	return c.werr
}

// CloseWrite tells the other side that no data follow. Reading still works.
func (c *FrameConn) CloseWrite() error {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	err := c.sendLocked(nil)
	if err == nil {
		c.werr = errWriteClosed
	}
	return err
}

// Close implements net.Conn.
func (c *FrameConn) Close() error { return c.rw.Close() }

type addr struct{}

func (addr) Network() string { return "tcp" }
func (addr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (c *FrameConn) LocalAddr() net.Addr {
	if c.conn == nil {
		return addr{}
	}
	return c.conn.LocalAddr()
}

// RemoteAddr implements net.Conn. It is the daemon's.
func (c *FrameConn) RemoteAddr() net.Addr {
	if c.conn == nil {
		return addr{}
	}
	return c.conn.RemoteAddr()
}

var errNoDeadline = errors.New("the HTTP client's connections have no deadlines")

// SetDeadline implements net.Conn.
func (c *FrameConn) SetDeadline(t time.Time) error {
	if c.conn == nil {
		return errNoDeadline
	}
	return c.conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *FrameConn) SetReadDeadline(t time.Time) error {
	if c.conn == nil {
		return errNoDeadline
	}
	return c.conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *FrameConn) SetWriteDeadline(t time.Time) error {
	if c.conn == nil {
		return errNoDeadline
	}
	return c.conn.SetWriteDeadline(t)
}
