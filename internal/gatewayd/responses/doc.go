// Package responses speaks the OpenAI Responses API, to clients and to providers.
//
// What an answer consists of is a list of items, and what a client sends is such
// a list too. How they are in the hub's words, in both directions:
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
// A tool call that is no function's keeps its item as the option openai.item, so
// that it goes back to the provider as it came.
//
// What a foreign provider must get back has these places in what clients are
// given: the encrypted_content of a reasoning item (hub.Wrap), the call_id of a
// function call (hub.PackID), and for what is known only after the item it is
// about, a reasoning item of its own behind it.
//
// There is no state: previous_response_id, conversations and item references are
// refused, and store is always false.
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
	maxWhole = 64 << 20 // bytes of a whole answer, and of what is kept of a streamed one
	maxItems = 8192     // items of an answer
	maxCalls = 1024     // tool calls of an answer
)
