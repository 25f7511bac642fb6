package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd"
)

// PostgresOptions configure a store. The zero value is usable.
type PostgresOptions struct {
	// Schema holds the tables. OpenPostgres creates it if it is missing. Empty means
	// "cay".
	Schema string
	// Conns bounds the connections, not counting the one that listens. 0 means
	// pool_max_conns of the address, or 10.
	Conns int
	// Lease is how long a process keeps its runs when the others cannot see that it is
	// alive. 0 means 10 s; at least 200 ms. All processes should have the same.
	Lease time.Duration
	// Patience is how long a commit is retried while the database does not answer, before
	// unavailable is returned. 0 means 20 s.
	Patience time.Duration
	// Name identifies this process to people. Empty means its host and pid.
	Name string
	// Logger logs the background work. nil discards the logs.
	Logger *slog.Logger
}

// Postgres is a store in a schema of a PostgreSQL database that several processes
// share; see workflowd.Owner. Methods may be called concurrently.
type Postgres struct {
	o      PostgresOptions
	quoted string // name of the schema, as statements write it
	// channel is the notification channel that all processes of the schema listen on.
	channel                  string
	fenceClass, sessionClass int32

	pool *pgxpool.Pool
	db   *sql.DB // the pool again, for transactional steps
	// steps is a semaphore of transactional steps: they may take any time, and must leave
	// connections for commits.
	steps chan struct{}
	// statements caches the results of sql by its argument.
	statements sync.Map

	epoch atomic.Int32

	listener *listener
	notifier *notifier
	closing  context.CancelFunc // ends the goroutines
	running  sync.WaitGroup

	closeOnce sync.Once
	closeErr  error
}

var (
	_ workflowd.Store = (*Postgres)(nil)
	_ workflowd.Owner = (*Postgres)(nil)
)

// OpenPostgres opens a store, creates or upgrades its schema, and registers this process
// as an owner of runs. dsn is a URL or a list of key=value, in libpq's syntax. Errors:
// invalid (the address), unavailable, permission_denied (the schema is missing and may
// not be made), not_supported (the server is too old, or the schema is of a later
// release).
func OpenPostgres(ctx context.Context, dsn string, o PostgresOptions) (*Postgres, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's error does not contain the password.
		return nil, cay.Errorf(cay.Invalid, "the address of the database is wrong: %w", err)
	}
	if err := o.setDefaults(dsn); err != nil {
		return nil, err
	}
	if o.Conns != 0 {
		config.MaxConns = int32(o.Conns)
	}
	// Keepalives detect a vanished server within 30 s.
	config.ConnConfig.DialFunc = (&net.Dialer{
		Timeout:         config.ConnConfig.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 4},
	}).DialContext
	params := config.ConnConfig.RuntimeParams
	if params["application_name"] == "" {
		params["application_name"] = "cay workflows"
	}
	if params["jit"] == "" {
		params["jit"] = "off" // all statements are short
	}
	p := &Postgres{o: o, quoted: pgx.Identifier{o.Schema}.Sanitize(), channel: "cay_" + o.Schema}
	p.fenceClass, p.sessionClass = lockClasses(o.Schema)

	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, pgError(fmt.Errorf("open workflow database: %w", err))
	}
	if err := p.migrate(ctx, conn); err != nil {
		return nil, errors.Join(pgError(fmt.Errorf("make workflow tables: %w", err)), conn.Close(context.WithoutCancel(ctx)))
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, errors.Join(pgError(err), conn.Close(context.WithoutCancel(ctx)))
	}
	p.db = stdlib.OpenDBFromPool(p.pool)
	p.steps = make(chan struct{}, max(1, config.MaxConns/2))
	if err := p.Register(ctx); err != nil {
		err = errors.Join(err, conn.Close(context.WithoutCancel(ctx)), p.db.Close())
		p.pool.Close()
		return nil, err
	}
	life, closing := context.WithCancel(context.Background())
	p.closing = closing
	p.notifier = newNotifier(p)
	p.listener = newListener(p, config.ConnConfig, conn)
	p.notifier.changedAll() // the other processes have not been told of earlier changes
	p.running.Go(func() { p.notifier.run(life) })
	p.running.Go(func() { p.listener.run(life) })
	return p, nil
}

func (o *PostgresOptions) setDefaults(dsn string) error {
	if o.Schema == "" {
		o.Schema = "cay"
	}
	if len(o.Schema) > 40 {
		return cay.Errorf(cay.Invalid, "the schema's name is longer than 40 bytes: %q", o.Schema)
	}
	if o.Conns == 0 && !strings.Contains(dsn, "pool_max_conns") {
		o.Conns = 10
	}
	if o.Conns != 0 && o.Conns < 2 {
		return cay.Errorf(cay.Invalid, "a pool of %d connections is too small; it takes 2", o.Conns)
	}
	if o.Lease == 0 {
		o.Lease = 10 * time.Second
	}
	if o.Lease < 200*time.Millisecond {
		return cay.Errorf(cay.Invalid, "a lease of %v is too short; it takes 200ms", o.Lease)
	}
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "?"
		}
		o.Name = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("component", "workflowd.postgres")
	return nil
}

// Close gives up all runs, so that other processes can claim them at once, and closes the
// connections. It waits for running statements.
func (p *Postgres) Close() error {
	p.closeOnce.Do(func() {
		p.closing()
		p.running.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err := p.unregister(ctx)
		if cay.CodeOf(err) == cay.Unavailable {
			p.o.Logger.Warn("runs are not given up; they are taken over when the lease is over", "error", err)
			err = nil
		}
		p.closeErr = errors.Join(err, p.db.Close())
		p.pool.Close()
	})
	return p.closeErr
}

// DSN returns the address the store was opened with.
func (p *Postgres) DSN() string { return p.pool.Config().ConnString() }

// Owner returns the store itself.
func (p *Postgres) Owner() workflowd.Owner { return p }

// sql returns a statement for the schema in use. Statements name the schema "cay.".
func (p *Postgres) sql(text string) string {
	if s, ok := p.statements.Load(text); ok {
		return s.(string)
	}
	s := strings.ReplaceAll(text, "cay.", p.quoted+".")
	p.statements.Store(text, s)
	return s
}
