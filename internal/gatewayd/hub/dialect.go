package hub

import (
	"io"
	"net/http"
)

// Surface is the client side of a wire format.
//
// Its methods may be called concurrently; the methods of a Writer may not.
type Surface interface {
	// Name returns the name of the format's package.
	Name() string
	// ReadCall decodes the body of a request. Its errors are *Error of the kind
	// BadRequest and name the invalid member.
	ReadCall(head http.Header, body []byte) (*Call, error)
	// WriteResult encodes a whole answer.
	WriteResult(a Answer, r *Result) ([]byte, error)
	// NewWriter returns the encoder of a streamed answer.
	NewWriter(a Answer) Writer
	// WriteError encodes an error answer, and may set headers such as Retry-After.
	WriteError(a Answer, e *Error, head http.Header) (status int, body []byte)
}

// Answer holds what a Surface needs to know about an answer besides its content.
type Answer struct {
	// ID is the generation id, gen_ and 26 characters.
	ID string
	// Model is the client's name for the model.
	Model string
	// Version is the client's version of the format; only aisdk (2, 3, 4) and messages
	// (the anthropic-version) have several.
	Version string
	// Call is the request; nil if it could not be decoded.
	Call *Call
	// Metadata returns the JSON object that goes to providerMetadata.gateway: the
	// attempts and the cost. It is called when the answer is complete. It is nil if the
	// client gets no metadata.
	Metadata func() []byte
}

// Writer encodes the events of one answer as bytes of a stream.
type Writer interface {
	// Append appends the encoding of e to dst, which may be empty. Events must come in
	// the order that Event describes. A Failure ends the stream in the way that clients
	// of the format recognize.
	Append(dst []byte, e *Event) []byte
	// KeepAlive appends data to dst that clients ignore.
	KeepAlive(dst []byte) []byte
}

// Upstream is the provider side of a wire format.
//
// Its methods may be called concurrently; the methods of a Reader may not.
type Upstream interface {
	// Name returns the name of the format's package.
	Name() string
	// WriteCall encodes c for t. It returns warnings about content that t does not
	// support, or an *Error of the kind BadRequest if leaving the content out would
	// change the request. Members of the Call without a place in t's format are among the
	// warnings: see Call.Unheard. WriteCall does not change c.
	WriteCall(c *Call, t *Target) (*Outgoing, []Warning, error)
	// ReadResult decodes a whole answer. An error is an *Error of the kind
	// UpstreamFailed, or the error in the answer itself.
	ReadResult(t *Target, body []byte) (*Result, error)
	// NewReader returns the decoder of a streamed answer.
	NewReader(t *Target, body io.Reader) Reader
	// ReadError decodes an answer with a status of 400 and above. It never fails: for a
	// malformed body, the error contains only what is safe to show.
	ReadError(t *Target, status int, head http.Header, body []byte) *Error
	// Tap returns a Tap for an answer that is passed unchanged to a client of the same
	// format. It is nil if the format has no Surface.
	Tap(t *Target, stream bool) Tap
}

// Mender is an Upstream that repairs streamed answers on their way to a client of the
// same format, if servers send events that the format's clients misread.
type Mender interface {
	// Mend returns body with repairs. All other events are unchanged.
	Mend(t *Target, body io.ReadCloser) io.ReadCloser
}

// WholeMender is a Mender that also repairs whole answers.
type WholeMender interface {
	Mender
	// MendWhole returns body, or a repaired copy. body must be JSON.
	MendWhole(t *Target, body []byte) []byte
}

// Target is the endpoint of a provider that a Call goes to.
type Target struct {
	Provider string // the provider's name in the configuration: openai, groq, my-vllm
	Model    string // the provider's own name for the model
	// MaxOutput is the model's maximum number of output tokens; 0 if unknown.
	MaxOutput int64
	// Call is the request, for readers that depend on it: for the names of tools, and for
	// whether Raw events are wanted. It may be nil.
	Call *Call
	// Quirks are the provider's deviations from the format, by names that the format's
	// package defines and documents.
	Quirks map[string]bool
}

// Is reports whether the target has a quirk.
func (t *Target) Is(quirk string) bool { return t.Quirks[quirk] }

// Outgoing is a request to a provider, without its address and credentials.
type Outgoing struct {
	// Path is the part after the provider's base URL, escaped, with the query:
	// /chat/completions, /models/gemini-3-pro:streamGenerateContent?alt=sse.
	Path string
	Head http.Header // without credentials; may be nil
	Body []byte      // JSON
}

// Reader decodes a streamed answer.
type Reader interface {
	// Next returns the events of the next unit read, at least one. The result is valid
	// until the next call. Next ends with Finished or Failure, and then returns io.EOF. A
	// stream that breaks off before the format's end mark becomes a Failure of the kind
	// UpstreamFailed; so does an event that is too large or malformed. Next returns an
	// error only if a read failed; the caller interprets it.
	Next() ([]Event, error)
	// Usage returns what the provider has counted so far, nil if nothing: it is the basis
	// of the charge for an answer that ends with a Failure, or that is not read to its
	// end.
	Usage() *Usage
}

// Tap watches a passed answer without changing it.
type Tap interface {
	// Write processes the next bytes of the body. It never fails.
	Write(p []byte)
	// Begun reports whether content has been seen.
	Begun() bool
	// End is called after the last byte and returns the result.
	End() Seen
}

// Doubter is a Tap that detects malformed events, for example truncated JSON. The gateway
// ends such a stream with an error in place of the event.
type Doubter interface {
	Tap
	// Nonsense reports whether a malformed event was seen.
	Nonsense() bool
}

// Seen is the result of a Tap.
type Seen struct {
	Response Response
	Finish   Finish
	Usage    *Usage // nil if the provider sent none
	// Complete says that the answer has its format's end: complete JSON, or the stream's
	// last event.
	Complete bool
	// Err is an error inside the answer.
	Err *Error
	// Kept are ids under which the provider keeps parts of the answer, besides
	// Response.ID: ids of items, containers, and files in containers.
	Kept []string
	// OutputBytes is the size of the generated output, an estimate for answers without
	// Usage.
	OutputBytes int64
}
