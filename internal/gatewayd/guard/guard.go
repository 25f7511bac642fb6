// Package guard looks at requests before a provider sees them, and at answers
// before the client does: sizes, models and tools, texts by pattern, and what a
// server of the operator's says.
//
// It reads JSON and knows no wire format: every text in a body is looked at but
// those that are opaque (signatures, encrypted reasoning) and those that are
// files in Base64. It is no defence against a client that means to get past it;
// who may encode a text in a way of their own, can.
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

// Config says what is guarded. The zero value guards nothing.
type Config struct {
	// MaxPrompt is how many bytes a request may have; 0 for no bound of this
	// package's.
	MaxPrompt int64
	// MaxOutputTokens is the most a request may ask for; 0 for no bound. A request
	// that asks for nothing is let pass: a key's own bound fills that in.
	MaxOutputTokens int64
	// Models and Tools are patterns of what may be asked for, as path.Match has them:
	// "openai/*". None: anything. A tool that the provider runs itself goes by its
	// type, web_search_20250305.
	Models, Tools []string
	// DenyTools are patterns of tools that may not be used.
	DenyTools []string
	// Requests and Answers are applied to texts, in order.
	Requests, Answers []Pattern
	// BufferStreams says that streams are held back until they are complete when
	// Answers or a Webhook have to see them. Without it they are an error.
	BufferStreams bool
	Webhook       *Webhook
}

// Guards are what a Config says. They are safe for concurrent use.
type Guards struct {
	cfg               Config
	requests, answers []*rule
	client            *http.Client
}

// New returns the guards of a configuration. client calls the Webhook; nil for a
// default that goes by the environment's proxies. Errors: invalid, naming the
// member of the settings.
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

// GuardsAnswers reports whether answers have to be shown to Answer or Result
// before the client gets them; a stream then has to be complete first.
func (g *Guards) GuardsAnswers() bool {
	return g != nil && (len(g.answers) > 0 || g.cfg.Webhook != nil && g.cfg.Webhook.Answers)
}

// Check is Request for who cannot change the request: one that would have to be
// is refused. Errors: *hub.Error.
func (g *Guards) Check(ctx context.Context, c *ledger.Caller, model string, body []byte) error {
	changed, err := g.Request(ctx, c, model, body)
	if err == nil && !bytes.Equal(changed, body) {
		return refuse(hub.BadRequest, "redact", "the request has something in it that is to be taken out, and that cannot be done with a request of this kind")
	}
	return err
}

// Request returns the body of a request as it may go on, which is body itself if
// there is nothing to redact. body is valid JSON. Errors: *hub.Error of the kinds
// TooLarge, Forbidden and BadRequest; Overloaded if the webhook did not answer.
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

// Answer returns the body of a whole answer as it may go to the client. body is
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

// Result is Answer for one that was translated: it changes the texts of r, of
// reasoning and the inputs of tools. The webhook is not asked; Answer does that
// with what the client would get. Errors: as for Request.
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

// outputLimits are the members that bound what is generated, in all formats.
var outputLimits = []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"}

// Output refuses a request that comes to more tokens of output than are allowed, by
// whatever member it asks for them. Errors: *hub.Error of the kind BadRequest.
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

// tools are the names of all tools of a request, in any format; those that the
// provider runs also by their type.
func tools(body []byte) []string { return toolsOf(nil, gjson.GetBytes(body, "tools"), 0) }

// toolsOf appends the names of a list of tools, of which one may be a namespace that
// has tools itself.
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

// allowed reports whether one of patterns, which are valid, matches; none allow
// everything.
func allowed(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // New has tried it
		// A star stands for the rest of a name, slashes and all.
		return ok || strings.HasSuffix(p, "*") && strings.HasPrefix(name, strings.TrimSuffix(p, "*")) && !strings.ContainsAny(strings.TrimSuffix(p, "*"), `*?[\`)
	})
}

// guardError is what guards refuse with.
type guardError = hub.Error

func refuse(kind hub.ErrorKind, code, message string) *guardError {
	return &hub.Error{Kind: kind, Code: "guard_" + code, Message: message}
}

// DefaultTimeout is how long a Webhook has that says nothing else.
const DefaultTimeout = 2 * time.Second
