package gatewayd

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/catalog"
	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/ledger"
)

// Cost and permissions are decided on the body that is sent to the provider, in the
// provider's format: an option can reach the provider in many ways (an unknown member,
// providerOptions, fields passed to the model), and a client may hope that the gateway
// overlooks one of them.

// asks holds the billable and restricted options of a body.
type asks struct {
	output int64 // the largest number of tokens that any member allows
	copies int64
	tier   string // service tier
	speed  string
	tools  []tool // tools that the provider runs
	// models are additional models, by the provider's names.
	models []string
	before int64 // tokens of turns that the provider keeps; -1 if unknown
	stores bool  // the provider is to keep the answer
}

// tool is a tool that the provider runs.
type tool struct {
	name  string // without the date in it
	model string // model that the tool uses, if any
	uses  int64  // maximum number of runs; 0 if the request does not say
}

// defaultUses is the assumed number of runs of a provider's tool if the request sets no
// limit.
const defaultUses = 10

// imageModel is the default model of OpenAI's image tool.
const imageModel = "gpt-image-1"

// meaning is the meaning of a body's member.
type meaning uint8

const (
	none    meaning = iota
	limit           // bounds the output
	copies          // how many answers
	nest            // contains further settings of the model
	another         // selects another model than the one that was priced and that the key allows
	fallbacks
	tier
	speed
	most // calls of tools
	tools
	config // Bedrock's tool configuration; Gemini's has no tools
	searchOptions
	searchParameters
	plugins
	guardrails
	nested // free at the top level; refused within settings, where it may cost something
)

// meanings maps names of members, normalized because some servers ignore the spelling:
// lower case, without - and _.
var meanings = map[string]meaning{
	"maxtokens": limit, "maxcompletiontokens": limit, "maxoutputtokens": limit, "maxnewtokens": limit, "maxtokenstosample": limit, "maxgenlen": limit, "numpredict": limit,
	"n": copies, "bestof": copies, "candidatecount": copies,
	"generationconfig": nest, "inferenceconfig": nest, "inferenceconfiguration": nest, "textgenerationconfig": nest, "additionalmodelrequestfields": nest, "options": nest, "extrabody": nest,
	"models": another, "fallback": another, "fallbackmodels": another, "route": another, "preset": another, "modelid": another,
	"fallbacks": fallbacks, "servicetier": tier, "speed": speed, "maxtoolcalls": most, "tools": tools, "toolconfig": config,
	"websearchoptions": searchOptions, "searchparameters": searchParameters, "plugins": plugins, "guardrailconfig": guardrails,
	"model": nested, "mcpservers": nested,
}

// longest is the maximum length of a name looked up in meanings.
const longest = 40

func meaningOf(name string) meaning {
	if len(name) > longest {
		return none
	}
	var b [longest]byte
	n := 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '_' || c == '-':
			continue
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		}
		b[n] = c
		n++
	}
	return meanings[string(b[:n])]
}

// readAsks reads a body in a provider's format, or a client's body that will be passed on
// without the gateway's options. Its error names a member that the gateway does not pass
// on.
func readAsks(o *object, passes bool) (*asks, *hub.Error) {
	a := &asks{copies: 1}
	var calls int64 // at most, of all tools
	for i := range o.members {
		m := &o.members[i]
		mean, raw := meaningOf(m.key), o.body[m.value:m.end]
		if mean == none || mean == nested || len(raw) == 0 || raw[0] == 'n' /* null */ || passes && m.key == "models" {
			continue
		}
		v := gjson.ParseBytes(raw)
		switch mean {
		case limit:
			a.limit(v)
		case copies:
			a.copies = max(a.copies, v.Int())
		case nest:
			if err := a.nest(m.key, v, 0); err != nil {
				return nil, err
			}
		case another:
			return nil, &hub.Error{Kind: hub.BadRequest, Param: clip(m.key), Code: "not_supported",
				Message: fmt.Sprintf("%.64s is not passed on: another model might answer, at another price; name it in models of providerOptions.gateway", m.key)}
		case fallbacks: // Anthropic's: another model takes over
			v.ForEach(func(_, f gjson.Result) bool {
				a.models = append(a.models, clip(cmp.Or(f.Get("model").Str, f.Str)))
				return len(a.models) < maxFallbacks
			})
		case tier:
			a.tier = clip(cmp.Or(v.Str, v.Get("type").Str)) // Bedrock's is an object
		case speed:
			a.speed = clip(v.Str)
		case most:
			calls = v.Int()
		case tools, config:
			if mean == config {
				v = v.Get("tools")
			}
			if err := a.list(v); err != nil {
				return nil, err
			}
		case searchOptions:
			a.tools = append(a.tools, tool{name: "web_search"})
		case searchParameters: // xAI
			if v.Get("mode").Str != "off" {
				a.tools = append(a.tools, tool{name: "live_search", uses: v.Get("max_search_results").Int()})
			}
		case plugins: // OpenRouter
			v.ForEach(func(_, p gjson.Result) bool {
				a.tools = append(a.tools, tool{name: "plugin " + clip(p.Get("id").Str)})
				return len(a.tools) < maxTools
			})
		case guardrails: // Bedrock charges for them
			a.tools = append(a.tools, tool{name: "guardrail"})
		}
	}
	for i := range a.tools {
		if t := &a.tools[i]; calls > 0 && (t.uses <= 0 || t.uses > calls) {
			t.uses = calls
		}
	}
	return a, nil
}

const (
	maxFallbacks = 16
	maxTools     = 1024
)

func (a *asks) limit(v gjson.Result) {
	if v.Num > 0 && v.Num < 1e12 {
		a.output = max(a.output, v.Int())
	}
}

// nest reads settings inside settings.
func (a *asks) nest(name string, v gjson.Result, depth int) (bad *hub.Error) {
	if !v.IsObject() || depth > 3 {
		return nil
	}
	v.ForEach(func(key, v gjson.Result) bool {
		switch meaningOf(key.Str) {
		case limit:
			a.limit(v)
		case copies:
			a.copies = max(a.copies, v.Int())
		case none, nest:
			bad = a.nest(name+"."+key.Str, v, depth+1)
		default:
			bad = &hub.Error{Kind: hub.BadRequest, Param: clip(name + "." + key.Str), Code: "not_supported",
				Message: fmt.Sprintf("%.64s in %.64s is not passed on: the gateway could not tell what it costs", key.Str, name)}
		}
		return bad == nil
	})
	return bad
}

// list reads the tools of a request: tools in OpenAI's and Anthropic's formats have a
// type, Gemini's tools are members, and Bedrock's a systemTool. A tool with a duplicate
// member is refused, because two parsers may read it differently.
func (a *asks) list(all gjson.Result) (bad *hub.Error) {
	all.ForEach(func(_, t gjson.Result) bool {
		var kind, model, env, inner gjson.Result
		one := tool{}
		named := false // the tool is the caller's, or no tool
		var google []string
		t.ForEach(func(key, v gjson.Result) bool {
			twice := false
			switch key.Str {
			case "type":
				kind, twice = v, kind.Exists()
			case "model":
				model, twice = v, model.Exists()
			case "environment":
				env, twice = v.Get("type"), env.Exists()
			case "tools":
				inner, twice = v, inner.Exists()
			case "max_uses":
				one.uses, twice = v.Int(), one.uses != 0
			case "systemTool":
				one.name = clip(v.Get("name").Str)
			case "name", "function", "toolSpec", "cachePoint":
				named = true
			case "functionDeclarations", "function_declarations":
			default:
				if v.IsObject() && len(google) < maxTools {
					google = append(google, clip(snakeCase(key.Str)))
				}
			}
			if twice {
				bad = &hub.Error{Kind: hub.BadRequest, Param: "tools", Message: "a tool has the member " + key.Str + " twice"}
			}
			return bad == nil
		})
		switch {
		case bad != nil, kind.Str == "function", kind.Str == "custom":
		case kind.Str == "namespace": // a namespace's tools are the caller's or the provider's
			bad = a.list(inner)
		case kind.Exists():
			one.name, one.model = clip(undated(kind.Str)), clip(model.Str)
			a.typed(one, env.Str)
		case one.name != "":
			a.tools = append(a.tools, one)
		case !named:
			for _, name := range google {
				a.tools = append(a.tools, tool{name: name})
			}
		}
		if len(a.tools) > maxTools {
			bad = &hub.Error{Kind: hub.BadRequest, Param: "tools", Message: fmt.Sprintf("the request has more than %d tools for the provider to run", maxTools)}
		}
		return bad == nil
	})
	return bad
}

func (a *asks) typed(one tool, environment string) {
	switch one.name {
	case "image_generation":
		one.model = cmp.Or(one.model, imageModel)
	case "shell":
		if environment == "" || environment == "local" {
			one.name = "local_shell"
		}
	}
	if one.model != "" {
		a.models = append(a.models, one.model)
	}
	a.tools = append(a.tools, one)
}

// undated returns a tool type without the version date at its end.
func undated(kind string) string {
	i := strings.LastIndexByte(kind, '_')
	for i > 0 && i < len(kind)-1 && strings.Trim(kind[i+1:], "0123456789") == "" {
		kind = kind[:i]
		i = strings.LastIndexByte(kind, '_')
	}
	return kind
}

// snakeCase converts googleSearch to google_search.
func snakeCase(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// fast reports whether the request asks for a speed that costs more.
func (a *asks) fast() bool { return a.speed != "" && a.speed != "standard" }

// imageModel returns the model of the image tool, empty if the request has no such tool.
func (a *asks) imageModel() string {
	for _, t := range a.tools {
		if t.name == "image_generation" {
			return t.model
		}
	}
	return ""
}

// allow checks what a body asks for against the key's scope and the guards, and returns
// the payload of the request, which guards may have changed.
func (v *view) allow(ctx context.Context, caller *ledger.Caller, a *asks, o *offer, p payload) (payload, *hub.Error) {
	key := caller.Key
	if key != nil && key.MaxOutputTokens > 0 && a.output > key.MaxOutputTokens {
		return p, &hub.Error{Kind: hub.Forbidden, Code: "max_output_tokens",
			Message: fmt.Sprintf("this key may ask for at most %d output tokens, and this request comes to %d", key.MaxOutputTokens, a.output)}
	}
	if err := v.Guards.Output(a.output); err != nil {
		return p, asError(err)
	}
	for _, name := range a.models {
		id := name
		if m, _ := v.at(o.provider.Name, name); m != nil {
			id = m.ID
		}
		if key != nil && !allows(key.Models, id) {
			return p, &hub.Error{Kind: hub.Forbidden, Code: "model_not_allowed", Param: id, Message: "this key may not use the model " + id + ", which the request names beside its own"}
		}
		var err *hub.Error
		if p, err = v.guard(ctx, caller, id, p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// at returns the model with a provider's own name, and its price there; nil if unknown.
func (v *view) at(provider, name string) (*gateway.Model, *gateway.Price) {
	all := v.Catalog.List()
	for i := range all {
		for j := range all[i].Endpoints {
			if ep := &all[i].Endpoints[j]; ep.Provider == provider && ep.Model == name {
				return &all[i], ep.Price
			}
		}
	}
	if m := v.Catalog.Lookup(name); m != nil {
		for j := range m.Endpoints {
			if m.Endpoints[j].Provider == provider {
				return m, m.Endpoints[j].Price
			}
		}
		return m, nil
	}
	return nil, nil
}

// toolPrice returns the provider's price for one run of a tool; false if the price is
// unknown.
func toolPrice(o *offer, name string) (gateway.Money, bool) {
	if p := o.endpoint.Price; p != nil {
		if m, ok := p.Tools[name]; ok {
			return m, true
		}
		if p.Search != 0 && (name == "web_search" || name == "google_search" || name == "live_search") {
			return p.Search, true
		}
	}
	if o.provider.SelfHosted {
		return 0, true
	}
	return catalog.ToolPrice(o.provider.Kind, name)
}

// addTools adds the maximum cost of the requested tools to a call's need.
func (v *view) addTools(n *ledger.Need, a *asks, o *offer, input int64) {
	unpriced := func(what string) {
		if !n.Unpriced {
			n.Unpriced, n.Why = true, what+" has no known price"
		}
	}
	if p := o.endpoint.Price; p != nil && a.fast() && p.ServiceTiers[a.speed] == 0 {
		unpriced("the speed " + a.speed)
	}
	for _, t := range a.tools {
		each, known := toolPrice(o, t.name)
		if !known {
			unpriced("the tool " + t.name)
		}
		uses := t.uses
		if uses <= 0 { // ignore implausible values
			uses = defaultUses
		}
		n.Cost = n.Cost.Plus(each.Times(uses))
	}
	for _, name := range a.models {
		m, p := v.at(o.provider.Name, name)
		if p == nil {
			unpriced("the model " + name)
			continue
		}
		output := orDefault(m.MaxOutput, defaultOutput)
		if m.Kind == kindImage {
			output = maxImageTokens
		}
		n.Cost = n.Cost.Plus(catalog.MostOf(p, input, output, a.tier)).Plus(p.Image)
	}
}
