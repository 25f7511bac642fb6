package gatewayd

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestScan(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ body, wrong string }{
		{`{"model":"a/b","messages":[{"role":"user","content":"hi"}]}`, ""},
		{" {\n\t\"a\" : [ ] , \"b\":{},\"c\":-1.5e+3,\"d\":null,\"e\":\"\\u00e4\\\"\"}\n", ""},
		{`{}`, ""},
		{`{"a":"` + strings.Repeat("ä", 100) + `"}`, ""},
		{`{"a":` + strings.Repeat("[", 511) + strings.Repeat("]", 511) + `}`, ""},
		{`{"a":` + strings.Repeat("[", 512) + strings.Repeat("]", 512) + `}`, "deeper than 512"},
		{strings.Repeat(`{"a":`, 1<<20), "deeper than 512"},
		{``, "an object is missing"},
		{`[]`, "an object is missing"},
		{`{"a":1`, "a comma or bracket"},
		{`{"a":1]`, "a comma or bracket"},
		{`{"a":[1}`, "a comma or bracket"},
		{`{"a":1,}`, "the name of a member"},
		{`{"a":[1,]}`, "a value is missing"},
		{`{"a" 1}`, "a colon"},
		{`{"a":01}`, "a comma or bracket|a number"},
		{`{"a":1.}`, "a number"},
		{`{"a":tru}`, "a value"},
		{`{"a":"\x"}`, "an escape"},
		{`{"a":"\u12g4"}`, "an escape"},
		{"{\"a\":\"\n\"}", "a control character"},
		{`{"a":"b`, "a text does not end"},
		{`{"a":1}{}`, "something follows"},
		{`{"a":1,"a":2}`, "there twice"},
		{`{"a":1,"\u0061":2}`, "there twice"},
		{"{\"a\":\"\xff\"}", "not UTF-8"},
	} {
		_, err := scan([]byte(test.body))
		if test.wrong == "" {
			if err != nil {
				t.Errorf("scan(%.60q): %v", test.body, err)
			}
			continue
		}
		ok := false
		for w := range strings.SplitSeq(test.wrong, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), w)
		}
		if !ok {
			t.Errorf("scan(%.60q) = %v, want %s", test.body, err, test.wrong)
		}
	}
}

func TestObject_Edit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body    string
		changes []change
		want    string
	}{
		{`{ "model" : "a/b", "n":1 }`, []change{{"model", []byte(`"b"`)}}, `{ "model" : "b", "n":1 }`},
		{`{"model":"a","x":{"y":1},"n":1}`, []change{{"x", nil}}, `{"model":"a","n":1}`},
		{`{"x":{"y":1},"model":"a"}`, []change{{"x", nil}, {"model", []byte(`"c"`)}}, `{"model":"c"}`},
		{`{"model":"a","x":1}`, []change{{"x", nil}}, `{"model":"a"}`},
		{`{"x":1,"y":2}`, []change{{"x", nil}, {"y", nil}}, `{}`},
		{`{"x":1,"y":2}`, []change{{"x", nil}, {"y", nil}, {"z", []byte(`3`)}}, `{"z":3}`},
		{`{"x":1,"y":2,"m":3}`, []change{{"x", nil}, {"y", nil}}, `{"m":3}`},
		{`{"a":1, "x":1, "y":2 }`, []change{{"x", nil}, {"y", nil}}, `{"a":1 }`},
		{`{"a":1}`, []change{{"z", []byte(`{"b":true}`)}, {"q", nil}}, `{"a":1,"z":{"b":true}}`},
		{`{}`, []change{{"z", []byte(`1`)}}, `{"z":1}`},
	} {
		o, err := scan([]byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(o.edit(test.changes...)); got != test.want {
			t.Errorf("edit(%s) = %s, want %s", test.body, got, test.want)
		}
	}
}

// scan and encoding/json accept the same bodies; edited bodies have the same content
// except for the changes.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"model":"a/b","messages":[{"role":"user","content":"hi \u00e4"}],"x":[1,2.5e3,true,null,{}]}`))
	f.Add([]byte(`{"a":{"b":[[]]},"model":""}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := scan(body)
		var want map[string]json.RawMessage
		std := json.Unmarshal(body, &want)
		if err == nil && (std != nil || want == nil) {
			t.Fatalf("we take %q, the library does not: %v", body, std)
		}
		if err != nil {
			if std == nil && want != nil && utf8.Valid(body) && !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "deeper") && !strings.Contains(err.Error(), "256") {
				t.Fatalf("the library takes %q, we do not: %v", body, err)
			}
			return
		}
		var edited, also map[string]json.RawMessage
		out := o.edit(change{"model", []byte(`"other"`)}, change{"messages", nil})
		if err := json.Unmarshal(out, &edited); err != nil {
			t.Fatalf("edit(%q) = %q: %v", body, out, err)
		}
		also = want
		delete(also, "messages")
		also["model"] = json.RawMessage(`"other"`)
		if !reflect.DeepEqual(edited, also) {
			t.Fatalf("edit(%q) = %q", body, out)
		}
	})
}

func BenchmarkScan200KB(b *testing.B) {
	body := []byte(`{"model":"a/b","messages":[{"role":"user","content":"` + strings.Repeat("some words, and more. ", 10_000) + `"}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scan(body); err != nil {
			b.Fatal(err)
		}
	}
}
