package settings

import (
	"context"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
)

const (
	maxOwn    = 10_000
	maxOwnOne = 100 // per project
)

// storedOwn is a project's credential that was set by the API.
type storedOwn struct {
	id      gateway.CredentialID
	team    string
	trusted bool
	at      time.Time
	own     Own
}

func sealedForOwn(team string, id gateway.CredentialID, trusted bool) string {
	by := "a project"
	if trusted {
		by = "an admin"
	}
	return strings.Join([]string{"gateway credential", team, id.ProjectID, id.Provider, id.Name, by}, "\x00")
}

func (s *Store) credentials(ctx context.Context) ([]storedOwn, error) {
	rows, err := s.db.Query(ctx, `SELECT team_id, project_id, provider, name, trusted, sealed, updated_at FROM gateway_credentials ORDER BY project_id, provider, name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []storedOwn
	for rows.Next() {
		var o storedOwn
		var sealed []byte
		var at int64
		if err := rows.Scan(&o.team, &o.id.ProjectID, &o.id.Provider, &o.id.Name, &o.trusted, &sealed, &at); err != nil {
			return nil, db.Error(err)
		}
		raw, err := s.box.Open(sealed, sealedForOwn(o.team, o.id, o.trusted))
		if err != nil {
			return nil, err
		}
		if err := decode(raw, &o.own, "the settings of a credential"); err != nil {
			return nil, cay.Errorf(cay.Internal, "the credential %s of %s for %s in the database: %w", o.id.Name, o.id.ProjectID, o.id.Provider, err)
		}
		o.at = time.UnixMilli(at).UTC()
		all = append(all, o)
	}
	return all, db.Error(rows.Err())
}

func (s *Store) putCredential(ctx context.Context, o *storedOwn, raw []byte) error {
	sealed := s.box.Seal(raw, sealedForOwn(o.team, o.id, o.trusted))
	return s.db.Write(ctx, func(tx *db.Tx) error {
		var n, ofProject int
		err := tx.QueryRow(ctx, `SELECT COUNT(*), COUNT(CASE WHEN project_id = ? THEN 1 END) FROM gateway_credentials
			WHERE NOT (project_id = ? AND provider = ? AND name = ?)`, o.id.ProjectID, o.id.ProjectID, o.id.Provider, o.id.Name).Scan(&n, &ofProject)
		switch {
		case err != nil:
			return err
		case ofProject >= maxOwnOne:
			return cay.Errorf(cay.QuotaExceeded, "project %q has %d credentials; it can have at most %d", o.id.ProjectID, ofProject, maxOwnOne)
		case n >= maxOwn:
			return cay.Errorf(cay.QuotaExceeded, "projects have %d credentials; they can have at most %d", n, maxOwn)
		}
		_, err = tx.Exec(ctx, `INSERT INTO gateway_credentials (team_id, project_id, provider, name, trusted, sealed, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (project_id, provider, name) DO UPDATE SET team_id = excluded.team_id, trusted = excluded.trusted, sealed = excluded.sealed, updated_at = excluded.updated_at`,
			o.team, o.id.ProjectID, o.id.Provider, o.id.Name, o.trusted, sealed, o.at.UnixMilli())
		return err
	})
}

func (s *Store) removeCredential(ctx context.Context, id gateway.CredentialID) error {
	_, err := s.db.Exec(ctx, `DELETE FROM gateway_credentials WHERE project_id = ? AND provider = ? AND name = ?`, id.ProjectID, id.Provider, id.Name)
	return err
}
