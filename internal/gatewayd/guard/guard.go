// Package guard checks requests before a provider sees them, and answers before the
// client sees them: sizes, models, tools, patterns in texts, and a webhook of the
// operator's.
//
// The package reads JSON and knows no wire format: it checks every text in a body except
// opaque ones (signatures, encrypted reasoning) and files in Base64. It is no defence
// against a client that means to get past it: a client can encode a text in its own way.
package guard

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Config configures Guards. The zero value guards nothing.
type Config struct {
	// MaxPrompt is the maximum size of a request in bytes; 0 for no limit.
	MaxPrompt int64
	// MaxOutputTokens is the maximum number of output tokens that a request may ask for;
	// 0 for no limit. A request that sets no limit passes: the key's own limit is filled
	// in later.
	MaxOutputTokens int64
	// Models and Tools are patterns (path.Match) of the models and tools that requests
	// may use, such as "openai/*". An empty list allows everything. A tool that the
	// provider runs is matched by its type, for example web_search_20250305.
	Models, Tools []string
	// DenyTools are patterns of tools that requests must not use.
	DenyTools []string
	// Requests and Answers are the patterns applied to texts, in order.
	Requests, Answers []Pattern
	// BufferStreams holds streams back until they are complete if Answers or a Webhook
	// must check them. Without BufferStreams such streams are an error.
	BufferStreams bool
	Webhook       *Webhook
}

// Guards checks requests and answers according to a Config. It is safe for concurrent
// use.
type Guards struct {
	cfg               Config
	requests, answers []*rule
	client            *http.Client
}

// New returns the guards of a configuration. client calls the Webhook; nil for a default
// client that uses the environment's proxies. Errors: invalid, naming the member of the
// settings.
func New(cfg Config, client *http.Client) (*Guards, error) {
	g := &Guards{cfg: cfg, client: client}
	if g.client == nil {
		g.client = http.DefaultClient
	}
	if cfg.MaxPrompt < 0 || cfg.MaxOutputTokens < 0 {
		return nil, cay.Errorf(cay.Invalid, "max_prompt and max_output_tokens are not negative")
	}
	for name, patterns := range map[string][]string{"models": cfg.Models, "tools": cfg.Tools, "deny_tools": cfg.DenyTools} {
		for _, p := range patterns {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return nil, cay.Errorf(cay.Invalid, "%s: %q is no pattern, such as openai/*", name, p)
			}
		}
	}
	var err error
	if g.requests, err = rules("requests", cfg.Requests); err != nil {
		return nil, err
	}
	if g.answers, err = rules("answers", cfg.Answers); err != nil {
		return nil, err
	}
	if cfg.Webhook != nil {
		if err := cfg.Webhook.check(); err != nil {
			return nil, err
		}
	}
	if g.GuardsAnswers() && !cfg.BufferStreams {
		return nil, cay.Errorf(cay.Invalid, "answers are guarded, and streams would pass unguarded").
			WithHint("set streams: buffer, which holds every stream back until it is complete")
	}
	return g, nil
}

// GuardsAnswers reports whether answers must be passed to Answer or Result before the
// client gets them; a stream must be buffered for that.
func (g *Guards) GuardsAnswers() bool {
	return g != nil && (len(g.answers) > 0 || g.cfg.Webhook != nil && g.cfg.Webhook.Answers)
}

// Check is Request for callers that cannot change the request: a request that would have
// to be redacted is refused. Errors: *hub.Error.
func (g *Guards) Check(ctx context.Context, c *ledger.Caller, model string, body []byte) error {
	changed, err := g.Request(ctx, c, model, body)
	if err == nil && !bytes.Equal(changed, body) {
		return refuse(hub.BadRequest, "redact", "the request has something in it that is to be taken out, and that cannot be done with a request of this kind")
	}
	return err
}

// Request checks a request and returns the body to pass on; this is body itself if
// nothing was redacted. body must be valid JSON. Errors: *hub.Error of the kinds
// TooLarge, Forbidden and BadRequest; Overloaded if the webhook does not answer.
func (g *Guards) Request(ctx context.Context, c *ledger.Caller, model string, body []byte) ([]byte, error) {
	if g == nil {
		return body, nil
	}
	if err := g.limits(model, body); err != nil {
		return nil, err
	}
	body, err := apply(g.requests, body, "the request")
	if err != nil {
		return nil, err
	}
	if w := g.cfg.Webhook; w != nil {
		return w.ask(ctx, g.client, stageRequest, c, model, body)
	}
	return body, nil
}

// Answer checks a whole answer and returns the body to send to the client. body must be
// valid JSON. Errors: as for Request.
func (g *Guards) Answer(ctx context.Context, c *ledger.Caller, model string, body []byte) ([]byte, error) {
	if g == nil {
		return body, nil
	}
	body, err := apply(g.answers, body, "the answer")
	if err != nil {
		return nil, err
	}
	if w := g.cfg.Webhook; w != nil && w.Answers {
		return w.ask(ctx, g.client, stageAnswer, c, model, body)
	}
	return body, nil
}

// Result is Answer for a translated answer: it redacts the texts of r, its reasoning and
// the inputs of tools. Result does not call the webhook; the caller passes the encoded
// answer to Answer for that. Errors: as for Request.
func (g *Guards) Result(r *hub.Result) error {
	if g == nil || len(g.answers) == 0 {
		return nil
	}
	for i := range r.Content {
		p := &r.Content[i]
		switch p.Kind {
		case hub.TextPart, hub.ReasoningPart:
			text, err := applyText(g.answers, p.Text, "the answer")
			if err != nil {
				return err
			}
			p.Text = text
		case hub.ToolCallPart:
			input, err := apply(g.answers, []byte(p.Call.Input), "the answer")
			if err != nil {
				return err
			}
			call := *p.Call
			call.Input = string(input)
			p.Call = &call
		}
	}
	return nil
}

// outputLimits are the members that limit the output tokens, in all formats.
var outputLimits = []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"}

// Output refuses a request that may generate more output tokens than allowed, whichever
// member asks for them. Errors: *hub.Error of the kind BadRequest.
func (g *Guards) Output(tokens int64) error {
	if g == nil || g.cfg.MaxOutputTokens <= 0 || tokens <= g.cfg.MaxOutputTokens {
		return nil
	}
	return refuse(hub.BadRequest, "max_output_tokens", fmt.Sprintf("the request comes to %d tokens of output, and at most %d are allowed here", tokens, g.cfg.MaxOutputTokens))
}

func (g *Guards) limits(model string, body []byte) *guardError {
	if most := g.cfg.MaxPrompt; most > 0 && int64(len(body)) > most {
		return tooLong(int64(len(body)), most)
	}
	if !allowed(g.cfg.Models, model) {
		return refuse(hub.Forbidden, "models", fmt.Sprintf("the model %.100q is not allowed here", model))
	}
	if most := g.cfg.MaxOutputTokens; most > 0 {
		for _, member := range outputLimits {
			if n := gjson.GetBytes(body, member); n.Exists() && n.Num > float64(most) {
				return refuse(hub.BadRequest, "max_output_tokens", fmt.Sprintf("%s is %s, and at most %d tokens are allowed here", member, n.Raw[:min(20, len(n.Raw))], most))
			}
		}
	}
	if len(g.cfg.Tools) == 0 && len(g.cfg.DenyTools) == 0 {
		return nil
	}
	for _, tool := range tools(body) {
		if !allowed(g.cfg.Tools, tool) || len(g.cfg.DenyTools) > 0 && allowed(g.cfg.DenyTools, tool) {
			return refuse(hub.Forbidden, "tools", fmt.Sprintf("the tool %.100q is not allowed here", tool))
		}
	}
	return nil
}

// tools returns the names of a request's tools, in any format; tools that the provider
// runs are listed by type as well.
func tools(body []byte) []string { return toolsOf(nil, gjson.GetBytes(body, "tools"), 0) }

// toolsOf appends the names of a list of tools, including the tools inside namespaces.
func toolsOf(names []string, list gjson.Result, depth int) []string {
	list.ForEach(func(_, t gjson.Result) bool {
		if depth < 4 {
			names = toolsOf(names, t.Get("tools"), depth+1)
		}
		for _, member := range []string{"name", "function.name", "custom.name"} {
			if n := t.Get(member); n.Type == gjson.String {
				names = append(names, n.Str)
			}
		}
		if kind := t.Get("type").Str; kind != "" && !slices.Contains([]string{"function", "custom", "namespace", "provider", "provider-defined"}, kind) {
			names = append(names, kind)
		}
		if id := t.Get("id"); id.Type == gjson.String { // AI SDK: anthropic.web_search_20250305
			names = append(names, id.Str)
		}
		return true
	})
	return names
}

// allowed reports whether one of patterns matches; the patterns must be valid. An empty
// list allows everything.
func allowed(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // New has validated the pattern
		// A star at the end matches the rest of a name, including slashes.
		return ok || strings.HasSuffix(p, "*") && strings.HasPrefix(name, strings.TrimSuffix(p, "*")) && !strings.ContainsAny(strings.TrimSuffix(p, "*"), `*?[\`)
	})
}

// guardError is the type of refusals.
type guardError = hub.Error

func refuse(kind hub.ErrorKind, code, message string) *guardError {
	return &hub.Error{Kind: kind, Code: "guard_" + code, Message: message}
}

// DefaultTimeout is the default timeout of a Webhook.
const DefaultTimeout = 2 * time.Second
