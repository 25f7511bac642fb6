package gemini

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// status is google.rpc.Status, the form of all errors.
type status struct {
	Code    int      `json:"code"`
	Message string   `json:"message"`
	Status  string   `json:"status"`
	Details []detail `json:"details"`
}

// detail holds the members read from google.rpc's error_details.
type detail struct {
	Type       string `json:"@type"`
	RetryDelay string `json:"retryDelay"` // RetryInfo: 34.4s
	Reason     string `json:"reason"`     // ErrorInfo
	Violations []struct {
		Field string `json:"field"` // BadRequest
	} `json:"fieldViolations"`
}

// ReadError reads {"error": {code, message, status, details}}, alone or in a list;
// failing streams begin with such a list. RetryInfo sets RetryAfter.
func (*Format) ReadError(t *hub.Target, code int, head http.Header, body []byte) *hub.Error {
	e := &hub.Error{Kind: hub.KindOf(code), Status: code, Provider: t.Provider, RetryAfter: hub.RetryAfter(head, time.Now())}
	var wire struct{ Error json.RawMessage }
	body = bytes.TrimSpace(body)
	var list []json.RawMessage
	if len(body) > 0 && body[0] == '[' && json.Unmarshal(body, &list) == nil && len(list) > 0 {
		body = list[0]
	}
	if json.Unmarshal(body, &wire) == nil {
		e.Message = take(e, wire.Error)
	} else if len(body) > 0 && body[0] != '<' && body[0] != '{' { // a page of a proxy says nothing
		e.Message = hub.Redact(string(body))
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("%s answered with status %d", t.Provider, code)
	}
	return e
}

// take sets e's members from the provider's error, and returns the message.
func take(e *hub.Error, raw json.RawMessage) string {
	var s status
	if json.Unmarshal(raw, &s) != nil {
		var message string
		_ = json.Unmarshal(raw, &message) // neither form: the message stays empty
		return hub.Redact(message)
	}
	e.Code = hub.Redact(s.Status)
	for _, d := range s.Details {
		if wait, err := time.ParseDuration(d.RetryDelay); err == nil && wait > 0 && e.RetryAfter == 0 {
			e.RetryAfter = wait
		}
		if len(d.Violations) > 0 && e.Param == "" {
			e.Param = hub.Redact(d.Violations[0].Field)
		}
		if strings.HasPrefix(d.Reason, "API_KEY_") { // comes as 400
			e.Kind, e.Status = hub.UpstreamFailed, http.StatusUnauthorized
		}
	}
	if s.Status == "FAILED_PRECONDITION" { // the account is not set up, or not for that place
		e.Kind = hub.UpstreamFailed
	}
	return hub.Redact(s.Message)
}

// inStream returns the error for an error event of a stream.
func inStream(t *hub.Target, raw json.RawMessage) *hub.Error {
	e := &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider}
	var s status
	if json.Unmarshal(raw, &s) == nil && s.Code >= 400 {
		e.Kind = hub.KindOf(s.Code)
	}
	if e.Message = take(e, raw); e.Message == "" {
		e.Message = t.Provider + " could not complete the answer"
	}
	return e
}

// broken returns the error for a malformed answer.
func broken(t *hub.Target, message string, cause error) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider, Message: t.Provider + ": " + message, Cause: cause}
}

func invalid(param, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}
