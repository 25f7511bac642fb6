package gemini

import (
	"encoding/json"

	"github.com/cayhq/cay/internal/gatewayd/hub"
)

// ReadResult decodes a GenerateContentResponse. A blocked prompt becomes a result without
// content and with the reason ContentFilter.
func (*Format) ReadResult(t *hub.Target, body []byte) (*hub.Result, error) {
	if len(body) > maxWhole {
		return nil, broken(t, "the answer is too large", nil)
	}
	var g generated
	if err := json.Unmarshal(body, &g); err != nil {
		return nil, broken(t, "the answer makes no sense", err)
	}
	d := &decoder{target: t}
	d.add(&g)
	d.end(errNoCandidates)
	if err := failure(d.out); err != nil {
		return nil, err
	}
	var c hub.Collector
	for i := range d.out {
		c.Add(&d.out[i])
	}
	r, _ := c.Result()
	return r, nil
}
