package aisdk

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// word is the name of an error: the client has a class of error per type, and retries the
// statuses 408, 409, 429 and from 500.
type word struct {
	status int
	name   string
	code   string // where the name alone does not say it
}

var words = map[hub.ErrorKind]word{
	hub.BadRequest:       {http.StatusBadRequest, "invalid_request_error", ""},
	hub.Unauthenticated:  {http.StatusUnauthorized, "authentication_error", ""},
	hub.BudgetExceeded:   {http.StatusPaymentRequired, "insufficient_funds", "budget_exceeded"},
	hub.Forbidden:        {http.StatusForbidden, "forbidden", ""},
	hub.ModelNotFound:    {http.StatusNotFound, "model_not_found", ""},
	hub.NotFound:         {http.StatusNotFound, "not_found", ""},
	hub.TooLarge:         {http.StatusRequestEntityTooLarge, "invalid_request_error", "too_large"},
	hub.FailedDependency: {http.StatusFailedDependency, "failed_dependency", ""},
	hub.RateLimited:      {http.StatusTooManyRequests, "rate_limit_exceeded", ""},
	hub.Internal:         {http.StatusInternalServerError, "internal_server_error", ""},
	hub.UpstreamFailed:   {http.StatusBadGateway, "internal_server_error", "upstream_failed"},
	hub.Overloaded:       {http.StatusServiceUnavailable, "internal_server_error", "overloaded"},
	hub.Timeout:          {http.StatusGatewayTimeout, "internal_server_error", "timeout"},
	hub.Canceled:         {499, "request_canceled", ""},
}

func wordOf(kind hub.ErrorKind) word {
	if w, ok := words[kind]; ok {
		return w
	}
	return words[hub.Internal]
}

// WriteError implements hub.Surface.
func (*Format) WriteError(a hub.Answer, e *hub.Error, head http.Header) (int, []byte) {
	if e.RetryAfter > 0 {
		head.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
		head.Set("Retry-After-Ms", strconv.FormatInt(int64((e.RetryAfter+time.Millisecond-1)/time.Millisecond), 10))
	}
	w := newAnswer(a)
	body := w.failure([]byte(`{"error":`), e)
	body = optional(body, "generationId", a.ID)
	return wordOf(e.Kind).status, append(body, '}')
}

// failure appends an error object.
func (w *answer) failure(dst []byte, e *hub.Error) []byte {
	message := e.Message
	if message == "" {
		message = http.StatusText(wordOf(e.Kind).status)
	}
	if message == "" {
		message = string(e.Kind)
	}
	dst = text(append(dst, '{'), "message", message)
	dst = text(dst, "type", wordOf(e.Kind).name)
	switch {
	case len(e.Details) > 0 && json.Valid(e.Details):
		dst = raw(key(dst, "param"), e.Details)
	case e.Kind == hub.ModelNotFound:
		model := e.Model
		if model == "" {
			model = w.Model
		}
		dst = append(text(append(key(dst, "param"), '{'), "modelId", model), '}')
	case e.Param != "":
		dst = text(dst, "param", e.Param)
	}
	code := e.Code
	if code == "" {
		code = wordOf(e.Kind).code
	}
	return append(optional(dst, "code", code), '}')
}

// Unserved returns the error for a kind of model of the protocol that the gateway does
// not serve, such as speech or video. Its kind is BadRequest, which clients do not retry.
func Unserved(kind string) *hub.Error {
	return &hub.Error{
		Kind: hub.BadRequest, Code: "unsupported_model_kind",
		Message: "this gateway does not serve " + string(trim(gjson.AppendJSONString(nil, kind))) +
			" models; it serves language, embedding, image and reranking models",
	}
}

// trim removes the quotes.
func trim(quoted []byte) []byte { return quoted[1 : len(quoted)-1] }
