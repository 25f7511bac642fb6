package aisdk

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Limits of requests.
const (
	maxDepth    = 512
	maxWarnings = 64 // about unknown members
)

// walker decodes the JSON of a request: its methods are for values that all requests
// have, the readers of calls, files and images build on it. It keeps the first error, with its path
// (prompt[2].content[0].data), and continues.
//
// A null member counts as missing: clients omit undefined values, and clients that send
// null mean the same.
type walker struct {
	err      *hub.Error
	warnings []hub.Warning
}

// open returns the object in body.
func (w *walker) open(body []byte) gjson.Result {
	switch {
	case !utf8.Valid(body):
		w.fail("", "the body is not UTF-8")
	case tooDeep(body):
		w.fail("", "the body nests deeper than %d levels", maxDepth)
	case !gjson.ValidBytes(body):
		w.fail("", "the body is not JSON")
	default:
		if v := gjson.ParseBytes(body); v.IsObject() {
			return v
		}
		w.fail("", "the body must be a JSON object")
	}
	return gjson.Result{}
}

// tooDeep counts brackets, so that later recursion cannot overflow the stack.
func tooDeep(body []byte) bool {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '{', '[':
			if depth++; depth > maxDepth {
				return true
			}
		case '}', ']':
			depth--
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		}
	}
	return false
}

func (w *walker) fail(path, format string, args ...any) {
	if w.err == nil {
		w.err = &hub.Error{Kind: hub.BadRequest, Param: path, Message: fmt.Sprintf(format, args...)}
	}
}

// want records that the value at path is not of the required form.
func (w *walker) want(path, what string) { w.fail(path, "%s must be %s", path, what) }

// missing records that the object at path lacks a member.
func (w *walker) missing(path, name string) {
	w.fail(join(path, name), "%s is missing", join(path, name))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// members calls f for each member of the object at path that is not null, until an error
// occurs. f must pass unknown names to unknown.
func (w *walker) members(v gjson.Result, path string, f func(name, path string, v gjson.Result)) {
	if !v.IsObject() {
		w.want(path, "an object")
		return
	}
	v.ForEach(func(name, v gjson.Result) bool {
		if v.Type != gjson.Null {
			f(name.Str, join(path, name.Str), v)
		}
		return w.err == nil
	})
}

// items calls f for each item of the array at path, until an error occurs.
func (w *walker) items(v gjson.Result, path string, f func(path string, v gjson.Result)) {
	if !v.IsArray() {
		w.want(path, "an array")
		return
	}
	i := 0
	v.ForEach(func(_, v gjson.Result) bool {
		f(path+"["+strconv.Itoa(i)+"]", v)
		i++
		return w.err == nil
	})
}

// unknown adds a warning about an unknown member, once for all array elements.
func (w *walker) unknown(path string) {
	feature := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ { // prompt[2].content[0].x -> prompt.content.x
		if path[i] == '[' {
			for i < len(path) && path[i] != ']' {
				i++
			}
			continue
		}
		feature = append(feature, path[i])
	}
	w.warn(hub.WarnUnsupported, string(feature), "the gateway does not know it and left it out")
}

func (w *walker) warn(kind hub.WarningKind, feature, message string) {
	warning := hub.Warning{Kind: kind, Feature: feature, Message: message}
	if !slices.Contains(w.warnings, warning) && len(w.warnings) < maxWarnings {
		w.warnings = append(w.warnings, warning)
	}
}

func (w *walker) text(v gjson.Result, path string) string {
	if v.Type != gjson.String {
		w.want(path, "a string")
	}
	return v.Str
}

// name decodes a string that must not be empty.
func (w *walker) name(v gjson.Result, path string) string {
	if v.Type != gjson.String || v.Str == "" {
		w.want(path, "a string that is not empty")
	}
	return v.Str
}

func (w *walker) texts(v gjson.Result, path string) (list []string) {
	w.items(v, path, func(path string, v gjson.Result) { list = append(list, w.text(v, path)) })
	return list
}

func (w *walker) flag(v gjson.Result, path string) bool {
	if v.Type != gjson.True && v.Type != gjson.False {
		w.want(path, "true or false")
	}
	return v.Type == gjson.True
}

func (w *walker) number(v gjson.Result, path string) *float64 {
	if v.Type != gjson.Number || math.IsInf(v.Num, 0) || math.IsNaN(v.Num) {
		w.want(path, "a number")
		return nil
	}
	return &v.Num
}

// integer decodes an integer from least to JavaScript's maximum safe integer.
func (w *walker) integer(v gjson.Result, path string, least int64) *int64 {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || math.Abs(v.Num) > 1<<53 || v.Num < float64(least) {
		what := "a whole number"
		if least > math.MinInt64 {
			what += " of at least " + strconv.FormatInt(least, 10)
		}
		w.want(path, what)
		return nil
	}
	return hub.N(int64(v.Num))
}

// object returns the JSON of an object unchanged.
func (w *walker) object(v gjson.Result, path string) json.RawMessage {
	if !v.IsObject() {
		w.want(path, "an object")
		return nil
	}
	return json.RawMessage(v.Raw)
}

// options decodes providerOptions, without the gateway's own options.
func (w *walker) options(v gjson.Result, path string) (o hub.Options) {
	w.members(v, path, func(provider, path string, v gjson.Result) {
		if provider == us {
			return
		}
		w.members(v, path, func(name, _ string, v gjson.Result) {
			o.SetRaw(provider, name, json.RawMessage(v.Raw))
		})
	})
	return o
}

// us is the gateway's name in providerOptions and providerMetadata.
const us = "gateway"
