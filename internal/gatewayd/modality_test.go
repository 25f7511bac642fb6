package gatewayd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// A model that cannot read the request is skipped in favour of the request's other
// models; models with unknown modalities are tried.
func TestModality(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for id, input := range map[string][]string{"lab/blind": {"text"}, "lab/sees": {"text", "image"}, "lab/hears": {"text", "audio"}, "lab/unknown": nil} {
		w.model(id, gatewaytest.Chat+":echo", gatewaytest.Messages+":echo")
		w.settings.Catalog.Lookup(id).Input = input
	}
	const (
		image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + gatewaytest.Pixel + `"}}`
		pdf   = `{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,JVBERi0="}}`
		sound = `{"type":"input_audio","input_audio":{"format":"wav","data":"UklGRg=="}}`
		text  = `{"type":"text","text":"an \"image\" and a \"file\", in words"}`
		block = `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + gatewaytest.Pixel + `"}}`
	)
	for _, test := range []struct {
		path, models, part string
		want               string // the model called, or the error
	}{
		{"/v1/chat/completions", `"model":"lab/blind"`, image, "lab/blind reads text, and the request has an image"},
		{"/v1/messages", `"model":"lab/blind","max_tokens":9`, block, "lab/blind reads text, and the request has an image"},
		{"/v1/messages", `"model":"lab/blind","max_tokens":9`, `{"type":"tool_result","tool_use_id":"x","content":[` + block + `]}`, "the request has an image"},
		{"/v1/chat/completions", `"model":"lab/blind"`, pdf, "the request has a document"},
		{"/v1/chat/completions", `"model":"lab/sees"`, sound, "lab/sees reads text, image, and the request has sound"},
		{"/v1/chat/completions", `"model":"lab/blind"`, text, "lab/blind"},
		{"/v1/chat/completions", `"model":"lab/sees"`, image, "lab/sees"},
		{"/v1/chat/completions", `"model":"lab/sees"`, pdf, "lab/sees"},
		{"/v1/chat/completions", `"model":"lab/hears"`, sound, "lab/hears"},
		{"/v1/chat/completions", `"model":"lab/unknown"`, image, "lab/unknown"},
		{"/v1/chat/completions", `"model":"lab/blind","models":["lab/hears","lab/sees"]`, image, "lab/sees"},
		{"/v1/chat/completions", `"model":"lab/blind","models":["lab/hears"]`, image, "lab/blind reads text"},
	} {
		before := len(w.ledger.records)
		content := `{"role":"user","content":[` + test.part + `]}`
		if strings.Contains(test.part, "tool_result") {
			content = `{"role":"user","content":"x"},{"role":"assistant","content":[{"type":"tool_use","id":"x","name":"f","input":{}}]},` + content
		}
		status, body, _ := w.post(test.path, `{`+test.models+`,"messages":[`+content+`]}`)
		r := w.record(before + 1)
		if strings.Contains(test.want, " ") {
			if status != http.StatusBadRequest || !strings.Contains(body, test.want) || len(r.Attempts) != 0 {
				t.Errorf("%s %.60s: %d %s after %d attempts", test.models, test.part, status, body, len(r.Attempts))
			}
		} else if status != http.StatusOK || r.Served != test.want {
			t.Errorf("%s %.60s: %d, served by %s, not %s: %s", test.models, test.part, status, r.Served, test.want, body)
		}
	}
}
