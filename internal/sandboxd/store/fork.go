package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/ident"
)

// Copies describes the sandboxes that a fork makes.
type Copies struct {
	Count int
	Names []string // of the copies; none: Base with a number appended
	Base  string   // empty: random names, as for any sandbox without a name
	Row   Row      // the template of the copies, without the fields that differ between copies
	Rows  []*Row   // the rows of the copies
	Quota account.Quota
	// Fallback says that the copies do not begin with the snapshot in Row, but are
	// started from it if they end before they are saved.
	Fallback bool
}

// InsertFork adds all copies of a fork, or none. The rows are pending, have names, and
// are marked as deleting, which Forked takes back. Errors: already_exists, not_found,
// conflict, quota_exceeded.
func (s *Store) InsertFork(ctx context.Context, f *Copies) error {
	err := s.db.Unsynced().Write(ctx, func(tx *db.Tx) error {
		first := f.Rows[0]
		if err := checkQuotaOf(ctx, tx, f.Count, first, f.Quota, first.CreatedAt); err != nil {
			return err
		}
		snapshotID := f.Row.SnapshotID
		if snapshotID != "" {
			switch err := needSnapshot(ctx, tx, snapshotID); {
			case err == nil:
			case f.Fallback && cay.CodeOf(err) != cay.Internal:
				snapshotID = ""
			default:
				return err
			}
		}
		names, err := f.chooseNames(ctx, tx)
		if err != nil {
			return err
		}
		for i, r := range f.Rows {
			r.Name, r.SnapshotID = names[i], snapshotID
			if err := attachDrives(ctx, tx, r); err != nil {
				return err
			}
			if err := s.insertRow(ctx, tx, r); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `UPDATE sandboxes SET deleting = 1 WHERE id = ?`, r.ID); err != nil {
				return err
			}
			if !f.Fallback {
				continue
			}
			if _, err := tx.Exec(ctx, `UPDATE sandbox_sessions SET source_id = '' WHERE id = ?`, r.SessionID); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case db.IsUnique(err, "sandboxes.project_id"):
		return cay.Errorf(cay.AlreadyExists, "a name of one of the copies was taken meanwhile").WithHint("try again")
	case err != nil && cay.CodeOf(err) == cay.Internal:
		return fmt.Errorf("record forks: %w", err)
	}
	if err == nil {
		s.notifyCreated(f.Rows...)
	}
	return err
}

// maxName is the maximal length of a sandbox name.
const maxName = 128

// chooseNames returns the names of the copies: the requested ones, else the source's name
// with the first numbers that are free in the project. Errors: already_exists.
func (f *Copies) chooseNames(ctx context.Context, tx *db.Tx) ([]string, error) {
	free := func(name string) (bool, error) {
		var taken bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM sandboxes WHERE project_id = ? AND name = ?)`, f.Row.ProjectID, name).Scan(&taken)
		return !taken, err
	}
	for _, name := range f.Names {
		ok, err := free(name)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, cay.Errorf(cay.AlreadyExists, "a sandbox named %q exists", name).
				WithHint("choose another name, or delete that sandbox")
		}
	}
	if len(f.Names) > 0 {
		return f.Names, nil
	}
	names := make([]string, 0, f.Count)
	for number := 1; len(names) < f.Count; number++ {
		name := numbered(f.Base, number)
		ok, err := free(name)
		if err != nil {
			return nil, err
		}
		if ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// numbered returns the name of a copy: base with a number, or a random name if base is
// empty.
func numbered(base string, number int) string {
	if base == "" {
		return ident.NewName()
	}
	tail := "-" + strconv.Itoa(number)
	return base[:min(len(base), maxName-len(tail))] + tail
}

// Forked moves all copies of a fork from pending to running, or none. If a copy is not
// pending any more, Forked returns its index, otherwise -1. Errors: not_found if a
// snapshot that the copies need was deleted.
func (s *Store) Forked(ctx context.Context, f *Copies) (stopped int, err error) {
	errStopped := errors.New("not pending")
	err = s.db.Write(ctx, func(tx *db.Tx) error {
		stopped = -1
		if r := f.Rows[0]; r.Persistent && r.SnapshotID != "" {
			if err := needSnapshot(ctx, tx, r.SnapshotID); err != nil {
				return err
			}
		}
		for i, r := range f.Rows {
			ok, err := startedRow(ctx, tx, r)
			if err != nil {
				return err
			}
			if !ok {
				stopped = i
				return errStopped
			}
			if _, err := tx.Exec(ctx, `UPDATE sandboxes SET deleting = 0 WHERE id = ?`, r.ID); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errStopped):
		return stopped, nil
	case err != nil && cay.CodeOf(err) == cay.Internal:
		return -1, fmt.Errorf("record forks: %w", err)
	}
	if err == nil {
		s.notifyCreated(f.Rows...)
	}
	return -1, err
}
