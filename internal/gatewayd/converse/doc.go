// Package converse implements Amazon Bedrock's Converse API for providers, as a
// hub.Upstream. Sources: Amazon's public documentation and its SDKs' models.
//
// A streamed answer has the type application/vnd.amazon.eventstream: binary frames with
// checksums, whose headers name the event that the JSON payload is. It ends with
// messageStop and metadata, which contains the usage; some models send these in reverse
// order, and some send no metadata.
//
// The options bedrock.signature and bedrock.redactedData keep the signature of reasoning.
// Claude's signatures are the same at Anthropic, so options of the provider anthropic are
// accepted as well.
//
// This package does not sign requests.
package converse

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Format is the Converse API. It has no state.
type Format struct{}

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "converse".
func (*Format) Name() string { return "converse" }

var _ hub.Upstream = (*Format)(nil)

// Limits of the data that a provider can make the gateway keep.
const (
	maxFrame     = 16 << 20 // bytes of a frame
	maxAnswer    = 64 << 20 // bytes of an answer that are kept at the same time
	maxToolCalls = 1024     // per answer
)

// self is the name in Options under which this format keeps its own.
const self = "bedrock"
