package settings

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

// This file holds the credentials of projects that are set by the API.

// Credentials lists the credentials of projects, sorted by project, provider and name:
// credentials of team in the database, and all credentials in the file, because the file
// does not say which team a project belongs to.
func (l *Live) Credentials(ctx context.Context, team string) ([]gateway.Credential, error) {
	stored, err := l.stored(ctx)
	if err != nil {
		return nil, err
	}
	s := l.Current()
	all := []gateway.Credential{}
	for _, o := range s.own {
		if o.source == FromFile {
			all = append(all, o.about...)
		}
	}
	for i := range stored.own {
		if o := &stored.own[i]; o.team == team {
			all = append(all, o.told(s))
		}
	}
	slices.SortStableFunc(all, func(a, b gateway.Credential) int {
		return slices.Compare([]string{a.ProjectID, a.Provider, a.Name}, []string{b.ProjectID, b.Provider, b.Name})
	})
	return all, nil
}

func (o *storedOwn) told(s *Snapshot) gateway.Credential {
	c := gateway.Credential{CredentialID: o.id, Source: FromAPI, Fallback: o.own.Fallback, ZeroRetention: o.own.ZeroRetention, UpdatedAt: &o.at}
	if err := s.problems[o.id]; err != nil {
		c.Problem = err.Error()
	}
	return c
}

// PutCredential sets a credential of a team's project; raw is JSON of
// gateway.CredentialParams. It replaces the whole previous credential. trusted says that
// the operator makes the call. Errors: invalid; not_found if there is no such provider;
// conflict if the file configures the project's credentials for the provider;
// permission_denied for servers at an address of the operator's, unless trusted;
// quota_exceeded; not_supported if there is no Store.
func (l *Live) PutCredential(ctx context.Context, team string, id gateway.CredentialID, raw []byte, trusted bool) (*gateway.Credential, error) {
	if !catalog.ValidName(id.Name) {
		return nil, cay.Errorf(cay.Invalid, "%.80q is no name of a credential: it has a-z, 0-9, \".\", \"_\" and \"-\"", id.Name)
	}
	o := storedOwn{id: id, team: team, trusted: trusted, at: time.Now().UTC().Truncate(time.Millisecond)}
	if err := decode(raw, &o.own, "the settings of a credential"); err != nil {
		return nil, err
	}
	err := l.editOwn(ctx, id, func(stored *stored) error {
		if i := stored.index(id); i < 0 {
			stored.own = append(stored.own, o)
			slices.SortFunc(stored.own, func(a, b storedOwn) int {
				return slices.Compare([]string{a.id.ProjectID, a.id.Provider, a.id.Name}, []string{b.id.ProjectID, b.id.Provider, b.id.Name})
			})
		} else {
			stored.own[i] = o
		}
		return nil
	}, func(s *Snapshot) error {
		if err := s.problems[id]; err != nil {
			return cay.Errorf(cay.CodeOf(err), "%s", err) // includes the path of the invalid member
		}
		return l.o.Store.putCredential(ctx, &o, raw)
	})
	if err != nil {
		return nil, err
	}
	told := o.told(l.Current())
	return &told, nil
}

// DeleteCredential deletes a project's credential. Errors: not_found; conflict if the
// credential is from the file; not_supported if there is no Store.
func (l *Live) DeleteCredential(ctx context.Context, team string, id gateway.CredentialID) error {
	return l.editOwn(ctx, id, func(stored *stored) error {
		i := stored.index(id)
		if i < 0 || stored.own[i].team != team {
			return cay.Errorf(cay.NotFound, "project %q has no credential %q for %s", id.ProjectID, id.Name, id.Provider)
		}
		stored.own = slices.Delete(stored.own, i, i+1)
		return nil
	}, func(*Snapshot) error { return l.o.Store.removeCredential(ctx, id) })
}

func (s *stored) index(id gateway.CredentialID) int {
	return slices.IndexFunc(s.own, func(o storedOwn) bool { return o.id == id })
}

// editOwn changes a project's stored credentials in three steps: it edits a copy of the
// stored values and builds a Snapshot from the copy, then writes to the store, and then
// puts the Snapshot in place.
func (l *Live) editOwn(ctx context.Context, id gateway.CredentialID, change func(*stored) error, keep func(*Snapshot) error) error {
	if l.o.Store == nil {
		return cay.Errorf(cay.NotSupported, "this gateway has no database for settings")
	}
	l.change.Lock()
	defer l.change.Unlock()
	if o := l.Current().own[ownKey{id.ProjectID, id.Provider}]; o != nil && o.source == FromFile {
		return cay.Errorf(cay.Conflict, "the credentials of project %s for %s are in the file of settings", id.ProjectID, id.Provider).
			WithHint("change them in %s", l.o.File)
	}
	all, err := l.stored(ctx)
	if err != nil {
		return err
	}
	if err := change(&all); err != nil {
		return err
	}
	s, err := l.buildLocked(l.src, all)
	if err != nil {
		return err
	}
	if err := keep(s); err != nil {
		return err
	}
	l.log.InfoContext(ctx, "credentials of a project have changed", "project", id.ProjectID, "provider", id.Provider, "credential", id.Name)
	l.placeLocked(s)
	return nil
}
