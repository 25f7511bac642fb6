package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Outbound is a connection that a program in a sandbox opens, offered to the
// sandbox's egress handler because Network.Handled covers it. The program waits
// until the handler answers.
type Outbound struct {
	// ID identifies the connection in answers.
	ID string `json:"id"`
	// Protocol is tls, http, or tcp for everything else.
	Protocol string `json:"protocol"`
	// Name is the TLS server name, or the host of the first HTTP request, in lower
	// case. Empty for other protocols, and for clients that send no name.
	Name string `json:"name,omitempty"`
	// Address is the destination of the program's packets, such as 203.0.113.7:443.
	// For a name that has no address, or that the policy does not let the sandbox
	// resolve, Address is a placeholder.
	Address string `json:"address"`
	// Allowed reports whether the network policy lets the connection pass if the
	// handler leaves the decision to the policy. For a connection by name, the
	// address is not resolved yet.
	Allowed bool `json:"allowed,omitempty"`
}

// Handling is an egress handler's decision about an Outbound.
type Handling string

const (
	HandlePass   Handling = "pass"   // the network policy decides, as without a handler
	HandleRefuse Handling = "refuse" // the program's connection is reset
	HandleRaw    Handling = "raw"    // the handler gets the bytes that the program sends
	// HandlePlain is HandleRaw for the content of TLS: the daemon ends TLS with its
	// own authority, which the sandbox trusts, and speaks HTTP/1.1. Only for the
	// protocol tls, with a name.
	HandlePlain Handling = "plain"
)

// OutboundWatch reports the connections of a sandbox that are offered.
type OutboundWatch interface {
	// Next waits for a connection. io.EOF means that the session has ended,
	// already_exists that another handler has replaced this one.
	Next() (Outbound, error)
	// Close ends the handler: connections that Network.Handled covers are refused
	// from then on. Close may be called while Next waits; Next then fails.
	Close() error
}

// HandleOutbound makes the caller the egress handler of a running sandbox, and
// replaces the former handler. Errors: sandbox_stopped, conflict (the sandbox has
// not started yet).
func (c *Client) HandleOutbound(ctx context.Context, ref string) (OutboundWatch, error) {
	p, err := endpoint(ref, "outbound")
	if err != nil {
		return nil, err
	}
	s, err := c.stream(ctx, wire.Request{Method: http.MethodGet, Path: p})
	if err != nil {
		return nil, err
	}
	return &outboundWatch{watch{ctx: ctx, s: s}}, nil
}

// outboundWatch is the OutboundWatch of a Client.
type outboundWatch struct{ watch }

// Next implements OutboundWatch.
func (w *outboundWatch) Next() (Outbound, error) {
	line, err := w.s.next()
	if err != nil {
		return Outbound{}, w.why(err)
	}
	var msg struct {
		Outbound
		Error *wire.Error `json:"error"`
	}
	if err := json.Unmarshal(line, &msg); err != nil {
		return Outbound{}, cay.Errorf(cay.Internal, "the daemon sent a connection that cannot be read: %w", err)
	}
	if msg.Error != nil {
		return Outbound{}, msg.Error.Err()
	}
	return msg.Outbound, nil
}

// TakeOutbound takes over an offered connection, as HandleRaw or HandlePlain. Reads
// return the program's bytes; the connection has CloseWrite. Errors: invalid,
// not_found (the connection has ended, or was answered already), unavailable (its
// TLS handshake failed), sandbox_stopped.
func (c *Client) TakeOutbound(ctx context.Context, ref, id string, as Handling) (net.Conn, error) {
	p, err := endpoint(ref, "outbound", id, "connect")
	if err != nil {
		return nil, err
	}
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	out, err := conn.Upgrade(ctx, wire.Request{Method: http.MethodGet, Path: p, Query: url.Values{"as": {string(as)}}})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeclineOutbound answers an offered connection without taking it, by HandlePass or
// HandleRefuse. Errors: invalid, not_found (the connection has ended, or was
// answered already), sandbox_stopped.
func (c *Client) DeclineOutbound(ctx context.Context, ref, id string, as Handling) error {
	p, err := endpoint(ref, "outbound", id, "decline")
	if err != nil {
		return err
	}
	return c.call(ctx, wire.Request{Method: http.MethodPost, Path: p, JSON: DeclineParams{as}}, nil)
}

// DeclineParams is the body of a request that declines an Outbound.
type DeclineParams struct {
	As Handling `json:"as"`
}

// OutboundHandler decides about one connection of a sandbox. For HandleRaw and
// HandlePlain, ServeOutbound calls serve, which owns the connection; conn is nil if
// the program has ended the connection meanwhile.
type OutboundHandler func(ctx context.Context, o Outbound) (as Handling, serve func(conn net.Conn))

// maxHandled bounds the connections that ServeOutbound serves at a time; more are
// refused.
const maxHandled = 1024

// ServeOutbound lets h handle the connections of a sandbox that Network.Handled
// covers, each in its own goroutine, until ctx or the sandbox's session ends, or
// another handler takes over. It calls ready, which may be nil, when the daemon
// begins to offer connections. It returns when all calls of h and serve have
// returned; nil means that the session has ended. Errors: the errors of
// HandleOutbound, and unavailable (the daemon is gone).
func (c *Client) ServeOutbound(ctx context.Context, ref string, h OutboundHandler, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.HandleOutbound(ctx, ref)
	if err != nil {
		return err
	}
	defer w.Close() // an error of closing would only report the end
	if ready != nil {
		ready()
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	slots := make(chan struct{}, maxHandled)
	for {
		o, err := w.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case slots <- struct{}{}:
		default:
			// The refusal informs the program; an offer that has ended meanwhile
			// needs no answer.
			_ = c.DeclineOutbound(ctx, ref, o.ID, HandleRefuse)
			continue
		}
		serving.Go(func() {
			defer func() { <-slots }()
			c.handle(ctx, ref, o, h)
		})
	}
}

// handle answers one Outbound. The daemon refuses connections whose answer does not
// arrive, and a connection that has ended meanwhile is not found: neither is an error
// of the handler.
func (c *Client) handle(ctx context.Context, ref string, o Outbound, h OutboundHandler) {
	as, serve := h(ctx, o)
	if as != HandleRaw && as != HandlePlain {
		_ = c.DeclineOutbound(ctx, ref, o.ID, as)
		return
	}
	conn, err := c.TakeOutbound(ctx, ref, o.ID, as)
	if err != nil {
		serve(nil)
		return
	}
	serve(conn)
}

// AuthorityInfo is the answer to a request for the daemon's authority.
type AuthorityInfo struct {
	PEM string `json:"pem"`
}

// Authority returns the certificate, as PEM, of the authority with which the daemon
// opens TLS: for HandlePlain, and for names with rules. Sandboxes of such policies
// trust the authority without further setup. Errors: not_supported.
func (c *Client) Authority(ctx context.Context) ([]byte, error) {
	var out AuthorityInfo
	if err := c.call(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/network/authority"}, &out); err != nil {
		return nil, err
	}
	return []byte(out.PEM), nil
}
