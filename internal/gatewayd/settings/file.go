package settings

import (
	"time"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
)

// File is the file of settings. All of it may be missing.
type File struct {
	// Environment says whether variables of the environment configure providers
	// (OPENAI_API_KEY); they do if it is not said. What the file says of a provider
	// wins.
	Environment *bool `yaml:"environment"`
	// BYOK says whether requests may bring credentials of their own, to all providers
	// that take one or to none. If it is not said, they may for known providers at
	// their own addresses: another server may let everybody in, whatever they bring.
	BYOK *bool `yaml:"byok"`
	// Providers by the names that models' endpoints and requests use.
	Providers map[string]*Provider `yaml:"providers"`
	// Projects are those that have something of their own, by id.
	Projects map[string]*Project `yaml:"projects"`
	// Models are added to the catalogue, or change what it says, by id.
	Models map[string]*Model `yaml:"models"`
	// Aliases are other names of models: what was asked for to what is called.
	Aliases map[string]string `yaml:"aliases"`
	// Splits are names that stand for several models, of which one is drawn.
	Splits map[string][]Share `yaml:"splits"`
	// Virtual models are names that stand for a model and how to call it.
	Virtual map[string]*Virtual `yaml:"virtual"`
	// Rules are looked at in order, before anything else; the first that matches
	// counts.
	Rules    []Rule   `yaml:"rules"`
	Defaults Defaults `yaml:"defaults"`
	Guards   Guards   `yaml:"guards"`
	Cache    Cache    `yaml:"cache"`
	Capture  Capture  `yaml:"capture"`
}

// Provider is one that calls go to. Its name is that of a known kind, or it says
// its Kind, or its Format and BaseURL.
type Provider struct {
	Kind     string `yaml:"kind" json:"kind,omitempty"`
	Disabled bool   `yaml:"disabled" json:"disabled,omitempty"`
	// Format is the wire format it speaks, or formats, the one to prefer first.
	Format  Texts  `yaml:"format" json:"format,omitempty"`
	BaseURL string `yaml:"base_url" json:"base_url,omitempty"`

	// Key is its credential; Keys are several, tried in order.
	Key  *Ref  `yaml:"key" json:"key,omitempty"`
	Keys []Key `yaml:"keys" json:"keys,omitempty"`
	// AWS and ServiceAccount are the credentials of Bedrock, besides keys, and of
	// Vertex.
	AWS            *AWS `yaml:"aws" json:"aws,omitempty"`
	ServiceAccount *Ref `yaml:"service_account" json:"service_account,omitempty"` // the JSON of the key file
	// Auth says that the credentials are used that the cloud gives to the daemon:
	// aws-default, google-default or azure-default. Profile is one of AWS's files.
	Auth    string `yaml:"auth" json:"auth,omitempty"`
	Profile string `yaml:"profile" json:"profile,omitempty"`

	// Region is Bedrock's, Resource, APIVersion and Deployments are Azure's, Project
	// and Location Vertex's.
	Region      string `yaml:"region" json:"region,omitempty"`
	Resource    string `yaml:"resource" json:"resource,omitempty"`
	APIVersion  string `yaml:"api_version" json:"api_version,omitempty"`
	Deployments bool   `yaml:"deployments" json:"deployments,omitempty"`
	Project     string `yaml:"project" json:"project,omitempty"`
	Location    string `yaml:"location" json:"location,omitempty"`

	Headers map[string]*Ref `yaml:"headers" json:"headers,omitempty"`
	Quirks  []string        `yaml:"quirks" json:"quirks,omitempty"`
	Paths   Paths           `yaml:"paths" json:"paths,omitzero"`
	// FirstByte is how long an answer may take to begin, Idle how long it may pause.
	FirstByte gateway.Duration `yaml:"first_byte" json:"first_byte,omitempty"`
	Idle      gateway.Duration `yaml:"idle" json:"idle,omitempty"`
	// OnDisconnect says what becomes of the call of a whole answer whose client leaves:
	// cancel, as if nothing is said, or finish, so that it is known what it costs.
	OnDisconnect string `yaml:"on_disconnect" json:"on_disconnect,omitempty"`

	ZeroRetention *bool  `yaml:"zero_retention" json:"zero_retention,omitempty"`
	NoTraining    *bool  `yaml:"no_training" json:"no_training,omitempty"`
	Country       string `yaml:"country" json:"country,omitempty"`
	SelfHosted    *bool  `yaml:"self_hosted" json:"self_hosted,omitempty"`
	// ForeignIDs says what becomes of requests that name answers and files which no
	// request of their project has made: allow, or refuse, as if nothing is said.
	ForeignIDs string `yaml:"foreign_ids" json:"foreign_ids,omitempty"`
	// Unlisted lets models that no catalogue knows be called.
	Unlisted *bool `yaml:"unlisted" json:"unlisted,omitempty"`
	// Discover says whether it is asked for its models; what is self-hosted is, if
	// it is not said.
	Discover *bool `yaml:"discover" json:"discover,omitempty"`
	// Models are its own names of models, by ours: openai/gpt-5: my-deployment.
	Models map[string]string `yaml:"models" json:"models,omitempty"`
	// Price is what each of its models costs that has no price of its own.
	Price *catalog.PricePerMillion `yaml:"price" json:"price,omitempty"`
}

// Key is one of several credentials of a provider.
type Key struct {
	Name          string `yaml:"name" json:"name,omitempty"` // empty: key-1, key-2...
	Key           *Ref   `yaml:"key" json:"key,omitempty"`
	ZeroRetention bool   `yaml:"zero_retention" json:"zero_retention,omitempty"`
}

// AWS are keys of Amazon Web Services.
type AWS struct {
	AccessKeyID     *Ref `yaml:"access_key_id" json:"access_key_id,omitempty"`
	SecretAccessKey *Ref `yaml:"secret_access_key" json:"secret_access_key,omitempty"`
	SessionToken    *Ref `yaml:"session_token" json:"session_token,omitempty"`
}

// Paths are where a provider has what is not a language model, below its base URL.
type Paths struct {
	Models        string `yaml:"models" json:"models,omitempty"`
	Embeddings    string `yaml:"embeddings" json:"embeddings,omitempty"`
	Images        string `yaml:"images" json:"images,omitempty"`
	Rerank        string `yaml:"rerank" json:"rerank,omitempty"`
	Speech        string `yaml:"speech" json:"speech,omitempty"`
	Transcription string `yaml:"transcription" json:"transcription,omitempty"`
}

// Model is what the file says of a model. What is missing is as the catalogue has
// it.
type Model struct {
	Disabled     bool     `yaml:"disabled"` // it is not offered
	Name         string   `yaml:"name"`
	Kind         string   `yaml:"kind"` // language if it is new
	Context      int64    `yaml:"context"`
	MaxOutput    int64    `yaml:"max_output"`
	Input        []string `yaml:"input"`
	Output       []string `yaml:"output"`
	Capabilities []string `yaml:"capabilities"`
	Aliases      []string `yaml:"aliases"`
	// Endpoints by the name of their provider.
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

// Share is a model's part of a split.
type Share struct {
	Model  string `yaml:"model"`
	Weight int    `yaml:"weight"` // 1 to 1000000
}

// Virtual is a model with how to call it. What a request asks for itself wins,
// except where it would go to somebody else than Only.
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

// Rule changes the model that was asked for, or refuses it.
type Rule struct {
	ID string `yaml:"id"` // told to clients that are refused
	// Model is a pattern of what was asked for: openai/gpt-4*, *.
	Model string `yaml:"model"`
	// Projects and Keys, if there are any, are the only ones it is for, by id.
	Projects []string `yaml:"projects"`
	Keys     []string `yaml:"keys"`
	// Exactly one of these is set: a model to call instead, or the words of a refusal.
	Rewrite string `yaml:"rewrite"`
	Deny    string `yaml:"deny"`
}

// Defaults are for providers that say nothing else.
type Defaults struct {
	FirstByte time.Duration `yaml:"first_byte"`
	Idle      time.Duration `yaml:"idle"`
	// OnDisconnect is cancel or finish.
	OnDisconnect string `yaml:"on_disconnect"`
}

// Guards are those of package guard.
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

// Pattern finds texts.
type Pattern struct {
	Name   string   `yaml:"name"`
	Preset string   `yaml:"preset"`
	Regex  string   `yaml:"regex"`
	Words  []string `yaml:"words"`
	Action string   `yaml:"action"` // block or redact
}

// Webhook is asked about requests.
type Webhook struct {
	URL     string          `yaml:"url"`
	Headers map[string]*Ref `yaml:"headers"`
	Timeout time.Duration   `yaml:"timeout"`
	Fail    string          `yaml:"fail"` // closed if it is not said, or open
	Answers bool            `yaml:"answers"`
}

// Cache bounds the response cache, which keys and requests ask for.
type Cache struct {
	Disabled bool        `yaml:"disabled"`
	Size     config.Size `yaml:"size"`  // 64 MiB if it is not said
	Entry    config.Size `yaml:"entry"` // 4 MiB
}

// Texts is a list of texts that may be written as one.
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
