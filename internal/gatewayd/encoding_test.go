package gatewayd_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/gatewayd/gatewaytest"
)

// An answer in an encoding that was not requested is refused with the encoding's name,
// passed or translated, whether it is a success or an error. The gateway requests no
// encoding.
func TestEncoding(t *testing.T) {
	t.Parallel()
	for _, d := range dialects {
		for _, through := range []string{gatewaytest.Chat, gatewaytest.Messages} {
			for _, coding := range []string{"gzip", "br"} {
				for _, stream := range []bool{false, true} {
					for _, fault := range []gatewaytest.Fault{{}, {Kind: gatewaytest.Rejected}} {
						w := newWorld(t)
						w.model("mock/zipped", through+":zipped")
						w.up.On("zipped", gatewaytest.Answer{Reply: gatewaytest.Reply{Text: "Hello."}, Head: http.Header{"Content-Encoding": {coding}}, Fault: fault})
						status, body, _ := w.ask(d, "mock/zipped", stream)
						r := w.record(1)
						if status != http.StatusBadGateway || !strings.Contains(body, coding) || !strings.Contains(r.Error, coding) {
							t.Errorf("%s through %s, %s: %d %s, record %q", d.name, through, coding, status, body, r.Error)
						}
						asked := w.up.Of("zipped")
						if !slices.Equal(asked[0].Head.Values("Accept-Encoding"), []string{"identity"}) {
							t.Errorf("asked for %q", asked[0].Head.Values("Accept-Encoding"))
						}
					}
				}
			}
		}
	}
}
