package gatewayd

import "testing"

// readAsks stays within bounds for any body, and is deterministic.
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
		o, err := scan(body)
		if err != nil {
			return
		}
		a, bad := readAsks(o, false)
		if bad == nil && (a.output < 0 || len(a.tools) > 2*maxTools || len(a.models) > 2*maxTools+maxFallbacks) {
			t.Errorf("%+v", a)
		}
		all, bad := namedIn(o)
		if bad == nil && len(all) > maxNamed {
			t.Errorf("%d ids", len(all))
		}
		for _, n := range all {
			if n.id == "" || n.member == "" {
				t.Errorf("%+v", n)
			}
		}
	})
}
