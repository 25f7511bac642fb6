package gatewayd

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// request is what a client sent. It is read once; then the plan's rules change its
// options and its limit, and guards its payload. Nothing else changes it.
type request struct {
	http  *http.Request
	rt    *route
	id    string
	begun time.Time
	// version is the client's version of the format.
	version string
	// token is the caller's own token for a provider, sent besides the gateway's key.
	token string
	payload
	opts options

	model     string // as asked for
	stream    bool
	maxOutput int64 // 0: not asked for
	copies    int64 // answers asked for
	foreign   bool  // the request has members of the gateway or of another provider
	session   string
}

// payload is the body of a request: JSON, or a form.
type payload struct {
	raw   []byte
	size  int64        // of the body as it was received, before guards changed it
	obj   *scan.Object // nil until it has been scanned; empty for a form
	parts []formPart   // of a form
}

// understand reads the parts of the request that the gateway needs, and decodes no more.
func (rq *request) understand() *hub.Error {
	var err error
	if rq.obj, err = scan.Read(rq.raw); err != nil {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_json", Message: err.Error()}
	}
	if err := rq.spelling(); err != nil {
		return err
	}
	if rq.rt.header {
		rq.model = rq.http.Header.Get(rq.rt.modelHeader)
		if v := rq.http.Header.Get(rq.rt.versionHeader); v != "" {
			rq.version = clip(v)
		}
		rq.stream = rq.http.Header.Get("Ai-Language-Model-Streaming") == "true"
	} else {
		m := rq.obj.Get("model")
		if len(m) > 0 && m[0] != '"' {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is no text; it must be one such as openai/gpt-5"}
		}
		if len(m) == 0 {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is missing; it must be a text such as openai/gpt-5"}
		}
		rq.model = gjson.ParseBytes(m).Str
		switch stream := string(rq.obj.Get("stream")); stream {
		case "true":
			rq.stream = true
		case "", "false", "null":
		default:
			return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "stream must be true or false"}
		}
	}
	if rq.model == "" || len(rq.model) > maxText {
		return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "the model must be named, in at most " + strconv.Itoa(maxText) + " bytes"}
	}
	for _, name := range rq.rt.limits { // all of them, because providers differ in which one they read
		n, err := rq.number(name, 0, 1e12)
		if err != nil {
			return err
		}
		rq.maxOutput = max(rq.maxOutput, n)
	}
	var bad *hub.Error
	if rq.copies, bad = rq.number("n", 1, 128); bad != nil {
		return bad
	}
	rq.copies = max(1, rq.copies)
	if raw := rq.obj.Get("background"); raw != nil && rq.rt.name == formatResponses && string(raw) != "false" && string(raw) != "null" {
		return &hub.Error{Kind: hub.BadRequest, Param: "background", Code: "not_supported", Message: "the gateway does not pass on calls in the background: it could not tell what they cost; leave background out"}
	}
	return rq.readExtras()
}

// number returns a member that is a whole number from low to high, 0 if the member is
// missing.
func (rq *request) number(name string, low, high float64) (int64, *hub.Error) {
	raw := rq.obj.Get(name)
	if raw == nil || string(raw) == "null" {
		return 0, nil
	}
	f := gjson.ParseBytes(raw)
	if f.Type != gjson.Number || f.Num < low || f.Num > high || f.Num != float64(int64(f.Num)) {
		return 0, &hub.Error{Kind: hub.BadRequest, Param: name, Message: fmt.Sprintf("%s must be a whole number from %.0f to %.0f", name, low, high)}
	}
	return int64(f.Num), nil
}

// watched are the members that determine permissions and cost. Some servers ignore the
// case of names, so a watched name in any other case is refused.
var watched = []string{
	"model", "models", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens",
	"service_tier", "providerOptions", "background", "tools", "speed",
}

func (rq *request) spelling() *hub.Error {
	for i := range rq.obj.Members {
		key := rq.obj.Members[i].Key
		for _, name := range watched {
			if key != name && len(key) == len(name) && strings.EqualFold(key, name) {
				return &hub.Error{Kind: hub.BadRequest, Param: clip(key), Message: fmt.Sprintf("%.64q is not a member of the request; write it %s", key, name)}
			}
		}
	}
	return nil
}

// readExtras reads the gateway's own options.
func (rq *request) readExtras() (bad *hub.Error) {
	if raw := rq.obj.Get("providerOptions"); raw != nil {
		all := gjson.ParseBytes(raw)
		if !all.IsObject() && all.Type != gjson.Null {
			return &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "providerOptions must be an object"}
		}
		all.ForEach(func(key, v gjson.Result) bool {
			if key.Str != "gateway" {
				rq.foreign = true
				return true
			}
			rq.opts, bad = readOptions([]byte(v.Raw))
			return bad == nil
		})
	}
	if raw := rq.obj.Get("models"); raw != nil && !rq.rt.header && bad == nil {
		rq.opts.models, bad = texts("models", gjson.ParseBytes(raw))
	}
	h := rq.http.Header
	if bad == nil {
		bad = rq.opts.readHeaders(h)
	}
	for _, name := range [...]string{"X-Claude-Code-Session-Id", "X-Session-Id", "Session_id", "X-Cay-Workflow-Run"} {
		if rq.session = h.Get(name); rq.session != "" {
			rq.session = clip(rq.session)
			break
		}
	}
	return bad
}

func clip(s string) string { return s[:min(len(s), maxText)] }

// user returns the caller's end user, "" if the request names none.
func (rq *request) user() string {
	switch {
	case rq.opts.entity != "":
		return rq.opts.entity
	case rq.opts.user != "":
		return rq.opts.user
	}
	if raw := rq.obj.Get("user"); raw != nil {
		return clip(gjson.ParseBytes(raw).Str)
	}
	if raw := rq.obj.Get("metadata"); raw != nil {
		return clip(gjson.GetBytes(raw, "user_id").Str)
	}
	return ""
}

// capped reports whether the key's scope sets the output limit, because the request sets
// none.
func (rq *request) capped(key *gateway.Key) bool {
	return len(rq.rt.limits) > 0 && key != nil && key.MaxOutputTokens > 0 && rq.maxOutput == key.MaxOutputTokens
}
