package gatewaytest

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"
)

// Fault is a provider failure to simulate. Fields that do not apply to its Kind are
// ignored.
type Fault struct {
	Kind FaultKind
	// After is the place in the answer: bytes for Cut and Short, events for HangInStream
	// and ErrorInStream. 0 is before the first byte or event.
	After int
	// RetryAfter is the Retry-After of RateLimited; 0 means no header.
	RetryAfter time.Duration
	// Bytes is the size of Oversize in bytes; 0 means 17 MiB, more than the maximum size
	// of an event.
	Bytes int
	// Every is the pause of Drip before each byte; 0 means 100 µs before every sixteenth
	// byte.
	Every time.Duration
}

// FaultKind is a kind of Fault.
type FaultKind string

// The kinds of faults. See also Refused and Untrusted, which fail before a request.
const (
	RateLimited   FaultKind = "rate limited"     // 429, with the format's own body
	ServerError   FaultKind = "server error"     // 500
	Overloaded    FaultKind = "overloaded"       // 529 or 503
	Rejected      FaultKind = "rejected"         // 400
	BadKey        FaultKind = "bad key"          // 401
	NoModel       FaultKind = "no model"         // 404
	Reset         FaultKind = "reset"            // the connection ends before an answer
	HangInHead    FaultKind = "hang in head"     // there is no answer until the client leaves
	HangInStream  FaultKind = "hang in stream"   // starts an answer and then sends nothing more
	Cut           FaultKind = "cut"              // the connection breaks within the answer
	Short         FaultKind = "short"            // the body ends, properly, before the answer does
	NoEnd         FaultKind = "no end"           // without the event, or [DONE], that ends the stream
	Garbage       FaultKind = "garbage"          // invalid JSON; a stream continues after it
	WrongType     FaultKind = "wrong type"       // 200 with a page of HTML
	Oversize      FaultKind = "oversize"         // an event, or a body, that is too large
	Drip          FaultKind = "drip"             // one byte at a time
	ErrorInStream FaultKind = "error in stream"  // an error in the format's form
	Secret        FaultKind = "secret in errors" // 401 with the key in the message
)

// Faults returns all kinds of faults, each with sensible places.
func Faults() []Fault {
	return []Fault{
		{Kind: RateLimited, RetryAfter: time.Second}, {Kind: ServerError}, {Kind: Overloaded}, {Kind: Rejected}, {Kind: BadKey}, {Kind: NoModel},
		{Kind: Reset}, {Kind: HangInHead}, {Kind: HangInStream, After: 3}, {Kind: Cut, After: 200}, {Kind: Short, After: 200}, {Kind: NoEnd},
		{Kind: Garbage}, {Kind: WrongType}, {Kind: Oversize}, {Kind: Drip}, {Kind: ErrorInStream, After: 3}, {Kind: Secret},
	}
}

// Refused returns the URL of a server that does not exist.
func Refused(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

// Untrusted returns the URL of a server with a self-signed certificate.
func Untrusted(t testing.TB) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // clients reject the certificate
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// ErrorBody returns an error in a format's form, with its headers.
func ErrorBody(format string, status int, message string) (http.Header, []byte) {
	head := http.Header{"Content-Type": {"application/json"}}
	kind := map[int]string{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}[status]
	if kind == "" {
		kind = "api_error"
	}
	switch format {
	case Messages:
		head.Set("Request-Id", "req_mock")
		return head, encode(object{"type": "error", "error": object{"type": kind, "message": message}, "request_id": "req_mock"})
	case Gemini:
		word := map[int]string{400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}[status]
		if word == "" {
			word = "INTERNAL"
		}
		return head, encode(object{"error": object{"code": status, "message": message, "status": word}})
	case Converse:
		word := map[int]string{400: "ValidationException", 401: "UnrecognizedClientException", 404: "ResourceNotFoundException", 429: "ThrottlingException", 503: "ServiceUnavailableException"}[status]
		if word == "" {
			word = "InternalServerException"
		}
		head.Set("X-Amzn-Errortype", word)
		return head, encode(object{"message": message})
	}
	head.Set("X-Request-Id", "req_mock")
	var code any
	if status == http.StatusTooManyRequests {
		code = "rate_limit_exceeded"
	}
	return head, encode(object{"error": object{"message": message, "type": kind, "param": nil, "code": code}})
}

// errorFrame returns an error within a stream.
func errorFrame(format, message string) []byte {
	switch format {
	case Messages:
		return Frame(format, encode(object{"type": "error", "error": object{"type": "overloaded_error", "message": message}}))
	case Responses:
		return Frame(format, encode(object{"type": "response.failed", "sequence_number": 99, "response": object{
			"id": "resp_rendered", "object": "response", "status": "failed", "output": []any{}, "error": object{"code": "server_error", "message": message}}}))
	case Gemini:
		_, body := ErrorBody(format, http.StatusServiceUnavailable, message)
		return Frame(format, body)
	case Converse:
		return EventStream(encode(object{"message": message}), ":message-type", "exception", ":exception-type", "modelStreamErrorException", ":content-type", "application/json")
	}
	return Frame(format, encode(object{"error": object{"message": message, "type": "server_error", "code": "server_error"}}))
}

// status returns the status and message of a fault that is an HTTP status; 0 for other
// faults.
func (f Fault) status(format string) (int, string) {
	switch f.Kind {
	case RateLimited:
		return http.StatusTooManyRequests, "You are too fast."
	case ServerError:
		return http.StatusInternalServerError, "The server had an error."
	case Overloaded:
		if format == Messages {
			return 529, "Overloaded"
		}
		return http.StatusServiceUnavailable, "Overloaded"
	case Rejected:
		return http.StatusBadRequest, "This was not understood."
	case BadKey:
		return http.StatusUnauthorized, "Who are you?"
	case NoModel:
		return http.StatusNotFound, "There is no such model."
	case Secret:
		return http.StatusUnauthorized, fmt.Sprintf("Incorrect API key provided: %s.", Key)
	}
	return 0, ""
}

func (f Fault) retryAfter() string {
	return strconv.Itoa(int((f.RetryAfter + time.Second - 1) / time.Second))
}
