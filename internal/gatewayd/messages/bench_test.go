package messages

import (
	"bytes"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// stream returns an answer of some 24 events.
func stream() []byte {
	chunks := [][]byte{
		[]byte(`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude","content":[],"usage":{"input_tokens":10,"output_tokens":1}}}`),
		[]byte(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`),
	}
	for range 19 {
		chunks = append(chunks, []byte(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"some words of it "}}`))
	}
	return gatewaytest.Frames(gatewaytest.Messages, append(chunks,
		[]byte(`{"type":"content_block_stop","index":0}`),
		[]byte(`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":100}}`),
		[]byte(`{"type":"message_stop"}`)))
}

func BenchmarkReader(b *testing.B) {
	in := stream()
	b.ReportAllocs()
	for b.Loop() {
		r := New().NewReader(anthropic, bytes.NewReader(in))
		for {
			if _, err := r.Next(); err != nil {
				break
			}
		}
	}
}

func BenchmarkWriter(b *testing.B) {
	var events []hub.Event
	r := New().NewReader(anthropic, bytes.NewReader(stream()))
	for {
		next, err := r.Next()
		if err != nil {
			break
		}
		events = append(events, next...)
	}
	b.ReportAllocs()
	var out []byte
	for b.Loop() {
		w := New().NewWriter(hub.Answer{ID: "gen_1", Model: "m"})
		out = out[:0]
		for i := range events {
			out = w.Append(out, &events[i])
		}
	}
}

func BenchmarkTap(b *testing.B) {
	in := stream()
	b.ReportAllocs()
	for b.Loop() {
		tap := New().Tap(anthropic, true)
		tap.Write(in)
		if !tap.End().Complete {
			b.Fatal("not complete")
		}
	}
}
