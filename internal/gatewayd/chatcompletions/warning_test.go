package chatcompletions_test

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/chatcompletions"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// Warnings are sent in whole answers and at the end of streams, with and without the
// gateway's metadata.
func TestWarnings(t *testing.T) {
	t.Parallel()
	r := &hub.Result{Content: []hub.Part{{Kind: hub.TextPart, Text: "Hi"}}, Finish: hub.Finish{Reason: hub.Stop}, Warnings: []hub.Warning{{Kind: hub.WarnUnsupported, Feature: "topK", Message: "no"}}}
	const want = `[{"type":"unsupported","feature":"topK","message":"no"}]`
	for _, metadata := range []func() []byte{nil, func() []byte { return []byte(`{"cost":"0"}`) }} {
		a := hub.Answer{ID: "gen_1", Model: "a/b", Call: &hub.Call{}, Metadata: metadata}
		whole, err := chatcompletions.New().WriteResult(a, r)
		if got := gjson.GetBytes(whole, "choices.0.message.provider_metadata.warnings").Raw; err != nil || !gjson.ValidBytes(whole) || got != want {
			t.Errorf("WriteResult() = %s, %v; want the warnings %s", whole, err, want)
		}
		w := chatcompletions.New().NewWriter(a)
		var stream []byte
		for _, e := range r.Events() {
			stream = w.Append(stream, &e)
		}
		var told []string
		for line := range strings.Lines(string(stream)) {
			data, _ := strings.CutPrefix(strings.TrimSpace(line), "data: ")
			if got := gjson.Get(data, "choices.0.delta.provider_metadata.warnings").Raw; got != "" {
				told = append(told, got)
			}
		}
		if len(told) != 1 || told[0] != want {
			t.Errorf("the stream tells %q, want once %s", told, want)
		}
	}
}
