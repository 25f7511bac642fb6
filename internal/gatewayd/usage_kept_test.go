package gatewayd_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// failing are streams, in all formats, of providers that count 20 input tokens and 10
// output tokens and then fail: with an error event, by breaking off, or with malformed
// data.
var failing = []struct {
	format, how string
	chunks      []string
}{
	{gatewaytest.Chat, "an error", []string{
		`{"id":"x","model":"m","choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":{"prompt_tokens":20,"completion_tokens":10}}`,
		`{"error":{"message":"busy","type":"overloaded_error","code":"overloaded"}}`}},
	{gatewaytest.Chat, "an error before any content", []string{
		`{"id":"x","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"usage":{"prompt_tokens":20,"completion_tokens":10}}`,
		`{"error":{"message":"busy","type":"overloaded_error","code":"overloaded"}}`}},
	{gatewaytest.Chat, "half a call", []string{
		`{"id":"x","model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]}}],"usage":{"prompt_tokens":20,"completion_tokens":10}}`}},
	{gatewaytest.Messages, "an error", []string{
		`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":10}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}`,
		`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`}},
	{gatewaytest.Messages, "an error before any content", []string{
		`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":10}}}`,
		`{"type":"error","error":{"type":"overloaded_error","message":"busy"}}`}},
	{gatewaytest.Messages, "breaking off", []string{
		`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":10}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}`}},
	{gatewaytest.Messages, "another answer", []string{
		`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":10}}}`,
		`{"type":"message_start","message":{"id":"y","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":7,"output_tokens":7}}}`}},
	{gatewaytest.Messages, "another answer within the first", []string{
		`{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":10}}}`,
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}`,
		`{"type":"message_start","message":{"id":"y","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":7,"output_tokens":7}}}`}},
	{gatewaytest.Responses, "an error", []string{
		`{"type":"response.created","response":{"id":"x","model":"m","status":"in_progress","output":[]}}`,
		`{"type":"response.failed","response":{"id":"x","model":"m","status":"failed","output":[],"error":{"code":"server_error","message":"busy"},"usage":{"input_tokens":20,"output_tokens":10,"total_tokens":30}}}`}},
	{gatewaytest.Responses, "breaking off", []string{
		`{"type":"response.created","response":{"id":"x","model":"m","status":"in_progress","output":[]}}`,
		`{"type":"response.in_progress","response":{"id":"x","model":"m","status":"in_progress","output":[],"usage":{"input_tokens":20,"output_tokens":10,"total_tokens":30}}}`}},
	{gatewaytest.Gemini, "an error", []string{
		`{"responseId":"x","modelVersion":"m","candidates":[{"content":{"role":"model","parts":[{"text":"Hi"}]}}],"usageMetadata":{"promptTokenCount":20,"candidatesTokenCount":10,"totalTokenCount":30}}`,
		`{"error":{"code":503,"message":"busy","status":"UNAVAILABLE"}}`}},
	{gatewaytest.Gemini, "breaking off", []string{
		`{"responseId":"x","modelVersion":"m","candidates":[{"content":{"role":"model","parts":[{"text":"Hi"}]}}],"usageMetadata":{"promptTokenCount":20,"candidatesTokenCount":10,"totalTokenCount":30}}`}},
	{gatewaytest.Converse, "breaking off", []string{
		`{"messageStart":{"role":"assistant"}}`, `{"contentBlockDelta":{"contentBlockIndex":0,"delta":{"text":"Hi"}}}`,
		`{"metadata":{"usage":{"inputTokens":20,"outputTokens":10,"totalTokens":30}}}`}},
	{gatewaytest.Converse, "what makes no sense", []string{
		`{"messageStart":{"role":"assistant"}}`, `{"metadata":{"usage":{"inputTokens":20,"outputTokens":10,"totalTokens":30}}}`,
		`{"contentBlockStart":{"contentBlockIndex":0,"start":{"toolUse":{}}}}`}},
}

// A stream that fails after the provider's count is recorded and charged with that count,
// for all formats of client and provider.
func TestStream_FailureKeepsUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range failing {
		for _, d := range dialects {
			t.Run(tt.format+" with "+tt.how+" to "+d.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.model("lab/m", tt.format+":odd")
				f := &gatewaytest.Fixture{Format: tt.format}
				for _, c := range tt.chunks {
					f.Chunks = append(f.Chunks, []byte(c))
				}
				w.up.On("odd", gatewaytest.Answer{Fixture: f})
				status, body, _ := w.ask(d, "lab/m", true)
				if status == http.StatusOK && !strings.Contains(body, d.fails) {
					t.Errorf("the client is not told: %s", body)
				}
				r := w.record(1)
				n := int64(len(r.Attempts)) // a failed attempt is followed by another one
				if r.Status != gateway.Failed || r.Tokens.Input != 20*n || r.Tokens.Output != 10*n || r.Tokens.Estimated {
					t.Errorf("the record of %d attempts is %s, with %+v", n, r.Status, r.Tokens)
				}
				if r.Cost == nil || *r.Cost != (price.Input*20+price.Output*10).Times(n) {
					t.Errorf("the cost of %d attempts is %v", n, r.Cost)
				}
			})
		}
	}
}

// A duplicate message_start does not begin a second answer.
func TestStream_MessageStartTwice(t *testing.T) {
	t.Parallel()
	start := `{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","model":"m","content":[],"usage":{"input_tokens":20,"output_tokens":1}}}`
	f := &gatewaytest.Fixture{Format: gatewaytest.Messages}
	for _, c := range []string{
		start, start, `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`, `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`,
		start, `{"type":"content_block_stop","index":0}`, `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":10}}`, `{"type":"message_stop"}`,
	} {
		f.Chunks = append(f.Chunks, []byte(c))
	}
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.model("lab/m", "messages:odd")
			w.up.On("odd", gatewaytest.Answer{Fixture: f})
			status, body, _ := w.ask(d, "lab/m", true)
			if status != http.StatusOK || !strings.Contains(body, d.ends) || !strings.Contains(body, "Hello") || strings.Count(body, "event: message_start") > 1 {
				t.Errorf("%d %s", status, body)
			}
			if r := w.record(1); r.Status != gateway.Succeeded || r.Tokens.Input != 20 || r.Tokens.Output != 10 || r.Tokens.Estimated {
				t.Errorf("the record is %s, with %+v", r.Status, r.Tokens)
			}
		})
	}
}
