package request

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Options are a request's options for the gateway itself, in providerOptions.gateway.
type Options struct {
	Given bool // options were present, so the answer contains metadata

	Order, Only  []string
	Sort         string   // cost, ttft, tps or empty
	Models       []string // tried after the model of the request
	User         string
	Tags         []string
	BYOK         map[string][]json.RawMessage // credentials of the request's own, by provider
	AutoCache    bool
	ZeroData     bool
	NoTraining   bool
	Headquarters []string
	Has          []string
	Timeouts     map[string]time.Duration // to the first token, by provider
	Tier         string
	Entity       string // quota owner, instead of the user

	Unknown []string // unknown options, listed in the answer
}

// Limits of providerTimeouts.
const (
	minTimeout = time.Second
	maxTimeout = 789 * time.Second
)

// WrongOption returns the error for an invalid option.
func WrongOption(name, want string) *hub.Error {
	return &hub.Error{Kind: hub.BadRequest, Code: "invalid_option", Param: "providerOptions.gateway." + name,
		Message: "providerOptions.gateway." + name + " must be " + want}
}

// readOptions reads the value of providerOptions.gateway, which must be valid JSON.
func readOptions(raw []byte) (o Options, err *hub.Error) {
	root := gjson.ParseBytes(raw)
	if root.Type == gjson.Null {
		return o, nil
	}
	if !root.IsObject() {
		return o, &hub.Error{Kind: hub.BadRequest, Param: "providerOptions.gateway", Message: "providerOptions.gateway must be an object"}
	}
	o.Given = true
	root.ForEach(func(key, v gjson.Result) bool {
		if v.Type != gjson.Null {
			err = o.read(key.Str, v)
		}
		return err == nil
	})
	return o, err
}

func (o *Options) read(name string, v gjson.Result) (err *hub.Error) {
	switch name {
	case "order":
		o.Order, err = texts(name, v)
	case "only":
		if o.Only, err = texts(name, v); err == nil && o.Only == nil {
			o.Only = []string{} // no provider at all
		}
	case "models":
		o.Models, err = texts(name, v)
	case "tags":
		o.Tags, err = texts(name, v)
	case "headquarters":
		if o.Headquarters, err = texts(name, v); err == nil {
			err = checkCountries(o.Headquarters)
		}
	case "has":
		if o.Has, err = texts(name, v); err == nil {
			err = checkHas(o.Has)
		}
	case "sort":
		o.Sort = v.Str
		if !slices.Contains([]string{"cost", "ttft", "tps"}, v.Str) {
			err = WrongOption(name, `"cost", "ttft" or "tps"`)
		}
	case "serviceTier":
		o.Tier = v.Str
		if v.Str != "flex" && v.Str != "priority" {
			err = WrongOption(name, `"flex" or "priority"`)
		}
	case "caching":
		o.AutoCache = v.Str == "auto"
		if !o.AutoCache {
			err = WrongOption(name, `"auto"`)
		}
	case "user":
		o.User, err = text(name, v)
	case "quotaEntityId":
		o.Entity, err = text(name, v)
	case "zeroDataRetention":
		o.ZeroData, err = flag(name, v)
	case "disallowPromptTraining":
		o.NoTraining, err = flag(name, v)
	case "byok":
		o.BYOK, err = credentials(v)
	case "providerTimeouts":
		o.Timeouts, err = timeouts(v)
	case "idempotencyKey", "experimental_streamingImageDecoding":
		// These options concern batches and the client itself.
	default:
		o.Unknown = append(o.Unknown, name)
	}
	return err
}

// maxTexts is the maximum number of values in a list, and MaxText the maximum length of a
// value.
const (
	maxTexts = 64
	MaxText  = 256
)

func text(name string, v gjson.Result) (string, *hub.Error) {
	if v.Type != gjson.String || len(v.Str) > MaxText {
		return "", WrongOption(name, "a text of at most "+strconv.Itoa(MaxText)+" bytes")
	}
	return v.Str, nil
}

func texts(name string, v gjson.Result) (list []string, err *hub.Error) {
	wrong := WrongOption(name, "a list of at most "+strconv.Itoa(maxTexts)+" texts")
	if !v.IsArray() {
		return nil, wrong
	}
	v.ForEach(func(_, item gjson.Result) bool {
		if item.Type != gjson.String || len(item.Str) > MaxText || len(list) == maxTexts {
			err = wrong
			return false
		}
		list = append(list, item.Str)
		return true
	})
	return list, err
}

func flag(name string, v gjson.Result) (bool, *hub.Error) {
	if v.Type != gjson.True && v.Type != gjson.False {
		return false, WrongOption(name, "true or false")
	}
	return v.Bool(), nil
}

// credentials reads byok: {"anthropic": [{"apiKey": ...}, ...]}. Package provider parses
// the objects.
func credentials(v gjson.Result) (all map[string][]json.RawMessage, err *hub.Error) {
	wrong := WrongOption("byok", "an object of lists of credentials, by provider")
	if !v.IsObject() {
		return nil, wrong
	}
	all = make(map[string][]json.RawMessage)
	v.ForEach(func(name, list gjson.Result) bool {
		if list.IsObject() { // a single object without a list
			all[name.Str] = []json.RawMessage{json.RawMessage(list.Raw)}
			return true
		}
		if !list.IsArray() {
			err = wrong
			return false
		}
		list.ForEach(func(_, c gjson.Result) bool {
			if !c.IsObject() || len(all[name.Str]) == 8 {
				err = wrong
				return false
			}
			all[name.Str] = append(all[name.Str], json.RawMessage(c.Raw))
			return true
		})
		return err == nil
	})
	return all, err
}

// timeouts reads providerTimeouts: {"byok": {"anthropic": 5000}}, in milliseconds.
func timeouts(v gjson.Result) (all map[string]time.Duration, err *hub.Error) {
	all = make(map[string]time.Duration)
	byok := v.Get("byok")
	if !v.IsObject() || byok.Exists() && !byok.IsObject() {
		return nil, WrongOption("providerTimeouts", `an object such as {"byok": {"openai": 5000}}`)
	}
	byok.ForEach(func(name, ms gjson.Result) bool {
		d := time.Duration(ms.Num) * time.Millisecond
		if ms.Type != gjson.Number || ms.Num > 1e9 || d < minTimeout || d > maxTimeout {
			err = WrongOption("providerTimeouts.byok."+name.Str, "1000 to 789000 milliseconds")
			return false
		}
		all[name.Str] = d
		return true
	})
	return all, err
}

func checkCountries(codes []string) *hub.Error {
	not := 0
	for _, c := range codes {
		code := strings.TrimPrefix(c, "!")
		if len(code) != len(c) {
			not++
		}
		if len(code) != 2 {
			return WrongOption("headquarters", "codes of countries, as US or !CN, not "+strconv.Quote(c))
		}
	}
	if not != 0 && not != len(codes) {
		return WrongOption("headquarters", "either countries to take or, all with a !, countries to leave out")
	}
	return nil
}

// abilities are the valid values of has, besides quantization.
var abilities = []string{"implicit-caching", "reasoning", "structured-output", "tool-use", "vision"}

func checkHas(has []string) *hub.Error {
	for _, h := range has {
		if !slices.Contains(abilities, h) && !strings.HasPrefix(strings.TrimPrefix(h, "!"), "quantization:") {
			return WrongOption("has", "any of "+strings.Join(abilities, ", ")+", quantization:x and !quantization:x, not "+strconv.Quote(h))
		}
	}
	return nil
}
