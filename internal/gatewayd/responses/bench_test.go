package responses

import (
	"bytes"
	"io"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// BenchmarkTap measures the cost of a passed streamed answer.
func BenchmarkTap(b *testing.B) {
	all := rendered()
	b.ReportAllocs()
	b.SetBytes(int64(len(all)))
	for b.Loop() {
		tap := New().Tap(openai, true)
		tap.Write(all)
		if !tap.End().Complete {
			b.Fatal("not complete")
		}
	}
}

// BenchmarkTranslate measures the cost of decoding and encoding an answer.
func BenchmarkTranslate(b *testing.B) {
	f := gatewaytest.Reply{Text: "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."}.Render(gatewaytest.Responses, "gpt-5.1")
	all := gatewaytest.Frames(gatewaytest.Responses, f.Chunks)
	b.ReportAllocs()
	var dst []byte
	for b.Loop() {
		r, w := New().NewReader(openai, bytes.NewReader(all)), New().NewWriter(hub.Answer{ID: "gen_1", Model: "m"})
		dst = dst[:0]
		for {
			events, err := r.Next()
			if err == io.EOF {
				break
			}
			for i := range events {
				dst = w.Append(dst, &events[i])
			}
		}
	}
	if !bytes.Contains(dst, []byte("response.completed")) {
		b.Fatal("not complete")
	}
}
