package scan

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
		_, err := Read([]byte(test.body))
		if test.wrong == "" {
			if err != nil {
				t.Errorf("Read(%.60q): %v", test.body, err)
			}
			continue
		}
		ok := false
		for w := range strings.SplitSeq(test.wrong, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), w)
		}
		if !ok {
			t.Errorf("Read(%.60q) = %v, want %s", test.body, err, test.wrong)
		}
	}
}

func TestObject_Edit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body    string
		changes []Change
		want    string
	}{
		{`{ "model" : "a/b", "n":1 }`, []Change{{"model", []byte(`"b"`)}}, `{ "model" : "b", "n":1 }`},
		{`{"model":"a","x":{"y":1},"n":1}`, []Change{{"x", nil}}, `{"model":"a","n":1}`},
		{`{"x":{"y":1},"model":"a"}`, []Change{{"x", nil}, {"model", []byte(`"c"`)}}, `{"model":"c"}`},
		{`{"model":"a","x":1}`, []Change{{"x", nil}}, `{"model":"a"}`},
		{`{"x":1,"y":2}`, []Change{{"x", nil}, {"y", nil}}, `{}`},
		{`{"x":1,"y":2}`, []Change{{"x", nil}, {"y", nil}, {"z", []byte(`3`)}}, `{"z":3}`},
		{`{"x":1,"y":2,"m":3}`, []Change{{"x", nil}, {"y", nil}}, `{"m":3}`},
		{`{"a":1, "x":1, "y":2 }`, []Change{{"x", nil}, {"y", nil}}, `{"a":1 }`},
		{`{"a":1}`, []Change{{"z", []byte(`{"b":true}`)}, {"q", nil}}, `{"a":1,"z":{"b":true}}`},
		{`{}`, []Change{{"z", []byte(`1`)}}, `{"z":1}`},
	} {
		o, err := Read([]byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(o.Edit(test.changes...)); got != test.want {
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
		o, err := Read(body)
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
		out := o.Edit(Change{"model", []byte(`"other"`)}, Change{"messages", nil})
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
		if _, err := Read(body); err != nil {
			b.Fatal(err)
		}
	}
}
