package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/internal/sandboxd/network/policy"
	"github.com/cayhq/cay/sandbox"
)

// flow is a connection of the guest to the outside, from the first packet on.
type flow struct {
	link   *Link
	dst    netip.AddrPort // where the guest's packets go
	begun  time.Time
	ctx    context.Context // ends with the flow, with the flow's end as cause
	cancel context.CancelCauseFunc
	guest  *guestConn // of TCP; set before anything is sent to the guest, by the goroutine that calls leave
	floor  int64      // bytes counted for the flow, without the growth of its windows

	ingress, egress atomic.Int64 // payload bytes

	mu    sync.Mutex // guards what follows
	known facts
	rule  string // the rule that let the flow pass
	seq   int64  // of the flow's record; 0 before it opened, and if the record was left out
	open  bool   // it has opened
	conns []net.Conn
	out   *hostConn // the last dialled connection, if it is a hostConn
	done  bool
}

// facts are the facts of a flow on which a policy decides.
type facts struct {
	stage    stage
	protocol string
	name     string         // asked for, of HTTP requests by the last; clean
	dialled  netip.AddrPort // zero if the host's proxy dials
}

// stage is how far a flow has come.
type stage int

const (
	waiting   stage = iota // nothing has left: the connection is read, resolved, or refused
	addressed              // dialled as the guest addressed it
	named                  // dialled by name, and passed on unread
	opened                 // requests are read, each is decided by itself
	handed                 // in the hands of the egress handler
)

func (l *Link) newFlow(protocol string, dst netip.AddrPort) *flow {
	f := &flow{link: l, dst: dst, begun: time.Now(), known: facts{protocol: protocol}}
	f.ctx, f.cancel = context.WithCancelCause(l.ctx)
	return f
}

// admit adds a flow to dst to the link, if the limits allow it. Otherwise it records the
// refusal and returns nil.
func (l *Link) admit(protocol string, dst netip.AddrPort) *flow {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	floor := int64(connectionFloor)
	if protocol == "udp" {
		floor = packetFloor
	}
	d := l.roomLocked(floor)
	if d.Verdict != policy.Allow {
		l.mu.Unlock()
		l.deny(protocol, dst, "", d)
		return nil
	}
	f := l.newFlow(protocol, dst)
	f.floor = floor
	l.flows[f] = struct{}{}
	l.work.Add(1)
	l.mu.Unlock()
	return f
}

// leave ends a flow and gives back its place, once the guest and the server have taken
// the bytes sent to them: until then the bytes take memory.
func (f *flow) leave() {
	f.close(nil)
	if f.guest != nil {
		f.guest.awaitDelivery()
		f.guest.free()
	}
	if f.out != nil {
		<-f.out.gone
	}
	l := f.link
	l.share.give(f.floor)
	l.mu.Lock()
	delete(l.flows, f)
	l.mu.Unlock()
	l.work.Done()
}

// own makes conn end with the flow. It closes conn and returns false if the
// flow has ended already.
func (f *flow) own(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done {
		reset(conn)
		return false
	}
	f.conns = append(f.conns, conn)
	if out := hostConnOf(conn); out != nil {
		f.out = out
	}
	return true
}

// errCut is the cause of a flow's end if a decision ended the flow.
type errCut struct{ policy.Decision }

func (e *errCut) Error() string { return e.Reason }

var errClosed = errors.New("network link closed")

// close ends the flow, immediately if there is a cause, and records its end.
func (f *flow) close(cause error) {
	f.cancel(cause)
	f.mu.Lock()
	if f.done {
		out := f.out
		f.mu.Unlock()
		if cause != nil && out != nil {
			out.reset() // with the bytes that the server has not taken
		}
		return
	}
	f.done = true
	conns := f.conns
	f.conns = nil
	last, open := f.recordLocked(sandbox.Allowed, f.rule, ""), f.open
	f.mu.Unlock()

	for _, c := range conns {
		if cause != nil {
			reset(c)
		} else {
			c.Close()
		}
	}
	var cut *errCut
	isCut := errors.As(cause, &cut)
	if isCut {
		last.Verdict, last.Rule, last.Reason = sandbox.Denied, cut.Rule, cut.Reason
	}
	if lost, ok := errors.AsType[*errLost](cause); ok {
		last.Verdict, last.Reason = sandbox.Broken, lost.reason
	}
	switch {
	case open && last.Seq != 0:
		f.link.records.again(last)
	case isCut && !open:
		f.link.records.add(last)
	}
}

// learn adds facts to the flow and judges the flow by them. Every decision about data
// that leaves passes through learn. SetPolicy first stores the new policy and then judges
// all flows, so either learn sees the new policy or SetPolicy sees the new facts.
func (f *flow) learn(add func(*facts)) policy.Decision {
	f.mu.Lock()
	add(&f.known)
	known := f.known
	f.mu.Unlock()
	return f.link.judge(f.dst, known)
}

func (f *flow) protocol() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known.protocol
}

// rejudge ends the flow if today's policy denies it.
func (f *flow) rejudge() {
	if d := f.learn(func(*facts) {}); d.Verdict != policy.Allow {
		d.Reason = "cut by a change of the network policy: " + d.Reason
		f.close(&errCut{d})
	}
}

// opens records that the flow has opened.
func (f *flow) opens(rule string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done || f.open {
		return
	}
	f.rule, f.open = rule, true
	r := f.recordLocked(sandbox.Allowed, rule, "")
	r.Open = true
	f.seq = f.link.records.add(r)
}

// denied and fails record why the flow does not open.
func (f *flow) denied(d policy.Decision) { f.never(sandbox.Denied, d) }
func (f *flow) fails(rule, reason string) {
	f.never(sandbox.Broken, policy.Decision{Rule: rule, Reason: reason})
}

func (f *flow) never(v sandbox.Verdict, d policy.Decision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done { // cut, and that is the reason
		return
	}
	f.link.log.Debug("flow does not open", "verdict", v, "destination", f.dst, "name", f.known.name, "rule", d.Rule, "reason", d.Reason)
	f.link.records.add(f.recordLocked(v, d.Rule, d.Reason))
}

func (f *flow) recordLocked(v sandbox.Verdict, rule, reason string) sandbox.Flow {
	addr := f.dst
	if f.known.dialled.IsValid() {
		addr = f.known.dialled
	}
	return sandbox.Flow{
		Seq: f.seq, Time: f.begun, Protocol: f.known.protocol, Name: f.known.name,
		Address: addr.String(), Port: f.dst.Port(), Verdict: v, Rule: rule, Reason: reason,
		Duration: sandbox.Duration(time.Since(f.begun)), IngressBytes: f.ingress.Load(), EgressBytes: f.egress.Load(),
	}
}

// deny records a flow that never was.
func (l *Link) deny(protocol string, dst netip.AddrPort, name string, d policy.Decision) {
	l.log.Debug("flow denied", "protocol", protocol, "destination", dst, "name", name, "rule", d.Rule, "reason", d.Reason)
	l.records.add(sandbox.Flow{
		Time: time.Now(), Protocol: protocol, Name: name, Address: dst.String(), Port: dst.Port(),
		Verdict: sandbox.Denied, Rule: d.Rule, Reason: d.Reason,
	})
}
