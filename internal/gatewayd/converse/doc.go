// Package converse speaks Amazon Bedrock's Converse API to providers, as a
// hub.Upstream. Facts of the API are from Amazon's public documentation and its
// SDKs' models.
//
// An answer that is streamed comes as application/vnd.amazon.eventstream: binary
// frames with a checksum, whose headers say what event their JSON is. It ends with
// messageStop and metadata, which has the usage; some models send them in the other
// order, and some no metadata at all.
//
// Reasoning carries its signature in the option bedrock.signature, or
// bedrock.redactedData. Signatures of Claude are the same as with Anthropic, and
// those of the provider anthropic are taken as well.
//
// To sign requests is not this package's business.
package converse

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Format is the Converse API. It has no state.
type Format struct{}

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "converse".
func (*Format) Name() string { return "converse" }

// Tap returns nil: no client speaks this format to us.
func (*Format) Tap(*hub.Target, bool) hub.Tap { return nil }

var _ hub.Upstream = (*Format)(nil)

// What a provider can make us keep.
const (
	maxFrame     = 16 << 20 // bytes of one frame
	maxAnswer    = 64 << 20 // bytes of an answer that are kept at the same time
	maxToolCalls = 1024     // of one answer
)

// self is the provider whose Options this format carries.
const self = "bedrock"
