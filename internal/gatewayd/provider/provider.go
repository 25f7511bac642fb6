// Package provider knows the providers calls can go to: where they are, which
// wire format they speak, and how they are convinced that we may.
package provider

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Provider is one that is configured. It does not change; a new configuration has
// new ones.
type Provider struct {
	// Name is what it is called in model endpoints, order and only: openai, groq,
	// or a name of the operator's own.
	Name string
	// Kind is the name it has in the table of known providers, empty if it is none
	// of them.
	Kind string
	// Formats are the wire formats it speaks, the one to prefer first: those of the
	// packages chatcompletions, responses, messages, gemini, converse, and scripted.
	Formats []string
	// BaseURL ends without a slash: https://api.openai.com/v1.
	BaseURL string
	// Header is added to every request.
	Header http.Header
	Quirks map[string]bool // see hub.Target
	// Credentials are tried in order. None: it needs none (a local server).
	Credentials []Credential
	// NeedsCredential says that without one it is of no use.
	NeedsCredential bool

	// OperatorOnly says that requests bring no credentials of their own: the server is
	// not the one of the table, and may let everybody in, or Header does.
	OperatorOnly bool

	// FirstByte is how long an answer may take to begin, Idle how long it may pause.
	FirstByte, Idle time.Duration
	// Finish says that whole answers are waited for though their client has left, so
	// that it is known what they cost; else the call ends with its client.
	Finish bool

	ZeroRetention, NoTraining bool
	Country                   string // ISO 3166-1 alpha-2 of its headquarters
	Region                    string

	// Embeddings, Images, Audio, Rerank are the paths of these calls below BaseURL,
	// empty where it has none.
	// One that is a whole address is that address: see URL.
	Embeddings, Images, Rerank, Speech, Transcription string
	// EmbedBatch is how many texts a call for embeddings may have; 0 means 2048, as
	// OpenAI takes.
	EmbedBatch int
	// Models is the path of its list of models, for checks and for servers that say
	// themselves what they have.
	Models string

	// ForeignIDs lets requests name what it keeps under an id (answers, files) that no
	// request of the same project has made.
	ForeignIDs bool

	// SelfHosted says that it runs on machines of the operator's: what it has costs
	// nothing unless it is said what, and it is asked for its models.
	SelfHosted bool
	// Unlisted says that its models may be called by the provider's name and its own
	// name of them, ollama/llama3.2, though no catalogue knows them. Their price is
	// unknown, unless SelfHosted, so that budgets refuse them or do not count them.
	Unlisted bool
	// Price is what models cost there that no catalogue knows; nil: nothing if
	// SelfHosted, else unknown.
	Price *gateway.Price
}

// URL returns the address of a path of the provider's.
func (p *Provider) URL(path string) string {
	if strings.HasPrefix(path, "https://") || strings.HasPrefix(path, "http://") {
		return path
	}
	return p.BaseURL + path
}

// Credential convinces a provider. Its String never shows a secret.
type Credential interface {
	// ID tells credentials of a provider apart, in records and cool-downs.
	ID() string
	// BYOK reports whether it is a caller's own and not the operator's.
	BYOK() bool
	// Authorize adds to r what it takes. body is all of the request's body. It may
	// ask elsewhere first, as for an access token; that is kept until it expires. It
	// may send r to another host or path of the same provider (a region, a project):
	// it then gives r a URL of its own. Errors: *hub.Error.
	Authorize(ctx context.Context, r *http.Request, body []byte) error
}

// Set is all providers of a configuration.
type Set struct{ byName map[string]*Provider }

// NewSet returns the set of providers, which have different names.
func NewSet(all ...*Provider) *Set {
	s := &Set{make(map[string]*Provider, len(all))}
	for _, p := range all {
		s.byName[p.Name] = p
	}
	return s
}

// Get returns the provider of a name, nil if there is none.
func (s *Set) Get(name string) *Provider { return s.byName[name] }

// Names returns the names of all, in no order.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.byName))
	for name := range s.byName {
		names = append(names, name)
	}
	return names
}

// Target returns where a call to a model goes, in the words of the wire formats.
func (p *Provider) Target(model string, maxOutput int64) *hub.Target {
	return &hub.Target{Provider: p.Name, Model: model, MaxOutput: maxOutput, Quirks: p.Quirks}
}
