// Package gateway is the SDK for the AI gateway of a cay daemon, which makes every
// model available with one key at one address.
//
// Programs with an OpenAI, Anthropic or AI SDK client only have to set the client's
// base URL and key; a Go program can instead send its client's requests through
// Transport, which adds the credential:
//
//	client := openai.NewClient(option.WithHTTPClient(&http.Client{Transport: &gateway.Transport{}}))
//
// Client manages keys and budgets, and lists requests with their cost and duration:
//
//	var c gateway.Client // the daemon and token of this machine, or CAY_URL and CAY_TOKEN
//	key, err := c.CreateKey(ctx, gateway.CreateKeyParams{Name: "ci", Budget: &gateway.BudgetParams{Limit: 5 * gateway.Dollar, Period: gateway.Daily}})
//	fmt.Println(key.Secret) // shown this once
//
// Amounts are exact: see Money. A model whose price is not known costs "unknown",
// never zero.
package gateway

import (
	"time"

	"github.com/cayhq/cay"
)

// Key is a virtual key: clients send it in place of a provider's key.
type Key struct {
	ID        string `json:"id"` // "gk_" and 20 characters
	TeamID    string `json:"team_id"`
	ProjectID string `json:"project_id"`
	Name      string `json:"name"`
	// Prefix is the beginning of the secret, to tell keys apart.
	Prefix string `json:"prefix"`
	// Secret is set only in the answer to CreateKey: "cgk_" and 43 characters.
	Secret string `json:"secret,omitempty"`

	KeyScope
	Tags       []string   `json:"tags,omitempty"` // added to the tags of its requests
	Disabled   bool       `json:"disabled,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute
	// Budget is the key's own budget, nil if it has none.
	Budget *Budget `json:"budget,omitempty"`
}

// KeyScope limits what a key may do. Zero values do not limit.
type KeyScope struct {
	// Models are patterns of the models that the key may call: "openai/gpt-5",
	// "anthropic/*".
	Models []string `json:"models,omitempty"`
	// Providers are the names of the providers that the key's calls may go to.
	Providers []string `json:"providers,omitempty"`
	// RequestsPerMinute, TokensPerMinute and Concurrency limit the key's rate.
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty"`
	Concurrency       int   `json:"concurrency,omitempty"`
	// MaxOutputTokens is the most output tokens that a request may ask for; a
	// request that asks for no number gets this number.
	MaxOutputTokens int64 `json:"max_output_tokens,omitempty"`
	// Cache is how long the gateway keeps answers to the key's requests, and gives
	// them again to the same request; 0 means never. At most 30 days.
	Cache Duration `json:"cache,omitempty"`
}

// Duration is a time.Duration that is text in JSON: "10m".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return cay.Errorf(cay.Invalid, "%q is not a duration such as 30s or 2h", text)
	}
	*d = Duration(v)
	return nil
}

// CreateKeyParams describes a key to create. The zero value makes a key without
// limits of its own, which does not expire.
type CreateKeyParams struct {
	// Name describes the key's purpose: at most 128 characters, no control
	// characters.
	Name string `json:"name,omitempty"`
	// ProjectID is the project that the key spends for. Empty means the token's
	// project, else the default project.
	ProjectID string `json:"project_id,omitempty"`
	KeyScope
	Tags      []string      `json:"tags,omitempty"`
	ExpiresAt *time.Time    `json:"expires_at,omitempty"`
	Budget    *BudgetParams `json:"budget,omitempty"`
}

// UpdateKeyParams changes a key. Nil fields are unchanged.
type UpdateKeyParams struct {
	Name      *string    `json:"name,omitempty"`
	Scope     *KeyScope  `json:"scope,omitempty"` // replaces all of it
	Tags      *[]string  `json:"tags,omitempty"`
	Disabled  *bool      `json:"disabled,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"` // the zero time: never
}

// Budget bounds the spending of one spender in a period.
type Budget struct {
	BudgetID
	BudgetParams
	// Spent is the amount spent in the period that began at Since, and Held is the
	// most that requests in progress may still cost.
	Spent Money `json:"spent"`
	Held  Money `json:"held"`
	// Unsettled is the part of Spent that was held for calls in progress when the
	// daemon died: whether it was spent is not known.
	Unsettled Money `json:"unsettled,omitempty"`
	// A budget counts from when it was set, so its first period may begin late.
	Since   time.Time  `json:"since"`
	ResetAt *time.Time `json:"reset_at,omitempty"` // nil: never
}

// BudgetID identifies the spender of a budget.
type BudgetID struct {
	Scope Scope `json:"scope"`
	// Ref is the id of the team, project or key, the name of the user or the tag.
	// Empty means everyone of the scope without a budget of their own.
	Ref string `json:"ref,omitempty"`
}

// Scope is a kind of spender: a team, project, key, user or tag.
type Scope string

// The scopes.
const (
	ScopeTeam    Scope = "team"
	ScopeProject Scope = "project"
	ScopeKey     Scope = "key"
	ScopeUser    Scope = "user"
	ScopeTag     Scope = "tag"
)

// BudgetParams is the limit of a budget.
type BudgetParams struct {
	Limit  Money  `json:"limit"` // up to 1 million dollars
	Period Period `json:"period"`
	// AlertAt are percentages at which a warning is logged and counted, once a period.
	AlertAt []int `json:"alert_at,omitempty"`
	// IncludeBYOK counts calls paid with a caller's own key, at list price.
	IncludeBYOK bool `json:"include_byok,omitempty"`
	// AllowUnpriced admits calls whose price is unknown; only the known part of
	// their price counts. Without AllowUnpriced such calls are refused, because a
	// budget cannot bound an unknown price.
	AllowUnpriced bool `json:"allow_unpriced,omitempty"`
}

// Period is the period of a budget. Periods begin at midnight UTC; weeks on Monday.
type Period string

// The periods.
const (
	Daily   Period = "daily"
	Weekly  Period = "weekly"
	Monthly Period = "monthly"
	Never   Period = "none"
)

// Tokens counts tokens by kind. Input is the whole prompt, Output everything that
// was generated; the other fields are parts of Input and Output.
type Tokens struct {
	Input        int64 `json:"input"`
	CacheRead    int64 `json:"cache_read,omitempty"`
	CacheWrite   int64 `json:"cache_write,omitempty"`
	CacheWrite1h int64 `json:"cache_write_1h,omitempty"` // part of CacheWrite
	Output       int64 `json:"output"`
	Reasoning    int64 `json:"reasoning,omitempty"`
	// Estimated says that the provider did not count the tokens, and the gateway has
	// estimated them.
	Estimated bool `json:"estimated,omitempty"`
}

// Request is the record of one request to the gateway.
type Request struct {
	ID        string    `json:"id"` // generation id: "gen_" and 26 characters, which sort by time
	CreatedAt time.Time `json:"created_at"`

	TeamID     string   `json:"team_id"`
	ProjectID  string   `json:"project_id"`
	KeyID      string   `json:"key_id"` // of a key, or of a token
	User       string   `json:"user,omitempty"`
	Tags       []string `json:"tags,omitempty"`
	Session    string   `json:"session,omitempty"`
	Deployment string   `json:"deployment,omitempty"` // the deployment that AI SDK clients report
	App        string   `json:"app,omitempty"`        // from the headers x-title and http-referer

	// Surface is the protocol that the client used: chatcompletions, responses,
	// messages, aisdk, embeddings, ...; Kind is the kind of the model.
	Surface  string `json:"surface"`
	Kind     string `json:"kind"`
	Model    string `json:"model"`              // as asked for
	Served   string `json:"served,omitempty"`   // the catalogue's name of the model that answered
	Provider string `json:"provider,omitempty"` // that answered
	BYOK     bool   `json:"byok,omitempty"`
	Streamed bool   `json:"streamed,omitempty"`
	Cached   bool   `json:"cached,omitempty"` // answered from the response cache

	Status       RequestStatus `json:"status"`
	HTTPStatus   int           `json:"http_status"` // what the client got
	ErrorKind    string        `json:"error_kind,omitempty"`
	Error        string        `json:"error,omitempty"`
	FinishReason string        `json:"finish_reason,omitempty"`

	Tokens   Tokens `json:"tokens"`
	Searches int64  `json:"searches,omitempty"`
	// Cost is the charged amount: nil if the price is unknown. MarketCost is the
	// list price, also for calls that a caller's own key paid. Unpriced names parts
	// that neither amount includes, because only their price is unknown: tools that
	// the provider ran.
	Cost         *Money `json:"cost"`
	MarketCost   *Money `json:"market_cost,omitempty"`
	InputCost    *Money `json:"input_cost,omitempty"`
	OutputCost   *Money `json:"output_cost,omitempty"`
	PriceVersion string `json:"price_version,omitempty"`

	Unpriced []string `json:"unpriced,omitempty"`

	Latency    Millis `json:"latency_ms"`               // whole
	FirstToken Millis `json:"first_token_ms,omitempty"` // time to the first token
	BytesIn    int64  `json:"bytes_in"`
	BytesOut   int64  `json:"bytes_out"`
	// Capture is the current state of the request's bodies, if they were to be kept:
	// CaptureKept, CaptureDropped, CaptureGone.
	Capture string `json:"capture,omitempty"`

	Attempts []Attempt `json:"attempts"`
}

// Millis is a time in milliseconds.
type Millis float64

// RequestStatus is how a request ended.
type RequestStatus string

// The statuses.
const (
	Succeeded RequestStatus = "succeeded"
	Failed    RequestStatus = "failed"
	Cancelled RequestStatus = "cancelled" // the client left
	Refused   RequestStatus = "refused"   // by the gateway, before any provider was asked
)

// Attempt is one call to a provider.
type Attempt struct {
	Model         string    `json:"model"` // the catalogue's name
	Provider      string    `json:"provider"`
	ProviderModel string    `json:"provider_model"`
	BYOK          bool      `json:"byok,omitempty"`
	StartedAt     time.Time `json:"started_at"`
	Latency       Millis    `json:"latency_ms"`
	Status        int       `json:"status,omitempty"` // HTTP status; 0 without an answer
	OK            bool      `json:"ok"`
	Error         string    `json:"error,omitempty"`
	ResponseID    string    `json:"response_id,omitempty"`
	// Cost is the charged part of the request's cost for an attempt that failed
	// after its provider had begun to work. Nil means that nothing is charged.
	Cost *Money `json:"cost,omitempty"`
}

// RequestFilter selects requests. Zero values select all.
type RequestFilter struct {
	Since, Until                                time.Time
	ProjectID, KeyID, User, Tag, Model, Session string
	Provider                                    string
	Status                                      RequestStatus
	Limit                                       int    // 1 to 1000; 0 means 50
	Cursor                                      string // Next of the page before
}

// SpendParams says which requests to add up, and how to group them.
type SpendParams struct {
	Since, Until time.Time // default: the last 30 days
	// By is the list of fields to group by: day, hour, model, provider, key,
	// project, user, session, tag, surface, credential, status. Default: day.
	By                                           []string
	ProjectID, KeyID, User, Tag, Model, Provider string
	// Session selects requests of this session. The session of calls by a workflow is its run.
	Session string
	// Tags selects requests with any of these tags, or with Tag.
	Tags []string
	// Latency adds the latency of requests, which takes longer to compute.
	Latency bool
}

// Spend is one row of a report.
type Spend struct {
	// Group has a value for each of By.
	Group      map[string]string `json:"group"`
	Requests   int64             `json:"requests"`
	Failed     int64             `json:"failed"`
	Cancelled  int64             `json:"cancelled"`
	Refused    int64             `json:"refused"`
	Unpriced   int64             `json:"unpriced"` // requests whose cost is unknown
	Cost       Money             `json:"cost"`
	MarketCost Money             `json:"market_cost"`
	Tokens     Tokens            `json:"tokens"`
	// Latency is the latency of requests that succeeded; nil if not asked for, or if
	// none succeeded.
	Latency *Latency `json:"latency,omitempty"`
}

// Latency is how long requests took: half of them no longer than P50, and 95 of 100
// no longer than P95. The first token is measured on streams only; 0 if there were
// none.
type Latency struct {
	P50           Millis `json:"p50_ms"`
	P95           Millis `json:"p95_ms"`
	FirstTokenP50 Millis `json:"first_token_p50_ms,omitempty"`
	FirstTokenP95 Millis `json:"first_token_p95_ms,omitempty"`
}

// Model is an entry of the catalogue.
type Model struct {
	ID          string     `json:"id"` // creator/model
	Name        string     `json:"name"`
	Description string     `json:"description,omitempty"`
	Kind        string     `json:"kind"` // language, embedding, image, reranking, ...
	Context     int64      `json:"context,omitempty"`
	MaxOutput   int64      `json:"max_output,omitempty"`
	Input       []string   `json:"input,omitempty"`        // modalities: text, image, file, audio, video; empty if not known
	Output      []string   `json:"output,omitempty"`       // modalities
	Abilities   []string   `json:"capabilities,omitempty"` // tool-use, reasoning, vision, structured-output, ...
	Aliases     []string   `json:"aliases,omitempty"`
	Released    string     `json:"released,omitempty"` // YYYY-MM-DD
	Endpoints   []Endpoint `json:"endpoints"`
}

// Endpoint is a provider's offer of a model.
type Endpoint struct {
	Provider      string `json:"provider"`
	Model         string `json:"model"` // the provider's own name
	Price         *Price `json:"price"` // nil: unknown
	Context       int64  `json:"context,omitempty"`
	MaxOutput     int64  `json:"max_output,omitempty"`
	Region        string `json:"region,omitempty"`
	Quantization  string `json:"quantization,omitempty"`
	ZeroRetention bool   `json:"zero_retention,omitempty"`
	NoTraining    bool   `json:"no_training,omitempty"`
	Configured    bool   `json:"configured"` // the gateway has a credential for it
	Health        Health `json:"health"`
}

// Price is a provider's price, in dollars for one token unless a field says
// otherwise. Nil means the price of Input for parts of the input and of Output for
// parts of the output.
type Price struct {
	Version      string `json:"version"` // date of the list it is from
	Input        Money  `json:"input"`
	Output       Money  `json:"output"`
	CacheRead    *Money `json:"cache_read,omitempty"`
	CacheWrite   *Money `json:"cache_write,omitempty"`
	CacheWrite1h *Money `json:"cache_write_1h,omitempty"`
	Reasoning    *Money `json:"reasoning,omitempty"`
	Request      Money  `json:"request,omitempty"`
	Image        Money  `json:"image,omitempty"`
	// Images are prices of an image by quality/size, quality or size. Image is the
	// price for sizes and qualities without an entry, unless an entry of Images is
	// higher.
	Images map[string]Money `json:"images,omitempty"`
	// Character is the price of a character of text to speak, Second of a second of
	// sound to transcribe.
	Character Money `json:"character,omitempty"`
	Second    Money `json:"second,omitempty"`
	Search    Money `json:"search,omitempty"`
	// Tools are prices of a call of tools that the provider runs, by the tools'
	// types without a date: file_search, code_interpreter.
	Tools map[string]Money `json:"tools,omitempty"`
	Tiers []PriceTier      `json:"tiers,omitempty"`
	// ServiceTiers are percentages by the name of a tier: flex 50, priority 200.
	ServiceTiers map[string]int `json:"service_tiers,omitempty"`
}

// PriceTier is the price of prompts longer than Above tokens, for all of their
// tokens.
type PriceTier struct {
	Above      int64  `json:"above"`
	Input      Money  `json:"input"`
	Output     Money  `json:"output"`
	CacheRead  *Money `json:"cache_read,omitempty"`
	CacheWrite *Money `json:"cache_write,omitempty"`
}

// Health is the recent health of an endpoint.
type Health struct {
	State      string  `json:"state"` // ok, degraded, open (not used for now), unknown
	Success    float64 `json:"success,omitempty"`
	FirstToken Millis  `json:"first_token_p50_ms,omitempty"`
	Throughput float64 `json:"tokens_per_second,omitempty"`
}

// Check is the result of a test of a provider.
type Check struct {
	Provider string `json:"provider"`
	OK       bool   `json:"ok"`
	Latency  Millis `json:"latency_ms"`
	Models   int    `json:"models,omitempty"` // that it lists
	Error    string `json:"error,omitempty"`
	Hint     string `json:"hint,omitempty"`
}

// ListParams selects a page of a list.
type ListParams struct {
	// Limit is the most items on a page, 1 to 200. 0 means 50.
	Limit int
	// Cursor is the Next of the page before. Empty means the first page.
	Cursor string
}

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // cursor of the next page; empty on the last
}
