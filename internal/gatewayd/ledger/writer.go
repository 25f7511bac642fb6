package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/cayhq/cay"
)

const (
	// groupSize is the maximum number of records per group.
	groupSize = 512
	// linger is how long a record may wait for others to join its group. A commit takes
	// most of a millisecond however small the group is; with a linger of 10 ms, commits
	// took a sixth of the CPU time of a gateway with few calls.
	linger = 100 * time.Millisecond
	// firstRetry is half the pause after a failed write. The pause doubles with each
	// failure.
	firstRetry = 10 * time.Millisecond
	// maxIdleLines is the largest record buffer, in bytes, that is kept while the queue
	// is empty.
	maxIdleLines = 4 << 20
	// writeTimeout is the timeout of a commit.
	writeTimeout = 30 * time.Second
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

// write is the writer goroutine. A group is written at once if a caller waits for it,
// otherwise when its first record has waited for linger.
func (b *Book) write() {
	defer close(b.done)
	var late <-chan time.Time // when records must go
	retry := firstRetry
	for {
		var answer chan error
		select {
		case <-b.lazy:
			if late == nil {
				late = time.After(linger)
			}
			continue
		case <-b.urgent:
		case <-late:
		case answer = <-b.flushes:
		case <-b.stop:
			b.last()
			return
		}
		late = nil
		var err error
		if answer != nil {
			err = b.commitAll()
			answer <- err
		} else {
			err = b.commit()
		}
		switch {
		case err != nil:
			retry = min(2*retry, 2*time.Second)
			late = time.After(retry)
		case b.pending():
			retry, late = firstRetry, time.After(linger)
		default:
			retry = firstRetry
		}
	}
}

// pending reports whether work is left for a later commit.
func (b *Book) pending() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) >= groupSize {
		signal(b.urgent)
	}
	return len(b.queue) > 0 || len(b.dirty) > 0
}

// last writes the remaining records when the book is closed.
func (b *Book) last() {
	b.mu.Lock()
	for _, t := range b.teams {
		for i := range t.scopes {
			for _, a := range t.scopes[i].balances {
				if a.leased > 0 {
					b.markLocked(a)
				}
			}
		}
	}
	b.mu.Unlock()
	err := b.commitAll()
	for tries := 0; err != nil && tries < 2; tries++ {
		err = b.commitAll()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.waiting != nil { // waiters that came after the last group
		b.waiting.err = errClosed
		close(b.waiting.done)
		b.waiting = nil
	}
}

// flush writes the queue; with table it also moves all records to the table of requests,
// so that queries see them.
func (b *Book) flush(ctx context.Context, table bool) error {
	if err := b.flushQueue(ctx); err != nil || !table {
		return err
	}
	return b.fold(ctx, 0)
}

func (b *Book) flushQueue(ctx context.Context) error {
	b.mu.Lock()
	clean := len(b.queue) == 0 && len(b.dirty) == 0 && b.failure == nil
	b.mu.Unlock()
	if clean {
		return nil
	}
	answer := make(chan error, 1)
	select {
	case b.flushes <- answer:
	case <-b.done:
		return cay.Errorf(cay.Unavailable, "the gateway's books are closed")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// commitAll writes everything queued at the time of the call, but nothing that is queued
// later.
func (b *Book) commitAll() error {
	b.mu.Lock()
	end := b.stats.Recorded + int64(len(b.queue))
	b.mu.Unlock()
	for {
		if err := b.commit(); err != nil {
			return err
		}
		b.mu.Lock()
		done := b.stats.Recorded >= end
		b.mu.Unlock()
		if done {
			return nil
		}
	}
}

// commit writes a group, if there is anything to write, and wakes the callers that wait
// for it.
func (b *Book) commit() error {
	g := b.gather()
	if g == nil {
		return nil
	}
	now := b.now()
	minute := now.Unix() / 60
	for _, h := range g.holds {
		if h.key != nil && h.key.minute != minute {
			h.key.minute = minute
			g.used[h.key.k.ID] = now.UnixMilli()
		}
	}
	b.at("before commit")
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	err := b.store.commit(ctx, g)
	if err != nil {
		// The commit may have succeeded although its answer was lost.
		if n, rerr := b.store.commits(ctx); rerr == nil && n == g.number {
			err = nil
		}
	}
	b.at("after commit")
	b.advance(g, err)
	if g.ticket != nil {
		g.ticket.err = err
		close(g.ticket.done)
	}
	return err
}

// gather makes a group of all pending changes, nil if there are none. From then until the
// group is written, admitted amounts must be covered in both states.
func (b *Book) gather() *group {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(b.queue), groupSize)
	if n == 0 && len(b.dirty) == 0 && b.waiting == nil && b.failure == nil {
		return nil
	}
	g := &group{number: b.commits + 1, holds: b.queue[:n:n], ticket: b.waiting, used: make(map[string]int64)}
	b.waiting = nil
	if g.all = n == len(b.queue); g.all {
		b.tail.turn()
	}
	length := 0
	for _, h := range g.holds {
		length += h.length
		for i := range h.shares {
			if h.shares[i].amount > 0 {
				b.markLocked(h.shares[i].balance)
			}
		}
	}
	g.records = b.lines[:length:length] // unchanged until the group is written
	now := b.now()
	for _, a := range b.dirty {
		a.roll(now)
		a.inflight = 0
	}
	for _, h := range g.holds {
		for i := range h.shares {
			a := h.shares[i].balance
			a.inflight = a.inflight.Plus(h.shares[i].amount)
		}
	}
	for _, a := range b.dirty {
		a.dirty = false
		if a.gone {
			continue
		}
		idle := b.closed || a.users == 0 && now.Sub(a.touched) >= idleAfter
		spent := a.spent.Plus(a.inflight)
		a.committing, a.next = true, a.lease(a.inflight, idle)
		g.balances = append(g.balances, snapshot{a, spending{
			since: a.since, spent: spent, held: a.next, unsettled: a.unsettled, alerted: a.alerts(spent),
		}})
	}
	b.dirty = b.dirty[:0]
	return g
}

// advance updates memory after a group was written or has failed.
func (b *Book) advance(g *group, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if b.failure == nil {
			b.log.Error("requests cannot be recorded, so none are admitted", "error", err)
		}
		b.failure = err
		b.stats.Failures++
		for _, s := range g.balances {
			s.balance.committing = false
			b.markLocked(s.balance)
		}
		return
	}
	if b.failure != nil {
		b.log.Info("requests can be recorded again")
		b.failure = nil
	}
	if g.all {
		if err := b.tail.end(); err != nil {
			b.log.Warn("the file of records that are not in the database yet grows", "error", err)
		}
	}
	b.commits = g.number
	b.stats.Commits++
	b.stats.Recorded += int64(len(g.holds))
	b.stats.Journal += len(g.holds)
	if len(g.holds) > 0 {
		b.feeds.wake()
	}
	for _, s := range g.balances {
		b.advanceBalance(s)
	}
	for _, h := range g.holds {
		for i := range h.shares {
			h.shares[i].balance.queued -= h.shares[i].amount
			h.shares[i].balance.users--
		}
	}
	left := copy(b.queue, b.queue[len(g.holds):])
	clear(b.queue[left:])
	b.queue = b.queue[:left]
	left = copy(b.lines, b.lines[len(g.records):])
	if b.lines = b.lines[:left]; left == 0 && cap(b.lines) > maxIdleLines {
		b.lines = nil
	}
}

// advanceBalance updates one balance after a commit; called with b.mu held.
func (b *Book) advanceBalance(s snapshot) {
	a := s.balance
	a.committing = false
	if !a.since.Equal(s.since) {
		return // a new period began meanwhile, and is not in the database yet
	}
	a.spent, a.leased = s.spent, s.held
	if s.alerted > a.alerted {
		a.alerted = s.alerted
		b.stats.Alerts++
		b.log.Warn("a budget is used up to an alert", "team", a.id.team, "scope", a.id.scope, "ref", a.id.ref,
			"percent", a.alerted, "spent", a.spent.String(), "limit", a.def.Limit.String())
	}
}
