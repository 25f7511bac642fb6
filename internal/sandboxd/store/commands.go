package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/sandbox"
)

// commandsMigration lets sessions have kept commands. A trigger writes down each blob
// that no session refers to any more, whatever the reason, so that the engine can remove
// its files.
var commandsMigration = db.Migration{Name: "commands of ended sessions", SQL: `
	ALTER TABLE sandbox_sessions ADD COLUMN commands TEXT NOT NULL DEFAULT '';    -- the blob they are in; '-': it had none; '': nothing is known
	ALTER TABLE sandbox_sessions ADD COLUMN commands_bytes INTEGER NOT NULL DEFAULT 0; -- what they count for; 0: there is no blob
	ALTER TABLE sandbox_sessions ADD COLUMN command_ids TEXT NOT NULL DEFAULT ''; -- those in the blob without cmd_, each with a comma after it
	CREATE INDEX sandbox_sessions_commands ON sandbox_sessions (team_id, created_at, commands_bytes) WHERE commands_bytes > 0;
	CREATE TABLE sandbox_commands_gone (blob TEXT PRIMARY KEY); -- to be removed
	CREATE TRIGGER sandbox_commands_deleted AFTER DELETE ON sandbox_sessions WHEN old.commands_bytes > 0 BEGIN
		INSERT OR IGNORE INTO sandbox_commands_gone (blob) VALUES (old.commands);
	END;
	CREATE TRIGGER sandbox_commands_replaced AFTER UPDATE OF commands ON sandbox_sessions WHEN old.commands_bytes > 0 AND old.commands <> new.commands BEGIN
		INSERT OR IGNORE INTO sandbox_commands_gone (blob) VALUES (old.commands);
	END;`}

// CommandArchive describes the kept commands of a session that ends.
type CommandArchive struct {
	// Blob is the id of the blob that holds the commands; NoCommands if the session had
	// no command; empty if nothing is known.
	Blob  string
	Bytes int64
	IDs   string // the command ids as in the database: CommandKey of each
}

// NoCommands stands in place of a blob id for a session that had no command.
const NoCommands = "-"

// CommandKey returns the form of a command's id in the list of ids in the database.
func CommandKey(id string) string { return strings.TrimPrefix(id, "cmd_") + "," }

// ArchivedSession is a session with a description of its kept commands.
type ArchivedSession struct {
	SandboxID string
	id        string
	Status    sandbox.Status
	StoppedAt *time.Time
	Commands  string // as CommandArchive.Blob
}

// setCommands records the kept commands of a session, unless nothing is known of them. If
// the team then has more than limit bytes, the oldest commands are dropped.
func setCommands(ctx context.Context, tx *db.Tx, session string, k CommandArchive, limit int64) error {
	if k.Blob == "" {
		return nil
	}
	if _, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET commands = ?, commands_bytes = ?, command_ids = ? WHERE id = ?`,
		k.Blob, k.Bytes, k.IDs, session); err != nil || k.Bytes == 0 {
		return err
	}
	var team string
	var sum int64
	err := tx.QueryRow(ctx, `SELECT team_id, (SELECT coalesce(sum(command_bytes), 0) FROM sandbox_counts c WHERE c.team_id = v.team_id)
		FROM sandbox_sessions v WHERE id = ?`, session).Scan(&team, &sum)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // the session's row is gone, so nothing refers to the blob
	}
	for err == nil && sum > limit {
		var id string
		var bytes int64
		err = tx.QueryRow(ctx, `SELECT id, commands_bytes FROM sandbox_sessions WHERE team_id = ? AND commands_bytes > 0 ORDER BY created_at LIMIT 1`, team).Scan(&id, &bytes)
		if err == nil {
			_, err = tx.Exec(ctx, `UPDATE sandbox_sessions SET commands = '', commands_bytes = 0, command_ids = '' WHERE id = ?`, id)
		}
		sum -= bytes
	}
	return err
}

const keptColumns = `v.sandbox_id, v.id, CASE WHEN v.id = s.session_id THEN s.status ELSE v.status END,
	CASE WHEN v.id = s.session_id THEN s.stopped_at ELSE v.stopped_at END, v.commands
	FROM sandbox_sessions v JOIN sandboxes s ON s.id = v.sandbox_id WHERE v.sandbox_id = ? AND `

func (s *Store) archivedSession(ctx context.Context, where string, args ...any) (*ArchivedSession, error) {
	var k ArchivedSession
	var stopped sql.NullInt64
	err := s.db.QueryRow(ctx, `SELECT `+keptColumns+where, args...).Scan(&k.SandboxID, &k.id, &k.Status, &stopped, &k.Commands)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read session: %w", err)
	}
	k.StoppedAt = nullTime(stopped)
	return &k, nil
}

// LastCommands returns the session that r is restricted to, or the newest session of the
// sandbox.
func (s *Store) LastCommands(ctx context.Context, r *Row) (*ArchivedSession, error) {
	k, err := s.archivedSession(ctx, `v.id = ?`, r.ID, cmp.Or(r.Only, r.SessionID))
	if err == nil && k == nil {
		k = &ArchivedSession{SandboxID: r.ID} // the row of the session is gone
	}
	return k, err
}

// SessionOfCommand returns the newest session that has a kept command with this id, nil
// if none has. If r is restricted to a session, only that session is searched.
func (s *Store) SessionOfCommand(ctx context.Context, r *Row, id string) (*ArchivedSession, error) {
	return s.archivedSession(ctx, `(? = '' OR v.id = ?) AND v.commands_bytes > 0 AND instr(v.command_ids, ?) > 0 ORDER BY v.number DESC LIMIT 1`,
		r.ID, r.Only, r.Only, CommandKey(id))
}

// CommandBlobs returns the blobs that sessions refer to.
func (s *Store) CommandBlobs(ctx context.Context) (map[string]bool, error) {
	return s.names(ctx, "blobs of commands", `SELECT commands FROM sandbox_sessions WHERE commands_bytes > 0`)
}

// GoneCommands returns up to 1000 blobs whose files are to be removed.
func (s *Store) GoneCommands(ctx context.Context) (map[string]bool, error) {
	return s.names(ctx, "blobs of commands", `SELECT blob FROM sandbox_commands_gone LIMIT 1000`)
}

// names returns the set of the texts that a query selects; what names them in errors.
func (s *Store) names(ctx context.Context, what, query string) (map[string]bool, error) {
	all, err := db.Collect(ctx, s.db, db.Column[string], query)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	set := make(map[string]bool, len(all))
	for _, name := range all {
		set[name] = true
	}
	return set, nil
}

// CommandsRemoved records that the files of a blob listed by GoneCommands are removed.
func (s *Store) CommandsRemoved(ctx context.Context, blob string) error {
	_, err := s.db.Exec(ctx, `DELETE FROM sandbox_commands_gone WHERE blob = ?`, blob)
	return err
}
