package messages

import (
	"bytes"
	"io"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
	"github.com/cayhq/cay/internal/sse"
)

var _ hub.Mender = (*Format)(nil)

// Mend returns a streamed answer without duplicate message_start events of the same id,
// because official clients fail at the second one. All other bytes are unchanged.
func (*Format) Mend(_ *hub.Target, body io.ReadCloser) io.ReadCloser {
	told, first := false, ""
	return sse.NewRewriter(body, maxEvent, func(event []byte) ([]byte, bool) {
		if !bytes.Contains(event, []byte(`"message_start"`)) {
			return event, false
		}
		e := gjson.ParseBytes(sse.DataOf(event))
		if e.Get("type").Str != "message_start" {
			return event, false
		}
		id := e.Get("message.id").Str
		if told && id == first {
			return nil, false
		}
		if !told {
			told, first = true, id
		}
		return event, false
	})
}
