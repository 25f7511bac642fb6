package gateway

import (
	"context"
	"encoding/json"
	"net/url"
	"time"

	"github.com/cayhq/cay/internal/wire"
)

// Provider is a provider that requests can go to. Tokens other than admin tokens see
// only the fields up to Disabled.
type Provider struct {
	Name    string   `json:"name"`
	Kind    string   `json:"kind,omitempty"` // its name in the table of known ones
	Source  Source   `json:"source"`
	Formats []string `json:"formats"`
	// Configured says that requests without a credential of their own can go to the
	// provider.
	Configured bool `json:"configured"`
	// Health is the recent health of the provider's worst endpoint: ok, degraded,
	// open (not used for now), or unknown.
	Health string `json:"health"`
	// Disabled providers are only listed: no request goes to them.
	Disabled bool `json:"disabled,omitempty"`

	BaseURL string `json:"base_url,omitempty"`
	// Credentials are the names of the provider's credentials.
	Credentials []string `json:"credentials,omitempty"`
	// Settings are the settings made by the API: the members of ProviderParams, with
	// {"set": true} in place of secrets.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Source is where a provider or a credential is configured.
type Source string

// The sources. Each source overrides the sources after it. Known providers are listed
// for requests and projects that bring their own credentials.
const (
	FromFile        Source = "file"
	FromAPI         Source = "api"
	FromEnvironment Source = "environment"
	FromTable       Source = "known"
)

// ProviderParams are the settings of a provider, as in the file of settings, except
// for secrets, which are given literally: they cannot name a variable or a file of
// the daemon. The provider's name must be that of a known kind, unless Kind, or
// Format and BaseURL, are set.
type ProviderParams struct {
	Kind     string   `json:"kind,omitempty"`
	Disabled bool     `json:"disabled,omitempty"`
	Format   []string `json:"format,omitempty"`   // chatcompletions, responses, messages, gemini, converse; to prefer first
	BaseURL  string   `json:"base_url,omitempty"` // may be any address, also an internal one

	Key  string        `json:"key,omitempty"`
	Keys []ProviderKey `json:"keys,omitempty"` // tried in order, after Key
	// AWS and ServiceAccount are the credentials of Bedrock, besides keys, and of
	// Vertex: the JSON of the service account's key file.
	AWS            *AWSKeys `json:"aws,omitempty"`
	ServiceAccount string   `json:"service_account,omitempty"`
	// Auth selects credentials that the cloud gives to the daemon: aws-default,
	// google-default or azure-default, without a BaseURL. Profile is a profile in
	// AWS's files.
	Auth    string `json:"auth,omitempty"`
	Profile string `json:"profile,omitempty"`

	// Region is for Bedrock; Resource, APIVersion and Deployments for Azure; Project
	// and Location for Vertex.
	Region      string `json:"region,omitempty"`
	Resource    string `json:"resource,omitempty"`
	APIVersion  string `json:"api_version,omitempty"`
	Deployments bool   `json:"deployments,omitempty"`
	Project     string `json:"project,omitempty"`
	Location    string `json:"location,omitempty"`

	Headers map[string]string `json:"headers,omitempty"` // kept secret, too
	Quirks  []string          `json:"quirks,omitempty"`
	Paths   ProviderPaths     `json:"paths,omitzero"`
	// FirstByte is how long an answer may take to begin (default 5 min), Idle how
	// long it may pause (default 2 min).
	FirstByte Duration `json:"first_byte,omitempty"`
	Idle      Duration `json:"idle,omitempty"`
	// OnDisconnect says what the gateway does with a call without streaming whose
	// client leaves: cancel, which is the default, or finish, so that the cost of the
	// call is known.
	OnDisconnect string `json:"on_disconnect,omitempty"`

	// The terms of the contract with the provider, and its country; nil means the
	// values of the table of providers.
	ZeroRetention *bool  `json:"zero_retention,omitempty"`
	NoTraining    *bool  `json:"no_training,omitempty"`
	Country       string `json:"country,omitempty"` // ISO 3166-1 alpha-2
	SelfHosted    *bool  `json:"self_hosted,omitempty"`
	// ForeignIDs is the rule for requests that name answers and files which no
	// request of their project has made: allow, or refuse, which is the default.
	ForeignIDs string            `json:"foreign_ids,omitempty"`
	Unlisted   *bool             `json:"unlisted,omitempty"` // models no catalogue knows may be called
	Discover   *bool             `json:"discover,omitempty"` // ask the provider for its models
	Models     map[string]string `json:"models,omitempty"`   // its names of models, by ours
	Price      *ListPrice        `json:"price,omitempty"`    // for models without a price of their own
}

// ProviderKey is a key of a provider that has several.
type ProviderKey struct {
	Name          string `json:"name,omitempty"` // empty: key-1, key-2...
	Key           string `json:"key,omitempty"`
	ZeroRetention bool   `json:"zero_retention,omitempty"` // the key's account has an agreement that nothing is kept
}

// AWSKeys are keys of Amazon Web Services.
type AWSKeys struct {
	AccessKeyID     string `json:"access_key_id,omitempty"`
	SecretAccessKey string `json:"secret_access_key,omitempty"`
	SessionToken    string `json:"session_token,omitempty"`
}

// ProviderPaths are a provider's paths for other kinds of models than language
// models, below its base URL: a path, an address, or none.
type ProviderPaths struct {
	Models        string `json:"models,omitempty"`
	Embeddings    string `json:"embeddings,omitempty"`
	Images        string `json:"images,omitempty"`
	Rerank        string `json:"rerank,omitempty"`
	Speech        string `json:"speech,omitempty"`
	Transcription string `json:"transcription,omitempty"`
}

// ListPrice is a Price as people write it: dollars, as decimal numbers, per million
// tokens, and per request, image and search. Input and Output are required.
type ListPrice struct {
	Input        string `json:"input"`
	Output       string `json:"output"`
	CacheRead    string `json:"cache_read,omitempty"`
	CacheWrite   string `json:"cache_write,omitempty"`
	CacheWrite1h string `json:"cache_write_1h,omitempty"`
	Reasoning    string `json:"reasoning,omitempty"`
	Request      string `json:"request,omitempty"`
	Image        string `json:"image,omitempty"`
	// Images are prices of an image by quality and size; Character and Second are
	// prices of speech and of transcription.
	Images    map[string]string `json:"images,omitempty"`
	Character string            `json:"character,omitempty"`
	Second    string            `json:"second,omitempty"`
	Search    string            `json:"search,omitempty"`
	// Tools are prices of a call of tools that the provider runs, by the tools'
	// types.
	Tools        map[string]string `json:"tools,omitempty"`
	Tiers        []ListPriceTier   `json:"tiers,omitempty"`
	ServiceTiers map[string]int    `json:"service_tiers,omitempty"` // percent
}

// ListPriceTier is a PriceTier in the form that people write.
type ListPriceTier struct {
	Above      int64  `json:"above"`
	Input      string `json:"input"`
	Output     string `json:"output"`
	CacheRead  string `json:"cache_read,omitempty"`
	CacheWrite string `json:"cache_write,omitempty"`
}

// Credential is a project's own credential at a provider, used instead of the
// operator's. It does not contain the secret.
type Credential struct {
	CredentialID
	Source Source `json:"source"` // file or api
	// Fallback says that the operator's credentials are tried after this one.
	Fallback      bool `json:"fallback,omitempty"`
	ZeroRetention bool `json:"zero_retention,omitempty"`
	// Problem is why the credential is not used, such as that the provider is gone;
	// empty if it is used.
	Problem   string     `json:"problem,omitempty"`
	UpdatedAt *time.Time `json:"updated_at,omitempty"` // nil for those of the file
}

// CredentialID identifies a credential by its project and provider.
type CredentialID struct {
	ProjectID string `json:"project_id"`
	Provider  string `json:"provider"`
	Name      string `json:"name"` // a-z, 0-9, ".", "_" and "-"; they are tried in its order
}

// CredentialParams are a project's credential at a provider: one of Key, AWS and
// ServiceAccount.
type CredentialParams struct {
	Key            string   `json:"key,omitempty"`
	AWS            *AWSKeys `json:"aws,omitempty"`
	ServiceAccount string   `json:"service_account,omitempty"` // the JSON of the key file

	// Region is for Bedrock, Resource for Azure, Project and Location for Vertex: the
	// place of the account, if it differs from the provider's.
	Region   string `json:"region,omitempty"`
	Resource string `json:"resource,omitempty"`
	Project  string `json:"project,omitempty"`
	Location string `json:"location,omitempty"`

	Models        map[string]string `json:"models,omitempty"`         // the account's names of models, by ours
	ZeroRetention bool              `json:"zero_retention,omitempty"` // the account has agreed that nothing is kept
	// Fallback lets the gateway try the operator's credentials if this one is refused
	// or used up. If a provider has several credentials of the project, all must set
	// it.
	Fallback bool `json:"fallback,omitempty"`
}

// CredentialFilter selects credentials of projects. Zero values select all.
type CredentialFilter struct{ ProjectID, Provider string }

// ListProviders lists the providers, sorted by name.
func (c *Client) ListProviders(ctx context.Context) ([]Provider, error) {
	page, err := call[Page[Provider]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/providers"})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

// GetProvider returns a provider.
func (c *Client) GetProvider(ctx context.Context, name string) (*Provider, error) {
	return call[Provider](ctx, c, wire.Request{Method: "GET", Path: path("providers", name)})
}

// SetProvider configures a provider, and replaces all of its former settings;
// requests that begin after SetProvider returns see the change. Admin tokens only.
// Errors: invalid, conflict (the file of settings has the provider),
// permission_denied, quota_exceeded (500 providers), not_supported.
func (c *Client) SetProvider(ctx context.Context, name string, p ProviderParams) (*Provider, error) {
	return call[Provider](ctx, c, wire.Request{Method: "PUT", Path: path("providers", name), JSON: p, Repeat: true})
}

// DeleteProvider deletes the settings of a provider that were made by the API; the
// provider then has the settings of the environment, if there are any. Admin tokens
// only. Errors: conflict (the file of settings has the provider), invalid (something
// in the file needs it), permission_denied.
func (c *Client) DeleteProvider(ctx context.Context, name string) error {
	return c.do(ctx, wire.Request{Method: "DELETE", Path: path("providers", name)})
}

// ListCredentials lists the credentials of projects, sorted by project, provider and
// name.
func (c *Client) ListCredentials(ctx context.Context, f CredentialFilter) ([]Credential, error) {
	q := url.Values{}
	set(q, "project_id", f.ProjectID)
	set(q, "provider", f.Provider)
	page, err := call[Page[Credential]](ctx, c, wire.Request{Method: "GET", Path: "/v1/gateway/credentials", Query: q})
	if err != nil {
		return nil, err
	}
	return page.Items, nil
}

// SetCredential gives a project a credential of its own at a provider, or replaces
// it; requests that begin after SetCredential returns use it. An empty ProjectID is
// the token's project, or the default one. The API never returns the secret. Errors:
// invalid, not_found (the project or the provider), conflict (the file has the
// project's credentials at the provider), permission_denied (the provider is a server
// of the operator's own, and the token no admin token), quota_exceeded (100 of a
// project, 10,000 in total), not_supported.
func (c *Client) SetCredential(ctx context.Context, id CredentialID, p CredentialParams) (*Credential, error) {
	return call[Credential](ctx, c, wire.Request{Method: "PUT", Path: id.path(), Query: id.query(), JSON: p, Repeat: true})
}

// DeleteCredential deletes a project's credential. Errors: conflict (it is in the
// file).
func (c *Client) DeleteCredential(ctx context.Context, id CredentialID) error {
	return c.do(ctx, wire.Request{Method: "DELETE", Path: id.path(), Query: id.query()})
}

func (id CredentialID) path() string {
	return path("credentials", id.Provider) + "/" + segment(id.Name)
}

func (id CredentialID) query() url.Values {
	q := url.Values{}
	set(q, "project_id", id.ProjectID)
	return q
}
