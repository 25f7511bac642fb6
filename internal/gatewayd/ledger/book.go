package ledger

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

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
//
// A Book consists of parts, which have the locks:
//
//	keyring   authenticates and manages keys   keys.mu, change (with budgets)
//	budgets   sets and shows budgets           change
//	memory    admits and settles calls         mu
//	records   lists and follows requests       feeds.mu
//	keptIDs   owners of ids of providers       mu
//	writer    writes memory to the database    none
//	keeper    background work                  none
//
// A goroutine locks change before memory.mu and keys.mu, and memory.mu before feeds.mu; it
// takes no lock while it holds keys.mu, feeds.mu or keptIDs.mu. Only change is held while
// the database works.
type Book struct {
	*memory
	*keyring
	*budgets
	*records
	*keptIDs
	store  store
	log    *slog.Logger
	writer *writer
	keeper *keeper
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
	b := assemble(s, o)
	if o.Tail != "" {
		if b.queue.tail, err = openTail(o.Tail); err != nil {
			return nil, err
		}
	}
	if err := b.begin(ctx); err != nil {
		return nil, errors.Join(err, b.queue.close())
	}
	kept, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.keeper.cancel = cancel
	go b.writer.run()
	go b.keeper.run(kept)
	return b, nil
}

// assemble connects the parts of a Book.
func assemble(s store, o Options) *Book {
	log, ks, fs := o.Logger.With("component", "ledger"), new(keys), new(feeds)
	m := &memory{
		store: s, log: log, now: o.Now, keys: ks, feeds: fs, limit: o.Queue, urgent: make(chan struct{}, 1), lazy: make(chan struct{}, 1),
		balances: balances{teams: make(map[string]*teamBudgets)},
	}
	w := &writer{
		memory: m, store: s, now: o.Now, flushes: make(chan chan error), stop: make(chan struct{}), done: make(chan struct{}), at: func(string) {},
	}
	change := new(sync.Mutex)
	return &Book{
		memory:  m,
		keyring: &keyring{keys: ks, memory: m, store: s, writer: w, now: o.Now, auth: o.Accounts, change: change},
		budgets: &budgets{memory: m, store: s, writer: w, now: o.Now, change: change},
		records: &records{store: s, writer: w, feeds: fs, now: o.Now},
		keptIDs: &keptIDs{store: s, log: log, now: o.Now},
		store:   s, log: log, writer: w,
		keeper: &keeper{memory: m, store: s, writer: w, log: log, now: o.Now, retention: o.Retention, done: make(chan struct{})},
	}
}

// begin recovers the records of the last process and makes memory and database agree.
// begin runs before any goroutine of the Book, so it takes no lock.
func (b *Book) begin(ctx context.Context) error {
	brought, err := b.queue.tail.recover(ctx, b.store, b.log)
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
	if b.writer.commits, err = b.store.commits(ctx); err != nil {
		return err
	}
	if b.stats.Journal, err = b.store.journal(ctx); err != nil {
		return err
	}
	all, err := b.store.keys(ctx)
	if err != nil {
		return err
	}
	b.keyring.keys.load(all)
	defs, err := b.store.definitions(ctx)
	if err != nil {
		return err
	}
	for id, def := range defs {
		b.balances.define(id, def)
	}
	return nil
}

// Close writes the queue and releases the amounts that budgets hold. The caller should
// settle all calls before; amounts of unsettled calls count as spent at the next Open.
func (b *Book) Close() error {
	closed := b.memory.shut()
	b.EndFeeds()
	if !closed {
		b.keeper.cancel()
		close(b.writer.stop)
	}
	<-b.keeper.done
	b.keptIDs.close()
	<-b.writer.done
	return b.memory.close()
}

// overloaded returns the error for calls that cannot be recorded.
func overloaded(cause error) *hub.Error {
	return &hub.Error{
		Kind: hub.Overloaded, Code: "ledger_unavailable", RetryAfter: time.Second, Cause: cause,
		Message: "the gateway cannot record requests at present: " + reason(cause),
	}
}
