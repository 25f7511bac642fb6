// Package provider knows the providers that calls can go to: their addresses, wire
// formats and authentication.
package provider

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Provider is a configured provider. It is immutable; a new configuration creates new
// Providers.
type Provider struct {
	// Name identifies the provider in model endpoints, order and only: openai, groq, or a
	// name that the operator chose.
	Name string
	// Kind is the provider's name in the table of known providers, empty if it is not in
	// the table.
	Kind string
	// Formats are the provider's wire formats, the preferred one first: names of the
	// packages chatcompletions, responses, messages, gemini, converse, and scripted.
	Formats []string
	// BaseURL ends without a slash: https://api.openai.com/v1.
	BaseURL string
	// Header is added to every request.
	Header http.Header
	Quirks map[string]bool // see hub.Target
	// Credentials are tried in order. An empty list means that no credential is needed (a
	// local server).
	Credentials []Credential
	// NeedsCredential says that the provider cannot be used without a credential.
	NeedsCredential bool

	// OperatorOnly says that requests may not bring credentials: the server is not the
	// table's, so it may accept any credential, or Header already authenticates.
	OperatorOnly bool

	// FirstByte is the timeout for the first byte of an answer, Idle the longest pause
	// within an answer.
	FirstByte, Idle time.Duration
	// Finish says that unstreamed calls continue after the client has left, so that their
	// cost becomes known; otherwise the call is canceled with its client.
	Finish bool

	Privacy
	Paths
	// EmbedBatch is the maximum number of texts per embeddings call; 0 means 2048,
	// OpenAI's limit.
	EmbedBatch int

	// ForeignIDs lets requests name objects that the provider keeps under an id (answers,
	// files) and that no request of the same project created.
	ForeignIDs bool

	// SelfHosted says that the provider runs on the operator's machines: its models cost
	// nothing unless a price is set, and it is asked for its models.
	SelfHosted bool
	// Unlisted says that models missing from the catalogue may be called as provider name
	// plus the provider's model name, for example ollama/llama3.2. Their price is unknown
	// unless SelfHosted, so budgets either refuse them or do not count them.
	Unlisted bool
	// Price is the price of models that are not in the catalogue; nil means 0 if
	// SelfHosted, else unknown.
	Price *gateway.Price
}

// Privacy is what becomes of prompts at a provider, and where.
type Privacy struct {
	ZeroRetention, NoTraining bool
	Country                   string // ISO 3166-1 alpha-2 code of the headquarters
	Region                    string
}

// Paths are the paths of calls below BaseURL, empty if unsupported. A path may also be an
// absolute URL: see Provider.URL.
type Paths struct {
	Embeddings, Images, Rerank, Speech, Transcription string
	// Models is the path of the provider's list of models, for checks and for discovery.
	Models string
}

// URL returns the address of one of the provider's paths.
func (p *Provider) URL(path string) string {
	if strings.HasPrefix(path, "https://") || strings.HasPrefix(path, "http://") {
		return path
	}
	return p.BaseURL + path
}

// Credential authenticates requests to a provider. Its String never shows a secret.
type Credential interface {
	// ID distinguishes the credentials of a provider, in records and cool-downs.
	ID() string
	// BYOK reports whether a caller, not the operator, brought the credential.
	BYOK() bool
	// Authorize adds the authentication to r. body is the complete request body.
	// Authorize may first fetch an access token from another server; it caches the token
	// until the token expires. It may redirect r to another host or path of the same
	// provider (a region, a project) by setting a new URL in r. Errors: *hub.Error.
	Authorize(ctx context.Context, r *http.Request, body []byte) error
}

// Set holds all providers of a configuration.
type Set struct{ byName map[string]*Provider }

// NewSet returns the set of the given providers, whose names must differ.
func NewSet(all ...*Provider) *Set {
	s := &Set{make(map[string]*Provider, len(all))}
	for _, p := range all {
		s.byName[p.Name] = p
	}
	return s
}

// Get returns the provider with a name, nil if there is none.
func (s *Set) Get(name string) *Provider { return s.byName[name] }

// Names returns all names, in no particular order.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.byName))
	for name := range s.byName {
		names = append(names, name)
	}
	return names
}

// Target returns the hub.Target of a call to a model.
func (p *Provider) Target(model string, maxOutput int64) *hub.Target {
	return &hub.Target{Provider: p.Name, Model: model, MaxOutput: maxOutput, Quirks: p.Quirks}
}
