package workflow

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// encoding/json silently changes two kinds of values: text that is not UTF-8, and large
// integers that are decoded into an interface. Values that would change are refused. The
// checks run only where the JSON has a sign of such a value.

// replaced is how encoding/json writes a byte that is not UTF-8. The character U+FFFD is
// written as three bytes instead.
var replaced = []byte(`\ufffd`)

// badText returns the error for the first text in v that is not UTF-8, nil if there is
// none; body is the JSON of v.
func badText(v any, body []byte) error {
	if !bytes.Contains(body, replaced) {
		return nil
	}
	if path, text, found := findBadText(reflect.ValueOf(v), "value"); found {
		return cay.Errorf(cay.Invalid, "value of type %T cannot be stored as JSON: %s is not UTF-8: %q", v, path, cut(text, 60)).
			WithHint("Bytes that are no text belong into a []byte.")
	}
	return nil
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
)

// findBadText looks for text that is not UTF-8 in the parts of v that encoding/json
// writes. The caller has encoded v before, so v has no cycles.
func findBadText(v reflect.Value, path string) (where, text string, found bool) {
	if !v.IsValid() || v.Type().Implements(jsonMarshaler) || v.Type().Implements(textMarshaler) {
		return "", "", false // the type writes its own JSON
	}
	switch v.Kind() {
	case reflect.String:
		return path, v.String(), !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return findBadText(v.Elem(), path)
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return "", "", false
		}
		for i := range v.Len() {
			if where, text, found := findBadText(v.Index(i), path+"["+strconv.Itoa(i)+"]"); found {
				return where, text, true
			}
		}
	case reflect.Map:
		for of, at := v.MapRange(), 0; of.Next(); at++ {
			if key := of.Key(); key.Kind() == reflect.String && !utf8.ValidString(key.String()) {
				return "a key of " + path, key.String(), true
			}
			if where, text, found := findBadText(of.Value(), fmt.Sprintf("%s[%q]", path, fmt.Sprint(of.Key()))); found {
				return where, text, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() && !f.Anonymous || f.Tag.Get("json") == "-" {
				continue
			}
			if where, text, found := findBadText(v.Field(i), path+"."+f.Name); found {
				return where, text, true
			}
		}
	}
	return "", "", false
}

// fromOutside wraps the target of a value that came from outside the workflow. Such a
// value must not fail the run: integers that do not fit a float64 exactly are decoded
// into an interface as json.Number.
type fromOutside struct{ to any }

// target returns v, unwrapped if it is a fromOutside.
func target(v any) any {
	if o, ok := v.(fromOutside); ok {
		return o.to
	}
	return v
}

// unmarshal is json.Unmarshal, but refuses integers that would lose digits as the float64
// that an interface gets.
func unmarshal(body []byte, v any) error {
	_, outside := v.(fromOutside)
	v = target(v)
	to := reflect.ValueOf(v)
	if !hasLongNumber(body) || to.Kind() != reflect.Pointer || to.IsNil() || !to.Elem().IsZero() {
		return json.Unmarshal(body, v) // the value in v may determine the types of numbers
	}
	numbers := reflect.New(to.Type().Elem())
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(numbers.Interface()); err == nil {
		path, number, found := findLostNumber(numbers.Elem(), "value")
		if found && outside {
			keepNumbers(numbers.Elem())
			to.Elem().Set(numbers.Elem())
			return nil
		}
		if found {
			return fmt.Errorf("%s is the integer %s, which an interface cannot hold exactly: read it into a field of an integer type, or store it as text", path, number)
		}
	}
	return json.Unmarshal(body, v)
}

// keepNumbers converts numbers in interfaces to float64, as json.Unmarshal does, except
// for integers that would lose digits. v must be settable.
func keepNumbers(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		switch in := v.Interface().(type) {
		case json.Number:
			if f, err := in.Float64(); err == nil && !losesDigits(in.String()) {
				v.Set(reflect.ValueOf(f))
			}
		case map[string]any, []any:
			keepNumbers(reflect.ValueOf(in))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			keepNumbers(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			keepNumbers(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			kept := reflect.New(v.Type().Elem()).Elem()
			kept.Set(v.MapIndex(key))
			keepNumbers(kept)
			v.SetMapIndex(key, kept)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				keepNumbers(v.Field(i))
			}
		}
	}
}

// exactDigits is the number of digits up to which a float64 holds every integer exactly.
const exactDigits = 15

// hasLongNumber reports whether body has more digits in a row than exactDigits.
func hasLongNumber(body []byte) bool {
	run := 0
	for _, c := range body {
		if c < '0' || c > '9' {
			run = 0
		} else if run++; run > exactDigits {
			return true
		}
	}
	return false
}

// findLostNumber looks for an integer in an interface that would lose digits as a
// float64.
func findLostNumber(v reflect.Value, path string) (where, number string, found bool) {
	if !v.IsValid() {
		return "", "", false
	}
	switch v.Kind() {
	case reflect.Interface:
		if !v.CanInterface() {
			return "", "", false
		}
		if n, ok := v.Interface().(json.Number); ok {
			return path, n.String(), losesDigits(n.String())
		}
		return findLostNumber(v.Elem(), path)
	case reflect.Pointer:
		return findLostNumber(v.Elem(), path)
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if where, number, found := findLostNumber(v.Index(i), path+"["+strconv.Itoa(i)+"]"); found {
				return where, number, true
			}
		}
	case reflect.Map:
		for of := v.MapRange(); of.Next(); {
			if where, number, found := findLostNumber(of.Value(), fmt.Sprintf("%s[%q]", path, fmt.Sprint(of.Key()))); found {
				return where, number, true
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() || f.Anonymous {
				if where, number, found := findLostNumber(v.Field(i), path+"."+f.Name); found {
					return where, number, true
				}
			}
		}
	}
	return "", "", false
}

// losesDigits reports whether a number is an integer that a float64 cannot hold exactly.
func losesDigits(number string) bool {
	if strings.ContainsAny(number, ".eE") {
		return false
	}
	exact, ok := new(big.Int).SetString(number, 10)
	if !ok {
		return false
	}
	_, how := new(big.Float).SetInt(exact).Float64()
	return how != big.Exact
}
