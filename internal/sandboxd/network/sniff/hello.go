package sniff

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// ClientHello has the unencrypted requests of a TLS client.
type ClientHello struct {
	// ServerName is as sent, in any case; only letters, digits, '-', '_' and
	// '.' occur in it, it does not end in a dot and is no IP address. Empty if
	// the client names no server.
	ServerName string
	// ALPN are the protocols offered, the preferred one first.
	ALPN []string
	// ECH is set if this hello contains another, encrypted hello, which may name another
	// server. Some browsers send random bytes that look like an encrypted hello to every
	// server; only the server can tell the difference.
	ECH bool
}

// HelloError says why bytes are not a ClientHello to go by.
type HelloError struct {
	Reason string // a few words, safe to show
}

func (e *HelloError) Error() string { return "bad TLS hello: " + e.Reason }

func badHello(format string, args ...any) error {
	return &HelloError{Reason: fmt.Sprintf(format, args...)}
}

const (
	// MaxClientHello is the size in bytes that a ClientHello may have.
	MaxClientHello = 16 << 10

	// maxHelloRaw bounds the hello with its records, whose sizes the guest chooses:
	// enough to send every hello of 5 KiB a byte at a time.
	maxHelloRaw = 32 << 10
)

const (
	recordHeader    = 5 // type, version, length
	recordAlert     = 21
	recordHandshake = 22
	maxRecord       = 16 << 10

	messageHeader      = 4 // type, length
	messageClientHello = 1
)

// ReadClientHello reads the hello that a TLS connection begins with, and not a byte more:
// later bytes of the client stay in r. raw has the bytes read, also if there is an error.
// The error is a *HelloError, unless r failed.
func ReadClientHello(r io.Reader) (hello *ClientHello, raw []byte, err error) {
	var message []byte
	want := messageHeader
	for len(message) < want {
		if raw, message, err = readRecord(r, raw, message); err != nil {
			return nil, raw, err
		}
		if len(message) < messageHeader {
			continue
		}
		if message[0] != messageClientHello {
			return nil, raw, badHello("handshake message %d instead of a ClientHello", message[0])
		}
		size := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
		if size > MaxClientHello {
			return nil, raw, badHello("%d bytes long", size)
		}
		want = messageHeader + size
	}
	// RFC 8446, 5.1: a ClientHello ends where a record ends.
	if len(message) > want {
		return nil, raw, badHello("more in its record behind the ClientHello")
	}
	hello, err = parseClientHello(message[messageHeader:])
	return hello, raw, err
}

// readRecord reads a handshake record and appends it to raw, its content to
// message.
func readRecord(r io.Reader, raw, message []byte) (_, _ []byte, err error) {
	start := len(raw)
	if raw, err = readMore(r, raw, recordHeader); err != nil {
		// In another protocol there may never be five bytes.
		if start == 0 && len(raw) > 0 && raw[0] != recordHandshake {
			return raw, message, badHello("record type %d", raw[0])
		}
		return raw, message, err
	}
	header := raw[start:]
	size := int(header[3])<<8 | int(header[4])
	switch {
	case start == 0 && header[0]&0x80 != 0 && header[2] == messageClientHello:
		return raw, message, badHello("of SSL 2")
	case header[0] == recordAlert:
		return raw, message, badHello("an alert instead")
	case header[0] != recordHandshake:
		return raw, message, badHello("record type %d", header[0])
	case header[1] != 3 || header[2] > 4:
		return raw, message, badHello("record version %d.%d", header[1], header[2])
	case size == 0:
		return raw, message, badHello("an empty record")
	case size > maxRecord:
		return raw, message, badHello("a record of %d bytes", size)
	case len(raw)+size > maxHelloRaw:
		return raw, message, badHello("cut into too many records")
	}
	start = len(raw)
	raw, err = readMore(r, raw, size)
	return raw, append(message, raw[start:]...), err
}

// readMore appends exactly n bytes of r to raw, or fewer with an error.
func readMore(r io.Reader, raw []byte, n int) ([]byte, error) {
	raw = slices.Grow(raw, n)
	got, err := io.ReadFull(r, raw[len(raw):len(raw)+n])
	raw = raw[:len(raw)+got]
	if err == nil {
		return raw, nil
	}
	if err == io.EOF && len(raw) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return raw, fmt.Errorf("read TLS hello: %w", err)
}

// The extensions that matter here.
const (
	extServerName   = 0
	extALPN         = 16
	extPreSharedKey = 41
	extECH          = 0xfe0d
)

func parseClientHello(body []byte) (*ClientHello, error) {
	c := cursor{rest: body}
	version := c.number(2)
	c.take(32) // random
	session, suites, compression := c.vector(1), c.vector(2), c.vector(1)
	switch {
	case c.short:
		return nil, badHello("cut off")
	case version < 0x0301 || version > 0x0303: // TLS 1.3 says 1.2 here
		return nil, badHello("version %d.%d", version>>8, version&0xff)
	case len(session) > 32:
		return nil, badHello("a session id of %d bytes", len(session))
	case len(suites) == 0 || len(suites)%2 != 0:
		return nil, badHello("%d bytes of cipher suites", len(suites))
	case !slices.Contains(compression, 0):
		return nil, badHello("no uncompressed mode")
	}
	hello := new(ClientHello)
	if c.empty() {
		return hello, nil // as TLS 1.0 allows
	}
	extensions := cursor{rest: c.vector(2)}
	if c.short || !c.empty() {
		return nil, badHello("the extensions are not as long as they say")
	}
	seen := make(map[int]bool)
	for !extensions.empty() {
		kind, data := extensions.number(2), extensions.vector(2)
		switch {
		case extensions.short:
			return nil, badHello("an extension is cut off")
		case seen[kind]:
			return nil, badHello("extension %d twice", kind)
		}
		seen[kind] = true
		var err error
		switch kind {
		case extServerName:
			hello.ServerName, err = parseServerName(data)
		case extALPN:
			hello.ALPN, err = parseALPN(data)
		case extECH:
			hello.ECH = true
		case extPreSharedKey:
			if !extensions.empty() {
				err = badHello("an extension behind pre_shared_key")
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return hello, nil
}

// parseServerName requires exactly one name. RFC 6066 has a list, for which no second
// type of entry was ever defined, and servers differ in which entry they use.
func parseServerName(data []byte) (string, error) {
	c := cursor{rest: data}
	list := cursor{rest: c.vector(2)}
	if c.short || !c.empty() {
		return "", badHello("the server name list is not as long as it says")
	}
	if list.empty() {
		return "", badHello("an empty server name list")
	}
	kind, name := list.number(1), list.vector(2)
	switch {
	case list.short:
		return "", badHello("the server name is cut off")
	case kind != 0:
		return "", badHello("a server name of type %d", kind)
	case !list.empty():
		return "", badHello("several server names")
	case len(name) == 0:
		return "", badHello("an empty server name")
	case len(name) > 255:
		return "", badHello("a server name of %d bytes", len(name))
	case name[0] == '.' || name[len(name)-1] == '.':
		return "", badHello("server name %+q begins or ends with a dot", name)
	}
	for _, b := range name {
		if !isNameByte(b) {
			return "", badHello("%+q in server name %+q", b, name)
		}
	}
	if _, err := netip.ParseAddr(string(name)); err == nil {
		return "", badHello("the server name is the address %s", name)
	}
	return string(name), nil
}

func parseALPN(data []byte) ([]string, error) {
	c := cursor{rest: data}
	list := cursor{rest: c.vector(2)}
	if c.short || !c.empty() || list.empty() {
		return nil, badHello("the list of protocols is not as long as it says")
	}
	var names []string
	for !list.empty() {
		name := list.vector(1)
		if list.short || len(name) == 0 {
			return nil, badHello("an empty protocol, or one that is cut off")
		}
		names = append(names, string(name))
	}
	return names, nil
}

// cursor takes numbers and vectors off the front of a TLS structure. Beyond the end it
// returns zero and empty values, and sets short.
type cursor struct {
	rest  []byte
	short bool
}

func (c *cursor) empty() bool { return len(c.rest) == 0 }

func (c *cursor) take(n int) []byte {
	if n > len(c.rest) {
		c.rest, c.short = nil, true
		return nil
	}
	taken := c.rest[:n]
	c.rest = c.rest[n:]
	return taken
}

// number takes a big-endian number of n bytes.
func (c *cursor) number(n int) (v int) {
	for _, b := range c.take(n) {
		v = v<<8 | int(b)
	}
	return v
}

// vector takes a length of n bytes, and that many bytes.
func (c *cursor) vector(n int) []byte { return c.take(c.number(n)) }

// isNameByte reports whether c can be in a host name. Underscores are in use, although
// RFC 952 does not allow them in host names.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
}

// Alert is a reason for which a server ends a TLS handshake.
type Alert byte

// The alerts that explain a refusal.
const (
	AccessDenied     Alert = 49
	UnrecognizedName Alert = 112
)

// Record returns the alert as a record of 7 bytes, ready to be sent in answer to a
// ClientHello. The alert is fatal: the connection ends after it.
func (a Alert) Record() []byte {
	return []byte{recordAlert, 3, 3, 0, 2, 2, byte(a)}
}
