// Package messages speaks Anthropic Messages: to clients (Anthropic's SDKs, Claude
// Code) as a hub.Surface, and to providers (Anthropic and those who speak its
// format) as a hub.Upstream. Facts of the format are from Anthropic's public
// documentation and the types of its SDKs.
//
// How it says what the hub says:
//
//	system message        system, or a message of the role system after the first turn
//	tool message          tool_result blocks, first in the next user message
//	reasoning             thinking with its signature, or redacted_thinking
//	tool run by provider  server_tool_use or mcp_tool_use, and its ..._tool_result
//	compaction            text with the option anthropic.type "compaction"
//	tool_reference,       text that says the same, with the block itself in the
//	search_result         option anthropic.block
//	any other block       a custom part anthropic.<type>, with all its members
//
// A signature of another provider is wrapped for the client (hub.Wrap), one on a
// tool call is packed into its id (hub.PackID), so that both come back.
//
// Options of the provider anthropic have the names of the AI SDK, in camel case:
// cacheControl, citations, title, context, caller, serverName, stopSequence,
// container, contextManagement... Args of provider tools likewise.
//
// Answers are read by one decoder, whole ones as if they came as a stream. They are
// written by one encoder each.
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

// What clients and providers can make us keep.
const (
	maxEvent     = 16 << 20 // bytes of one event of a stream
	maxAnswer    = 64 << 20 // bytes of an answer that are kept at the same time
	maxToolCalls = 1024     // of one answer
)

// self is the provider whose Options this format carries.
const self = "anthropic"
