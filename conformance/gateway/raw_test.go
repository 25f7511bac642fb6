package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// missing has, by recording, the members of recorded tool calls that clients of chat
// completions need to distinguish the calls: the gateway adds them at the end of the
// call.
var missing = map[string]string{"mistral/mistral-tool-call": `,"index":0,"type":"function"`}

// TestRaw passes every recorded answer through the gateway to a client that speaks the
// provider's own format. The client gets the recorded bytes unchanged, followed by the
// missing part, if there is one.
func TestRaw(t *testing.T) {
	need(t, ".") // a daemon is built for it
	s := open(t)
	passed := 0
	for name, format := range dialects {
		path := map[string]string{gatewaytest.Chat: "/v1/chat/completions", gatewaytest.Responses: "/v1/responses", gatewaytest.Messages: "/v1/messages"}[format]
		if path == "" {
			continue // no client speaks it
		}
		for model, id := range s.names {
			if !strings.HasPrefix(model, name+"/") {
				continue
			}
			f := gatewaytest.Named(t, id)
			if f.Whole != nil {
				passed++
				body, head := s.ask(t, path, model, "")
				if !bytes.Equal(body, f.Whole) {
					t.Errorf("%s: %.300s\nand not %.300s", id, body, f.Whole)
				}
				// A fallback model answered, whose price is not known.
				unpriced := strings.HasSuffix(id, "/anthropic-fallback") || !bytes.Contains(f.Whole, []byte(`"usage"`))
				if cost := head.Get("X-Cay-Cost"); !strings.HasPrefix(head.Get("X-Cay-Generation-Id"), "gen_") || cost == "" && !unpriced {
					t.Errorf("%s: the headers are %v", id, head)
				}
			}
			if f.Chunks == nil {
				continue
			}
			passed++
			// A client of chat completions must ask for its usage.
			extra := ""
			if format == gatewaytest.Chat {
				extra = `,"stream_options":{"include_usage":true}`
			}
			body, head := s.ask(t, path, model, `,"stream":true`+extra)
			if add := missing[id]; add != "" {
				if bytes.Count(body, []byte(add)) != 1 {
					t.Errorf("%s streamed: %s is not added once: %s", id, add, body)
				}
				body = bytes.Replace(body, []byte(add), nil, 1)
			}
			if want := gatewaytest.Frames(format, f.Chunks); !bytes.Equal(body, want) {
				t.Errorf("%s streamed: %d bytes and not %d", id, len(body), len(want))
			}
			if !strings.HasPrefix(head.Get("X-Cay-Generation-Id"), "gen_") {
				t.Errorf("%s streamed: the headers are %v", id, head)
			}
		}
	}
	if passed < 110 {
		t.Errorf("%d answers only", passed)
	}
	t.Logf("%d answers", passed)
}

func (s *site) ask(t *testing.T, path, model, extra string) ([]byte, http.Header) {
	t.Helper()
	field := `"messages":[{"role":"user","content":"Again"}]`
	if path == "/v1/responses" {
		field = `"input":"Again"`
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":100,%s%s}`, model, field, extra)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.world.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + s.world.Key}, "Content-Type": {"application/json"}, "Anthropic-Version": {"2023-06-01"}}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%s: %s %v: %.300s", model, resp.Status, err, answer)
	}
	return answer, resp.Header
}
