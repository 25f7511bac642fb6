package settings

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/secret"
)

var migrations = []db.Migration{{
	Name: "providers that were set by the API",
	SQL: `CREATE TABLE gateway_providers (
		name       TEXT PRIMARY KEY,
		sealed     BLOB NOT NULL, -- its settings in JSON, with their secrets
		updated_at INTEGER NOT NULL
	)`,
}, {
	Name: "credentials of projects",
	SQL: `CREATE TABLE gateway_credentials (
		team_id    TEXT NOT NULL,
		project_id TEXT NOT NULL,
		provider   TEXT NOT NULL,
		name       TEXT NOT NULL,
		trusted    INTEGER NOT NULL, -- set with an admin token
		sealed     BLOB NOT NULL,    -- all else that was set, in JSON
		updated_at INTEGER NOT NULL,
		PRIMARY KEY (project_id, provider, name)
	)`,
}}

// Store stores the settings made by the API: providers, and credentials of projects. A
// provider's settings are sealed as a whole, since base URLs and headers may contain
// secrets, too.
type Store struct {
	db  *db.DB
	box *secret.Box
}

// NewStore returns the store in a database, and migrates its tables.
func NewStore(ctx context.Context, d *db.DB, box *secret.Box) (*Store, error) {
	return &Store{d, box}, d.Migrate(ctx, "gateway-settings", migrations)
}

const (
	maxProviders = 500
	maxProvider  = 64 << 10 // bytes of a provider's settings
)

func sealedFor(name string) string { return "gateway provider " + name }

// stored is the settings made by the API, with their secrets.
type stored struct {
	providers map[string]*Provider
	own       []storedOwn // sorted by project, provider and name
}

func (s *Store) all(ctx context.Context) (all stored, err error) {
	if all.providers, err = s.providers(ctx); err != nil {
		return all, err
	}
	all.own, err = s.credentials(ctx)
	return all, err
}

func (s *Store) providers(ctx context.Context) (map[string]*Provider, error) {
	rows, err := s.db.Query(ctx, `SELECT name, sealed FROM gateway_providers ORDER BY name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := make(map[string]*Provider)
	for rows.Next() {
		var name string
		var sealed []byte
		if err := rows.Scan(&name, &sealed); err != nil {
			return nil, db.Error(err)
		}
		raw, err := s.box.Open(sealed, sealedFor(name))
		if err != nil {
			return nil, err
		}
		if all[name], err = decodeProvider(raw); err != nil {
			return nil, cay.Errorf(cay.Internal, "the settings of provider %s in the database: %w", name, err)
		}
	}
	return all, db.Error(rows.Err())
}

// put stores a provider's settings as received.
func (s *Store) put(ctx context.Context, name string, raw []byte) error {
	sealed := s.box.Seal(raw, sealedFor(name))
	return s.db.Write(ctx, func(tx *db.Tx) error {
		var n int
		if err := tx.QueryRow(ctx, `SELECT COUNT(*) FROM gateway_providers WHERE name <> ?`, name).Scan(&n); err != nil {
			return err
		}
		if n >= maxProviders {
			return cay.Errorf(cay.QuotaExceeded, "there are %d providers; at most %d can be set by the API", n, maxProviders)
		}
		_, err := tx.Exec(ctx, `INSERT INTO gateway_providers (name, sealed, updated_at) VALUES (?, ?, ?)
			ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed, updated_at = excluded.updated_at`, name, sealed, time.Now().UnixMilli())
		return err
	})
}

func (s *Store) remove(ctx context.Context, name string) error {
	r, err := s.db.Exec(ctx, `DELETE FROM gateway_providers WHERE name = ?`, name)
	if err == nil && r.Rows == 0 {
		return cay.Errorf(cay.NotFound, "provider %q was not set by the API", name)
	}
	return err
}

// decodeProvider reads settings in JSON, with the names they have in the file.
// Errors: invalid.
func decodeProvider(raw []byte) (*Provider, error) {
	p := new(Provider)
	return p, decode(raw, p, "the settings of a provider")
}

// decode decodes one JSON value into v. Errors: invalid, with a message that repeats none
// of the value.
func decode(raw []byte, v any, what string) error {
	if len(raw) > maxProvider {
		return cay.Errorf(cay.Invalid, "%s are larger than 64 KiB", what)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		var typ *json.UnmarshalTypeError
		if errors.As(err, &typ) { // its text may quote a value
			return cay.Errorf(cay.Invalid, "%s is not of the right type", typ.Field)
		}
		var e *cay.Error
		if errors.As(err, &e) {
			return e
		}
		return cay.Errorf(cay.Invalid, "%s: %w", what, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return cay.Errorf(cay.Invalid, "there is something after %s", what)
	}
	return nil
}

// Providers lists all providers, sorted by name, including disabled ones; settings made
// by the API are listed without secrets. Health is not filled in here.
func (l *Live) Providers(ctx context.Context) ([]gateway.Provider, error) {
	stored, err := l.stored(ctx)
	if err != nil {
		return nil, err
	}
	s := l.Current()
	all := []gateway.Provider{}
	for _, p := range s.sorted() {
		i := gateway.Provider{
			Name: p.Name, Kind: p.Kind, Source: s.origins[p.Name], Formats: p.Formats, BaseURL: p.BaseURL, Configured: usable(p), Health: "unknown",
		}
		for _, c := range p.Credentials {
			i.Credentials = append(i.Credentials, c.ID())
		}
		all = append(all, i)
	}
	for _, name := range s.disabled {
		all = append(all, gateway.Provider{Name: name, Source: s.origins[name], Formats: []string{}, Health: "unknown", Disabled: true})
	}
	slices.SortFunc(all, func(a, b gateway.Provider) int { return strings.Compare(a.Name, b.Name) })
	for i := range all {
		if set := stored.providers[all[i].Name]; all[i].Source == FromAPI && set != nil {
			if all[i].Settings, err = json.Marshal(set); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// PutProvider sets a provider; raw is JSON with the members that a provider has in the
// file, with secrets as texts. It replaces the provider's previous settings. Errors:
// invalid; conflict if the file configures the provider; not_supported if there is no
// Store.
func (l *Live) PutProvider(ctx context.Context, name string, raw []byte) error {
	if !catalog.ValidName(name) {
		return cay.Errorf(cay.Invalid, "%.80q is no name of a provider: it has a-z, 0-9, \".\", \"_\" and \"-\"", name)
	}
	p, err := decodeProvider(raw)
	if err != nil {
		return err
	}
	return l.edit(ctx, name, func(stored *stored) { stored.providers[name] = p }, func() error { return l.o.Store.put(ctx, name, raw) })
}

// DeleteProvider deletes the settings that the API made for a provider. Errors:
// not_found; conflict if the file configures the provider; invalid if other settings
// depend on the provider.
func (l *Live) DeleteProvider(ctx context.Context, name string) error {
	return l.edit(ctx, name, func(stored *stored) { delete(stored.providers, name) }, func() error { return l.o.Store.remove(ctx, name) })
}

// edit changes a provider's stored settings in three steps: it edits a copy of the stored
// values and builds a Snapshot from the copy, then writes to the store, and then puts the
// Snapshot in place.
func (l *Live) edit(ctx context.Context, name string, change func(*stored), keep func() error) error {
	if l.o.Store == nil {
		return cay.Errorf(cay.NotSupported, "this gateway has no database for settings")
	}
	l.change.Lock()
	defer l.change.Unlock()
	if l.Current().origins[name] == FromFile {
		return cay.Errorf(cay.Conflict, "provider %s is in the file of settings", name).WithHint("change it in %s", l.o.File)
	}
	all, err := l.stored(ctx)
	if err != nil {
		return err
	}
	change(&all)
	s, err := l.buildLocked(l.src, all)
	if err != nil {
		return err
	}
	if err := keep(); err != nil {
		return err
	}
	l.log.InfoContext(ctx, "what the API sets of a provider has changed", "provider", name)
	l.placeLocked(s)
	return nil
}
