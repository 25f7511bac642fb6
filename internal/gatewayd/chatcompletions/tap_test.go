package chatcompletions

import (
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// A stream is complete when every choice has a finish_reason.
func TestTap_Complete(t *testing.T) {
	t.Parallel()
	const (
		first, second = `data: {"id":"x","choices":[{"index":0,"delta":{"content":"aaaa"}}]}` + "\n\n", `data: {"id":"x","choices":[{"delta":{"content":"bb"},"index": 1}]}` + "\n\n"
		ended         = `data: {"id":"x","choices":[{"index":1,"delta":{},"finish_reason":"length"}]}` + "\n\n"
		counted       = `data: {"id":"x","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}` + "\n\n"
		both          = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"},{"index":1,"delta":{},"finish_reason":"length"}]}` + "\n\n"
		call          = `data: {"id":"x","choices":[{"index":0,"delta":{"tool_calls":[{"index":3,"function":{"arguments":"{}"}}]}}]}` + "\n\n"
	)
	for name, tt := range map[string]struct {
		stream   string
		complete bool
		reason   hub.Reason
		bytes    int64
	}{
		"one":                       {first + stopped, true, hub.Stop, 4},
		"one and its end":           {first + stopped + counted + done, true, hub.Stop, 4},
		"an end and no reason":      {first + done, false, "", 4},
		"counted, and no reason":    {first + counted + done, false, "", 4},
		"nothing at all":            {done, false, "", 0},
		"two":                       {first + second + ended + stopped + done, true, hub.Stop, 6},
		"two at once":               {first + second + both, true, hub.Stop, 6},
		"the second breaks off":     {first + second + stopped, false, hub.Stop, 6},
		"the first breaks off":      {first + second + ended + done, false, hub.Length, 6},
		"the second is the call's":  {call + stopped, true, hub.ToolCalls, 2},
		"the second only said once": {first + stopped + second + done, false, hub.Stop, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, step := range []int{1, 7, 1 << 20} {
				p := New().Tap(&hub.Target{Provider: "p"}, true)
				for b := []byte(tt.stream); len(b) > 0; b = b[min(step, len(b)):] {
					p.Write(b[:min(step, len(b))])
				}
				seen := p.End()
				if seen.Complete != tt.complete || seen.Finish.Reason != tt.reason || seen.OutputBytes != tt.bytes {
					t.Errorf("by %d: %+v", step, seen)
				}
			}
		})
	}
}
