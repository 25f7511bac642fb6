package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
)

// remoteSession is a Session over a connection to a daemon.
type remoteSession struct {
	link   *protocol.Link
	runner Runner

	greeted chan error    // has capacity 1: the daemon's answer to Hello
	lost    chan struct{} // closed when all goroutines of the session have ended

	// Only the reading goroutine uses these fields.
	welcome bool
	partial map[uint64]*Assignment // by lease: logs that have not arrived completely

	mu      sync.Mutex // guards the fields below
	seq     uint64
	pending map[uint64]func(error)
	ended   error // why appends fail; nil while the session is open
	late    int   // running calls of done on goroutines of their own
	idle    sync.Cond
}

var _ Session = (*remoteSession)(nil)

func (r *remote) Attach(ctx context.Context, w WorkerInfo, runner Runner) (Session, error) {
	hello, err := helloBody(w)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "encode what the worker is: %w", err)
	}
	conn, err := r.conn.Upgrade(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/workflows/attach", Query: r.query()})
	if err != nil {
		return nil, err
	}
	s := &remoteSession{
		link: protocol.NewLink(conn), runner: runner,
		greeted: make(chan error, 1), lost: make(chan struct{}),
		partial: make(map[uint64]*Assignment), pending: make(map[uint64]func(error)),
	}
	s.idle.L = &s.mu
	if err := s.link.Send(protocol.Message{Kind: protocol.KindHello, Body: hello}); err != nil {
		s.link.Close(err)
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	unbind := context.AfterFunc(ctx, func() {
		s.link.Close(cay.Errorf(cay.Canceled, "the session's context has ended: %w", context.Canceled))
	})
	go func() {
		defer close(s.lost)
		defer cancel()
		defer unbind()
		s.over(s.link.Serve(s.handle))
	}()
	if err := <-s.greeted; err != nil {
		<-s.lost
		return nil, err
	}
	return s, nil
}

// handle handles a message of the daemon.
func (s *remoteSession) handle(m *protocol.Message) error {
	switch m.Kind {
	case protocol.KindWelcome:
		s.welcome = true
		s.greeted <- nil
	case protocol.KindRefused:
		err := m.Err()
		if err == nil {
			err = cay.Errorf(cay.Internal, "the daemon refused the worker, and did not say why")
		}
		return err
	case protocol.KindAssign:
		s.assign(m)
	case protocol.KindDeliver:
		s.runner.Deliver(m.Run, m.Lease, m.Events)
	case protocol.KindRevoke:
		delete(s.partial, m.Lease)
		s.runner.Revoke(m.Run, m.Lease)
	case protocol.KindDone:
		s.decided(m.Seq, m.Err())
	case protocol.KindClosed:
		return protocol.ErrLinkClosed
	default:
		return fmt.Errorf("the daemon sent a message of kind %d", m.Kind)
	}
	return nil
}

// assign collects a log that arrives in parts.
func (s *remoteSession) assign(m *protocol.Message) {
	a := s.partial[m.Lease]
	if a == nil {
		a = &Assignment{Run: *m.Info, Lease: m.Lease, Recovered: m.Recovered}
	}
	a.Events = append(a.Events, m.Events...)
	if m.More {
		s.partial[m.Lease] = a
		return
	}
	delete(s.partial, m.Lease)
	s.runner.Assign(*a)
}

func (s *remoteSession) decided(seq uint64, err error) {
	s.mu.Lock()
	done := s.pending[seq]
	delete(s.pending, seq)
	s.mu.Unlock()
	if done != nil {
		done(err)
	}
}

// over ends everything that depends on the session.
func (s *remoteSession) over(err error) {
	switch {
	case errors.Is(err, protocol.ErrLinkClosed):
		err = cay.Errorf(cay.Unavailable, "the session was closed")
	case !errors.As(err, new(*cay.Error)):
		err = cay.Errorf(cay.Unavailable, "the connection of the worker to the daemon broke: %w", err)
	}
	if !s.welcome {
		s.greeted <- err
	}
	s.mu.Lock()
	s.ended = err
	pending := s.pending
	s.pending = nil
	s.mu.Unlock()
	for _, done := range pending {
		if done == nil {
			continue
		}
		// The request may or may not have been committed; the lease has ended either way.
		done(cay.Errorf(cay.Unavailable, "the session ended before the daemon answered: %w", err))
	}
}

// request sends m with a number, and calls done with the answer.
func (s *remoteSession) request(m protocol.Message, done func(error)) {
	s.link.WaitForRoom()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ended
	if err == nil {
		s.seq++
		m.Seq = s.seq
		// Requests are sent in the order of their numbers, so that appends keep their
		// order.
		if err = s.link.Send(m); err == nil {
			s.pending[m.Seq] = done
			return
		}
	}
	if !errors.As(err, new(*cay.Error)) {
		err = cay.Errorf(cay.Unavailable, "the session has ended: %w", err)
	}
	s.failLocked(done, err)
}

// failLocked calls done on another goroutine, because the caller may hold locks that done
// needs.
func (s *remoteSession) failLocked(done func(error), err error) {
	if done == nil {
		return
	}
	s.late++
	go func() {
		done(err)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late--
		s.idle.Broadcast()
	}()
}

// Append implements Session.
func (s *remoteSession) Append(run string, lease uint64, events []Event, done func(error)) {
	s.request(protocol.Message{Kind: protocol.KindAppend, Run: run, Lease: lease, Events: events}, done)
}

// WriteStream implements Session.
func (s *remoteSession) WriteStream(run string, lease uint64, stream string, chunks [][]byte, closeIt bool, done func(error)) {
	s.request(protocol.Message{Kind: protocol.KindWrite, Run: run, Lease: lease, Stream: stream, Chunks: chunks, End: closeIt}, done)
}

// StartRun implements Session.
func (s *remoteSession) StartRun(run string, lease uint64, p NewRun, started Event, done func(error)) {
	child := protocol.Child{Start: startBody(p), Parent: p.Parent, Root: p.Root, Previous: p.Previous, ParentCall: p.ParentCall}
	for _, h := range p.Hooks {
		carried := protocol.CarriedHook{Token: h.Token, Metadata: h.Metadata}
		for _, v := range h.Values {
			carried.Values = append(carried.Values, protocol.CarriedValue(v))
		}
		child.Hooks = append(child.Hooks, carried)
	}
	body, err := json.Marshal(child)
	if err != nil {
		s.mu.Lock() // a time beyond the year 9999 cannot be encoded
		defer s.mu.Unlock()
		s.failLocked(done, cay.Errorf(cay.Invalid, "encode the run to start: %w", err))
		return
	}
	s.request(protocol.Message{Kind: protocol.KindStart, Run: run, Lease: lease, Body: body, Events: []Event{started}}, done)
}

// Transact implements Session.
func (s *remoteSession) Transact(context.Context, string, uint64, func(context.Context, Tx) (Event, error)) error {
	return cay.Errorf(cay.NotSupported, "a transactional step needs the engine's database in its own process").
		WithHint("run the worker on sqlite.Open or postgres.Open, or make it an ordinary step")
}

// Release implements Session.
func (s *remoteSession) Release(run string, lease uint64, slot int64) {
	// If the session has ended, the run is released already.
	_ = s.link.Send(protocol.Message{Kind: protocol.KindRelease, Run: run, Lease: lease, Slot: slot})
}

// Lost implements Session.
func (s *remoteSession) Lost() <-chan struct{} { return s.lost }

// Close implements Session.
func (s *remoteSession) Close() error {
	if s.link.Send(protocol.Message{Kind: protocol.KindClose}) == nil {
		// Wait until the daemon answers, or is found to be gone.
		<-s.lost
	}
	s.link.Close(nil)
	<-s.lost
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.late > 0 {
		s.idle.Wait()
	}
	return nil
}
