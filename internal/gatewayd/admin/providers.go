package admin

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
)

// Configuring is the part of Service for providers and credentials.
type Configuring interface {
	// ListProviders lists all providers, sorted by name. Tokens other than admin tokens
	// do not see addresses, credentials and settings.
	ListProviders(ctx context.Context) ([]gateway.Provider, error)
	// GetProvider returns a provider.
	GetProvider(ctx context.Context, name string) (*gateway.Provider, error)
	// SetProvider configures a provider, which may have any address; therefore it
	// requires an admin token. Calls that begin after SetProvider has returned see the
	// change. Errors: invalid, conflict (the file configures it), permission_denied,
	// quota_exceeded, not_supported.
	SetProvider(ctx context.Context, name string, p gateway.ProviderParams) (*gateway.Provider, error)
	// DeleteProvider deletes the configuration that SetProvider made. Errors: conflict,
	// invalid (the file needs it), permission_denied, not_supported.
	DeleteProvider(ctx context.Context, name string) error

	// ListCredentials lists the credentials of the projects that the token can access.
	ListCredentials(ctx context.Context, f gateway.CredentialFilter) ([]gateway.Credential, error)
	// SetCredential sets a project's own credential. Errors: invalid, not_found (the
	// project, the provider), conflict (the file has the project's credential),
	// permission_denied (a server at the operator's address, without an admin token),
	// quota_exceeded, not_supported.
	SetCredential(ctx context.Context, id gateway.CredentialID, p gateway.CredentialParams) (*gateway.Credential, error)
	// DeleteCredential deletes a credential. Errors: conflict, not_supported.
	DeleteCredential(ctx context.Context, id gateway.CredentialID) error
}

// Configuration holds the gateway's configuration; *settings.Live implements it. It does
// not check permissions.
type Configuration interface {
	// Providers lists all providers, sorted by name, without secrets; Health is not set.
	Providers(ctx context.Context) ([]gateway.Provider, error)
	// PutProvider sets a provider; raw is the JSON of gateway.ProviderParams.
	PutProvider(ctx context.Context, name string, raw []byte) error
	DeleteProvider(ctx context.Context, name string) error
	// Credentials lists the credentials set for a team's projects, and all credentials in
	// the file.
	Credentials(ctx context.Context, team string) ([]gateway.Credential, error)
	// PutCredential sets a credential of a team's project; raw is the JSON of
	// gateway.CredentialParams. trusted says that the operator makes the call.
	PutCredential(ctx context.Context, team string, id gateway.CredentialID, raw []byte, trusted bool) (*gateway.Credential, error)
	DeleteCredential(ctx context.Context, team string, id gateway.CredentialID) error
}

func (m *Manager) configuration() (Configuration, error) {
	if m.Providers == nil {
		return nil, cay.Errorf(cay.NotSupported, "this daemon's providers cannot be configured")
	}
	return m.Providers, nil
}

func (m *Manager) ListProviders(ctx context.Context) ([]gateway.Provider, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.configuration()
	if err != nil {
		return nil, err
	}
	all, err := c.Providers(ctx)
	if err != nil {
		return nil, err
	}
	health := m.health()
	for i := range all {
		p := &all[i]
		if h := health[p.Name]; h != "" {
			p.Health = h
		}
		if !who.Admin {
			p.BaseURL, p.Credentials, p.Settings = "", nil, nil
		}
	}
	return all, nil
}

// states are the states of endpoints, from best to worst.
var states = []string{"unknown", "ok", "degraded", "open"}

// health returns the state of each provider's worst endpoint.
func (m *Manager) health() map[string]string {
	all := make(map[string]string)
	if m.Models == nil {
		return all
	}
	for _, model := range m.Models.Models() {
		for i := range model.Endpoints {
			ep := &model.Endpoints[i]
			if slices.Index(states, ep.Health.State) > slices.Index(states, all[ep.Provider]) {
				all[ep.Provider] = ep.Health.State
			}
		}
	}
	return all
}

func (m *Manager) GetProvider(ctx context.Context, name string) (*gateway.Provider, error) {
	all, err := m.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(p gateway.Provider) bool { return p.Name == name })
	if i < 0 {
		return nil, cay.Errorf(cay.NotFound, "provider %q not found", name)
	}
	return &all[i], nil
}

func (m *Manager) SetProvider(ctx context.Context, name string, p gateway.ProviderParams) (*gateway.Provider, error) {
	c, err := m.changesProviders(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	if err := c.PutProvider(ctx, name, raw); err != nil {
		return nil, err
	}
	return m.GetProvider(ctx, name)
}

func (m *Manager) DeleteProvider(ctx context.Context, name string) error {
	c, err := m.changesProviders(ctx)
	if err != nil {
		return err
	}
	return c.DeleteProvider(ctx, name)
}

// changesProviders returns the configuration, if the principal may change providers.
// Changing a provider lets the principal make the gateway call any address with any
// headers.
func (m *Manager) changesProviders(ctx context.Context) (Configuration, error) {
	if _, err := principal(ctx); err != nil {
		return nil, err
	}
	if err := api.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	return m.configuration()
}

func (m *Manager) ListCredentials(ctx context.Context, f gateway.CredentialFilter) ([]gateway.Credential, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.configuration()
	if err != nil {
		return nil, err
	}
	all, err := c.Credentials(ctx, who.TeamID)
	if err != nil {
		return nil, err
	}
	ours := make(map[string]bool) // projects in the file
	return slices.DeleteFunc(all, func(c gateway.Credential) bool {
		switch {
		case who.ProjectID != "" && c.ProjectID != who.ProjectID, f.ProjectID != "" && c.ProjectID != f.ProjectID, f.Provider != "" && c.Provider != f.Provider:
			return true
		case c.Source != gateway.FromFile || m.Projects == nil:
			return false
		}
		is, known := ours[c.ProjectID]
		if !known {
			is = m.Projects.CheckProject(ctx, who.TeamID, c.ProjectID) == nil
			ours[c.ProjectID] = is
		}
		return !is
	}), nil
}

func (m *Manager) SetCredential(ctx context.Context, id gateway.CredentialID, p gateway.CredentialParams) (*gateway.Credential, error) {
	who, err := principal(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.configuration()
	if err != nil {
		return nil, err
	}
	if id.ProjectID, err = m.project(ctx, who, id.ProjectID); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return c.PutCredential(ctx, who.TeamID, id, raw, who.Admin)
}

func (m *Manager) DeleteCredential(ctx context.Context, id gateway.CredentialID) error {
	who, err := principal(ctx)
	if err != nil {
		return err
	}
	c, err := m.configuration()
	if err != nil {
		return err
	}
	switch { // the project may be deleted while its credential remains
	case id.ProjectID == "" && who.ProjectID != "":
		id.ProjectID = who.ProjectID
	case id.ProjectID == "" && who.TeamID == account.DefaultTeam:
		id.ProjectID = account.DefaultProject
	case who.ProjectID != "" && id.ProjectID != who.ProjectID:
		return cay.Errorf(cay.NotFound, "project %q not found", id.ProjectID)
	}
	return c.DeleteCredential(ctx, who.TeamID, id)
}
