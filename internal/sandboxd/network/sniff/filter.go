package sniff

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
)

// RequestError says why a request was refused. The caller should tell the client, and
// must close the connection.
type RequestError struct {
	Reason string // a few words, safe to show
}

func (e *RequestError) Error() string { return "bad HTTP request: " + e.Reason }

func bad(format string, args ...any) *RequestError {
	return &RequestError{Reason: fmt.Sprintf(format, args...)}
}

// Limits of a request. net/http's server takes no larger trailers.
const (
	maxHead      = 64 << 10 // bytes
	maxFields    = 100      // headers, and as many trailers
	maxTrailers  = 4 << 10  // bytes
	maxChunkLine = 256      // bytes of a chunk's size and extensions
	maxChunkExt  = 4 << 10  // bytes of extensions in a body
)

// Conn is the connection of an HTTP/1 client. Read returns the client's bytes unchanged,
// as long as they have only one reading. At the first request that violates RFC 9112, or
// that servers are known to read differently, Read fails with a *RequestError, now and
// ever after. No byte of a request is returned before its whole head is found valid, and
// no byte of a chunk or a trailer before its framing is. Bodies pass as they come.
//
// A Read never returns bytes of two requests, so a server that has not asked for the next
// request has at most its first byte (net/http reads one byte ahead, to notice that the
// client is gone).
//
// Deadlines and all methods but Read are the connection's own. Calls of Read must not be
// concurrent, as in net/http.
type Conn struct {
	net.Conn
	upgraded atomic.Bool
	refused  *RequestError

	// store[r:w] was read, but not returned yet. Its first checked bytes may be returned.
	store   []byte
	r, w    int
	checked int

	stage stage
	head  head  // of the current request
	left  int64 // of the body or the chunk
	ext   int   // bytes of chunk extensions in this body
	lines lines // of the head, the trailers or the chunk's size
}

// stage is the part of a request that comes next.
type stage int

const (
	inHead stage = iota
	inBody
	inChunkSize
	inChunk
	inChunkEnd
	inTrailers
)

// FilterRequests returns a Conn that passes only those HTTP/1 requests of conn's other
// end that mean the same to everyone.
func FilterRequests(conn net.Conn) *Conn {
	return &Conn{Conn: conn}
}

// Upgraded tells c that the server has accepted the client's offer to speak another
// protocol: all further bytes are returned unchanged. It must be called before the client
// can know, that is before the response 101 is written, because until then c parses bytes
// as the next request. If a client sends bytes before it has the response, which no
// protocol allows, c either parses them as a request or refuses them.
//
// So no call is needed when an offer was declined. After Upgraded, the server must read
// no more requests from the connection.
func (c *Conn) Upgraded() { c.upgraded.Store(true) }

// CloseWrite closes the sending side, if the connection supports it.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("close one direction of a %T: %w", c.Conn, errors.ErrUnsupported)
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if c.checked > 0 {
			return c.take(p[:min(len(p), c.checked)]), nil
		}
		if c.refused != nil {
			return 0, c.refused
		}
		if c.upgraded.Load() {
			if c.r < c.w {
				c.checked = c.w - c.r
				continue
			}
			c.store = nil
			return c.Conn.Read(p)
		}
		if c.left > 0 && c.r == c.w {
			n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
			if c.left -= int64(n); c.left == 0 {
				c.endData()
			}
			if n > 0 {
				return n, nil // a failed connection fails again
			}
			return 0, c.cutOff(err)
		}
		if c.refused = c.check(); c.refused != nil {
			continue // valid bytes before the error are returned first
		}
		if c.checked == 0 {
			if n, err := c.fill(); n == 0 && err != nil {
				return 0, c.cutOff(err)
			}
		}
	}
}

// cutOff turns the end of the stream within a request into an error.
func (c *Conn) cutOff(err error) error {
	if err == io.EOF && (c.stage != inHead || c.r < c.w) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// take moves checked bytes to p, which must not be longer than they are.
func (c *Conn) take(p []byte) int {
	n := copy(p, c.store[c.r:])
	c.r += n
	c.checked -= n
	if c.r == c.w {
		c.r, c.w = 0, 0
		if len(c.store) > minStore {
			c.store = nil // an idle connection holds little
		}
	}
	return n
}

const minStore = 4 << 10

// fill reads more bytes into the store. The store keeps all unchecked bytes, which check
// bounds: no line and no head is longer than maxHead.
func (c *Conn) fill() (int, error) {
	if c.w == len(c.store) {
		into := c.store
		if c.r == 0 {
			into = make([]byte, min(max(minStore, 2*len(c.store)), maxHead))
		}
		c.w = copy(into, c.store[c.r:c.w])
		c.r, c.store = 0, into
	}
	n, err := c.Conn.Read(c.store[c.w:])
	c.w += n
	return n, err
}

// check parses the bytes in the store, as far as they are complete and up to the end of
// the current request. An error is about the bytes after the checked ones.
func (c *Conn) check() *RequestError {
	for c.checked == 0 || c.stage != inHead {
		pending := c.store[c.r+c.checked : c.w]
		if len(pending) == 0 {
			return nil
		}
		n, err := c.step(pending)
		if n == 0 || err != nil {
			return err
		}
		c.checked += n
	}
	return nil
}

// step returns how many of the next bytes are valid. 0 means that more bytes are needed.
func (c *Conn) step(pending []byte) (int, *RequestError) {
	switch c.stage {
	case inHead:
		return c.stepHead(pending)
	case inChunkSize:
		return c.stepChunkSize(pending)
	case inChunkEnd:
		if pending[0] != '\r' || len(pending) > 1 && pending[1] != '\n' {
			return 0, bad("a chunk is longer than it says")
		}
		if len(pending) == 1 {
			return 0, nil
		}
		c.stage = inChunkSize
		return 2, nil
	case inTrailers:
		return c.stepTrailers(pending)
	}
	n := min(int64(len(pending)), c.left)
	if c.left -= n; c.left == 0 {
		c.endData()
	}
	return int(n), nil
}

// endData follows the last byte of a body or a chunk.
func (c *Conn) endData() {
	if c.stage == inBody {
		c.stage = inHead
	} else {
		c.stage = inChunkEnd
	}
}

func (c *Conn) stepHead(pending []byte) (int, *RequestError) {
	if !isToken[pending[0]] {
		return 0, bad("it begins with %+q", pending[0])
	}
	for {
		if c.lines.exceed(pending, maxHead) {
			return 0, bad("its head is larger than %d KiB", maxHead>>10)
		}
		line, err := c.lines.next(pending)
		if line == nil {
			return 0, err
		}
		done, err := c.head.add(line)
		if err != nil {
			return 0, err
		}
		if !done {
			continue
		}
		switch h := &c.head; {
		case h.chunked:
			c.stage, c.ext = inChunkSize, 0
		case h.length > 0:
			c.stage, c.left = inBody, h.length
		}
		c.head = head{}
		return c.lines.end(), nil
	}
}

func (c *Conn) stepChunkSize(pending []byte) (int, *RequestError) {
	if c.lines.exceed(pending, maxChunkLine+len("\r\n")) {
		return 0, bad("the line with a chunk's size is longer than %d bytes", maxChunkLine)
	}
	line, err := c.lines.next(pending)
	if line == nil {
		return 0, err
	}
	size, ext, err := parseChunkSize(line)
	if err != nil {
		return 0, err
	}
	if c.ext += ext; c.ext > maxChunkExt {
		return 0, bad("its chunks have more than %d KiB of extensions", maxChunkExt>>10)
	}
	if c.left = size; size > 0 {
		c.stage = inChunk
	} else {
		c.stage = inTrailers
	}
	return c.lines.end(), nil
}

func (c *Conn) stepTrailers(pending []byte) (int, *RequestError) {
	for {
		if c.lines.exceed(pending, maxTrailers) {
			return 0, bad("its trailers are larger than %d KiB", maxTrailers>>10)
		}
		line, err := c.lines.next(pending)
		if line == nil {
			return 0, err
		}
		if len(line) == 0 {
			c.head = head{}
			c.stage = inHead
			return c.lines.end(), nil
		}
		if err := c.head.addTrailer(line); err != nil {
			return 0, err
		}
	}
}

// lines cuts text into lines as it comes in.
type lines struct {
	start   int // of the line that comes next
	scanned int // bytes of the text that are known to have no line feed behind start
}

// exceed reports whether the lines, to the end of the next line, have more than most
// bytes. It must be called before next, so that the reported error does not depend on how
// the bytes were split over reads.
func (l *lines) exceed(text []byte, most int) bool {
	return len(text) >= most && bytes.IndexByte(text[l.scanned:most], '\n') < 0
}

// next returns the next line of text without its end, nil if the line is incomplete. text
// must be the text of the call before, followed by the bytes that came in since.
func (l *lines) next(text []byte) ([]byte, *RequestError) {
	i := bytes.IndexByte(text[l.scanned:], '\n')
	if i < 0 {
		l.scanned = len(text)
		return nil, nil
	}
	i += l.scanned
	line := text[l.start:i]
	l.start, l.scanned = i+1, i+1
	switch cr := bytes.IndexByte(line, '\r'); {
	case cr < 0:
		return nil, bad("a line ends without a carriage return")
	case cr != len(line)-1:
		return nil, bad("a carriage return within a line")
	}
	return line[:len(line)-1], nil
}

// end returns the size of the lines so far, and starts again after them.
func (l *lines) end() int {
	n := l.start
	*l = lines{}
	return n
}
