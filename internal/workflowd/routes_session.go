package workflowd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// handleAttach turns the request's connection into the session of a worker; see
// package protocol.
func (h *Routes) handleAttach(w http.ResponseWriter, r *http.Request) error {
	b, err := h.backend(r, api.ParseQuery(r))
	if err != nil {
		return err
	}
	if err := api.CheckUpgrade(r); err != nil {
		return err
	}
	worker := &worker{backend: b}
	if !h.workers.add(worker) {
		return cay.Errorf(cay.Unavailable, "the daemon is stopping")
	}
	defer h.workers.remove(worker)

	return api.Upgrade(w, r, func(conn *wire.FrameConn) { worker.serve(r.Context(), conn) })
}

// workers are the active sessions.
type workers struct {
	mu     sync.Mutex // guards the fields below
	all    map[*worker]bool
	closed bool
	under  sync.WaitGroup // counts the sessions in all
}

func (ws *workers) add(w *worker) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return false
	}
	if ws.all == nil {
		ws.all = make(map[*worker]bool)
	}
	ws.all[w] = true
	ws.under.Add(1)
	return true
}

func (ws *workers) remove(w *worker) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all, w)
	ws.under.Done()
}

// close ends all sessions and waits until their goroutines have ended.
func (ws *workers) close() {
	ws.mu.Lock()
	ws.closed = true
	for w := range ws.all {
		w.stop()
	}
	ws.mu.Unlock()
	ws.under.Wait()
}

// worker is the daemon's side of a worker's session: it passes requests of the worker to
// the engine's Session, and sends the engine's calls of Runner to the worker.
type worker struct {
	backend workflow.Backend
	// Only the reading goroutine uses these fields.
	session workflow.Session // nil before Hello
	closed  bool             // session was closed

	mu      sync.Mutex // guards the fields below
	link    *protocol.Link
	stopped bool
	greeted bool               // Welcome is on its way
	held    []protocol.Message // messages to send after Welcome
}

var _ workflow.Runner = (*worker)(nil)

// maxPart is the approximate number of bytes of a log in one message.
const maxPart = 4 << 20

// stop ends the session.
func (w *worker) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.link != nil {
		w.link.Close(nil)
	}
}

// serve runs the session to its end.
func (w *worker) serve(ctx context.Context, conn *wire.FrameConn) {
	link := protocol.NewLink(conn)
	w.mu.Lock()
	w.link = link
	stopped := w.stopped
	w.mu.Unlock()
	if stopped {
		link.Close(nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	// Any error means that the connection is gone, and the worker knows that.
	_ = link.Serve(func(m *protocol.Message) error { return w.handle(ctx, &watch, m) })
	// Without a Close message the worker may have died: the session is ended through its
	// context, not in order.
	cancel()
	if w.session != nil {
		<-w.session.Lost()
	}
	w.closeSession()
	watch.Wait()
}

// closeSession gives the worker's runs to others.
func (w *worker) closeSession() {
	if w.session != nil && !w.closed {
		w.closed = true
		_ = w.session.Close() // no connection is left to report an error on
	}
}

// handle carries out a message of the worker.
func (w *worker) handle(ctx context.Context, watch *sync.WaitGroup, m *protocol.Message) error {
	if w.closed || (w.session == nil) != (m.Kind == protocol.KindHello) {
		return fmt.Errorf("a message of kind %d in the wrong place", m.Kind)
	}
	switch m.Kind {
	case protocol.KindHello:
		return w.hello(ctx, watch, m)
	case protocol.KindAppend:
		w.session.Append(m.Run, m.Lease, m.Events, w.answer(ctx, m.Seq))
	case protocol.KindWrite:
		w.session.WriteStream(m.Run, m.Lease, m.Stream, m.Chunks, m.End, w.answer(ctx, m.Seq))
	case protocol.KindStart:
		var child protocol.Child
		if err := json.Unmarshal(m.Body, &child); err != nil || len(m.Events) != 1 {
			return fmt.Errorf("a child run that cannot be read: %w", err)
		}
		p := newRun(&child.Start)
		p.Parent, p.Root, p.Previous, p.ParentCall = child.Parent, child.Root, child.Previous, child.ParentCall
		for _, h := range child.Hooks {
			carried := workflow.NewHookState{Token: h.Token, Metadata: h.Metadata}
			for _, v := range h.Values {
				carried.Values = append(carried.Values, workflow.HookValue(v))
			}
			p.Hooks = append(p.Hooks, carried)
		}
		w.session.StartRun(m.Run, m.Lease, p, m.Events[0], w.answer(ctx, m.Seq))
	case protocol.KindRelease:
		w.session.Release(m.Run, m.Lease, m.Slot)
	case protocol.KindClose:
		w.closeSession()
		w.send(protocol.Message{Kind: protocol.KindClosed})
		w.link.Finish()
	default:
		return fmt.Errorf("a worker sends no message of kind %d", m.Kind)
	}
	return nil
}

// hello opens the engine's session.
func (w *worker) hello(ctx context.Context, watch *sync.WaitGroup, m *protocol.Message) error {
	var hello protocol.Hello
	err := json.Unmarshal(m.Body, &hello)
	switch {
	case err != nil:
		err = cay.Errorf(cay.Invalid, "what the worker says of itself cannot be read: %w", err)
	case hello.Version != protocol.SessionVersion:
		err = cay.Errorf(cay.NotSupported, "the worker speaks version %d of the protocol, the daemon %d", hello.Version, protocol.SessionVersion).
			WithHint("build it with the module version of the daemon")
	default:
		w.session, err = w.backend.Attach(ctx, workerInfo(&hello), w)
	}
	if err != nil {
		w.session = nil
		w.send(protocol.Message{Kind: protocol.KindRefused, Body: protocol.ErrorBody(api.Public(ctx, err))})
		w.link.Finish()
		// The link ends after the error has been sent; no further messages are read.
		<-w.link.Done()
		return protocol.ErrLinkClosed
	}
	lost := w.session.Lost()
	watch.Go(func() {
		select {
		case <-lost:
			w.link.Close(nil)
		case <-w.link.Done():
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.greeted = true
	for _, m := range append([]protocol.Message{{Kind: protocol.KindWelcome}}, w.held...) {
		w.sendLocked(m)
	}
	w.held = nil
	return nil
}

func workerInfo(h *protocol.Hello) workflow.WorkerInfo {
	info := workflow.WorkerInfo{Name: h.Name, Build: h.Build, Accept: h.Accept, MaxRuns: h.MaxRuns, HeldRuns: h.Survived}
	for _, d := range h.Definitions {
		info.Definitions = append(info.Definitions, workflow.DefinitionInfo{
			Name: d.Name, MaxRunning: d.MaxRunning, MaxRunningPerGroup: d.MaxRunningPerGroup,
			Rate: d.Rate, RatePerGroup: d.RatePerGroup, RatePeriod: protocol.Duration(d.RatePeriodMS),
			Retention: protocol.Duration(d.RetentionMS), Priority: d.Priority, MaxEvents: d.MaxEvents,
		})
	}
	return info
}

// answer returns a function that sends the outcome of the request with a number.
func (w *worker) answer(ctx context.Context, seq uint64) func(error) {
	return func(err error) {
		m := protocol.Message{Kind: protocol.KindDone, Seq: seq}
		if err != nil {
			m.Body = protocol.ErrorBody(api.Public(ctx, err))
		}
		w.send(m)
	}
}

// send queues a message. If the link has ended, or ends because too much waits,
// the session's end tells the engine.
func (w *worker) send(m protocol.Message) { _ = w.link.Send(m) }

// tell sends the engine's messages to the worker, after Welcome.
func (w *worker) tell(messages ...protocol.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		if w.greeted {
			w.sendLocked(m)
		} else {
			w.held = append(w.held, m)
		}
	}
}

func (w *worker) sendLocked(m protocol.Message) {
	if err := w.link.Send(m); err != nil {
		// A run whose log cannot be sent would hang, so the session ends and all its runs
		// are taken back.
		w.link.Close(err)
	}
}

// Assign implements workflow.Runner.
func (w *worker) Assign(a workflow.Assignment) {
	var messages []protocol.Message
	for part := range parts(a.Events) {
		messages = append(messages, protocol.Message{
			Kind: protocol.KindAssign, Lease: a.Lease, Recovered: a.Recovered, More: true, Info: &a.Run, Events: part,
		})
	}
	if len(messages) == 0 {
		messages = []protocol.Message{{Kind: protocol.KindAssign, Lease: a.Lease, Recovered: a.Recovered, Info: &a.Run}}
	}
	messages[len(messages)-1].More = false
	w.tell(messages...)
}

// Deliver implements workflow.Runner.
func (w *worker) Deliver(run string, lease uint64, events []history.Event) {
	for part := range parts(events) {
		w.tell(protocol.Message{Kind: protocol.KindDeliver, Run: run, Lease: lease, Events: part})
	}
}

// Revoke implements workflow.Runner.
func (w *worker) Revoke(run string, lease uint64) {
	w.tell(protocol.Message{Kind: protocol.KindRevoke, Run: run, Lease: lease})
}

// parts cuts events into pieces of about maxPart bytes.
func parts(events []history.Event) func(yield func([]history.Event) bool) {
	return func(yield func([]history.Event) bool) {
		for len(events) > 0 {
			n, size := 0, 0
			for n < len(events) && (n == 0 || size < maxPart) {
				size += len(events[n].Payload) + len(events[n].Input) + 256
				n++
			}
			if !yield(events[:n]) {
				return
			}
			events = events[n:]
		}
	}
}
