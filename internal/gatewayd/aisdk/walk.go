package aisdk

import (
	"encoding/json"
	"fmt"
	"math"
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

// callReader decodes the JSON of a request. It keeps the first error, with its path
// (prompt[2].content[0].data), and continues.
//
// A null member counts as missing: clients omit undefined values, and clients that send
// null mean the same.
type callReader struct {
	err      *hub.Error
	warnings []hub.Warning
}

// open returns the object in body.
func (r *callReader) open(body []byte) gjson.Result {
	switch {
	case !utf8.Valid(body):
		r.fail("", "the body is not UTF-8")
	case tooDeep(body):
		r.fail("", "the body nests deeper than %d levels", maxDepth)
	case !gjson.ValidBytes(body):
		r.fail("", "the body is not JSON")
	default:
		if v := gjson.ParseBytes(body); v.IsObject() {
			return v
		}
		r.fail("", "the body must be a JSON object")
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

func (r *callReader) fail(path, format string, args ...any) {
	if r.err == nil {
		r.err = &hub.Error{Kind: hub.BadRequest, Param: path, Message: fmt.Sprintf(format, args...)}
	}
}

// want records that the value at path is not of the required form.
func (r *callReader) want(path, what string) { r.fail(path, "%s must be %s", path, what) }

// missing records that the object at path lacks a member.
func (r *callReader) missing(path, name string) {
	r.fail(join(path, name), "%s is missing", join(path, name))
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// members calls f for each member of the object at path that is not null, until an error
// occurs. f must pass unknown names to unknown.
func (r *callReader) members(v gjson.Result, path string, f func(name, path string, v gjson.Result)) {
	if !v.IsObject() {
		r.want(path, "an object")
		return
	}
	v.ForEach(func(name, v gjson.Result) bool {
		if v.Type != gjson.Null {
			f(name.Str, join(path, name.Str), v)
		}
		return r.err == nil
	})
}

// items calls f for each item of the array at path, until an error occurs.
func (r *callReader) items(v gjson.Result, path string, f func(path string, v gjson.Result)) {
	if !v.IsArray() {
		r.want(path, "an array")
		return
	}
	i := 0
	v.ForEach(func(_, v gjson.Result) bool {
		f(path+"["+strconv.Itoa(i)+"]", v)
		i++
		return r.err == nil
	})
}

// unknown adds a warning about an unknown member, once for all array elements.
func (r *callReader) unknown(path string) {
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
	r.warn(hub.WarnUnsupported, string(feature), "the gateway does not know it and left it out")
}

func (r *callReader) warn(kind hub.WarningKind, feature, message string) {
	w := hub.Warning{Kind: kind, Feature: feature, Message: message}
	for _, other := range r.warnings {
		if other == w {
			return
		}
	}
	if len(r.warnings) < maxWarnings {
		r.warnings = append(r.warnings, w)
	}
}

func (r *callReader) text(v gjson.Result, path string) string {
	if v.Type != gjson.String {
		r.want(path, "a string")
	}
	return v.Str
}

// name decodes a string that must not be empty.
func (r *callReader) name(v gjson.Result, path string) string {
	if v.Type != gjson.String || v.Str == "" {
		r.want(path, "a string that is not empty")
	}
	return v.Str
}

func (r *callReader) texts(v gjson.Result, path string) (list []string) {
	r.items(v, path, func(path string, v gjson.Result) { list = append(list, r.text(v, path)) })
	return list
}

func (r *callReader) flag(v gjson.Result, path string) bool {
	if v.Type != gjson.True && v.Type != gjson.False {
		r.want(path, "true or false")
	}
	return v.Type == gjson.True
}

func (r *callReader) number(v gjson.Result, path string) *float64 {
	if v.Type != gjson.Number || math.IsInf(v.Num, 0) || math.IsNaN(v.Num) {
		r.want(path, "a number")
		return nil
	}
	return &v.Num
}

// integer decodes an integer from least to JavaScript's maximum safe integer.
func (r *callReader) integer(v gjson.Result, path string, least int64) *int64 {
	if v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || math.Abs(v.Num) > 1<<53 || v.Num < float64(least) {
		what := "a whole number"
		if least > math.MinInt64 {
			what += " of at least " + strconv.FormatInt(least, 10)
		}
		r.want(path, what)
		return nil
	}
	return hub.N(int64(v.Num))
}

// object returns the JSON of an object unchanged.
func (r *callReader) object(v gjson.Result, path string) json.RawMessage {
	if !v.IsObject() {
		r.want(path, "an object")
		return nil
	}
	return json.RawMessage(v.Raw)
}

// options decodes providerOptions, without the gateway's own options.
func (r *callReader) options(v gjson.Result, path string) (o hub.Options) {
	r.members(v, path, func(provider, path string, v gjson.Result) {
		if provider == us {
			return
		}
		r.members(v, path, func(name, _ string, v gjson.Result) {
			o.SetRaw(provider, name, json.RawMessage(v.Raw))
		})
	})
	return o
}

// us is the gateway's name in providerOptions and providerMetadata.
const us = "gateway"
