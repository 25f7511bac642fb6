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

var sessionsMigration = db.Migration{Name: "logins in browsers", SQL: `
	CREATE TABLE account_login_links (
		hash       BLOB PRIMARY KEY, -- SHA-256 of the code
		token_id   TEXT NOT NULL REFERENCES account_tokens (id) ON DELETE CASCADE,
		created_at INTEGER NOT NULL,
		expires_at INTEGER NOT NULL
	);
	CREATE INDEX account_login_links_by_token ON account_login_links (token_id);
	CREATE TABLE account_sessions (
		hash       BLOB PRIMARY KEY, -- of both halves of it; see sessionHash
		token_id   TEXT NOT NULL REFERENCES account_tokens (id) ON DELETE CASCADE,
		created_at INTEGER NOT NULL,
		used_at    INTEGER NOT NULL,
		expires_at INTEGER NOT NULL
	);
	CREATE INDEX account_sessions_by_token ON account_sessions (token_id, used_at);`}

// insertLoginLink also deletes expired links. Errors: quota_exceeded if the token has
// too many unused links.
func (s store) insertLoginLink(ctx context.Context, h hash, tokenID string, now, expires time.Time) error {
	return s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM account_login_links WHERE expires_at <= ?`, now.UnixMilli()); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM account_login_links WHERE token_id = ?`, tokenID).Scan(&n); err != nil {
			return err
		}
		if n >= maxLoginLinks {
			e := cay.Errorf(cay.QuotaExceeded, "%d login links of this token wait to be used, the most there may be", n).
				WithHint("use one of them, or wait: they are good for 10 minutes")
			e.RetryAfter = linkTTL
			return e
		}
		_, err := tx.Exec(ctx, `INSERT INTO account_login_links (hash, token_id, created_at, expires_at) VALUES (?, ?, ?, ?)`,
			h[:], tokenID, now.UnixMilli(), expires.UnixMilli())
		return wrap("insert login link", err)
	})
}

// useLoginLink deletes a link and returns its token, nil if there is no such link.
func (s store) useLoginLink(ctx context.Context, h hash, now time.Time) (t *account.Token, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		t = nil
		var id string
		err := tx.QueryRow(ctx, `DELETE FROM account_login_links WHERE hash = ? AND expires_at > ? RETURNING token_id`, h[:], now.UnixMilli()).Scan(&id)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found, err := scanToken(tx.QueryRow(ctx, `SELECT `+tokenColumns+` FROM account_tokens WHERE id = ?`, id))
		t = &found
		return err
	})
	return t, wrap("use login link", err)
}

// insertSession also deletes expired sessions, and the token's oldest session if the
// token has too many: it returns the sessions that it displaced.
func (s store) insertSession(ctx context.Context, h hash, tokenID string, now, expires time.Time) (displaced []hash, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		if _, err := tx.Exec(ctx, `DELETE FROM account_sessions WHERE expires_at <= ? OR used_at <= ?`, now.UnixMilli(), now.Add(-sessionIdle).UnixMilli()); err != nil {
			return err
		}
		hashes, err := db.Collect(ctx, tx, db.Column[[]byte], `DELETE FROM account_sessions WHERE hash IN
			(SELECT hash FROM account_sessions WHERE token_id = ? ORDER BY used_at DESC, created_at DESC LIMIT 1000 OFFSET ?)
			RETURNING hash`, tokenID, maxSessions-1)
		if err != nil {
			return err
		}
		displaced = make([]hash, len(hashes))
		for i, b := range hashes {
			displaced[i] = hash(b)
		}
		_, err = tx.Exec(ctx, `INSERT INTO account_sessions (hash, token_id, created_at, used_at, expires_at) VALUES (?, ?, ?, ?, ?)`,
			h[:], tokenID, now.UnixMilli(), now.UnixMilli(), expires.UnixMilli())
		return wrap("insert session", err)
	})
	return displaced, err
}

// findSession returns the session with that hash, nil if there is none.
func (s store) findSession(ctx context.Context, h hash) (*browserSession, error) {
	var tokenID string
	var used, expires int64
	err := s.db.QueryRow(ctx, `SELECT token_id, used_at, expires_at FROM account_sessions WHERE hash = ?`, h[:]).Scan(&tokenID, &used, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap("find session", err)
	}
	t, err := s.getToken(ctx, tokenID)
	if cay.CodeOf(err) == cay.NotFound { // revoked just now
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &browserSession{token: *t, usedAt: fromMillis(used), expiresAt: fromMillis(expires)}, nil
}

func (s store) noteSession(ctx context.Context, h hash, now time.Time) error {
	_, err := s.db.Unsynced().Exec(ctx, `UPDATE account_sessions SET used_at = ? WHERE hash = ?`, now.UnixMilli(), h[:])
	return wrap("record use of session", err)
}

// deleteSession returns the id of the session's token, "" if there was none.
func (s store) deleteSession(ctx context.Context, h hash) (tokenID string, err error) {
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		tokenID = ""
		err := tx.QueryRow(ctx, `DELETE FROM account_sessions WHERE hash = ? RETURNING token_id`, h[:]).Scan(&tokenID)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		return err
	})
	return tokenID, wrap("delete session", err)
}
