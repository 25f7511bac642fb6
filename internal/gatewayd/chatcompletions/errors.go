package chatcompletions

import (
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Error codes that say more than the status.
const (
	// CodeQuota is the code of a credential without remaining quota. Its status is 429,
	// but a retry does not help.
	CodeQuota      = "insufficient_quota"
	codeBadKey     = "invalid_api_key"
	codeNoModel    = "model_not_found"
	codeTooLong    = "context_length_exceeded"
	maxErrorBody   = 1 << 20
	maxPlainError  = 300
	statusFlexFull = 498 // Groq: no capacity for the flex tier
)

// ReadError decodes an error. Servers send errors in many forms: an object error, a
// string error with message or detail beside it, a list of such errors, or plain text.
func (*Format) ReadError(t *hub.Target, status int, head http.Header, body []byte) *hub.Error {
	body = body[:min(len(body), maxErrorBody)]
	var e *hub.Error
	if root := gjson.ParseBytes(body); valid(body) && (root.IsObject() || root.IsArray()) {
		e = errorIn(t, root, status)
	} else {
		e = &hub.Error{Kind: hub.KindOf(status), Status: status, Provider: t.Provider, Message: plainMessage(body)}
	}
	if e.Message == "" {
		e.Message = "the provider " + t.Provider + " answered with status " + strconv.Itoa(status)
	}
	if e.RetryAfter = hub.RetryAfter(head, time.Now()); e.RetryAfter == 0 && status == http.StatusTooManyRequests && e.Code != CodeQuota {
		e.RetryAfter = resetAfter(head)
	}
	return e
}

var markup = regexp.MustCompile(`(?s)<(script|style).*?</(script|style)>|<[^>]*>`)

// plainMessage returns the text of a body that is not JSON, such as a proxy's page.
func plainMessage(body []byte) string {
	text := strings.Join(strings.Fields(markup.ReplaceAllString(hub.Redact(string(body)), " ")), " ")
	if len(text) > maxPlainError {
		text = strings.ToValidUTF8(text[:maxPlainError], "") + "…"
	}
	return text
}

// resetAfter reads x-ratelimit-reset-requests and -tokens: durations such as 6m0s
// (OpenAI, Groq); only a limit with nothing remaining counts.
func resetAfter(head http.Header) (longest time.Duration) {
	for _, what := range []string{"Requests", "Tokens"} {
		if head.Get("X-Ratelimit-Remaining-"+what) != "0" {
			continue
		}
		if d, err := time.ParseDuration(head.Get("X-Ratelimit-Reset-" + what)); err == nil && d > longest && d < 24*time.Hour {
			longest = d
		}
	}
	return longest
}

// isError reports whether the member error of an answer contains an error.
func isError(v gjson.Result) bool {
	switch v.Type {
	case gjson.Null, gjson.False:
		return false
	case gjson.String:
		return v.Str != ""
	}
	return true
}

// errorIn returns the error in an answer. Status 0 says that the answer's status was a
// success; then the error's code may be an HTTP status.
func errorIn(t *hub.Target, root gjson.Result, status int) *hub.Error {
	if root.IsArray() {
		root = root.Get("0")
	}
	inner := root.Get("error")
	e := &hub.Error{Status: status, Provider: t.Provider}
	kind := ""
	for _, v := range []gjson.Result{inner, root} {
		if !v.IsObject() {
			continue
		}
		if e.Message == "" {
			e.Message = messageIn(v)
		}
		if e.Code == "" {
			e.Code = v.Get("code").String()
		}
		if e.Param == "" {
			e.Param = v.Get("param").String()
		}
		if kind == "" {
			kind = v.Get("type").String()
		}
	}
	if inner.Type == gjson.String { // xAI has the message here, Ollama and others the whole error
		e.Message = inner.Str
	}
	if raw := inner.Get("metadata.raw"); raw.Type == gjson.String && raw.Str != "" { // OpenRouter: the error of the upstream provider
		e.Message += ": " + raw.Str
	}
	if strings.HasSuffix(e.Code, " argument") || len(e.Code) > 64 { // xAI has the message here, too
		e.Code = ""
	}
	e.Message, e.Param = hub.Redact(e.Message), hub.Redact(e.Param)
	if n, err := strconv.Atoi(e.Code); err == nil {
		if status == 0 && n >= 400 && n < 600 {
			e.Status = n
		}
		e.Code = ""
	}
	e.Kind = kindOf(e, kind)
	if e.Code == "" && kind == CodeQuota {
		e.Code = CodeQuota
	}
	if e.Message == "" && status == 0 {
		e.Message = "the provider " + t.Provider + " failed in its answer"
	}
	return e
}

// messageIn returns the message of an error object.
func messageIn(v gjson.Result) string {
	for _, name := range []string{"message", "detail", "error_description", "msg"} {
		switch m := v.Get(name); {
		case m.Type == gjson.String:
			return m.Str
		case m.IsObject() && m.Get("detail").Exists(): // Mistral
			return messageIn(m)
		case m.IsArray(): // FastAPI: [{loc: [body, x], msg}]
			var all []string
			for _, d := range m.Array() {
				var where []string
				for _, l := range d.Get("loc").Array() {
					where = append(where, l.String())
				}
				all = append(all, strings.TrimPrefix(strings.Join(where, ".")+": "+d.Get("msg").String(), ": "))
				if len(all) == 8 {
					break
				}
			}
			return strings.Join(all, "; ")
		}
	}
	return ""
}

// kindOf determines the kind of an error from its code, type and status, and, for servers
// that give nothing else, its message.
func kindOf(e *hub.Error, kind string) hub.ErrorKind {
	low := strings.ToLower(e.Message)
	switch {
	case (e.Code == CodeQuota || kind == CodeQuota) && (e.Status == http.StatusTooManyRequests || e.Status == 0):
		return hub.RateLimited
	case e.Code == codeTooLong:
		return hub.BadRequest
	case e.Code == codeNoModel:
		return hub.ModelNotFound
	case e.Code == codeBadKey, e.Status == http.StatusBadRequest && strings.Contains(low, "incorrect api key"): // xAI
		return hub.UpstreamFailed
	case e.Status == statusFlexFull:
		return hub.Overloaded
	case e.Status >= 400:
		return hub.KindOf(e.Status)
	}
	switch { // in a stream there is no status
	case strings.Contains(kind, "invalid_request"), e.Code == "content_filter", strings.Contains(kind, "BadRequest"):
		return hub.BadRequest
	case strings.Contains(kind, "rate_limit"), strings.Contains(e.Code, "rate_limit"), strings.Contains(kind, "tokens"), strings.Contains(kind, "requests"):
		return hub.RateLimited
	case strings.Contains(kind, "overloaded"), strings.Contains(kind, "unavailable"), strings.Contains(low, "overloaded"):
		return hub.Overloaded
	case strings.Contains(kind, "timeout"):
		return hub.Timeout
	}
	return hub.UpstreamFailed
}

// answer is the client's form of a kind of error.
type answer struct {
	status     int
	kind, code string
}

// answers maps kinds of errors to statuses, types and codes. OpenAI's clients choose the
// exception by status, and retry after 408, 409, 429 and above 499.
var answers = map[hub.ErrorKind]answer{
	hub.BadRequest:       {400, "invalid_request_error", ""},
	hub.Unauthenticated:  {401, "authentication_error", codeBadKey},
	hub.BudgetExceeded:   {402, CodeQuota, "budget_exceeded"},
	hub.Forbidden:        {403, "permission_error", "forbidden"},
	hub.ModelNotFound:    {404, "invalid_request_error", codeNoModel},
	hub.NotFound:         {404, "not_found_error", "not_found"},
	hub.TooLarge:         {413, "invalid_request_error", "request_too_large"},
	hub.FailedDependency: {424, "failed_dependency", "failed_dependency"},
	hub.RateLimited:      {429, "rate_limit_error", "rate_limit_exceeded"},
	hub.Canceled:         {499, "canceled", "canceled"},
	hub.Internal:         {500, "server_error", "internal_error"},
	hub.UpstreamFailed:   {502, "upstream_error", "upstream_failed"},
	hub.Overloaded:       {503, "overloaded_error", "overloaded"},
	hub.Timeout:          {504, "timeout_error", "timeout"},
}

func answerOf(k hub.ErrorKind) answer {
	if a, ok := answers[k]; ok {
		return a
	}
	return answers[hub.Internal]
}

// WriteError encodes an error and sets Retry-After, and x-should-retry if the status
// alone would mislead the client.
func (*Format) WriteError(a hub.Answer, e *hub.Error, head http.Header) (int, []byte) {
	if e.RetryAfter > 0 {
		head.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(e.RetryAfter.Seconds())), 10))
		head.Set("Retry-After-Ms", strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
	}
	if e.Code == CodeQuota {
		head.Set("X-Should-Retry", "false")
	}
	var b buffer
	b.add("{")
	b.errorBody(e)
	if a.ID != "" {
		b.text("generationId", a.ID)
	}
	b.close('}')
	return answerOf(e.Kind).status, b
}

// errorBody adds the member error.
func (b *buffer) errorBody(e *hub.Error) {
	as := answerOf(e.Kind)
	b.open("error", '{')
	b.text("message", e.Message)
	b.text("type", as.kind)
	param, code := e.Param, e.Code
	if param == "" && e.Kind == hub.ModelNotFound {
		param = "model"
	}
	if code == "" {
		code = as.code
	}
	b.orNull("param", param)
	b.orNull("code", code)
	if len(e.Details) > 0 {
		b.raw("details", e.Details)
	}
	b.close('}')
}

func (b *buffer) orNull(name, s string) {
	if s == "" {
		b.raw(name, []byte("null"))
		return
	}
	b.text(name, s)
}
