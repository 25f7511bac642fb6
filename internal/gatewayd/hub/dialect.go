package hub

import (
	"io"
	"net/http"
)

// Surface is the side of a wire format that clients speak to.
//
// Its methods may be called concurrently; what NewWriter returns may not.
type Surface interface {
	// Name is that of its package.
	Name() string
	// ReadCall decodes the body of a request. Its errors are *Error of the kind
	// BadRequest and name the member that is wrong.
	ReadCall(head http.Header, body []byte) (*Call, error)
	// WriteResult encodes a whole answer.
	WriteResult(a Answer, r *Result) ([]byte, error)
	// NewWriter returns the encoder of an answer that is streamed.
	NewWriter(a Answer) Writer
	// WriteError encodes an answer that is an error, and may set headers of it,
	// such as Retry-After.
	WriteError(a Answer, e *Error, head http.Header) (status int, body []byte)
}

// Answer is what a Surface is told about an answer besides its content.
type Answer struct {
	// ID is the generation id, gen_ and 26 characters.
	ID string
	// Model is the name the client called the model by.
	Model string
	// Version is which version of the format the client speaks; only aisdk (2, 3, 4)
	// and messages (the anthropic-version) have several.
	Version string
	// Call is what was asked for; nil if it was not understood.
	Call *Call
	// Metadata returns the JSON object that goes to providerMetadata.gateway: the
	// attempts and the cost. It is called when the answer is complete. Nil if the
	// client is not to have any.
	Metadata func() []byte
}

// Writer encodes the events of one answer as bytes of a stream.
type Writer interface {
	// Append returns dst with what e is in the format, which may be nothing.
	// Events come in the order that Event describes. A Failure ends the stream in
	// the way clients of the format take for one.
	Append(dst []byte, e *Event) []byte
	// KeepAlive returns dst with something that clients ignore.
	KeepAlive(dst []byte) []byte
}

// Upstream is the side of a wire format that we speak to providers.
//
// Its methods may be called concurrently; what NewReader returns may not.
type Upstream interface {
	// Name is that of its package.
	Name() string
	// WriteCall encodes c for t. It returns what t cannot be told, or an *Error of
	// the kind BadRequest where that would not be what was asked. Members of the Call
	// that t has no place for are among the warnings: see Call.Unheard. WriteCall does
	// not change c.
	WriteCall(c *Call, t *Target) (*Outgoing, []Warning, error)
	// ReadResult decodes a whole answer. An error is an *Error of the kind
	// UpstreamFailed, or what the answer itself says went wrong.
	ReadResult(t *Target, body []byte) (*Result, error)
	// NewReader returns the decoder of a streamed answer.
	NewReader(t *Target, body io.Reader) Reader
	// ReadError decodes an answer with a status of 400 and above. It never fails:
	// of a body that makes no sense, it keeps what is safe to show.
	ReadError(t *Target, status int, head http.Header, body []byte) *Error
	// Tap watches an answer that is passed on to a client of the same format as it
	// is. Nil if the format has no Surface.
	Tap(t *Target, stream bool) Tap
}

// Mender is an Upstream that repairs a streamed answer on its way to a client of the same
// format, where servers send events that clients of the format misread.
type Mender interface {
	// Mend returns body with its repairs. All other events pass as they came.
	Mend(t *Target, body io.ReadCloser) io.ReadCloser
}

// WholeMender is a Mender that repairs whole answers, too.
type WholeMender interface {
	Mender
	// MendWhole returns body, or a copy with its repairs. body is JSON.
	MendWhole(t *Target, body []byte) []byte
}

// Target is the endpoint of a provider that a Call goes to.
type Target struct {
	Provider string // its name in the configuration: openai, groq, my-vllm
	Model    string // the provider's own name of the model
	// MaxOutput is the most tokens the model answers with; 0 if unknown.
	MaxOutput int64
	// Call is what was asked for, for readers that need to know: whose names its
	// tools go by, whether Raw events are wanted. It may be nil.
	Call *Call
	// Quirks are how the provider differs from the format it speaks, by names that
	// the package of the format defines and documents.
	Quirks map[string]bool
}

// Is reports whether the target has a quirk.
func (t *Target) Is(quirk string) bool { return t.Quirks[quirk] }

// Outgoing is a request to a provider, without its address and credentials.
type Outgoing struct {
	// Path is what comes after the provider's base URL, escaped, with its query:
	// /chat/completions, /models/gemini-3-pro:streamGenerateContent?alt=sse.
	Path string
	Head http.Header // without credentials; may be nil
	Body []byte      // JSON
}

// Reader decodes a streamed answer.
type Reader interface {
	// Next returns the events of the next thing that was read, at least one. What
	// it returns is good until the call after. Like a stream itself it ends with
	// Finished or Failure, then io.EOF. A stream that breaks off before what the
	// format says is its end becomes a Failure of the kind UpstreamFailed; so do
	// an event that is too large and one that makes no sense. Next returns an error
	// only if reading failed, and what that means is the caller's to say.
	Next() ([]Event, error)
	// Usage returns what the provider has counted so far, nil if nothing: an answer that
	// ends with a Failure, or that nobody reads to its end, is charged by it.
	Usage() *Usage
}

// Tap reads along with an answer that passes, without changing it.
type Tap interface {
	// Write sees the next bytes of the body. It never fails.
	Write(p []byte)
	// Begun reports whether something of the content has been seen.
	Begun() bool
	// End is called after the last byte and says what has been seen.
	End() Seen
}

// Doubter is a Tap that notices an event which is not what its format has, JSON that
// breaks off say. Such a stream is ended with an error in place of that event.
type Doubter interface {
	Tap
	// Nonsense reports whether there was one.
	Nonsense() bool
}

// Seen is what a Tap has seen.
type Seen struct {
	Response Response
	Finish   Finish
	Usage    *Usage // nil if the provider gave none
	// Complete answers had the end their format has: all of the JSON, or the
	// stream's last event.
	Complete bool
	// Err is an error that came as a part of the answer.
	Err *Error
	// Kept are ids under which the provider keeps parts of the answer, besides that of
	// Response: of items, of containers, of files in them.
	Kept []string
	// OutputBytes estimate what was generated where there is no Usage.
	OutputBytes int64
}
