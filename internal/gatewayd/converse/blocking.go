package converse

import (
	"encoding/json"

	"github.com/tidwall/gjson"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadResult decodes a whole answer. The format has neither an id nor a model name.
func (*Format) ReadResult(t *hub.Target, body []byte) (*hub.Result, error) {
	if !json.Valid(body) {
		return nil, errorf(t, "%s sent an answer that is not JSON", t.Provider)
	}
	root := gjson.ParseBytes(body)
	message := root.Get("output.message")
	if !message.IsObject() {
		return nil, errorf(t, "%s sent an answer without a message", t.Provider)
	}
	d := newDecoder(t)
	d.begin()
	for index, b := range message.Get("content").Array() {
		if d.ended {
			break
		}
		d.block(int64(index), b)
	}
	d.metadata(root)
	d.about(root.Get("stopReason").Str, root.Get("additionalModelResponseFields"))
	d.end()
	var c hub.Collector
	for i := range d.events {
		c.Add(&d.events[i])
	}
	r, failed := c.Result()
	if failed != nil {
		return nil, failed
	}
	return r, nil
}
