package store

import (
	"context"
	"database/sql"
	"errors"
)

// Watchers is told of sandboxes that change. *feed.Hub is one.
type Watchers interface {
	Any() bool
	Tell(team, project, id string)
	Miss() // something that is not known
}

// changing is called before a sandbox is changed in the database, and returns what
// tells those who watch that it was, to be called, deferred, when that is committed.
// Telling them of a change that was not made does no harm: they see what there is.
func (s *Store) changing(ctx context.Context, id string) (changed func()) {
	if s.opts.Watchers == nil {
		return func() {}
	}
	if !s.opts.Watchers.Any() {
		return func() {
			if s.opts.Watchers.Any() { // they came in between, and may have read a list already
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

// made tells those who watch of sandboxes that are in the database now.
func (s *Store) made(rows ...*Row) {
	if s.opts.Watchers == nil {
		return
	}
	for _, r := range rows {
		s.opts.Watchers.Tell(r.TeamID, r.ProjectID, r.ID)
	}
}
