package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// hold is an admitted call, and after Settle the record of that call on its way to the
// disk.
type hold struct {
	memory *memory
	key    *key // nil for a token

	// Guarded by memory.mu, until the record is written:
	shares []share
	few    [4]share // the array that shares starts in, to save an allocation
	tokens int64
	// length is the length of the record in queue.lines, set by Settle.
	length int
}

// share is the amount that a call takes from one balance.
type share struct {
	balance *balance
	amount  gateway.Money // admitted amount; after Settle the cost
	wanted  gateway.Money // amount of an admission being decided
	period  int           // period of balance at the time of the admission
}

var errFull = errors.New("too many requests are under way or wait for the disk")

// Admit implements Ledger.
func (m *memory) Admit(ctx context.Context, c *Caller, n Need) (Hold, error) {
	h := &hold{memory: m}
	if c.Key != nil {
		if h.key = m.keys.byID(c.KeyID); h.key == nil {
			return nil, unknownKey()
		}
	}
	m.mu.Lock()
	for {
		var missing []spender
		h.shares, missing = m.balances.charged(h.few[:0], c)
		if len(missing) == 0 {
			break
		}
		m.mu.Unlock()
		if err := m.read(ctx, missing); err != nil {
			return nil, overloaded(err)
		}
		m.mu.Lock()
	}
	now := m.now()
	if err := m.admitLocked(h, n, now); err != nil {
		m.stats.Refused++
		m.mu.Unlock()
		return nil, err
	}
	m.stats.Admitted++
	m.open++
	for i := range h.shares {
		h.shares[i].balance.users++
	}
	err := m.awaitLocked(ctx, h)
	if err != nil {
		m.forgetLocked(h)
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return h, nil
}

// admitLocked takes what n needs, all of it or nothing.
func (m *memory) admitLocked(h *hold, n Need, now time.Time) error {
	switch {
	case m.closed:
		return overloaded(errClosed)
	case m.failure != nil:
		return overloaded(m.failure)
	case m.open+len(m.queue.holds) >= m.limit:
		return overloaded(errFull)
	}
	if h.key != nil {
		if err := h.key.admit(n, now); err != nil {
			return err
		}
	}
	if err := m.reserveLocked(h, n, now); err != nil {
		return err
	}
	if h.key != nil {
		if a := n.Arrival; a != nil && a.here {
			a.here = false
		} else {
			h.key.rates.running++
			h.key.rates.requests.take(1)
		}
		h.key.rates.tokens.take(n.Tokens)
		h.tokens = n.Tokens
	}
	return nil
}

// reserveLocked makes the shares of h those that n needs, or changes nothing.
func (m *memory) reserveLocked(h *hold, n Need, now time.Time) error {
	for i := range h.shares {
		s := &h.shares[i]
		a := s.balance
		if a.gone {
			s.wanted = 0
			continue
		}
		a.roll(now)
		a.touched = now
		if n.Unpriced && !a.def.AllowUnpriced && (!n.BYOK || a.def.IncludeBYOK) {
			return &hub.Error{
				Kind: hub.Forbidden, Code: "unpriced_model",
				Message: fmt.Sprintf("what this request would cost is not known: %s; and the budget of %s does not allow that", cmp.Or(n.Why, "the model has no price"), a.id.text()),
			}
		}
		s.wanted = a.need(n)
		if more := s.wanted - s.amount; more > 0 && more > a.left() {
			return a.exceeded(more)
		}
	}
	for i := range h.shares {
		s := &h.shares[i]
		s.balance.open += s.wanted - s.amount
		s.amount, s.period = s.wanted, s.balance.period
	}
	return nil
}

// awaitLocked releases the lock and waits until the database holds enough for h. A
// committed group that includes all shares of h is enough, unless a period ended
// meanwhile.
func (m *memory) awaitLocked(ctx context.Context, h *hold) error {
	short := false
	for i := range h.shares {
		if s := &h.shares[i]; s.amount > 0 && !s.balance.gone && !s.balance.covered() {
			short = true
			m.balances.mark(s.balance)
		}
	}
	for short {
		if m.ended {
			return overloaded(errClosed)
		}
		if m.waiting == nil {
			m.waiting = &ticket{done: make(chan struct{})}
			signal(m.urgent)
		}
		t := m.waiting
		m.mu.Unlock()
		err := t.await(ctx)
		m.mu.Lock()
		if err != nil {
			return err
		}
		short = false
		for i := range h.shares {
			if s := &h.shares[i]; s.amount > 0 && s.period != s.balance.period {
				s.period, short = s.balance.period, true
				m.balances.mark(s.balance)
			}
		}
	}
	return nil
}

// forgetLocked undoes an admission.
func (m *memory) forgetLocked(h *hold) {
	m.open--
	m.stats.Admitted--
	m.stats.Refused++
	for i := range h.shares {
		s := &h.shares[i]
		s.balance.open -= s.amount
		s.balance.users--
	}
	if h.key != nil {
		h.key.rates.running--
		h.key.rates.requests.take(-1)
		h.key.rates.tokens.take(-h.tokens)
	}
}

// Raise implements Hold.
func (h *hold) Raise(ctx context.Context, n Need) error {
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		return overloaded(m.failure)
	}
	before := make([]gateway.Money, len(h.shares))
	for i := range h.shares {
		before[i] = h.shares[i].amount
	}
	if err := m.reserveLocked(h, n, m.now()); err != nil {
		return err
	}
	if err := m.awaitLocked(ctx, h); err != nil {
		for i := range h.shares {
			s := &h.shares[i]
			s.balance.open += before[i] - s.amount
			s.amount = before[i]
		}
		return err
	}
	if h.key != nil {
		h.key.rates.tokens.take(n.Tokens - h.tokens)
		h.tokens = n.Tokens
	}
	return nil
}

// Limits implements Hold.
func (h *hold) Limits(head http.Header) {
	if h.key == nil {
		return
	}
	h.memory.mu.Lock()
	defer h.memory.mu.Unlock()
	h.key.fill(h.memory.now())
	h.key.rates.requests.headers(head, "X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests")
	h.key.rates.tokens.headers(head, "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens")
}

// Settle implements Hold.
func (h *hold) Settle(r *gateway.Request) {
	m := h.memory
	if r.ID == "" {
		r.ID = NewID()
	}
	line := encode(r)
	defer lines.Put(line)
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.length > 0 {
		m.log.Error("a request was settled twice", "id", r.ID)
		return
	}
	h.length = len(*line)
	for i := range h.shares {
		s := &h.shares[i]
		a := s.balance
		cost := a.charge(r)
		a.open -= s.amount
		a.queued = a.queued.Plus(cost)
		s.amount = cost
		if cost > 0 || a.leased > 0 {
			m.balances.mark(a)
		}
	}
	if h.key != nil {
		h.key.rates.running--
		h.key.rates.tokens.take(r.Tokens.Input + r.Tokens.Output - h.tokens)
	}
	m.open--
	if m.ended {
		m.log.Error("a request ended after the ledger was closed; its record is lost, and what it held counts as spent", "id", r.ID)
		return
	}
	m.enqueueLocked(h, *line)
}

// Record stores the record of a request that was not admitted: the gateway refused the
// request, or answered without a provider. Errors: Overloaded.
func (m *memory) Record(r *gateway.Request) error {
	if r.ID == "" {
		r.ID = NewID()
	}
	line := encode(r)
	defer lines.Put(line)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return overloaded(errClosed)
	case m.failure != nil:
		return overloaded(m.failure)
	case m.open+len(m.queue.holds) >= m.limit:
		return overloaded(errFull)
	}
	m.enqueueLocked(&hold{memory: m, length: len(*line)}, *line)
	return nil
}

// lines are buffers to encode records in.
var lines = sync.Pool{New: func() any { return new([]byte) }}

// encode returns a record as a line of JSON, in a buffer from lines.
func encode(r *gateway.Request) *[]byte {
	line := lines.Get().(*[]byte)
	*line = append(appendRequest((*line)[:0], r), '\n')
	return line
}

// enqueueLocked queues a record for the next group. enqueueLocked copies line and keeps
// no reference to the caller's memory.
func (m *memory) enqueueLocked(h *hold, line []byte) {
	if err := m.queue.push(h, line); err != nil {
		m.log.Warn("records are lost if the gateway dies before they are in the database", "error", err)
	}
	switch len(m.queue.holds) {
	case 1:
		signal(m.lazy)
	case groupSize:
		signal(m.urgent)
	}
}

// signal wakes the goroutine that waits on c; c has a buffer of 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (a *balance) exceeded(more gateway.Money) *hub.Error {
	held := ""
	if open := a.open.Plus(a.queued); open > 0 {
		held = fmt.Sprintf(", $%s may be spent by requests under way", open)
	}
	resets := ""
	if end := periodEnd(a.def.Period, a.since); end != nil {
		resets = "; it begins anew at " + end.Format(time.RFC3339)
	}
	return &hub.Error{
		Kind: hub.BudgetExceeded, Code: "budget_exceeded",
		Message: fmt.Sprintf("the budget of %s does not suffice: $%s of $%s is spent%s, and this request may cost $%s%s",
			a.id.text(), a.spent, a.def.Limit, held, more, resets),
	}
}

// text describes a balance in error messages.
func (id spender) text() string {
	switch id.scope {
	case gateway.ScopeTeam, gateway.ScopeProject, gateway.ScopeKey:
		return "the " + string(id.scope) + " " + id.ref
	}
	return fmt.Sprintf("the %s %q", id.scope, id.ref)
}

// reason returns the part of a database error that users may see.
func reason(err error) string {
	var e *cay.Error
	if errors.As(err, &e) && e.Code != cay.Internal {
		return e.Message
	}
	if errors.Is(err, errFull) || errors.Is(err, errClosed) {
		return err.Error()
	}
	return "its database fails"
}
