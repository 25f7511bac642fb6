package db

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"sync"
)

// maxStatements bounds the prepared statements that a pool keeps. Slices have a few dozen
// constant queries; queries built at run time are not cached once the cache is full, so
// the cache does not grow without bound.
const maxStatements = 512

// pool is a set of connections with their prepared statements.
type pool struct {
	db *sql.DB

	mu     sync.Mutex
	stmts  map[string]*sql.Stmt // guarded by mu; kept until close
	missed map[string]struct{}  // guarded by mu; to be prepared before the next transaction
}

func openPool(ctx context.Context, dsn string, conns int) (*pool, error) {
	p, err := newPool(dsn, conns)
	if err != nil {
		return nil, err
	}
	p.stmts = make(map[string]*sql.Stmt)
	p.missed = make(map[string]struct{})
	if err := p.db.PingContext(ctx); err != nil {
		return nil, errors.Join(Error(err), p.db.Close())
	}
	return p, nil
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, s := range p.stmts {
		errs = append(errs, s.Close())
	}
	clear(p.stmts)
	clear(p.missed)
	return errors.Join(append(errs, p.db.Close())...)
}

// Statements returns the text of each statement that has run and is kept prepared. It is
// for tests of query plans.
func (d *DB) Statements() []string {
	all := make(map[string]struct{})
	for _, p := range []*pool{d.read, d.writer.pool} {
		p.mu.Lock()
		for query := range p.stmts {
			all[query] = struct{}{}
		}
		maps.Copy(all, p.missed)
		p.mu.Unlock()
	}
	return slices.Sorted(maps.Keys(all))
}

// runner is a prepared statement, or a query that is prepared when it runs.
type runner interface {
	ExecContext(ctx context.Context, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, args ...any) *sql.Row
}

// prepare returns the statement for query, from the cache where it can.
func (p *pool) prepare(ctx context.Context, query string) (runner, error) {
	s, err := p.cached(ctx, query)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return adhoc{p.db, query}, nil
	}
	return s, nil
}

// cached returns the prepared statement for query, nil if the cache is full.
func (p *pool) cached(ctx context.Context, query string) (*sql.Stmt, error) {
	p.mu.Lock()
	s, full := p.stmts[query], len(p.stmts) >= maxStatements
	p.mu.Unlock()
	if s != nil || full {
		return s, nil
	}
	// Prepare needs a connection and may wait for one, so it is not called under the
	// lock.
	fresh, err := p.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.stmts[query]; s != nil {
		return s, fresh.Close()
	}
	p.stmts[query] = fresh
	return fresh, nil
}

// prepareMissed prepares the statements that earlier transactions had to run unprepared.
// Errors are ignored here: a statement that cannot be prepared reports its error when it
// runs again.
func (p *pool) prepareMissed(ctx context.Context) {
	p.mu.Lock()
	missed := slices.Collect(maps.Keys(p.missed))
	clear(p.missed)
	p.mu.Unlock()
	for _, query := range missed {
		_, _ = p.cached(ctx, query)
	}
}

func (p *pool) tx(ctx context.Context, o *sql.TxOptions, f func(*Tx) error) error {
	t, err := p.begin(ctx, o)
	if err != nil {
		return err
	}
	tx := t.tx
	if err := f(t); err != nil {
		if rerr := tx.Rollback(); rerr != nil && !errors.Is(rerr, sql.ErrTxDone) {
			err = errors.Join(err, rerr)
		}
		return err
	}
	err = tx.Commit()
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() != nil {
		// The end of ctx rolled the transaction back before Commit looked.
		err = ctx.Err()
	}
	return err
}

// stmt returns the statement for query on the transaction's connection. It cannot prepare
// a new query through the pool, because the transaction itself holds the writer's only
// connection. So a new query runs unprepared, and is prepared before the next
// transaction.
func (t *Tx) stmt(ctx context.Context, query string) runner {
	p := t.pool
	p.mu.Lock()
	s := p.stmts[query]
	if s == nil && len(p.stmts)+len(p.missed) < maxStatements {
		p.missed[query] = struct{}{}
	}
	p.mu.Unlock()
	if s != nil {
		return t.tx.StmtContext(ctx, s)
	}
	return adhoc{t.tx, query}
}

// adhoc runs a query without keeping its statement.
type adhoc struct {
	on interface {
		ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
		QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	}
	query string
}

func (a adhoc) ExecContext(ctx context.Context, args ...any) (sql.Result, error) {
	return a.on.ExecContext(ctx, a.query, args...)
}

func (a adhoc) QueryContext(ctx context.Context, args ...any) (*sql.Rows, error) {
	return a.on.QueryContext(ctx, a.query, args...)
}

func (a adhoc) QueryRowContext(ctx context.Context, args ...any) *sql.Row {
	return a.on.QueryRowContext(ctx, a.query, args...)
}
