package asks

import (
	"bytes"
	"reflect"
	"slices"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/scan"
)

// Read stays within bounds for any body, and is deterministic.
func FuzzAsks(f *testing.F) {
	for _, s := range []string{
		`{"model":"a","Max-Tokens":5,"tools":[{"type":"web_search_20250305","max_uses":3},{"googleSearch":{}},{"systemTool":{"name":"x"}}],"n":3}`,
		`{"generationConfig":{"a":{"b":{"maxOutputTokens":9}}},"additionalModelRequestFields":{"model":"x"},"speed":"fast","fallbacks":[{"model":"b"}]}`,
		`{"input":[{"id":"a"},{"type":"item_reference","id":"b"},{"file_ids":["c"]}],"prompt":{"id":"d","id":"e"},"container":{"skills":[{"skill_id":"s"}]}}`,
		`{"a":[{"file\u005fid":"x"}],"contents":[{"parts":[{"fileData":{"fileUri":"gs://b/f"}}]}],"search_parameters":{"mode":"auto"}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := scan.Read(body)
		if err != nil {
			return
		}
		a, bad := Read(o, false)
		if bad == nil && (a.Output < 0 || len(a.Tools) > 2*maxTools || len(a.Models) > 2*maxTools+maxFallbacks) {
			t.Errorf("%+v", a)
		}
		all, bad := NamedIn(o)
		if bad == nil && len(all) > maxNamed {
			t.Errorf("%d ids", len(all))
		}
		for _, n := range all {
			if n.ID == "" || n.Member == "" {
				t.Errorf("%+v", n)
			}
		}
	})
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
		o, err := scan.Read(body)
		if err != nil {
			return
		}
		if got, want := o.Marks&scan.File != 0, slices.ContainsFunc(files, func(mark []byte) bool { return bytes.Contains(body, mark) }); got != want {
			t.Errorf("%q: file %v, want %v", body, got, want)
		}
		got, failed := NamedIn(o)
		o.Marks = scan.Named
		want, also := NamedIn(o)
		if !reflect.DeepEqual(got, want) || (failed == nil) != (also == nil) {
			t.Errorf("%q: %v, %v; want %v, %v", body, got, failed, want, also)
		}
	})
}
