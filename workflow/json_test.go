package workflow

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

type textField struct {
	Inner struct{ Text string }
	List  []any
	inner string // JSON leaves it out
	Out   string `json:"-"`
}

type badKey string

func TestText_NotUTF8(t *testing.T) {
	bad := "a\xffb"
	inner := textField{}
	inner.Inner.Text = bad
	for name, tt := range map[string]struct {
		v    any
		says string // "" if it can be stored
	}{
		"text":           {bad, "value is not UTF-8"},
		"named text":     {badKey(bad), "value is not UTF-8"},
		"in a struct":    {inner, "value.Inner.Text"},
		"in a pointer":   {&inner, "value.Inner.Text"},
		"in a list":      {[]string{"a", bad}, "value[1]"},
		"in an array":    {[2]string{"a", bad}, "value[1]"},
		"in any":         {textField{List: []any{1, map[string]any{"k": bad}}}, `value.List[1]["k"]`},
		"in a map":       {map[int]string{7: bad}, `value["7"]`},
		"as a key":       {map[badKey]int{badKey(bad): 1}, "a key of value"},
		"bytes":          {[]byte(bad), ""},
		"left out":       {textField{inner: bad, Out: bad}, ""},
		"U+FFFD":         {"\ufffd", ""},
		"words":          {`\ufffd`, ""},
		"JSON as it is":  {json.RawMessage(`"\ufffd"`), ""},
		"writes itself":  {time.Unix(0, 0), ""},
		"nothing":        {nil, ""},
		"a nil pointer":  {(*textField)(nil), ""},
		"words, and bad": {[]string{`\ufffd`, bad}, "value[1]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := new(envelopes).encode("", tt.v)
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), `"a\xffb"`) {
				t.Errorf("%v, want it to say %s", err, tt.says)
			}
		})
	}
	// Messages of errors are for people: invalid bytes in them are replaced.
	if err := new(envelopes).decodeError(new(envelopes).encodeError("", fmt.Errorf("it says %s", bad))); !strings.HasPrefix(err.Error(), "it says a") {
		t.Errorf("an error: %v", err)
	}
}

func TestNumbers_InInterfaces(t *testing.T) {
	const big = 1<<60 + 1
	var typed any = new(struct {
		ID int64 `json:"id"`
	})
	for name, tt := range map[string]struct {
		in   any
		out  any    // pointer
		says string // "" if it can be decoded
	}{
		"any":               {big, new(any), "value is the integer 1152921504606846977"},
		"in a map":          {map[string]any{"id": big}, new(map[string]any), `value["id"] is the integer`},
		"in any, in a map":  {map[string]any{"id": []int{1, big}}, new(any), `value["id"][1] is the integer`},
		"in a struct":       {map[string]any{"List": []int{big}}, new(textField), "value.List[0] is the integer"},
		"negative":          {-big, new(any), "-1152921504606846977"},
		"beyond 64 bits":    {json.RawMessage("123456789012345678901234567890"), new(any), "123456789012345678901234567890"},
		"a type":            {big, new(int64), ""},
		"a number, as read": {big, new(json.Number), ""},
		"a power of 2":      {1 << 60, new(any), ""},
		"the largest":       {1 << 53, new(any), ""},
		"one more":          {1<<53 + 1, new(any), "9007199254740993"},
		"not an integer":    {0.12345678901234567, new(any), ""},
		"text":              {"1152921504606846977", new(any), ""},
		"a type in any":     {map[string]any{"id": big}, &typed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := new(envelopes)
			env, err := p.encode("", tt.in)
			if err != nil {
				t.Fatal(err)
			}
			err = p.decode(env, tt.out)
			if tt.says == "" && err != nil || tt.says != "" && (cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("%v, want %q", err, tt.says)
			}
		})
	}
}

// A value from outside never fails a run because of its digits, and loses none.
func TestNumbers_FromOutside(t *testing.T) {
	const sent = `{"big": 12345678901234567890, "small": 7, "part": 0.5, "list": [1, 12345678901234567891, "x", null, true], "in": {"deep": -9007199254740993}}`
	want := map[string]any{
		"big": json.Number("12345678901234567890"), "small": 7.0, "part": 0.5,
		"list": []any{1.0, json.Number("12345678901234567891"), "x", nil, true}, "in": map[string]any{"deep": json.Number("-9007199254740993")},
	}
	p := new(envelopes)
	var any1 any
	var map1 map[string]any
	var struct1 struct {
		Big   any            `json:"big"`
		Small int            `json:"small"`
		List  []any          `json:"list"`
		In    map[string]any `json:"in"`
	}
	for _, v := range []any{&any1, &map1, &struct1} {
		if err := p.decode([]byte("json"+sent), fromOutside{v}); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(any1, any(want)) || !reflect.DeepEqual(map1, want) {
		t.Errorf("%v\n%v\nwant %v", any1, map1, want)
	}
	if s := struct1; s.Big != want["big"] || s.Small != 7 || !reflect.DeepEqual(s.List, want["list"]) || !reflect.DeepEqual(s.In, want["in"]) {
		t.Errorf("%+v", s)
	}
	var n int
	if err := p.decode([]byte(`json"a"`), fromOutside{&n}); cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "*int") {
		t.Errorf("what does not fit: %v", err)
	}
}
