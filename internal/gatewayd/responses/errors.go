package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// errorBody is OpenAI's error object, in whole answers and in events.
type errorBody struct {
	Message string          `json:"message"`
	Type    string          `json:"type"`
	Param   json.RawMessage `json:"param"`
	Code    json.RawMessage `json:"code"` // a string; some servers give a number
}

func invalid(param, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// broken returns the error for a malformed answer.
func broken(t *hub.Target, message string, cause error) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider, Message: t.Provider + ": " + message, Cause: cause}
}

// wireErrors maps kinds of errors to the OpenAI API's statuses, types and codes.
var wireErrors = map[hub.ErrorKind]struct {
	status    int
	typ, code string
}{
	hub.BadRequest:       {400, "invalid_request_error", ""},
	hub.Unauthenticated:  {401, "authentication_error", "invalid_api_key"},
	hub.BudgetExceeded:   {402, "insufficient_quota", "budget_exceeded"},
	hub.Forbidden:        {403, "permission_error", "forbidden"},
	hub.ModelNotFound:    {404, "invalid_request_error", "model_not_found"},
	hub.NotFound:         {404, "invalid_request_error", "not_found"},
	hub.TooLarge:         {413, "invalid_request_error", "request_too_large"},
	hub.FailedDependency: {424, "failed_dependency", "failed_dependency"},
	hub.RateLimited:      {429, "rate_limit_error", "rate_limit_exceeded"},
	hub.Internal:         {500, "server_error", "server_error"},
	hub.UpstreamFailed:   {502, "server_error", "upstream_failed"},
	hub.Overloaded:       {503, "server_error", "overloaded"},
	hub.Timeout:          {504, "server_error", "timeout"},
	hub.Canceled:         {499, "server_error", "canceled"},
}

// WriteError encodes an error like OpenAI, {"error": {message, type, param, code}}, with
// the generation id beside it.
func (*Format) WriteError(a hub.Answer, e *hub.Error, head http.Header) (int, []byte) {
	wire, ok := wireErrors[e.Kind]
	if !ok {
		wire = wireErrors[hub.Internal]
	}
	if e.RetryAfter > 0 && head != nil {
		head.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
		head.Set("Retry-After-Ms", strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
	}
	body := object{"error": clientError(e)}
	if a.ID != "" {
		body["generationId"] = a.ID
	}
	return wire.status, hub.MustEncode(body)
}

// clientError returns the error object for clients.
func clientError(e *hub.Error) object {
	wire, ok := wireErrors[e.Kind]
	if !ok {
		wire = wireErrors[hub.Internal]
	}
	o := object{"message": e.Message, "type": wire.typ, "param": nil, "code": nil}
	if code := errorCode(e); code != "" {
		o["code"] = code
	}
	if e.Param != "" {
		o["param"] = e.Param
	}
	if len(e.Details) > 0 {
		o["details"] = e.Details
	}
	return o
}

func errorCode(e *hub.Error) string {
	if e.Code != "" {
		return e.Code
	}
	if wire, ok := wireErrors[e.Kind]; ok {
		return wire.code
	}
	return wireErrors[hub.Internal].code
}

// ReadError reads {"error": {...}}, and the forms that other servers use: {"error":
// "text", "code": "text"} (xAI), {"message": ...}, {"detail": ...}, or no JSON at all.
func (*Format) ReadError(t *hub.Target, status int, head http.Header, body []byte) *hub.Error {
	e := &hub.Error{Kind: hub.KindOf(status), Status: status, Provider: t.Provider, RetryAfter: hub.RetryAfter(head, time.Now())}
	if e.Kind == hub.ModelNotFound {
		e.Kind = hub.NotFound
	}
	var wire struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Code    json.RawMessage `json:"code"`
	}
	body = bytes.TrimSpace(body)
	if json.Unmarshal(body, &wire) == nil {
		var inner errorBody
		if len(wire.Error) > 0 && wire.Error[0] == '{' && json.Unmarshal(wire.Error, &inner) == nil {
			take(e, inner)
		} else {
			take(e, errorBody{Message: first(text(wire.Error), wire.Message, text(wire.Detail)), Code: wire.Code})
		}
	} else if len(body) > 0 && body[0] != '<' && body[0] != '{' { // a page of a proxy says nothing
		e.Message = hub.Redact(string(body))
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("%s answered with status %d", t.Provider, status)
	}
	return e
}

// take sets e's members from the provider's error.
func take(e *hub.Error, from errorBody) {
	e.Message = hub.Redact(from.Message)
	e.Code = hub.Redact(text(from.Code))
	if e.Code == "" {
		e.Code = hub.Redact(from.Type)
	}
	e.Param = hub.Redact(text(from.Param))
	switch e.Code {
	case "model_not_found":
		e.Kind = hub.ModelNotFound
	case "rate_limit_exceeded":
		e.Kind = hub.RateLimited
	}
}

// fromEvent returns the error of an answer that failed after it had begun.
func fromEvent(t *hub.Target, from *errorBody) *hub.Error {
	e := &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider}
	if from != nil {
		take(e, *from)
	}
	switch {
	case e.Code == "invalid_prompt", e.Code == "invalid_request_error", strings.HasPrefix(e.Code, "invalid_image"), strings.HasPrefix(e.Code, "context_length"):
		e.Kind = hub.BadRequest
	case e.Code == "insufficient_quota":
		e.Kind = hub.RateLimited
	case strings.Contains(e.Code, "overloaded"):
		e.Kind = hub.Overloaded
	}
	if e.Message == "" {
		e.Message = t.Provider + " could not complete the answer"
	}
	return e
}

func first(all ...string) string {
	for _, s := range all {
		if s != "" {
			return s
		}
	}
	return ""
}
