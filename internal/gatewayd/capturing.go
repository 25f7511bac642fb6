package gatewayd

import (
	"bytes"
	"regexp"

	"github.com/cayhq/cay/gateway"
	"github.com/cayhq/cay/internal/gatewayd/capture"
)

// tee captures the answer, if capturing is on. The caller and the model are known only
// later.
func (c *call) tee() {
	rules := c.v.Capture
	if rules != nil && rules.Answers && c.e.cfg.Captured != nil && c.rt.kind != "" {
		c.out.tee = c.e.cfg.Captured.Tee(rules)
	}
}

// capture hands the call's bodies to the Store if the rules select the call, and notes
// that in the call's record.
func (c *call) capture(r *gateway.Request) {
	rules, bodies := c.v.Capture, c.e.cfg.Captured
	tee := c.out.collected()
	if rules == nil || bodies == nil || !rules.Requests && !rules.Answers {
		return
	}
	if !rules.Wants(r.KeyID, r.Model, r.Served) {
		if tee != nil {
			tee.Discard()
		}
		return
	}
	var request *capture.Body
	if rules.Requests {
		request = c.sentBody()
	}
	r.Capture = gateway.CaptureDropped
	if bodies.Offer(r, rules, request, tee, c.out.w.Header().Get("Content-Type")) {
		r.Capture = gateway.CaptureKept
	}
}

// perhapsSecret finds possible credentials in a request, also in one that could not be
// parsed.
var perhapsSecret = regexp.MustCompile(`(?i)byok|key|secret|token|credential|\\`)

// sentBody returns the client's body as changed by guards, with credentials removed.
func (c *call) sentBody() *capture.Body {
	b := &capture.Body{ContentType: c.r.Header.Get("Content-Type"), Bytes: c.body, Size: c.record.BytesIn}
	switch {
	case c.obj == nil || c.obj.body == nil: // the body could not be parsed, or is a form
		b.Size = max(b.Size, int64(len(c.body)))
		if c.obj != nil {
			b.ContentType = "application/octet-stream"
		} else if bytes.Contains(c.body, []byte("providerOptions")) || bytes.ContainsRune(c.body, '\\') {
			b.Omitted = "it makes no sense, and may have credentials in it"
		} else {
			b.ContentType = "text/plain"
		}
		return b
	case perhapsSecret.Match(c.obj.get("providerOptions")):
		b.Bytes = c.obj.edit(change{"providerOptions", nil})
	}
	b.ContentType = "application/json" // whatever type the client sent
	return b
}
