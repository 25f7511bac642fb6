package scan

import (
	"strings"
	"testing"
)

func TestMarks(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("some words ", 20)
	for _, test := range []struct {
		body string
		want Marks
	}{
		{`{"model":"a","messages":[{"role":"user","content":"the file_id \"file_id\" of an \"image\""}]}`, 0},
		{`{"a":[{"file_id":"x"}]}`, Named},
		{`{"a":"` + long + `","b":{"c":[{"file_ids":[]}]}}`, Named},
		{`{"a":[{"type":"item_reference","id":"x"}]}`, Named},
		{`{"a":[{"type":"image"}],"b":"file_"}`, File},
		{`{"a":[{"image_url":{}}],"b":"file_idx"}`, File},
		{`{"a":[{"id":"x"}]}`, ID},
		{`{"a":[{"b":null,"id":"x","c":null}]}`, ID},
		{`{"a":[{"b":{"c":[1]},"id":"x"},{"id":"x","b":0}]}`, 0},
		{`{"a":[[{"d":1,"id":{"d":1,"e":2}}]],"b":{"d":[{"d":1,"e":2}]}}`, 0},
		{`{"a":"` + long + `\u005f"}`, Disguise},
		{`{"\u0061":1}`, Disguise},
		{`{"a":"\u003c\u003E\u0026\u001f\u00e4\u2041\\u0061"}`, 0},
	} {
		o, err := Read([]byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if o.Marks != test.want {
			t.Errorf("%s has the marks %04b, want %04b", test.body, o.Marks, test.want)
		}
	}
}
