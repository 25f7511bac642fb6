// Package gemini implements the upstream side of the API of Google's Gemini models, for
// Google AI Studio and Vertex AI: generateContent, countTokens and embeddings. Source:
// Google's public API reference.
//
// An answer is a list of parts. The parts map to the hub as follows:
//
//	text                 text parts, or reasoning parts where thought is set; consecutive
//	                     pieces are joined, up to a signature
//	functionCall         a tool call; Google mostly gives it no id, so the package invents
//	                     an id, by which it finds the call's name again
//	executableCode and   a call of the tool code_execution that the provider ran,
//	codeExecutionResult  and its result
//	inlineData, fileData a file
//	groundingMetadata    sources
//	everything else      a custom part, google. and the name of the member
//
// Newer models require the thoughtSignature of a part to be sent back with the part: the
// hub keeps it as the option google.thoughtSignature of text, reasoning, files and tool
// calls. Calls that another provider's model made have no signature; they get the
// placeholder that Google documents.
//
// AI Studio and Vertex differ by QuirkVertex.
package gemini

import (
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Format is the API of Gemini models. It has no state.
type Format struct{}

// New returns the format.
func New() *Format { return &Format{} }

// Name returns "gemini".
func (*Format) Name() string { return "gemini" }

var _ hub.Upstream = (*Format)(nil)

// Limits of what is read.
const (
	maxEvent = 16 << 20 // bytes of one event of a stream
	maxWhole = 64 << 20 // bytes of a whole answer, and of all events of a stream
	maxParts = 65536    // parts of an answer
	maxCalls = 1024     // tool calls of an answer
	maxDepth = 512      // levels of arguments and schemas
)
