// Package responses implements the OpenAI Responses API, for clients and for providers.
//
// Requests and answers are lists of items. They map to the hub as follows, in both
// directions:
//
//	message                 text parts, one for each content part; a refusal is a
//	                        text part with the option openai.refusal
//	reasoning               a reasoning part for each summary, the encrypted content
//	                        with the last of them
//	function_call           a tool call; its ID is the call_id, the id of the item
//	                        the option openai.itemId
//	custom_tool_call        a tool call with the option openai.custom, whose input
//	                        is a JSON string
//	web_search_call and     a tool call the provider ran and its result, under the
//	others of hosted tools  names and shapes of the AI SDK's OpenAI provider
//	shell_call, apply_patch_call, local_shell_call, tool_search_call, computer_call
//	                        tool calls, the client's unless the provider ran them
//	mcp_approval_request    a tool call and a request for approval
//	everything else         a custom part, openai. and the type of the item
//
// A tool call that is no function call keeps its item as the option openai.item, so that
// the provider gets the item back unchanged.
//
// Data that another provider must get back is put into the following places of the
// client's answer: the encrypted_content of a reasoning item (hub.Wrap), the call_id of a
// function call (hub.PackID), and, for data known only after its item, an additional
// reasoning item behind it.
//
// The gateway stores no state: previous_response_id, conversations and item references
// are refused, and store is always false.
package responses

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Format is the Responses API. It has no state.
type Format struct{}

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "responses".
func (*Format) Name() string { return "responses" }

var (
	_ hub.Surface  = (*Format)(nil)
	_ hub.Upstream = (*Format)(nil)
)

// Limits of what is read.
const (
	maxEvent = 16 << 20 // bytes of one event of a stream
	maxWhole = 64 << 20 // bytes of a whole answer, and of the kept data of a streamed one
	maxItems = 8192     // items of an answer
	maxCalls = 1024     // tool calls of an answer
)
