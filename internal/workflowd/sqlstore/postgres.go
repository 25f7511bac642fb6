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

// PostgresOptions tune a store. The zero value is good.
type PostgresOptions struct {
	// Schema holds the tables; it is made if it is missing. Empty means "cay".
	Schema string
	// Conns bounds connections, beside one that listens. 0 means pool_max_conns of
	// the address, or 10.
	Conns int
	// Lease is how long a process that cannot be seen to be alive keeps its runs. 0
	// means 10 s; at least 200 ms. All processes should have the same.
	Lease time.Duration
	// Patience is how long a commit is tried again while the database does not
	// answer, before unavailable is returned. 0 means 20 s.
	Patience time.Duration
	// Name is this process's for people. Empty means its host and pid.
	Name string
	// Logger gets what goes on in the background. nil discards it.
	Logger *slog.Logger
}

// Postgres is a store in a schema of a PostgreSQL database that several processes
// share; see workflowd.Owner. Methods may be called concurrently.
type Postgres struct {
	o      PostgresOptions
	quoted string // name of the schema, as statements write it
	// channel is what all processes of the schema listen to.
	channel                  string
	fenceClass, sessionClass int32

	pool *pgxpool.Pool
	db   *sql.DB // the pool again, for transactional steps
	// steps has a token for each transactional step there may be at one time: they
	// take as long as they like, and must leave connections for commits.
	steps chan struct{}
	// statements by what sql has made them of.
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

// OpenPostgres opens a store, makes or upgrades its schema, and registers this
// process as an owner of runs. dsn is a URL or a list of key=value, as libpq has
// them. Errors: invalid (the address), unavailable, permission_denied (the schema is
// missing and may not be made), not_supported (the server is too old, or the schema
// is of a later release).
func OpenPostgres(ctx context.Context, dsn string, o PostgresOptions) (*Postgres, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver leaves the password out of what it says.
		return nil, cay.Errorf(cay.Invalid, "the address of the database is wrong: %w", err)
	}
	if err := o.setDefaults(dsn); err != nil {
		return nil, err
	}
	if o.Conns != 0 {
		config.MaxConns = int32(o.Conns)
	}
	// A server that has vanished is noticed within half a minute.
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
	p.notifier.changedAll() // of what was before, others need not have been told
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

// Close gives up all runs, so that others can take them at once, and closes the
// connections. Statements under way are waited for.
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

// sql is a statement for the schema in use. Statements write "cay." for it.
func (p *Postgres) sql(text string) string {
	if s, ok := p.statements.Load(text); ok {
		return s.(string)
	}
	s := strings.ReplaceAll(text, "cay.", p.quoted+".")
	p.statements.Store(text, s)
	return s
}
