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
	// Accounts authenticates the daemon's tokens, whose holders may call without a key.
	// Nil means that only keys are accepted.
	Accounts api.Authenticator
	// Now is the wall clock. Nil means time.Now.
	Now    func() time.Time
	Logger *slog.Logger // nil: none
	// Retention is how long records are kept; 0 means forever.
	Retention time.Duration
	// Tail is the path prefix of the files in which records wait for the database, so
	// that the records survive the death of the process. If Tail is empty, a process that
	// dies loses the records of the last 100 ms.
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

// Book is the Ledger that is stored in a database. Methods may be called concurrently.
//
// All counters are in memory, guarded by one mutex; a goroutine writes changes in groups.
// A group contains records, which go to a journal, and the budgets' new spent amounts.
// The keeper moves records from the journal to the table of requests when the gateway is
// idle; a query moves them at once.
//
// A crash cannot make a budget exceed its limit, because the database holds for every
// budget at least the amount that is admitted. Most calls find that the database holds
// enough; a call that finds too little waits for the next group, which raises the held
// amount. Open counts amounts that the last process held as spent, "unsettled".
type Book struct {
	store store
	log   *slog.Logger
	now   func() time.Time
	opts  Options
	auth  api.Authenticator
	keys  keys
	feeds feeds

	mu       sync.Mutex // guards the following fields
	teams    map[string]*teamBudgets
	fallback *definition // the default budget of teams
	dirty    []*balance  // to be written with the next group
	balances int
	queue    []*hold // settled, to be written
	lines    []byte  // their records, in order
	tail     *tail   // holds the queued records, too
	open     int     // admitted, not settled
	waiting  *ticket // the waiters for the next group; nil if there are none
	failure  error   // error of the last commit, nil on success
	closed   bool    // nothing is admitted any more
	ended    bool    // nothing is written any more
	stats    Stats

	change sync.Mutex // held while definitions change, outside of mu

	ids keptIDs // owners of ids that providers keep

	// State of the writer goroutine; see writer.go.
	urgent, lazy chan struct{} // room for one
	flushes      chan chan error
	stop, done   chan struct{}
	commits      int64              // number of the last group; the writer's own
	at           func(point string) // for tests that die there

	// State of the keeper goroutine, which does background work when the gateway is idle;
	// see keeper.go.
	rested chan struct{}
	unkeep context.CancelFunc
}

// teamBudgets holds the budgets of a team.
type teamBudgets struct {
	scopes [len(scopes)]scopeBudgets
}

type scopeBudgets struct {
	own      map[string]*definition
	fallback *definition // the default of the scope
	balances map[string]*balance
}

// ticket lets callers wait for the commit of a group.
type ticket struct {
	done chan struct{}
	err  error // once done is closed
}

// Open migrates d to this version's schema and returns its Book; a database must be
// opened by only one Book at a time. Amounts that calls held when the last process died
// count as spent.
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

// begin recovers the records of the last process and makes memory and database agree.
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

// load reads the state that the Book keeps in memory.
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

// Close writes the queue and releases the amounts that budgets hold. The caller should
// settle all calls before; amounts of unsettled calls count as spent at the next Open.
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

// Err returns why the Book cannot record requests at present, or nil.
func (b *Book) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failure
}

// teamLocked returns a team's budgets.
func (b *Book) teamLocked(id string) *teamBudgets {
	t := b.teams[id]
	if t == nil {
		t = new(teamBudgets)
		b.teams[id] = t
	}
	return t
}

// findLocked returns the balance of a spender. a is nil if no budget applies; missing is
// true if a budget applies whose spending has to be read from the database first.
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

// balancesOfLocked appends to dst the balances that a call of c is charged to, and
// returns the spenders whose balances have to be read first.
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

// read loads balances into memory.
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

// addLocked adds the balance of id; row is its row in the database, nil if there is no
// row. addLocked returns nil if no budget applies to id any more.
func (b *Book) addLocked(id spender, row *spending) *balance {
	scope := scopeIndex(id.scope)
	s := &b.teamLocked(id.team).scopes[scope]
	if a := s.balances[id.ref]; a != nil {
		return a // another goroutine has added it meanwhile
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

// overloaded returns the error for calls that cannot be recorded.
func overloaded(cause error) *hub.Error {
	return &hub.Error{
		Kind: hub.Overloaded, Code: "ledger_unavailable", RetryAfter: time.Second, Cause: cause,
		Message: "the gateway cannot record requests at present: " + reason(cause),
	}
}
