package store

import (
	"context"
	"database/sql"
	"errors"
)

// Watchers is notified of sandboxes that change. *feed.Hub implements it.
type Watchers interface {
	Any() bool
	Tell(team, project, id string)
	Miss() // a sandbox changed, but the store does not know which
}

// changing is called before a sandbox is changed in the database, and returns the
// function that notifies the watchers. The caller defers that function, so that it runs
// after the commit. A notification without a change does no harm: watchers read the
// current state.
func (s *Store) changing(ctx context.Context, id string) (changed func()) {
	if s.opts.Watchers == nil {
		return func() {}
	}
	if !s.opts.Watchers.Any() {
		return func() {
			if s.opts.Watchers.Any() { // a watcher came meanwhile, and may have read its list before the change
				s.opts.Watchers.Miss()
			}
		}
	}
	var sc Scope
	err := s.db.QueryRow(ctx, `SELECT team_id, project_id FROM sandboxes WHERE id = ?`, id).Scan(&sc.Team, &sc.Project)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return func() {}
	case err != nil:
		return s.opts.Watchers.Miss
	}
	return func() { s.opts.Watchers.Tell(sc.Team, sc.Project, id) }
}

// notifyCreated notifies the watchers of sandboxes that were inserted.
func (s *Store) notifyCreated(rows ...*Row) {
	if s.opts.Watchers == nil {
		return
	}
	for _, r := range rows {
		s.opts.Watchers.Tell(r.TeamID, r.ProjectID, r.ID)
	}
}
