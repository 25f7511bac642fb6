package store

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/cayhq/cay/internal/db"
)

// sealedPrefix begins a column's text that is sealed. Text without the prefix is not
// sealed: an earlier version wrote it, or it is empty and reveals nothing.
const sealedPrefix = "sealed:"

// seal encrypts text that must not be readable in the database. owner names the object
// that the text belongs to.
func (s *Store) seal(text, owner string) string {
	if s.opts.Secrets == nil || text == "" || text == "{}" || text == "null" {
		return text
	}
	return sealedPrefix + base64.StdEncoding.EncodeToString(s.opts.Secrets.Seal([]byte(text), owner))
}

// unseal returns the text that seal encrypted.
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

// The owners of sealed columns.
func envOf(id string) string   { return "the environment of sandbox " + id }
func nextOf(id string) string  { return "the next session of sandbox " + id }
func tokenOf(id string) string { return "the guest token of " + id }

// SealAll seals columns that an earlier version wrote unsealed.
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

func unsealedQuery(table, column string) string {
	return `SELECT id, ` + column + ` FROM ` + table + ` WHERE ` + isUnsealed(column)
}

// unsealed returns the texts of a column that are not sealed, by id.
func (s *Store) unsealed(ctx context.Context, tx *db.Tx, table, column string) (map[string]string, error) {
	rows, err := tx.Query(ctx, unsealedQuery(table, column))
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
