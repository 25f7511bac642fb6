package db

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"sync"
)

// maxGroup is how many transactions share a commit at most: the first of them waits for
// the work of all.
const maxGroup = 64

// errLost says that the group of a transaction was rolled back for a reason that is not
// the transaction's: it is to run again, alone.
var errLost = errors.New("the transaction's group was rolled back")

// writer runs the transactions of the writing connection one after the other. When a
// transaction ends while others wait, the next of them goes on in the same transaction of
// SQLite, between savepoints, so that a failure undoes only itself; the last one commits
// for all. A transaction that finds nobody waiting commits at once. Each caller runs its
// function in its own goroutine, which holds the turn meanwhile.
type writer struct {
	pool *pool

	mu    sync.Mutex // guards what follows
	taken bool       // somebody has the turn
	queue []*waiter
}

// waiter is a caller that waits for its turn.
type waiter struct {
	turn  chan *group // capacity 1; receives the group to join, nil to begin one
	alone bool        // it must not join a group
}

// group is a transaction of SQLite that several callers share. Only the caller that has
// the turn uses tx and members.
type group struct {
	tx      *Tx
	members int           // whose work is in tx
	done    chan struct{} // closed when the group is committed or rolled back
	err     error         // set before done is closed; nil: committed
	sync    func() error  // syncs the database once for all members
}

// writeGroup runs f in a transaction and returns the committed group.
func (d *DB) writeGroup(ctx context.Context, f func(*Tx) error) (*group, error) {
	alone := false
	for try := 1; ; try++ {
		g, err := d.writer.join(ctx, d.sync.sync, alone, f)
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, errLost):
			alone = true // without others there is no group to lose
		case !isBusy(err) || try >= busyTries || ctx.Err() != nil:
			return nil, Error(err)
		}
	}
}

// join waits for the turn, runs f, and returns when the work of f is committed.
func (w *writer) join(ctx context.Context, sync func() error, alone bool, f func(*Tx) error) (*group, error) {
	g, err := w.wait(ctx, alone)
	if err != nil {
		return nil, err
	}
	if g == nil {
		if g, err = w.begin(sync); err != nil {
			w.pass(nil)
			return nil, err
		}
	}
	shared := g.members > 0
	if err := w.run(ctx, g, f); err != nil {
		if !shared {
			return nil, err
		}
		// f may have failed because of what earlier members did. The caller must find
		// that in the database, or nobody has done it.
		<-g.done
		if g.err != nil {
			return nil, errLost
		}
		return nil, err
	}
	w.next(g)
	<-g.done
	return g, g.err
}

// wait returns when the caller has the turn, with the group to join or nil.
func (w *writer) wait(ctx context.Context, alone bool) (*group, error) {
	w.mu.Lock()
	if !w.taken {
		w.taken = true
		w.mu.Unlock()
		return nil, nil
	}
	me := &waiter{turn: make(chan *group, 1), alone: alone}
	w.queue = append(w.queue, me)
	w.mu.Unlock()
	select {
	case g := <-me.turn:
		return g, nil
	case <-ctx.Done():
	}
	w.mu.Lock()
	if i := slices.Index(w.queue, me); i >= 0 {
		w.queue = slices.Delete(w.queue, i, i+1)
		w.mu.Unlock()
		return nil, ctx.Err()
	}
	w.mu.Unlock()
	return <-me.turn, nil // run finds that ctx has ended
}

// tryTurn takes the turn if nobody has it.
func (w *writer) tryTurn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return false
	}
	w.taken = true
	return true
}

// begin begins a group. The group does not end with the context of its first member.
func (w *writer) begin(sync func() error) (*group, error) {
	tx, err := w.pool.begin(context.Background(), nil)
	if err != nil {
		return nil, err
	}
	tx.uninterrupted = true
	return &group{tx: tx, done: make(chan struct{}), sync: once(sync)}, nil
}

// run runs f in the group. If f fails, run undoes it and gives the turn away.
func (w *writer) run(ctx context.Context, g *group, f func(*Tx) error) (err error) {
	shared := g.members > 0
	if shared {
		if err := g.exec("SAVEPOINT member"); err != nil {
			w.lose(g)
			return errLost
		}
	}
	worked := false
	defer func() { // also when f panics, or ends the goroutine
		switch {
		case worked:
		case !shared:
			_ = g.tx.tx.Rollback() // the error that f returned says more
			w.end(g, errLost)
			w.pass(nil)
		case g.tx.broken != nil || errors.Join(g.exec("ROLLBACK TO member"), g.exec("RELEASE member")) != nil:
			w.lose(g) // SQLite may have rolled back the whole transaction
		default:
			w.next(g)
		}
	}()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := f(g.tx); err != nil {
		return err
	}
	if err := errors.Join(g.tx.broken, ctx.Err()); err != nil {
		return err
	}
	if shared {
		if err := g.exec("RELEASE member"); err != nil {
			return err
		}
	}
	worked = true
	g.members++
	return nil
}

// next gives the turn, with the group, to the caller that waits longest. It commits the
// group if nobody waits that may join.
func (w *writer) next(g *group) {
	if w.pass(g) {
		return
	}
	err := g.tx.tx.Commit()
	if err != nil && g.members > 1 {
		err = errLost // each member finds out by itself what SQLite says to its part
	}
	w.end(g, err)
	w.pass(nil)
}

// lose rolls back a group because of an error that is nobody's, and gives the turn away.
func (w *writer) lose(g *group) {
	_ = g.tx.tx.Rollback() // which SQLite has done
	w.end(g, errLost)
	w.pass(nil)
}

func (w *writer) end(g *group, err error) {
	g.err = err
	close(g.done)
}

// pass gives the turn to the caller that waits longest, if there is one. With a group it
// returns false, and keeps the turn, unless that caller may join it.
func (w *writer) pass(g *group) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if g != nil && (len(w.queue) == 0 || w.queue[0].alone || g.members >= maxGroup) {
		return false
	}
	if len(w.queue) == 0 {
		w.taken = false
		return true
	}
	first := w.queue[0]
	w.queue = slices.Delete(w.queue, 0, 1)
	first.turn <- g
	return true
}

func once(f func() error) func() error { return sync.OnceValue(f) }

// exec runs a statement that controls the transaction.
func (g *group) exec(query string) error {
	_, err := g.tx.tx.ExecContext(context.Background(), query)
	return err
}

// begin begins a transaction.
func (p *pool) begin(ctx context.Context, o *sql.TxOptions) (*Tx, error) {
	p.prepareMissed(ctx)
	tx, err := p.db.BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &Tx{tx: tx, pool: p}, nil
}
