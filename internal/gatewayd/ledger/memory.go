package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay/gateway"
)

// memory is the part of a Book that every call changes: balances, the rates of keys, the
// queue of records and the counters. A single mutex guards all of it: an admission
// checks and takes everything or nothing. The writer makes changes durable: gather
// returns them as a group, advance says that the group was written or has failed.
type memory struct {
	store store // for balances that are not in memory
	log   *slog.Logger
	now   func() time.Time
	keys  *keys
	feeds *feeds
	limit int // of calls under way and records in the queue

	urgent, lazy chan struct{} // wake the writer; room for one

	mu       sync.Mutex // guards the following fields, and the rates of keys; locked before feeds.mu
	balances balances
	queue    queue
	open     int     // admitted, not settled
	waiting  *ticket // the waiters for the next group; nil if there are none
	failure  error   // error of the last commit, nil on success
	closed   bool    // nothing is admitted any more
	ended    bool    // nothing is written any more
	stats    Stats
}

// Stats returns the counters.
func (m *memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stats
	s.Open, s.Queued = m.open, len(m.queue.holds)
	return s
}

// Err returns why the Book cannot record requests at present, or nil.
func (m *memory) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// clean reports whether the database has everything.
func (m *memory) clean() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.queue.holds) == 0 && len(m.balances.dirty) == 0 && m.failure == nil
}

// pending reports whether work is left for a later commit.
func (m *memory) pending() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue.holds) >= groupSize {
		signal(m.urgent)
	}
	return len(m.queue.holds) > 0 || len(m.balances.dirty) > 0
}

// folded notes that n records left the journal, and returns how many are left.
func (m *memory) folded(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Journal -= n
	return m.stats.Journal
}

// sweep makes idle balances release their held amounts, and drops idle balances from
// memory if there are too many.
func (m *memory) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.balances.sweep(m.now()) {
		signal(m.lazy)
	}
}

// shut refuses calls from now on, and reports whether they were refused before.
func (m *memory) shut() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	closed := m.closed
	m.closed = true
	return closed
}

// release makes the next group release the amounts that budgets hold.
func (m *memory) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.balances.release()
}

// end wakes the waiters that came after the last group, and refuses new ones.
func (m *memory) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.waiting.end(errClosed)
	m.waiting = nil
}

// close closes the queue, and returns an error if records are left in it.
func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.queue.close()
	if n := len(m.queue.holds); n > 0 {
		return errors.Join(fmt.Errorf("%d records of requests were not written: %w", n, m.failure), err)
	}
	return err
}

// read loads balances into memory.
func (m *memory) read(ctx context.Context, ids []spender) error {
	for _, id := range ids {
		row, err := m.store.spending(ctx, id)
		if err != nil {
			return err
		}
		m.mu.Lock()
		m.balances.add(id, row, m.now())
		m.mu.Unlock()
	}
	return nil
}

// ensure loads a balance into memory.
func (m *memory) ensure(ctx context.Context, id spender) error {
	m.mu.Lock()
	_, missing := m.balances.find(m.balances.team(id.team), scopeIndex(id.scope), id.ref)
	m.mu.Unlock()
	if !missing {
		return nil
	}
	return m.read(ctx, []spender{id})
}

// credits returns the remaining and the spent amount of the budget that has the least
// left for c. ok is false if no budget applies.
func (m *memory) credits(ctx context.Context, c *Caller) (left, spent gateway.Money, ok bool, err error) {
	var shares []share
	m.mu.Lock()
	for {
		var missing []spender
		if shares, missing = m.balances.charged(nil, c); len(missing) == 0 {
			break
		}
		m.mu.Unlock()
		if err := m.read(ctx, missing); err != nil {
			return 0, 0, false, err
		}
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	now := m.now()
	for _, s := range shares {
		s.balance.roll(now)
		if l := max(0, s.balance.left()); !ok || l < left {
			left, spent, ok = l, s.balance.spent, true
		}
	}
	return left, spent, ok, nil
}

// settled subtracts the costs of recovered records from the unsettled amounts of their
// budgets.
func (m *memory) settled(ctx context.Context, brought []*gateway.Request) error {
	for _, r := range brought {
		c := &Caller{TeamID: r.TeamID, ProjectID: r.ProjectID, KeyID: r.KeyID, User: r.User, Tags: r.Tags}
		m.mu.Lock()
		shares, missing := m.balances.charged(nil, c)
		m.mu.Unlock()
		if len(missing) > 0 {
			if err := m.read(ctx, missing); err != nil {
				return err
			}
			m.mu.Lock()
			shares, _ = m.balances.charged(nil, c)
			m.mu.Unlock()
		}
		m.mu.Lock()
		for _, s := range shares {
			a := s.balance
			a.roll(m.now())
			if cost := a.charge(r); cost > 0 { // a new period has no unsettled amount
				a.unsettled = max(0, a.unsettled-cost)
				m.balances.mark(a)
			}
		}
		m.mu.Unlock()
	}
	return nil
}

// definition returns the budget that was set for exactly id.
func (m *memory) definition(id spender) *definition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.balances.definition(id)
}

// applying returns the budget that applies to id.
func (m *memory) applying(id spender) *definition {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.balances.applying(id)
}

// define sets a budget, or deletes it if def is nil.
func (m *memory) define(id spender, def *definition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.balances.define(id, def)
	m.balances.apply(id)
}

// defined returns the spenders that have a budget of their own.
func (m *memory) defined(team string, all bool) []spender {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.balances.defined(team, all)
}

// budget returns the budget def of id; its spent amount is included only if the balance
// is in memory. budget returns nil if def is nil and id has no budget of its own.
func (m *memory) budget(id spender, def *definition) *gateway.Budget {
	m.mu.Lock()
	defer m.mu.Unlock()
	if def == nil {
		if def = m.balances.definition(id); def == nil {
			return nil
		}
	}
	return m.balances.budget(id, def, m.now())
}
