package ledger

import "errors"

const (
	// groupSize is the maximum number of records per group.
	groupSize = 512
	// maxIdleLines is the largest record buffer, in bytes, that is kept while the queue
	// is empty.
	maxIdleLines = 4 << 20
)

// group is the content of one commit.
type group struct {
	number   int64
	holds    []*hold // the holds whose records are written
	records  []byte  // JSON, a line each
	balances []snapshot
	used     map[string]int64 // Unix milliseconds by the id of keys
	ticket   *ticket          // the waiters for this group
	all      bool             // the group has all queued records
}

// snapshot is the state of a balance that a group writes.
type snapshot struct {
	balance *balance
	spending
}

var errClosed = errors.New("it is stopping")

// gather makes a group of all pending changes, nil if there are none. From then until
// advance, admitted amounts must be covered in both states.
func (m *memory) gather() *group {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue.holds) == 0 && len(m.balances.dirty) == 0 && m.waiting == nil && m.failure == nil {
		return nil
	}
	g := &group{ticket: m.waiting, used: make(map[string]int64)}
	m.waiting = nil
	g.holds, g.records, g.all = m.queue.take()
	g.balances = m.balances.gather(g.holds, m.now(), m.closed)
	return g
}

// advance updates memory after a group was written or has failed.
func (m *memory) advance(g *group, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if m.failure == nil {
			m.log.Error("requests cannot be recorded, so none are admitted", "error", err)
		}
		m.failure = err
		m.stats.Failures++
		for _, s := range g.balances {
			s.balance.committing = false
			m.balances.mark(s.balance)
		}
		return
	}
	if m.failure != nil {
		m.log.Info("requests can be recorded again")
		m.failure = nil
	}
	m.stats.Commits++
	m.stats.Recorded += int64(len(g.holds))
	m.stats.Journal += len(g.holds)
	if len(g.holds) > 0 {
		m.feeds.wake()
	}
	for _, s := range g.balances {
		m.advanceBalanceLocked(s)
	}
	for _, h := range g.holds {
		for i := range h.shares {
			h.shares[i].balance.queued -= h.shares[i].amount
			h.shares[i].balance.users--
		}
	}
	if err := m.queue.written(g); err != nil {
		m.log.Warn("the file of records that are not in the database yet grows", "error", err)
	}
}

// advanceBalanceLocked updates one balance after a commit.
func (m *memory) advanceBalanceLocked(s snapshot) {
	a := s.balance
	a.committing = false
	if !a.since.Equal(s.since) {
		return // a new period began meanwhile, and is not in the database yet
	}
	a.spent, a.leased = s.spent, s.held
	if s.alerted > a.alerted {
		a.alerted = s.alerted
		m.stats.Alerts++
		m.log.Warn("a budget is used up to an alert", "team", a.id.team, "scope", a.id.scope, "ref", a.id.ref,
			"percent", a.alerted, "spent", a.spent.String(), "limit", a.def.Limit.String())
	}
}
