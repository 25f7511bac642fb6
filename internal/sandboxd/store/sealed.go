package store

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/cayhq/cay/internal/db"
)

// sealedPrefix begins a column's text that is sealed. Other text is as it was
// written: by a cay that sealed less, or because it says nothing.
const sealedPrefix = "sealed:"

// seal returns text that nobody may read in the database, as it is kept there.
// owner names what it belongs to.
func (s *Store) seal(text, owner string) string {
	if s.opts.Secrets == nil || text == "" || text == "{}" || text == "null" {
		return text
	}
	return sealedPrefix + base64.StdEncoding.EncodeToString(s.opts.Secrets.Seal([]byte(text), owner))
}

// unseal returns what seal was given.
func (s *Store) unseal(kept, owner string) (string, error) {
	sealed, ok := strings.CutPrefix(kept, sealedPrefix)
	if !ok || s.opts.Secrets == nil {
		return kept, nil
	}
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil {
		return "", err
	}
	text, err := s.opts.Secrets.Open(b, owner)
	return string(text), err
}

// What sealed columns belong to.
func envOf(id string) string   { return "the environment of sandbox " + id }
func nextOf(id string) string  { return "the next session of sandbox " + id }
func tokenOf(id string) string { return "the guest token of " + id }

// SealAll seals what an earlier cay has left open.
func (s *Store) SealAll(ctx context.Context) error {
	err := s.db.Write(ctx, func(tx *db.Tx) error {
		for _, c := range []struct {
			table, column string
			owner         func(id string) string
		}{
			{"sandboxes", "env", envOf}, {"sandboxes", "next", nextOf},
			{"sandboxes", "guest_token", tokenOf}, {"sandbox_snapshots", "guest_token", tokenOf},
		} {
			open, err := s.unsealed(ctx, tx, c.table, c.column)
			if err != nil {
				return err
			}
			for id, text := range open {
				if _, err := tx.Exec(ctx, `UPDATE `+c.table+` SET `+c.column+` = ? WHERE id = ?`, s.seal(text, c.owner(id)), id); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("seal what is not: %w", err)
	}
	return nil
}

// unsealed returns what of a column is open, by id.
func (s *Store) unsealed(ctx context.Context, tx *db.Tx, table, column string) (map[string]string, error) {
	rows, err := tx.Query(ctx, `SELECT id, `+column+` FROM `+table+` WHERE `+column+` NOT IN ('', '{}', 'null') AND `+column+` NOT LIKE ?`, sealedPrefix+"%")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	open := make(map[string]string)
	for rows.Next() {
		var id, text string
		if err := rows.Scan(&id, &text); err != nil {
			return nil, err
		}
		open[id] = text
	}
	return open, rows.Err()
}
