package gatewayd

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/api"
)

// Configuring is the part of Service that is about providers and credentials.
type Configuring interface {
	// ListProviders lists the providers there are, sorted by name. Tokens that are no
	// admin tokens see no addresses, credentials and settings.
	ListProviders(ctx context.Context) ([]gateway.Provider, error)
	// GetProvider returns one of them.
	GetProvider(ctx context.Context, name string) (*gateway.Provider, error)
	// SetProvider configures a provider, at whatever address: that is why it takes an
	// admin token. Calls that begin after it returns see the change. Errors: invalid,
	// conflict (the file has it), permission_denied, quota_exceeded, not_supported.
	SetProvider(ctx context.Context, name string, p gateway.ProviderParams) (*gateway.Provider, error)
	// DeleteProvider takes back what SetProvider set. Errors: conflict, invalid (the
	// file needs it), permission_denied, not_supported.
	DeleteProvider(ctx context.Context, name string) error

	// ListCredentials lists the credentials of the projects that the token reaches.
	ListCredentials(ctx context.Context, f gateway.CredentialFilter) ([]gateway.Credential, error)
	// SetCredential gives a project a credential of its own. Errors: invalid, not_found
	// (the project, the provider), conflict (the file has the project's),
	// permission_denied (a server of the operator's own, without an admin token),
	// quota_exceeded, not_supported.
	SetCredential(ctx context.Context, id gateway.CredentialID, p gateway.CredentialParams) (*gateway.Credential, error)
	// DeleteCredential takes it away. Errors: conflict, not_supported.
	DeleteCredential(ctx context.Context, id gateway.CredentialID) error
}

// Configuration is what is configured of the gateway; *settings.Live implements it.
// It knows nothing of who may do what.
type Configuration interface {
	// Providers tells of all providers, sorted by name, without secrets; Health is
	// unknown.
	Providers(ctx context.Context) ([]gateway.Provider, error)
	// PutProvider sets a provider; raw is JSON of gateway.ProviderParams.
	PutProvider(ctx context.Context, name string, raw []byte) error
	DeleteProvider(ctx context.Context, name string) error
	// Credentials tells of what was set for the projects of a team, and of all
	// projects in the file.
	Credentials(ctx context.Context, team string) ([]gateway.Credential, error)
	// PutCredential sets one for a project of a team; raw is JSON of
	// gateway.CredentialParams. trusted says that the operator does.
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

// states of endpoints, from the best to the worst.
var states = []string{"unknown", "ok", "degraded", "open"}

// health returns how the worst endpoint of each provider does.
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

// changesProviders returns the configuration for who may change providers: who does
// has the gateway call any address, with any headers.
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
	switch { // the project may be gone, its credential is not
	case id.ProjectID == "" && who.ProjectID != "":
		id.ProjectID = who.ProjectID
	case id.ProjectID == "" && who.TeamID == account.DefaultTeam:
		id.ProjectID = account.DefaultProject
	case who.ProjectID != "" && id.ProjectID != who.ProjectID:
		return cay.Errorf(cay.NotFound, "project %q not found", id.ProjectID)
	}
	return c.DeleteCredential(ctx, who.TeamID, id)
}
