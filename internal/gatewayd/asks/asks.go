package asks

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Cost and permissions are decided on the body that is sent to the provider, in the
// provider's format: an option can reach the provider in many ways (an unknown member,
// providerOptions, fields passed to the model), and a client may hope that the gateway
// overlooks one of them.

// Asks holds the billable and restricted options of a body.
type Asks struct {
	Output int64 // the largest number of tokens that any member allows
	Copies int64
	Tier   string // service tier
	Speed  string
	Tools  []Tool // tools that the provider runs
	// Models are additional models, by the provider's names.
	Models []string
	Before int64 // tokens of turns that the provider keeps; -1 if unknown
	Stores bool  // the provider is to keep the answer
}

// Tool is a tool that the provider runs.
type Tool struct {
	Name  string // without the date in it
	Model string // model that the tool uses, if any
	Uses  int64  // maximum number of runs; 0 if the request does not say
}

// DefaultUses is the assumed number of runs of a provider's tool if the request sets no
// limit.
const DefaultUses = 10

// ImageModel is the default model of OpenAI's image tool.
const ImageModel = "gpt-image-1"

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

// Read reads a body in a provider's format, or a client's body that will be passed on
// without the gateway's options. Its error names a member that the gateway does not pass
// on.
func Read(o *scan.Object, passes bool) (*Asks, *hub.Error) {
	a := &Asks{Copies: 1}
	var calls int64 // at most, of all tools
	for i := range o.Members {
		m := &o.Members[i]
		mean, raw := meaningOf(m.Key), o.Body[m.Value:m.End]
		if mean == none || mean == nested || len(raw) == 0 || raw[0] == 'n' /* null */ || passes && m.Key == "models" {
			continue
		}
		v := gjson.ParseBytes(raw)
		switch mean {
		case limit:
			a.limit(v)
		case copies:
			a.Copies = max(a.Copies, v.Int())
		case nest:
			if err := a.nest(m.Key, v, 0); err != nil {
				return nil, err
			}
		case another:
			return nil, &hub.Error{Kind: hub.BadRequest, Param: clip(m.Key), Code: "not_supported",
				Message: fmt.Sprintf("%.64s is not passed on: another model might answer, at another price; name it in models of providerOptions.gateway", m.Key)}
		case fallbacks: // Anthropic's: another model takes over
			v.ForEach(func(_, f gjson.Result) bool {
				a.Models = append(a.Models, clip(cmp.Or(f.Get("model").Str, f.Str)))
				return len(a.Models) < maxFallbacks
			})
		case tier:
			a.Tier = clip(cmp.Or(v.Str, v.Get("type").Str)) // Bedrock's is an object
		case speed:
			a.Speed = clip(v.Str)
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
			a.Tools = append(a.Tools, Tool{Name: "web_search"})
		case searchParameters: // xAI
			if v.Get("mode").Str != "off" {
				a.Tools = append(a.Tools, Tool{Name: "live_search", Uses: v.Get("max_search_results").Int()})
			}
		case plugins: // OpenRouter
			v.ForEach(func(_, p gjson.Result) bool {
				a.Tools = append(a.Tools, Tool{Name: "plugin " + clip(p.Get("id").Str)})
				return len(a.Tools) < maxTools
			})
		case guardrails: // Bedrock charges for them
			a.Tools = append(a.Tools, Tool{Name: "guardrail"})
		}
	}
	for i := range a.Tools {
		if t := &a.Tools[i]; calls > 0 && (t.Uses <= 0 || t.Uses > calls) {
			t.Uses = calls
		}
	}
	return a, nil
}

const (
	maxFallbacks = 16
	maxTools     = 1024
)

func (a *Asks) limit(v gjson.Result) {
	if v.Num > 0 && v.Num < 1e12 {
		a.Output = max(a.Output, v.Int())
	}
}

// nest reads settings inside settings.
func (a *Asks) nest(name string, v gjson.Result, depth int) (bad *hub.Error) {
	if !v.IsObject() || depth > 3 {
		return nil
	}
	v.ForEach(func(key, v gjson.Result) bool {
		switch meaningOf(key.Str) {
		case limit:
			a.limit(v)
		case copies:
			a.Copies = max(a.Copies, v.Int())
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
func (a *Asks) list(all gjson.Result) (bad *hub.Error) {
	all.ForEach(func(_, t gjson.Result) bool {
		var kind, model, env, inner gjson.Result
		one := Tool{}
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
				one.Uses, twice = v.Int(), one.Uses != 0
			case "systemTool":
				one.Name = clip(v.Get("name").Str)
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
			one.Name, one.Model = clip(undated(kind.Str)), clip(model.Str)
			a.typed(one, env.Str)
		case one.Name != "":
			a.Tools = append(a.Tools, one)
		case !named:
			for _, name := range google {
				a.Tools = append(a.Tools, Tool{Name: name})
			}
		}
		if len(a.Tools) > maxTools {
			bad = &hub.Error{Kind: hub.BadRequest, Param: "tools", Message: fmt.Sprintf("the request has more than %d tools for the provider to run", maxTools)}
		}
		return bad == nil
	})
	return bad
}

func (a *Asks) typed(one Tool, environment string) {
	switch one.Name {
	case "image_generation":
		one.Model = cmp.Or(one.Model, ImageModel)
	case "shell":
		if environment == "" || environment == "local" {
			one.Name = "local_shell"
		}
	}
	if one.Model != "" {
		a.Models = append(a.Models, one.Model)
	}
	a.Tools = append(a.Tools, one)
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

// Fast reports whether the request asks for a speed that costs more.
func (a *Asks) Fast() bool { return a.Speed != "" && a.Speed != "standard" }

// ImageModel returns the model of the image tool, empty if the request has no such tool.
func (a *Asks) ImageModel() string {
	for _, t := range a.Tools {
		if t.Name == "image_generation" {
			return t.Model
		}
	}
	return ""
}

// Turns returns the number of tokens of the earlier turns that the request continues, -1
// if unknown.
func (a *Asks) Turns() int64 {
	if a == nil {
		return -1
	}
	return a.Before
}
