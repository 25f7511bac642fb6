package sandboxd

import (
	"context"
	"database/sql"
	"errors"
)

// changing is called before a sandbox is changed in the database, and returns what
// tells those who watch that it was, to be called, deferred, when that is committed.
// Telling them of a change that was not made does no harm: they see what there is.
func (s store) changing(ctx context.Context, id string) (changed func()) {
	if s.changes == nil {
		return func() {}
	}
	if !s.changes.any() {
		return func() {
			if s.changes.any() { // they came in between, and may have read a list already
				s.changes.miss()
			}
		}
	}
	var sc scope
	err := s.db.QueryRow(ctx, `SELECT team_id, project_id FROM sandboxes WHERE id = ?`, id).Scan(&sc.team, &sc.project)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return func() {}
	case err != nil:
		return s.changes.miss
	}
	return func() { s.changes.tell(sc, id) }
}

// made tells those who watch of sandboxes that are in the database now.
func (s store) made(rows ...*row) {
	if s.changes == nil {
		return
	}
	for _, r := range rows {
		s.changes.tell(scope{r.TeamID, r.ProjectID}, r.ID)
	}
}
