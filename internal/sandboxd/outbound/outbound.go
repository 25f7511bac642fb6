// Package outbound holds the connections of one sandbox that are offered to its egress
// handler and not answered yet. A Desk stands between the machine's network, which
// asks, and the handler's calls, which answer. It knows neither.
package outbound

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

const (
	// maxPending bounds the connections of a sandbox that wait for an answer.
	maxPending = 256
	// patience is how long a handler may take to answer, and to fetch what it has
	// taken.
	patience = 30 * time.Second
)

// Desk is where connections wait for their handler. The zero value is ready.
type Desk struct {
	mu      sync.Mutex // guards what follows
	handler *Handler
	pending map[string]*pending
	last    uint64 // number of the last connection
}

// pending is one connection that waits.
type pending struct {
	answer chan machine.OutboundAnswer // has room for one
}

// Handler is the handler of a Desk, until Close or another Open.
type Handler struct {
	desk   *Desk
	offers chan sandbox.Outbound
	ended  chan struct{}
	once   sync.Once
	why    error // set before ended is closed
}

var _ sandbox.OutboundWatch = (*Handler)(nil)

// Open makes a handler of connections that are offered from now on, in place of the
// one before, whose Next returns already_exists.
func (d *Desk) Open() *Handler {
	h := &Handler{desk: d, offers: make(chan sandbox.Outbound, maxPending), ended: make(chan struct{})}
	d.mu.Lock()
	before := d.handler
	d.handler = h
	d.mu.Unlock()
	if before != nil {
		before.End(cay.Errorf(cay.AlreadyExists, "another egress handler of the sandbox has taken the place of this one"))
	}
	return h
}

// End ends the handler: Next returns why.
func (h *Handler) End(why error) {
	h.once.Do(func() {
		h.desk.mu.Lock()
		if h.desk.handler == h {
			h.desk.handler = nil
		}
		h.desk.mu.Unlock()
		h.why = why
		close(h.ended)
	})
}

// EndWith has the handler end when ctx does: with why().
func (h *Handler) EndWith(ctx context.Context, why func() error) {
	unhook := context.AfterFunc(ctx, func() { h.End(why()) })
	go func() {
		<-h.ended
		unhook()
	}()
}

// Next implements sandbox.OutboundWatch.
func (h *Handler) Next() (sandbox.Outbound, error) {
	select {
	case <-h.ended: // before what is still there
		return sandbox.Outbound{}, h.why
	default:
	}
	select {
	case o := <-h.offers:
		return o, nil
	case <-h.ended:
		return sandbox.Outbound{}, h.why
	}
}

// Close implements sandbox.OutboundWatch.
func (h *Handler) Close() error {
	h.End(io.EOF)
	return nil
}

var errNoHandler = errors.New("no egress handler is connected")

// Offer asks the handler about a connection; see machine.OutboundHandler.
func (d *Desk) Offer(ctx context.Context, o sandbox.Outbound) (machine.OutboundAnswer, error) {
	p := &pending{answer: make(chan machine.OutboundAnswer, 1)}
	d.mu.Lock()
	h := d.handler
	if h == nil {
		d.mu.Unlock()
		return machine.OutboundAnswer{}, errNoHandler
	}
	if len(d.pending) >= maxPending {
		d.mu.Unlock()
		return machine.OutboundAnswer{}, errors.New("too many connections wait for it")
	}
	if d.pending == nil {
		d.pending = map[string]*pending{}
	}
	d.last++
	o.ID = strconv.FormatUint(d.last, 10)
	d.pending[o.ID] = p
	d.mu.Unlock()

	late := time.NewTimer(patience)
	defer late.Stop()
	var why error
	select {
	case h.offers <- o:
		select {
		case a := <-p.answer:
			return a, nil
		case <-h.ended:
			why = errNoHandler
		case <-late.C:
			why = errors.New("it did not answer in " + patience.String())
		case <-ctx.Done():
			why = context.Cause(ctx)
		}
	default:
		why = errors.New("it does not read its connections")
	}
	if d.claim(o.ID) == nil { // an answer is on its way
		return <-p.answer, nil
	}
	return machine.OutboundAnswer{}, why
}

// claim takes a connection from those that wait. Nil: it is not among them.
func (d *Desk) claim(id string) *pending {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pending[id]
	delete(d.pending, id)
	return p
}

func missing(id string) error {
	return cay.Errorf(cay.NotFound, "connection %.40q does not wait for an answer: it has ended, or was answered already", id)
}

// Decline answers a connection by HandlePass or HandleRefuse. Errors: invalid,
// not_found.
func (d *Desk) Decline(id string, as sandbox.Handling) error {
	if as != sandbox.HandlePass && as != sandbox.HandleRefuse {
		return cay.Errorf(cay.Invalid, "as %.40q is not one of %s, %s", as, sandbox.HandlePass, sandbox.HandleRefuse)
	}
	p := d.claim(id)
	if p == nil {
		return missing(id)
	}
	p.answer <- machine.OutboundAnswer{As: as}
	return nil
}

// Take answers a connection by HandleRaw or HandlePlain, and returns it. If ctx ends
// first, the connection is closed. Errors: invalid, not_found, unavailable (it ended,
// or its TLS cannot be opened).
func (d *Desk) Take(ctx context.Context, id string, as sandbox.Handling) (net.Conn, error) {
	if as != sandbox.HandleRaw && as != sandbox.HandlePlain {
		return nil, cay.Errorf(cay.Invalid, "as %.40q is not one of %s, %s", as, sandbox.HandleRaw, sandbox.HandlePlain)
	}
	p := d.claim(id)
	if p == nil {
		return nil, missing(id)
	}
	taken := make(chan net.Conn, 1)
	p.answer <- machine.OutboundAnswer{As: as, Take: func(conn net.Conn) { taken <- conn }}
	select {
	case conn := <-taken:
		if conn == nil {
			return nil, cay.Errorf(cay.Unavailable, "connection %q cannot be taken over: it has ended, or its TLS cannot be opened", id)
		}
		return conn, nil
	case <-ctx.Done():
		go func() {
			if conn := <-taken; conn != nil {
				conn.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}
