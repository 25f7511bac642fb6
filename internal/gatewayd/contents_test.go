package gatewayd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/gatewayd"
	"github.com/cayhq/cay/internal/gatewayd/capture"
	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
	"github.com/cayhq/cay/internal/gatewayd/guard"
)

// Spans contain texts if the operator enables it, in each format, passed and translated,
// streamed and whole; redacted, bounded, and only for language models.
func TestTrace_Contents(t *testing.T) {
	t.Parallel()
	redact, err := guard.NewRedactor([]guard.Pattern{{Name: "word", Words: []string{"sesame"}}})
	checktest.OK(t, err)
	for _, d := range dialects {
		for _, through := range []string{d.through(), gatewaytest.Gemini} {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprint(d.name, "/", through, "/", stream), func(t *testing.T) {
					t.Parallel()
					spans := tracetest.NewSpanRecorder()
					tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
					w := newWorld(t, func(_ *world, c *gatewayd.Config) { c.Tracer = tracer })
					rules := &capture.Rules{Spans: true, Redact: redact, Models: []string{"lab/*"}}
					checktest.OK(t, rules.Check())
					w.settings.Capture = rules
					w.up.On("says", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "Open, sesame"}})
					w.up.On("long", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: strings.Repeat("much ", 10_000)}})
					w.model("lab/m", through+":says")
					w.model("lab/long", through+":long")
					w.model("other/m", through+":says")
					for i, model := range []string{"lab/m", "lab/long", "other/m"} {
						if status, body, _ := w.ask(d, model, stream); status != http.StatusOK {
							t.Fatalf("%d %s", status, body)
						}
						w.record(i + 1)
					}
					w.client.CloseIdleConnections()
					ctx, cancel := context.WithCancel(t.Context())
					cancel()
					w.engine.Close(ctx) // all calls have ended
					seen := 0
					for _, s := range spans.Ended() {
						input, output := of(s, "gen_ai.input.messages"), of(s, "gen_ai.output.messages")
						if strings.Contains(fmt.Sprint(s.Attributes()), "sesame") {
							t.Errorf("%s is not redacted: %v", s.Name(), s.Attributes())
						}
						switch s.Name() {
						case "chat lab/m":
							seen++
							var in, out []struct {
								Role  string
								Parts []struct{ Type, Content string }
							}
							checktest.OK(t, json.Unmarshal([]byte(fmt.Sprint(input)), &in))
							checktest.OK(t, json.Unmarshal([]byte(fmt.Sprint(output)), &out))
							if fmt.Sprint(in) != "[{user [{text Say hello, [word]}]}]" || fmt.Sprint(out) != "[{assistant [{text Open, [word]}]}]" || of(s, "cay.content.cut") != nil {
								t.Errorf("%v, %v", in, out)
							}
						case "chat lab/long":
							seen++
							if n := len(fmt.Sprint(output)); n < 4<<10 || n > 17<<10 || of(s, "cay.content.cut") != true {
								t.Errorf("%d bytes: %.200v", n, output)
							}
						default: // attempt spans, and spans without texts
							if input != nil || output != nil {
								t.Errorf("%s has content: %v, %v", s.Name(), input, output)
							}
						}
					}
					if seen != 2 {
						t.Errorf("%d of the calls are told", seen)
					}
				})
			}
		}
	}
}
