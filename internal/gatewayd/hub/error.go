package hub

import (
	"encoding/json"
	"time"
)

// Error is why a model was not called, or did not answer. Each Surface has its
// own words and statuses for the kinds.
type Error struct {
	Kind    ErrorKind
	Message string // for people; carries no credential and nothing of a prompt
	// Status is the upstream's HTTP status, 0 if it did not come to one.
	Status int
	// Code and Param are the upstream's, or ours: model_not_found, the name of a
	// field.
	Code  string
	Param string
	// Model is the model the error is about, where it is about one: not always the
	// one that was asked for.
	Model string
	// Details go to clients whose dialect has a place for them: {"ruleId": ...}.
	Details json.RawMessage
	// RetryAfter is how long to wait; 0 if nobody said.
	RetryAfter time.Duration
	// Provider is the upstream's name, empty if the error is ours.
	Provider string
	// Cause is for the log.
	Cause error
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the Cause.
func (e *Error) Unwrap() error { return e.Cause }

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
	FailedDependency ErrorKind = "failed_dependency" // 424: such as a file we could not fetch
	RateLimited      ErrorKind = "rate_limited"      // 429: by us, or by every upstream
	Internal         ErrorKind = "internal"          // 500
	UpstreamFailed   ErrorKind = "upstream_failed"   // 502: it answered with 5xx, or nonsense, or broke off
	Overloaded       ErrorKind = "overloaded"        // 503, 529
	Timeout          ErrorKind = "timeout"           // 504
	Canceled         ErrorKind = "canceled"          // 499: the client left
)
