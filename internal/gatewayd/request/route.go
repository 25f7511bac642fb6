package request

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Kinds of models; see gateway.Model.
const (
	KindLanguage      = "language"
	KindEmbedding     = "embedding"
	KindImage         = "image"
	KindReranking     = "reranking"
	KindSpeech        = "speech"
	KindTranscription = "transcription"
)

// formatResponses is the name of the format whose requests can continue conversations that
// a provider keeps.
const formatResponses = "responses"

// Route says how requests to a path of the gateway's own origin are read and answered.
type Route struct {
	Pattern string
	Name    string      // the client's format, for records
	Surface hub.Surface // encodes errors
	Kind    string      // of the model; empty: the path calls no model

	// Header says that a header, not the body, names the model.
	Header                     bool
	ModelHeader, VersionHeader string
	Version                    string
	// Limits are members that limit the output; the first one is the one the gateway
	// sets.
	Limits []string
	// Home is the provider whose clients send their own token besides the gateway's key.
	Home string

	// PassPath is the path of the same call below a provider's base URL.
	PassPath string
	// MetadataPath is the place of the gateway's metadata in a whole answer. LastEvent is
	// a text in the last event of a stream.
	MetadataPath string
	LastEvent    []byte
}
