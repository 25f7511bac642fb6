package accountd

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
)

// signingKey is a private key as stored.
type signingKey struct {
	id     string
	sealed []byte
}

// signingKeys returns all signing keys, newest first.
func (s store) signingKeys(ctx context.Context) ([]signingKey, error) {
	return query(ctx, s.db, func(s db.Scanner) (k signingKey, err error) {
		err = s.Scan(&k.id, &k.sealed)
		return k, err
	}, `SELECT id, sealed FROM account_signing_keys ORDER BY created_at DESC, id`)
}

func (s store) insertSigningKey(ctx context.Context, k signingKey, now time.Time) error {
	_, err := s.db.Exec(ctx, `INSERT INTO account_signing_keys (id, sealed, created_at) VALUES (?, ?, ?)`, k.id, k.sealed, now.UnixMilli())
	return wrap("insert signing key", err)
}

// loginState is the state of a device's login.
type loginState string

const (
	loginPending  loginState = "pending"
	loginApproved loginState = "approved"
	loginDenied   loginState = "denied"
)

// deviceLogin is a device's login that has not ended.
type deviceLogin struct {
	loginRequest
	state     loginState
	teamID    string
	projectID string
	deadline  *time.Time
	polledAt  time.Time
	createdAt time.Time
	expiresAt time.Time
}

const deviceLoginColumns = `state, client_id, agent, address, scope, coalesce(team_id, ''), coalesce(project_id, ''), deadline, polled_at, created_at, expires_at`

func scanDeviceLogin(s db.Scanner) (l deviceLogin, err error) {
	var deadline sql.NullInt64
	var polled, created, expires int64
	err = s.Scan(&l.state, &l.clientID, &l.agent, &l.address, &l.scope, &l.teamID, &l.projectID, &deadline, &polled, &created, &expires)
	l.deadline = nullTime(deadline)
	l.polledAt, l.createdAt, l.expiresAt = fromMillis(polled), fromMillis(created), fromMillis(expires)
	return l, err
}

// insertDeviceLogin also deletes logins that ended a while ago. Errors:
// quota_exceeded if there are too many, from that address or in total.
func (s store) insertDeviceLogin(ctx context.Context, l deviceLogin, device, user hash) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM account_device_logins WHERE expires_at < ?`, l.createdAt.Add(-loginGrace).UnixMilli()); err != nil {
			return err
		}
		var all, here int
		if err := tx.QueryRow(ctx, `SELECT count(*), coalesce(sum(address = ?), 0) FROM account_device_logins`, l.address).Scan(&all, &here); err != nil {
			return err
		}
		if all >= maxDeviceLogins || here >= maxDeviceLoginsFrom {
			e := cay.Errorf(cay.QuotaExceeded, "too many logins have begun and not ended")
			e.RetryAfter = time.Minute
			return e
		}
		_, err := tx.Exec(ctx, `INSERT INTO account_device_logins (device_hash, user_hash, state, client_id, agent, address, scope, created_at, expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, device[:], user[:], string(l.state), l.clientID, l.agent, l.address, l.scope,
			l.createdAt.UnixMilli(), l.expiresAt.UnixMilli())
		return wrap("insert device login", err)
	})
}

// getDeviceLogin returns nil if there is none with that device code.
func (s store) getDeviceLogin(ctx context.Context, device hash) (*deviceLogin, error) {
	l, err := scanDeviceLogin(s.db.QueryRow(ctx, `SELECT `+deviceLoginColumns+` FROM account_device_logins WHERE device_hash = ?`, device[:]))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &l, wrap("read device login", err)
}

func (s store) polled(ctx context.Context, device hash, now time.Time) error {
	_, err := s.db.Unsynced().Exec(ctx, `UPDATE account_device_logins SET polled_at = ? WHERE device_hash = ?`, now.UnixMilli(), device[:])
	return wrap("record poll", err)
}

// approveLogin returns nil if no login with that user code is pending.
func (s store) approveLogin(ctx context.Context, user hash, teamID, projectID string, deadline *time.Time, now time.Time) (*deviceLogin, error) {
	return s.decideLogin(ctx, `UPDATE account_device_logins SET state = 'approved', team_id = ?, project_id = NULLIF(?, ''), deadline = ?
		WHERE user_hash = ? AND state = 'pending' AND expires_at > ? RETURNING `+deviceLoginColumns,
		teamID, projectID, millis(deadline), user[:], now.UnixMilli())
}

// denyLogin returns nil if no login with that user code is pending, or approved
// by the team.
func (s store) denyLogin(ctx context.Context, user hash, teamID string, now time.Time) (*deviceLogin, error) {
	return s.decideLogin(ctx, `UPDATE account_device_logins SET state = 'denied'
		WHERE user_hash = ? AND (state = 'pending' OR state = 'approved' AND team_id = ?) AND expires_at > ? RETURNING `+deviceLoginColumns,
		user[:], teamID, now.UnixMilli())
}

func (s store) decideLogin(ctx context.Context, update string, args ...any) (l *deviceLogin, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		row, err := scanDeviceLogin(tx.QueryRow(ctx, update, args...))
		l = &row
		if errors.Is(err, sql.ErrNoRows) {
			l, err = nil, nil
		}
		return err
	})
	return l, wrap("decide device login", err)
}

// login is the row of a login whose token can be renewed.
type login struct {
	tokenID   string
	clientID  string
	scope     string
	rotatedAt *time.Time
	deadline  *time.Time
	expiresAt time.Time
}

const loginColumns = `token_id, client_id, scope, rotated_at, deadline, expires_at`

func scanLogin(s db.Scanner) (l login, err error) {
	var rotated, deadline sql.NullInt64
	var expires int64
	err = s.Scan(&l.tokenID, &l.clientID, &l.scope, &rotated, &deadline, &expires)
	l.rotatedAt, l.deadline, l.expiresAt = nullTime(rotated), nullTime(deadline), fromMillis(expires)
	return l, err
}

// completeLogin ends an approved login with a token, and deletes the tokens of
// expired logins. It returns false if the login is not approved any more.
func (s store) completeLogin(ctx context.Context, device hash, t account.Token, h hash, l login, refresh hash) (ok bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		r, err := tx.Exec(ctx, `DELETE FROM account_device_logins WHERE device_hash = ? AND state = 'approved'`, device[:])
		if ok = err == nil && r.Rows == 1; !ok {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM account_tokens WHERE id IN (SELECT token_id FROM account_logins WHERE expires_at <= ?)`,
			t.CreatedAt.UnixMilli()); err != nil {
			return err
		}
		if err := room(ctx, tx, "tokens", `SELECT count(*) FROM account_tokens WHERE team_id = ?`, t.TeamID, maxTokens); err != nil {
			return err
		}
		if err := insertToken(ctx, tx, t, kindUser, h); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO account_logins (token_id, client_id, scope, refresh_hash, deadline, expires_at) VALUES (?, ?, ?, ?, ?, ?)`,
			t.ID, l.clientID, l.scope, refresh[:], millis(l.deadline), l.expiresAt.UnixMilli())
		return err
	})
	return ok, wrap("complete device login", err)
}

// loginBy returns the login whose current refresh token has that hash, nil if
// there is none.
func (s store) loginBy(ctx context.Context, refresh hash) (*login, error) {
	return s.login(ctx, `SELECT `+loginColumns+` FROM account_logins WHERE refresh_hash = ?`, refresh[:])
}

// loginBefore is loginBy for the refresh token before the current one.
func (s store) loginBefore(ctx context.Context, refresh hash) (*login, error) {
	return s.login(ctx, `SELECT `+loginColumns+` FROM account_logins WHERE previous_hash = ?`, refresh[:])
}

// loginOf returns the login that a token belongs to, nil if it belongs to no
// login.
func (s store) loginOf(ctx context.Context, tokenID string) (*login, error) {
	return s.login(ctx, `SELECT `+loginColumns+` FROM account_logins WHERE token_id = ?`, tokenID)
}

func (s store) login(ctx context.Context, query string, arg any) (*login, error) {
	l, err := scanLogin(s.db.QueryRow(ctx, query, arg))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return &l, wrap("read login", err)
}

// renewLogin replaces both secrets of a login. It returns false if old is not
// the login's refresh token any more.
func (s store) renewLogin(ctx context.Context, l login, old, refresh, secret hash, tokenExpires, now time.Time) (ok bool, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		r, err := tx.Exec(ctx, `UPDATE account_logins SET refresh_hash = ?, previous_hash = refresh_hash, rotated_at = ?, expires_at = ?
			WHERE token_id = ? AND refresh_hash = ?`, refresh[:], now.UnixMilli(), l.expiresAt.UnixMilli(), l.tokenID, old[:])
		if ok = err == nil && r.Rows == 1; !ok {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE account_tokens SET hash = ?, expires_at = ? WHERE id = ?`, secret[:], tokenExpires.UnixMilli(), l.tokenID)
		return err
	})
	return ok, wrap("renew login", err)
}
