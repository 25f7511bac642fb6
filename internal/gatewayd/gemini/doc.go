// Package gemini speaks the API of Google's Gemini models to providers, Google AI
// Studio and Vertex AI: generateContent, countTokens and embeddings. Facts are
// from Google's public API reference.
//
// An answer is a list of parts. How they are in the hub's words:
//
//	text                 text parts, or reasoning parts where thought is set; what
//	                     comes in several pieces is one, up to a signature
//	functionCall         a tool call; Google mostly gives it no id, so that one is
//	                     invented, and its name is found again by it
//	executableCode and   a call of the tool code_execution that the provider ran,
//	codeExecutionResult  and its result
//	inlineData, fileData a file
//	groundingMetadata    sources
//	everything else      a custom part, google. and the name of the member
//
// Newer models want the thoughtSignature of a part back, with the part: it is the
// option google.thoughtSignature of text, reasoning, files and tool calls. Calls
// of foreign providers, which have none, get the one that Google documents for
// that.
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

// Tap returns nil: no clients speak the format to us.
func (*Format) Tap(*hub.Target, bool) hub.Tap { return nil }

var _ hub.Upstream = (*Format)(nil)

// Limits of what is read.
const (
	maxEvent = 16 << 20 // bytes of one event of a stream
	maxWhole = 64 << 20 // bytes of a whole answer, and of all events of a stream
	maxParts = 65536    // parts of an answer
	maxCalls = 1024     // tool calls of an answer
	maxDepth = 512      // levels of arguments and schemas
)
