package request

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Request is what a client sent. It is read once; then the plan's rules change its
// options and its limit, and guards its payload. Nothing else changes it.
type Request struct {
	HTTP  *http.Request
	Route *Route
	ID    string
	Begun time.Time
	// Version is the client's version of the format.
	Version string
	// Token is the caller's own token for a provider, sent besides the gateway's key.
	Token string
	Payload
	Options Options

	Model     string // as asked for
	Stream    bool
	MaxOutput int64 // 0: not asked for
	Copies    int64 // answers asked for
	Foreign   bool  // the request has members of the gateway or of another provider
	Session   string
}

// Payload is the body of a request: JSON, or a form.
type Payload struct {
	Raw    []byte
	Size   int64        // of the body as it was received, before guards changed it
	Object *scan.Object // nil until it has been scanned; empty for a form
	Parts  []Part       // of a form
}

// Understand reads the parts of the request that the gateway needs, and decodes no more.
func (rq *Request) Understand() *hub.Error {
	var err error
	if rq.Object, err = scan.Read(rq.Raw); err != nil {
		return &hub.Error{Kind: hub.BadRequest, Code: "invalid_json", Message: err.Error()}
	}
	if err := rq.spelling(); err != nil {
		return err
	}
	if rq.Route.Header {
		rq.Model = rq.HTTP.Header.Get(rq.Route.ModelHeader)
		if v := rq.HTTP.Header.Get(rq.Route.VersionHeader); v != "" {
			rq.Version = Clip(v)
		}
		rq.Stream = rq.HTTP.Header.Get("Ai-Language-Model-Streaming") == "true"
	} else {
		m := rq.Object.Get("model")
		if len(m) > 0 && m[0] != '"' {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is no text; it must be one such as openai/gpt-5"}
		}
		if len(m) == 0 {
			return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "model is missing; it must be a text such as openai/gpt-5"}
		}
		rq.Model = gjson.ParseBytes(m).Str
		switch stream := string(rq.Object.Get("stream")); stream {
		case "true":
			rq.Stream = true
		case "", "false", "null":
		default:
			return &hub.Error{Kind: hub.BadRequest, Param: "stream", Message: "stream must be true or false"}
		}
	}
	if rq.Model == "" || len(rq.Model) > MaxText {
		return &hub.Error{Kind: hub.BadRequest, Param: "model", Message: "the model must be named, in at most " + strconv.Itoa(MaxText) + " bytes"}
	}
	for _, name := range rq.Route.Limits { // all of them, because providers differ in which one they read
		n, err := rq.number(name, 0, 1e12)
		if err != nil {
			return err
		}
		rq.MaxOutput = max(rq.MaxOutput, n)
	}
	var bad *hub.Error
	if rq.Copies, bad = rq.number("n", 1, 128); bad != nil {
		return bad
	}
	rq.Copies = max(1, rq.Copies)
	if raw := rq.Object.Get("background"); raw != nil && rq.Route.Name == formatResponses && string(raw) != "false" && string(raw) != "null" {
		return &hub.Error{Kind: hub.BadRequest, Param: "background", Code: "not_supported", Message: "the gateway does not pass on calls in the background: it could not tell what they cost; leave background out"}
	}
	return rq.readExtras()
}

// number returns a member that is a whole number from low to high, 0 if the member is
// missing.
func (rq *Request) number(name string, low, high float64) (int64, *hub.Error) {
	raw := rq.Object.Get(name)
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

func (rq *Request) spelling() *hub.Error {
	for i := range rq.Object.Members {
		key := rq.Object.Members[i].Key
		for _, name := range watched {
			if key != name && len(key) == len(name) && strings.EqualFold(key, name) {
				return &hub.Error{Kind: hub.BadRequest, Param: Clip(key), Message: fmt.Sprintf("%.64q is not a member of the request; write it %s", key, name)}
			}
		}
	}
	return nil
}

// readExtras reads the gateway's own options.
func (rq *Request) readExtras() (bad *hub.Error) {
	if raw := rq.Object.Get("providerOptions"); raw != nil {
		all := gjson.ParseBytes(raw)
		if !all.IsObject() && all.Type != gjson.Null {
			return &hub.Error{Kind: hub.BadRequest, Param: "providerOptions", Message: "providerOptions must be an object"}
		}
		all.ForEach(func(key, v gjson.Result) bool {
			if key.Str != "gateway" {
				rq.Foreign = true
				return true
			}
			rq.Options, bad = readOptions([]byte(v.Raw))
			return bad == nil
		})
	}
	if raw := rq.Object.Get("models"); raw != nil && !rq.Route.Header && bad == nil {
		rq.Options.Models, bad = texts("models", gjson.ParseBytes(raw))
	}
	h := rq.HTTP.Header
	if bad == nil {
		bad = rq.Options.readHeaders(h)
	}
	for _, name := range [...]string{"X-Claude-Code-Session-Id", "X-Session-Id", "Session_id", "X-Cay-Workflow-Run"} {
		if rq.Session = h.Get(name); rq.Session != "" {
			rq.Session = Clip(rq.Session)
			break
		}
	}
	return bad
}

// Clip returns the beginning of a text that clients or providers chose.
func Clip(s string) string { return s[:min(len(s), MaxText)] }

// User returns the caller's end user, "" if the request names none.
func (rq *Request) User() string {
	switch {
	case rq.Options.Entity != "":
		return rq.Options.Entity
	case rq.Options.User != "":
		return rq.Options.User
	}
	if raw := rq.Object.Get("user"); raw != nil {
		return Clip(gjson.ParseBytes(raw).Str)
	}
	if raw := rq.Object.Get("metadata"); raw != nil {
		return Clip(gjson.GetBytes(raw, "user_id").Str)
	}
	return ""
}

// Capped reports whether the key's scope sets the output limit, because the request sets
// none.
func (rq *Request) Capped(key *gateway.Key) bool {
	return len(rq.Route.Limits) > 0 && key != nil && key.MaxOutputTokens > 0 && rq.MaxOutput == key.MaxOutputTokens
}

// Spender returns a copy of caller with the user and the tags of a request: the ledger's
// Caller must not change.
func (rq *Request) Spender(caller *ledger.Caller) *ledger.Caller {
	c := *caller
	c.User = rq.User()
	if len(rq.Options.Tags) > 0 {
		c.Tags = append(append([]string(nil), c.Tags...), rq.Options.Tags...)
	}
	return &c
}

// Refers reports whether the request continues a conversation, or uses a prompt, that the
// provider keeps.
func (rq *Request) Refers() bool {
	if rq.Route.Name != formatResponses {
		return false
	}
	for _, name := range [...]string{"previous_response_id", "conversation", "prompt"} {
		if raw := rq.Object.Get(name); raw != nil && string(raw) != "null" {
			return true
		}
	}
	return false
}

// Tier returns the requested service tier, "" if there is none.
func (rq *Request) Tier() string {
	if raw := rq.Object.Get("service_tier"); len(raw) > 2 && raw[0] == '"' {
		return Clip(gjson.ParseBytes(raw).Str)
	}
	return rq.Options.Tier
}
