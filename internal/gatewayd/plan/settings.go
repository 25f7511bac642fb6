package plan

import (
	"sync"

	"github.com/cayhq/cay/internal/gatewayd/cache"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/endpoint"
	"github.com/cayhq/cay/internal/gatewayd/guard"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/provider"
)

// Settings is the engine's configuration. Settings are immutable; a new configuration is
// a new Settings.
type Settings struct {
	Providers *provider.Set
	Catalog   *catalog.Catalog
	// Route resolves a requested model name. Nil leaves names unresolved.
	Route func(c *ledger.Caller, model string) (Preset, error)
	// Custom returns the credential that a request brings for a provider. Nil means that
	// requests may not bring credentials. Errors: *hub.Error of the kind BadRequest.
	Custom func(p *provider.Provider, raw []byte) (provider.Credential, error)
	// Own returns a project's own credentials for a provider, in the order to try them,
	// and whether the operator's may be tried after them: true if there are none. Nil
	// means that projects have no credentials.
	Own func(project, provider string) (list []provider.Credential, fallback bool)
	// Guards check requests before they are sent to a provider, and optionally answers.
	// Nil means no guards.
	Guards *guard.Guards
	// Cache stores answers for keys that enable it. Nil means no cache.
	Cache *cache.Cache
	// Capture selects the calls whose bodies are stored in Config.Captured. Nil means no
	// calls.
	Capture *capture.Rules
}

// Preset is the result of resolving a model name with the operator's rules and virtual
// models. Options in the request take precedence, except where the preset restricts them.
type Preset struct {
	Model       string   // to ask for instead; empty: the same
	Models      []string // to try after it
	Order, Only []string
	Sort        string
	ZeroData    bool
	NoTraining  bool
	Has         []string
	AutoCache   bool
	ServiceTier string
}

// View is the data that an engine derives from its Settings.
type View struct {
	*Settings
	board    *endpoint.Board
	sessions endpoint.Sessions
	offers   sync.Map // *gateway.Model to []Offer
}

// NewView returns the View of settings. board and sessions are the engine's.
func NewView(s *Settings, board *endpoint.Board, sessions endpoint.Sessions) *View {
	return &View{Settings: s, board: board, sessions: sessions}
}
