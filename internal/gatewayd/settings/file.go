package settings

import (
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

// File is the settings file. Every member is optional.
type File struct {
	// Environment says whether environment variables such as OPENAI_API_KEY configure
	// providers; the default is true. Settings in the file take precedence.
	Environment *bool `yaml:"environment"`
	// BYOK says whether requests may bring their own credentials to all providers that
	// take one, or to none. By default requests may bring credentials to known providers
	// at the known addresses only, because a server at another address might accept any
	// credential.
	BYOK *bool `yaml:"byok"`
	// Providers maps the names that endpoints and requests use to providers.
	Providers map[string]*Provider `yaml:"providers"`
	// Projects maps project ids to settings for the project.
	Projects map[string]*Project `yaml:"projects"`
	// Models maps model ids to additions to the catalogue, or changes of it.
	Models map[string]*Model `yaml:"models"`
	// Aliases maps requested model names to the models that are called instead.
	Aliases map[string]string `yaml:"aliases"`
	// Splits maps a name to several models, one of which is drawn at random per request.
	Splits map[string][]Share `yaml:"splits"`
	// Virtual maps a name to a model and call options.
	Virtual map[string]*Virtual `yaml:"virtual"`
	// Rules are matched in order, before aliases, splits and virtual models; the first
	// match applies.
	Rules    []Rule   `yaml:"rules"`
	Defaults Defaults `yaml:"defaults"`
	Guards   Guards   `yaml:"guards"`
	Cache    Cache    `yaml:"cache"`
	Capture  Capture  `yaml:"capture"`
}

// Provider configures one provider. Its name must be a known kind, or Kind must be set,
// or Format and BaseURL.
type Provider struct {
	Kind     string `yaml:"kind" json:"kind,omitempty"`
	Disabled bool   `yaml:"disabled" json:"disabled,omitempty"`
	// Format lists the wire formats of the provider, the preferred one first.
	Format  Texts  `yaml:"format" json:"format,omitempty"`
	BaseURL string `yaml:"base_url" json:"base_url,omitempty"`

	// Key is the provider's credential; Keys are several credentials, tried in order.
	Key  *Ref  `yaml:"key" json:"key,omitempty"`
	Keys []Key `yaml:"keys" json:"keys,omitempty"`
	// AWS holds credentials of Bedrock, which also takes keys; ServiceAccount holds those
	// of Vertex.
	AWS            *AWS `yaml:"aws" json:"aws,omitempty"`
	ServiceAccount *Ref `yaml:"service_account" json:"service_account,omitempty"` // the JSON of the key file
	// Auth selects the credentials that the cloud gives to the daemon: aws-default,
	// google-default or azure-default. Profile is a profile in AWS's configuration files.
	Auth    string `yaml:"auth" json:"auth,omitempty"`
	Profile string `yaml:"profile" json:"profile,omitempty"`

	// Region is for Bedrock; Resource, APIVersion and Deployments are for Azure; Project
	// and Location are for Vertex.
	Region      string `yaml:"region" json:"region,omitempty"`
	Resource    string `yaml:"resource" json:"resource,omitempty"`
	APIVersion  string `yaml:"api_version" json:"api_version,omitempty"`
	Deployments bool   `yaml:"deployments" json:"deployments,omitempty"`
	Project     string `yaml:"project" json:"project,omitempty"`
	Location    string `yaml:"location" json:"location,omitempty"`

	Headers map[string]*Ref `yaml:"headers" json:"headers,omitempty"`
	Quirks  []string        `yaml:"quirks" json:"quirks,omitempty"`
	Paths   Paths           `yaml:"paths" json:"paths,omitzero"`
	// FirstByte is the timeout for the first byte of an answer, Idle the longest pause
	// within an answer.
	FirstByte gateway.Duration `yaml:"first_byte" json:"first_byte,omitempty"`
	Idle      gateway.Duration `yaml:"idle" json:"idle,omitempty"`
	// OnDisconnect says what the gateway does with an unstreamed upstream call when the
	// client leaves: cancel (the default), or finish, so that the cost becomes known.
	OnDisconnect string `yaml:"on_disconnect" json:"on_disconnect,omitempty"`

	ZeroRetention *bool  `yaml:"zero_retention" json:"zero_retention,omitempty"`
	NoTraining    *bool  `yaml:"no_training" json:"no_training,omitempty"`
	Country       string `yaml:"country" json:"country,omitempty"`
	SelfHosted    *bool  `yaml:"self_hosted" json:"self_hosted,omitempty"`
	// ForeignIDs says what the gateway does with requests that name answers or files
	// which the project did not create: allow, or refuse (the default).
	ForeignIDs string `yaml:"foreign_ids" json:"foreign_ids,omitempty"`
	// Unlisted allows calls of models that are not in the catalogue.
	Unlisted *bool `yaml:"unlisted" json:"unlisted,omitempty"`
	// Discover says whether the gateway asks the provider for its list of models; the
	// default is true for self-hosted providers only.
	Discover *bool `yaml:"discover" json:"discover,omitempty"`
	// Models maps the catalogue's model ids to the provider's names, for example
	// openai/gpt-5: my-deployment.
	Models map[string]string `yaml:"models" json:"models,omitempty"`
	// Price is the price of the provider's models that have no price of their own.
	Price *catalog.PricePerMillion `yaml:"price" json:"price,omitempty"`
}

// Key is one of a provider's several credentials.
type Key struct {
	Name          string `yaml:"name" json:"name,omitempty"` // empty: key-1, key-2...
	Key           *Ref   `yaml:"key" json:"key,omitempty"`
	ZeroRetention bool   `yaml:"zero_retention" json:"zero_retention,omitempty"`
}

// AWS is an access key of Amazon Web Services.
type AWS struct {
	AccessKeyID     *Ref `yaml:"access_key_id" json:"access_key_id,omitempty"`
	SecretAccessKey *Ref `yaml:"secret_access_key" json:"secret_access_key,omitempty"`
	SessionToken    *Ref `yaml:"session_token" json:"session_token,omitempty"`
}

// Paths are the provider's paths, relative to the base URL, of APIs other than language
// models.
type Paths struct {
	Models        string `yaml:"models" json:"models,omitempty"`
	Embeddings    string `yaml:"embeddings" json:"embeddings,omitempty"`
	Images        string `yaml:"images" json:"images,omitempty"`
	Rerank        string `yaml:"rerank" json:"rerank,omitempty"`
	Speech        string `yaml:"speech" json:"speech,omitempty"`
	Transcription string `yaml:"transcription" json:"transcription,omitempty"`
}

// Model is a model's settings in the file. Unset members keep the catalogue's values.
type Model struct {
	Disabled     bool     `yaml:"disabled"` // the model is not offered
	Name         string   `yaml:"name"`
	Kind         string   `yaml:"kind"` // default for a new model: language
	Context      int64    `yaml:"context"`
	MaxOutput    int64    `yaml:"max_output"`
	Input        []string `yaml:"input"`
	Output       []string `yaml:"output"`
	Capabilities []string `yaml:"capabilities"`
	Aliases      []string `yaml:"aliases"`
	// Endpoints maps provider names to endpoints.
	Endpoints map[string]*Endpoint `yaml:"endpoints"`
}

// Endpoint is a provider's offer of a model.
type Endpoint struct {
	Disabled      bool                     `yaml:"disabled"`
	Model         string                   `yaml:"model"` // empty: the model's name behind the slash
	Price         *catalog.PricePerMillion `yaml:"price"`
	Context       int64                    `yaml:"context"`
	MaxOutput     int64                    `yaml:"max_output"`
	Region        string                   `yaml:"region"`
	Quantization  string                   `yaml:"quantization"`
	ZeroRetention *bool                    `yaml:"zero_retention"`
	NoTraining    *bool                    `yaml:"no_training"`
}

// Share is the weight of a model in a split.
type Share struct {
	Model  string `yaml:"model"`
	Weight int    `yaml:"weight"` // 1 to 1000000
}

// Virtual is a model with call options. Options in the request take precedence, except
// that a request cannot leave the providers in Only.
type Virtual struct {
	Model         string   `yaml:"model"`
	Models        []string `yaml:"models"` // to try after it
	Order         []string `yaml:"order"`
	Only          []string `yaml:"only"`
	Sort          string   `yaml:"sort"`
	Has           []string `yaml:"has"`
	Caching       string   `yaml:"caching"` // auto
	ServiceTier   string   `yaml:"service_tier"`
	ZeroRetention bool     `yaml:"zero_retention"`
	NoTraining    bool     `yaml:"no_training"`
}

// Rule rewrites or refuses a requested model.
type Rule struct {
	ID string `yaml:"id"` // included in the refusal
	// Model is a pattern that the requested model must match: openai/gpt-4*, *.
	Model string `yaml:"model"`
	// Projects and Keys, if set, restrict the rule to these ids.
	Projects []string `yaml:"projects"`
	Keys     []string `yaml:"keys"`
	// Exactly one of Rewrite and the refusal must be set: the model to call instead, or
	// the message of the refusal.
	Rewrite string `yaml:"rewrite"`
	Deny    string `yaml:"deny"`
}

// Defaults apply to providers without a value of their own.
type Defaults struct {
	FirstByte time.Duration `yaml:"first_byte"`
	Idle      time.Duration `yaml:"idle"`
	// OnDisconnect is cancel or finish.
	OnDisconnect string `yaml:"on_disconnect"`
}

// Guards configures package guard.
type Guards struct {
	MaxPrompt       config.Size `yaml:"max_prompt"`
	MaxOutputTokens int64       `yaml:"max_output_tokens"`
	Models          []string    `yaml:"models"`
	Tools           []string    `yaml:"tools"`
	DenyTools       []string    `yaml:"deny_tools"`
	Requests        []Pattern   `yaml:"requests"`
	Answers         []Pattern   `yaml:"answers"`
	Streams         string      `yaml:"streams"` // buffer
	Webhook         *Webhook    `yaml:"webhook"`
}

// Pattern is a guard pattern.
type Pattern struct {
	Name   string   `yaml:"name"`
	Preset string   `yaml:"preset"`
	Regex  string   `yaml:"regex"`
	Words  []string `yaml:"words"`
	Action string   `yaml:"action"` // block or redact
}

// Webhook is the server that guards ask about requests.
type Webhook struct {
	URL     string          `yaml:"url"`
	Headers map[string]*Ref `yaml:"headers"`
	Timeout time.Duration   `yaml:"timeout"`
	Fail    string          `yaml:"fail"` // closed (default) or open
	Answers bool            `yaml:"answers"`
}

// Cache bounds the response cache; keys and requests opt in to it.
type Cache struct {
	Disabled bool        `yaml:"disabled"`
	Size     config.Size `yaml:"size"`  // default: 64 MiB
	Entry    config.Size `yaml:"entry"` // 4 MiB
}

// Texts is a list of strings; a single string may be written without a list.
type Texts []string

// UnmarshalYAML implements yaml.InterfaceUnmarshaler.
func (t *Texts) UnmarshalYAML(unmarshal func(any) error) error {
	var one string
	if unmarshal(&one) == nil {
		*t = Texts{one}
		return nil
	}
	return unmarshal((*[]string)(t))
}
