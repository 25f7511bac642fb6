package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

var _ Ledger = (*Book)(nil)

// Options tune a Book.
type Options struct {
	// Accounts knows the tokens of the daemon, whose holders may call without a key.
	// Nil: keys only.
	Accounts api.Authenticator
	// Now is the wall clock. Nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil: none
	// Retention is how long records are kept; 0 means for ever.
	Retention time.Duration
	// Tail is the path, without its end, of the files in which records wait for the
	// database, so that they outlive the process. Empty: a process that dies takes
	// those of the last tenth of a second with it.
	Tail string
	// Queue is how many requests may be under way or wait for the disk. 0 means 16384.
	Queue int
}

// Stats are counters since the start.
type Stats struct {
	Admitted, Refused int64 // calls
	Recorded          int64 // durable records
	Commits           int64
	Alerts            int64
	Failures          int64 // commits that failed
	Open, Queued      int   // calls under way, and records that wait for the disk, now
	Journal           int   // records that are durable and not yet in the table of requests
}

// Book is the Ledger in a database. Methods may be called concurrently.
//
// Counters are in memory, under one mutex, and a goroutine writes what changes,
// in groups: records into a journal, and with them what budgets have spent. From
// the journal records come to the table of requests, when there is time for it
// or somebody asks.
//
// A budget is never exceeded across a crash, because the database holds for every
// budget at least as much as is admitted. Most calls find that it holds enough;
// one that does not waits for the next group, which raises it. At Open what was
// held is spent, unsettled.
type Book struct {
	store store
	log   *slog.Logger
	now   func() time.Time
	opts  Options
	auth  api.Authenticator
	keys  keys
	feeds feeds

	mu       sync.Mutex // guards what follows
	teams    map[string]*teamBudgets
	fallback *definition // of teams without a budget of their own
	dirty    []*balance  // to be written with the next group
	balances int
	queue    []*hold // settled, to be written
	lines    []byte  // their records, in order
	tail     *tail   // which has them too
	open     int     // admitted, not settled
	waiting  *ticket // of those that wait for the next group; nil if nobody does
	failure  error   // of the last commit, nil if it did not fail
	closed   bool    // nothing is admitted any more
	ended    bool    // nothing is written any more
	stats    Stats

	change sync.Mutex // held while definitions change, outside of mu

	ids keptIDs // of what providers keep

	// The goroutine that writes; see writer.go.
	urgent, lazy chan struct{} // room for one
	flushes      chan chan error
	stop, done   chan struct{}
	commits      int64              // number of the last group; the writer's own
	at           func(point string) // for tests that die there

	// The goroutine that does what there is time for; see keeper.go.
	rested chan struct{}
	unkeep context.CancelFunc
}

// teamBudgets is what is known of a team's budgets.
type teamBudgets struct {
	scopes [len(scopes)]scopeBudgets
}

type scopeBudgets struct {
	own      map[string]*definition
	fallback *definition // of all that have no own
	balances map[string]*balance
}

// ticket is what callers wait on for a group to be written.
type ticket struct {
	done chan struct{}
	err  error // once done is closed
}

// Open brings d to this version's schema and returns the Book in it, of which
// there is one at a time. What calls held when the last one died is spent.
func Open(ctx context.Context, d *db.DB, o Options) (*Book, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Queue == 0 {
		o.Queue = 16384
	}
	s, err := openStore(ctx, d)
	if err != nil {
		return nil, err
	}
	b := &Book{
		store: s, log: o.Logger.With("component", "ledger"), now: o.Now, opts: o, auth: o.Accounts,
		teams: make(map[string]*teamBudgets), urgent: make(chan struct{}, 1), lazy: make(chan struct{}, 1),
		flushes: make(chan chan error), stop: make(chan struct{}), done: make(chan struct{}), at: func(string) {}, rested: make(chan struct{}),
	}
	if o.Tail != "" {
		if b.tail, err = openTail(o.Tail); err != nil {
			return nil, err
		}
	}
	if err := b.begin(ctx); err != nil {
		return nil, errors.Join(err, b.tail.close())
	}
	kept, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.unkeep = cancel
	go b.write()
	go func() {
		defer close(b.rested)
		b.keep(kept)
	}()
	return b, nil
}

// begin brings memory and database to where the last process should have left them.
func (b *Book) begin(ctx context.Context) error {
	brought, err := b.recover(ctx)
	if err != nil {
		return err
	}
	if err := b.load(ctx); err != nil {
		return err
	}
	return b.settled(ctx, brought)
}

// load reads what is in memory while the book is open.
func (b *Book) load(ctx context.Context) error {
	unsettled, err := b.store.takeUnsettled(ctx)
	if err != nil {
		return err
	}
	for _, u := range unsettled {
		b.log.WarnContext(ctx, "requests were under way when the gateway died; what they may have cost counts as spent",
			"team", u.id.team, "scope", u.id.scope, "ref", u.id.ref, "dollars", u.held.String())
	}
	if b.commits, err = b.store.commits(ctx); err != nil {
		return err
	}
	if b.stats.Journal, err = b.store.journal(ctx); err != nil {
		return err
	}
	all, err := b.store.keys(ctx)
	if err != nil {
		return err
	}
	b.keys.load(all)
	defs, err := b.store.definitions(ctx)
	if err != nil {
		return err
	}
	for id, def := range defs {
		b.defineLocked(id, def)
	}
	return nil
}

// Close writes what is queued and gives back what budgets hold. Calls under way
// should have been settled before; what they hold counts as spent at the next Open.
func (b *Book) Close() error {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	b.EndFeeds()
	if !closed {
		b.unkeep()
		close(b.stop)
	}
	<-b.rested
	b.ids.close()
	<-b.done
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.tail.close()
	b.tail = nil
	if n := len(b.queue); n > 0 {
		return errors.Join(fmt.Errorf("%d records of requests were not written: %w", n, b.failure), err)
	}
	return err
}

// Stats returns the counters.
func (b *Book) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Open, s.Queued = b.open, len(b.queue)
	return s
}

// Err returns why nothing can be recorded at present, nil if it can.
func (b *Book) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure
}

// team returns a team's budgets.
func (b *Book) teamLocked(id string) *teamBudgets {
	t := b.teams[id]
	if t == nil {
		t = new(teamBudgets)
		b.teams[id] = t
	}
	return t
}

// find returns the balance of one who spends. Nil if no budget applies; missing
// if one does, but what was spent of it must be read first.
func (b *Book) findLocked(t *teamBudgets, scope int, ref string) (a *balance, missing bool) {
	if ref == "" {
		return nil, false
	}
	s := &t.scopes[scope]
	if a = s.balances[ref]; a != nil {
		return a, false
	}
	return nil, s.definition(ref, scope, b) != nil
}

// definition returns the budget that applies to ref, nil if there is none.
func (s *scopeBudgets) definition(ref string, scope int, b *Book) *definition {
	if def := s.own[ref]; def != nil {
		return def
	}
	if scopes[scope] == gateway.ScopeTeam {
		return b.fallback
	}
	return s.fallback
}

// balancesOf appends to dst the balances that a call of c is charged to, and
// returns the ids of those that must be read first.
func (b *Book) balancesOfLocked(dst []share, c *Caller) (_ []share, missing []spender) {
	t := b.teams[c.TeamID]
	if t == nil {
		if b.fallback == nil {
			return dst, nil
		}
		t = b.teamLocked(c.TeamID)
	}
	one := func(scope int, ref string) {
		a, miss := b.findLocked(t, scope, ref)
		if miss {
			missing = append(missing, spender{c.TeamID, scopes[scope], ref})
		}
		if a != nil {
			dst = append(dst, share{balance: a})
		}
	}
	one(0, c.TeamID)
	one(1, c.ProjectID)
	one(2, c.KeyID)
	one(3, c.User)
	for i, tag := range c.Tags {
		if !contains(c.Tags[:i], tag) {
			one(4, tag)
		}
	}
	return dst, missing
}

func contains(tags []string, tag string) bool {
	for _, t := range tags {
		if t == tag {
			return true
		}
	}
	return false
}

// read brings balances into memory.
func (b *Book) read(ctx context.Context, ids []spender) error {
	for _, id := range ids {
		row, err := b.store.spending(ctx, id)
		if err != nil {
			return err
		}
		b.mu.Lock()
		b.addLocked(id, row)
		b.mu.Unlock()
	}
	return nil
}

// addLocked adds the balance of id, of which the database has row, nil for
// nothing. It returns nil if no budget applies to it any more.
func (b *Book) addLocked(id spender, row *spending) *balance {
	scope := scopeIndex(id.scope)
	s := &b.teamLocked(id.team).scopes[scope]
	if a := s.balances[id.ref]; a != nil {
		return a // somebody was faster
	}
	def := s.definition(id.ref, scope, b)
	if def == nil {
		return nil
	}
	now := b.now()
	a := &balance{id: id, def: def, touched: now}
	if row != nil {
		a.since, a.spent, a.unsettled, a.alerted, a.leased = row.since, row.spent, row.unsettled, row.alerted, row.held
	} else if a.since = periodStart(def.Period, now); def.createdAt.After(a.since) {
		a.since = def.createdAt
	}
	if s.balances == nil {
		s.balances = make(map[string]*balance)
	}
	s.balances[id.ref] = a
	b.balances++
	return a
}

func scopeIndex(s gateway.Scope) int {
	for i, known := range scopes {
		if s == known {
			return i
		}
	}
	return -1
}

// overloaded says why records cannot be kept.
func overloaded(cause error) *hub.Error {
	return &hub.Error{
		Kind: hub.Overloaded, Code: "ledger_unavailable", RetryAfter: time.Second, Cause: cause,
		Message: "the gateway cannot record requests at present: " + reason(cause),
	}
}
