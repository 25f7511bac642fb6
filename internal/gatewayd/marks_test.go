package gatewayd

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestMarks(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("some words ", 20)
	for _, test := range []struct {
		body string
		want marks
	}{
		{`{"model":"a","messages":[{"role":"user","content":"the file_id \"file_id\" of an \"image\""}]}`, 0},
		{`{"a":[{"file_id":"x"}]}`, marksNamed},
		{`{"a":"` + long + `","b":{"c":[{"file_ids":[]}]}}`, marksNamed},
		{`{"a":[{"type":"item_reference","id":"x"}]}`, marksNamed},
		{`{"a":[{"type":"image"}],"b":"file_"}`, marksFile},
		{`{"a":[{"image_url":{}}],"b":"file_idx"}`, marksFile},
		{`{"a":[{"id":"x"}]}`, marksID},
		{`{"a":[{"b":null,"id":"x","c":null}]}`, marksID},
		{`{"a":[{"b":{"c":[1]},"id":"x"},{"id":"x","b":0}]}`, 0},
		{`{"a":[[{"d":1,"id":{"d":1,"e":2}}]],"b":{"d":[{"d":1,"e":2}]}}`, 0},
		{`{"a":"` + long + `\u005f"}`, marksDisguise},
		{`{"\u0061":1}`, marksDisguise},
		{`{"a":"\u003c\u003E\u0026\u001f\u00e4\u2041\\u0061"}`, 0},
	} {
		o, err := scan([]byte(test.body))
		if err != nil {
			t.Fatal(err)
		}
		if o.marks != test.want {
			t.Errorf("%s has the marks %04b, want %04b", test.body, o.marks, test.want)
		}
	}
}

// A request without marks contains no ids and no files for the full search to find.
func FuzzMarks(f *testing.F) {
	for _, s := range []string{
		`{"input":[{"id":"a"},{"type":"item_reference","id":"b"},{"file_ids":["c"]}],"prompt":{"id":"d","id":"e"},"container":{"skills":[{"skill_id":"s"}]}}`,
		`{"a":[{"file\u005fid":"x"}],"contents":[{"parts":[{"fileData":{"fileUri":"gs://b/f"}}]}],"b":{"s3Location":{"uri":"x"}}}`,
		`{"a":[{"id":"x","type":null}],"b":[{"type":"image"}],"c":[{"vector_store_id":"v","container_id":"w"}]}`,
		`{"a":{"a":[[{"b":{},"id":"x"}]],"id":"y"}}`,
	} {
		f.Add([]byte(s))
	}
	files := [][]byte{
		[]byte(`"image"`), []byte(`"image_url"`), []byte(`"input_image"`), []byte(`"input_audio"`), []byte(`"document"`),
		[]byte(`"file"`), []byte(`"input_file"`), []byte(`"video"`), []byte(`"video_url"`),
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := scan(body)
		if err != nil {
			return
		}
		if got, want := o.marks&marksFile != 0, slices.ContainsFunc(files, func(mark []byte) bool { return bytes.Contains(body, mark) }); got != want {
			t.Errorf("%q: file %v, want %v", body, got, want)
		}
		got, failed := namedIn(o)
		o.marks = marksNamed
		want, also := namedIn(o)
		if !reflect.DeepEqual(got, want) || (failed == nil) != (also == nil) {
			t.Errorf("%q: %v, %v; want %v, %v", body, got, failed, want, also)
		}
	})
}
