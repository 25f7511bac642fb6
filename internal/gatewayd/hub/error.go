package hub

import (
	"encoding/json"
	"errors"
	"time"
)

// Error is the reason why a model was not called, or did not answer. Each Surface maps
// the kinds to its own terms and statuses.
type Error struct {
	Kind    ErrorKind
	Message string // for people; contains no credential and no part of a prompt
	// Status is the upstream's HTTP status, 0 if there is none.
	Status int
	// Code and Param come from the upstream or from the gateway: model_not_found, the
	// name of a field.
	Code  string
	Param string
	// Model is the model that the error is about, if any, which may differ from the
	// requested one.
	Model string
	// Details go to clients whose format has a place for them: {"ruleId": ...}.
	Details json.RawMessage
	// RetryAfter is the suggested pause before a retry; 0 if unknown.
	RetryAfter time.Duration
	// Provider is the upstream's name, empty if the error is the gateway's own.
	Provider string
	// Cause is for the log.
	Cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the Cause.
func (e *Error) Unwrap() error { return e.Cause }

// AsError converts err to an Error, of the kind Internal if it is none.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Kind: Internal, Message: "internal error", Cause: err}
}

// ErrLeft is the cause of what ends because a client left.
var ErrLeft = errors.New("the client left")

// Left returns the error of a call whose client left.
func Left() *Error { return &Error{Kind: Canceled, Message: "the client left", Cause: ErrLeft} }

// ErrorKind is the kind of an Error.
type ErrorKind string

// The kinds of errors, with the HTTP status most dialects give them.
const (
	BadRequest       ErrorKind = "invalid_request"   // 400
	Unauthenticated  ErrorKind = "unauthenticated"   // 401: the gateway does not know the key
	BudgetExceeded   ErrorKind = "budget_exceeded"   // 402
	Forbidden        ErrorKind = "forbidden"         // 403: a rule, or the key's scope
	ModelNotFound    ErrorKind = "model_not_found"   // 404
	NotFound         ErrorKind = "not_found"         // 404
	TooLarge         ErrorKind = "too_large"         // 413
	FailedDependency ErrorKind = "failed_dependency" // 424: for example a file that could not be fetched
	RateLimited      ErrorKind = "rate_limited"      // 429: by the gateway, or by every upstream
	Internal         ErrorKind = "internal"          // 500
	UpstreamFailed   ErrorKind = "upstream_failed"   // status 5xx, a malformed answer, or one that broke off
	Overloaded       ErrorKind = "overloaded"        // 503, 529
	Timeout          ErrorKind = "timeout"           // 504
	Canceled         ErrorKind = "canceled"          // 499: the client left
)
