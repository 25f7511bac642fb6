package messages

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// errorBody is the body of an error answer, and the data of a stream's error event.
type errorBody struct {
	Type      string     `json:"type"`
	Error     errorWords `json:"error"`
	RequestID string     `json:"request_id,omitempty"`
}

type errorWords struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// statusOf returns the status and the error type for a kind.
func statusOf(kind hub.ErrorKind) (int, string) {
	switch kind {
	case hub.BadRequest, hub.FailedDependency:
		return http.StatusBadRequest, "invalid_request_error"
	case hub.Unauthenticated:
		return http.StatusUnauthorized, "authentication_error"
	case hub.BudgetExceeded:
		return http.StatusPaymentRequired, "billing_error"
	case hub.Forbidden:
		return http.StatusForbidden, "permission_error"
	case hub.ModelNotFound, hub.NotFound:
		return http.StatusNotFound, "not_found_error"
	case hub.TooLarge:
		return http.StatusRequestEntityTooLarge, "request_too_large"
	case hub.RateLimited:
		return http.StatusTooManyRequests, "rate_limit_error"
	case hub.UpstreamFailed:
		return http.StatusBadGateway, "api_error"
	case hub.Overloaded:
		return 529, "overloaded_error"
	case hub.Timeout:
		return http.StatusGatewayTimeout, "timeout_error"
	case hub.Canceled:
		return 499, "api_error"
	}
	return http.StatusInternalServerError, "api_error"
}

// kindOf returns the kind for an error type, empty if the type is unknown.
func kindOf(kind string) hub.ErrorKind {
	switch kind {
	case "invalid_request_error":
		return hub.BadRequest
	case "authentication_error", "billing_error", "permission_error", "api_error":
		return hub.UpstreamFailed // the credential is ours
	case "not_found_error":
		return hub.ModelNotFound
	case "request_too_large":
		return hub.TooLarge
	case "rate_limit_error":
		return hub.RateLimited
	case "overloaded_error":
		return hub.Overloaded
	case "timeout_error":
		return hub.Timeout
	}
	return ""
}

// WriteError encodes an error. It sets Retry-After in seconds if e.RetryAfter is set.
func (*Format) WriteError(a hub.Answer, e *hub.Error, head http.Header) (int, []byte) {
	status, kind := statusOf(e.Kind)
	if e.RetryAfter > 0 {
		head.Set("Retry-After", strconv.FormatFloat(math.Ceil(e.RetryAfter.Seconds()), 'f', 0, 64))
	}
	body, _ := hub.Encode(errorBody{Type: "error", Error: errorWords{kind, e.Message}, RequestID: a.ID}) // texts
	return status, body
}

// errorOf returns the error inside an answer.
func errorOf(t *hub.Target, e gjson.Result) *hub.Error {
	code := e.Get("type").Str
	out := &hub.Error{Kind: kindOf(code), Code: code, Message: hub.Redact(e.Get("message").Str), Provider: t.Provider}
	if out.Kind == "" {
		out.Kind = hub.UpstreamFailed
	}
	if out.Message == "" {
		out.Message = t.Provider + " failed without a word"
	}
	return out
}

// ReadError decodes an answer with a status of 400 and above. The status determines the
// kind, except for overloaded_error, which occurs with any status.
func (*Format) ReadError(t *hub.Target, status int, head http.Header, body []byte) *hub.Error {
	out := &hub.Error{
		Kind: hub.KindOf(status), Status: status, Provider: t.Provider, RetryAfter: hub.RetryAfter(head, time.Now()),
	}
	if body = bytes.TrimSpace(body); json.Valid(body) {
		e := gjson.ParseBytes(body)
		if inner := e.Get("error"); inner.IsObject() {
			e = inner
		}
		out.Code = e.Get("type").Str
		if m := e.Get("message"); m.Type == gjson.String {
			out.Message = hub.Redact(m.Str)
		} else if e.Type == gjson.String {
			out.Message = hub.Redact(e.Str)
		}
		if kindOf(out.Code) == hub.Overloaded {
			out.Kind = hub.Overloaded
		}
	}
	if out.Message == "" {
		out.Message = t.Provider + " answered with the status " + strconv.Itoa(status)
	}
	return out
}
