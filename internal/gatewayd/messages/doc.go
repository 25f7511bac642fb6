// Package messages implements Anthropic Messages: for clients (Anthropic's SDKs, Claude
// Code) as a hub.Surface, and for providers (Anthropic and others with its format) as a
// hub.Upstream. Sources: Anthropic's public documentation and the types of its SDKs.
//
// The hub maps to the format as follows:
//
//	system message        system, or a message of the role system after the first turn
//	tool message          tool_result blocks, first in the next user message
//	reasoning             thinking with its signature, or redacted_thinking
//	tool run by provider  server_tool_use or mcp_tool_use, and its ..._tool_result
//	compaction            text with the option anthropic.type "compaction"
//	tool_reference,       an equivalent text, with the block itself in the option
//	search_result         anthropic.block
//	any other block       a custom part anthropic.<type>, with all its members
//
// For the client, another provider's signature is wrapped (hub.Wrap), and a signature on
// a tool call is packed into the call's id (hub.PackID), so that both come back.
//
// Options of the provider anthropic have the names of the AI SDK, in camel case:
// cacheControl, citations, title, context, caller, serverName, stopSequence, container,
// contextManagement... The same holds for Args of provider tools.
//
// A single decoder reads all answers; it processes a whole answer like a stream. Whole
// answers and streams have separate encoders.
package messages

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Format is Anthropic Messages. It has no state.
type Format struct{}

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "messages".
func (*Format) Name() string { return "messages" }

var (
	_ hub.Surface  = (*Format)(nil)
	_ hub.Upstream = (*Format)(nil)
)

// Limits of the data that clients and providers can make the gateway keep.
const (
	maxEvent     = 16 << 20 // bytes of a stream event
	maxAnswer    = 64 << 20 // bytes of an answer that are kept at the same time
	maxToolCalls = 1024     // per answer
)

// self is the name in Options under which this format keeps its own.
const self = "anthropic"
