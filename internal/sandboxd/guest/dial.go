package guest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cayhq/cay"
)

// DialProtocol is the protocol to which a connection to the agent is upgraded when it
// becomes a connection to a port of the guest.
const DialProtocol = "cay-dial"

// Dial connects to a TCP port that a program in the guest listens on at the guest's
// loopback addresses, which the link does not reach. The caller must close the
// connection, which has CloseWrite. Errors: unavailable if no program listens there,
// quota_exceeded if the agent relays too many connections.
func (c *Client) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	ctx, came, end := c.await(ctx)
	defer end()
	defer came()
	conn, err := c.http.DialContext(ctx, "tcp", "guest")
	if err != nil {
		return nil, unavailable(contextErr(ctx, err))
	}
	// When ctx ends, closing the connection ends the upgrade.
	unhook := context.AfterFunc(ctx, func() { conn.Close() })
	relayed, err := c.upgrade(conn, port)
	if !unhook() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, unavailable(contextErr(ctx, err))
	}
	return relayed, nil
}

func (c *Client) upgrade(conn net.Conn, port uint16) (net.Conn, error) {
	u := url.URL{Scheme: "http", Host: "guest", Path: "/dial", RawQuery: "port=" + strconv.Itoa(int(port))}
	req := &http.Request{Method: http.MethodPost, URL: &u, Host: u.Host, Header: http.Header{
		"Authorization": {*c.token.Load()}, "Connection": {"Upgrade"}, "Upgrade": {DialProtocol}, "User-Agent": {""},
	}}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	// The agent is not trusted, so its answer is bounded. The bytes after the head are
	// the connection's first bytes.
	head := &headReader{r: conn, left: c.http.MaxResponseHeaderBytes}
	br := bufio.NewReader(head)
	resp, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if resp.StatusCode < 300 {
			return nil, &protocolError{fmt.Sprintf("status %d where the connection was to be upgraded", resp.StatusCode)}
		}
		data, err := readAll(resp.Body, maxErrorBody)
		if err != nil {
			return nil, err
		}
		return nil, decodeError(data)
	}
	if br.Buffered() == 0 {
		return conn, nil
	}
	first, err := br.Peek(br.Buffered())
	if err != nil {
		return nil, err
	}
	return &prefixedConn{Conn: conn, first: first}, nil
}

// headReader bounds the bytes that are read of a response's head.
type headReader struct {
	r    io.Reader
	left int64
}

func (r *headReader) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, &protocolError{"an answer that is too long"}
	}
	n, err := r.r.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}

// prefixedConn first returns the bytes that came with the head of the answer.
type prefixedConn struct {
	net.Conn
	first []byte
}

func (c *prefixedConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// CloseWrite tells the program that nothing more comes.
func (c *prefixedConn) CloseWrite() error { return closeWrite(c.Conn) }

// CloseWrite closes the sending side.
func (c *trackedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return cay.Errorf(cay.NotSupported, "a %T cannot be closed in one direction", conn)
	}
	return half.CloseWrite()
}
