package accountd

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
)

var migrations = []db.Migration{
	{Name: "teams, projects, tokens", SQL: `
		CREATE TABLE account_teams (
			id         TEXT PRIMARY KEY,
			name       TEXT NOT NULL UNIQUE,
			quota      TEXT, -- JSON of account.Quota; NULL: the daemon's default
			created_at INTEGER NOT NULL
		);
		CREATE TABLE account_projects (
			id         TEXT PRIMARY KEY,
			team_id    TEXT NOT NULL REFERENCES account_teams (id) ON DELETE CASCADE,
			name       TEXT NOT NULL,
			created_at INTEGER NOT NULL,
			UNIQUE (team_id, name)
		);
		CREATE TABLE account_tokens (
			id           TEXT PRIMARY KEY,
			hash         BLOB NOT NULL UNIQUE, -- SHA-256 of the secret
			kind         TEXT NOT NULL,        -- user, admin; file: the admin token of the data directory
			name         TEXT NOT NULL,
			team_id      TEXT NOT NULL REFERENCES account_teams (id) ON DELETE CASCADE,
			project_id   TEXT REFERENCES account_projects (id) ON DELETE CASCADE,
			created_at   INTEGER NOT NULL,
			expires_at   INTEGER,
			last_used_at INTEGER
		);
		CREATE INDEX account_projects_by_team ON account_projects (team_id, created_at, id);
		CREATE INDEX account_tokens_by_team ON account_tokens (team_id, created_at, id);
		CREATE INDEX account_tokens_by_project ON account_tokens (project_id);`},
	{Name: "signing keys", SQL: `
		CREATE TABLE account_signing_keys (
			id         TEXT PRIMARY KEY,
			sealed     BLOB NOT NULL, -- the private key; see package secret
			created_at INTEGER NOT NULL
		);`},
	{Name: "device logins", SQL: `
		CREATE TABLE account_device_logins ( -- until the device has its token, or for some minutes
			device_hash BLOB PRIMARY KEY,
			user_hash   BLOB NOT NULL UNIQUE,
			state       TEXT NOT NULL, -- pending, approved, denied
			client_id   TEXT NOT NULL,
			agent       TEXT NOT NULL,
			address     TEXT NOT NULL,
			scope       TEXT NOT NULL,
			team_id     TEXT REFERENCES account_teams (id) ON DELETE CASCADE,
			project_id  TEXT REFERENCES account_projects (id) ON DELETE CASCADE,
			deadline    INTEGER, -- no token of it is good after
			polled_at   INTEGER NOT NULL DEFAULT 0,
			created_at  INTEGER NOT NULL,
			expires_at  INTEGER NOT NULL
		);
		CREATE INDEX account_device_logins_by_address ON account_device_logins (address);
		CREATE TABLE account_logins ( -- tokens that devices renew
			token_id      TEXT PRIMARY KEY REFERENCES account_tokens (id) ON DELETE CASCADE,
			client_id     TEXT NOT NULL,
			scope         TEXT NOT NULL,
			refresh_hash  BLOB NOT NULL UNIQUE,
			previous_hash BLOB, -- of the refresh token before
			rotated_at    INTEGER,
			deadline      INTEGER,
			expires_at    INTEGER NOT NULL -- of the refresh token
		);
		CREATE INDEX account_logins_by_previous ON account_logins (previous_hash);`},
	sessionsMigration,
	{Name: "rights of tokens", SQL: `ALTER TABLE account_tokens ADD COLUMN rights TEXT NOT NULL DEFAULT '';`}, // separated by spaces
}

// store is the tables of this slice.
type store struct{ db *db.DB }

func openStore(ctx context.Context, d *db.DB) (store, error) {
	return store{d}, d.Migrate(ctx, "account", migrations)
}

// teamRow is a team's row: Quota applies only if the team has a quota of its
// own.
type teamRow struct {
	account.Team
	ownQuota bool
}

const teamColumns = `id, name, quota, created_at`

func scanTeam(s db.Scanner) (t teamRow, err error) {
	var quota sql.NullString
	var created int64
	if err = s.Scan(&t.ID, &t.Name, &quota, &created); err != nil {
		return t, err
	}
	t.CreatedAt = fromMillis(created)
	if t.ownQuota = quota.Valid; t.ownQuota {
		if err := json.Unmarshal([]byte(quota.String), &t.Quota); err != nil {
			return t, fmt.Errorf("quota of team %s: %w", t.ID, err)
		}
	}
	return t, nil
}

const projectColumns = `id, team_id, name, created_at`

func scanProject(s db.Scanner) (p account.Project, err error) {
	var created int64
	err = s.Scan(&p.ID, &p.TeamID, &p.Name, &created)
	p.CreatedAt = fromMillis(created)
	return p, err
}

const tokenColumns = `id, kind, name, team_id, project_id, rights, created_at, expires_at, last_used_at`

func scanToken(s db.Scanner) (t account.Token, err error) {
	var k kind
	var project sql.NullString
	var created int64
	var rights string
	var expires, used sql.NullInt64
	err = s.Scan(&t.ID, &k, &t.Name, &t.TeamID, &project, &rights, &created, &expires, &used)
	for r := range strings.FieldsSeq(rights) {
		t.Rights = append(t.Rights, account.Right(r))
	}
	t.Admin = k != kindUser
	t.ProjectID = project.String
	t.CreatedAt = fromMillis(created)
	t.ExpiresAt, t.LastUsedAt = nullTime(expires), nullTime(used)
	return t, err
}

func (s store) ensureDefaults(ctx context.Context, now time.Time) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO account_teams (id, name, created_at) VALUES (?, 'default', ?) ON CONFLICT (id) DO NOTHING`,
			account.DefaultTeam, now.UnixMilli()); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO account_projects (id, team_id, name, created_at) VALUES (?, ?, 'default', ?) ON CONFLICT (id) DO NOTHING`,
			account.DefaultProject, account.DefaultTeam, now.UnixMilli())
		return err
	})
}

func (s store) insertTeam(ctx context.Context, t account.Team) error {
	_, err := s.db.Exec(ctx, `INSERT INTO account_teams (id, name, created_at) VALUES (?, ?, ?)`, t.ID, t.Name, t.CreatedAt.UnixMilli())
	if db.IsUnique(err, "account_teams.name") {
		return cay.Errorf(cay.AlreadyExists, "a team named %q exists", t.Name)
	}
	return wrap("insert team", err)
}

func (s store) getTeam(ctx context.Context, id string) (*teamRow, error) {
	t, err := scanTeam(s.db.QueryRow(ctx, `SELECT `+teamColumns+` FROM account_teams WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("team", id)
	}
	return &t, wrap("read team", err)
}

func (s store) listTeams(ctx context.Context, l list) ([]teamRow, error) {
	return query(ctx, s.db, scanTeam, `SELECT `+teamColumns+` FROM account_teams
		WHERE (? = '' OR id = ?) AND (created_at, id) < (?, ?)
		ORDER BY created_at DESC, id DESC LIMIT ?`, l.id, l.id, l.beforeTime, l.beforeID, l.limit+1)
}

func (s store) setQuota(ctx context.Context, id string, q account.Quota) error {
	b, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("encode quota: %w", err)
	}
	r, err := s.db.Exec(ctx, `UPDATE account_teams SET quota = ? WHERE id = ?`, string(b), id)
	if err == nil && r.Rows == 0 {
		return notFound("team", id)
	}
	return wrap("set quota", err)
}

func (s store) deleteTeam(ctx context.Context, id string) error {
	r, err := s.db.Exec(ctx, `DELETE FROM account_teams WHERE id = ?`, id)
	if err == nil && r.Rows == 0 {
		return notFound("team", id)
	}
	return wrap("delete team", err)
}

func (s store) insertProject(ctx context.Context, p account.Project) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if err := room(ctx, tx, "projects", `SELECT count(*) FROM account_projects WHERE team_id = ?`, p.TeamID, maxProjects); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO account_projects (id, team_id, name, created_at) VALUES (?, ?, ?, ?)`,
			p.ID, p.TeamID, p.Name, p.CreatedAt.UnixMilli())
		if db.IsUnique(err, "account_projects.team_id") {
			return cay.Errorf(cay.AlreadyExists, "a project named %q exists in this team", p.Name)
		}
		return wrap("insert project", err)
	})
}

func (s store) getProject(ctx context.Context, id string) (*account.Project, error) {
	p, err := scanProject(s.db.QueryRow(ctx, `SELECT `+projectColumns+` FROM account_projects WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("project", id)
	}
	return &p, wrap("read project", err)
}

func (s store) listProjects(ctx context.Context, l list) ([]account.Project, error) {
	return query(ctx, s.db, scanProject, `SELECT `+projectColumns+` FROM account_projects
		WHERE team_id = ? AND (? = '' OR id = ?) AND (created_at, id) < (?, ?)
		ORDER BY created_at DESC, id DESC LIMIT ?`, l.team, l.id, l.id, l.beforeTime, l.beforeID, l.limit+1)
}

func (s store) deleteProject(ctx context.Context, id string) error {
	r, err := s.db.Exec(ctx, `DELETE FROM account_projects WHERE id = ?`, id)
	if err == nil && r.Rows == 0 {
		return notFound("project", id)
	}
	return wrap("delete project", err)
}

func (s store) insertToken(ctx context.Context, t account.Token, k kind, h hash) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if err := room(ctx, tx, "tokens", `SELECT count(*) FROM account_tokens WHERE team_id = ?`, t.TeamID, maxTokens); err != nil {
			return err
		}
		return insertToken(ctx, tx, t, k, h)
	})
}

// replaceFileToken makes t the admin token of the data directory and revokes
// the former one.
func (s store) replaceFileToken(ctx context.Context, t account.Token, h hash) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM account_tokens WHERE kind = ?`, string(kindFile)); err != nil {
			return err
		}
		return insertToken(ctx, tx, t, kindFile, h)
	})
}

func insertToken(ctx context.Context, tx *db.Tx, t account.Token, k kind, h hash) error {
	rights := make([]string, len(t.Rights))
	for i, r := range t.Rights {
		rights[i] = string(r)
	}
	_, err := tx.Exec(ctx, `INSERT INTO account_tokens (id, hash, kind, name, team_id, project_id, rights, created_at, expires_at)
		VALUES (?, ?, ?, ?, ?, NULLIF(?, ''), ?, ?, ?)`,
		t.ID, h[:], string(k), t.Name, t.TeamID, t.ProjectID, strings.Join(rights, " "), t.CreatedAt.UnixMilli(), millis(t.ExpiresAt))
	return wrap("insert token", err)
}

func (s store) getToken(ctx context.Context, id string) (*account.Token, error) {
	t, err := scanToken(s.db.QueryRow(ctx, `SELECT `+tokenColumns+` FROM account_tokens WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, notFound("token", id)
	}
	return &t, wrap("read token", err)
}

// findToken returns the token with that hash, nil if there is none.
func (s store) findToken(ctx context.Context, h hash) (*account.Token, error) {
	t, err := scanToken(s.db.QueryRow(ctx, `SELECT `+tokenColumns+` FROM account_tokens WHERE hash = ?`, h[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &t, wrap("find token", err)
}

// isFileToken reports whether h belongs to the admin token of the data
// directory.
func (s store) isFileToken(ctx context.Context, h hash) (bool, error) {
	var n int
	err := s.db.QueryRow(ctx, `SELECT count(*) FROM account_tokens WHERE hash = ? AND kind = ?`, h[:], string(kindFile)).Scan(&n)
	return n == 1, wrap("find admin token", err)
}

func (s store) listTokens(ctx context.Context, l list) ([]account.Token, error) {
	return query(ctx, s.db, scanToken, `SELECT `+tokenColumns+` FROM account_tokens
		WHERE team_id = ? AND (? = '' OR id = ?) AND (? OR kind = 'user') AND (created_at, id) < (?, ?)
		ORDER BY created_at DESC, id DESC LIMIT ?`, l.team, l.id, l.id, l.admin, l.beforeTime, l.beforeID, l.limit+1)
}

func (s store) deleteToken(ctx context.Context, id string) error {
	r, err := s.db.Exec(ctx, `DELETE FROM account_tokens WHERE id = ?`, id)
	if err == nil && r.Rows == 0 {
		return notFound("token", id)
	}
	return wrap("delete token", err)
}

func (s store) recordUses(ctx context.Context, batch []use) error {
	return s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		for _, u := range batch {
			if _, err := tx.Exec(ctx, `UPDATE account_tokens SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)`,
				u.at.UnixMilli(), u.id, u.at.UnixMilli()); err != nil {
				return err
			}
		}
		return nil
	})
}

// room returns quota_exceeded if a team has reached the limit of a kind of
// object.
func room(ctx context.Context, tx *db.Tx, what, count, teamID string, limit int) error {
	var n int
	if err := tx.QueryRow(ctx, count, teamID).Scan(&n); err != nil {
		return err
	}
	if n >= limit {
		return cay.Errorf(cay.QuotaExceeded, "the team has %d %s, the most it may have", n, what).WithHint("delete some that are not needed")
	}
	return nil
}

// query is db.Collect, but never returns nil: a list without items is [] in JSON.
func query[T any](ctx context.Context, d *db.DB, scan func(db.Scanner) (T, error), q string, args ...any) ([]T, error) {
	items, err := db.Collect(ctx, d, scan, q, args...)
	if err == nil && items == nil {
		items = []T{}
	}
	return items, err
}

// list selects one page, newest first.
type list struct {
	team, id   string // "" in id: any
	admin      bool   // admin tokens too
	limit      int
	beforeTime int64 // Unix milliseconds
	beforeID   string
}

func parseList(p account.ListParams) (list, error) {
	l := list{limit: p.Limit, beforeTime: math.MaxInt64}
	if l.limit == 0 {
		l.limit = 50
	}
	if l.limit < 1 || l.limit > 200 {
		return l, cay.Errorf(cay.Invalid, "limit is %d; it must be 1 to 200", p.Limit)
	}
	if p.Cursor == "" {
		return l, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	at, id, ok := strings.Cut(string(b), " ")
	if err == nil && ok {
		l.beforeTime, err = strconv.ParseInt(at, 10, 64)
	}
	if err != nil || !ok {
		return l, cay.Errorf(cay.Invalid, "cursor %q is not one of a page before", p.Cursor)
	}
	l.beforeID = id
	return l, nil
}

// page makes a page of rows, which were read with a limit of one more than the
// page's.
func page[R, T any](l list, rows []R, item func(R) (T, time.Time, string)) *account.Page[T] {
	more := len(rows) > l.limit
	if more {
		rows = rows[:l.limit]
	}
	p := &account.Page[T]{Items: make([]T, 0, len(rows))}
	for i, r := range rows {
		t, at, id := item(r)
		p.Items = append(p.Items, t)
		if more && i == len(rows)-1 {
			p.Next = base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(at.UnixMilli(), 10) + " " + id))
		}
	}
	return p
}

// wrap adds the failed operation to err, except for errors that are meant for
// the user.
func wrap(what string, err error) error {
	if err == nil || errors.As(err, new(*cay.Error)) {
		return err
	}
	return fmt.Errorf("%s: %w", what, err)
}

func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func nullTime(ms sql.NullInt64) *time.Time {
	if !ms.Valid {
		return nil
	}
	t := fromMillis(ms.Int64)
	return &t
}

func millis(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixMilli()
}
