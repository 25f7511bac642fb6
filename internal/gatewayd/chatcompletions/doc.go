// Package chatcompletions implements OpenAI's Chat Completions format: as a Surface for
// clients, and as an Upstream for OpenAI and the many servers that offer variants of the
// format. The decoder tolerates these variants.
//
//	request.go       decodes calls              outgoing.go   encodes calls
//	conversation.go  decodes their prompts      prompt.go     encodes prompts
//	blocking.go      whole answers, both ways   reasoning.go  reasoning and signatures
//	reader.go        decodes streams            writer.go     encodes streams
//	errors.go        errors, both ways          tap.go        watches passed answers
//	usage.go         tokens, both ways          thinktags.go  <think> in text
//	quirks.go        how servers differ         passes.go     requests passed unchanged
//
// The package also has smaller formats that such servers offer: embeddings.go, images.go
// and rerank.go.
//
// Data that a provider must get back with its reasoning (signatures, encrypted reasoning)
// is put into reasoning_details[] of the message, and into the ids of tool calls
// (hub.PackID): clients send both back, so the gateway stores nothing.
//
// Members of a Call that only this format knows are kept in the Call's Options under the
// name chatcompletions: includeUsage (the client wants a usage chunk at the end of the
// stream), encodingFormat (of embeddings), and member.NAME, a member without a place in
// Call, for calls that go to a server of this format.
package chatcompletions

import "github.com/cayhq/cay/internal/gatewayd/hub"

// Format is the Chat Completions format. It has no state.
type Format struct{}

var (
	_ hub.Surface  = (*Format)(nil)
	_ hub.Upstream = (*Format)(nil)
)

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "chatcompletions".
func (*Format) Name() string { return "chatcompletions" }
