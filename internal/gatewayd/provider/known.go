package provider

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Auth is how the gateway authenticates to a provider.
type Auth string

// The values of Auth.
const (
	AuthNone   Auth = "none"
	AuthBearer Auth = "bearer"
	AuthXKey   Auth = "x-api-key"      // Anthropic
	AuthGoogle Auth = "x-goog-api-key" // Gemini
	AuthAzure  Auth = "api-key"        // Azure OpenAI
	AuthVertex Auth = "google"         // a service account's access token
	AuthAWS    Auth = "aws"            // Signature Version 4, or a key of Bedrock's
)

// Known is a kind of provider in this package's table.
type Known struct {
	Kind    string
	Title   string // for people
	Formats []string
	// BaseURL contains {region}, {resource}, {project} or {location} where the address
	// depends on them.
	BaseURL string
	Auth    Auth
	// KeyEnv are the environment variables that may hold the key, URLEnv those that may
	// hold the base URL.
	KeyEnv, URLEnv []string
	Header         map[string]string
	Quirks         []string

	Models, Embeddings, Images, Rerank, Speech, Transcription string
	EmbedBatch                                                int

	Country string
	// NoTraining says that the provider's public terms for the API exclude training on
	// prompts without consent. Retention depends on the operator's contract, so only
	// self-hosted kinds have zero retention here.
	NoTraining bool
	SelfHosted bool
	// Listed kinds serve only models of the catalogue. Calls to all other kinds may name
	// models that the catalogue does not have; see Provider.Unlisted.
	Listed bool
}

// known is the table of the kinds of providers. Addresses come from the providers'
// documentation; countries are those of their headquarters.
var known = []Known{
	{
		Kind: "cay", Title: "the scripted provider", Formats: []string{"scripted"}, BaseURL: "http://scripted.invalid", Auth: AuthNone,
		NoTraining: true, SelfHosted: true, Listed: true,
	},
	{
		Kind: "openai", Title: "OpenAI", Formats: []string{"chatcompletions", "responses"}, BaseURL: "https://api.openai.com/v1",
		Auth: AuthBearer, KeyEnv: []string{"OPENAI_API_KEY"}, URLEnv: []string{"OPENAI_BASE_URL"},
		Models: "/models", Embeddings: "/embeddings", Images: "/images/generations", Speech: "/audio/speech", Transcription: "/audio/transcriptions",
		Country: "US", NoTraining: true,
	},
	{
		Kind: "anthropic", Title: "Anthropic", Formats: []string{"messages"}, BaseURL: "https://api.anthropic.com/v1",
		Auth: AuthXKey, KeyEnv: []string{"ANTHROPIC_API_KEY"}, Models: "/models?limit=1000", Country: "US", NoTraining: true,
	},
	{
		Kind: "google", Title: "Google AI Studio", Formats: []string{"gemini"}, BaseURL: "https://generativelanguage.googleapis.com/v1beta",
		Auth: AuthGoogle, KeyEnv: []string{"GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY", "GOOGLE_API_KEY"},
		Models: "/models?pageSize=1000", Country: "US",
	},
	{
		Kind: "vertex", Title: "Google Vertex AI", Formats: []string{"gemini"},
		BaseURL: "https://{location-host}/v1/projects/{project}/locations/{location}/publishers/google", Auth: AuthVertex,
		Country: "US", NoTraining: true,
	},
	{
		Kind: "bedrock", Title: "Amazon Bedrock", Formats: []string{"converse"}, BaseURL: "https://bedrock-runtime.{region}.amazonaws.com",
		Auth: AuthAWS, KeyEnv: []string{"AWS_BEARER_TOKEN_BEDROCK"}, Country: "US", NoTraining: true,
	},
	{
		Kind: "azure", Title: "Azure OpenAI", Formats: []string{"chatcompletions", "responses"}, BaseURL: "https://{resource}.openai.azure.com/openai/v1",
		Auth: AuthAzure, KeyEnv: []string{"AZURE_OPENAI_API_KEY", "AZURE_API_KEY"},
		Models: "/models", Embeddings: "/embeddings", Images: "/images/generations", Country: "US", NoTraining: true,
	},
	{
		Kind: "groq", Title: "Groq", BaseURL: "https://api.groq.com/openai/v1", KeyEnv: []string{"GROQ_API_KEY"},
		Models: "/models", Speech: "/audio/speech", Transcription: "/audio/transcriptions", Country: "US",
	},
	{
		Kind: "mistral", Title: "Mistral", BaseURL: "https://api.mistral.ai/v1", KeyEnv: []string{"MISTRAL_API_KEY"},
		Models: "/models", Embeddings: "/embeddings", Transcription: "/audio/transcriptions", Country: "FR",
	},
	{
		Kind: "deepseek", Title: "DeepSeek", BaseURL: "https://api.deepseek.com", KeyEnv: []string{"DEEPSEEK_API_KEY"},
		Models: "/models", Country: "CN",
	},
	{
		Kind: "xai", Title: "xAI", Formats: []string{"chatcompletions", "responses"}, BaseURL: "https://api.x.ai/v1", KeyEnv: []string{"XAI_API_KEY"},
		Models: "/models", Images: "/images/generations", Country: "US",
	},
	{
		Kind: "openrouter", Title: "OpenRouter", BaseURL: "https://openrouter.ai/api/v1", KeyEnv: []string{"OPENROUTER_API_KEY"},
		Models: "/models", Country: "US",
	},
	{
		Kind: "together", Title: "Together AI", BaseURL: "https://api.together.xyz/v1", KeyEnv: []string{"TOGETHER_API_KEY", "TOGETHER_AI_API_KEY"},
		Models: "/models", Embeddings: "/embeddings", Images: "/images/generations", Rerank: "/rerank", Country: "US",
	},
	{
		Kind: "fireworks", Title: "Fireworks AI", BaseURL: "https://api.fireworks.ai/inference/v1", KeyEnv: []string{"FIREWORKS_API_KEY"},
		Models: "/models", Embeddings: "/embeddings", Country: "US",
	},
	{
		Kind: "cerebras", Title: "Cerebras", BaseURL: "https://api.cerebras.ai/v1", KeyEnv: []string{"CEREBRAS_API_KEY"},
		Models: "/models", Country: "US",
	},
	{
		Kind: "deepinfra", Title: "DeepInfra", BaseURL: "https://api.deepinfra.com/v1/openai", KeyEnv: []string{"DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"},
		Models: "/models", Embeddings: "/embeddings", Images: "/images/generations", Country: "US",
	},
	{
		// Cohere's chat in OpenAI's format and its own API have different base URLs.
		Kind: "cohere", Title: "Cohere", BaseURL: "https://api.cohere.ai/compatibility/v1", KeyEnv: []string{"COHERE_API_KEY", "CO_API_KEY"},
		Models: "https://api.cohere.com/v1/models?page_size=1000", Embeddings: "/embeddings", Rerank: "https://api.cohere.com/v2/rerank", Country: "CA",
		EmbedBatch: 96, // https://docs.cohere.com/reference/embed
	},
	{
		Kind: "perplexity", Title: "Perplexity", BaseURL: "https://api.perplexity.ai", KeyEnv: []string{"PERPLEXITY_API_KEY"}, Country: "US",
	},
	{
		Kind: "moonshotai", Title: "Moonshot AI", BaseURL: "https://api.moonshot.ai/v1", KeyEnv: []string{"MOONSHOT_API_KEY"},
		Models: "/models", Country: "CN",
	},
	{
		Kind: "nvidia", Title: "NVIDIA", BaseURL: "https://integrate.api.nvidia.com/v1", KeyEnv: []string{"NVIDIA_API_KEY"},
		Models: "/models", Embeddings: "/embeddings", Country: "US",
	},
	{
		Kind: "ollama", Title: "Ollama", BaseURL: "http://127.0.0.1:11434/v1", Auth: AuthNone, URLEnv: []string{"OLLAMA_BASE_URL", "OLLAMA_HOST"},
		Models: "/models", Embeddings: "/embeddings", NoTraining: true, SelfHosted: true,
	},
	{
		Kind: "vllm", Title: "vLLM", BaseURL: "http://127.0.0.1:8000/v1", Auth: AuthNone, URLEnv: []string{"VLLM_BASE_URL"},
		Models: "/models", Embeddings: "/embeddings", Rerank: "/rerank", Transcription: "/audio/transcriptions", NoTraining: true, SelfHosted: true,
	},
	{
		Kind: "llamacpp", Title: "llama.cpp", BaseURL: "http://127.0.0.1:8080/v1", Auth: AuthNone, URLEnv: []string{"LLAMACPP_BASE_URL"},
		Models: "/models", Embeddings: "/embeddings", Rerank: "/rerank", NoTraining: true, SelfHosted: true,
	},
	{
		Kind: "lmstudio", Title: "LM Studio", BaseURL: "http://127.0.0.1:1234/v1", Auth: AuthNone, URLEnv: []string{"LMSTUDIO_BASE_URL"},
		Models: "/models", Embeddings: "/embeddings", NoTraining: true, SelfHosted: true,
	},
	{
		Kind: "sglang", Title: "SGLang", BaseURL: "http://127.0.0.1:30000/v1", Auth: AuthNone, URLEnv: []string{"SGLANG_BASE_URL"},
		Models: "/models", Embeddings: "/embeddings", NoTraining: true, SelfHosted: true,
	},
}

// KnownKinds returns all kinds of providers, in the order of the table.
func KnownKinds() []Known {
	all := slices.Clone(known)
	for i := range all {
		all[i].defaults()
	}
	return all
}

// KnownKind returns the table's entry for a kind.
func KnownKind(kind string) (Known, bool) {
	i := slices.IndexFunc(known, func(k Known) bool { return k.Kind == kind })
	if i < 0 {
		return Known{}, false
	}
	k := known[i]
	k.defaults()
	return k, true
}

// defaults sets the usual values: OpenAI's format and bearer authentication.
func (k *Known) defaults() {
	if k.Formats == nil {
		k.Formats = []string{"chatcompletions"}
	}
	if k.Auth == "" {
		k.Auth = AuthBearer
	}
}

// Where holds the parts of an account-dependent address. Empty members get the usual
// value.
type Where struct {
	Region   string // us-east-1
	Resource string
	Project  string
	Location string // global
}

// Base returns BaseURL with its placeholders filled in. A placeholder without a value
// becomes a host name that does not exist; requests then have to bring their own value.
func (k *Known) Base(w Where) string {
	if w.Location == "" {
		w.Location = "global"
	}
	or := func(v, otherwise string) string {
		if v == "" {
			return otherwise
		}
		return v
	}
	return strings.NewReplacer(
		"{region}", or(w.Region, "us-east-1"), "{resource}", or(strings.ToLower(w.Resource), "none"), "{project}", or(w.Project, "none"),
		"{location-host}", vertexHost(w.Location), "{location}", w.Location,
	).Replace(k.BaseURL)
}

// These are the default timeouts of providers.
const (
	DefaultFirstByte = 5 * time.Minute
	DefaultIdle      = 2 * time.Minute
)

// New returns a provider of the kind with the given name, without credentials.
func (k *Known) New(name string, w Where) *Provider {
	p := &Provider{
		Name: name, Kind: k.Kind, Formats: k.Formats, BaseURL: k.Base(w), Header: make(http.Header), Quirks: make(map[string]bool),
		NeedsCredential: k.Auth != AuthNone, FirstByte: DefaultFirstByte, Idle: DefaultIdle,
		Privacy:    Privacy{ZeroRetention: k.SelfHosted, NoTraining: k.NoTraining, Country: k.Country, Region: w.Region},
		Paths:      Paths{Embeddings: k.Embeddings, Images: k.Images, Rerank: k.Rerank, Speech: k.Speech, Transcription: k.Transcription, Models: k.Models},
		EmbedBatch: k.EmbedBatch,
		SelfHosted: k.SelfHosted, Unlisted: k.Kind != "" && !k.Listed,
	}
	for name, value := range k.Header {
		p.Header.Set(name, value)
	}
	for _, q := range k.Quirks {
		p.Quirks[q] = true
	}
	return p
}

// Clouds offer Claude models in Anthropic's format, besides their own formats.
const (
	googleModels    = "/publishers/google"
	anthropicModels = "/publishers/anthropic"
)

// For returns the provider with the settings that apply to one of its models. Claude
// models of Vertex AI have another publisher and use Anthropic's format; Claude models of
// Bedrock use it if the provider is configured with that format. For returns p itself if
// nothing differs.
func (p *Provider) For(model string) *Provider {
	claude := strings.HasPrefix(model, "claude-") || strings.Contains(model, "anthropic.claude-")
	switch base, google := strings.CutSuffix(p.BaseURL, googleModels); {
	case p.Kind == "vertex" && google && claude:
		v := p.with(QuirkVertex)
		v.BaseURL, v.Formats = base+anthropicModels, []string{"messages"}
		return v
	case p.Kind == "bedrock" && slices.Contains(p.Formats, "messages") && claude:
		return p.with(QuirkBedrock)
	case p.Kind == "bedrock" && slices.Contains(p.Formats, "messages"):
		v := p.with()
		if v.Formats = slices.DeleteFunc(slices.Clone(p.Formats), func(f string) bool { return f == "messages" }); len(v.Formats) == 0 {
			v.Formats = []string{"converse"}
		}
		return v
	}
	return p
}

// with returns a copy with additional quirks.
func (p *Provider) with(quirks ...string) *Provider {
	v := *p
	v.Quirks = maps.Clone(p.Quirks)
	if v.Quirks == nil {
		v.Quirks = make(map[string]bool)
	}
	for _, q := range quirks {
		v.Quirks[q] = true
	}
	return &v
}

// These are the quirks that For adds; package messages defines the same names.
const (
	QuirkVertex  = "claude-on-vertex"
	QuirkBedrock = "claude-on-bedrock"
)

// ValidPlace reports whether s is a valid name of a region, location, project or
// resource, as a part of a host name or path.
func ValidPlace(s string) bool { return place().MatchString(s) }
