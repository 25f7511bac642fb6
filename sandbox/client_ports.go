package sandbox

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Flows returns one page of a sandbox's flow log, oldest first. The log keeps
// the newest 1000 records until the sandbox is deleted. To read the next page,
// set After to Next of this page. Errors: invalid.
func (c *Client) Flows(ctx context.Context, ref string, p FlowParams) (*Page[Flow], error) {
	pth, err := endpoint(ref, "flows")
	if err != nil {
		return nil, err
	}
	out := new(Page[Flow])
	if err := c.call(ctx, wire.Request{Method: http.MethodGet, Path: pth, Query: flowQuery(p)}, out); err != nil {
		return nil, err
	}
	return out, nil
}

func flowQuery(p FlowParams) url.Values {
	q := url.Values{}
	setString(q, "verdict", string(p.Verdict))
	setInt(q, "after", p.After)
	setInt(q, "limit", int64(p.Limit))
	return q
}

// WatchFlows reports the records of a sandbox's flow log that come after
// p.After, and then each new record, until the sandbox ends. When the
// connection breaks, Next returns unavailable; call WatchFlows again with the
// last record. Errors: invalid.
func (c *Client) WatchFlows(ctx context.Context, ref string, p FlowParams) (FlowWatch, error) {
	pth, err := endpoint(ref, "flows")
	if err != nil {
		return nil, err
	}
	q := flowQuery(p)
	q.Set("follow", "true")
	s, err := c.stream(ctx, wire.Request{Method: http.MethodGet, Path: pth, Query: q})
	if err != nil {
		return nil, err
	}
	return &flowWatch{watch{ctx: ctx, s: s}}, nil
}

// flowWatch is the FlowWatch of a Client.
type flowWatch struct{ watch }

// Next implements FlowWatch.
func (w *flowWatch) Next() (Flow, error) {
	line, err := w.s.next()
	if err != nil {
		return Flow{}, w.why(err)
	}
	var msg struct {
		Flow
		Error *wire.Error `json:"error"`
	}
	if err := json.Unmarshal(line, &msg); err != nil {
		return Flow{}, cay.Errorf(cay.Internal, "the daemon sent a flow that cannot be read: %w", err)
	}
	if msg.Error != nil {
		return Flow{}, msg.Error.Err()
	}
	return msg.Flow, nil
}

// CreateLink makes a link that opens the preview of a private port to everyone
// who has the link. Making the port public, or removing it, ends all its links.
// Errors: invalid, not_found (the port is not declared), conflict (it is
// public).
func (c *Client) CreateLink(ctx context.Context, ref string, port int, p LinkParams) (*Link, error) {
	return one[Link](ctx, c, http.MethodPost, p, ref, "ports", strconv.Itoa(port), "links")
}

// DialPort connects to a TCP port that a program in the sandbox listens on, on
// 127.0.0.1 or all addresses; it need not be declared. ctx bounds the dialling,
// not the connection. The connection has CloseWrite, and ends with the sandbox;
// while it is open the sandbox is not idle. Errors: invalid, unavailable
// (nothing listens), sandbox_stopped, conflict (paused), quota_exceeded.
func (c *Client) DialPort(ctx context.Context, ref string, port int) (net.Conn, error) {
	p, err := endpoint(ref, "ports", strconv.Itoa(port), "connect")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	out, err := conn.Upgrade(ctx, wire.Request{Method: http.MethodGet, Path: p})
	if err != nil {
		return nil, err
	}
	return out, nil
}
