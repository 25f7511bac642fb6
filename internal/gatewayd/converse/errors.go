package converse

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// errorf returns the error for a malformed answer.
func errorf(t *hub.Target, format string, args ...any) *hub.Error {
	return &hub.Error{Kind: hub.UpstreamFailed, Provider: t.Provider, Message: fmt.Sprintf(format, args...)}
}

// kindOf returns the kind for an exception type, empty if the type is unknown. Types
// begin with a capital letter in error answers, and with a small letter in streams.
func kindOf(exception string) hub.ErrorKind {
	switch strings.ToLower(exception) {
	case "throttlingexception", "servicequotaexceededexception", "modelnotreadyexception", "toomanyrequestsexception":
		return hub.RateLimited
	case "serviceunavailableexception":
		return hub.Overloaded
	case "validationexception":
		return hub.BadRequest
	case "modeltimeoutexception":
		return hub.Timeout
	case "resourcenotfoundexception":
		return hub.ModelNotFound
	case "modelstreamerrorexception", "modelerrorexception", "internalserverexception", "accessdeniedexception",
		"unrecognizedclientexception", "expiredtokenexception", "invalidsignatureexception", "missingauthenticationtokenexception":
		return hub.UpstreamFailed // the credential is ours
	}
	return ""
}

// exception returns the error in an exception frame of a stream.
func exception(t *hub.Target, name string, payload []byte) *hub.Error {
	e := &hub.Error{Kind: kindOf(name), Code: name, Provider: t.Provider, Message: messageOf(payload)}
	if e.Kind == "" {
		e.Kind = hub.UpstreamFailed
	}
	if e.Message == "" {
		e.Message = t.Provider + " failed without a word"
	}
	if status := gjson.GetBytes(payload, "originalStatusCode"); json.Valid(payload) && status.Type == gjson.Number {
		e.Status = int(status.Int())
	}
	return e
}

// messageOf returns the message of an exception, redacted.
func messageOf(body []byte) string {
	if !json.Valid(body) {
		return ""
	}
	root := gjson.ParseBytes(body)
	for _, name := range []string{"message", "Message"} {
		if m := root.Get(name); m.Type == gjson.String && m.Str != "" {
			return hub.Redact(m.Str)
		}
	}
	return ""
}

// ReadError decodes an answer with a status of 400 and above. The exception in the header
// X-Amzn-Errortype or in __type determines the kind, else the status.
func (*Format) ReadError(t *hub.Target, status int, head http.Header, body []byte) *hub.Error {
	e := &hub.Error{
		Kind: hub.KindOf(status), Status: status, Provider: t.Provider,
		RetryAfter: hub.RetryAfter(head, time.Now()), Message: messageOf(body),
	}
	name := head.Get("X-Amzn-Errortype")
	if said := gjson.GetBytes(body, "__type"); name == "" && json.Valid(body) && said.Type == gjson.String {
		name = said.Str
	}
	name, _, _ = strings.Cut(name, ":") // "ValidationException:http://..."
	if at := strings.LastIndexByte(name, '#'); at >= 0 {
		name = name[at+1:] // "com.amazon.coral.validate#ValidationException"
	}
	e.Code = hub.Redact(name)
	if kind := kindOf(name); kind != "" {
		e.Kind = kind
	}
	if e.Message == "" {
		e.Message = t.Provider + " answered with the status " + strconv.Itoa(status)
	}
	return e
}
