package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

// Amounts are units of 10^-12 dollars.
var migrations = []db.Migration{
	{Name: "keys, budgets, requests", SQL: `
		CREATE TABLE gateway_keys (
			id           TEXT PRIMARY KEY,
			hash         BLOB NOT NULL UNIQUE, -- SHA-256 of the secret
			team_id      TEXT NOT NULL,
			project_id   TEXT NOT NULL,
			name         TEXT NOT NULL,
			prefix       TEXT NOT NULL,
			scope        TEXT NOT NULL, -- JSON of gateway.KeyScope
			tags         TEXT NOT NULL, -- JSON
			disabled     INTEGER NOT NULL,
			created_at   INTEGER NOT NULL,
			expires_at   INTEGER,
			last_used_at INTEGER
		);
		CREATE INDEX gateway_keys_by_team ON gateway_keys (team_id, created_at, id);
		CREATE TABLE gateway_budgets ( -- as they were set; an empty ref is the default of a scope
			team_id    TEXT NOT NULL, -- empty: the default of all teams
			scope      TEXT NOT NULL,
			ref        TEXT NOT NULL,
			params     TEXT NOT NULL, -- JSON of gateway.BudgetParams
			created_at INTEGER NOT NULL,
			PRIMARY KEY (team_id, scope, ref)
		);
		CREATE TABLE gateway_spending ( -- of those who have a budget, in its period
			team_id   TEXT NOT NULL,
			scope     TEXT NOT NULL,
			ref       TEXT NOT NULL,
			since     INTEGER NOT NULL,
			spent     INTEGER NOT NULL, -- by requests that are recorded, and unsettled
			held      INTEGER NOT NULL, -- no less than all others that were admitted may cost
			unsettled INTEGER NOT NULL, -- was held when the daemon died
			alerted   INTEGER NOT NULL, -- the highest percentage that was warned of
			PRIMARY KEY (team_id, scope, ref)
		);
		CREATE TABLE gateway_commits (id INTEGER PRIMARY KEY CHECK (id = 1), n INTEGER NOT NULL);
		INSERT INTO gateway_commits (id, n) VALUES (1, 0);
		CREATE TABLE gateway_journal ( -- requests on their way to the table below
			seq     INTEGER PRIMARY KEY,
			count   INTEGER NOT NULL,
			records BLOB NOT NULL -- JSON of gateway.Request, a line each
		);
		CREATE TABLE gateway_requests (
			seq            INTEGER PRIMARY KEY,
			id             TEXT NOT NULL UNIQUE,
			created_at     INTEGER NOT NULL,
			team_id        TEXT NOT NULL,
			project_id     TEXT NOT NULL,
			key_id         TEXT NOT NULL,
			user_id        TEXT NOT NULL,
			session        TEXT NOT NULL,
			surface        TEXT NOT NULL,
			model          TEXT NOT NULL, -- the catalogue's name if it was found, else as asked for
			asked          TEXT NOT NULL, -- as asked for
			provider       TEXT NOT NULL,
			byok           INTEGER NOT NULL,
			status         TEXT NOT NULL,
			cost           INTEGER, -- NULL: unknown
			market_cost    INTEGER,
			input          INTEGER NOT NULL,
			cache_read     INTEGER NOT NULL,
			cache_write    INTEGER NOT NULL,
			cache_write_1h INTEGER NOT NULL,
			output         INTEGER NOT NULL,
			reasoning      INTEGER NOT NULL,
			estimated      INTEGER NOT NULL,
			record         TEXT NOT NULL -- JSON of gateway.Request: all of it
		);
		CREATE INDEX gateway_requests_by_team ON gateway_requests (team_id, created_at, id);
		CREATE TABLE gateway_request_tags (
			request_id TEXT NOT NULL,
			tag        TEXT NOT NULL,
			PRIMARY KEY (request_id, tag)
		);`},
	// Budgets used to allow unpriced models by default. Budgets from then keep that
	// behaviour.
	{Name: "budgets refuse what has no price", SQL: `
		UPDATE gateway_budgets SET params = json_set(params, '$.allow_unpriced', json('true')) WHERE coalesce(json_extract(params, '$.refuse_unpriced'), 0) = 0;
		UPDATE gateway_budgets SET params = json_remove(params, '$.refuse_unpriced');`},
	{Name: "what providers keep", SQL: `
		CREATE TABLE gateway_kept ( -- what providers keep under an id: whose it is
			hash       BLOB PRIMARY KEY, -- of the provider and the id
			team_id    TEXT NOT NULL,
			project_id TEXT NOT NULL,
			tokens     INTEGER NOT NULL, -- that going on with it adds to a prompt
			created_at INTEGER NOT NULL
		) WITHOUT ROWID;
		CREATE INDEX gateway_kept_by_age ON gateway_kept (created_at);`},
	// The indexes are partial: a successful request without user and session is in no
	// index.
	{Name: "what is looked for among requests", SQL: `
		CREATE INDEX gateway_requests_by_user ON gateway_requests (team_id, user_id, created_at, id) WHERE user_id <> '';
		CREATE INDEX gateway_requests_by_session ON gateway_requests (team_id, session, created_at, id) WHERE session <> '';
		CREATE INDEX gateway_requests_by_failure ON gateway_requests (team_id, status, created_at, id) WHERE status <> 'succeeded';`},
}

// store is the tables of this package.
type store struct{ db *db.DB }

func openStore(ctx context.Context, d *db.DB) (store, error) {
	if err := d.Migrate(ctx, "gateway", migrations); err != nil {
		return store{}, err
	}
	return store{d}, d.Migrate(ctx, "gateway-latency", latencyMigrations)
}

// spending is the row of a balance.
type spending struct {
	since                  time.Time
	spent, held, unsettled gateway.Money
	alerted                int
}

// spending returns the row of a balance, nil if there is none.
func (s store) spending(ctx context.Context, id spender) (*spending, error) {
	var sp spending
	var since int64
	err := s.db.QueryRow(ctx, `SELECT since, spent, held, unsettled, alerted FROM gateway_spending WHERE team_id = ? AND scope = ? AND ref = ?`,
		id.team, id.scope, id.ref).Scan(&since, &sp.spent, &sp.held, &sp.unsettled, &sp.alerted)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what %s has spent: %w", id.text(), err)
	}
	sp.since = fromMillis(since)
	return &sp, nil
}

// unsettled is the amount a balance held when the last process died.
type unsettled struct {
	id   spender
	held gateway.Money
}

// takeUnsettled moves held amounts to spent, and returns them by balance.
func (s store) takeUnsettled(ctx context.Context) (all []unsettled, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		all = nil
		rows, err := tx.Query(ctx, `SELECT team_id, scope, ref, held FROM gateway_spending WHERE held > 0`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var u unsettled
			if err := rows.Scan(&u.id.team, &u.id.scope, &u.id.ref, &u.held); err != nil {
				return err
			}
			all = append(all, u)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE gateway_spending SET spent = spent + held, unsettled = unsettled + held, held = 0 WHERE held > 0`)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("settle what was held: %w", err)
	}
	return all, nil
}

// commits returns the number of the last group that was written.
func (s store) commits(ctx context.Context) (n int64, err error) {
	if err = s.db.QueryRow(ctx, `SELECT n FROM gateway_commits`).Scan(&n); err != nil {
		err = fmt.Errorf("read the number of the last group: %w", err)
	}
	return n, err
}

// journal returns how many records are in the journal.
func (s store) journal(ctx context.Context) (n int, err error) {
	if err = s.db.QueryRow(ctx, `SELECT coalesce(sum(count), 0) FROM gateway_journal`).Scan(&n); err != nil {
		err = fmt.Errorf("read the journal: %w", err)
	}
	return n, err
}

// commit writes a group in a transaction that is not synced. A power cut may lose the
// last groups, because calls do not wait for the disk.
func (s store) commit(ctx context.Context, g *group) error {
	err := s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE gateway_commits SET n = ?`, g.number); err != nil {
			return err
		}
		if len(g.holds) > 0 {
			if _, err := tx.Exec(ctx, `INSERT INTO gateway_journal (count, records) VALUES (?, ?)`, len(g.holds), g.records); err != nil {
				return err
			}
		}
		if err := writeSpending(ctx, tx, g.balances); err != nil {
			return err
		}
		for id, at := range g.used {
			if _, err := tx.Exec(ctx, `UPDATE gateway_keys SET last_used_at = ? WHERE id = ?`, at, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write requests and what they have cost: %w", err)
	}
	return nil
}

// spendingRows is the number of balances per statement, which is cheaper than one
// statement each.
const spendingRows = 16

// upsertSpending is the statement that writes n balances.
func upsertSpending(n int) string {
	const row = `(?, ?, ?, ?, ?, ?, ?, ?)`
	return `INSERT INTO gateway_spending (team_id, scope, ref, since, spent, held, unsettled, alerted) VALUES ` + strings.Repeat(row+", ", n-1) + row + `
		ON CONFLICT (team_id, scope, ref) DO UPDATE SET since = excluded.since, spent = excluded.spent, held = excluded.held,
			unsettled = excluded.unsettled, alerted = excluded.alerted`
}

var upsertOne, upsertMany = upsertSpending(1), upsertSpending(spendingRows)

func writeSpending(ctx context.Context, tx *db.Tx, all []snapshot) error {
	var args []any
	for len(all) > 0 {
		n, query := 1, upsertOne
		if len(all) >= spendingRows {
			n, query = spendingRows, upsertMany
		}
		args = args[:0]
		for _, s := range all[:n] {
			id := s.balance.id
			args = append(args, id.team, string(id.scope), id.ref, s.since.UnixMilli(), int64(s.spent), int64(s.held), int64(s.unsettled), s.alerted)
		}
		if _, err := tx.Exec(ctx, query, args...); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func nullTime(n sql.NullInt64) *time.Time {
	if !n.Valid {
		return nil
	}
	t := fromMillis(n.Int64)
	return &t
}

func millisOrNull(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMilli()
}
